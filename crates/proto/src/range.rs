//! Operations on ranges of a file's bytes: one vocabulary for calls, streams and data servers.

use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Access, AllocateMode, END, Errno, Ino, Pieces, Rank, Request, SeekWhat, pieces_of, range_of, write_list,
};

/// An operation on a range of a file's bytes. The bytes to write are passed beside it, as `data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RangeOp {
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        /// Offset in bytes, or [`END`] to append.
        offset: u64,
        length: u32,
    },
    /// Write several ranges between `offset` and `end`. The data is a
    /// [list of pieces](crate::write_list).
    WriteList {
        offset: u64,
        end: u64,
    },
    Allocate {
        offset: u64,
        length: u64,
        mode: AllocateMode,
    },
    Seek {
        offset: u64,
        what: SeekWhat,
    },
    /// Copy bytes of the file `from` to `offset`.
    Copy {
        from: Ino,
        from_offset: u64,
        offset: u64,
        length: u64,
    },
}

impl RangeOp {
    /// The kernel's limit in bytes for one read or write. Clients rely on at least this much.
    pub const MAX_BYTES: usize = 1 << 20;

    /// A write of `data`, whose length a message limits.
    pub fn write(offset: u64, data: &[u8]) -> Self {
        Self::Write { offset, length: data.len() as u32 }
    }

    /// A write of several pieces, as for [`write_list`], with its data; `None` if there are none.
    pub fn list(pieces: &[(u64, Bytes)]) -> Option<(Self, Bytes)> {
        let ((offset, _), (last, piece)) = pieces.first().zip(pieces.last())?;
        let end = last.saturating_add(piece.len() as u64);
        Some((Self::WriteList { offset: *offset, end }, write_list(pieces)))
    }

    /// Checks sizes, ranges and modes.
    ///
    /// # Errors
    /// `EINVAL` for values out of range, `EOPNOTSUPP` for an unknown mode.
    pub fn check(&self, data: &[u8]) -> Result<(), Errno> {
        let fits = match self {
            Self::Read { size, .. } => *size as usize <= Self::MAX_BYTES && data.is_empty(),
            Self::Write { length, .. } => *length as usize == data.len() && data.len() <= Self::MAX_BYTES,
            Self::WriteList { offset, end } => {
                data.len() <= Self::MAX_BYTES && range_of(data)? == (*offset..*end)
            }
            Self::Allocate { mode, .. } if AllocateMode::from_bits(mode.bits()).is_none() => {
                return Err(Errno::EOPNOTSUPP);
            }
            Self::Allocate { .. } | Self::Seek { .. } | Self::Copy { .. } => data.is_empty(),
        };
        if fits { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// True for a write at the end of the file. A server executes it exactly once, so it is always
    /// a [`Request`].
    pub fn is_append(&self) -> bool {
        matches!(self, Self::Write { offset: END, .. })
    }

    /// True for writes of data.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteList { .. })
    }

    /// True if the operation changes the file.
    pub fn is_change(&self) -> bool {
        self.access() == Access::WRITE
    }

    /// The access to the file that the operation needs.
    pub fn access(&self) -> Access {
        match self {
            Self::Read { .. } | Self::Seek { .. } => Access::READ,
            Self::Write { .. } | Self::WriteList { .. } | Self::Allocate { .. } | Self::Copy { .. } => {
                Access::WRITE
            }
        }
    }

    /// The other file: that from which the operation copies.
    pub fn source(&self) -> Option<Ino> {
        if let Self::Copy { from, .. } = self { Some(*from) } else { None }
    }

    /// The bytes to write, with their offsets.
    ///
    /// # Errors
    /// As [`pieces_of`].
    pub fn pieces<'a>(&self, data: &'a [u8]) -> Result<Pieces<'a>, Errno> {
        match self {
            Self::Write { offset, .. } => Ok(vec![(*offset, data)]),
            Self::WriteList { .. } => pieces_of(data),
            _ => Ok(Vec::new()),
        }
    }

    /// Bytes of file data in a message with the operation, or in the reply.
    pub fn bytes(&self, data: &[u8]) -> usize {
        if let Self::Read { size, .. } = self { *size as usize } else { data.len() }
    }
}

