//! Frames: what lies on the wire once both sides have agreed to talk.
//!
//! A frame is its length (four bytes, little-endian, itself not counted), a [`Header`] and the bytes that the header is
//! followed by.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio_util::codec::LengthDelimitedCodec;

use crate::limits::{PIECE_BYTES, Terms};
use crate::rope::Rope;

/// What a frame begins with, in postcard's encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Header {
    /// A message without its payload follows, and then its payload.
    Message,
    /// A message without its payload follows. The payload, of `length` bytes, waits for a `Grant`.
    Announce { number: u32, length: u32 },
    /// The payload that was announced by that number may come.
    Grant { number: u32 },
    /// The next bytes of an announced payload follow.
    Piece { number: u32 },
    /// Are you there?
    Ping,
    /// The answer to a ping.
    Pong,
}

/// A variant's number and two numbers of at most five bytes each.
const HEADER_BYTES: usize = 11;

/// The longest frame that a side takes which has said so.
fn frame_bytes(taken: Terms) -> usize {
    HEADER_BYTES + taken.message_bytes as usize + PIECE_BYTES.max(taken.eager_bytes as usize)
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// That cannot be told yet.
    Unknown,
    /// A piece of the payload of that number: `header` bytes up to where it begins, and its length.
    Piece { number: u32, header: usize, length: usize },
    /// The splitter is to have it.
    Other,
}

/// What the frame is that begins there.
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

/// Splits bytes into frames. The length is checked before room is made for a frame.
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
