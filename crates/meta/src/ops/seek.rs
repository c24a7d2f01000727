//! `lseek` with `SEEK_DATA` and `SEEK_HOLE`.

use espalier_proto::{Errno, Ino, Reply, SeekWhat};

use crate::machine::{Cx, Meta};
use crate::record::Body;
use crate::step::Step;

/// Granularity of holes in stuffed files in bytes, as in most local file systems.
const BLOCK_BYTES: usize = 4096;

impl Meta {
    /// `SEEK_DATA` and `SEEK_HOLE` in a stuffed file. A block of zeros is a hole.
    pub(crate) fn seek(&mut self, _: &Cx<'_>, ino: Ino, offset: u64, what: SeekWhat) -> Step<Reply> {
        let size = match self.state.inode(ino)?.body {
            Body::Stuffed { size, .. } => size,
            Body::Streamed { .. } | Body::Striped { .. } => return Ok(Reply::Streamed),
            _ => return Err(Errno::EINVAL.into()),
        };
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let bytes = self.state.strip(ino)?;
        let blocks = bytes.chunks(BLOCK_BYTES).map(|block| block.iter().any(|byte| *byte != 0));
        let wanted = what == SeekWhat::Data;
        let first = offset as usize / BLOCK_BYTES;
        let found = match blocks.skip(first).position(|is_data| is_data == wanted) {
            Some(after) => Some((first + after) * BLOCK_BYTES),
            // Beyond the stored bytes lies a hole.
            None => (!wanted).then_some(bytes.len().next_multiple_of(BLOCK_BYTES)),
        };
        match found.map(|found| (found as u64).max(offset)) {
            Some(found) if !wanted => Ok(Reply::Offset(found.min(size))),
            Some(found) if found < size => Ok(Reply::Offset(found)),
            _ => Err(Errno::ENXIO.into()),
        }
    }
}
