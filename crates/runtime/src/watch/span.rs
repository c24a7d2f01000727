//! The time of one operation by stage.

use std::time::Instant;

use espalier_proto::{Ino, named};

use super::Kind;

named! {
    /// A stage of an operation.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Stage {
        /// Waiting for the lock on the state machines.
        Queue = "queue",
        /// In the state machines.
        Work = "work",
        /// Waiting for a commit of the journal or for journal space.
        Journal = "journal",
        /// Loads from the tables, and stream I/O.
        Disk = "disk",
    }
}

/// A thread's critical section on the state machines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CriticalSection {
    /// When the thread began to wait for the lock.
    pub requested: Instant,
    /// When it acquired the lock.
    pub began: Instant,
}

/// An operation in progress. It reads the clock at its start and end, and when it waits for the
/// lock.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub kind: Kind,
    /// The frontend's number of the call; 0: none.
    pub number: u64,
    pub pid: u32,
    /// The operation's inode; if it carries a name, the directory.
    pub ino: Ino,
    /// Set while a viewer is active.
    pub dir: Option<Ino>,
    /// Nanoseconds by stage, up to `mark`.
    pub spent: [u64; 4],
    stage: Stage,
    mark: Instant,
}

impl Span {
    /// Placeholder for an unknown process.
    pub(crate) const NO_PROCESS: u32 = u32::MAX;

    pub(crate) fn start(kind: Kind, pid: u32, ino: Ino, section: CriticalSection) -> Self {
        let mut span = Self {
            kind,
            number: 0,
            pid,
            ino,
            dir: None,
            spent: [0; 4],
            stage: Stage::Queue,
            mark: section.requested,
        };
        span.enter_stage(Stage::Work, section.began);
        span
    }

    /// Enters another stage.
    pub(crate) fn enter_stage(&mut self, stage: Stage, now: Instant) {
        self.spent[self.stage as usize] += now.saturating_duration_since(self.mark).as_nanos() as u64;
        self.mark = self.mark.max(now);
        self.stage = stage;
    }

    /// Resumes the operation in this critical section, if it waited.
    pub(crate) fn resume(&mut self, section: CriticalSection) {
        if self.stage != Stage::Work {
            self.enter_stage(Stage::Queue, section.requested);
            self.enter_stage(Stage::Work, section.began);
        }
    }

    /// Nanoseconds up to the last change of stage.
    pub(crate) fn total(&self) -> u64 {
        self.spent.iter().sum()
    }

    /// When the operation entered its stage.
    pub(crate) fn mark(&self) -> Instant {
        self.mark
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_is_charged_to_its_stage() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let section = |requested, began| CriticalSection { requested: at(requested), began: at(began) };
        let mut span = Span::start(Kind::Create, 1, Ino::ROOT, section(0, 1));
        span.resume(section(0, 1));
        span.enter_stage(Stage::Disk, at(3));
        // The load ends at 7, and the lock is acquired at 12.
        span.resume(section(7, 12));
        span.enter_stage(Stage::Journal, at(13));
        // This critical section was requested before the wait began.
        span.resume(section(10, 33));
        span.enter_stage(Stage::Work, at(40));
        let spent = span.spent.map(|nanos| nanos / 1_000_000);
        assert_eq!(spent, [1 + 5 + 20, 2 + 1 + 7, 0, 4]);
        assert_eq!(span.total(), 40_000_000);
    }
}
