//! `open` and `close` of files and directories.

use alloc::vec::Vec;

use espalier_proto::{Access, Errno, FileType, Ino, InodeFlags, OpenHow, Opened, Reads, Reply, mode};

use crate::config::Atime;
use crate::machine::{Cx, Final, Meta};
use crate::permission::check_not;
use crate::record::Body;
use crate::session::TokenKind;
use crate::step::{Step, Stop, StreamCall};

/// Largest file whose bytes accompany the reply to an open: as much as fits into any reply by
/// default (carns III.D).
const WHOLE_BYTES: u64 = 16 << 10;

impl Meta {
    /// Opens a file or directory. The reply includes the bytes of a small file if the client can
    /// cache them.
    pub(crate) fn open(&mut self, cx: &mut Cx<'_>, ino: Ino, how: OpenHow) -> Step<Reply> {
        let whole = self.whole(cx, ino, how)?;
        let opened = self.open_as(cx, ino, how)?;
        self.opened(ino);
        Ok(match whole {
            Some(bytes) => Reply::OpenedWhole(opened, bytes.into()),
            None => Reply::Opened(opened),
        })
    }

    /// The bytes of a file that its client reads from its cache; `None` if the server serves its
    /// reads.
    fn whole(&self, cx: &Cx<'_>, ino: Ino, how: OpenHow) -> Step<Option<Vec<u8>>> {
        let inode = self.state.inode(ino)?;
        let Body::Stuffed { size, .. } = inode.body else { return Ok(None) };
        let may_cache = self.leases.as_ref().is_some_and(|leases| leases.are_for(cx.client));
        let is_counted_once = self.config.atime != Atime::Always && !self.announces(inode);
        let is_wanted = (how.access, how.reads, how.truncate) == (Access::READ, Reads::Whole, false);
        if !may_cache || !is_counted_once || !is_wanted || size > WHOLE_BYTES {
            return Ok(None);
        }
        if self.is_open_to_write_by_others(cx.client, ino) {
            return Ok(None);
        }
        self.stuffed(ino, 0, size).map(Some)
    }

    /// Prepares an open of a file or directory. The caller counts it with [`Self::opened`], after
    /// which nothing may fail.
    pub(crate) fn open_as(&mut self, cx: &mut Cx<'_>, ino: Ino, how: OpenHow) -> Step<Opened> {
        let inode = self.state.inode(ino)?;
        if self.sessions.removing.contains_key(&ino) {
            return Err(Errno::ESTALE.into());
        }
        cx.check(inode, how.access)?;
        if how.access.contains(Access::WRITE) && (how.truncate || !how.append) {
            check_not(inode, InodeFlags::APPEND)?;
        }
        let (is_file, streamed) = (inode.kind == FileType::Regular, inode.is_streamed());
        if how.access.contains(Access::WRITE) && is_file && self.config.read_only {
            return Err(Errno::EROFS.into());
        }
        if how.access.contains(Access::WRITE) && is_file {
            // A lease holder may have it open (a delegated open) and reports that when the lease is
            // revoked.
            self.revoke_inode(cx, ino)?;
        }
        if how.truncate && is_file {
            self.writable()?;
            self.drop_capability(cx, ino)?;
            if how.kill_suid_gid
                && let Some(removal) = self.removal_of_privileges(cx, ino)?
            {
                return Err(self.stage(cx, &removal));
            }
            if streamed {
                self.truncate_stream(cx, ino, 0)?;
            } else {
                self.truncate_stuffed(cx, ino, 0)?;
            }
        }
        let limited = self.is_written_by_server(ino)?;
        if streamed && how.access.contains(Access::WRITE) {
            self.mark_size_dirty(cx, ino)?;
        }
        if how.sync && streamed && !self.config.read_only {
            // The kernel may write and sync the stream itself, but not the file's metadata.
            cx.stream(StreamCall::Sync { ino })?;
            cx.durable = true;
        }
        // The machine may not see the reads, so the open counts as an access.
        let reads_remote = match how.access {
            Access::READ => streamed || how.reads != Reads::Server,
            access => streamed && access.contains(Access::READ),
        };
        let accessed = is_file && reads_remote && self.accessed(cx, ino)?;
        self.note_inode(cx, ino);
        let announced = self.announces(self.state.inode(ino)?);
        // A small file may outgrow its strip soon.
        let writes = is_file && how.access.contains(Access::WRITE);
        // Without sessions there is only one client.
        let shared = self.config.session_ms.is_some()
            && (self.is_written(cx.client, ino)
                || writes && self.is_open_by_others(cx.client, ino)
                || self.is_open_to_write_by_others(cx.client, ino));
        let reclaim_token = self.reclaim_token(cx.client, ino, TokenKind::opened(how.access));
        Ok(Opened { streamed, accessed, limited, shared, announced, reclaim_token })
    }

    /// True if kernels must not write the stream themselves: see [`Opened::limited`].
    pub(crate) fn is_written_by_server(&self, ino: Ino) -> Step<bool> {
        let inode = self.state.inode(ino)?;
        let is_privileged = inode.perm & (mode::SET_UID | mode::SET_GID) != 0;
        Ok(inode.is_streamed() && (is_privileged || self.state.is_limited(ino)?))
    }

    /// Counts an open. The file exists until its release, even without a name.
    pub(crate) fn opened(&mut self, ino: Ino) {
        if let Some(cached) = self.state.inodes.untracked(&ino) {
            cached.opens += 1;
        }
    }

    pub(crate) fn release(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Final<'_>> {
        let measured = match self.state.size_dirty.contains(ino).then(|| self.measure(cx, ino)) {
            Some(Err(Stop::Wait(wait))) => return Err(Stop::Wait(wait)),
            measured => measured.and_then(Result::ok),
        };
        let cached = self.state.inodes.get(&ino);
        let is_last = cached.is_some_and(|cached| cached.opens <= 1);
        let count = cached.zip(measured).and_then(|(cached, size)| {
            let counted = cached.inode.counted_bytes();
            self.count_event(&cached.inode, if is_last { size } else { size.max(counted) })
        });
        self.commit_all(cx, count.as_slice(), |meta, cx| {
            meta.closed(cx, ino, is_last, measured.is_some());
            Reply::Done
        })
    }

    /// Counts a close, the last one if `is_last`.
    fn closed(&mut self, cx: &mut Cx<'_>, ino: Ino, is_last: bool, is_measured: bool) {
        if self.state.size_dirty.note_close(ino, self.ticks, is_last) {
            // A task that has queried the size may have received it before the last write.
            self.streams_changed += 1;
            if !is_measured {
                self.state.size_dirty.must_measure(ino);
            }
        }
        if let Some(cached) = self.state.inodes.untracked(&ino) {
            cached.opens = cached.opens.saturating_sub(1);
            if !cached.in_use() {
                self.forget_moved(ino);
            }
            self.recall_unnamed(ino, None);
            self.purge_if_unused(cx, ino);
        } else if self.state.reclaimed.give_up(ino, 0, 1) {
            self.forget_moved(ino);
        }
    }
}
