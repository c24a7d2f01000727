//! Validation of requests from other machines: rejects values that no correct client sends.

use crate::{
    Access, CopyTree, Errno, Ino, InodeFlags, LAST_CURSOR, NewNode, RangeOp, RenameFlags, Request, SetAttr,
    StreamIo, Time, WritebackCreate, mode,
};

/// A path including its NUL has at most 4096 bytes.
const MAX_TARGET_BYTES: usize = 4095;
/// Limits of Linux.
const MAX_XATTR_NAME: usize = 255;
const MAX_XATTR_VALUE: usize = 65536;
/// Most inodes in one request.
const MAX_INODES: usize = 4096;

impl Request {
    /// Most entries in one listing reply, so that it fits into a message.
    pub const MAX_ENTRIES: u32 = 2048;
    /// Most inode numbers in one `Numbers` reply.
    pub const MAX_NUMBERS: u32 = 256;
    /// Maximum number of requests that a request follows.
    pub const MAX_FOLLOWED: usize = 1024;

    /// Checks the limits of a request. The operation itself checks everything else.
    ///
    /// # Errors
    /// `EINVAL` for values out of range; `E2BIG`, `ERANGE`, `ENAMETOOLONG` and `EOPNOTSUPP` as the
    /// system calls return them.
    pub fn check(&self) -> Result<(), Errno> {
        let require = |holds: bool, errno| if holds { Ok(()) } else { Err(errno) };
        let perm = |bits: u32| require(bits & !mode::PERMISSIONS == 0, Errno::EINVAL);
        let named = |name: &[u8]| {
            require(name.len() <= MAX_XATTR_NAME, Errno::ERANGE)?;
            require(!name.is_empty() && !name.contains(&0), Errno::EINVAL)
        };
        let range = |first: u64, last: u64| require(first <= last, Errno::EINVAL);
        match self {
            Self::Forget { .. } => Err(Errno::EINVAL),
            _ if self.is_internal() => Err(Errno::EINVAL),
            Self::Create { node, perm: bits, writeback, .. } => {
                perm(*bits)?;
                let may_be_written_back =
                    matches!(node, NewNode::Regular | NewNode::Directory | NewNode::Symlink(_));
                require(writeback.is_none() || may_be_written_back, Errno::EINVAL)?;
                let NewNode::Symlink(target) = node else { return Ok(()) };
                require(target.len() <= MAX_TARGET_BYTES, Errno::ENAMETOOLONG)?;
                require(!target.is_empty() && !target.contains(&0), Errno::EINVAL)
            }
            Self::TmpFile { perm: bits, .. } => perm(*bits),
            Self::SetAttr { set, .. } => {
                set.perm.map_or(Ok(()), perm)?;
                let is_known = set.flags.is_none_or(|flags| InodeFlags::all().contains(flags));
                require(is_known, Errno::EOPNOTSUPP)
            }
            Self::Rename { flags, .. } => {
                require(RenameFlags::from_bits(flags.bits()).is_some(), Errno::EINVAL)
            }
            Self::Read { offset, size, .. } => RangeOp::Read { offset: *offset, size: *size }.check(&[]),
            Self::Write { offset, data, .. } => RangeOp::write(*offset, data).check(data),
            Self::Allocate { offset, length, mode, .. } => {
                RangeOp::Allocate { offset: *offset, length: *length, mode: *mode }.check(&[])
            }
            Self::Delegate { access, .. } => {
                let of_bytes = Access::READ | Access::WRITE;
                let is_known = of_bytes.contains(*access) || *access == Access::EXEC;
                require(!access.is_empty() && is_known, Errno::EINVAL)
            }
            Self::TakeNumbers { count, .. } => require(*count <= Request::MAX_NUMBERS, Errno::EINVAL),
            Self::ReadDir { after, limit, .. } => {
                require(*limit <= Request::MAX_ENTRIES && *after <= LAST_CURSOR, Errno::EINVAL)
            }
            Self::SetXattr { name, value, .. } => {
                named(name)?;
                require(value.len() <= MAX_XATTR_VALUE, Errno::E2BIG)
            }
            Self::GetXattr { name, .. } | Self::RemoveXattr { name, .. } => named(name),
            Self::CopyTree(copy) => require(copy.levels.len() <= CopyTree::MAX_LEVELS, Errno::EINVAL),
            Self::ReclaimLocks { locks } => {
                require(locks.len() <= MAX_INODES, Errno::EINVAL)?;
                locks.iter().try_for_each(|(_, lock)| range(lock.first, lock.last))
            }
            Self::Lock { lock, .. } | Self::TestLock { lock, .. } | Self::StopWaiting { lock, .. } => {
                range(lock.first, lock.last)
            }
            Self::Unlock { first, last, .. } => range(*first, *last),
            Self::ForgetAll { inodes, released } => {
                require(inodes.len() <= MAX_INODES && released.len() <= MAX_INODES, Errno::EINVAL)
            }
            Self::Accessed { files } => require(files.len() <= MAX_INODES, Errno::EINVAL),
            Self::Renew { inodes, .. } => require(inodes.len() <= MAX_INODES, Errno::EINVAL),
            Self::Reclaim { held, again, .. } => {
                require(held.len() <= MAX_INODES && again.len() <= MAX_INODES, Errno::EINVAL)
            }
            _ => Ok(()),
        }
    }
}

