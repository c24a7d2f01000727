//! The journal: a ring of frames in one file of fixed size.
//!
//! A frame's position is the number of bytes that were appended before it since the journal was
//! made. It determines the frame's place in the ring, and distinguishes the frame from one of an
//! earlier lap.
//!
//! After a crash, the journal ends at its first broken frame. Intact frames may follow that were
//! lost with it. They must stay invalid when new frames are later written before them, even if
//! these are byte for byte equal to the lost ones. So each opening for writing begins a new
//! *epoch*: it makes the frames found durable, then writes the epoch and the position where it
//! begins (its *boundary*) to the file's header. After the boundary, only frames of that epoch are
//! valid, and none is written before the header is durable.
//!
//! A broken frame ends the journal if it may never have been synced. It is damage if it lies before
//! the boundary, or if a later frame of its epoch records it as durable. Damage to the last synced
//! frames, with no frame after them, is indistinguishable from a torn write, as in other journals.

mod error;
mod file;
mod frame;
mod sim;
mod sparse;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use espalier_proto::Position;

pub use error::JournalError;
pub use file::{BlockFile, RealFile};
use frame::{FRAME_HEADER_BYTES, FrameHeader, HEADER_BYTES, HeaderSlot, SLOT_BYTES, SLOT_OFFSETS};
pub use sim::SimFile;

const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes that [`Journal::follow`] reads first, and at once at most.
const FOLLOW_BYTES: (usize, usize) = (64 << 10, 4 << 20);
/// Bytes after a broken frame that [`Journal::replay_after`] searches for a frame that proves
/// damage: more than can be under way to a shared store.
const SEARCHED_BYTES: u64 = 68 << 20;
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 4 << 20;

/// An open journal. One thread appends; a [`SyncHandle`] lets other threads sync meanwhile.
pub struct Journal<F: BlockFile + ?Sized = dyn BlockFile> {
    shared: Arc<JournalShared<F>>,
    slot: HeaderSlot,
    /// Index of the header slot that holds `slot`.
    slot_index: usize,
    mode: Mode,
    position: u64,
    trimmed: u64,
    buffer: Vec<u8>,
}

/// Identifies an opening of a journal for writing. While it is the last one, frames that were
/// intact stay so until they are trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEpoch {
    epoch: u64,
    boundary: u64,
}

impl From<HeaderSlot> for JournalEpoch {
    fn from(HeaderSlot { epoch, boundary, .. }: HeaderSlot) -> Self {
        Self { epoch, boundary }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    ReadOnly,
    /// The end is unknown until replay.
    Opened,
    /// The end is known; frames after it are not invalidated yet.
    Replayed,
    Ready,
}

struct JournalShared<F: ?Sized> {
    appended: AtomicU64,
    durable: AtomicU64,
    /// A sync has failed. The kernel drops unwritten pages then, so a later sync proves nothing.
    failed: AtomicBool,
    /// Serialises syncs: the kernel reports a write error to one caller only.
    syncing: Mutex<()>,
    file: F,
}

impl<F: BlockFile + ?Sized> JournalShared<F> {
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
            JournalError::Io { operation: "sync", cause }
        })
    }
}

/// Syncs the journal while another thread appends.
pub struct SyncHandle<F: BlockFile + ?Sized = dyn BlockFile>(Arc<JournalShared<F>>);

impl<F: BlockFile + ?Sized> SyncHandle<F> {
    /// Makes everything that was appended before the call durable. Returns the durable position.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub fn sync(&self) -> Result<Position, JournalError> {
        self.0.sync()
    }
}

impl<F: BlockFile + ?Sized> Clone for SyncHandle<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: BlockFile> Journal<F> {
    /// Size in bytes of the file of a journal with this capacity.
    pub const fn file_bytes(capacity: u64) -> u64 {
        HEADER_BYTES + capacity
    }

