//! Actions: the atomic parts of a call. A call on bytes in several strips has one action for each
//! strip; other calls have one.

use std::collections::BTreeMap;

use espalier_client::{Call, RangeCall};
use espalier_proto::{Access, END, Ino, Name, NewNode, RangeOp, RenameFlags, Request, SetAttr, XattrMode};

use super::privileges::{self, Cause};
use super::{acl, policy, usage};

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Lookup {
        dir: Ino,
        name: Name,
    },
    Attr {
        ino: Ino,
    },
    /// By a file handle.
    Find {
        ino: Ino,
    },
    /// Looks up the parent of a directory.
    Parent {
        dir: Ino,
    },
    /// A listing, from one request.
    List {
        dir: Ino,
    },
    ReadLink {
        ino: Ino,
    },
    /// `may_lack_metafile`: as in [`Self::SetXattr`].
    GetXattr {
        ino: Ino,
        name: Box<[u8]>,
        may_lack_metafile: bool,
    },
    ListXattr {
        ino: Ino,
    },
    /// `at`: the strip; `from`, `to`: byte range in the strip.
    Read {
        ino: Ino,
        at: u64,
        from: usize,
        to: usize,
    },
    Open {
        ino: Ino,
        access: Access,
    },
    Create {
        dir: Ino,
        name: Name,
        node: NewNode,
        perm: u32,
        umask: u32,
        open: Option<Truncate>,
        exclusive: bool,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    Unlink {
        dir: Ino,
        name: Name,
    },
    RmDir {
        dir: Ino,
        name: Name,
    },
    Rename {
        from: (Ino, Name),
        to: (Ino, Name),
        flags: RenameFlags,
    },
    /// `spreads`: no-metafile files in the directory may inherit its permissions.
    SetAttr {
        ino: Ino,
        perm: Option<u32>,
        spreads: bool,
    },
    /// `chown`. `spreads`: as in [`Self::SetAttr`].
    ChangeOwner {
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
        spreads: bool,
    },
    RemovePrivileges {
        ino: Ino,
        cause: Cause,
    },
    /// `may_lack_metafile`: the file may have no metafile.
    SetXattr {
        ino: Ino,
        name: Box<[u8]>,
        value: Box<[u8]>,
        mode: XattrMode,
        may_lack_metafile: bool,
    },
    RemoveXattr {
        ino: Ino,
        name: Box<[u8]>,
    },
    /// Sets or removes an access control list. `spreads`: as in [`Self::SetAttr`].
    SetList {
        ino: Ino,
        default: bool,
        value: Option<Box<[u8]>>,
        spreads: bool,
    },
    Write {
        ino: Ino,
        at: u64,
        from: usize,
        data: Box<[u8]>,
    },
    Append {
        ino: Ino,
        data: Box<[u8]>,
    },
    /// Sets the length of one strip as part of a truncation of the file.
    Truncate {
        ino: Ino,
        at: u64,
        size: u64,
        /// Access that the caller needs; `None` if it has the file open.
        by: Option<Access>,
    },
}

/// True if the open truncates the file.
pub type Truncate = bool;

/// Upper bound of the number of strips of each file.
pub type Extents = BTreeMap<Ino, u64>;

impl Action {
    /// The actions of a call; empty if the call is not checked.
    pub fn all(call: &Call<'_>, strip: u64, extents: &mut Extents) -> Vec<Self> {
        match *call {
            Call::Request(ref request) => Self::of_request(request, strip, extents),
            Call::Range(RangeCall { ino, op: RangeOp::Read { offset, size }, .. }) => {
                // No write that has started reaches beyond this strip, so later strips need not be
                // read.
                let extent = extents.get(&ino).copied().unwrap_or(0).max(offset / strip + 1);
                let length = u64::from(size).min((extent * strip).saturating_sub(offset));
                let read = |(at, from, to)| Self::Read { ino, at, from, to };
                pieces(offset, length, strip).map(read).collect()
            }
            Call::Range(RangeCall { ino, op: RangeOp::Write { offset: END, .. }, ref data, .. }) => {
                *extents.entry(ino).or_insert(1) += (data.len() as u64).div_ceil(strip);
                vec![Self::Append { ino, data: data[..].into() }]
            }
            Call::Range(RangeCall { ino, op: RangeOp::Write { offset, .. }, ref data, .. }) => {
                let length = data.len() as u64;
                let extent = extents.entry(ino).or_insert(1);
                *extent = (*extent).max(offset.saturating_add(length).div_ceil(strip));
                let piece = |(at, from, to): (u64, usize, usize)| {
                    let first = (at * strip + from as u64 - offset) as usize;
                    let data = data[first..first + to - from].into();
                    Self::Write { ino, at, from, data }
                };
                pieces(offset, length, strip).map(piece).collect()
            }
            Call::Range(_) | Call::Release { .. } => Vec::new(),
        }
    }

