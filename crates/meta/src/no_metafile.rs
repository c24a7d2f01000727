//! No-metafile files (kuhn 3 and 4): a dentry that names a datafile directly. The dentry stores the
//! file's number and the data server of its only datafile; there is no inode record.
//!
//! In memory such a file is an inode with a mark ([`Rare::no_metafile`](crate::record::Rare)). Its
//! owner, group, permissions and policy are its directory's: they are available whenever the
//! directory is in memory, which [`State::cached`] ensures. A change of the directory first revokes
//! the leases on its files (`lease/dependents.rs`). A file that leaves its directory gets an inode
//! of its own, with the attributes reported before.

use alloc::sync::Arc;

use espalier_policy::Policy;
use espalier_proto::{Distribution, Errno, Ino, Layout, ServerId, Time};
use serde::{Deserialize, Serialize};

use crate::event::Change;
use crate::machine::Meta;
use crate::record::{Body, Inode, Rare};
use crate::state::{Location, State, Target};
use crate::step::Step;

/// The stored state of a no-metafile file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoMetafile {
    pub ino: Ino,
    pub server: ServerId,
    /// The size that the directories above count.
    pub counted: u64,
    /// The time when it was made, or when its times were last set: its ctime until it is written
    /// to.
    pub time: Time,
    /// The mtime that was set, if any.
    pub mtime: Option<Time>,
}

impl NoMetafile {
    /// The stored state of an inode; `None` unless it is a no-metafile file.
    pub(crate) fn of(inode: &Inode) -> Option<Self> {
        match &inode.body {
            Body::Striped { counted, layout } if inode.rare.no_metafile && !inode.has_xattrs => Some(Self {
                ino: inode.ino,
                server: *layout.servers().first()?,
                counted: *counted,
                time: inode.ctime,
                mtime: (inode.mtime != inode.ctime).then_some(inode.mtime),
            }),
            _ => None,
        }
    }

    /// The inode in memory. It is root's until it inherits its directory's owner.
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
            rare: Rare { no_metafile: true, ..Rare::default() },
        })
    }
}

/// Attributes that files derive from their directory.
struct Inherited {
    uid: u32,
    gid: u32,
    perm: u32,
    policy: Option<Arc<Policy>>,
}

impl Inherited {
    fn of(dir: &Inode) -> Self {
        Self { uid: dir.uid, gid: dir.gid, perm: file_perm(dir), policy: dir.rare.policy.clone() }
    }

    fn give(&self, inode: &mut Inode) {
        (inode.uid, inode.gid, inode.perm) = (self.uid, self.gid, self.perm);
        inode.rare.policy.clone_from(&self.policy);
    }
}

/// Read and write permission for everybody who has it for the directory. With an access control
/// list on the directory, a class gets only what every entry that may apply to its members allows,
/// since the files have no list.
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
    /// True for a no-metafile file.
    pub(crate) fn has_no_metafile(&self) -> bool {
        self.rare.no_metafile
    }

    /// Turns a new file into a no-metafile file: its attributes become its directory's.
    pub(crate) fn strip_to(&mut self, dir: &Inode) {
        self.rare.no_metafile = true;
        self.acl = None;
        Inherited::of(dir).give(self);
    }

    /// Turns a no-metafile file into an ordinary one, with the attributes reported before.
    pub(crate) fn make_whole(&mut self) {
        if core::mem::take(&mut self.rare.no_metafile) {
            (self.atime, self.btime) = (self.mtime, self.mtime);
        }
    }

    /// The part of a change that applies to a no-metafile file.
    ///
    /// # Errors
    /// `EPERM` for a change of attributes that derive from the directory.
    pub(crate) fn no_metafile_change(&self, change: Change) -> Result<Change, Errno> {
        let differs = |new: Option<u32>, old: u32| new.is_some_and(|new| new != old);
        if differs(change.perm, self.perm) || differs(change.uid, self.uid) || differs(change.gid, self.gid) {
            return Err(Errno::EPERM);
        }
        Ok(Change { mtime: change.mtime, ctime: change.mtime.and(change.ctime), ..Change::default() })
    }
}

impl State {
    /// Updates the files in a directory that has changed or been loaded.
    pub(crate) fn update_dependents(&mut self, dir: Ino) {
        let Some(fragment) = self.fragments.get(&dir).filter(|fragment| fragment.has_no_metafile_entries)
        else {
            return;
        };
        let Some(heritage) = self.inodes.get(&dir).map(|cached| Inherited::of(&cached.inode)) else { return };
        for cell in fragment.cells.values() {
            if let Target::Primary(ino) = cell.target
                && let Some(cached) = self.inodes.untracked(&ino)
                && cached.inode.has_no_metafile()
            {
                heritage.give(&mut cached.inode);
            }
        }
    }

    /// Gives a no-metafile file that enters memory its directory's attributes, now or when the
    /// directory is loaded.
    pub(crate) fn inherit(&mut self, inode: &mut Inode, location: Location) {
        if let (true, Location::Dentry { dir, .. }) = (inode.has_no_metafile(), location) {
            self.fragments.entry(dir).or_default().has_no_metafile_entries = true;
            if let Some(parent) = self.inodes.get(&dir) {
                Inherited::of(&parent.inode).give(inode);
            }
        }
    }

    /// The directory that a no-metafile file's attributes derive from.
    pub(crate) fn inherits_from(&self, ino: Ino) -> Option<Ino> {
        let cached = self.inodes.get(&ino).filter(|cached| cached.inode.has_no_metafile())?;
        match cached.location {
            Location::Dentry { dir, .. } => Some(dir),
            _ => None,
        }
    }

    pub(crate) fn has_no_metafile(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|cached| cached.inode.has_no_metafile())
    }
}

impl Meta {
    /// True if new files of a directory are no-metafile files.
    pub(crate) fn wants_no_metafile(&self, dir: &Inode) -> bool {
        self.config.striping.is_some() && self.setting(dir, Policy::no_metafile) == Some(true)
    }

    /// Fails with `EPERM` for what a no-metafile file cannot have.
    pub(crate) fn check_has_metafile(&self, ino: Ino) -> Step<()> {
        if self.state.inode(ino)?.has_no_metafile() { Err(Errno::EPERM.into()) } else { Ok(()) }
    }
}
