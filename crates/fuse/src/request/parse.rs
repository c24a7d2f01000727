//! The layout of each operation's arguments.

use super::{Flaw, Forgets, Init, Lock, Op, SetAttr, SetTime};
use crate::abi::{self, Opcode, SetAttrValid};
use zerocopy::{FromBytes, Immutable, KnownLayout};

impl<'a> Op<'a> {
    /// Decodes the arguments, which may be followed by other data.
    pub(super) fn parse(opcode: u32, bytes: &'a [u8]) -> Result<Op<'a>, Flaw> {
        let arguments = &mut Arguments(bytes);
        let Some(opcode) = Opcode::from_wire(opcode) else { return Ok(Op::Unknown(opcode)) };
        Ok(match opcode {
            Opcode::Lookup => Op::Lookup { name: arguments.name()? },
            Opcode::Forget => Op::Forget { lookups: arguments.take::<abi::ForgetIn>()?.lookups },
            Opcode::BatchForget => {
                let count = arguments.take::<abi::BatchForgetIn>()?.count as usize;
                Op::BatchForget(Forgets(arguments.bytes(count.saturating_mul(size_of::<abi::ForgetOne>()))?))
            }
            Opcode::GetAttr => {
                let a: abi::GetAttrIn = arguments.take()?;
                Op::GetAttr { handle: when(a.flags & abi::GETATTR_HANDLE != 0, a.handle) }
            }
            Opcode::SetAttr => Op::SetAttr(SetAttr::from_wire(arguments.take()?)),
            Opcode::ReadLink => Op::ReadLink,
            Opcode::Symlink => Op::Symlink { name: arguments.name()?, target: arguments.name()? },
            Opcode::MkNod => {
                let a: abi::MkNodIn = arguments.take()?;
                Op::MkNod { name: arguments.name()?, mode: a.mode, umask: a.umask, rdev: a.rdev }
            }
            Opcode::MkDir => {
                let a: abi::MkDirIn = arguments.take()?;
                Op::MkDir { name: arguments.name()?, mode: a.mode, umask: a.umask }
            }
            Opcode::Unlink => Op::Unlink { name: arguments.name()? },
            Opcode::RmDir => Op::RmDir { name: arguments.name()? },
            Opcode::Rename => {
                let new_parent = arguments.take::<abi::RenameIn>()?.new_parent;
                Op::Rename { name: arguments.name()?, new_parent, new_name: arguments.name()?, flags: 0 }
            }
            Opcode::Rename2 => {
                let abi::Rename2In { new_parent, flags, .. } = arguments.take()?;
                Op::Rename { name: arguments.name()?, new_parent, new_name: arguments.name()?, flags }
            }
            Opcode::Link => {
                Op::Link { node: arguments.take::<abi::LinkIn>()?.node, new_name: arguments.name()? }
            }
            Opcode::Open => {
                let a: abi::OpenIn = arguments.take()?;
                Op::Open { flags: a.flags, kill_suid_gid: a.open_flags & abi::OPEN_KILL_SUID_GID != 0 }
            }
            Opcode::Read => {
                let a: abi::ReadIn = arguments.take()?;
                let lock_owner = when(a.read_flags & abi::READ_LOCK_OWNER != 0, a.lock_owner);
                Op::Read { handle: a.handle, offset: a.offset, size: a.size, flags: a.flags, lock_owner }
            }
            Opcode::Write => {
                let a: abi::WriteIn = arguments.take()?;
                Op::Write {
                    handle: a.handle,
                    offset: a.offset,
                    data: arguments.bytes(a.size as usize)?,
                    flags: a.flags,
                    lock_owner: when(a.write_flags & abi::WRITE_LOCK_OWNER != 0, a.lock_owner),
                    cache: a.write_flags & abi::WRITE_CACHE != 0,
                    kill_suid_gid: a.write_flags & abi::WRITE_KILL_SUID_GID != 0,
                }
            }
            Opcode::StatFs => Op::StatFs,
            Opcode::Release => {
                let a: abi::ReleaseIn = arguments.take()?;
                Op::Release {
                    handle: a.handle,
                    flags: a.flags,
                    flush: a.release_flags & abi::RELEASE_FLUSH != 0,
                    flock_unlock: a.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0,
                    lock_owner: a.lock_owner,
                }
            }
            Opcode::FSync => {
                let a: abi::FSyncIn = arguments.take()?;
                Op::FSync { handle: a.handle, datasync: a.flags & abi::FSYNC_DATA_ONLY != 0 }
            }
            Opcode::FSyncDir => {
                let a: abi::FSyncIn = arguments.take()?;
                Op::FSyncDir { handle: a.handle, datasync: a.flags & abi::FSYNC_DATA_ONLY != 0 }
            }
            Opcode::SetXattr => {
                let a: abi::SetXattrIn = arguments.take()?;
                Op::SetXattr {
                    name: arguments.name()?,
                    value: arguments.bytes(a.size as usize)?,
                    flags: a.flags,
                    acl_kill_sgid: a.ext_flags & abi::SETXATTR_ACL_KILL_SGID != 0,
                }
            }
            Opcode::GetXattr => {
                let size = arguments.take::<abi::GetXattrIn>()?.size;
                Op::GetXattr { name: arguments.name()?, size }
            }
            Opcode::ListXattr => Op::ListXattr { size: arguments.take::<abi::GetXattrIn>()?.size },
            Opcode::RemoveXattr => Op::RemoveXattr { name: arguments.name()? },
            Opcode::Flush => {
                let a: abi::FlushIn = arguments.take()?;
                Op::Flush { handle: a.handle, lock_owner: a.lock_owner }
            }
            Opcode::Init => Op::Init(Init::parse(arguments)?),
            Opcode::OpenDir => Op::OpenDir { flags: arguments.take::<abi::OpenIn>()?.flags },
            Opcode::ReadDir => {
                let a: abi::ReadIn = arguments.take()?;
                Op::ReadDir { handle: a.handle, offset: a.offset, size: a.size }
            }
            Opcode::ReadDirPlus => {
                let a: abi::ReadIn = arguments.take()?;
                Op::ReadDirPlus { handle: a.handle, offset: a.offset, size: a.size }
            }
            Opcode::ReleaseDir => {
                let a: abi::ReleaseIn = arguments.take()?;
                Op::ReleaseDir { handle: a.handle, flags: a.flags }
            }
            Opcode::GetLk => Op::GetLk(Lock::from_wire(arguments.take()?)),
            Opcode::SetLk => Op::SetLk(Lock::from_wire(arguments.take()?)),
            Opcode::SetLkW => Op::SetLkW(Lock::from_wire(arguments.take()?)),
            Opcode::Access => Op::Access { mask: arguments.take::<abi::AccessIn>()?.mask },
            Opcode::Create => {
                let a: abi::CreateIn = arguments.take()?;
                Op::Create {
                    name: arguments.name()?,
                    flags: a.flags,
                    mode: a.mode,
                    umask: a.umask,
                    kill_suid_gid: a.open_flags & abi::OPEN_KILL_SUID_GID != 0,
                }
            }
            Opcode::TmpFile => {
                // A placeholder name follows; it is never used.
                let a: abi::CreateIn = arguments.take()?;
                Op::TmpFile { flags: a.flags, mode: a.mode, umask: a.umask }
            }
            Opcode::Interrupt => Op::Interrupt { unique: arguments.take::<abi::InterruptIn>()?.unique },
            Opcode::BMap => {
                let a: abi::BMapIn = arguments.take()?;
                Op::BMap { block: a.block, block_size: a.block_size }
            }
            Opcode::Destroy => Op::Destroy,
            Opcode::Ioctl => {
                let a: abi::IoctlIn = arguments.take()?;
                Op::Ioctl {
                    handle: a.handle,
                    flags: a.flags,
                    command: a.command,
                    argument: a.argument,
                    data: arguments.bytes(a.in_size as usize)?,
                    out_size: a.out_size,
                }
            }
            Opcode::Poll => {
                let abi::PollIn { handle, kernel_handle, flags, events } = arguments.take()?;
                Op::Poll { handle, kernel_handle, flags, events }
            }
            Opcode::FAllocate => {
                let abi::FAllocateIn { handle, offset, length, mode, .. } = arguments.take()?;
                Op::FAllocate { handle, offset, length, mode }
            }
            Opcode::LSeek => {
                let abi::LSeekIn { handle, offset, whence, .. } = arguments.take()?;
                Op::LSeek { handle, offset, whence }
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let a: abi::CopyFileRangeIn = arguments.take()?;
                Op::CopyFileRange {
                    handle_in: a.handle_in,
                    offset_in: a.offset_in,
                    node_out: a.node_out,
                    handle_out: a.handle_out,
                    offset_out: a.offset_out,
                    length: a.length,
                    flags: a.flags,
                }
            }
            Opcode::SyncFs => {
                arguments.take::<abi::SyncFsIn>()?;
                Op::SyncFs
            }
            Opcode::StatX => {
                let a: abi::StatXIn = arguments.take()?;
                let handle = when(a.flags & abi::GETATTR_HANDLE != 0, a.handle);
                Op::StatX { handle, flags: a.sx_flags, mask: a.sx_mask }
            }
        })
    }
}

impl SetAttr {
    fn from_wire(a: abi::SetAttrIn) -> SetAttr {
        let valid = SetAttrValid::from_bits_retain(a.valid);
        let has = |bit| valid.contains(bit);
        let time = |set, now, seconds, nanos| {
            when(has(set), if has(now) { SetTime::Now } else { SetTime::To(seconds, nanos) })
        };
        SetAttr {
            mode: when(has(SetAttrValid::MODE), a.mode),
            uid: when(has(SetAttrValid::UID), a.uid),
            gid: when(has(SetAttrValid::GID), a.gid),
            size: when(has(SetAttrValid::SIZE), a.size),
            atime: time(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, a.atime, a.atime_nanos),
            mtime: time(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, a.mtime, a.mtime_nanos),
            ctime: when(has(SetAttrValid::CTIME), (a.ctime, a.ctime_nanos)),
            handle: when(has(SetAttrValid::HANDLE), a.handle),
            lock_owner: when(has(SetAttrValid::LOCK_OWNER), a.lock_owner),
            kill_suid_gid: has(SetAttrValid::KILL_SUID_GID),
        }
    }
}

impl Lock {
    fn from_wire(a: abi::LockIn) -> Lock {
        let flock = a.flags & abi::LOCK_FLOCK != 0;
        Lock { handle: a.handle, owner: a.owner, start: a.start, end: a.end, kind: a.kind, pid: a.pid, flock }
    }
}

impl Init {
    fn parse(arguments: &mut Arguments<'_>) -> Result<Init, Flaw> {
        let a: abi::InitIn = arguments.take()?;
        let mut flags = u64::from(a.flags);
        if flags & abi::InitFlags::INIT_EXT.bits() != 0 {
            flags |= u64::from(arguments.take::<abi::InitExtIn>()?.flags2) << 32;
        }
        let flags = abi::InitFlags::from_bits_retain(flags);
        Ok(Init { major: a.major, minor: a.minor, max_readahead: a.max_readahead, flags })
    }
}

/// The rest of a message.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, Flaw> {
        let short = Flaw::Short { needs: size_of::<T>(), has: self.0.len() };
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| short)?;
        self.0 = rest;
        Ok(value)
    }

    /// The bytes before the next NUL, which is consumed, too.
    fn name(&mut self) -> Result<&'a [u8], Flaw> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Flaw::Unterminated)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Flaw> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or(Flaw::Short { needs: count, has: self.0.len() })?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn when<T>(condition: bool, value: T) -> Option<T> {
    condition.then_some(value)
}

/// Extensions are optional: an invalid one is skipped.
pub(super) fn first_group(mut extensions: &[u8]) -> Option<u32> {
    loop {
        let (header, _) = abi::ExtensionHeader::read_from_prefix(extensions).ok()?;
        let size = header.size as usize;
        let body = extensions.get(size_of::<abi::ExtensionHeader>()..size)?;
        if header.kind == abi::EXT_GROUPS {
            let (count, groups) = u32::read_from_prefix(body).ok()?;
            return if count == 0 {
                None
            } else {
                u32::read_from_prefix(groups).ok().map(|(group, _)| group)
            };
        }
        extensions = extensions.get(size.next_multiple_of(8)..)?;
    }
}
