//! List I/O: writes to several ranges of a file as one request, as in PVFS (A. Ching, A. Choudhary,
//! W. Liao, R. Ross, W. Gropp, "Noncontiguous I/O through PVFS", 2002).

use alloc::vec::Vec;
use core::ops::Range;

use bytes::{Buf, BufMut, Bytes};

use crate::Errno;

/// Encodes the payload of [`RangeOp::WriteList`](crate::RangeOp::WriteList): number of pieces,
/// offset and length of each, then the data. `pieces` are ascending and disjoint; adjacent ones are
/// merged.
pub fn write_list(pieces: &[(u64, Bytes)]) -> Bytes {
    let mut extents: Vec<(u64, u32)> = Vec::new();
    for (offset, piece) in pieces {
        let length = piece.len() as u32;
        match extents.last_mut() {
            Some((first, before)) if first.saturating_add(u64::from(*before)) == *offset => *before += length,
            _ => extents.push((*offset, length)),
        }
    }
    let bytes: usize = pieces.iter().map(|(_, piece)| piece.len()).sum();
    let mut list = Vec::with_capacity(size_of::<u32>() + extents.len() * EXTENT + bytes);
    list.put_u32_le(extents.len() as u32);
    for (offset, length) in extents {
        list.put_u64_le(offset);
        list.put_u32_le(length);
    }
    pieces.iter().for_each(|(_, piece)| list.put_slice(piece));
    list.into()
}

/// Encoded size of an offset and a length.
const EXTENT: usize = size_of::<u64>() + size_of::<u32>();

/// Data to write, each piece with its offset.
pub type Pieces<'a> = Vec<(u64, &'a [u8])>;

/// Decodes the pieces of a list; there is at least one.
///
/// # Errors
/// `EINVAL` if the list has the wrong length, or if pieces are empty, overlapping, unordered, or
/// beyond the largest file size.
pub fn pieces_of(list: &[u8]) -> Result<Pieces<'_>, Errno> {
    let (mut rest, mut pieces, mut least) = (list, Vec::new(), 0);
    let number = rest.try_get_u32_le().map_err(|_| Errno::EINVAL)? as usize;
    let extents = number.checked_mul(EXTENT).and_then(|extents| rest.split_at_checked(extents));
    let (mut extents, mut bytes) = extents.ok_or(Errno::EINVAL)?;
    while extents.has_remaining() {
        let (offset, length) = (extents.get_u64_le(), extents.get_u32_le());
        let end = offset.checked_add(length.into()).filter(|end| i64::try_from(*end).is_ok());
        let piece = bytes.split_at_checked(length as usize).filter(|_| offset >= least && length > 0);
        let (end, (piece, left)) = end.zip(piece).ok_or(Errno::EINVAL)?;
        pieces.push((offset, piece));
        (least, bytes) = (end, left);
    }
    if pieces.is_empty() || !bytes.is_empty() { Err(Errno::EINVAL) } else { Ok(pieces) }
}

/// The range from the first to the last written byte.
///
/// # Errors
/// As [`pieces_of`].
pub fn range_of(list: &[u8]) -> Result<Range<u64>, Errno> {
    let pieces = pieces_of(list)?;
    let (first, last) = pieces.first().zip(pieces.last()).ok_or(Errno::EINVAL)?;
    Ok(first.0..last.0 + last.1.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(list: &[(u64, &'static [u8])]) -> Bytes {
        write_list(
            &list.iter().map(|(offset, piece)| (*offset, Bytes::from_static(piece))).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn adjacent_ranges_merge() {
        let list = pieces(&[(3, b"abc"), (6, b"d"), (8, b"ef")]);
        assert_eq!(pieces_of(&list), Ok(Vec::from([(3, &b"abcd"[..]), (8, &b"ef"[..])])));
        assert_eq!(range_of(&list), Ok(3..10));
    }

    #[test]
    fn invalid_list_is_refused() {
        let list = pieces(&[(3, b"abc"), (8, b"ef")]);
        for end in 0..list.len() {
            assert_eq!(pieces_of(&list[..end]), Err(Errno::EINVAL), "{end} of {} bytes", list.len());
        }
        let longer = [&list[..], b"x"].concat();
        let huge = [&u32::MAX.to_le_bytes()[..], &list[4..]].concat();
        let too_far = pieces(&[(i64::MAX as u64, b"x")]);
        for bad in [longer, huge, too_far.into(), 0_u32.to_le_bytes().into()] {
            assert_eq!(pieces_of(&bad), Err(Errno::EINVAL), "{bad:?}");
        }
        for overlapping in [[(3, &b"abc"[..]), (5, b"d")], [(8, b"ef"), (3, b"abc")], [(3, b""), (8, b"ef")]]
        {
            assert_eq!(pieces_of(&pieces(&overlapping)), Err(Errno::EINVAL), "{overlapping:?}");
        }
    }
}
