//! The journal: a ring of frames in one file of fixed size.
//!
//! A frame's position is the number of bytes appended before it since the journal was made, so it says where in the ring
//! the frame lies, and a frame left from an earlier lap is never mistaken for one of this lap.
//!
//! After a crash, the frames up to the first broken one are the journal. Behind it there may be whole frames that were
//! lost with it. They must not count when new frames come to lie before them, even byte for byte equal to those that
//! were broken. So each opening for writing begins a new *epoch*: it makes what it has found durable, and then
//! notes the epoch and where it begins (its *boundary*) in the file's header. Behind the boundary only frames of that
//! epoch count, and none of those is written before the header is durable.
//!
//! A broken frame ends the journal if it may be one that was never synced. It is damage if it lies before the boundary,
//! or if a later frame of its epoch says that it had been durable. Damage to the last frames that were synced, with none
//! behind them, cannot be told from a torn write, in this journal as in others.

mod error;
mod file;
mod frame;
mod sim;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use espalier_proto::Position;

pub use error::JournalError;
pub use file::{BlockFile, RealFile};
use frame::{FRAME_HEADER_BYTES, FrameHeader, HEADER_BYTES, SLOT_BYTES, SLOT_OFFSETS, Slot};
pub use sim::SimFile;

const CHUNK_BYTES: usize = 256 * 1024;

/// The journal, open. One thread appends; a [`SyncHandle`] lets others sync meanwhile.
pub struct Journal<F: BlockFile> {
    shared: Arc<Shared<F>>,
    slot: Slot,
    /// Which of the two slots `slot` is.
    slot_index: usize,
    mode: Mode,
    position: u64,
    trimmed: u64,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ReadOnly,
    /// The end is not known yet.
    Opened,
    /// The end is known, and what lies behind it still counts.
    Replayed,
    Ready,
}

struct Shared<F> {
    file: F,
    appended: AtomicU64,
    durable: AtomicU64,
    /// After a failed sync the system has forgotten what it did not write: no later sync can be believed.
    failed: AtomicBool,
    /// One sync at a time: the system tells an error to one caller only.
    syncing: Mutex<()>,
}

impl<F: BlockFile> Shared<F> {
    fn check(&self) -> Result<(), JournalError> {
        if self.failed.load(Ordering::Acquire) { Err(JournalError::Failed) } else { Ok(()) }
    }

    fn sync(&self) -> Result<Position, JournalError> {
        let _one = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let appended = self.appended.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) < appended {
            self.sync_file()?;
            self.durable.store(appended, Ordering::Release);
        }
        Ok(Position(appended))
    }

    fn sync_file(&self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|cause| {
            self.failed.store(true, Ordering::Release);
            JournalError::Io { what: "sync", cause }
        })
    }
}

/// Syncs the journal while another thread appends to it.
pub struct SyncHandle<F: BlockFile>(Arc<Shared<F>>);

impl<F: BlockFile> SyncHandle<F> {
    /// Makes all that was appended before the call durable. Up to where the journal is durable then.
    ///
    /// # Errors
    /// See [`Journal::sync`].
    pub fn sync(&self) -> Result<Position, JournalError> {
        self.0.sync()
    }
}

impl<F: BlockFile> Clone for SyncHandle<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: BlockFile> Journal<F> {
    /// Bytes that a journal of this capacity takes on disk.
    pub const fn file_bytes(capacity: u64) -> u64 {
        HEADER_BYTES + capacity
    }

    /// Makes an empty journal, durable, ready to be appended to. `capacity`: bytes of the ring, a multiple of 8.
    /// `tag`: which store it belongs to.
    ///
    /// The whole file is written, so that no later sync has to allocate.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    ///
    /// # Panics
    /// If the capacity is 0 or no multiple of 8.
    pub fn create(file: F, capacity: u64, tag: u64) -> Result<Self, JournalError> {
        assert!(capacity > 0 && capacity.is_multiple_of(8), "a capacity of {capacity} bytes");
        let zeros = vec![0; CHUNK_BYTES];
        let (mut offset, end) = (0, Self::file_bytes(capacity));
        while offset < end {
            let length = (end - offset).min(CHUNK_BYTES as u64);
            file.write_at(offset, &zeros[..length as usize]).map_err(io("write"))?;
            offset += length;
        }
        let slot = Slot { capacity, tag, epoch: 1, boundary: 0 };
        file.write_at(SLOT_OFFSETS[0], &slot.encode()).map_err(io("write"))?;
        file.sync_data().map_err(io("sync"))?;
        Ok(Self::new(file, slot, 0, Mode::Ready))
    }

    /// Opens a journal. It can be appended to once it has been replayed.
    ///
    /// # Errors
    /// [`JournalError::Io`], [`JournalError::NoJournal`], [`JournalError::Truncated`].
    pub fn open(file: F) -> Result<Self, JournalError> {
        Self::open_as(file, Mode::Opened)
    }

