//! Decoupling a directory, and aborting that.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use espalier_policy::{Interference, Policy};
use espalier_proto::{Errno, Ino, Reply};

use crate::decouple::{Decouple, Decoupled};
use crate::event::Event;
use crate::lease::LeaseKey;
use crate::machine::{Cx, Final, Meta};
use crate::progress::{Progress, Walk};
use crate::record::decode;
use crate::step::{Step, Stop, Wait};

/// Entries and files with streams that an abort removes per step, as the sweep frees.
const STEP: usize = 128;
const STREAMS: usize = 16;

impl Meta {
    /// Decouples an empty directory: provisions inode numbers for a namespace that a client merges
    /// later. Until then the directory's policy says whether others may change its entries.
    /// Repeating it does nothing.
    ///
    /// # Errors
    /// - `EPERM`: the caller does not own the directory, or its bound allows fewer numbers.
    /// - `ENOTEMPTY`: it has entries.
    /// - `EBUSY`: it is decoupled already.
    /// - `EOPNOTSUPP`: it is partitioned.
    pub(crate) fn decouple(&mut self, cx: &mut Cx<'_>, dir: Ino, value: &[u8]) -> Step<Final<'_>> {
        let Decouple { id, inodes } = decode(value).map_err(|_| Errno::EINVAL)?;
        if id == Decoupled::ABORTED || !(1..=Decouple::MAX_INODES).contains(&inodes) {
            return Err(Errno::EINVAL.into());
        }
        let inode = self.state.dir(dir)?;
        if !cx.is_owner(inode) {
            return Err(Errno::EPERM.into());
        }
        match inode.decoupled() {
            Some(decoupled) if decoupled.id == id => return Ok(Final::of(Reply::Done)),
            Some(_) => return Err(Errno::EBUSY.into()),
            None if inode.partition().is_some() => return Err(Errno::EOPNOTSUPP.into()),
            None => {}
        }
        if self.state.is_removed(dir)? {
            return Err(Errno::ENOENT.into());
        }
        // Half of them are for inodes that cannot keep their number.
        let most = inode.policy().bound().and_then(|bound| bound.allocated_inodes());
        if most.is_some_and(|most| inodes / 2 > most.get().into()) && !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        self.revoke_exclusive(cx, dir)?;
        if self.state.dir(dir)?.has_entries() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let first = Ino(self.state.numbers.next());
        let end = first.0.checked_add(inodes).filter(|end| Ino(*end).rank() == self.config.rank);
        end.ok_or(Errno::ENOSPC)?;
        let interfere = self.setting(self.state.dir(dir)?, Policy::interfere).unwrap_or(Interference::Block);
        let decoupled = Some(Box::new(Decoupled {
            id,
            mtime: self.state.dir(dir)?.mtime,
            ctime: cx.now,
            strip_bytes: self.config.strip_bytes,
            first,
            inodes,
            next: first,
            next_spare: Decoupled::middle(first, inodes),
            merged: 0,
            digest: 0,
            shows: false,
            interfere,
            redirected: BTreeMap::new(),
        }));
        self.commit(cx, &Event::Decouple { dir, decoupled, time: cx.now }, |meta, cx| {
            // The client's own caches may hold the listing, and its write-back ends.
            meta.revoke_without_waiting(cx, LeaseKey::Exclusive(dir), None);
            meta.revoke_without_waiting(cx, LeaseKey::Inode(dir), None);
            // Programs will learn these numbers.
            cx.durable = true;
            Reply::Done
        })
    }

    /// The state of a decoupled directory, encoded.
    pub(crate) fn get_decoupled(&mut self, ino: Ino) -> Step<Reply> {
        let decoupled = self.state.inode(ino)?.decoupled().ok_or(Errno::ENODATA)?;
        Ok(Reply::Bytes(crate::record::encode(decoupled).into()))
    }

    /// Discards what is merged of a namespace, and couples the directory again. What others see
    /// stays.
    ///
    /// # Errors
    /// - `EPERM`: the caller does not own the directory.
    /// - `ENODATA`: it is not decoupled.
    pub(crate) fn abort_decoupled(&mut self, cx: &mut Cx<'_>, dir: Ino) -> Step<Final<'_>> {
        self.writable()?;
        let inode = self.state.dir(dir)?;
        if !cx.is_owner(inode) {
            return Err(Errno::EPERM.into());
        }
        let mut decoupled = inode.decoupled().ok_or(Errno::ENODATA)?.clone();
        self.block_grants(cx, dir)?;
        let is_seen = decoupled.is_seen();
        if decoupled.id != Decoupled::ABORTED {
            // From here on no more records are merged.
            decoupled.id = Decoupled::ABORTED;
            let decoupled = Some(Box::new(decoupled));
            return Err(self.stage(cx, &Event::Decouple { dir, decoupled, time: cx.now }));
        }
        let mut walk = match core::mem::take(cx.progress) {
            Progress::Walk(walk) if walk.top == dir => walk,
            _ => Walk::new(dir),
        };
        let outcome = if is_seen { Ok(()) } else { self.discard_merged(cx, &mut walk) };
        *cx.progress = Progress::Walk(walk);
        outcome?;
        self.commit(cx, &Event::Decouple { dir, decoupled: None, time: cx.now }, |_, _| Reply::Done)
    }

    /// Removes the entries of the directory that the walk is at; trees go to the trash.
    fn discard_merged(&mut self, cx: &mut Cx<'_>, walk: &mut Walk) -> Step<()> {
        let (mut left, mut streams) = (STEP, STREAMS);
        while let Some((dir, after)) = walk.stack.last().copied() {
            if streams == 0 {
                return Err(Stop::Wait(Wait::Durable));
            }
            if left == 0 || self.state.trash.len() >= Self::MAX_TRASH {
                return Err(Stop::Wait(Wait::While));
            }
            self.state.load_above(dir)?;
            let found = self.entries_after(cx, dir, after)?;
            let Some(hash) = found.last().map(|(slot, _)| slot.hash) else { return Ok(()) };
            for (slot, target) in found {
                let Some(ino) = target.ino() else { continue };
                streams = streams.saturating_sub(usize::from(self.state.inode(ino)?.is_streamed()));
                left = left.saturating_sub(1);
                self.free(cx, dir, slot.name, ino)?;
            }
            walk.stack = [(dir, hash)].into();
        }
        Ok(())
    }
}
