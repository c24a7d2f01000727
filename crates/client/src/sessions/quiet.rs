//! Openings that no server is told of: of small files that are opened to be read, and of which it is known what they hold. The lease on the
//! file stands for them, as a delegation does in NFS (RFC 8881, 10.4): a server is told when it wants the lease back, when it is about to
//! end, or when this client is about to do anything else with the file. Most are over by then, and were never there.
//!
//! That a file has been accessed by that is told later, many files at a time: leases do not cover it.

use alloc::vec::Vec;

use espalier_proto::{Caller, Ino, Name, Rank, Request, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::Sessions;
use super::behind::is_about;
use crate::{Binding, Call};

/// A lease that ends within so many milliseconds is about to end: a server must hear of an opening before.
const SOON_MS: u64 = 1_000;
/// So many accesses are told at once.
const TOGETHER: usize = 256;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    files: HashMap<Ino, Open, FxBuildHasher>,
    /// What has been accessed, and when, by the server's clock.
    accessed: HashMap<Ino, Time, FxBuildHasher>,
}

/// A file that is open.
#[derive(Debug)]
struct Open {
    /// By these callers.
    callers: Vec<Caller>,
    /// The lease ends then.
    until: u64,
}

impl Quiet {
    fn open(&mut self, ino: Ino, caller: Caller, until: u64) {
        let file = self.files.entry(ino).or_insert(Open { callers: Vec::new(), until });
        file.callers.push(caller);
    }

    /// Whether one of its openings is over.
    fn close(&mut self, ino: Ino) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        file.callers.pop();
        if file.callers.is_empty() {
            self.files.remove(&ino);
        }
        true
    }

    /// Accesses that no server has been told of.
    pub fn untold(&self) -> usize {
        self.accessed.len()
    }

    /// A server has forgotten what it knew: how often files of it are open.
    pub fn forgotten(&mut self, rank: Rank) -> impl Iterator<Item = (Ino, u32)> {
        let files = self.files.extract_if(move |ino, _| ino.rank() == rank);
        files.map(|(ino, file)| (ino, u32::try_from(file.callers.len()).unwrap_or(u32::MAX)))
    }
}

impl<T> Sessions<T> {
    /// A caller opens a file to read it: whether no server needs to know. `accessed`: it counts as accessed then.
    pub(super) fn open_quietly(&mut self, ino: Ino, caller: &Caller, accessed: Option<Time>) -> bool {
        // Openings that a server knows of are closed as such.
        let is_told = self.client.is_open(ino) && !self.quiet.files.contains_key(&ino);
        // Of a file that it has made, and not opened, a client knows what it holds, too.
        let is_provable = self.ends.get(&ino.rank()).is_some_and(|end| end.link.proves_openings(ino));
        if is_told || !is_provable || self.cache.is_early(ino) {
            return false;
        }
        self.quiet.open(ino, caller.clone(), self.cache.leased_until(ino));
        if let Some(time) = accessed {
            self.cache.accessed(ino, time);
            self.quiet.accessed.insert(ino, time);
            if self.quiet.accessed.len() >= TOGETHER {
                self.tell_accesses();
            }
        }
        true
    }

    /// Whether a file is closed that was opened so.
    pub(super) fn close_quietly(&mut self, now: u64, call: &Call<'_>) -> bool {
        let Call::Release { ino } = *call else { return false };
        let is_quiet = self.quiet.close(ino);
        if is_quiet {
            let _ = self.client.start(call);
            self.closed(ino, now);
        }
        is_quiet
    }

    // ---- Telling

    /// Tells servers first of what a call may be about.
    pub(super) fn tell_quiet_of(&mut self, now: u64, call: &Call<'_>) {
        if self.quiet.files.is_empty() && self.quiet.accessed.is_empty() {
            return;
        }
        match call {
            Call::Request(Request::Unlink { dir, name, .. } | Request::Create { dir, name, .. }) => {
                self.tell_quiet_named(now, *dir, name);
            }
            Call::Request(Request::Rename { from_dir, from, to_dir, to, .. }) => {
                self.tell_quiet_named(now, *from_dir, from);
                self.tell_quiet_named(now, *to_dir, to);
            }
            Call::Request(Request::RemoveTree { .. }) => self.tell_openings(now, |_, _| true),
            call => {
                let mut about = Vec::new();
                is_about(call, |ino| {
                    about.push(ino);
                    false
                });
                about.into_iter().for_each(|ino| self.tell_quiet(now, ino));
            }
        }
    }

    fn tell_quiet_named(&mut self, now: u64, dir: Ino, name: &Name) {
        match self.cache.name(dir, name, now) {
            Some(Binding::Inode(ino, _)) => self.tell_quiet(now, ino),
            Some(Binding::Absent) => {}
            // It may be any.
            None => self.tell_openings(now, |_, _| true),
        }
    }

    /// Tells its server of what has been done with a file.
    pub(super) fn tell_quiet(&mut self, now: u64, ino: Ino) {
        if self.quiet.accessed.contains_key(&ino) {
            self.tell_accesses();
        }
        if self.quiet.files.contains_key(&ino) {
            self.tell_openings(now, |it, _| it == ino);
        }
    }

    /// Tells servers of what may not wait any longer.
    pub(super) fn tell_quiet_in_time(&mut self, now: u64) {
        self.tell_accesses();
        self.tell_openings(now, |_, until| until <= now + SOON_MS);
    }

    /// Tells servers that such files are open. `is_one` also knows when the lease ends.
    pub(super) fn tell_openings(&mut self, now: u64, is_one: impl Fn(Ino, u64) -> bool) {
        let files = self.quiet.files.extract_if(|ino, file| is_one(*ino, file.until));
        for (ino, file) in files.collect::<Vec<_>>() {
            for caller in file.callers {
                self.tell_opening(now, 0, ino, caller);
            }
        }
    }

    fn tell_accesses(&mut self) {
        let mut accessed: Vec<(Ino, Time)> = self.quiet.accessed.drain().collect();
        accessed.sort_unstable_by_key(|(ino, _)| (ino.rank(), *ino));
        for files in accessed.chunk_by(|(one, _), (next, _)| one.rank() == next.rank()) {
            if let Some(end) = files.first().and_then(|(ino, _)| self.end(ino.rank())) {
                end.ask(Caller::SERVER, Request::Accessed { files: files.to_vec() });
            }
        }
    }
}
