//! Leases on the bytes of files that several clients have open and at least one may write to.
//!
//! Clients write to streams without the metadata server, and a kernel that opened a file before its
//! writers did caches what it reads. Before such a kernel reads, its client requests a lease on the
//! file's bytes. The server grants it once all other clients that may write announce their writes.
//! A client announces a write when the write is done and before its caller returns; the server then
//! revokes the leases on the bytes, so later reads return the new bytes. A writer whose
//! announcement leaves no such lease stops announcing: sharing costs messages when the file passes
//! from writers to readers and back, and none per write otherwise.
//!
//! Unlike other leases, these are granted also while they are being revoked: a kernel drops cached
//! pages only after its outstanding reads are answered, and these reads must not wait for the
//! writer.

use alloc::vec::Vec;

use espalier_proto::{ClientId, Errno, Ino, Reply};

use super::table::LeaseKey;
use crate::machine::{Cx, Meta};
use crate::progress::Progress;
use crate::session::SessionTable;
use crate::step::{Step, Stop, Wait};

impl Meta {
    /// Grants the client a lease on the bytes of a file that others may write to, before its kernel
    /// caches them. If the writers do not acknowledge within a lease's term, the reply carries no
    /// lease.
    pub(crate) fn lease_data(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let key = LeaseKey::Data(ino);
        cx.read_set.last_change = cx.read_set.last_change.max(Some(0));
        let Some(leases) = &mut self.leases else { return Ok(Reply::Done) };
        // During the grace period, writers that have not reclaimed yet are unknown.
        if self.sessions.in_grace() || !leases.are_for(cx.client) || !leases.is_free(key, &[]) {
            cx.read_set.refuse();
            return Ok(Reply::Done);
        }
        let writers = self.sessions.unannounced_writers(cx.client, ino);
        if !writers.is_empty() {
            let until = match *cx.progress {
                Progress::LeasingData { until } => until,
                _ => cx.uptime_ms + leases.lasting_ms(),
            };
            *cx.progress = Progress::LeasingData { until };
            if cx.uptime_ms >= until {
                cx.read_set.refuse();
                return Ok(Reply::Done);
            }
            for writer in writers {
                leases.revoke_unannounced(cx.client, writer, ino, cx.uptime_ms);
            }
            return Err(Stop::Wait(Wait::Lease(LeaseKey::Unannounced(ino))));
        }
        cx.read_set.keys.push(key);
        Ok(Reply::Done)
    }

    /// Handles a client's announcement that it has changed a file's bytes: revokes the leases of
    /// other clients on them. The reply says whether the client must announce its next write too.
    ///
    /// # Errors
    /// `ESTALE` if the client neither knows the inode nor has it open.
    pub(crate) fn announce(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        // The reply reports nothing about an inode.
        cx.read_set.last_change = cx.read_set.last_change.max(Some(0));
        if !self.sessions.is_known_to(cx.client, ino) && self.opens_of(cx.client, ino) == 0 {
            return Err(Errno::ESTALE.into());
        }
        let Some(leases) = &mut self.leases else { return Ok(Reply::Announced(false)) };
        if self.sessions.leases_may_last() {
            return Err(Stop::Wait(Wait::Grace));
        }
        let key = LeaseKey::Data(ino);
        // Revokes once: leases granted after this point cover the new bytes.
        if !matches!(cx.progress, Progress::Announcing) {
            *cx.progress = Progress::Announcing;
            leases.revoke(cx.client, key, None, cx.uptime_ms);
        }
        if leases.is_data_awaited(cx.client, ino) {
            return Err(Stop::Wait(Wait::Lease(key)));
        }
        let again = !leases.may_write_unannounced(cx.client, ino);
        self.sessions.set_announces(cx.client, ino, again);
        Ok(Reply::Announced(again))
    }
}

impl Meta {
    /// True if another client has the file open for writing.
    pub(crate) fn is_open_to_write_by_others(&self, client: ClientId, ino: Ino) -> bool {
        self.is_open_by_others(client, ino) && self.sessions.writers(ino).any(|(writer, _)| writer != client)
    }
}

impl SessionTable {
    /// The other clients that may write to a file and do not announce their writes.
    fn unannounced_writers(&self, client: ClientId, ino: Ino) -> Vec<ClientId> {
        let unannounced = self.writers(ino).filter(|(writer, announces)| *writer != client && !announces);
        unannounced.map(|(writer, _)| writer).collect()
    }
}