    fn of_request(request: &Request, strip: u64, extents: &mut Extents) -> Vec<Self> {
        vec![match request.clone() {
            Request::Lookup { dir, name } => Self::Lookup { dir, name },
            Request::GetAttr { ino } => Self::Attr { ino },
            Request::Find { ino, kind: None, .. } => Self::Find { ino },
            Request::Parent { dir } => Self::Parent { dir },
            Request::ReadDir { dir, .. } => Self::List { dir },
            Request::ReadLink { ino } => Self::ReadLink { ino },
            Request::GetXattr { ino, name } => Self::GetXattr { ino, name, may_lack_metafile: false },
            Request::ListXattr { ino } => Self::ListXattr { ino },
            Request::Create { dir, name, node, perm, umask, open, exclusive, .. } => {
                let open = open.map(|how| how.truncate);
                Self::Create { dir, name, node, perm, umask, open, exclusive }
            }
            Request::Link { ino, dir, name } => Self::Link { ino, dir, name },
            Request::Unlink { dir, name, .. } => Self::Unlink { dir, name },
            Request::RmDir { dir, name, .. } => Self::RmDir { dir, name },
            Request::Rename { from_dir, from, to_dir, to, flags, .. } => {
                Self::Rename { from: (from_dir, from), to: (to_dir, to), flags }
            }
            Request::SetXattr { ino, name, value, .. } if acl::is_list(&name) => {
                Self::SetList { ino, default: acl::is_default(&name), value: Some(value), spreads: false }
            }
            Request::RemoveXattr { ino, name } if acl::is_list(&name) => {
                Self::SetList { ino, default: acl::is_default(&name), value: None, spreads: false }
            }
            Request::SetXattr { ino, name, value, mode, .. } => {
                Self::SetXattr { ino, name, value, mode, may_lack_metafile: false }
            }
            Request::RemoveXattr { ino, name } => Self::RemoveXattr { ino, name },
            Request::Open { ino, how } => {
                let mut all = if how.truncate {
                    truncations(ino, 0, Some(how.access), strip, extents)
                } else {
                    Vec::new()
                };
                all.push(Self::Open { ino, access: how.access });
                return all;
            }
            Request::SetAttr { ino, set: SetAttr { uid, gid, .. } } if uid.or(gid).is_some() => {
                Self::ChangeOwner { ino, uid, gid, spreads: false }
            }
            Request::SetAttr { ino, set: SetAttr { size, perm, through_handle, .. } } => {
                let by = (!through_handle).then_some(Access::WRITE);
                let mut all = size.map_or(Vec::new(), |size| truncations(ino, size, by, strip, extents));
                all.push(Self::SetAttr { ino, perm, spreads: false });
                return all;
            }
            _ => return Vec::new(),
        }]
    }