    /// Makes an empty, durable journal that is ready for appending. `capacity`: bytes of the ring,
    /// a multiple of 8. `tag` identifies the store that owns it.
    ///
    /// The whole file is written, so no later sync has to allocate blocks.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    ///
    /// # Panics
    /// If the capacity is 0 or not a multiple of 8.
    pub fn create(file: F, capacity: u64, tag: u64) -> Result<Self, JournalError> {
        assert!(capacity > 0 && capacity.is_multiple_of(8), "invalid capacity: {capacity} bytes");
        let zeros = vec![0; CHUNK_BYTES];
        let (mut offset, end) = (0, Self::file_bytes(capacity));
        while offset < end {
            let length = (end - offset).min(CHUNK_BYTES as u64);
            file.write_at(offset, &zeros[..length as usize]).map_err(io("write"))?;
            offset += length;
        }
        let slot = HeaderSlot { capacity, tag, epoch: 1, boundary: 0 };
        file.write_at(SLOT_OFFSETS[0], &slot.encode()).map_err(io("write"))?;
        file.sync_data().map_err(io("sync"))?;
        Ok(Self::new(file, slot, 0, Mode::Ready))
    }

    /// Opens a journal. It must be replayed before the first append.
    ///
    /// # Errors
    /// [`JournalError::Io`], [`JournalError::NoJournal`], [`JournalError::Truncated`].
    pub fn open(file: F) -> Result<Self, JournalError> {
        Self::open_as(file, Mode::Opened)
    }

    /// Opens a journal for reading only.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_read_only(file: F) -> Result<Self, JournalError> {
        Self::open_as(file, Mode::ReadOnly)
    }

    fn open_as(file: F, mode: Mode) -> Result<Self, JournalError> {
        let length = file.len().map_err(io("measure"))?;
        if length < HEADER_BYTES {
            return Err(JournalError::Truncated { length, expected: HEADER_BYTES });
        }
        let (slot, index) = read_slot(&file)?;
        let expected = Self::file_bytes(slot.capacity);
        if length != expected {
            return Err(JournalError::Truncated { length, expected });
        }
        Ok(Self::new(file, slot, index, mode))
    }

    fn new(file: F, slot: HeaderSlot, slot_index: usize, mode: Mode) -> Self {
        let (appended, durable) = (AtomicU64::new(0), AtomicU64::new(0));
        let failed = AtomicBool::new(false);
        let shared = Arc::new(JournalShared { appended, durable, failed, syncing: Mutex::new(()), file });
        Self { shared, slot, slot_index, mode, position: 0, trimmed: 0, buffer: Vec::new() }
    }

    /// The same journal, of whatever file.
    #[must_use]
    pub fn erase(self) -> Journal
    where
        F: 'static,
    {
        let Self { shared, slot, slot_index, mode, position, trimmed, buffer } = self;
        Journal { shared, slot, slot_index, mode, position, trimmed, buffer }
    }
}

impl<F: BlockFile + ?Sized> Journal<F> {
    /// Reads all frames from `from` on, in order, and calls `visit` with the position after each
    /// and its payload. The end of the last one becomes the end of the journal. Frames before
    /// `from` are trimmed. Writes nothing.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if frames that were durable are missing: `visit` has not seen all
    /// events. [`JournalError::Io`].
    pub fn replay(
        &mut self,
        from: Position,
        mut visit: impl FnMut(Position, &[u8]),
    ) -> Result<Position, JournalError> {
        self.replay_from(from, from, u64::MAX, &mut visit)
    }

    /// As [`Self::replay`], but reads only the frames from `read` on: [`Self::follow`] has read
    /// those before it, in the same [`Self::epoch`].
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub fn replay_after(
        &mut self,
        from: Position,
        read: Position,
        mut visit: impl FnMut(Position, &[u8]),
    ) -> Result<Position, JournalError> {
        self.replay_from(from, read, SEARCHED_BYTES, &mut visit)
    }

