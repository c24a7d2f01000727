//! `rmdir`.

use espalier_proto::{Errno, FileType, Ino, Name};

use crate::machine::{Cx, Final, Meta};
use crate::record::{Body, Inode, Referent};
use crate::step::Step;

impl Meta {
    pub(crate) fn rmdir(&mut self, cx: &mut Cx<'_>, dir: Ino, name: &Name) -> Step<Final<'_>> {
        if let Some(referent) = self.named_remote(dir, name)? {
            return match referent.kind {
                FileType::Directory => self.remove_remote(cx, dir, name, referent),
                _ => Err(Errno::ENOTDIR.into()),
            };
        }
        let (ino, is_partitioned) = {
            let inode = self.victim(cx, dir, name)?;
            (inode.ino, inode.fragment_map().is_some())
        };
        self.revoke_exclusive(cx, ino)?;
        check_empty(self.state.inode(ino)?)?;
        if is_partitioned {
            return self.remove_remote(cx, dir, name, Referent::dir(ino));
        }
        self.remove(cx, dir, name, ino)
    }
}

/// Fails with `ENOTDIR` or `ENOTEMPTY` unless the inode is an empty directory.
pub(crate) fn check_empty(inode: &Inode) -> Step<()> {
    match &inode.body {
        Body::Directory(directory) if directory.entries == 0 => Ok(()),
        Body::Directory(_) => Err(Errno::ENOTEMPTY.into()),
        _ => Err(Errno::ENOTDIR.into()),
    }
}
