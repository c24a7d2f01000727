//! The contents of inodes in memory: the bytes of stuffed files, and extended attributes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Ino, ObjectId};

use crate::record::{Body, Corrupt, InoRecord, Xattrs, decode, encode};
use crate::state::{State, wait_record};
use crate::step::Step;
use crate::table::Record;

/// The bytes of a stuffed file.
#[derive(Debug, Default)]
pub(crate) struct StuffedBytes {
    pub bytes: Vec<u8>,
    /// Sequence number of the event that last changed it; 0: unchanged since it was loaded.
    pub version: u64,
    /// Sequence number of the event before which the file was empty; 0: it was not empty when
    /// loaded or made.
    pub first: u64,
}

impl Record for StuffedBytes {
    type Key = Ino;

    fn place(ino: Ino) -> (ObjectId, Vec<u8>) {
        InoRecord::Strip.place(ino)
    }

    fn encode(&self) -> Option<Vec<u8>> {
        (!self.bytes.is_empty()).then(|| self.bytes.clone())
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        Ok(Self { bytes: value.to_vec(), ..Self::default() })
    }

    fn bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Record for Xattrs {
    type Key = Ino;

    fn place(ino: Ino) -> (ObjectId, Vec<u8>) {
        InoRecord::Xattrs.place(ino)
    }

    fn encode(&self) -> Option<Vec<u8>> {
        (!self.is_empty()).then(|| encode(self))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        decode(value)
    }

    fn bytes(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<Box<[u8]>>()).sum()
    }
}

impl State {
    /// The stored bytes of a stuffed file.
    pub(crate) fn strip(&self, ino: Ino) -> Step<&[u8]> {
        match (&self.inode(ino)?.body, self.strips.get(&ino)) {
            (_, Some(strip)) => Ok(&strip.bytes),
            (Body::Stuffed { stored: 1.., .. }, None) => Err(wait_record(InoRecord::Strip, ino)),
            _ => Ok(&[]),
        }
    }

    /// Changes the bytes of a stuffed file, which are in memory if it has any.
    pub(crate) fn change_strip(&mut self, ino: Ino, change: impl FnOnce(&mut Vec<u8>)) {
        let version = self.sequence;
        let new = || {
            let body = self.inodes.get(&ino).map(|cached| &cached.inode.body);
            let was_empty = matches!(body, Some(Body::Stuffed { size: 0, .. }));
            StuffedBytes { first: if was_empty { version } else { 0 }, ..StuffedBytes::default() }
        };
        self.strips.change_or_insert(ino, &mut self.changes, new, |strip| {
            strip.version = version;
            change(&mut strip.bytes);
        });
    }

    /// Gives a new stuffed file all its bytes, from another file.
    pub(crate) fn put_clone(&mut self, ino: Ino, bytes: Vec<u8>) {
        self.changes.cloned += bytes.len() as u64;
        let version = self.sequence;
        self.strips.change_or_insert(ino, &mut self.changes, StuffedBytes::default, |strip| {
            *strip = StuffedBytes { bytes, version, first: version };
        });
    }

    pub(crate) fn xattr_list(&self, ino: Ino) -> Step<&Xattrs> {
        match (self.inode(ino)?.has_xattrs, self.xattrs.get(&ino)) {
            (_, Some(xattrs)) => Ok(xattrs),
            (true, None) => Err(wait_record(InoRecord::Xattrs, ino)),
            (false, None) => {
                static NONE: Xattrs = Xattrs::new();
                Ok(&NONE)
            }
        }
    }

    /// Changes the extended attributes of an inode, which are in memory if it has any.
    pub(crate) fn change_xattrs<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Xattrs) -> R) -> R {
        self.xattrs.change_or_insert(ino, &mut self.changes, Xattrs::new, change)
    }
}
