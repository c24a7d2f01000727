//! Virtual extended attributes: recursive usage and quotas of directories, named after CephFS's,
//! the fragments of a directory, and at the root the load of the cluster and the balancer. They are
//! not listed, so tools that copy attributes skip them.

use alloc::string::ToString;

use espalier_proto::{Access, Errno, Ino, Reply, XattrMode};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::record::{Body, Directory, Inode};
use crate::step::Step;
use crate::usage::Quota;

/// A virtual attribute, which is not stored with the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Virtual {
    Files,
    Dirs,
    Bytes,
    MaxFiles,
    MaxBytes,
    /// The directory's fragments, as TOML.
    Fragments,
    /// Of the root: a [`LoadReport`](crate::LoadReport), encoded.
    Load,
    /// An encoded [`BalancerReport`](crate::BalancerReport), which only the root has. Its value is
    /// set to a [`BalancerCommand`](crate::BalancerCommand).
    Balancer,
}

impl Virtual {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"user.espalier.rfiles" => Self::Files,
            b"user.espalier.rsubdirs" => Self::Dirs,
            b"user.espalier.rbytes" => Self::Bytes,
            b"user.espalier.quota.max_files" => Self::MaxFiles,
            b"user.espalier.quota.max_bytes" => Self::MaxBytes,
            b"user.espalier.fragments" => Self::Fragments,
            b"user.espalier.load" => Self::Load,
            b"user.espalier.balancer" => Self::Balancer,
            _ => return None,
        })
    }

    fn limit(self, quota: &mut Quota) -> Option<&mut Option<u64>> {
        match self {
            Self::MaxFiles => Some(&mut quota.files),
            Self::MaxBytes => Some(&mut quota.bytes),
            Self::Files | Self::Dirs | Self::Bytes | Self::Fragments | Self::Load | Self::Balancer => None,
        }
    }
}

fn directory(inode: &Inode) -> Option<&Directory> {
    if let Body::Directory(directory) = &inode.body { Some(directory) } else { None }
}

impl Meta {
    pub(super) fn get_virtual(&mut self, cx: &mut Cx<'_>, ino: Ino, which: Virtual) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        cx.check(inode, Access::READ)?;
        if directory(inode).is_none() {
            return Err(Errno::ENODATA.into());
        }
        if which == Virtual::Bytes {
            self.count_open(cx)?;
        }
        let directory = directory(self.state.inode(ino)?).ok_or(Errno::ENODATA)?;
        let number = match which {
            Virtual::Files => directory.usage.files,
            Virtual::Dirs => directory.usage.dirs,
            Virtual::Bytes => directory.usage.bytes,
            Virtual::MaxFiles => directory.quota.files.ok_or(Errno::ENODATA)?,
            Virtual::MaxBytes => directory.quota.bytes.ok_or(Errno::ENODATA)?,
            Virtual::Load => return Ok(Reply::Bytes(self.show_load(cx, ino)?.into())),
            Virtual::Balancer => return Ok(Reply::Bytes(self.show_balancer(cx, ino)?.into())),
            Virtual::Fragments => return Ok(Reply::Bytes(self.show_fragments(cx, ino)?.into())),
        };
        Ok(Reply::Bytes(number.to_string().into()))
    }

    /// Sets a limit; no value, or 0, removes it. Usage may already exceed the limit.
    pub(super) fn set_virtual(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        which: Virtual,
        value: Option<&[u8]>,
        how: XattrMode,
    ) -> Step<Final<'_>> {
        if let (Virtual::Fragments, Some(text)) = (which, value) {
            return self.request_moves(cx, dir, text).map(Final::of);
        }
        if let (Virtual::Balancer, Some(value)) = (which, value) {
            return self.command_balancer(cx, dir, value);
        }
        let inode = self.state.inode(dir)?;
        let mut quota = directory(inode).map_or(Quota::default(), |directory| directory.quota);
        let Some(limit) = which.limit(&mut quota) else { return Err(Errno::EPERM.into()) };
        // Only the superuser: a user must not be able to lift its own limit, even on its own
        // directory.
        if !cx.caller.is_superuser() || !inode.is_dir() {
            return Err(Errno::EPERM.into());
        }
        match how {
            XattrMode::Create if limit.is_some() => return Err(Errno::EEXIST.into()),
            XattrMode::Replace if limit.is_none() => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        let number = |value: &[u8]| core::str::from_utf8(value).ok()?.parse::<u64>().ok();
        let new = value.map(|value| number(value).ok_or(Errno::EINVAL)).transpose()?;
        *limit = new.filter(|max| *max > 0);
        self.count_open(cx)?;
        self.revoke_all_exclusive(cx)?;
        self.commit(cx, &Event::SetQuota { dir, quota, time: cx.now }, |_, _| Reply::Done)
    }
}
