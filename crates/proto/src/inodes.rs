//! Visits the inode numbers in a request, to inspect or to replace them.

use crate::{Ino, Name, Request};

impl Request {
    /// Calls `see` for each name of the request, with the directory that has it.
    pub fn each_name(&mut self, see: &mut dyn FnMut(&mut Ino, &Name)) {
        match self {
            Self::Lookup { dir, name }
            | Self::Create { dir, name, .. }
            | Self::Link { dir, name, .. }
            | Self::Unlink { dir, name, .. }
            | Self::RmDir { dir, name, .. } => see(dir, name),
            Self::Rename { from_dir, from, to_dir, to, .. } => {
                see(from_dir, from);
                see(to_dir, to);
            }
            _ => {}
        }
    }

    /// The name of a request that servers may forward to the fragment that has it, with the
    /// directory. Changes that are already acknowledged are not forwarded: they have an order.
    pub fn forwarded_name(&mut self) -> Option<(&mut Ino, &Name)> {
        if self.is_acknowledged() {
            return None;
        }
        match self {
            Self::Lookup { dir, name }
            | Self::Create { dir, name, .. }
            | Self::Unlink { dir, name, .. }
            | Self::RmDir { dir, name, .. } => Some((dir, name)),
            _ => None,
        }
    }

    /// Calls `see` for each inode that the request operates on. Skips inodes that it forgets or
    /// reclaims.
    pub fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Lookup { dir: ino, .. }
            | Self::Parent { dir: ino }
            | Self::GetAttr { ino }
            | Self::Find { ino, .. }
            | Self::SetAttr { ino, .. }
            | Self::ReadLink { ino }
            | Self::Create { dir: ino, .. }
            | Self::TmpFile { dir: ino, .. }
            | Self::Unlink { dir: ino, .. }
            | Self::RmDir { dir: ino, .. }
            | Self::Open { ino, .. }
            | Self::Delegate { ino, .. }
            | Self::LeaseData { ino }
            | Self::Announce(ino)
            | Self::SetLayout { ino, .. }
            | Self::Read { ino, .. }
            | Self::Write { ino, .. }
            | Self::Allocate { ino, .. }
            | Self::Seek { ino, .. }
            | Self::Fsync { ino }
            | Self::ReadDir { dir: ino, .. }
            | Self::Access { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::GetXattr { ino, .. }
            | Self::ListXattr { ino }
            | Self::RemoveXattr { ino, .. }
            | Self::RemovePrivileges { ino }
            | Self::StatFs { ino }
            | Self::RemoveTree { dir: ino }
            | Self::Fragments { dir: ino }
            | Self::Lock { ino, .. }
            | Self::Unlock { ino, .. }
            | Self::TestLock { ino, .. }
            | Self::StopWaiting { ino, .. } => see(ino),
            Self::Link { ino: one, dir: other, .. } | Self::Rename { from_dir: one, to_dir: other, .. } => {
                see(one);
                see(other);
            }
            Self::Extend { ino, from, .. } => {
                see(ino);
                from.iter_mut().for_each(|(ino, _)| see(ino));
            }
            Self::CopyTree(copy) => {
                for level in &mut copy.levels {
                    see(&mut level.from);
                    see(&mut level.to);
                }
            }
            Self::Forget { .. }
            | Self::ForgetAll { .. }
            | Self::Release { .. }
            | Self::Reclaim { .. }
            | Self::ReclaimLocks { .. }
            | Self::Enter { .. }
            | Self::Purge { .. }
            | Self::TakeNumbers { .. }
            | Self::SyncFs { .. }
            | Self::Accessed { .. }
            | Self::Renew { .. }
            | Self::Recount { .. }
            | Self::Place { .. }
            | Self::Transfer { .. }
            | Self::Pull { .. }
            | Self::ClaimDatafile { .. }
            | Self::Sweep => {}
        }
    }
}
