//! Leases on the bytes of files that several clients have open and some may write to.
//!
//! Clients write to streams without the machine, and the kernel of a client that has opened a file
//! before its writers keeps what it reads. So before a client's kernel reads such a file its
//! client asks for a lease on the file's bytes, and gets it when all other clients that may write
//! announce their writes: when one is done, and before its caller is answered, these leases are
//! revoked. What is read after that is new. A client whose announcement leaves no such lease
//! writes on without announcing it: sharing costs messages when the file goes from writers to
//! readers and back, and nothing per write otherwise.
//!
//! Unlike other leases these are given also while they are being revoked: a kernel drops what it
//! keeps only when it has been answered what it is reading, and that must not wait for the writer.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino, Reply};

use super::table::Key;
use crate::machine::{Cx, Meta};
use crate::progress::Progress;
use crate::session::Sessions;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// A client's kernel is about to cache bytes of a file that others may write to.
    pub(crate) fn lease_data(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let key = Key::data(ino);
        cx.told.last_change = cx.told.last_change.max(Some(0));
        let Some(leases) = &mut self.leases else { return Ok(Reply::Done) };
        // Writers that have not reclaimed yet are not known.
        if self.sessions.in_grace() || !leases.are_for(cx.client) || !leases.is_free(key, &[]) {
            cx.told.refuse();
            return Ok(Reply::Done);
        }
        let writers = self.sessions.quiet_writers(cx.client, ino);
        if !writers.is_empty() {
            let until = match *cx.progress {
                Progress::LeasingData { until } => until,
                _ => cx.uptime_ms + leases.lasting_ms(),
            };
            *cx.progress = Progress::LeasingData { until };
            if cx.uptime_ms >= until {
                cx.told.refuse();
                return Ok(Reply::Done);
            }
            for writer in writers {
                leases.revoke_quiet(cx.client, writer, ino, cx.uptime_ms);
            }
            return Err(Stop::Wait(Wait::Lease(Key::quiet(ino))));
        }
        cx.told.keys.push(key);
        Ok(Reply::Done)
    }

    /// A client has changed a file's bytes.
    pub(crate) fn announce(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        // It tells of no inode.
        cx.told.last_change = cx.told.last_change.max(Some(0));
        if !self.sessions.is_told_of(cx.client, ino) && self.opens_of(cx.client, ino) == 0 {
            return Err(Errno::ESTALE.into());
        }
        let Some(leases) = &mut self.leases else { return Ok(Reply::Announced(false)) };
        if self.sessions.leases_may_last() {
            return Err(Stop::Wait(Wait::Grace));
        }
        let key = Key::data(ino);
        // Once: leases that are given from then on are for what is so now.
        if !matches!(cx.progress, Progress::Announcing) {
            *cx.progress = Progress::Announcing;
            leases.revoke(cx.client, key, None, cx.uptime_ms);
        }
        if leases.is_data_awaited(cx.client, ino) {
            return Err(Stop::Wait(Wait::Lease(key)));
        }
        let again = !leases.may_be_quiet(cx.client, ino);
        self.sessions.set_announces(cx.client, ino, again);
        Ok(Reply::Announced(again))
    }
}

impl Meta {
    /// Whether another client has a file open for writing.
    pub(crate) fn is_open_to_write_elsewhere(&self, client: ClientId, ino: Ino) -> bool {
        self.is_open_elsewhere(client, ino) && self.sessions.writers(ino).any(|(writer, _)| writer != client)
    }
}

impl Sessions {
    /// The other clients that may write to a file and do not announce it.
    fn quiet_writers(&self, client: ClientId, ino: Ino) -> Vec<ClientId> {
        let quiet = self.writers(ino).filter(|(writer, announces)| *writer != client && !announces);
        quiet.map(|(writer, _)| writer).collect()
    }
}
