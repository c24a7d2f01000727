//! Size-dirty files: streamed files whose size may differ from what is counted. Their writers, the
//! kernel among them, need not report what they write, so recovery checks the sizes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use espalier_proto::Ino;

/// Ticks without a writer after which the stream of a closed file is synced.
const IDLE_TICKS: u64 = 30;
/// Files whose streams are synced per tick.
const AT_ONCE: usize = 64;

/// All size-dirty files. They stay in memory.
#[derive(Debug, Default)]
pub(crate) struct SizeDirtyFiles(BTreeMap<Ino, SizeDirty>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeDirty {
    /// Sequence number of the event that marked it. Once this event is durable, recovery checks the
    /// size.
    since: u64,
    /// `since` is the event that unstuffed the file to data servers.
    outgrew: bool,
    /// Tick of the last open for writing, close or sync.
    used: u64,
    /// It may have been opened for writing since nobody had it open.
    written: bool,
    /// Its size must be queried: nobody has done so since recovery, or the last query has failed.
    unmeasured: bool,
    sync: IdleSync,
}

/// The sync of the stream of a file that nobody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleSync {
    /// It is not due.
    Pending,
    /// In progress; may take long if a data server is down.
    Running,
    /// Done. The size is to be checked once more: a data server may have lost bytes before.
    Done,
}

impl SizeDirty {
    fn new(since: u64, outgrew: bool) -> Self {
        Self { since, outgrew, used: 0, written: true, unmeasured: false, sync: IdleSync::Pending }
    }

    /// The event that unstuffed the file to data servers, if that marked it.
    pub(crate) fn outgrew(&self) -> Option<u64> {
        self.outgrew.then_some(self.since)
    }
}

impl SizeDirtyFiles {
    pub(crate) fn get(&self, ino: Ino) -> Option<&SizeDirty> {
        self.0.get(&ino)
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// True if an event that is durable has marked the file.
    pub(crate) fn is_marked(&self, ino: Ino, durable: u64) -> bool {
        self.get(ino).is_some_and(|file| file.since <= durable)
    }

    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.0.keys().copied()
    }

    /// True if the file may have been opened for writing since nobody had it open.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        self.get(ino).is_some_and(|file| file.written)
    }

    /// Adds a file that the event `since` has marked.
    pub(crate) fn mark(&mut self, ino: Ino, since: u64) {
        self.0.insert(ino, SizeDirty::new(since, false));
    }

    /// Adds a file that the event `since` has unstuffed to data servers.
    pub(crate) fn mark_outgrown(&mut self, ino: Ino, since: u64) {
        self.0.insert(ino, SizeDirty::new(since, true));
    }

    pub(crate) fn remove(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }

    /// Notes that the file may be written from here on. Returns the event that has marked it, or
    /// `None` if it must be marked first.
    pub(crate) fn note_writer(&mut self, ino: Ino, tick: u64) -> Option<u64> {
        let file = self.0.get_mut(&ino)?;
        (file.used, file.written) = (tick, true);
        if file.sync == IdleSync::Done {
            file.sync = IdleSync::Pending;
        }
        Some(file.since)
    }

    /// Notes a close, the last one if `is_last`. Returns false if the file is not size-dirty.
    pub(crate) fn note_close(&mut self, ino: Ino, tick: u64, is_last: bool) -> bool {
        let Some(file) = self.0.get_mut(&ino) else { return false };
        file.used = tick;
        file.written &= !is_last;
        true
    }

    pub(crate) fn must_measure(&mut self, ino: Ino) {
        if let Some(file) = self.0.get_mut(&ino) {
            file.unmeasured = true;
        }
    }

    pub(crate) fn must_measure_all(&mut self) {
        self.0.values_mut().for_each(|file| file.unmeasured = true);
    }

    /// Files whose sizes are to be queried from here on. They stay size-dirty until that is done.
    pub(crate) fn take_unmeasured(&mut self, tick: u64) -> Vec<Ino> {
        let unmeasured = self.0.iter_mut().filter(|(_, file)| file.unmeasured);
        unmeasured
            .map(|(ino, file)| {
                (file.unmeasured, file.used) = (false, tick);
                *ino
            })
            .collect()
    }

    /// Notes that the size of a closed file is counted.
    pub(crate) fn counted(&mut self, ino: Ino) {
        if self.get(ino).is_some_and(|file| file.sync == IdleSync::Done) {
            self.remove(ino);
        }
    }

    /// Begins to sync files that have been closed for a while. Once their streams are durable, a
    /// crash does not change their sizes. Skips files whose sizes have not been queried since the
    /// last close, which may have to wait for leases.
    pub(crate) fn begin_syncs(&mut self, tick: u64, is_closed: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let is_idle = |ino: Ino, file: &SizeDirty| {
            is_closed(ino)
                && !file.unmeasured
                && file.sync != IdleSync::Running
                && tick.saturating_sub(file.used) >= IDLE_TICKS
        };
        let idle = self.0.iter_mut().filter(|(ino, file)| is_idle(**ino, file)).take(AT_ONCE);
        idle.map(|(ino, file)| {
            (file.used, file.sync) = (tick, IdleSync::Running);
            *ino
        })
        .collect()
    }

    /// Notes that a sync has failed, or that the file has been opened since.
    pub(crate) fn sync_failed(&mut self, ino: Ino) {
        if let Some(file) = self.0.get_mut(&ino) {
            file.sync = IdleSync::Pending;
        }
    }

    /// Notes that a sync begun at `tick` is done. `measures`: the size is to be checked again.
    pub(crate) fn synced(&mut self, ino: Ino, tick: u64, measures: bool) {
        let Some(file) = self.0.get_mut(&ino) else { return };
        file.sync = IdleSync::Pending;
        if file.used != tick {
            // It has been used meanwhile.
        } else if measures {
            (file.sync, file.unmeasured) = (IdleSync::Done, true);
        } else {
            self.remove(ino);
        }
    }
}
