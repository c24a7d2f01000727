//! Frames: the wire format after the handshake.
//!
//! A frame is its length (four bytes, little-endian, excluding itself), a [`Header`], and the bytes
//! that belong to it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_util::codec::LengthDelimitedCodec;

use crate::limits::{PIECE_BYTES, Terms};
use crate::rope::Rope;

/// The beginning of a frame, in postcard's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Header {
    /// A message without its payload follows, then its payload.
    Message,
    /// A message without its payload follows. The payload, of `length` bytes, waits for a `Grant`.
    Announce { number: u32, length: u32 },
    /// Grants the payload that was announced by this number.
    Grant { number: u32 },
    /// The next bytes of an announced payload follow.
    Piece { number: u32 },
    /// Asks for a `Pong`.
    Ping,
    /// Answers a `Ping`.
    Pong,
}

/// A variant's number and two numbers of at most five bytes each.
const HEADER_BYTES: usize = 11;

/// Longest frame that a side with these limits accepts, in bytes.
fn frame_bytes(taken: Terms) -> usize {
    HEADER_BYTES + taken.message_bytes as usize + PIECE_BYTES.max(taken.eager_bytes as usize)
}

/// Classification of a frame's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Not enough bytes yet.
    Unknown,
    /// A piece of this payload: `header` bytes before it, and its length.
    Piece { number: u32, header: usize, length: usize },
    /// Any other frame: the splitter takes it.
    Other,
}

/// Classifies the frame that begins here.
pub(crate) fn begun(bytes: &[u8], taken: Terms) -> Begun {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Begun::Unknown };
    let length = u32::from_le_bytes(*length) as usize;
    if length > frame_bytes(taken) {
        return Begun::Other;
    }
    let Some(header) = rest.get(..length.min(HEADER_BYTES)) else { return Begun::Unknown };
    match postcard::take_from_bytes(header) {
        Ok((Header::Piece { number }, after)) => {
            let header = header.len() - after.len();
            Begun::Piece { number, header: 4 + header, length: length - header }
        }
        _ => Begun::Other,
    }
}

/// Splits bytes into frames. The length is checked before memory is reserved.
pub(crate) fn splitter(taken: Terms) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .little_endian()
        .length_field_type::<u32>()
        .max_frame_length(frame_bytes(taken))
        .new_codec()
}

/// Appends a frame.
pub(crate) fn put(out: &mut Rope, header: Header, head: &[u8], payload: Bytes) {
    let mut space = [0; HEADER_BYTES];
    // The header fits: see HEADER_BYTES.
    let header: &[u8] = postcard::to_slice(&header, &mut space).map_or(&[], |encoded| encoded);
    let length = header.len() + head.len() + payload.len();
    for part in [&(length as u32).to_le_bytes(), header, head] {
        out.put(part);
    }
    out.push(payload);
}
