//! Who may change where a file ends: appends to a stream and truncations of it come one after the other, so that an append goes where
//! the file ended when that was decided. If the server is killed before it is done, the file's end stays locked until the client has
//! asked again, or says what it asks again and that is not among it, or its session has ended.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Ino, RequestId};

use crate::machine::{Cx, Meta};
use crate::outbox::{Now, Outbox};
use crate::state::Map;
use crate::step::{Step, Stop, Wait};
use crate::trash::ITSELF;

type Asked = (ClientId, RequestId);

/// The ends that are locked. See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    files: Map<Ino, Locked>,
}

#[derive(Debug)]
struct Locked {
    by: Asked,
    /// Operations.
    waiting: Vec<u64>,
}

impl Ends {
    /// Whether a request has the lock now.
    pub fn lock(&mut self, ino: Ino, by: Asked) -> bool {
        self.files.entry(ino).or_insert(Locked { by, waiting: Vec::new() }).by == by
    }

    pub fn wait(&mut self, ino: Ino, operation: u64) {
        if let Some(locked) = self.files.get_mut(&ino) {
            locked.waiting.push(operation);
        }
    }

    /// The operation that waits no longer, if it did.
    pub fn stop_waiting(&mut self, is_it: impl Fn(&u64) -> bool) -> Option<u64> {
        self.files.values_mut().find_map(|locked| {
            let at = locked.waiting.iter().position(&is_it)?;
            Some(locked.waiting.remove(at))
        })
    }

    /// Those that have waited.
    fn unlock(&mut self, is_over: impl Fn(Asked) -> bool) -> Vec<u64> {
        let unlocked = self.files.extract_if(|_, locked| is_over(locked.by));
        unlocked.flat_map(|(_, locked)| locked.waiting).collect()
    }
}

impl Meta {
    /// Before an operation changes where a file ends: until it is answered, no other does.
    pub(crate) fn lock_end(&mut self, cx: &Cx<'_>, ino: Ino) -> Step<()> {
        // What the machine does by itself, and for other ranks, is none of a session's requests.
        let is_for_client = self.config.session_ms.is_some() && cx.client != ITSELF;
        if !is_for_client || self.sessions.ends.lock(ino, (cx.client, cx.id)) {
            return Ok(());
        }
        Err(Stop::Wait(Wait::End(ino)))
    }

    /// Of requests that are over.
    pub(crate) fn unlock_ends(&mut self, now: Now, is_over: impl Fn(Asked) -> bool, out: &mut Outbox) {
        let ready = self.sessions.ends.unlock(is_over);
        ready.into_iter().for_each(|operation| self.resume(now, operation, out));
    }
}
