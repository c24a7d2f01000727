//! Writes that clients make to streams by themselves: what the machine does before one (checks,
//! revocations, quotas), and the tracking of files whose size may differ from the counted size
//! (*size-dirty* files).

use alloc::vec::Vec;

use espalier_proto::{END, Errno, Ino, InodeFlags, Reply, Request, StreamIo};

use crate::event::Event;
use crate::journal::Acknowledge;
use crate::machine::{Cx, Meta};
use crate::permission::check_not;
use crate::progress::Progress;
use crate::record::Inode;
use crate::step::{Step, Stop, StreamCall, StreamDone, Wait};

impl Meta {
    /// Prepares a client's write to a stream: does what [`Self::write`] does except for the bytes.
    /// Counts the growth, if a quota applies.
    pub(crate) fn extend(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        (offset, length): (u64, u64),
        from: Option<(Ino, u64)>,
        discards: bool,
    ) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        check_not(inode, InodeFlags::of_fixed_bytes(discards))?;
        // A client that has just made the file has not opened it, and one that has reclaimed it
        // after its session's end has opened it before the last close.
        let is_marked = self.state.size_dirty.is_marked(ino, self.journal.durable);
        if inode.layout().is_some() || inode.is_streamed() && !is_marked {
            self.mark_size_dirty(cx, ino)?;
        }
        self.drop_capability(cx, ino)?;
        self.revoke_inode(cx, ino)?;
        let inode = self.state.inode(ino)?;
        let counted = inode.counted_bytes();
        if !inode.is_streamed() || !self.state.is_limited(ino)? {
            return Ok(Reply::Granted);
        }
        self.writable()?;
        let length = match from {
            Some((from, offset)) => {
                let sizes = cx.stream_stats([from].into())?;
                length.min(sizes.first().map_or(0, |stat| stat.size).saturating_sub(offset))
            }
            None => length,
        };
        let offset = match *cx.progress {
            Progress::Extended { offset } => offset,
            _ if offset == END => counted,
            _ => offset,
        };
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        if end > counted {
            self.admit_size(cx, ino, end)?;
            return Err(self.stage_all(cx, &[Event::Count { ino, size: end }], |_, cx| {
                if matches!(cx.progress, Progress::None) {
                    *cx.progress = Progress::Extended { offset };
                }
            }));
        }
        Ok(Reply::Granted)
    }

    /// Prepares a stream request. After a restart its inode may not be in memory, though clients
    /// have it open.
    pub(crate) fn place(&mut self, cx: &mut Cx<'_>, io: &StreamIo) -> Step<Reply> {
        if let Some(from) = io.op.source() {
            self.state.inode(from)?;
        }
        let Some(Request::Extend { ino, offset, length, from, discards, .. }) = io.extends() else {
            return self.state.inode(io.ino).map(|_| Reply::Done);
        };
        let granted = self.extend(cx, ino, (offset, length), from, discards)?;
        let is_durable = cx.changed <= Some(self.journal.durable);
        if !is_durable && self.config.acknowledge == Acknowledge::Durable {
            // A reply to this request would expose the count, so it must be durable first.
            return Err(Stop::Wait(Wait::Durable));
        }
        Ok(granted)
    }

    /// Marks a file as size-dirty, durably, before its stream may change without the machine: after
    /// a crash, recovery must check its size.
    pub(crate) fn mark_size_dirty(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<()> {
        self.writable()?;
        self.sessions.making.remove(&ino);
        self.block_grants(cx, ino)?;
        let cached = self.state.cached(ino)?;
        if cached.inode.nlink == 0 && !cached.in_use() {
            // The removal of its stream may be pending.
            return Err(Errno::ESTALE.into());
        }
        match self.state.size_dirty.note_writer(ino, self.ticks) {
            Some(since) if since <= self.journal.durable => Ok(()),
            Some(_) => Err(Stop::Wait(Wait::Durable)),
            None => Err(self.stage(cx, &Event::MarkSizeDirty { ino })),
        }
    }

    /// The stream's size of a size-dirty file, measured while no other size was counted.
    pub(crate) fn measure(&self, cx: &Cx<'_>, ino: Ino) -> Step<u64> {
        let counted = self.state.inode(ino)?.counted_bytes();
        let done = cx.stream(StreamCall::Measure([(ino, counted)].into()))?;
        self.state.load_parents(ino)?;
        let StreamDone::Stats(stats) = done else { return Ok(counted) };
        Ok(stats.first().map_or(counted, |stat| stat.size))
    }

    /// Counts a new size of a streamed file. All directories above it must be in memory.
    pub(crate) fn count_size(&mut self, cx: &mut Cx<'_>, ino: Ino, size: u64) -> Step<()> {
        match self.count_event(self.state.inode(ino)?, size) {
            Some(count) => Err(self.stage(cx, &count)),
            None => Ok(()),
        }
    }

    /// The event that counts a size of a streamed file; `None` if it is counted, or cannot be.
    pub(crate) fn count_event(&self, inode: &Inode, size: u64) -> Option<Event> {
        let differs = inode.counted_bytes() != size;
        let is_possible = !self.config.read_only && self.journal.broken.is_none();
        (differs && is_possible).then_some(Event::Count { ino: inode.ino, size })
    }

    /// Counts the growth of open files that are written to.
    pub(crate) fn count_open(&mut self, cx: &mut Cx<'_>) -> Step<()> {
        if cx.measured().is_none() {
            let open = |ino: &Ino| self.state.inodes.get(ino).is_some_and(|cached| cached.opens > 0);
            let with_size = |ino: Ino| Ok((ino, self.state.inode(ino)?.counted_bytes()));
            let files: Vec<_> =
                self.state.size_dirty.inos().filter(open).map(with_size).collect::<Step<_>>()?;
            if !files.is_empty() && !self.config.read_only {
                cx.stream(StreamCall::Measure(files))?;
            }
        }
        let mut counts = Vec::new();
        for (ino, was, size) in cx.measured().unwrap_or_default() {
            // A smaller size may precede a write that is already counted, and a differing count is
            // newer.
            let is_news = size > was && self.state.size_dirty.contains(ino);
            if is_news && self.state.inode(ino)?.counted_bytes() == was {
                self.state.load_parents(ino)?;
                counts.extend(self.count_event(self.state.inode(ino)?, size));
            }
        }
        if counts.is_empty() { Ok(()) } else { Err(self.stage_all(cx, &counts, |_, _| {})) }
    }

    /// Size-dirty files whose idle streams are to be synced.
    pub(crate) fn idle_size_dirty(&mut self) -> Vec<Ino> {
        if self.sessions.in_grace() {
            // A client may have files open for writing that it has not reclaimed yet.
            return Vec::new();
        }
        let inodes = &self.state.inodes;
        let is_closed =
            |ino| inodes.get(&ino).is_none_or(|cached| cached.opens == 0 && cached.inode.nlink > 0);
        self.state.size_dirty.begin_syncs(self.ticks, is_closed)
    }

    /// Handles the sync of a size-dirty file's stream, begun at `tick`.
    pub(crate) fn size_dirty_synced(&mut self, ino: Ino, tick: u64, durable: bool) {
        let is_closed = self.state.inodes.get(&ino).is_none_or(|cached| cached.opens == 0);
        if durable && is_closed {
            self.state.size_dirty.synced(ino, tick, self.config.striping.is_some());
        } else {
            self.state.size_dirty.sync_failed(ino);
        }
    }
}