    fn replay_from(
        &mut self,
        from: Position,
        read: Position,
        searched: u64,
        visit: &mut dyn FnMut(Position, &[u8]),
    ) -> Result<Position, JournalError> {
        let (from, mut position) = (from.0, read.0.max(from.0));
        if !from.is_multiple_of(8) || !position.is_multiple_of(8) {
            return Err(JournalError::Corrupt { position: from, why: "no frame begins there" });
        }
        let mut payload = Vec::new();
        while let Some(header) = self.read_frame(position, from, &mut payload)? {
            let Some(end) = self.end_if_valid(&header, position) else { break };
            position = end;
            visit(Position(position), &payload);
        }
        if position < self.slot.boundary {
            let why = "a frame that was intact at the last opening is damaged";
            return Err(JournalError::Corrupt { position, why });
        }
        self.look_for_damage(position, from, searched, &mut payload)?;
        (self.position, self.trimmed) = (position, from);
        if self.mode != Mode::ReadOnly {
            self.mode = Mode::Replayed;
        }
        self.shared.appended.store(position, Ordering::Release);
        self.shared.durable.store(position.min(self.slot.boundary), Ordering::Release);
        Ok(Position(position))
    }

    /// The end of an intact frame, if its epoch fits its position.
    fn end_if_valid(&self, header: &FrameHeader, position: u64) -> Option<u64> {
        let HeaderSlot { epoch, boundary, .. } = self.slot;
        let (old, end) = (position < boundary, position + frame::frame_bytes(header.length as usize));
        let fits = old == (header.epoch < epoch) && header.epoch <= epoch && old == (end <= boundary);
        fits.then_some(end)
    }

