//! Locks on the ends of files. Appends to a stream and truncations of it are serialised, so an
//! append lands at the end that was determined for it. If the server is killed before the operation
//! is done, the end stays locked until the client repeats the request, or reclaims without it, or
//! its session ends.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino, RequestId};

use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::state::FxMap;
use crate::step::{Step, Stop, Wait};
use crate::trash::INTERNAL_CLIENT;

type RequestKey = (ClientId, RequestId);

/// The locked ends.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    files: FxMap<Ino, Locked>,
}

#[derive(Debug)]
struct Locked {
    by: RequestKey,
    /// Numbers of the operations blocked on the lock.
    waiting: Vec<u64>,
}

impl Ends {
    /// Locks the end of `ino` for a request. Returns false if another request holds the lock.
    pub fn lock(&mut self, ino: Ino, by: RequestKey) -> bool {
        self.files.entry(ino).or_insert(Locked { by, waiting: Vec::new() }).by == by
    }

    pub fn wait(&mut self, ino: Ino, operation: u64) {
        if let Some(locked) = self.files.get_mut(&ino) {
            locked.waiting.push(operation);
        }
    }

    /// Removes the blocked operation that `is_target` selects.
    pub fn stop_waiting(&mut self, is_target: impl Fn(&u64) -> bool) -> Option<u64> {
        self.files.values_mut().find_map(|locked| {
            let at = locked.waiting.iter().position(&is_target)?;
            Some(locked.waiting.remove(at))
        })
    }

    /// Releases the locks of requests that are over. Returns the operations to resume.
    fn unlock(&mut self, is_over: impl Fn(RequestKey) -> bool) -> Vec<u64> {
        let unlocked = self.files.extract_if(|_, locked| is_over(locked.by));
        unlocked.flat_map(|(_, locked)| locked.waiting).collect()
    }
}

impl Meta {
    /// Locks the end of a file until the operation is answered.
    pub(crate) fn lock_end(&mut self, cx: &Cx<'_>, ino: Ino) -> Step<()> {
        // Operations of the machine itself and of other ranks are not requests of a session.
        let is_for_client = self.config.session_ms.is_some() && cx.client != INTERNAL_CLIENT;
        if !is_for_client || self.sessions.ends.lock(ino, (cx.client, cx.id)) {
            return Ok(());
        }
        Err(Stop::Wait(Wait::End(ino)))
    }

    /// Releases the locks of requests that are over, and resumes the operations blocked on them.
    pub(crate) fn unlock_ends(&mut self, now: Now, is_over: impl Fn(RequestKey) -> bool, out: &mut Outbox) {
        let ready = self.sessions.ends.unlock(is_over);
        ready.into_iter().for_each(|operation| self.resume(now, operation, out));
    }
}
