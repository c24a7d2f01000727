use alloc::vec::Vec;
use core::mem::take;

use espalier_proto::{Access, END, Errno, Ino, Reply};

use crate::event::Event;
use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::Step;
use crate::trash::ITSELF;

impl Meta {
    /// Writes to a stuffed file. If it outgrows the strip, it is moved out, and the client writes to the stream; but to append to one
    /// is for a server's machine itself. The data is taken.
    pub(crate) fn write(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        offset: u64,
        data: &mut Vec<u8>,
        kill_suid_gid: bool,
    ) -> Step<Reply> {
        let appends = offset == END && !kill_suid_gid && self.config.session_ms.is_some();
        if appends && self.state.inode(ino)?.is_streamed() {
            return self.append_to_stream(cx, ino, data);
        }
        self.growable()?;
        let size = match self.state.inode(ino)?.body {
            Body::Stuffed { size, .. } => size,
            Body::Streamed { .. } | Body::Striped { .. } => return self.write_elsewhere(cx, ino, offset),
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = if offset == END { size } else { offset };
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > u64::from(self.config.strip_bytes) {
            self.unstuff(cx, ino)?;
            return self.write_elsewhere(cx, ino, offset);
        }
        self.state.strip(ino)?;
        if !data.is_empty() {
            if let Err(stop) = self.state.admit_size(ino, end) {
                let parents = self.state.load_parents(ino)?;
                self.unless_told(cx, parents.first().map_or(ino, |(dir, _)| *dir), Err(stop))?;
            }
            self.drop_capability(cx, ino)?;
            let mut event = Event::Write { ino, offset, data: take(data), kill_suid_gid, time: cx.now };
            let done = self.commit(cx, &event);
            if let (Err(_), Event::Write { data: kept, .. }) = (&done, &mut event) {
                // It starts over.
                *data = take(kept);
            }
            done?;
        }
        Ok(Reply::Done)
    }

    /// The client is to write to the stream, or to data servers: what it would ask for next ([`Self::delegate`]) it is given now.
    fn write_elsewhere(&mut self, cx: &mut Cx<'_>, ino: Ino, offset: u64) -> Step<Reply> {
        let can_ask = self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated());
        let is_striped = self.state.inode(ino)?.layout().is_some();
        if is_striped && can_ask && cx.client != ITSELF && offset != END {
            return self.delegate(cx, ino, Access::WRITE);
        }
        Ok(Reply::Streamed)
    }
}
