//! The extended attributes of inodes in memory.

use alloc::boxed::Box;
use alloc::vec::Vec;

use espalier_proto::{Ino, ObjectId};

use crate::record::{Corrupt, InoRecord, Xattrs, decode, encode};
use crate::state::{State, wait_record};
use crate::step::Step;
use crate::table::{Record, Track};

/// The extended attributes of an inode.
#[derive(Debug, Default)]
pub(crate) struct XattrList {
    pub list: Xattrs,
    pub track: Track,
}

impl Record for XattrList {
    type Key = Ino;

    fn place(ino: Ino) -> (ObjectId, Vec<u8>) {
        InoRecord::Xattrs.place(ino)
    }

    fn encode(&self) -> Option<Vec<u8>> {
        (!self.list.is_empty()).then(|| encode(&self.list))
    }

    fn decode(value: &[u8]) -> Result<Self, Corrupt> {
        Ok(Self { list: decode(value)?, track: Track::default() })
    }

    fn track(&mut self) -> &mut Track {
        &mut self.track
    }

    fn bytes(&self) -> usize {
        self.list.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<Box<[u8]>>()).sum()
    }
}

impl State {
    pub(crate) fn xattr_list(&self, ino: Ino) -> Step<&Xattrs> {
        match (self.inode(ino)?.has_xattrs, self.xattrs.get(&ino)) {
            (_, Some(xattrs)) => Ok(&xattrs.list),
            (true, None) => Err(wait_record(InoRecord::Xattrs, ino)),
            (false, None) => {
                static NONE: Xattrs = Xattrs::new();
                Ok(&NONE)
            }
        }
    }

    /// Changes the extended attributes of an inode, which are in memory if it has any.
    pub(crate) fn change_xattrs<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Xattrs) -> R) -> R {
        let change = |xattrs: &mut XattrList| change(&mut xattrs.list);
        self.xattrs.change_or_insert(ino, &mut self.changes, XattrList::default, change)
    }
}