    /// True if the action changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::Attr { .. }
                | Self::Find { .. }
                | Self::Parent { .. }
                | Self::List { .. }
                | Self::ReadLink { .. }
                | Self::GetXattr { .. }
                | Self::ListXattr { .. }
                | Self::Read { .. }
                | Self::Open { .. }
        )
    }

    /// As [`Self::is_read`], or if the reply reports the attributes after a truncation.
    pub fn only_reports(&self) -> bool {
        self.is_read() || matches!(self, Self::SetAttr { perm: None, .. })
    }

    /// True if success implies that the tree has changed.
    pub fn shows(&self) -> bool {
        matches!(
            self,
            Self::Create { exclusive: true, .. }
                | Self::Link { .. }
                | Self::Unlink { .. }
                | Self::RmDir { .. }
        )
    }

    /// The inodes, given by number, that the action changes, apart from their data.
    pub fn changed_inodes(&self) -> Vec<Ino> {
        match self {
            Self::Create { dir, .. } | Self::Unlink { dir, .. } | Self::RmDir { dir, .. } => vec![*dir],
            Self::Link { ino, dir, .. } => vec![*ino, *dir],
            Self::Rename { from, to, .. } => vec![from.0, to.0],
            Self::SetAttr { ino, .. }
            | Self::ChangeOwner { ino, .. }
            | Self::RemovePrivileges { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::RemoveXattr { ino, .. }
            | Self::SetList { ino, .. } => vec![*ino],
            _ => Vec::new(),
        }
    }

    /// The file whose data the action reads or writes.
    pub fn bytes_of(&self) -> Option<Ino> {
        match self {
            Self::Read { ino, .. } => Some(*ino),
            action => action.written(),
        }
    }

    /// The file whose data the action writes.
    pub fn written(&self) -> Option<Ino> {
        match self {
            Self::Write { ino, .. } | Self::Append { ino, .. } | Self::Truncate { ino, .. } => Some(*ino),
            _ => None,
        }
    }

    fn footprint(&self) -> Footprint<'_> {
        let none = Footprint::default();
        let one = |ino: &Ino| Some(Inodes::One(*ino));
        match self {
            Self::Lookup { dir, name } => {
                Footprint { names: [Some((*dir, name)), None], looks: Some(Inodes::Any), ..none }
            }
            Self::Attr { ino } | Self::Find { ino } => Footprint { looks: one(ino), dir: Some(*ino), ..none },
            Self::Parent { dir } => Footprint { looks: Some(Inodes::Any), dir: Some(*dir), ..none },
            Self::List { dir } => Footprint { dir: Some(*dir), ..none },
            Self::Open { ino, .. } | Self::ReadLink { ino } => Footprint { looks: one(ino), ..none },
            Self::ListXattr { ino } => Footprint { xattrs: Some((*ino, None)), ..none },
            Self::GetXattr { ino, name, .. }
            | Self::SetXattr { ino, name, .. }
            | Self::RemoveXattr { ino, name } => {
                Footprint { xattrs: Some((*ino, policy::independent_setting(name))), ..none }
            }
            Self::SetList { ino, default: true, .. } => {
                Footprint { looks: one(ino), xattrs: Some((*ino, Some(acl::DEFAULT))), ..none }
            }
            Self::SetList { ino, default: false, spreads, .. } => {
                let changes = if *spreads { Some(Inodes::Any) } else { one(ino) };
                let xattrs = Some((*ino, Some(acl::ACCESS)));
                Footprint { looks: one(ino), changes, dir: Some(*ino), xattrs, ..none }
            }
            // Later strips determine whether this strip is read to its end.
            Self::Read { ino, .. } => Footprint { bytes: Some((*ino, None)), ..none },
            Self::Write { ino, at, .. } | Self::Truncate { ino, at, .. } => {
                Footprint { bytes: Some((*ino, Some(*at))), changes: one(ino), ..none }
            }
            Self::Append { ino, .. } => Footprint { bytes: Some((*ino, None)), changes: one(ino), ..none },
            Self::RemovePrivileges { ino, .. } => {
                let xattrs = Some((*ino, Some(privileges::CAPABILITY)));
                Footprint { looks: one(ino), changes: one(ino), xattrs, ..none }
            }
            Self::ChangeOwner { ino, spreads, .. } => {
                let changes = if *spreads { Some(Inodes::Any) } else { one(ino) };
                let xattrs = Some((*ino, Some(privileges::CAPABILITY)));
                Footprint { looks: one(ino), changes, dir: Some(*ino), xattrs, ..none }
            }
            Self::SetAttr { ino, spreads, .. } => {
                let changes = if *spreads { Some(Inodes::Any) } else { one(ino) };
                Footprint { looks: one(ino), changes, dir: Some(*ino), ..none }
            }
            Self::Create { dir, name, open, exclusive, .. } => {
                let any = (open.is_some() && !exclusive).then_some(Inodes::Any);
                let changes = any.filter(|_| *open == Some(true)).or(one(dir));
                Footprint { names: [Some((*dir, name)), None], looks: any, changes, ..none }
            }
            Self::Link { ino, dir, name } => {
                let names = [Some((*dir, name)), None];
                // Permissions of the file and of its directory apply.
                Footprint { names, looks: one(ino), changes: Some(Inodes::Any), ..none }
            }
            Self::Unlink { dir, name } => {
                Footprint { names: [Some((*dir, name)), None], changes: Some(Inodes::Any), ..none }
            }
            Self::RmDir { dir, name } => {
                Footprint { names: [Some((*dir, name)), None], is_of_tree: true, ..none }
            }
            Self::Rename { from, to, .. } => {
                let names = [Some((from.0, &from.1)), Some((to.0, &to.1))];
                Footprint { names, is_of_tree: true, ..none }
            }
        }
    }

    /// True if the order of the two actions may affect the result of either.
    pub fn conflicts(&self, other: &Self) -> bool {
        if self.is_read() && other.is_read() {
            return false;
        }
        if self.counts() || other.counts() {
            return true;
        }
        let (a, b) = (self.footprint(), other.footprint());
        let (a_reads, b_reads) = (self.is_read(), other.is_read());
        let strips = match (a.bytes, b.bytes) {
            (Some((one, strip)), Some((other, other_strip))) => {
                one == other && (strip.is_none() || other_strip.is_none() || strip == other_strip)
            }
            _ => false,
        };
        let xattrs = match (a.xattrs, b.xattrs) {
            (Some((one, name)), Some((other, other_name))) => {
                one == other && (name.is_none() || other_name.is_none() || name == other_name)
            }
            _ => false,
        };
        strips
            || xattrs
            || a.is_of_tree && b.is_of_names()
            || b.is_of_tree && a.is_of_names()
            || a.names.iter().flatten().any(|name| b.names.iter().flatten().any(|other| other == name))
            || a.dir.is_some_and(|dir| !b_reads && b.names.iter().flatten().any(|(at, _)| *at == dir))
            || b.dir.is_some_and(|dir| !a_reads && a.names.iter().flatten().any(|(at, _)| *at == dir))
            || Inodes::meet(a.looks, b.changes)
            || Inodes::meet(a.changes, b.looks)
            || self.empties() && b.is_of_contents()
            || other.empties() && a.is_of_contents()
            || self.rules(other)
            || other.rules(self)
            || self.makes_whole(other)
            || other.makes_whole(self)
            || self.shapes(other)
            || other.shapes(self)
    }

    /// True if the action may give a file a metafile, on which the result of `other` depends. The
    /// number of a moved or removed file is unknown.
    fn makes_whole(&self, other: &Self) -> bool {
        matches!(self, Self::Unlink { .. } | Self::Rename { .. })
            && matches!(other, Self::SetXattr { may_lack_metafile: true, .. })
    }

    /// True if the action truncates a file that is known only by name.
    pub fn empties(&self) -> bool {
        matches!(self, Self::Create { open: Some(true), exclusive: false, .. })
    }

    /// True if the action reads the usage below a directory.
    fn counts(&self) -> bool {
        matches!(self, Self::GetXattr { name, .. } if usage::is_known(name))
    }

    /// The inode whose permissions the action changes, and true if files in that directory inherit
    /// them.
    fn permits(&self) -> Option<(Ino, bool)> {
        match self {
            Self::SetAttr { ino, perm: Some(_), spreads }
            | Self::ChangeOwner { ino, spreads, .. }
            | Self::SetList { ino, default: false, spreads, .. } => Some((*ino, *spreads)),
            _ => None,
        }
    }

    /// The directory whose default list the action changes.
    pub fn wills(&self) -> Option<Ino> {
        match self {
            Self::SetList { ino, default: true, .. } => Some(*ino),
            _ => None,
        }
    }

    /// True if the action may change the permissions that apply to `other`. The number of a file
    /// that is moved or opened by name is unknown.
    fn rules(&self, other: &Self) -> bool {
        let Some((ino, spreads)) = self.permits() else { return false };
        match other {
            Self::GetXattr { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::RemovePrivileges { .. }
            | Self::ChangeOwner { .. }
            | Self::Truncate { by: Some(_), .. }
                if spreads =>
            {
                true
            }
            Self::Lookup { dir, .. } | Self::List { dir } => *dir == ino,
            Self::GetXattr { ino: of, .. }
            | Self::SetXattr { ino: of, .. }
            | Self::RemoveXattr { ino: of, .. }
            | Self::Truncate { ino: of, by: Some(_), .. } => *of == ino,
            Self::Create { dir, open, exclusive, .. } => *dir == ino || (open.is_some() && !exclusive),
            Self::Rename { .. } => true,
            // Other actions conflict by the inode or names that they use.
            _ => false,
        }
    }

    /// True if both actions name a common inode or name, for reports.
    pub fn is_about(&self, other: &Self) -> bool {
        fn inodes(action: &Action) -> Vec<Ino> {
            let print = action.footprint();
            let named = |inodes| match inodes {
                Some(Inodes::One(ino)) => Some(ino),
                _ => None,
            };
            let bytes = print.bytes.map(|(ino, _)| ino);
            let xattrs = print.xattrs.map(|(ino, _)| ino);
            [named(print.looks), named(print.changes), print.dir, xattrs, bytes]
                .into_iter()
                .flatten()
                .collect()
        }
        let (one, two) = (inodes(self), inodes(other));
        self.conflicts(other)
            || one.iter().any(|ino| two.contains(ino))
            || self
                .footprint()
                .names
                .iter()
                .flatten()
                .any(|name| other.footprint().names.contains(&Some(*name)))
    }
}

