use alloc::vec::Vec;

use crate::Ino;

/// Type of an object in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// A single record about the whole file system.
    Super = 0,
    /// A fragment of a directory: name hash and name -> dentry.
    Fragment = 1,
    /// Records of a range of inode numbers: inodes with several links, stuffed data, extended
    /// attributes, backtraces.
    Inodes = 2,
    /// Inodes in use without a name.
    Orphans = 3,
    /// State of client sessions and of other ranks.
    Sessions = 4,
}

/// Id of an object: an ordered map of keys to values (PVFS's dataspace, RADOS's object). The byte
/// stream of a file is named by its [`Ino`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub kind: ObjectKind,
    pub id: u64,
    /// Fragment of a directory; 0 for other types.
    pub part: u32,
}

impl ObjectId {
    /// Number of inode numbers that share an `Inodes` object. Bounds the keys of an object, as an
    /// engine like RADOS requires.
    pub const INODES_PER_OBJECT: u64 = 1024;
    pub const SUPER: Self = Self { kind: ObjectKind::Super, id: 0, part: 0 };
    pub const ORPHANS: Self = Self { kind: ObjectKind::Orphans, id: 0, part: 0 };
    pub const SESSIONS: Self = Self { kind: ObjectKind::Sessions, id: 0, part: 0 };

    pub fn fragment(dir: Ino, part: u32) -> Self {
        Self { kind: ObjectKind::Fragment, id: dir.0, part }
    }

    pub fn inodes(ino: Ino) -> Self {
        Self { kind: ObjectKind::Inodes, id: ino.0 / Self::INODES_PER_OBJECT, part: 0 }
    }

    /// Order-preserving encoding, for engines with a single ordered key space.
    pub fn to_bytes(self) -> [u8; 13] {
        let mut bytes = [0; 13];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.id.to_be_bytes());
        bytes[9..].copy_from_slice(&self.part.to_be_bytes());
        bytes
    }

    /// Inverse of [`Self::to_bytes`]; `None` for an unknown type.
    pub fn from_bytes(bytes: [u8; 13]) -> Option<Self> {
        let [kind, a, b, c, d, e, f, g, h, part @ ..] = bytes;
        let kind = match kind {
            0 => ObjectKind::Super,
            1 => ObjectKind::Fragment,
            2 => ObjectKind::Inodes,
            3 => ObjectKind::Orphans,
            4 => ObjectKind::Sessions,
            _ => return None,
        };
        Some(Self { kind, id: u64::from_be_bytes([a, b, c, d, e, f, g, h]), part: u32::from_be_bytes(part) })
    }
}

/// A change of a checkpoint: sets or removes a key of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWrite {
    pub object: ObjectId,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}
