//! The inodes that messages name: all of them, so that they can be looked at, or have other numbers for one client.

use crate::{FromServer, Ino, Lease, Reply, Request};

impl Request {
    /// The inodes that it is about, but for those that it gives back or says to have.
    pub fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Lookup { dir: ino, .. }
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
            | Self::StatFs { ino }
            | Self::RemoveTree { dir: ino }
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
            | Self::Recount { .. }
            | Self::Place { .. }
            | Self::Sweep => {}
        }
    }
}

impl FromServer {
    /// The inodes that it tells of.
    pub fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Reply { touched, result, .. } => {
                touched.attrs.iter_mut().for_each(|attr| see(&mut attr.ino));
                touched.others.iter_mut().for_each(&mut *see);
                if let Ok(reply) = result {
                    reply.each_inode(see);
                }
            }
            Self::Revoke { lease: Lease::Name { dir: ino, .. } | Lease::Inode { ino }, .. } => see(ino),
            Self::Recall(recalls) => {
                for recall in recalls {
                    see(&mut recall.ino);
                    recall.dir.iter_mut().for_each(&mut *see);
                }
            }
            Self::Changed(inos) => inos.iter_mut().for_each(see),
            Self::AskGroups { .. } | Self::Locked { .. } => {}
        }
    }
}

impl Reply {
    fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Entry(entry) | Self::Created(entry, _) => see(&mut entry.attr.ino),
            Self::Attr(attr) => see(&mut attr.ino),
            Self::Listing { entries, parent, .. } => {
                see(parent);
                for entry in entries {
                    see(&mut entry.ino);
                    entry.entry.iter_mut().for_each(|entry| see(&mut entry.attr.ino));
                }
            }
            Self::Removed { dir, .. } => see(dir),
            Self::Elsewhere { ino, .. } => see(ino),
            Self::Copied(copied) => {
                for level in &mut copied.levels {
                    see(&mut level.from);
                    see(&mut level.to);
                }
                copied.made.iter_mut().for_each(|(dir, _)| see(dir));
                copied.changed.iter_mut().for_each(see);
            }
            Self::Done
            | Self::Absent { .. }
            | Self::Bytes(_)
            | Self::Streamed
            | Self::Opened(_)
            | Self::Offset(_)
            | Self::Written(_)
            | Self::StatFs(_)
            | Self::Granted
            // A file has but one number.
            | Self::Delegated(_)
            | Self::Waits
            | Self::InTheWay(_) => {}
        }
    }
}
