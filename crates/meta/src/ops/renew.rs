//! Renewal of leases.

use alloc::vec::Vec;

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::{Step, Stop};

impl Meta {
    /// Renews the client's leases on inodes that it keeps using. With `exclusive_dir`, the client
    /// asks for an exclusive lease on that directory; then only the directory and files in it that
    /// no other client knows are renewed.
    pub(crate) fn renew(
        &mut self,
        cx: &mut Cx<'_>,
        inodes: &[Ino],
        exclusive_dir: Option<Ino>,
    ) -> Step<Reply> {
        let mut renewed = Vec::new();
        for ino in inodes {
            if !self.sessions.is_known_to(cx.client, *ino) {
                continue;
            }
            let kind = match self.state.inode(*ino).map(|inode| inode.kind) {
                Err(stop @ Stop::Wait(_)) => return Err(stop),
                Err(_) => continue,
                Ok(kind) => kind,
            };
            let is_wanted = exclusive_dir
                .is_none_or(|dir| *ino == dir || self.is_sole_holder_of_file_in(cx.client, dir, *ino));
            if is_wanted && self.note_held(cx, *ino, kind) {
                renewed.push(*ino);
            }
        }
        Ok(Reply::Renewed(renewed))
    }
}