impl Request {
    /// The access for which the request opens a file, if it opens one.
    pub fn opens_for(&self) -> Option<Access> {
        match self {
            Self::Open { how, .. }
            | Self::Create { open: Some(how), .. }
            | Self::Find { open: Some(how), .. } => Some(how.access),
            // Data can be put into a file without a name only through this open.
            Self::TmpFile { .. } => Some(Access::READ | Access::WRITE),
            _ => None,
        }
    }

    /// The file whose data the request or its reply transfers.
    pub fn moves(&self) -> Option<Ino> {
        match self {
            Self::Read { ino, .. } | Self::Write { ino, .. } => Some(*ino),
            _ => None,
        }
    }

    /// The directories in which it makes or removes names. The caller's kernel locks them.
    pub fn changed_dirs(&self) -> [Option<Ino>; 2] {
        match self {
            Self::Create { dir, .. }
            | Self::Link { dir, .. }
            | Self::Unlink { dir, .. }
            | Self::RmDir { dir, .. } => [Some(*dir), None],
            Self::Rename { from_dir, to_dir, .. } => [Some(*from_dir), Some(*to_dir)],
            _ => [None, None],
        }
    }

    /// Time of a pending operation: when the client acknowledged it to its caller.
    pub fn time(&self) -> Option<Time> {
        match self {
            Self::Create { writeback, .. } => writeback.map(|writeback| writeback.time),
            Self::Unlink { time, .. }
            | Self::RmDir { time, .. }
            | Self::Rename { time, .. }
            | Self::Write { time, .. }
            | Self::SetAttr { set: SetAttr { time, .. }, .. } => *time,
            _ => None,
        }
    }

    /// True if the client has already acknowledged the operation to its caller (write-back).
    pub fn is_acknowledged(&self) -> bool {
        match self {
            Self::Extend { acknowledged, .. } | Self::Place { io: StreamIo { acknowledged, .. } } => {
                *acknowledged
            }
            _ => self.time().is_some(),
        }
    }

    /// Marks the request as acknowledged to the caller at time `at`. `ino`: number of the inode
    /// that a create makes.
    #[must_use]
    pub fn acknowledged(mut self, ino: Ino, at: Time) -> Self {
        match &mut self {
            Self::Create { writeback, .. } => *writeback = Some(WritebackCreate { ino, time: at }),
            Self::Unlink { time, .. }
            | Self::RmDir { time, .. }
            | Self::Rename { time, .. }
            | Self::Write { time, .. }
            | Self::SetAttr { set: SetAttr { time, .. }, .. } => *time = Some(at),
            _ => {}
        }
        self
    }

