//! Appends to streams.

use core::mem::take;

use bytes::Bytes;
use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::progress::Progress;
use crate::session::CompletedOutcome;
use crate::step::{Step, Stop, StreamCall, Wait};

impl Meta {
    /// Appends to a stream exactly once, even across a server crash: the offset is journaled before
    /// the bytes are written, and writing them again at the same offset is idempotent. Takes the
    /// data.
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
        // System calls take signed offsets.
        offset.checked_add(length as u64).filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::EFBIG)?;
        self.block_grants(cx, ino)?;
        match self.extend(cx, ino, (offset, length as u64), None, false) {
            // A quota was set since the offset was journaled, and the bytes may be written already.
            Err(Stop::Fail(Errno::EDQUOT)) if decided.is_some() => {}
            extended => drop(extended?),
        }
        let Some((_, bytes)) = decided else {
            self.journal_outcome((cx.client, cx.id), CompletedOutcome::Appending { ino, offset });
            cx.changed = Some(self.state.sequence);
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
