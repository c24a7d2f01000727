//! Lease renewal for the kernel's page cache.
//! A kernel reads cached pages of open files and directories without asking, so a lease must cover
//! them all the time. Half-way through its term a lease is renewed; if that fails, the kernel drops
//! the pages before the lease ends.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::{Caller, Ino, RangeOp, Rank, Reply, Request, RequestId};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::call_state::ServerReply;
use super::{Actions, FrontendEvent, Sessions};
use crate::cache::SOON_MS;
use crate::{Answer, Call, RangeCall};

/// Maximum number of leases in a renewal request.
const TOGETHER: usize = 256;
/// Interval in ms between requests for missing leases.
const WANTED_MS: u64 = 1_000;
/// Remaining term in ms below which an exclusive lease is renewed.
const AHEAD_MS: u64 = 3_000;

/// See the module's documentation. Times are in milliseconds.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// Open directories and their open counts.
    dirs: HashMap<Ino, u32, FxBuildHasher>,
    open: HashMap<Ino, RenewedInode, FxBuildHasher>,
    due: BTreeSet<(u64, Ino)>,
    /// Open inodes that were read or written without a lease; a lease is requested for the next
    /// access.
    wanted: BTreeSet<Ino>,
    /// Written big files whose exclusive lease ends soon or is missing, as (directory, file).
    written: BTreeSet<(Ino, Ino)>,
    /// When missing leases are requested next. They can be missing for long, as while others write
    /// a stream.
    wanted_from: u64,
    /// When each renewal was sent.
    renewals: BTreeMap<(Rank, RequestId), u64>,
}

/// An open inode with cached pages.
#[derive(Clone, Copy, Debug)]
struct RenewedInode {
    /// The end of its lease when it was last examined.
    covered: u64,
    /// When it is examined next.
    due: u64,
}

impl Renewal {
    fn track(&mut self, ino: Ino, covered: u64, now: u64) {
        let due = (now + covered.saturating_sub(now) / 2).min(covered.saturating_sub(SOON_MS));
        self.untrack(ino);
        self.open.insert(ino, RenewedInode { covered, due });
        self.due.insert((due, ino));
    }

    fn untrack(&mut self, ino: Ino) {
        if let Some(watched) = self.open.remove(&ino) {
            self.due.remove(&(watched.due, ino));
        }
    }

    fn next(&mut self, now: u64) -> Option<(Ino, RenewedInode)> {
        let (_, ino) = *self.due.first().filter(|(due, _)| *due <= now)?;
        let watched = *self.open.get(&ino)?;
        self.untrack(ino);
        Some((ino, watched))
    }
}

impl<T> Sessions<T> {
    /// Handles the answer to a call that began in epoch `epoch`, which may be cached for `lease`
    /// ms. Returns how long the kernel may cache the pages of a read or write; 0: it must drop
    /// them.
    pub(super) fn retain_pages(
        &mut self,
        now: u64,
        epoch: u64,
        call: &Call<'_>,
        answer: &mut Answer,
        lease: u64,
        actions: &mut Actions<T>,
    ) -> u64 {
        if !self.cache.has_kernel() {
            return lease;
        }
        let ino = match (call, answer) {
            (_, Answer::Opened(opening) | Answer::Created(_, opening)) => {
                opening.keep_cache = self.cache.keeps_pages(opening.ino, now);
                if opening.keep_cache {
                    self.track(opening.ino, now);
                }
                // Pages of a file that is open already are revoked in time. To drop them here would
                // block the kernel on reads in progress, which no signal ends, as long as a server
                // is down.
                opening.keep_cache |= self.client.opens(opening.ino) > 1;
                return lease;
            }
            // The lease came with the data.
            (Call::Range(RangeCall { ino, op: RangeOp::Read { .. }, .. }), _) if lease > 0 => {
                return self.retain_reply(now, self.cache.epoch(), *ino);
            }
            (Call::Range(RangeCall { ino, op: RangeOp::Read { .. } | RangeOp::Write { .. }, .. }), _) => *ino,
            (Call::Request(Request::ReadDir { dir, .. }), _) => *dir,
            _ => return lease,
        };
        let left = self.retain_reply(now, epoch, ino);
        match call {
            Call::Request(_) if left == 0 => {
                actions.frontend.push(FrontendEvent::Changed(self.shown_all(vec![ino])));
                lease
            }
            Call::Request(_) => lease,
            _ => left,
        }
    }

    /// Handles a read that the cache answers. Returns how long a kernel may cache the pages;
    /// `None`: no kernel.
    pub(super) fn retain_known(&mut self, now: u64, ino: Ino) -> Option<u64> {
        self.cache.has_kernel().then(|| self.retain_reply(now, self.cache.epoch(), ino))
    }

    fn retain_reply(&mut self, now: u64, epoch: u64, ino: Ino) -> u64 {
        let left = self.cache.note_kernel_pages(ino, epoch, now);
        if left > 0 {
            self.track(ino, now);
        } else if self.is_in_use(ino) && self.cache.was_leased(ino) {
            self.renewal.wanted.insert(ino);
        }
        left
    }

