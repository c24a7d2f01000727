//! The step contract: a run of an operation makes at most one change, and nothing but a closure
//! that cannot fail runs after it.
//!
//! - [`Meta::commit`] ends an operation. The rest of the operation is a closure that cannot return
//!   an error; its result, a [`Final`], borrows the machine, so nothing can follow but the return.
//! - [`Meta::stage`] makes a change before the last one and ends the run: it returns no value but
//!   the [`Stop`] with which the operation starts over at once. The next run finds the change done,
//!   by the state, or by the operation's `Progress`.
//! - [`Meta::append_loaded`] appends a consequence of a change. It cannot fail.

use alloc::format;
use core::marker::PhantomData;
use core::slice;

use espalier_proto::{Ino, Reply};

use super::{Cx, Meta};
use crate::event::Event;
use crate::journal::{Acknowledge, HeldOutput};
use crate::progress::Progress;
use crate::step::{Step, Stop};

/// The result of an operation that has ended. It borrows the machine: the operation can only return
/// it.
#[must_use]
pub(crate) struct Final<'m, T = Reply> {
    value: T,
    machine: PhantomData<&'m mut Meta>,
}

impl<T> Final<'_, T> {
    pub(crate) fn of(value: T) -> Self {
        Self { value, machine: PhantomData }
    }

    pub(super) fn into_value(self) -> T {
        self.value
    }

    /// Ends one part of an operation of many, such as a record of a merge. The operation notes its
    /// place before it goes on, and may wait or fail in the next part.
    pub(crate) fn end_part(self) -> T {
        self.value
    }
}

/// Shows that [`Meta::stage`] has made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged(());

impl Meta {
    /// Makes a change and ends the operation with `rest`.
    pub(crate) fn commit<T>(
        &mut self,
        cx: &mut Cx<'_>,
        event: &Event,
        rest: impl FnOnce(&mut Self, &mut Cx<'_>) -> T,
    ) -> Step<Final<'_, T>> {
        self.commit_all(cx, slice::from_ref(event), rest)
    }

    /// As [`Self::commit`], for a change of several events. All that the events after the first one
    /// need must be in memory.
    pub(crate) fn commit_all<T>(
        &mut self,
        cx: &mut Cx<'_>,
        events: &[Event],
        rest: impl FnOnce(&mut Self, &mut Cx<'_>) -> T,
    ) -> Step<Final<'_, T>> {
        self.change(cx, events)?;
        Ok(Final::of(rest(self, cx)))
    }

    /// Makes a change that stands without the rest of the operation, which then starts over. The
    /// caller returns the result.
    #[must_use]
    pub(crate) fn stage(&mut self, cx: &mut Cx<'_>, event: &Event) -> Stop {
        self.stage_all(cx, slice::from_ref(event), |_, _| {})
    }

    /// As [`Self::stage`], for a change of several events, as in [`Self::commit_all`], with
    /// consequences.
    #[must_use]
    pub(crate) fn stage_all(
        &mut self,
        cx: &mut Cx<'_>,
        events: &[Event],
        consequences: impl FnOnce(&mut Self, &mut Cx<'_>),
    ) -> Stop {
        if let Err(stop) = self.change(cx, events) {
            return stop;
        }
        consequences(self, cx);
        Stop::Again(Staged(()))
    }

    /// Revokes leases on what the events change, applies the events and appends them to the
    /// journal.
    fn change(&mut self, cx: &mut Cx<'_>, events: &[Event]) -> Step<()> {
        events.iter().try_for_each(|event| self.revoke(cx, event))?;
        let Some((first, others)) = events.split_first() else { return Ok(()) };
        self.append(first)?;
        others.iter().for_each(|event| self.append_loaded(event));
        cx.changed = Some(self.state.sequence);
        if self.config.acknowledge == Acknowledge::Durable {
            cx.coalescing = cx.coalescing.or_else(|| events.iter().find_map(|event| self.coalescing(event)));
        }
        Ok(())
    }

    /// The policy's setting whether changes of the event's inodes share commits.
    fn coalescing(&self, event: &Event) -> Option<bool> {
        let known = event.addressed().into_iter().flatten().filter_map(|ino| self.state.inode(ino).ok());
        known.filter_map(|inode| inode.policy().coalescing()).next()
    }

    /// Applies an event and appends it to the journal, without a client: revokes no leases.
    pub(crate) fn append(&mut self, event: &Event) -> Step<()> {
        for ino in event.addressed().into_iter().flatten() {
            if let Some((dir, hash)) = self.state.unchanged_dentry(ino) {
                self.record(&Event::Locate { ino, dir, hash })?;
            }
        }
        let moved = if self.config.session_ms.is_some() { self.moved_by(event) } else { [None; 2] };
        self.record(event)?;
        for ino in moved.into_iter().flatten() {
            self.append_loaded(&Event::Moved { ino });
        }
        Ok(())
    }

    /// As [`Self::append`], for an event all of whose records are in memory.
    pub(crate) fn append_loaded(&mut self, event: &Event) {
        if let Err(stop) = self.append(event) {
            debug_assert!(false, "{event:?} cannot be appended: {stop:?}");
            self.warnings.push(format!("an event is not journaled, run fsck: {stop:?}"));
        }
    }

    pub(crate) fn record(&mut self, event: &Event) -> Step<()> {
        for number in &self.walking {
            if let Some(Progress::Walk(walk)) = self.tasks.get_mut(number).map(|task| &mut task.progress) {
                walk.see(&self.state, event);
            }
        }
        let changed = self.changed_by(event)?;
        self.state.apply(event)?;
        self.uncommitted.note(self.state.sequence, changed);
        self.journal.append(self.state.sequence, event);
        event.each_grown(&mut |dir| self.note_growth(dir));
        event.each_shrunk(&mut |dir| self.note_shrinkage(dir));
        Ok(())
    }

    /// Handles the loss of a name of an inode: recalls or frees the inode if it was the last one.
    pub(crate) fn name_taken(&mut self, cx: &mut Cx<'_>, ino: Ino) {
        self.recall_unnamed(ino, Some(cx.client));
        self.purge_if_unused(cx, ino);
    }

    /// Frees an orphan that nobody uses.
    pub(crate) fn purge_if_unused(&mut self, cx: &mut Cx<'_>, ino: Ino) {
        let Ok(cached) = self.state.cached(ino) else { return };
        let is_needed = cached.inode.nlink > 0 || cached.inode.has_entries() || cached.in_use();
        if is_needed
            || self.sessions.removing.contains_key(&ino)
            || self.config.read_only
            || self.journal.broken.is_some()
            || self.sessions.keep_for_others(ino)
        {
            return;
        }
        if cached.inode.is_streamed() {
            self.sessions.making.remove(&ino);
            // It can get no name from here on.
            if let Some(cached) = self.state.inodes.untracked(&ino) {
                cached.nameless = false;
            }
            self.journal.hold(self.state.sequence, HeldOutput::RemoveStream(ino));
        } else {
            self.append_loaded(&Event::Purge { ino });
            cx.changed = Some(self.state.sequence);
        }
    }
}
