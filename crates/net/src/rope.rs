//! Bytes to send, in pieces: long ones are not copied on their way to the socket.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Shorter pieces are copied, as eager payloads are by default: the system call saves little by
/// them.
const SHARED_BYTES: usize = 16 << 10;

/// Memory retained while there is nothing to send, in bytes.
const KEPT_BYTES: usize = 16 << 10;

/// Pieces written by one system call.
pub(crate) const SLICES: usize = 64;

/// Bytes to send, in pieces.
#[derive(Debug, Default)]
pub(crate) struct Rope {
    pieces: VecDeque<Bytes>,
    /// Bytes in `pieces`.
    length: usize,
    /// Bytes after the pieces; grows.
    tail: BytesMut,
    /// `tail` has grown long: its memory is freed once it is empty.
    grown: bool,
}

impl Rope {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.tail.put_slice(bytes);
        self.grown |= self.tail.len() > KEPT_BYTES;
    }

    /// As [`Self::put`], for pieces that may be long.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_BYTES {
            return self.put(&bytes);
        }
        self.close();
        self.length += bytes.len();
        self.pieces.push_back(bytes);
    }

    /// Moves at most this many bytes from the front to an empty rope.
    pub(crate) fn move_to(&mut self, taken: &mut Self, most: usize) {
        self.close();
        while taken.length < most
            && let Some(mut piece) = self.pieces.pop_front()
        {
            let rest = piece.split_off(piece.len().min(most - taken.length));
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
            self.length -= piece.len();
            taken.length += piece.len();
            taken.pieces.push_back(piece);
        }
        if self.pieces.is_empty() && mem::take(&mut self.grown) {
            self.tail = BytesMut::new();
        }
    }

    fn close(&mut self) {
        if !self.tail.is_empty() {
            self.length += self.tail.len();
            self.pieces.push_back(self.tail.split().freeze());
        }
    }
}

impl From<BytesMut> for Rope {
    fn from(bytes: BytesMut) -> Self {
        Self { tail: bytes, ..Self::default() }
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.length + self.tail.len()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain([&self.tail[..]]);
        let chunks = pieces.filter(|piece| !piece.is_empty());
        slices.iter_mut().zip(chunks).map(|(slice, chunk)| *slice = IoSlice::new(chunk)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.front_mut() {
            let gone = count.min(piece.len());
            piece.advance(gone);
            self.length -= gone;
            count -= gone;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.tail.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut rope: Rope) -> Vec<u8> {
        rope.copy_to_bytes(rope.remaining()).into()
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 7) as u8).collect()
    }

    /// A rope of these pieces, every other one shared.
    fn rope(lengths: &[usize]) -> (Rope, Vec<u8>) {
        let (mut rope, mut plain) = (Rope::default(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let piece = bytes(*length);
            plain.extend_from_slice(&piece);
            if number % 2 == 0 { rope.put(&piece) } else { rope.push(piece.into()) }
        }
        (rope, plain)
    }

    const LENGTHS: [&[usize]; 5] =
        [&[], &[1], &[10, 20_000, 3, 20], &[0, 16_384, 0, 16_384], &[20_000, 16_383, 1, 70_000, 9]];

    #[test]
    fn pieces_come_out_in_the_order_of_insertion() {
        for lengths in LENGTHS {
            let (rope, plain) = rope(lengths);
            assert_eq!((rope.remaining(), all(rope)), (plain.len(), plain));
        }
    }

    #[test]
    fn rope_is_taken_in_parts() {
        for lengths in LENGTHS {
            for most in [1, 1000, 4096, 30_000] {
                let (mut rope, plain) = rope(lengths);
                let mut taken = Vec::new();
                while rope.has_remaining() {
                    let mut part = Rope::default();
                    rope.move_to(&mut part, most);
                    assert!((1..=most).contains(&part.remaining()));
                    taken.extend(all(part));
                    assert_eq!(taken.len() + rope.remaining(), plain.len());
                }
                assert_eq!(taken, plain);
            }
        }
    }

    #[test]
    fn rope_slices_match_advanced_bytes() {
        for lengths in LENGTHS {
            let (mut rope, plain) = rope(lengths);
            let mut seen = Vec::new();
            while rope.has_remaining() {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = rope.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                assert_eq!(all, plain[seen.len()..]);
                let some = all.len().min(3001);
                seen.extend_from_slice(&all[..some]);
                rope.advance(some);
            }
            assert_eq!(seen, plain);
        }
    }

    #[test]
    fn long_pieces_are_not_copied_and_memory_is_given_back() {
        let long = Bytes::from(bytes(SHARED_BYTES));
        let mut rope = Rope::default();
        rope.put(b"short");
        rope.push(long.clone());
        let mut taken = Rope::default();
        rope.move_to(&mut taken, usize::MAX);
        taken.advance(5);
        assert_eq!(taken.chunk().as_ptr(), long.as_ptr());

        rope.put(&bytes(2 * KEPT_BYTES));
        rope.move_to(&mut Rope::default(), usize::MAX);
        assert_eq!(rope.tail.capacity(), 0);
    }
}
