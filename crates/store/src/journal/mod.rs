//! The journal: a ring of frames in a file of fixed size.
//!
//! A [`Position`] counts the bytes of frames ever appended; where a frame lies follows from it. A frame says its own
//! position, so that what an earlier lap left can be told from it. Recovery reads frames until one is not valid: that
//! is the torn end. What may lie behind it, of frames that were written and never synced, is overwritten with zeros
//! before anything is appended, so that it can never be taken for what follows.
//!
//! Each frame also says up to where the journal was known to be durable when it was written. If a frame is not valid
//! that a later one knows to have been durable, the journal is not torn but damaged, and that is an error.

mod file;
mod sim;

use espalier_proto::Position;
use xxhash_rust::xxh3::Xxh3;

use crate::error::JournalError;
pub use file::{BlockFile, RealFile};
pub use sim::SimFile;

/// Before the ring: the header.
const HEADER_BYTES: u64 = 4096;
const MAGIC: &[u8; 8] = b"ESPALJ01";
const FRAME_MAGIC: u32 = 0x4c50_5345;
/// Of a frame: magic, payload length, position, durable position, checksum.
const FRAME_HEADER: usize = 32;
/// Frames begin at multiples of it.
const ALIGN: u64 = 8;

#[derive(Debug)]
pub struct Journal<F: BlockFile> {
    file: F,
    capacity: u64,
    /// Frames before it are not needed any more.
    start: u64,
    end: u64,
    durable: u64,
    frame: Vec<u8>,
}

