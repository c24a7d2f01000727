use alloc::vec::Vec;

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::{Step, Stop};

impl Meta {
    /// A client goes on using what it has been told that these hold.
    pub(crate) fn renew(&mut self, cx: &mut Cx<'_>, inodes: &[Ino]) -> Step<Reply> {
        let mut renewed = Vec::new();
        for ino in inodes {
            let is_known = self.sessions.lookups_of(cx.client, *ino).is_some_and(|lookups| lookups > 0);
            match self.state.inode(*ino).map(drop) {
                _ if !is_known => continue,
                Err(Stop::Wait(wait)) => return Err(Stop::Wait(wait)),
                Err(Stop::Fail(_)) => continue,
                Ok(()) => {}
            }
            if self.tell_held(cx, *ino) {
                renewed.push(*ino);
            }
        }
        Ok(Reply::Renewed(renewed))
    }
}
