//! Encoding of the journal's header slots and frames.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Bytes before the ring. They hold two slots; the valid slot with the higher epoch is current.
pub(crate) const HEADER_BYTES: u64 = 4096;
/// Each slot fits into a sector of its own, so a torn write of one leaves the other intact.
pub(crate) const SLOT_OFFSETS: [u64; 2] = [0, 2048];
pub(crate) const SLOT_BYTES: usize = 56;
const SLOT_MAGIC: u64 = u64::from_le_bytes(*b"ESPJRNL1");

/// A header slot, written each time the journal is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeaderSlot {
    /// Bytes of the ring.
    pub capacity: u64,
    /// Identifies the store that owns the journal; seeds all checksums.
    pub tag: u64,
    /// Incremented each time the journal is opened for writing.
    pub epoch: u64,
    /// End of the journal when the epoch began. Everything before it is durable; after it, only
    /// frames of this epoch are valid.
    pub boundary: u64,
}

impl HeaderSlot {
    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        let fields = [SLOT_MAGIC, self.capacity, self.tag, self.epoch, self.boundary, 0];
        for (field, place) in fields.iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let checksum = xxh3_64_with_seed(&bytes[..48], self.tag);
        bytes[48..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        let slot = Self {
            capacity: word(bytes, 8),
            tag: word(bytes, 16),
            epoch: word(bytes, 24),
            boundary: word(bytes, 32),
        };
        let intact = word(bytes, 0) == SLOT_MAGIC
            && word(bytes, 48) == xxh3_64_with_seed(&bytes[..48], slot.tag)
            && slot.capacity > 0;
        intact.then_some(slot)
    }
}

pub(crate) const FRAME_HEADER_BYTES: usize = 40;
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"ESPF");

/// Header that precedes a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload.
    pub length: u32,
    /// Position of the frame.
    pub position: u64,
    pub epoch: u64,
    /// Position up to which the journal was durable when the frame was written.
    pub durable: u64,
    checksum: u64,
}

impl FrameHeader {
    /// Decodes a header; `None` if the bytes are not the start of a frame.
    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        if bytes[..4] != FRAME_MAGIC.to_le_bytes() {
            return None;
        }
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Some(Self {
            length,
            position: word(bytes, 8),
            epoch: word(bytes, 16),
            durable: word(bytes, 24),
            checksum: word(bytes, 32),
        })
    }

    /// True if the frame's checksum is right. `header`: the bytes that `self` was decoded from.
    pub(crate) fn fits(&self, header: &[u8; FRAME_HEADER_BYTES], payload: &[u8], tag: u64) -> bool {
        self.checksum == checksum(&header[..32], payload, tag)
    }
}

/// Bytes that a frame with such a payload occupies in the ring. Frames are aligned to 8 bytes.
pub(crate) fn frame_bytes(payload: usize) -> u64 {
    (FRAME_HEADER_BYTES + payload).next_multiple_of(8) as u64
}

/// Replaces the contents of `buffer` by an encoded frame.
pub(crate) fn encode(
    buffer: &mut Vec<u8>,
    payload: &[u8],
    length: u32,
    (position, epoch, durable): (u64, u64, u64),
    tag: u64,
) {
    buffer.clear();
    buffer.extend(FRAME_MAGIC.to_le_bytes());
    buffer.extend(length.to_le_bytes());
    for field in [position, epoch, durable] {
        buffer.extend(field.to_le_bytes());
    }
    let checksum = checksum(buffer, payload, tag);
    buffer.extend(checksum.to_le_bytes());
    buffer.extend(payload);
    buffer.resize(buffer.len().next_multiple_of(8), 0);
}

fn checksum(header: &[u8], payload: &[u8], tag: u64) -> u64 {
    let mut hash = Xxh3::with_seed(tag);
    hash.update(header);
    hash.update(payload);
    hash.digest()
}

/// Reads 8 bytes at `at`. The caller guarantees that they exist.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
