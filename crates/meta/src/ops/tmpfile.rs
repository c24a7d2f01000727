//! `open` with `O_TMPFILE`.

use espalier_proto::{Ino, NewNode, Opened, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::session::TokenKind;
use crate::step::Step;

impl Meta {
    /// `open` with `O_TMPFILE`: creates a file without a name, which `link` can add.
    pub(crate) fn tmpfile(&mut self, cx: &mut Cx<'_>, dir: Ino, perm: u32, umask: u32) -> Step<Final<'_>> {
        let mut inode = self.new_inode(cx, dir, &NewNode::Regular, (perm, umask), None)?;
        inode.nlink = 0;
        let (attr, announced) = (inode.attr(None), self.announces(&inode));
        self.note_pool_use(&inode);
        self.commit(cx, &Event::TmpFile { inode }, |meta, cx| {
            if let Some(cached) = meta.state.inodes.untracked(&attr.ino) {
                cached.nameless = true;
            }
            let entry = meta.entry(cx, None, false, attr);
            meta.opened(attr.ino);
            let reclaim_token = meta.reclaim_token(cx.client, attr.ino, TokenKind::OpenedToWrite);
            let (streamed, accessed, limited, shared) = (attr.streamed, false, false, false);
            Reply::Created(entry, Opened { streamed, accessed, limited, shared, announced, reclaim_token })
        })
    }
}
