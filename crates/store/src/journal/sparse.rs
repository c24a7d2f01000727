use std::collections::BTreeMap;
use std::ops::Range;

const PAGE_BYTES: usize = 4096;
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Bytes of which only pages that are not zero take memory.
#[derive(Clone)]
pub(super) struct SparseBytes {
    len: usize,
    pages: BTreeMap<usize, Box<[u8; PAGE_BYTES]>>,
}

impl SparseBytes {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        Self { len, pages: BTreeMap::new() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn page(&self, number: usize) -> &[u8; PAGE_BYTES] {
        self.pages.get(&number).map_or(&ZEROS, |page| page)
    }

    /// Reads bytes, which must not extend beyond the end, as in the following functions.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        for (number, at, of) in pieces(offset, buf.len()) {
            buf[of].copy_from_slice(&self.page(number)[at]);
        }
    }

    pub fn write(&mut self, offset: usize, data: &[u8]) {
        for (number, at, of) in pieces(offset, data.len()) {
            if self.page(number)[at.clone()] != data[of.clone()] {
                let page = self.pages.entry(number).or_insert_with(|| Box::new(ZEROS));
                page[at].copy_from_slice(&data[of]);
            }
        }
    }

    /// True if the bytes at `offset` equal `data`.
    pub fn holds(&self, offset: usize, data: &[u8]) -> bool {
        pieces(offset, data.len()).all(|(number, at, of)| self.page(number)[at] == data[of])
    }

    /// The first offset, from `offset` on, in a page with other bytes than zeros; the length if
    /// there is none.
    pub fn data_from(&self, offset: usize) -> usize {
        let page = self.pages.range(offset / PAGE_BYTES..).next();
        page.map_or(self.len, |(number, _)| offset.max(number * PAGE_BYTES))
    }
}

/// The pages of a range of bytes: the number of each, and which of its bytes are which of the
/// range.
fn pieces(offset: usize, length: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let end = offset + length;
    let mut start = offset;
    std::iter::from_fn(move || {
        let (number, at) = (start / PAGE_BYTES, start % PAGE_BYTES);
        let piece = (PAGE_BYTES - at).min(end - start);
        let of = start - offset;
        start += piece;
        (piece > 0).then(|| (number, at..at + piece, of..of + piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_with_data_take_memory() {
        let mut bytes = SparseBytes::new(10 * PAGE_BYTES + 5);
        bytes.write(0, &vec![0; bytes.len()]);
        assert_eq!((bytes.pages.len(), bytes.data_from(0)), (0, bytes.len()));
        bytes.write(3 * PAGE_BYTES - 1, &[1, 2]);
        assert_eq!(bytes.pages.len(), 2);
        let mut found = [9; 4];
        bytes.read(3 * PAGE_BYTES - 2, &mut found);
        assert_eq!(found, [0, 1, 2, 0]);
        assert!(bytes.holds(3 * PAGE_BYTES - 2, &found));
        assert!(!bytes.holds(3 * PAGE_BYTES - 1, &found));
        assert!(!bytes.holds(0, &vec![0; bytes.len()]));
    }

    #[test]
    fn unwritten_ranges_are_skipped() {
        let mut bytes = SparseBytes::new(10 * PAGE_BYTES);
        bytes.write(5 * PAGE_BYTES + 7, &[1]);
        assert_eq!(bytes.data_from(0), 5 * PAGE_BYTES);
        assert_eq!(bytes.data_from(5 * PAGE_BYTES + 9), 5 * PAGE_BYTES + 9);
        assert_eq!(bytes.data_from(6 * PAGE_BYTES), bytes.len());
    }
}
