//! Delegated opens: opens for reading of small files with cached contents, without a message.
//! The lease on the file stands for the open, as an NFSv4 delegation does (RFC 8881, section 10.4).
//! The server is notified of an open before the lease ends or is returned, and before this client
//! operates on the file otherwise. Most files are closed by then, and the server never learns of
//! the open.
//!
//! Access times are sent later, for many files at a time, since leases do not cover them.

use alloc::vec::Vec;

use espalier_proto::{Caller, Ino, Name, Rank, Request, Time};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::Sessions;
use super::blocked::is_about;
use crate::locations::Locations;
use crate::{Binding, Call};

/// Remaining term in ms below which a lease is about to end, and the server is notified of the
/// open.
const SOON_MS: u64 = 1_000;
/// Maximum number of accesses in a message.
const TOGETHER: usize = 256;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct DelegatedOpens {
    files: HashMap<Ino, Open, FxBuildHasher>,
    /// Access times that no server knows, by the server's clock.
    accessed: HashMap<Ino, Time, FxBuildHasher>,
}

/// An open file.
#[derive(Debug)]
struct Open {
    /// The callers of its opens.
    callers: Vec<Caller>,
    /// When the lease ends.
    until: u64,
}

impl DelegatedOpens {
    fn open(&mut self, ino: Ino, caller: Caller, until: u64) {
        let file = self.files.entry(ino).or_insert(Open { callers: Vec::new(), until });
        file.callers.push(caller);
    }

    /// Ends an open; returns false if there is none.
    fn close(&mut self, ino: Ino) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        file.callers.pop();
        if file.callers.is_empty() {
            self.files.remove(&ino);
        }
        true
    }

    /// Number of accesses that no server knows.
    pub fn unreported(&self) -> usize {
        self.accessed.len()
    }

    /// A server has lost its state: takes the open counts of its files.
    pub fn forgotten(&mut self, rank: Rank, locations: &Locations) -> impl Iterator<Item = (Ino, u32)> {
        let files = self.files.extract_if(move |ino, _| locations.of(*ino) == rank);
        files.map(|(ino, file)| (ino, u32::try_from(file.callers.len()).unwrap_or(u32::MAX)))
    }
}

impl<T> Sessions<T> {
    /// Opens a file without the server, if possible. `accessed`: the access time that the open
    /// sets.
    pub(super) fn try_delegated_open(&mut self, ino: Ino, caller: &Caller, accessed: Option<Time>) -> bool {
        // If the server knows of the other opens, it must also know of this one.
        let is_announced = self.client.is_open(ino) && !self.delegated_opens.files.contains_key(&ino);
        // A client may have cached the contents of a file that it has created and never opened.
        let is_provable =
            self.server_sessions.get(&self.rank_of(ino)).is_some_and(|end| end.link.proves_openings(ino));
        if is_announced || !is_provable || self.cache.has_pending(ino) {
            return false;
        }
        self.delegated_opens.open(ino, caller.clone(), self.cache.leased_until(ino));
        if let Some(time) = accessed {
            self.cache.accessed(ino, time);
            self.delegated_opens.accessed.insert(ino, time);
            if self.delegated_opens.accessed.len() >= TOGETHER {
                self.send_accesses();
            }
        }
        true
    }

    /// Closes a delegated open; returns false if there is none.
    pub(super) fn close_delegated(&mut self, now: u64, call: &Call<'_>) -> bool {
        let Call::Release { ino } = *call else { return false };
        let is_patient = self.delegated_opens.close(ino);
        if is_patient {
            let _ = self.client.start(call);
            self.closed(ino, now);
        }
        is_patient
    }

    // ---- Notifying servers

    /// Notifies servers of delegated opens that a call may depend on.
    pub(super) fn announce_delegated_for(&mut self, now: u64, call: &Call<'_>) {
        if self.delegated_opens.files.is_empty() && self.delegated_opens.accessed.is_empty() {
            return;
        }
        match call {
            Call::Request(Request::Unlink { dir, name, .. } | Request::Create { dir, name, .. }) => {
                self.announce_delegated_named(now, *dir, name);
            }
            Call::Request(Request::Rename { from_dir, from, to_dir, to, .. }) => {
                self.announce_delegated_named(now, *from_dir, from);
                self.announce_delegated_named(now, *to_dir, to);
            }
            Call::Request(Request::RemoveTree { .. }) => self.announce_opens(now, |_, _, _| true),
            call => {
                let mut about = Vec::new();
                is_about(call, |ino| {
                    about.push(ino);
                    false
                });
                about.into_iter().for_each(|ino| self.announce_delegated(now, ino));
            }
        }
    }

    fn announce_delegated_named(&mut self, now: u64, dir: Ino, name: &Name) {
        match self.cache.name(dir, name, now) {
            Some(Binding::Inode(ino, _)) => self.announce_delegated(now, ino),
            Some(Binding::Absent) => {}
            // The name may refer to any file.
            None => self.announce_opens(now, |_, _, _| true),
        }
    }

    /// Notifies the server of the opens and accesses of a file.
    pub(super) fn announce_delegated(&mut self, now: u64, ino: Ino) {
        if self.delegated_opens.accessed.contains_key(&ino) {
            self.send_accesses();
        }
        if self.delegated_opens.files.contains_key(&ino) {
            self.announce_opens(now, |_, it, _| it == ino);
        }
    }

    /// Notifies servers of accesses, and of opens whose leases end soon.
    pub(super) fn announce_expiring(&mut self, now: u64) {
        self.send_accesses();
        self.announce_opens(now, |_, _, until| until <= now + SOON_MS);
    }

    /// Notifies servers of the opens that `is_one` selects by inode and end of the lease.
    pub(super) fn announce_opens(&mut self, now: u64, is_one: impl Fn(&Locations, Ino, u64) -> bool) {
        let locations = &self.client.locations;
        let files = self.delegated_opens.files.extract_if(|ino, file| is_one(locations, *ino, file.until));
        for (ino, file) in files.collect::<Vec<_>>() {
            for caller in file.callers {
                self.announce_open(now, 0, ino, caller);
            }
        }
    }

    fn send_accesses(&mut self) {
        let mut accessed: Vec<(Ino, Time)> = self.delegated_opens.accessed.drain().collect();
        accessed.sort_unstable_by_key(|(ino, _)| (self.rank_of(*ino), *ino));
        let is_together = |one: Ino, next: Ino| self.rank_of(one) == self.rank_of(next);
        let together: Vec<Vec<(Ino, Time)>> =
            accessed.chunk_by(|(one, _), (next, _)| is_together(*one, *next)).map(<[_]>::to_vec).collect();
        for files in together {
            let Some((ino, _)) = files.first() else { continue };
            let rank = self.rank_of(*ino);
            self.server_session(rank).ask(Caller::SERVER, Request::Accessed { files });
        }
    }
}