    /// Handles a kernel's `opendir`. Returns whether its cached listing is valid; `None`: it may
    /// not cache one.
    pub fn open_dir(&mut self, now: u64, dir: Ino) -> Option<bool> {
        let dir = self.real(dir);
        *self.renewal.dirs.entry(dir).or_default() += 1;
        let retain_pages = self.cache.keeps_pages(dir, now);
        if retain_pages {
            self.track(dir, now);
        }
        // Leases on the other fragments are not renewed.
        let is_covered = self.cache.leased_until(dir) > now + SOON_MS && !self.is_partitioned(dir);
        is_covered.then_some(retain_pages)
    }

    pub fn close_dir(&mut self, dir: Ino) {
        let dir = self.real(dir);
        if let Some(opens) = self.renewal.dirs.get_mut(&dir) {
            *opens -= 1;
            if *opens == 0 {
                self.renewal.dirs.remove(&dir);
                self.renewal.untrack(dir);
            }
        }
    }

    /// Records the last close of a file.
    pub(super) fn stop_renewing(&mut self, ino: Ino) {
        self.renewal.untrack(ino);
    }

    fn track(&mut self, ino: Ino, now: u64) {
        if self.is_in_use(ino) && !self.renewal.open.contains_key(&ino) {
            self.renewal.track(ino, self.cache.pages_until(ino), now);
        }
    }

    fn is_in_use(&self, ino: Ino) -> bool {
        self.client.is_open(ino) || self.renewal.dirs.contains_key(&ino)
    }

    /// Schedules a renewal of the exclusive lease for write-behind to this file, because requests
    /// that name entries of the directory may not renew it.
    pub(super) fn renew_exclusive(&mut self, now: u64, ino: Ino) {
        let soon_over = self.cache.sole_holder_dir(ino).filter(|(_, until)| *until <= now + AHEAD_MS);
        self.renewal.written.extend(soon_over.map(|(dir, _)| (dir, ino)));
    }

    fn renew(&mut self, now: u64, inodes: Vec<Ino>, exclusive_dir: Option<Ino>) {
        let Some(rank) = inodes.first().map(|ino| self.rank_of(*ino)) else { return };
        let request = Request::Renew { inodes, exclusive_dir };
        let id = self.server_session(rank).ask(Caller::SERVER, request);
        self.renewal.renewals.insert((rank, id), now);
    }

    /// Renews and ends leases; called with each tick.
    pub(super) fn renew_leases(&mut self, now: u64, actions: &mut Actions<T>) {
        let (mut renew, mut lost) = (BTreeSet::new(), Vec::new());
        if now >= self.renewal.wanted_from
            && !(self.renewal.wanted.is_empty() && self.renewal.written.is_empty())
        {
            self.renewal.wanted_from = now + WANTED_MS;
            renew = take(&mut self.renewal.wanted);
            renew.retain(|ino| self.is_in_use(*ino));
            let written: Vec<_> = take(&mut self.renewal.written).into_iter().collect();
            for files in written.chunk_by(|one, next| one.0 == next.0) {
                let dir = files[0].0;
                for files in files.chunks(TOGETHER - 1) {
                    let files = files.iter().map(|(_, file)| *file);
                    self.renew(now, [dir].into_iter().chain(files).collect(), Some(dir));
                }
            }
        }
        while let Some((ino, watched)) = self.renewal.next(now) {
            let until = self.cache.pages_until(ino);
            // The lease may have been interrupted.
            if watched.covered < now || until <= now + SOON_MS {
                self.cache.lose_pages(ino);
                lost.push(ino);
                continue;
            }
            if until == watched.covered {
                renew.insert(ino);
            }
            self.renewal.track(ino, until, now);
        }
        let mut by_rank: BTreeMap<Rank, Vec<Ino>> = BTreeMap::new();
        for ino in renew {
            by_rank.entry(self.rank_of(ino)).or_default().push(ino);
        }
        for inodes in by_rank.into_values() {
            for inodes in inodes.chunks(TOGETHER) {
                self.renew(now, inodes.to_vec(), None);
            }
        }
        if !lost.is_empty() {
            actions.frontend.push(FrontendEvent::Changed(self.shown_all(lost)));
        }
    }

    /// Handles the reply to a renewal; returns false if the request is none.
    pub(super) fn renewed(&mut self, now: u64, reply: &ServerReply) -> bool {
        let Some(sent) = self.renewal.renewals.remove(&(reply.rank, reply.id)) else { return false };
        if let Ok(Reply::Renewed(inodes)) = &reply.result {
            // A millisecond that has begun counts as passed.
            let until = (sent + reply.lease).saturating_sub(1);
            inodes.iter().for_each(|ino| self.cache.renewed(*ino, until, now));
            let files = inodes.iter().filter(|ino| Some(**ino) != reply.touched.exclusive);
            let files: Vec<_> = files.map(|ino| (*ino, 1)).collect();
            self.cache.grant_exclusive(&reply.touched, &files, until, now);
        }
        true
    }

    /// Handles the end of a session.
    pub(super) fn lose_renewals(&mut self, rank: Rank) {
        self.renewal.renewals.retain(|(of, _), _| *of != rank);
    }
}
