//! `write`.

use core::mem::take;

use bytes::Bytes;
use espalier_proto::{Access, END, Errno, Ino, InodeFlags, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::progress::Progress;
use crate::record::Body;
use crate::step::Step;
use crate::trash::INTERNAL_CLIENT;

/// Largest file, in bytes, that is unstuffed together with the write by which it outgrows its
/// strip.
const GOES_ALONG: u64 = 1 << 20;

impl Meta {
    /// Writes to a stuffed file. A file that outgrows the strip is unstuffed, with the written
    /// bytes if possible; otherwise the client writes these to the stream. With sessions, the
    /// server itself executes appends to streams. Takes the data.
    pub(crate) fn write(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        offset: u64,
        data: &mut Bytes,
        kill_suid_gid: bool,
    ) -> Step<Final<'_>> {
        let at_end = offset == END;
        if kill_suid_gid && !data.is_empty() {
            self.drop_capability(cx, ino)?;
            if let Some(removal) = self.removal_of_privileges(cx, ino)? {
                return self.commit(cx, &removal, |_, _| Reply::PrivilegesRemoved { changed: true });
            }
        }
        let (outgrew, is_written) = match *cx.progress {
            Progress::Unstuffed { is_written } => (true, is_written),
            _ => (false, false),
        };
        let appends = at_end && !outgrew && self.config.session_ms.is_some();
        if appends && self.state.inode(ino)?.is_streamed() {
            return self.append_to_stream(cx, ino, data).map(Final::of);
        }
        let inode = self.state.inode(ino)?;
        check_not(inode, InodeFlags::IMMUTABLE)?;
        let (size, stored) = match inode.body {
            Body::Stuffed { size, stored } => (size, u64::from(stored)),
            Body::Streamed { .. } | Body::Striped { .. } => {
                self.writable()?;
                if at_end && !outgrew {
                    return Ok(Final::of(Reply::Streamed));
                }
                return Ok(Final::of(match self.redirect_write(cx, ino)? {
                    Reply::Delegated(Some(delegation)) if is_written => Reply::Outgrown(delegation),
                    reply => reply,
                }));
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = if at_end { size } else { offset };
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        // Allocated bytes can be written when there is no space for more.
        if end <= stored {
            self.overwritable()?
        } else {
            self.growable()?
        }
        if end > u64::from(self.config.strip_bytes) {
            // An append that is sent again would be written twice, the second time after the first.
            let goes_along = !at_end && self.goes_along(cx, ino, end)?;
            return Err(self.unstuff(cx, ino, if goes_along { Some((offset, data)) } else { None }));
        }
        self.state.strip(ino)?;
        if data.is_empty() {
            return Ok(Final::of(Reply::Done));
        }
        self.admit_size(cx, ino, end)?;
        self.drop_capability(cx, ino)?;
        let mut event = Event::Write { ino, offset, data: take(data).into(), time: cx.now };
        let done = self.commit(cx, &event, |_, _| Reply::Done);
        if let (Err(_), Event::Write { data: written_data, .. }) = (&done, &mut event) {
            // The operation starts over with the data.
            *data = take(written_data).into();
        }
        done
    }

    /// True if the write by which a file outgrows its strip is done while unstuffing it to data
    /// servers, which saves the client a message.
    fn goes_along(&mut self, cx: &mut Cx<'_>, ino: Ino, end: u64) -> Step<bool> {
        if end > GOES_ALONG || !self.writes_directly(cx) || self.state.is_limited(ino)? {
            return Ok(false);
        }
        // Nobody may read the old bytes after others have read the new ones.
        self.block_grants(cx, ino)?;
        Ok(true)
    }

    /// True if the client writes to data servers directly.
    fn writes_directly(&self, cx: &Cx<'_>) -> bool {
        cx.client != INTERNAL_CLIENT
            && self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated())
    }

    /// Has the client write to the stream or the data servers. The reply includes the capability
    /// that it would request next ([`Self::delegate`]).
    fn redirect_write(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Reply> {
        let is_striped = self.state.inode(ino)?.layout().is_some();
        if is_striped && self.writes_directly(cx) {
            return self.delegate(cx, ino, Access::WRITE);
        }
        Ok(Reply::Streamed)
    }
}
