//! Renames whose reply grants no lease on the names: those between ranks, and those of contended
//! names.
//!
//! A kernel moves its dentry to the new name and keeps the old name's timeout. So the client looks
//! the new name up at its rank before it answers. If the name is not bound to the moved inode, or
//! has no lease, the kernel must distrust all cached names.

use alloc::vec::Vec;

use espalier_proto::{Entry, Errno, Ino, Lease, Name, RenameFlags, Reply, Request};

use super::own::Left;
use super::pending_calls::{CallWait, PendingCall};
use super::{Actions, FrontendEvent, Sessions};
use crate::{Answer, Call};

/// Progress of the lookups that confirm a rename.
#[derive(Debug, Default)]
pub(super) struct Confirmation {
    /// New names for which the frontend may have cached a dentry under the old name.
    names: Vec<Moved>,
    /// The name being looked up.
    current: Option<Moved>,
    /// The lease on the new name was given up without waiting for the kernel.
    revoked: bool,
    /// When the first lease of the lookups so far ends, in ms of the client's clock.
    until: Option<u64>,
}

/// The inode that the frontend expects under a name after the rename.
#[derive(Debug)]
struct Moved {
    dir: Ino,
    name: Name,
    ino: Ino,
}

impl Confirmation {
    /// True while a lookup confirms a rename.
    pub fn is_confirming(&self) -> bool {
        self.current.is_some()
    }

    /// True if the kernel's cache may be stale when the call fails or is abandoned.
    fn is_doubtful(&self) -> bool {
        self.revoked || self.current.is_some()
    }
}

impl<T> Sessions<T> {
    pub(super) fn confirmation(&self, call: &Call<'_>, now: u64) -> Confirmation {
        let Call::Request(Request::Rename { from_dir, from, to_dir, to, flags, .. }) = call else {
            return Confirmation::default();
        };
        let moved = |(dir, name): (&Ino, &Name), (old_dir, old): (&Ino, &Name)| {
            let ino = self.cache.leased_name(*old_dir, old, now)?;
            Some(Moved { dir: *dir, name: name.clone(), ino })
        };
        let exchanged = flags.contains(RenameFlags::EXCHANGE);
        let back = exchanged.then(|| moved((from_dir, from), (to_dir, to))).flatten();
        let names = back.into_iter().chain(moved((to_dir, to), (from_dir, from))).collect();
        Confirmation { names, ..Confirmation::default() }
    }

    /// Handles the reply to a rename or to a confirming lookup. Returns the call and its result,
    /// unless a lookup follows. `lease`: its remaining time in ms.
    pub(super) fn confirm(
        &mut self,
        now: u64,
        mut pending: PendingCall<T>,
        result: Result<Reply, Errno>,
        lease: u64,
        actions: &mut Actions<T>,
    ) -> Option<(PendingCall<T>, Result<Reply, Errno>, u64)> {
        if !matches!(pending.incoming.call, Call::Request(Request::Rename { .. })) {
            return Some((pending, result, lease));
        }
        let confirmation = &mut pending.call_state.confirmation;
        if let Some(moved) = confirmation.current.take() {
            let result = match result {
                Ok(Reply::Unmeasured(entry, _)) => Ok(*entry),
                result => result,
            };
            let (ino, is_leased) = bound_inode(&result).unzip();
            let is_confirmed = ino == Some(moved.ino);
            // Without a lease the frontend expires the names once the kernel has renamed.
            let until = if is_leased == Some(true) { now.saturating_add(lease) } else { now };
            confirmation.until = Some(confirmation.until.map_or(until, |other| other.min(until)));
            if let Ok(Reply::Entry(entry)) = &result {
                self.give_back(Left::Lookup(entry.attr.ino));
            }
            if !is_confirmed {
                actions.frontend.push(FrontendEvent::DistrustNames);
                return Some((pending, Ok(Reply::Done), 0));
            }
        } else if result.is_err() || lease > 0 {
            if confirmation.is_doubtful() && result.is_err() {
                actions.frontend.push(FrontendEvent::DistrustNames);
            }
            return Some((pending, result, lease));
        }
        let confirmation = &mut pending.call_state.confirmation;
        let Some(moved) = confirmation.names.pop() else {
            let left = confirmation.until.map_or(0, |until| until.saturating_sub(now));
            return Some((pending, Ok(Reply::Done), left));
        };
        let lookup = Request::Lookup { dir: moved.dir, name: moved.name.clone() };
        confirmation.current = Some(moved);
        let (rank, caller) = (self.client.locations.of_request(&lookup), pending.incoming.caller.clone());
        let id = self.server_session(rank).ask(caller, lookup);
        pending.call_state.sent = now;
        self.calls.insert(CallWait::Reply(rank, id), pending);
        None
    }

    /// The result of an abandoned call; invalidates all names if the kernel's cache may be stale.
    pub(super) fn abandon(
        confirmation: &Confirmation,
        errno: Errno,
        actions: &mut Actions<T>,
    ) -> Result<Answer, Errno> {
        if confirmation.is_doubtful() {
            actions.frontend.push(FrontendEvent::DistrustNames);
        }
        // The rename has been executed; only the lookup is unanswered.
        if confirmation.current.is_some() { Ok(Answer::Done) } else { Err(errno) }
    }

    /// True if the lease is on the new name of a pending rename between ranks. The new name's rank
    /// does not know which client renames, and revokes the lease from that client, too, whose
    /// kernel holds the directory's lock meanwhile.
    pub(super) fn is_renamed_to(&mut self, lease: &Lease) -> bool {
        let Lease::Name { dir, name } = lease else { return false };
        let renamed = self.calls.requests().find(|pending| {
            matches!(&pending.incoming.call, Call::Request(Request::Rename { from_dir, to_dir, to, .. })
                if from_dir.rank() != to_dir.rank() && (to_dir, to) == (dir, name))
        });
        renamed.map(|pending| pending.call_state.confirmation.revoked = true).is_some()
    }
}

/// The inode that a name is bound to, and whether the lookup has granted a lease on the name.
fn bound_inode(result: &Result<Reply, Errno>) -> Option<(Ino, bool)> {
    match result.as_ref().ok()? {
        Reply::Entry(Entry { attr, name_leased, .. }) => Some((attr.ino, *name_leased)),
        Reply::Remote { ino, name_leased, .. } => Some((*ino, *name_leased)),
        _ => None,
    }
}
