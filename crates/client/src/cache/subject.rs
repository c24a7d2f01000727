//! The subject of a call: the names and inodes whose cached state the answer invalidates or
//! updates. Each call has one; the cache derives from it what to distrust while the call is
//! pending.

use espalier_proto::{Ino, Name, Request};

use crate::Call;

/// The names of the extended attributes that are access control lists begin with this.
pub(crate) const ACLS: &[u8] = b"system.posix_acl_";

/// What a call changes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeChange {
    /// Who may use it.
    Rights,
    /// Extended attributes that are no access control lists.
    Xattrs,
}

/// The names and inodes of a call that its answer may invalidate or update.
#[derive(Debug, Default)]
pub(crate) struct Subject<'a> {
    names: [Option<(Ino, &'a Name)>; 2],
    inos: [Option<Ino>; 2],
    pub is_change: bool,
    /// The call may also change the inodes that its names are bound to.
    pub changes_named: bool,
    /// What the call may change of the inodes besides their contents.
    pub inode_change: Option<InodeChange>,
    /// The name that a successful call removes.
    pub removes: Option<(Ino, &'a Name)>,
    /// The directory that the call lists, and the first cursor.
    pub lists: Option<(Ino, u64)>,
}

impl<'a> Subject<'a> {
    pub fn of(call: &'a Call<'_>) -> Self {
        match call {
            Call::Request(request) => Self::of_request(request),
            Call::Range(_) | Call::Release { .. } => call.writes().map(Self::written).unwrap_or_default(),
        }
    }

    fn of_request(request: &'a Request) -> Self {
        let change = |names, inos| Self { names, inos, is_change: true, ..Self::default() };
        match request {
            Request::Lookup { dir, name } => Self { names: [Some((*dir, name)), None], ..Self::default() },
            Request::ReadDir { dir, after, .. } => Self { lists: Some((*dir, *after)), ..Self::default() },
            Request::SetAttr { ino, .. } => {
                Self { inode_change: Some(InodeChange::Rights), ..change([None; 2], [Some(*ino), None]) }
            }
            Request::SetXattr { ino, name, .. } | Request::RemoveXattr { ino, name } => {
                let is_acl = name.starts_with(ACLS);
                let inode_change = Some(if is_acl { InodeChange::Rights } else { InodeChange::Xattrs });
                Self { inode_change, ..change([None; 2], [Some(*ino), None]) }
            }
            Request::Create { dir, name, exclusive, open, .. } => {
                let changes_named = !exclusive && open.is_some_and(|how| how.truncate);
                Self { changes_named, ..change([Some((*dir, name)), None], [Some(*dir), None]) }
            }
            Request::Unlink { dir, name, .. } | Request::RmDir { dir, name, .. } => {
                let change = change([Some((*dir, name)), None], [Some(*dir), None]);
                Self { removes: Some((*dir, name)), changes_named: true, ..change }
            }
            Request::Link { ino, dir, name } => change([Some((*dir, name)), None], [Some(*dir), Some(*ino)]),
            // A rename between two names of the same inode succeeds and leaves both.
            Request::Rename { from_dir, from, to_dir, to, .. } => {
                let (names, inos) =
                    ([Some((*from_dir, from)), Some((*to_dir, to))], [Some(*from_dir), Some(*to_dir)]);
                Self { changes_named: true, ..change(names, inos) }
            }
            Request::Open { ino, how } if how.truncate => Self::written(*ino),
            _ => Self::default(),
        }
    }

    fn written(ino: Ino) -> Self {
        Self { inos: [Some(ino), None], is_change: true, ..Self::default() }
    }

    pub fn names(&self) -> impl Iterator<Item = (Ino, &'a Name)> {
        self.names.into_iter().flatten()
    }

    pub fn inos(&self) -> impl Iterator<Item = Ino> {
        self.inos.into_iter().flatten()
    }

    /// The name of the inode in the answer.
    pub fn name(&self) -> Option<(Ino, &'a Name)> {
        self.names().last()
    }
}
