use alloc::vec::Vec;

use espalier_proto::{Ino, Reply};

use crate::machine::{Cx, Meta};
use crate::step::{Step, Stop};

impl Meta {
    /// A client goes on using what it has been told that these hold.
    pub(crate) fn renew(&mut self, cx: &mut Cx<'_>, inodes: &[Ino]) -> Step<Reply> {
        let mut renewed = Vec::new();
        for ino in inodes {
            if self.sessions.lookups_of(cx.client, *ino).is_none_or(|lookups| lookups == 0) {
                continue;
            }
            match self.state.inode(*ino).map(drop) {
                Ok(()) if self.tell_held(cx, *ino) => renewed.push(*ino),
                Err(Stop::Wait(wait)) => return Err(Stop::Wait(wait)),
                Ok(()) | Err(Stop::Fail(_)) => {}
            }
        }
        Ok(Reply::Renewed(renewed))
    }
}
