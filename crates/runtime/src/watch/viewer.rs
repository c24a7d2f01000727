//! Viewers: running `espalier top`s. Each has its own counts, by process and directory, since its
//! last report, and is dropped if it does not ask again.

use std::time::{Duration, Instant};

use espalier_proto::Ino;

use super::top_table::TopTable;
use super::{Span, Totals};

/// A viewer, and the counts between two of its reports.
#[derive(Debug)]
pub(super) struct Viewer {
    pub id: u64,
    /// The viewer is dropped if it does not ask again by then.
    pub expires: Instant,
    looked: Instant,
    before: Totals,
    threads: TopTable<u32, Process>,
    directories: TopTable<Ino, ()>,
}

/// The counts since the last report.
#[derive(Debug)]
pub(super) struct ViewerCounts {
    pub seconds: f64,
    pub totals: Totals,
    /// By thread, as the kernel identifies callers.
    pub threads: TopTable<u32, Process>,
    pub directories: TopTable<Ino, ()>,
}

/// The process of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    pub command: String,
}

impl Viewer {
    pub(super) fn new(id: u64, now: Instant, before: Totals) -> Self {
        let (threads, directories) = (TopTable::default(), TopTable::default());
        Self { id, expires: now, looked: now, before, threads, directories }
    }

    pub(super) fn add(&mut self, span: &Span, nanos: u64, failed: bool) {
        if span.pid != Span::NO_PROCESS {
            self.threads.add(span.pid, nanos, failed, || Process::of(span.pid));
        }
        if let Some(dir) = span.dir {
            self.directories.add(dir, nanos, failed, || ());
        }
    }

    /// `lasting`: how long counting continues for this viewer.
    pub(super) fn look(&mut self, totals: Totals, now: Instant, lasting: Duration) -> ViewerCounts {
        let seen = ViewerCounts {
            seconds: now.saturating_duration_since(self.looked).as_secs_f64(),
            totals: totals.since(&self.before),
            threads: std::mem::take(&mut self.threads),
            directories: std::mem::take(&mut self.directories),
        };
        (self.looked, self.before, self.expires) = (now, totals, now + lasting);
        seen
    }
}

impl Process {
    /// The thread waits for this process, so it exists.
    fn of(thread: u32) -> Self {
        if thread == 0 {
            // For example, readahead; or a caller in another PID namespace.
            return Self { pid: 0, command: "(kernel)".into() };
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let pid = group.and_then(|group| group.trim().parse().ok()).unwrap_or(thread);
        let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, command: String::from_utf8_lossy(command.trim_ascii_end()).into_owned() }
    }
}
