//! Encodes directory entries for READDIR and READDIRPLUS.

use crate::abi::DirEntryHead;
use crate::reply::Entry;
use zerocopy::IntoBytes;

/// A buffer for entries, limited to the size of the kernel's request.
#[derive(Debug)]
pub struct DirBuffer<'a> {
    bytes: &'a mut Vec<u8>,
    limit: usize,
}

impl<'a> DirBuffer<'a> {
    /// Clears `bytes` and reuses its allocation.
    pub fn new(bytes: &'a mut Vec<u8>, limit: u32) -> DirBuffer<'a> {
        bytes.clear();
        DirBuffer { bytes, limit: limit as usize }
    }

    /// Appends an entry. `next`: the offset at which a later READDIR continues; `mode`: contains
    /// the type. Returns false, without a change, if there is no room.
    pub fn push(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.append(None, ino, next, mode, name)
    }

    /// Appends an entry with attributes. The kernel counts a lookup of the entry's node, unless it
    /// is zero, as it must be for `.` and `..`. Returns false, without a change, if there is no
    /// room.
    pub fn push_plus(&mut self, entry: &Entry, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        self.append(Some(entry), ino, next, mode, name)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The reply's data.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
    }

    fn append(&mut self, entry: Option<&Entry>, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        debug_assert!(!name.is_empty() && !name.contains(&b'/'), "the kernel would reject the whole listing");
        let Ok(name_len) = u32::try_from(name.len()) else { return false };
        let plus = if entry.is_some() { size_of::<crate::abi::EntryOut>() } else { 0 };
        let size = (plus + size_of::<DirEntryHead>() + name.len()).next_multiple_of(8);
        let end = self.bytes.len() + size;
        if end > self.limit {
            return false;
        }
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.to_wire().as_bytes());
        }
        let kind = (mode >> 12) & 0xf;
        self.bytes.extend_from_slice(DirEntryHead { ino, next, name_len, kind }.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Attr;

    #[test]
    fn an_entry_is_padded_to_eight_bytes() {
        let mut bytes = Vec::new();
        let mut buffer = DirBuffer::new(&mut bytes, 4096);
        assert!(buffer.push(0x11, 0x22, 0o100644, b"abc"));
        assert!(buffer.push(0x33, 0x44, 0o040755, b"12345678"));
        #[rustfmt::skip]
        assert_eq!(bytes, [
            0x11, 0, 0, 0, 0, 0, 0, 0,  0x22, 0, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0, 8, 0, 0, 0,  b'a', b'b', b'c', 0, 0, 0, 0, 0,
            0x33, 0, 0, 0, 0, 0, 0, 0,  0x44, 0, 0, 0, 0, 0, 0, 0,  8, 0, 0, 0, 4, 0, 0, 0,
            b'1', b'2', b'3', b'4', b'5', b'6', b'7', b'8',
        ]);
    }

    #[test]
    fn full_buffer_refuses_without_loss() {
        let mut bytes = Vec::new();
        let mut buffer = DirBuffer::new(&mut bytes, 64);
        assert!(buffer.push(1, 1, 0, b"a"));
        assert!(buffer.push(2, 2, 0, b"b"), "fits exactly");
        assert!(!buffer.push(3, 3, 0, b"c"));
        assert_eq!(buffer.as_bytes().len(), 64);
        let mut buffer = DirBuffer::new(&mut bytes, 31);
        assert!(!buffer.push(1, 1, 0, b"a"));
        assert!(buffer.is_empty(), "a new buffer is empty");
    }

    #[test]
    fn plus_puts_the_entry_before_the_name() {
        let entry = Entry { node: 7, attr: Attr { ino: 9, ..Attr::default() }, ..Entry::default() };
        let mut bytes = Vec::new();
        let mut buffer = DirBuffer::new(&mut bytes, 160);
        assert!(buffer.push_plus(&entry, 9, 1, 0o120777, b"link"));
        assert!(!buffer.push_plus(&entry, 9, 2, 0o120777, b"x"));
        assert_eq!(bytes.len(), 160);
        assert_eq!(bytes[..8], 7u64.to_le_bytes());
        assert_eq!(bytes[40..48], 9u64.to_le_bytes());
        assert_eq!(bytes[128..136], 9u64.to_le_bytes());
        assert_eq!(bytes[144..156], *b"\x04\0\0\0\x0a\0\0\0link");
    }
}
