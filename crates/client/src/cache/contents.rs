//! Contents of small files: from the replies to opens, and from this client's writes to new files.
//! An entry is valid while the client has the lease on the file and the file does not change.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use espalier_proto::Ino;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Bytes of memory per file in addition to its contents.
const OVERHEAD: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Contents {
    files: HashMap<Ino, Content, FxBuildHasher>,
    /// Files by age, oldest first, with their numbers; entries of evicted or renewed files are
    /// stale.
    order: VecDeque<(u64, Ino)>,
    last: u64,
    /// Memory that all entries use, and its limit, in bytes.
    size: usize,
    room: usize,
}

#[derive(Debug)]
struct Content {
    number: u64,
    bytes: Vec<u8>,
    /// All of the contents were written by this client, under write-back.
    is_own: bool,
}

impl Contents {
    pub fn new(room: usize) -> Self {
        Self { files: HashMap::default(), order: VecDeque::new(), last: 0, size: 0, room }
    }

    pub fn get(&self, ino: Ino) -> Option<&[u8]> {
        self.files.get(&ino).map(|content| &*content.bytes)
    }

    pub fn learn(&mut self, ino: Ino, bytes: Vec<u8>, is_own: bool) {
        self.lose(ino);
        self.last += 1;
        self.size += OVERHEAD + bytes.len();
        self.files.insert(ino, Content { number: self.last, bytes, is_own });
        self.order.push_back((self.last, ino));
        self.make_room();
    }

    /// Applies this client's write to a new file.
    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) {
        let Some(content) = self.files.get_mut(&ino).filter(|content| content.is_own) else {
            return self.lose(ino);
        };
        let (start, before) = (offset as usize, content.bytes.len());
        let end = start + data.len();
        content.bytes.resize(before.max(end), 0);
        content.bytes[start..end].copy_from_slice(data);
        self.size += content.bytes.len() - before;
        self.make_room();
    }

    /// Drops the contents of a file.
    pub fn lose(&mut self, ino: Ino) {
        if !self.files.is_empty()
            && let Some(content) = self.files.remove(&ino)
        {
            self.size -= OVERHEAD + content.bytes.len();
        }
    }

    /// A server reports a change of a file; contents written by this client stay valid.
    pub fn doubt(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|content| !content.is_own) {
            self.lose(ino);
        }
    }

    fn make_room(&mut self) {
        while self.size > self.room
            && let Some((number, ino)) = self.order.pop_front()
        {
            if self.files.get(&ino).is_some_and(|content| content.number == number) {
                self.lose(ino);
            }
        }
        if self.order.len() > 2 * self.files.len() + OVERHEAD {
            let files = &self.files;
            self.order
                .retain(|(number, ino)| files.get(ino).is_some_and(|content| content.number == *number));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn oldest_content_is_evicted_first() {
        let mut contents = Contents::new(3 * (OVERHEAD + 100));
        for ino in 0..3 {
            contents.learn(Ino(ino), vec![0; 100], false);
        }
        contents.learn(Ino(0), vec![1; 100], true);
        contents.write(Ino(0), 100, &[2]);
        let known: Vec<_> = (0..3).filter(|ino| contents.get(Ino(*ino)).is_some()).collect();
        assert_eq!(known, [0, 2]);
        contents.learn(Ino(5), vec![0; 1000], false);
        assert!(contents.files.is_empty() && contents.size == 0, "the file exceeds the capacity");
        for _ in 0..1000 {
            contents.learn(Ino(6), vec![0; 10], false);
        }
        assert!(contents.order.len() < 100);
    }

    #[test]
    fn only_own_writes_survive_invalidation() {
        let mut contents = Contents::new(1000);
        contents.learn(Ino(1), vec![], true);
        contents.learn(Ino(2), vec![], false);
        for ino in [1, 2] {
            contents.write(Ino(ino), 1, b"ab");
            contents.doubt(Ino(ino));
        }
        assert_eq!((contents.get(Ino(1)), contents.get(Ino(2))), (Some(&b"\0ab"[..]), None));
        contents.learn(Ino(2), vec![], false);
        contents.doubt(Ino(2));
        assert_eq!(contents.get(Ino(2)), None);
    }
}
