//! Files without a metafile (kuhn 3 and 4). The name of one in its directory says its number and on which data server its only datafile is, and
//! no more is kept of it: no inode record.
//!
//! In memory it is an inode as any other, with a mark ([`Rare::bare`](crate::record::Rare)). Its owner, group, permissions and policy are its
//! directory's: they are there whenever the directory is in memory, and [`State::cached`] makes sure of that. Leases on
//! them are revoked before the directory's change (`lease/heirs.rs`). Where it leaves its directory it gets an inode of its own, with what was told of it.

use alloc::sync::Arc;

use espalier_policy::Policy;
use espalier_proto::{Distribution, Errno, Ino, Layout, ServerId, Time};
use serde::{Deserialize, Serialize};

use crate::event::Change;
use crate::machine::Meta;
use crate::record::{Body, Inode, Rare};
use crate::state::{Home, State, Target};
use crate::step::Step;

/// What is kept of such a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bare {
    pub ino: Ino,
    pub server: ServerId,
    /// The size that the directories above count for it.
    pub counted: u64,
    /// When it was made, or its time was set last: its ctime until somebody writes to it.
    pub time: Time,
    /// What its mtime was set to.
    pub mtime: Option<Time>,
}

impl Bare {
    /// Of an inode that is nothing more.
    pub(crate) fn of(inode: &Inode) -> Option<Self> {
        match &inode.body {
            Body::Striped { counted, layout } if inode.rare.bare && !inode.has_xattrs => Some(Self {
                ino: inode.ino,
                server: *layout.servers().first()?,
                counted: *counted,
                time: inode.ctime,
                mtime: (inode.mtime != inode.ctime).then_some(inode.mtime),
            }),
            _ => None,
        }
    }

    /// The inode that it is in memory; root's alone until it has its directory's owner.
    pub(crate) fn inode(self) -> Result<Inode, Errno> {
        let layout = Layout::new(Distribution::Basic, [self.server].into()).map_err(|_| Errno::EIO)?;
        let mtime = self.mtime.unwrap_or(self.time);
        Ok(Inode {
            ino: self.ino,
            kind: espalier_proto::FileType::Regular,
            perm: 0o600,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            atime: mtime,
            mtime,
            ctime: self.time,
            btime: mtime,
            body: Body::Striped { counted: self.counted, layout: Arc::new(layout) },
            acl: None,
            default_acl: None,
            has_xattrs: false,
            rare: Rare { bare: true, ..Rare::default() },
        })
    }
}

/// What files have from their directory.
struct Heritage {
    uid: u32,
    gid: u32,
    perm: u32,
    policy: Option<Arc<Policy>>,
}

impl Heritage {
    fn of(dir: &Inode) -> Self {
        Self { uid: dir.uid, gid: dir.gid, perm: file_perm(dir), policy: dir.rare.policy.clone() }
    }

    fn give(&self, inode: &mut Inode) {
        (inode.uid, inode.gid, inode.perm) = (self.uid, self.gid, self.perm);
        inode.rare.policy.clone_from(&self.policy);
    }
}

/// To read and to write, for whoever may do that with the directory. Where it has an access control list, nobody gets more than any entry
/// that may be about him allows, for the files have none.
fn file_perm(dir: &Inode) -> u32 {
    const READ_WRITE: u32 = 6;
    let (mut group, mut other) = (dir.perm >> 3 & READ_WRITE, dir.perm & READ_WRITE);
    if let Some(acl) = &dir.acl {
        let mask = acl.mask.map_or(READ_WRITE, u32::from);
        let all = |entries: &[(u32, u8)]| {
            entries.iter().fold(READ_WRITE, |all, (_, right)| all & u32::from(*right) & mask)
        };
        group = u32::from(acl.group) & mask & all(&acl.users) & READ_WRITE;
        other &= all(&acl.users) & all(&acl.groups);
    }
    dir.perm & (READ_WRITE << 6) | group << 3 | other
}

impl Inode {
    /// Only a name in its directory is kept of it.
    pub(crate) fn is_bare(&self) -> bool {
        self.rare.bare
    }

    /// It has no metafile from now on, and what it had of its own becomes its directory's.
    pub(crate) fn strip_to(&mut self, dir: &Inode) {
        self.rare.bare = true;
        self.acl = None;
        Heritage::of(dir).give(self);
    }

    /// It is more than a name from now on, with what was told of it.
    pub(crate) fn make_whole(&mut self) {
        if core::mem::take(&mut self.rare.bare) {
            (self.atime, self.btime) = (self.mtime, self.mtime);
        }
    }

    /// What of a change there is to be made: `EPERM` for one of what the directory says.
    pub(crate) fn change_of_bare(&self, change: Change) -> Result<Change, Errno> {
        let differs = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
        if differs(change.perm, self.perm) || differs(change.uid, self.uid) || differs(change.gid, self.gid) {
            return Err(Errno::EPERM);
        }
        Ok(Change { mtime: change.mtime, ctime: change.mtime.and(change.ctime), ..Change::default() })
    }
}

impl State {
    /// Files in a directory get what they have from it, which has changed or come into memory.
    pub(crate) fn bequeath(&mut self, dir: Ino) {
        let Some(fragment) = self.fragments.get(&dir).filter(|fragment| fragment.has_bare) else { return };
        let Some(heritage) = self.inodes.get(&dir).map(|cached| Heritage::of(&cached.inode)) else { return };
        for cell in fragment.cells.values() {
            if let Target::Primary(ino) = cell.target
                && let Some(cached) = self.inodes.get_mut(&ino)
                && cached.inode.is_bare()
            {
                heritage.give(&mut cached.inode);
            }
        }
    }

    /// An inode comes into memory: if it is a bare file it gets what it has from its directory, now or when that comes.
    pub(crate) fn inherit(&mut self, inode: &mut Inode, home: Home) {
        if let (true, Home::Dentry { dir, .. }) = (inode.is_bare(), home) {
            self.fragments.entry(dir).or_default().has_bare = true;
            if let Some(parent) = self.inodes.get(&dir) {
                Heritage::of(&parent.inode).give(inode);
            }
        }
    }

    /// The directory that says what is told of a file.
    pub(crate) fn dir_of_bare(&self, ino: Ino) -> Option<Ino> {
        let cached = self.inodes.get(&ino).filter(|cached| cached.inode.is_bare())?;
        match cached.home {
            Home::Dentry { dir, .. } => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn is_bare(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|cached| cached.inode.is_bare())
    }
}

impl Meta {
    /// Whether a new file of a directory has no metafile.
    pub(crate) fn wants_bare(&self, dir: &Inode) -> bool {
        let wanted = dir.policy().no_metafile().or(self.config.policy.no_metafile());
        self.config.striping.is_some() && wanted == Some(true)
    }

    /// `EPERM` for what a bare file cannot have.
    pub(crate) fn check_not_bare(&self, ino: Ino) -> Step<()> {
        if self.state.inode(ino)?.is_bare() { Err(Errno::EPERM.into()) } else { Ok(()) }
    }
}