    /// Reads frames from `read` on while another process appends, about `limit` bytes at most.
    /// Calls `visit` with each frame's payload and returns the position after the last frame. A
    /// frame that is not complete yet ends the call. `from`: frames before it may be trimmed.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn follow(
        &self,
        from: Position,
        read: Position,
        limit: u64,
        mut visit: impl FnMut(Vec<u8>),
    ) -> Result<Position, JournalError> {
        let (end, mut position) = (from.0 + self.capacity(), read.0);
        let (mut wanted, most) = FOLLOW_BYTES;
        let mut buffer = Vec::new();
        while position < end && position - read.0 < limit {
            buffer.resize(wanted.min((end - position) as usize), 0);
            self.read_ring(position, &mut buffer)?;
            let start = position;
            let mut missing = None;
            while let Some(bytes) = buffer[(position - start) as usize..].first_chunk() {
                let Some(header) = FrameHeader::decode(bytes) else { break };
                let length = frame::frame_bytes(header.length as usize);
                if header.position != position || length > end - position {
                    break;
                }
                let rest = &buffer[(position - start) as usize..];
                let payload = FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.length as usize;
                let Some(payload) = rest.get(payload) else {
                    missing = Some(length as usize);
                    break;
                };
                let is_intact = header.fits(bytes, payload, self.slot.tag);
                let Some(after) = self.end_if_valid(&header, position).filter(|_| is_intact) else { break };
                visit(payload.to_vec());
                position = after;
            }
            match missing {
                Some(length) => wanted = wanted.max(length),
                None if position == start => break,
                None => wanted = most,
            }
        }
        Ok(Position(position))
    }

    /// The opening for writing that was the last one when this journal was opened.
    pub fn epoch(&self) -> JournalEpoch {
        self.slot.into()
    }

    /// Reads which opening for writing is the last one.
    ///
    /// # Errors
    /// [`JournalError::Io`], [`JournalError::NoJournal`].
    pub fn read_epoch(&self) -> Result<JournalEpoch, JournalError> {
        read_slot(&self.shared.file).map(|(slot, _)| slot.into())
    }

    /// Begins a new epoch at the journal's end: makes the replayed frames durable and invalidates
    /// torn ones for good. The first [`Self::append`] calls it if necessary.
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

    /// Appends a frame and returns the position after it. The frame is durable after the next sync.
    ///
    /// # Errors
    /// [`JournalError::Full`] if it does not fit; [`JournalError::Io`]: the frame is not in the
    /// journal, the caller may append it again; [`JournalError::Failed`] after a failed sync.
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

    /// Makes all appended frames durable and returns the durable position.
    ///
    /// # Errors
    /// [`JournalError::Io`], and [`JournalError::Failed`] from then on: only reopening the journal
    /// shows which frames are on disk.
    pub fn sync(&mut self) -> Result<Position, JournalError> {
        self.shared.sync()
    }

    /// A handle for syncing from other threads.
    pub fn sync_handle(&self) -> SyncHandle<F> {
        SyncHandle(Arc::clone(&self.shared))
    }

    /// Frees the frames before `to`. They must be durable in the tables.
    pub fn trim(&mut self, to: Position) {
        self.trimmed = self.trimmed.max(to.0.min(self.position));
    }

    /// Bytes between the trim position and the end.
    pub fn used(&self) -> u64 {
        self.position - self.trimmed
    }

    /// Capacity of the ring in bytes.
    pub fn capacity(&self) -> u64 {
        self.slot.capacity
    }

    /// The end: the position of the next frame.
    pub fn position(&self) -> Position {
        Position(self.position)
    }

    /// Position up to which the journal is known to be durable.
    pub fn durable(&self) -> Position {
        Position(self.shared.durable.load(Ordering::Acquire))
    }

    /// The tag that identifies the store, as given to [`Self::create`].
    pub fn tag(&self) -> u64 {
        self.slot.tag
    }

    /// The underlying file, for tests and the simulator.
    pub fn file(&self) -> &F {
        &self.shared.file
    }

    /// Copies the frames of another journal of the same store between two positions, while its
    /// owner appends. `from`: `None` copies the whole file, for the first time.
    ///
    /// # Errors
    /// [`JournalError::Io`]; [`JournalError::Truncated`] if the capacities differ.
    pub fn copy_frames<G: BlockFile + ?Sized>(
        &self,
        source: &SyncHandle<G>,
        from: Option<Position>,
        to: Position,
    ) -> Result<(), JournalError> {
        let source = &source.0.file;
        let length = self.file().len().map_err(io("measure"))?;
        let expected = source.len().map_err(io("measure"))?;
        if length != expected {
            return Err(JournalError::Truncated { length, expected });
        }
        match from.filter(|from| to.0 - from.0 < self.capacity()) {
            Some(from) => self.copy_ring(source, from.0, to.0)?,
            None => copy_range(source, self.file(), 0..length)?,
        }
        self.file().sync_data().map_err(io("sync"))
    }

    fn copy_ring<G: BlockFile + ?Sized>(&self, source: &G, from: u64, to: u64) -> Result<(), JournalError> {
        let (first, second) = self.split(from, (to - from) as usize);
        let start = self.offset(from);
        copy_range(source, self.file(), start..start + first as u64)?;
        copy_range(source, self.file(), HEADER_BYTES..HEADER_BYTES + second as u64)
    }

    /// Continues after the last frame of `source`, a journal of the same store whose frames were
    /// copied up to `copied`. Everything is durable afterwards. If `source` is not replayed, nobody
    /// may have appended since the copy.
    ///
    /// # Errors
    /// [`JournalError::Io`]; [`JournalError::Failed`] if `source` has failed.
    pub fn take_over<G: BlockFile + ?Sized>(
        &mut self,
        source: &Journal<G>,
        copied: Position,
    ) -> Result<(), JournalError> {
        source.shared.check()?;
        let start = copied.0.clamp(source.trimmed, source.position);
        self.copy_ring(source.file(), start, source.position)?;
        copy_range(source.file(), self.file(), 0..HEADER_BYTES)?;
        self.shared.sync_file()?;
        (self.slot, self.slot_index, self.mode) = (source.slot, source.slot_index, source.mode);
        (self.position, self.trimmed) = (source.position, source.trimmed);
        self.shared.appended.store(self.position, Ordering::Release);
        self.shared.durable.store(self.position, Ordering::Release);
        Ok(())
    }

    fn begin_epoch(&mut self) -> Result<(), JournalError> {
        // A killed process may have left frames that are readable but not yet on disk.
        self.shared.sync_file()?;
        let slot = HeaderSlot { epoch: self.slot.epoch + 1, boundary: self.position, ..self.slot };
        let index = 1 - self.slot_index;
        self.shared.file.write_at(SLOT_OFFSETS[index], &slot.encode()).map_err(io("write"))?;
        self.shared.sync_file()?;
        (self.slot, self.slot_index, self.mode) = (slot, index, Mode::Ready);
        self.shared.durable.store(self.position, Ordering::Release);
        Ok(())
    }

    /// Searches the `searched` bytes from `broken` on for a frame that proves that the journal
    /// extends beyond it.
    fn look_for_damage(
        &self,
        broken: u64,
        from: u64,
        searched: u64,
        payload: &mut Vec<u8>,
    ) -> Result<(), JournalError> {
        let end = (from + self.capacity()).min(broken.saturating_add(searched));
        let mut chunk = vec![0; CHUNK_BYTES + FRAME_HEADER_BYTES];
        let mut start = broken;
        while start + FRAME_HEADER_BYTES as u64 <= end {
            let written = self.written_from(start)?;
            if written > start {
                start = written;
                continue;
            }
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
                    let why = "a frame that was durable is damaged";
                    return Err(JournalError::Corrupt { position: broken, why });
                }
            }
            start += CHUNK_BYTES as u64;
        }
        Ok(())
    }

    /// A position from `position` on, before which no frame begins: zeros are no frame.
    fn written_from(&self, position: u64) -> Result<u64, JournalError> {
        let (offset, end) = (self.offset(position), HEADER_BYTES + self.capacity());
        let data = self.shared.file.data_from(offset).map_err(io("seek"))?.clamp(offset, end);
        Ok(position + (data - offset) / 8 * 8)
    }

    /// The frame at `position`, if an intact one is there.
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

    /// Splits `length` bytes at the end of the ring: bytes before it, and bytes that wrap to its
    /// start.
    fn split(&self, position: u64, length: usize) -> (usize, usize) {
        let before_end = self.capacity() - position % self.capacity();
        let first = (length as u64).min(before_end) as usize;
        (first, length - first)
    }
}

