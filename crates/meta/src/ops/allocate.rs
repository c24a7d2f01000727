use espalier_proto::{AllocateMode, Errno, Ino, InodeFlags, Reply};

use crate::event::Event;
use crate::machine::{Cx, Meta};
use crate::permission::check_not;
use crate::record::Body;
use crate::step::Step;

impl Meta {
    /// `fallocate` on a stuffed file. Its strip is always there, so allocating means at most a new size.
    pub(crate) fn allocate(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Step<Reply> {
        let punch = mode.contains(AllocateMode::PUNCH_HOLE);
        let keep_size = mode.contains(AllocateMode::KEEP_SIZE);
        if punch {
            self.writable()?;
        } else {
            self.growable()?;
        }
        let inode = self.state.inode(ino)?;
        check_not(inode, InodeFlags::of_fixed_bytes(mode.discards()))?;
        let old = match inode.body {
            Body::Stuffed { size, .. } => size,
            Body::Streamed { .. } | Body::Striped { .. } => return Ok(Reply::Streamed),
            Body::Directory(_) => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::ENODEV.into()),
        };
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        if length == 0 || (punch && !keep_size) {
            return Err(Errno::EINVAL.into());
        }
        if end > u64::from(self.config.strip_bytes) && !punch {
            self.unstuff(cx, ino, None)?;
            return Ok(Reply::Streamed);
        }
        self.state.strip(ino)?;
        if !keep_size {
            self.state.admit_size(ino, end)?;
        }
        let time = cx.now;
        if punch || mode.contains(AllocateMode::ZERO_RANGE) {
            self.commit(cx, &Event::Zero { ino, offset, length, time })?;
        }
        if end > old && !keep_size {
            self.commit(cx, &Event::Resize { ino, size: end, kill_suid_gid: false, time })?;
        }
        Ok(Reply::Done)
    }
}