    /// The file whose data the request changes through an open file.
    pub fn writes(&self) -> Option<Ino> {
        match self {
            Self::Write { ino, .. }
            | Self::Allocate { ino, .. }
            | Self::RemovePrivileges { ino }
            | Self::Extend { ino, .. }
            | Self::SetLayout { ino, .. } => Some(*ino),
            Self::Delegate { ino, access } if *access != Access::READ => Some(*ino),
            Self::SetAttr { ino, set } if set.through_handle && set.size.is_some() => Some(*ino),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::{AllocateMode, Ino, LockOwner, Name, OpenHow, Rank, WritebackCreate, XattrMode};

    const INO: Ino = Ino(7);

    fn set_xattr(name: &[u8], value: usize) -> Request {
        let (name, value) = (name.into(), vec![0; value].into());
        Request::SetXattr { ino: INO, name, value, mode: XattrMode::Any, kill_sgid: false }
    }

    fn symlink(target: &[u8]) -> Request {
        let (node, name) = (NewNode::Symlink(target.into()), Name::lowest());
        Request::Create {
            dir: INO,
            name,
            node,
            perm: 0o777,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        }
    }

    fn writeback(mut request: Request) -> Request {
        if let Request::Create { writeback, .. } = &mut request {
            *writeback = Some(WritebackCreate { ino: INO, time: Time::default() });
        }
        request
    }

    #[test]
    fn out_of_range_is_refused() {
        let set = SetAttr { perm: Some(0o10_000), ..SetAttr::default() };
        let flags = RenameFlags::from_bits_retain(8);
        let mode = AllocateMode::from_bits_retain(0x80);
        let name = Name::lowest;
        let data = vec![0; RangeOp::MAX_BYTES + 1];
        let mut fifo = symlink(b"a");
        if let Request::Create { node, .. } = &mut fifo {
            *node = NewNode::Fifo;
        }
        for (request, errno) in [
            (Request::Sweep, Errno::EINVAL),
            (Request::Forget { ino: INO, lookups: 1 }, Errno::EINVAL),
            (Request::SetAttr { ino: INO, set }, Errno::EINVAL),
            (
                Request::Rename { from_dir: INO, from: name(), to_dir: INO, to: name(), flags, time: None },
                Errno::EINVAL,
            ),
            (
                Request::Write { ino: INO, offset: 0, data: data.into(), kill_suid_gid: false, time: None },
                Errno::EINVAL,
            ),
            (Request::Read { ino: INO, offset: 0, size: u32::MAX, noatime: false }, Errno::EINVAL),
            (Request::Allocate { ino: INO, offset: 0, length: 1, mode }, Errno::EOPNOTSUPP),
            (Request::ReadDir { dir: INO, after: 0, limit: u32::MAX, plus: true }, Errno::EINVAL),
            (Request::ForgetAll { inodes: vec![(INO, 1); MAX_INODES + 1], released: vec![] }, Errno::EINVAL),
            (Request::ForgetAll { inodes: vec![], released: vec![INO; MAX_INODES + 1] }, Errno::EINVAL),
            (symlink(b""), Errno::EINVAL),
            (symlink(b"a\0b"), Errno::EINVAL),
            (writeback(fifo), Errno::EINVAL),
            (symlink(&[b'x'; 4096]), Errno::ENAMETOOLONG),
            (
                Request::Unlock { ino: INO, owner: LockOwner { flock: false, number: 1 }, first: 2, last: 1 },
                Errno::EINVAL,
            ),
            (set_xattr(b"", 1), Errno::EINVAL),
            (set_xattr(&[b'x'; 256], 1), Errno::ERANGE),
            (set_xattr(b"user.a", 65_537), Errno::E2BIG),
        ] {
            assert_eq!(request.check(), Err(errno), "{request:?}");
        }
        assert_eq!(writeback(symlink(&[b'x'; 4095])).check(), Ok(()));
        assert_eq!(set_xattr(b"user.a", 65_536).check(), Ok(()));
    }

    #[test]
    fn reading_is_no_change() {
        let how = |access, truncate| OpenHow { access, truncate, ..OpenHow::default() };
        let open = |access, truncate| Request::Open { ino: INO, how: how(access, truncate) };
        assert!(!open(Access::READ, false).is_change());
        assert!(open(Access::WRITE, false).is_change() && open(Access::READ, true).is_change());
        assert!(symlink(b"a").is_change() && set_xattr(b"user.a", 0).is_change());
        assert!(!Request::GetAttr { ino: INO }.is_change());
        assert!(!Request::Release { ino: INO }.is_change());
        assert!(Request::TakeNumbers { rank: Rank(0), count: 1 }.is_change());
    }
}