/// The current header slot, and its index.
fn read_slot<F: BlockFile + ?Sized>(file: &F) -> Result<(HeaderSlot, usize), JournalError> {
    let mut slots = [None; 2];
    for (slot, offset) in slots.iter_mut().zip(SLOT_OFFSETS) {
        let mut bytes = [0; SLOT_BYTES];
        file.read_at(offset, &mut bytes).map_err(io("read"))?;
        *slot = HeaderSlot::decode(&bytes);
    }
    match slots {
        [Some(first), Some(second)] if first.epoch > second.epoch => Ok((first, 0)),
        [_, Some(second)] => Ok((second, 1)),
        [Some(first), None] => Ok((first, 0)),
        [None, None] => Err(JournalError::NoJournal),
    }
}

/// Copies a range of a file where the files differ.
fn copy_range<F, G>(from: &F, to: &G, range: Range<u64>) -> Result<(), JournalError>
where
    F: BlockFile + ?Sized,
    G: BlockFile + ?Sized,
{
    let (mut new, mut old) = (vec![0; COPY_BYTES], vec![0; COPY_BYTES]);
    let mut offset = range.start;
    while offset < range.end {
        // Whole chunks of a file in objects.
        let end = (offset / COPY_BYTES as u64 + 1) * COPY_BYTES as u64;
        let length = (end.min(range.end) - offset) as usize;
        from.read_at(offset, &mut new[..length]).map_err(io("read"))?;
        to.read_at(offset, &mut old[..length]).map_err(io("read"))?;
        if new[..length] != old[..length] {
            to.write_at(offset, &new[..length]).map_err(io("write"))?;
        }
        offset += length as u64;
    }
    Ok(())
}

fn io(operation: &'static str) -> impl FnOnce(std::io::Error) -> JournalError {
    move |cause| JournalError::Io { operation, cause }
}