impl<F: BlockFile> Journal<F> {
    /// Makes an empty journal. All of the file is written, so that a sync need not allocate.
    pub fn create(file: F, capacity: u64) -> Result<(), JournalError> {
        let capacity = capacity / ALIGN * ALIGN;
        zero(&file, 0, HEADER_BYTES + capacity)?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&capacity.to_le_bytes());
        header.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&header).to_le_bytes());
        file.write_at(0, &header)?;
        file.sync()?;
        Ok(())
    }

    /// [`Self::replay`] must come next.
    pub fn open(file: F) -> Result<Self, JournalError> {
        let length = file.len()?;
        if length < HEADER_BYTES {
            return Err(JournalError::Truncated { has: length, needs: HEADER_BYTES });
        }
        let mut header = [0; 24];
        file.read_at(0, &mut header)?;
        let capacity = u64::from_le_bytes(array(&header[8..16]));
        let checksum = u64::from_le_bytes(array(&header[16..]));
        if !header.starts_with(MAGIC) || xxhash_rust::xxh3::xxh3_64(&header[..16]) != checksum {
            return Err(JournalError::Foreign);
        }
        if length < HEADER_BYTES + capacity {
            return Err(JournalError::Truncated { has: length, needs: HEADER_BYTES + capacity });
        }
        Ok(Self { file, capacity, start: 0, end: 0, durable: 0, frame: Vec::new() })
    }

    /// Visits every frame from a position on, and makes the journal end after the last.
    pub fn replay(&mut self, from: Position, mut visit: impl FnMut(Position, &[u8])) -> Result<(), JournalError> {
        let mut position = from.0;
        let mut payload = Vec::new();
        while let Some((next, _)) = self.read_frame(position, from.0, &mut payload)? {
            position = next;
            visit(Position(next), &payload);
        }
        self.check_torn(position)?;
        (self.start, self.end, self.durable) = (from.0, position, position);
        Ok(())
    }

    /// Makes sure that nothing behind the end can be taken for a frame: before the first append after [`Self::replay`].
    pub fn forget_torn(&mut self) -> Result<(), JournalError> {
        let (free, at) = (self.capacity - (self.end - self.start), self.end % self.capacity);
        if self.is_blank(at, free)? {
            return Ok(());
        }
        let first = free.min(self.capacity - at);
        zero(&self.file, HEADER_BYTES + at, first)?;
        zero(&self.file, HEADER_BYTES, free - first)?;
        // Frames that were read back may not be durable yet.
        self.file.sync()?;
        Ok(())
    }

    /// Whether no frame of the present lap begins in the free part.
    fn is_blank(&self, at: u64, free: u64) -> Result<bool, JournalError> {
        let mut blank = true;
        self.scan_frames(self.end, free, |_, _| blank = false)?;
        let _ = at;
        Ok(blank)
    }

    /// Appends a frame, without a sync. Returns the position after it.
    pub fn append(&mut self, payload: &[u8]) -> Result<Position, JournalError> {
        let length = (FRAME_HEADER + payload.len()) as u64;
        let padded = length.next_multiple_of(ALIGN);
        if self.end + padded - self.start > self.capacity {
            return Err(JournalError::Full);
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.extend_from_slice(&FRAME_MAGIC.to_le_bytes());
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        frame.extend_from_slice(&self.end.to_le_bytes());
        frame.extend_from_slice(&self.durable.to_le_bytes());
        frame.extend_from_slice(&checksum(&frame, payload).to_le_bytes());
        frame.extend_from_slice(payload);
        frame.resize(padded as usize, 0);
        let written = self.write_ring(self.end, &frame);
        self.frame = frame;
        written?;
        self.end += padded;
        Ok(Position(self.end))
    }

    /// Makes all frames durable.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync()?;
        self.durable = self.end;
        Ok(())
    }

    /// Frames before this position are not needed any more.
    pub fn trim(&mut self, to: Position) {
        self.start = self.start.max(to.0.min(self.end));
    }

    /// Bytes.
    pub fn used(&self) -> u64 {
        self.end - self.start
    }

    /// Bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// After the last frame.
    pub fn position(&self) -> Position {
        Position(self.end)
    }

    /// Reads the frame at a position, if there is a valid one: the position after it, and what it knew to be durable.
    fn read_frame(&self, position: u64, from: u64, payload: &mut Vec<u8>) -> Result<Option<(u64, u64)>, JournalError> {
        let left = self.capacity - (position - from).min(self.capacity);
        let mut header = [0; FRAME_HEADER];
        if left < header.len() as u64 {
            return Ok(None);
        }
        self.read_ring(position, &mut header)?;
        let length = u64::from(u32::from_le_bytes(array(&header[4..8])));
        let padded = (FRAME_HEADER as u64 + length).next_multiple_of(ALIGN);
        if !is_frame(&header, position) || padded > left {
            return Ok(None);
        }
        payload.resize(length as usize, 0);
        self.read_ring(position + FRAME_HEADER as u64, payload)?;
        let durable = u64::from_le_bytes(array(&header[16..24]));
        let expected = u64::from_le_bytes(array(&header[24..32]));
        let valid = checksum(&header[..24], payload) == expected;
        Ok(valid.then_some((position + padded, durable)))
    }

    /// The frame at a position is not valid. An error if a later one knows that it was durable.
    fn check_torn(&self, position: u64) -> Result<(), JournalError> {
        let mut damaged = false;
        self.scan_frames(position, self.capacity, |_, durable| damaged |= durable > position)?;
        if damaged { Err(JournalError::Damaged(Position(position))) } else { Ok(()) }
    }

    /// Visits every valid frame of this lap in a part of the ring: its position, and what it knew to be durable.
    fn scan_frames(&self, from: u64, length: u64, mut visit: impl FnMut(u64, u64)) -> Result<(), JournalError> {
        const CHUNK: u64 = 1 << 20;
        let mut chunk = Vec::new();
        let mut payload = Vec::new();
        let mut at = from;
        while at < from + length {
            let size = (from + length - at).min(CHUNK);
            chunk.resize(size as usize, 0);
            self.read_ring(at, &mut chunk)?;
            for (index, word) in chunk.chunks_exact(ALIGN as usize).enumerate() {
                let position = at + index as u64 * ALIGN;
                if word.starts_with(&FRAME_MAGIC.to_le_bytes())
                    && let Some((_, durable)) = self.read_frame(position, from, &mut payload)?
                {
                    visit(position, durable);
                }
            }
            at += size;
        }
        Ok(())
    }

    fn read_ring(&self, position: u64, bytes: &mut [u8]) -> Result<(), JournalError> {
        let at = position % self.capacity;
        let first = bytes.len().min((self.capacity - at) as usize);
        let (head, tail) = bytes.split_at_mut(first);
        self.file.read_at(HEADER_BYTES + at, head)?;
        self.file.read_at(HEADER_BYTES, tail)?;
        Ok(())
    }

    fn write_ring(&self, position: u64, bytes: &[u8]) -> Result<(), JournalError> {
        let at = position % self.capacity;
        let (head, tail) = bytes.split_at(bytes.len().min((self.capacity - at) as usize));
        self.file.write_at(HEADER_BYTES + at, head)?;
        if !tail.is_empty() {
            self.file.write_at(HEADER_BYTES, tail)?;
        }
        Ok(())
    }
}

fn is_frame(header: &[u8; FRAME_HEADER], position: u64) -> bool {
    header.starts_with(&FRAME_MAGIC.to_le_bytes()) && header[8..16] == position.to_le_bytes()
}

fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(header);
    hasher.update(payload);
    hasher.digest()
}

fn zero<F: BlockFile>(file: &F, from: u64, length: u64) -> Result<(), JournalError> {
    let zeros = vec![0; 1 << 20];
    let mut done = 0;
    while done < length {
        let size = (length - done).min(zeros.len() as u64);
        file.write_at(from + done, &zeros[..size as usize])?;
        done += size;
    }
    Ok(())
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}