/// An operation on the stream of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamIo {
    /// The file; of a copy, the target.
    pub ino: Ino,
    pub op: RangeOp,
    /// As in [`Request::Extend`].
    pub acknowledged: bool,
}

impl StreamIo {
    /// An operation that is not acknowledged yet, unless it is a list of gathered writes.
    pub fn new(ino: Ino, op: RangeOp) -> Self {
        Self { ino, op, acknowledged: matches!(op, RangeOp::WriteList { .. }) }
    }

    pub fn read(ino: Ino, offset: u64, size: u32) -> Self {
        Self::new(ino, RangeOp::Read { offset, size })
    }

    pub fn write(ino: Ino, offset: u64, length: u32) -> Self {
        Self::new(ino, RangeOp::Write { offset, length })
    }

    /// As [`Request::writes`].
    pub fn writes(&self) -> Option<Ino> {
        self.op.is_change().then_some(self.ino)
    }

    /// The rank that executes the request.
    pub fn rank(&self) -> Rank {
        self.ino.rank()
    }

    /// As [`RangeOp::check`]. Appends are refused.
    ///
    /// # Errors
    /// As [`RangeOp::check`].
    pub fn check(&self, data: &[u8]) -> Result<(), Errno> {
        if self.op.is_append() { Err(Errno::EINVAL) } else { self.op.check(data) }
    }

    /// The request that authorises a change of the stream; `None` for reads.
    pub fn extends(&self) -> Option<Request> {
        let Self { ino, op, acknowledged } = *self;
        let (offset, length, from) = match op {
            RangeOp::Read { .. } | RangeOp::Seek { .. } => return None,
            RangeOp::Write { offset, length } => (offset, length.into(), None),
            RangeOp::WriteList { offset, end } => (offset, end.saturating_sub(offset), None),
            RangeOp::Allocate { mode, .. } if mode.contains(AllocateMode::KEEP_SIZE) => (0, 0, None),
            RangeOp::Allocate { offset, length, .. } => (offset, length, None),
            RangeOp::Copy { from, from_offset, offset, length } => {
                (offset, length, Some((from, from_offset)))
            }
        };
        let discards = matches!(op, RangeOp::Allocate { mode, .. } if mode.discards());
        Some(Request::Extend { ino, offset, length, from, discards, acknowledged })
    }
}

impl AllocateMode {
    /// True for modes that remove data: punching a hole and zeroing.
    pub fn discards(self) -> bool {
        !Self::KEEP_SIZE.contains(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    #[test]
    fn operations_out_of_range_are_refused() {
        let seek = RangeOp::Seek { offset: 0, what: SeekWhat::Data };
        let mode = AllocateMode::from_bits_retain(0x80);
        let long = vec![0; RangeOp::MAX_BYTES + 1];
        let pieces = [(3, b"abc"[..].into()), (8, b"ef"[..].into())];
        let (write, list) = RangeOp::list(&pieces).expect("pieces");
        for (op, data, errno) in [
            (seek, &b"x"[..], Errno::EINVAL),
            (RangeOp::Read { offset: 0, size: u32::MAX }, b"", Errno::EINVAL),
            (RangeOp::Write { offset: 0, length: 2 }, b"x", Errno::EINVAL),
            (RangeOp::write(0, &long), &long, Errno::EINVAL),
            (RangeOp::WriteList { offset: 3, end: 9 }, &list, Errno::EINVAL),
            (RangeOp::Allocate { offset: 0, length: 1, mode }, b"", Errno::EOPNOTSUPP),
        ] {
            assert_eq!(op.check(data), Err(errno), "{op:?}");
        }
        assert_eq!((write, write.check(&list)), (RangeOp::WriteList { offset: 3, end: 10 }, Ok(())));
        assert_eq!(StreamIo::write(INO, 0, 1).check(b"x"), Ok(()));
        assert_eq!(StreamIo::write(INO, END, 1).check(b"x"), Err(Errno::EINVAL));
        assert!(!StreamIo::read(INO, 0, 1).op.is_change() && StreamIo::write(INO, 0, 1).op.is_change());
    }
}
