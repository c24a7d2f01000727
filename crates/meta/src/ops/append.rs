use core::mem::take;

use bytes::Bytes;
use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::progress::Progress;
use crate::session::Outcome;
use crate::step::{Step, Stop, StreamCall, Wait};

impl Meta {
    /// Appends to a stream, once, also if the server is killed meanwhile: where the bytes go is journaled before they are written, and
    /// to write them there twice is to write them once. The data is taken.
    pub(crate) fn append_to_stream(&mut self, cx: &mut Cx<'_>, ino: Ino, data: &mut Bytes) -> Step<Reply> {
        self.lock_end(cx, ino)?;
        let decided = match &*cx.progress {
            Progress::Append { offset, bytes } => Some((*offset, bytes.clone())),
            _ => None,
        };
        let length = decided.as_ref().map_or(data.len(), |(_, bytes)| bytes.len());
        let offset = match decided {
            Some((offset, _)) => offset,
            None => {
                self.writable()?;
                cx.stream_stats([ino].into())?.first().ok_or(Errno::EIO)?.size
            }
        };
        // Offsets are signed in system calls.
        offset.checked_add(length as u64).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::EFBIG)?;
        self.claim_inode(cx, ino)?;
        match self.extend(cx, ino, (offset, length as u64), None, false) {
            // A quota that has come since. The bytes may be there already.
            Err(Stop::Fail(Errno::EDQUOT)) if decided.is_some() => {}
            extended => drop(extended?),
        }
        let Some((_, bytes)) = decided else {
            self.journal_outcome((cx.client, cx.id), Outcome::Appending { ino, offset });
            cx.changed = true;
            *cx.progress = Progress::Append { offset, bytes: take(data) };
            return Err(Stop::Wait(Wait::Written));
        };
        if self.journal.broken.is_some() {
            return Err(Errno::EIO.into());
        }
        cx.stream(StreamCall::Write { ino, offset, bytes })?;
        Ok(Reply::Written(length as u32))
    }
}
