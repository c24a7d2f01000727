//! `fallocate`.

use espalier_proto::{AllocateMode, Errno, Ino, InodeFlags, Reply};

use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::record::Body;
use crate::step::Step;

impl Meta {
    /// `fallocate` on a stuffed file. Allocated bytes are stored as zeros, so writing them takes no
    /// more space.
    pub(crate) fn allocate(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        offset: u64,
        length: u64,
        mode: AllocateMode,
    ) -> Step<Final<'_>> {
        let punch = mode.contains(AllocateMode::PUNCH_HOLE);
        let keep_size = mode.contains(AllocateMode::KEEP_SIZE);
        let zero = mode.contains(AllocateMode::ZERO_RANGE);
        self.writable()?;
        let inode = self.state.inode(ino)?;
        check_not(inode, InodeFlags::of_fixed_bytes(mode.discards()))?;
        let (size, stored) = match inode.body {
            Body::Stuffed { size, stored } => (size, u64::from(stored)),
            Body::Streamed { .. } | Body::Striped { .. } => return Ok(Final::of(Reply::Streamed)),
            Body::Directory(_) => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::ENODEV.into()),
        };
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        if length == 0 || (punch && !keep_size) {
            return Err(Errno::EINVAL.into());
        }
        let time = cx.now;
        if punch {
            self.state.strip(ino)?;
            self.drop_capability(cx, ino)?;
            return self.commit(cx, &Event::Zero { ino, offset, length, time }, |_, _| Reply::Done);
        }
        if end > u64::from(self.config.strip_bytes) {
            self.growable()?;
            return Err(self.unstuff(cx, ino, None));
        }
        self.state.strip(ino)?;
        let size = if keep_size { size } else { size.max(end) };
        self.state.admit_size(ino, size)?;
        // The event contains only the number of bytes, not the bytes.
        match end.checked_sub(stored) {
            Some(more @ 1..) => self.clonable(more)?,
            _ => self.overwritable()?,
        }
        self.drop_capability(cx, ino)?;
        self.commit(cx, &Event::Allocate { ino, offset, length, zero, size, time }, |_, _| Reply::Done)
    }
}
