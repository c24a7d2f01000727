//! `read`.

use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Reply};

use crate::machine::{Cx, Final, Meta};
use crate::record::Body;
use crate::step::Step;

impl Meta {
    /// Reads from a stuffed file.
    pub(crate) fn read(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        offset: u64,
        size: u32,
        noatime: bool,
    ) -> Step<Final<'_>> {
        let total = match self.state.inode(ino)?.body {
            Body::Stuffed { size, .. } => size,
            Body::Streamed { .. } | Body::Striped { .. } => {
                self.note_inode(cx, ino);
                return Ok(Final::of(Reply::Streamed));
            }
            Body::Directory(_) => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        };
        let end = offset.saturating_add(u64::from(size)).min(total);
        let bytes = self.stuffed(ino, offset, end)?;
        let access = if noatime { None } else { self.atime_update(cx, ino)? };
        self.commit_all(cx, access.as_slice(), |meta, cx| {
            meta.note_bytes(cx, ino);
            Reply::Bytes(bytes.into())
        })
    }

    /// The bytes of a stuffed file from `offset` to `end`, which is at most the file's size.
    pub(crate) fn stuffed(&self, ino: Ino, offset: u64, end: u64) -> Step<Vec<u8>> {
        let stored = self.state.strip(ino)?;
        let length = end.saturating_sub(offset) as usize;
        let mut bytes = Vec::with_capacity(length);
        let from = offset.min(stored.len() as u64) as usize;
        bytes.extend_from_slice(&stored[from..stored.len().min(from + length)]);
        bytes.resize(length, 0);
        Ok(bytes)
    }
}
