use espalier_proto::{Ino, Name, Request};

use crate::Call;

/// What a call is about, for what its answer tells.
#[derive(Debug, Default)]
pub(crate) struct Subject<'a> {
    names: [Option<(Ino, &'a Name)>; 2],
    inos: [Option<Ino>; 2],
    pub is_change: bool,
    /// What its names stand for may be changed, too.
    pub changes_named: bool,
    /// Who may search the inodes may change.
    pub changes_rights: bool,
    /// This name is gone if it succeeds.
    pub removes: Option<(Ino, &'a Name)>,
    /// It lists this directory, from that cursor on.
    pub lists: Option<(Ino, u64)>,
}

impl<'a> Subject<'a> {
    pub fn of(call: &'a Call<'_>) -> Self {
        match call {
            Call::Request(request) => Self::of_request(request),
            Call::Write { ino, .. }
            | Call::WriteList { ino, .. }
            | Call::Allocate { ino, .. }
            | Call::Copy { to: ino, .. } => Self::written(*ino),
            Call::Read { .. } | Call::Seek { .. } | Call::Release { .. } => Self::default(),
        }
    }

    fn of_request(request: &'a Request) -> Self {
        let change = |names, inos| Self { names, inos, is_change: true, ..Self::default() };
        match request {
            Request::Lookup { dir, name } => Self { names: [Some((*dir, name)), None], ..Self::default() },
            Request::ReadDir { dir, after, .. } => Self { lists: Some((*dir, *after)), ..Self::default() },
            Request::SetAttr { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => {
                Self { changes_rights: true, ..change([None; 2], [Some(*ino), None]) }
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
            // One that succeeds may leave both names where they are: of the same inode.
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

    /// What an answer with an inode names.
    pub fn name(&self) -> Option<(Ino, &'a Name)> {
        self.names().last()
    }
}