/// The objects that an action reads and changes.
#[derive(Default)]
struct Footprint<'a> {
    names: [Option<(Ino, &'a Name)>; 2],
    /// All entries of this directory.
    dir: Option<Ino>,
    /// Inodes whose attributes are read.
    looks: Option<Inodes>,
    changes: Option<Inodes>,
    /// A strip of a file, or all strips.
    bytes: Option<(Ino, Option<u64>)>,
    /// An extended attribute of an inode, or all attributes.
    xattrs: Option<(Ino, Option<&'a [u8]>)>,
    /// The action adds, removes or moves directories.
    is_of_tree: bool,
}

#[derive(Clone, Copy)]
enum Inodes {
    One(Ino),
    Any,
}

impl Inodes {
    fn meet(a: Option<Self>, b: Option<Self>) -> bool {
        match (a, b) {
            (Some(Self::One(a)), Some(Self::One(b))) => a == b,
            (None, _) | (_, None) => false,
            _ => true,
        }
    }
}

impl Footprint<'_> {
    /// True for an action on bytes, or on a capability, which changes with them.
    fn is_of_contents(&self) -> bool {
        let is_capability = |name: Option<&[u8]>| name.is_none_or(|name| name == privileges::CAPABILITY);
        self.bytes.is_some() || self.xattrs.is_some_and(|(_, name)| is_capability(name))
    }

    fn is_of_names(&self) -> bool {
        self.names[0].is_some() || self.dir.is_some() || self.looks.is_some()
    }
}

/// Splits a byte range by strips: strip, start and end in the strip.
fn pieces(offset: u64, length: u64, strip: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset.saturating_add(length);
    (offset / strip..end.div_ceil(strip)).map(move |at| {
        let first = at * strip;
        (at, (offset.max(first) - first) as usize, ((end - first).min(strip)) as usize)
    })
}

fn truncations(ino: Ino, size: u64, by: Option<Access>, strip: u64, extents: &mut Extents) -> Vec<Action> {
    let extent = extents.entry(ino).or_insert(1);
    *extent = (*extent).max(size.div_ceil(strip));
    (0..*extent).map(|at| Action::Truncate { ino, at, size, by }).collect()
}