    /// Opens a journal that will not be written.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_read_only(file: F) -> Result<Self, JournalError> {
        Self::open_as(file, Mode::ReadOnly)
    }

    fn open_as(file: F, mode: Mode) -> Result<Self, JournalError> {
        let length = file.len().map_err(io("measure"))?;
        if length < HEADER_BYTES {
            return Err(JournalError::Truncated { length, expected: HEADER_BYTES });
        }
        let mut slots = [None; 2];
        for (slot, offset) in slots.iter_mut().zip(SLOT_OFFSETS) {
            let mut bytes = [0; SLOT_BYTES];
            file.read_at(offset, &mut bytes).map_err(io("read"))?;
            *slot = Slot::decode(&bytes);
        }
        let (slot, index) = match slots {
            [Some(first), Some(second)] if first.epoch > second.epoch => (first, 0),
            [_, Some(second)] => (second, 1),
            [Some(first), None] => (first, 0),
            [None, None] => return Err(JournalError::NoJournal),
        };
        let expected = Self::file_bytes(slot.capacity);
        if length != expected {
            return Err(JournalError::Truncated { length, expected });
        }
        Ok(Self::new(file, slot, index, mode))
    }

    fn new(file: F, slot: Slot, slot_index: usize, mode: Mode) -> Self {
        let (appended, durable) = (AtomicU64::new(0), AtomicU64::new(0));
        let failed = AtomicBool::new(false);
        let shared = Arc::new(Shared { file, appended, durable, failed, syncing: Mutex::new(()) });
        Self { shared, slot, slot_index, mode, position: 0, trimmed: 0, buffer: Vec::new() }
    }

    /// Reads all frames from `from` on, in order, and gives each to `visit` with the position after it. What follows the
    /// last one is where the journal goes on. Frames before `from` are trimmed. Writes nothing.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if frames are missing that had been durable: what was visited is not all there was.
    /// [`JournalError::Io`].
    pub fn replay(
        &mut self,
        from: Position,
        mut visit: impl FnMut(Position, &[u8]),
    ) -> Result<Position, JournalError> {
        let from = from.0;
        if !from.is_multiple_of(8) {
            return Err(JournalError::Corrupt { position: from, why: "no frame can begin there" });
        }
        let mut position = from;
        let mut payload = Vec::new();
        while let Some(header) = self.read_frame(position, from, &mut payload)? {
            let boundary = self.slot.boundary;
            let (old, end) = (position < boundary, position + frame::frame_bytes(payload.len()));
            if old != (header.epoch < self.slot.epoch)
                || header.epoch > self.slot.epoch
                || old != (end <= boundary)
            {
                break;
            }
            position = end;
            visit(Position(position), &payload);
        }
        if position < self.slot.boundary {
            let why = "a frame is damaged that was intact when the journal was last opened";
            return Err(JournalError::Corrupt { position, why });
        }
        self.look_for_damage(position, from, &mut payload)?;
        (self.position, self.trimmed) = (position, from);
        if self.mode != Mode::ReadOnly {
            self.mode = Mode::Replayed;
        }
        self.shared.appended.store(position, Ordering::Release);
        self.shared.durable.store(position.min(self.slot.boundary), Ordering::Release);
        Ok(Position(position))
    }

    /// Begins a new epoch at the journal's end: what was replayed is durable then, and what was torn off never counts
    /// again. The first [`Self::append`] does it if it was not done.
    ///
    /// # Errors
    /// [`JournalError::Io`]: the journal must be opened again. [`JournalError::ReadOnly`],
    /// [`JournalError::NotReplayed`].
    pub fn forget_torn(&mut self) -> Result<(), JournalError> {
        self.shared.check()?;
        match self.mode {
            Mode::ReadOnly => Err(JournalError::ReadOnly),
            Mode::Opened => Err(JournalError::NotReplayed),
            Mode::Replayed => self.begin_epoch(),
            Mode::Ready => Ok(()),
        }
    }

    /// Appends a frame. It is not durable before a sync. Returns the position after it.
    ///
    /// # Errors
    /// [`JournalError::Full`] if it does not fit; [`JournalError::Io`]: the frame is not in the journal, and may be
    /// appended again; [`JournalError::Failed`] after a sync has failed.
    pub fn append(&mut self, payload: &[u8]) -> Result<Position, JournalError> {
        self.forget_torn()?;
        let (needed, free) = (frame::frame_bytes(payload.len()), self.capacity() - self.used());
        let Some(length) = u32::try_from(payload.len()).ok().filter(|_| needed <= free) else {
            return Err(JournalError::Full { needed, free });
        };
        let durable = self.shared.durable.load(Ordering::Acquire);
        let fields = (self.position, self.slot.epoch, durable);
        frame::encode(&mut self.buffer, payload, length, fields, self.slot.tag);
        let (first, second) = self.split(self.position, self.buffer.len());
        self.shared.file.write_at(self.offset(self.position), &self.buffer[..first]).map_err(io("write"))?;
        if second > 0 {
            self.shared.file.write_at(HEADER_BYTES, &self.buffer[first..]).map_err(io("write"))?;
        }
        self.position += needed;
        self.shared.appended.store(self.position, Ordering::Release);
        Ok(Position(self.position))
    }

    /// Makes all that was appended durable.
    ///
    /// # Errors
    /// [`JournalError::Io`], and from then on [`JournalError::Failed`]: what of it is on disk is known only when the
    /// journal is opened again.
    pub fn sync(&mut self) -> Result<Position, JournalError> {
        self.shared.sync()
    }

    /// For syncing while this is appended to.
    pub fn sync_handle(&self) -> SyncHandle<F> {
        SyncHandle(Arc::clone(&self.shared))
    }

    /// Lets go of the frames before `to`, which must be durable elsewhere: their room is used again.
    pub fn trim(&mut self, to: Position) {
        self.trimmed = self.trimmed.max(to.0.min(self.position));
    }

    /// Bytes between the trim point and the end.
    pub fn used(&self) -> u64 {
        self.position - self.trimmed
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.slot.capacity
    }

    /// The end: where the next frame begins.
    pub fn position(&self) -> Position {
        Position(self.position)
    }

    /// Up to where the journal is known to be durable.
    pub fn durable(&self) -> Position {
        Position(self.shared.durable.load(Ordering::Acquire))
    }

    /// Which store it belongs to, as told when it was made.
    pub fn tag(&self) -> u64 {
        self.slot.tag
    }

    /// What lies below, for tests and the simulator.
    pub fn file(&self) -> &F {
        &self.shared.file
    }

    fn begin_epoch(&mut self) -> Result<(), JournalError> {
        // A killed process may have left frames that were read but are not on disk yet.
        self.shared.sync_file()?;
        let slot = Slot { epoch: self.slot.epoch + 1, boundary: self.position, ..self.slot };
        let index = 1 - self.slot_index;
        self.shared.file.write_at(SLOT_OFFSETS[index], &slot.encode()).map_err(io("write"))?;
        self.shared.sync_file()?;
        (self.slot, self.slot_index, self.mode) = (slot, index, Mode::Ready);
        self.shared.durable.store(self.position, Ordering::Release);
        Ok(())
    }

    /// Looks for a frame at or behind `broken` that proves that the journal did not end there.
    fn look_for_damage(&self, broken: u64, from: u64, payload: &mut Vec<u8>) -> Result<(), JournalError> {
        let end = from + self.capacity();
        let mut chunk = vec![0; CHUNK_BYTES + FRAME_HEADER_BYTES];
        let mut start = broken;
        while start + FRAME_HEADER_BYTES as u64 <= end {
            let length = ((end - start) as usize).min(chunk.len());
            self.read_ring(start, &mut chunk[..length])?;
            let candidates = (0..=length - FRAME_HEADER_BYTES).step_by(8);
            for at in candidates.take(CHUNK_BYTES / 8) {
                let Some(header) = chunk[at..].first_chunk().and_then(FrameHeader::decode) else { continue };
                let (position, epoch) = (start + at as u64, self.slot.epoch);
                let proves = header.epoch > epoch || (header.epoch == epoch && header.durable > broken);
                if header.position == position
                    && proves
                    && self.read_frame(position, from, payload)?.is_some()
                {
                    let why = "a frame is damaged that had been durable";
                    return Err(JournalError::Corrupt { position: broken, why });
                }
            }
            start += CHUNK_BYTES as u64;
        }
        Ok(())
    }

    /// The frame at `position`, if there is a whole one.
    fn read_frame(
        &self,
        position: u64,
        from: u64,
        payload: &mut Vec<u8>,
    ) -> Result<Option<FrameHeader>, JournalError> {
        let room = from + self.capacity() - position;
        if room < FRAME_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.read_ring(position, &mut bytes)?;
        let Some(header) = FrameHeader::decode(&bytes) else { return Ok(None) };
        if header.position != position || frame::frame_bytes(header.length as usize) > room {
            return Ok(None);
        }
        payload.resize(header.length as usize, 0);
        self.read_ring(position + FRAME_HEADER_BYTES as u64, payload)?;
        Ok(header.fits(&bytes, payload, self.slot.tag).then_some(header))
    }

    fn read_ring(&self, position: u64, buf: &mut [u8]) -> Result<(), JournalError> {
        let (first, second) = self.split(position, buf.len());
        self.shared.file.read_at(self.offset(position), &mut buf[..first]).map_err(io("read"))?;
        if second > 0 {
            self.shared.file.read_at(HEADER_BYTES, &mut buf[first..]).map_err(io("read"))?;
        }
        Ok(())
    }

    fn offset(&self, position: u64) -> u64 {
        HEADER_BYTES + position % self.capacity()
    }

    /// How many of `length` bytes lie before the ring's end, and how many at its beginning.
    fn split(&self, position: u64, length: usize) -> (usize, usize) {
        let before_end = self.capacity() - position % self.capacity();
        let first = (length as u64).min(before_end) as usize;
        (first, length - first)
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> JournalError {
    move |cause| JournalError::Io { what, cause }
}
