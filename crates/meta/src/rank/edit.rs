//! Edits: what a transaction changes at one rank.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use espalier_proto::{FileType, FragmentMap, Ino, Name, Rank, Time};
use serde::{Deserialize, Serialize};

use super::location::WholeFile;
use crate::counts::InodeCounts;
use crate::fragment::Rights;
use crate::lease::LeaseKey;
use crate::record::{Body, Inode, PastTransfer, Referent};
use crate::state::{Location, SAME_HASH, State};
use crate::step::{Load, Step, Stop, Wait};
use crate::usage::{Usage, add_name, remove_name};

/// One change of a transaction at one rank. `owner`: the user who must own the inode, since the
/// directory that loses the name is sticky.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Edit {
    /// Creates a directory whose name is at another rank, or a whiteout. Preparing it assigns its
    /// number and times.
    Make { inode: Box<Inode> },
    /// Adds a name in `dir` to an inode. Preparing it determines `found`: the inode's type and
    /// current location.
    Link { ino: Ino, at: Rank, dir: Ino, found: Option<(FileType, Location)> },
    /// Removes an inode's name in `dir`; without names the inode becomes an orphan. A directory
    /// must be empty. `map_version`: that of a partitioned directory, whose fragments the
    /// transaction unlinks too.
    Unlink { ino: Ino, at: Rank, dir: Ino, owner: Option<u32>, map_version: u32 },
    /// Moves an inode's name to another directory. `replaces`: the move replaces another inode's
    /// name. `changes_parent`: the directories are not fragments of one.
    Move { ino: Ino, at: Rank, from: Ino, to: Ino, owner: Option<u32>, replaces: bool, changes_parent: bool },
    /// Removes a name, which refers to an inode of any rank. `sticky`: whether the sticky bit bound
    /// the caller when `owner` was determined.
    TakeName { dir: Ino, name: Name, referent: Referent, sticky: bool },
    /// Creates a name, which was free, for an inode.
    PutName { dir: Ino, name: Name, referent: Referent },
    /// Changes nothing; only one can be prepared at a time. Serialises moves of directories.
    MoveLock,
    /// Changes nothing; the name must refer to this inode, or be free.
    Expect { dir: Ino, name: Name, ino: Option<Ino> },
    /// Removes names from a directory record, which then has the hashes `rest`; the record `to`
    /// accepts them. `is_done`: it has no more to cede.
    CedeNames { fragment: Ino, to: Ino, rest: (u64, u64), names: Vec<FragmentName>, is_done: bool },
    /// Adds names that another record of the directory cedes; the record then has these hashes.
    AcceptNames { fragment: Ino, hashes: (u64, u64), names: Vec<FragmentName> },
    /// One name of each of these inodes of a rank goes from a fragment to another.
    MoveNames { from: Ino, to: Ino, at: Rank, inodes: Vec<Ino> },
    /// Files of a rank, each with its only name in `dir`, go to that name's rank. If their own
    /// is their home, it records that.
    GiveFiles { at: Rank, dir: Ino, inodes: Vec<Ino> },
    /// Files with these names in `dir` come from another rank.
    AdoptFiles { dir: Ino, files: Vec<(Name, WholeFile)> },
    /// The home of these files records that they move from a rank to another; neither is the home.
    Relocate { home: Rank, from: Rank, to: Rank, inodes: Vec<Ino> },
    /// Sets the fragment map of a directory, whose present one has version `after`. `ended`: the
    /// transfer that ends with it; its time is that of the transaction.
    SetMap { dir: Ino, map: FragmentMap, after: u32, ended: Option<PastTransfer> },
    /// Sets what all fragments of a directory have in common.
    SetRights { ino: Ino, rights: Box<Rights> },
}

/// A name that goes from a fragment to another, with the inode that it refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentName {
    pub name: Name,
    pub referent: Referent,
}

/// The edits of a transaction at one rank, with their time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub edits: Vec<Edit>,
    pub time: Time,
    /// Time of the operation's first attempt.
    pub since: Time,
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &Name| String::from_utf8_lossy(name).into_owned();
        match self {
            Self::Make { inode } => write!(f, "inode {} is made", inode.ino),
            Self::Link { ino, dir, .. } => write!(f, "inode {ino} gets a name in directory {dir}"),
            Self::Unlink { ino, dir, .. } => write!(f, "inode {ino} loses a name in directory {dir}"),
            Self::Move { ino, from, to, .. } => {
                write!(f, "a name of inode {ino} goes from directory {from} to {to}")
            }
            Self::TakeName { dir, name, referent: Referent { ino, .. }, .. } => {
                write!(f, "the name {:?} of inode {ino} goes from directory {dir}", text(name))
            }
            Self::PutName { dir, name, referent: Referent { ino, .. } } => {
                write!(f, "the name {:?} of inode {ino} comes to directory {dir}", text(name))
            }
            Self::MoveLock => write!(f, "a directory is moved"),
            Self::Expect { dir, name, .. } => write!(f, "the name {:?} in directory {dir} stays", text(name)),
            Self::CedeNames { fragment, to, names, .. } => {
                write!(f, "{} names go from fragment {fragment} to fragment {to}", names.len())
            }
            Self::AcceptNames { fragment, names, .. } => {
                write!(f, "{} names come to fragment {fragment}", names.len())
            }
            Self::MoveNames { from, to, inodes, .. } => {
                write!(f, "names of {} inodes go from fragment {from} to fragment {to}", inodes.len())
            }
            Self::GiveFiles { at, dir, inodes } => {
                write!(f, "{} files go from rank {at} to their names in directory {dir}", inodes.len())
            }
            Self::AdoptFiles { dir, files } => {
                write!(f, "{} files come to their names in directory {dir}", files.len())
            }
            Self::Relocate { from, to, inodes, .. } => {
                write!(f, "{} files go from rank {from} to rank {to}", inodes.len())
            }
            Self::SetMap { dir, map, .. } => {
                write!(f, "directory {dir} gets version {} of its fragment map", map.version())
            }
            Self::SetRights { ino, .. } => write!(f, "fragment {ino} gets its directory's permissions"),
        }
    }
}

impl Edit {
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Make { inode } => inode.ino.rank(),
            Self::Link { at, .. }
            | Self::Unlink { at, .. }
            | Self::Move { at, .. }
            | Self::MoveNames { at, .. }
            | Self::GiveFiles { at, .. }
            | Self::Relocate { home: at, .. } => *at,
            Self::AdoptFiles { dir, .. } => dir.rank(),
            Self::TakeName { dir, .. } | Self::PutName { dir, .. } | Self::Expect { dir, .. } => dir.rank(),
            Self::MoveLock => Ino::ROOT.rank(),
            Self::CedeNames { fragment: ino, .. }
            | Self::AcceptNames { fragment: ino, .. }
            | Self::SetMap { dir: ino, .. }
            | Self::SetRights { ino, .. } => ino.rank(),
        }
    }

    /// The inodes that the edit names only by number.
    pub(crate) fn addressed(&self) -> Vec<Ino> {
        match self {
            Self::Link { ino, .. }
            | Self::Unlink { ino, .. }
            | Self::Move { ino, .. }
            | Self::TakeName { dir: ino, .. }
            | Self::PutName { dir: ino, .. }
            | Self::CedeNames { fragment: ino, .. }
            | Self::AdoptFiles { dir: ino, .. }
            | Self::SetMap { dir: ino, .. }
            | Self::SetRights { ino, .. } => [*ino].into(),
            Self::MoveNames { inodes, .. } | Self::GiveFiles { inodes, .. } => inodes.clone(),
            Self::Make { .. }
            | Self::MoveLock
            | Self::Expect { .. }
            | Self::AcceptNames { .. }
            | Self::Relocate { .. } => Vec::new(),
        }
    }

    /// The directory that may have more entries after the edit, or another policy.
    pub(crate) fn grown(&self) -> Option<Ino> {
        match self {
            Self::PutName { dir: ino, .. }
            | Self::SetRights { ino, .. }
            | Self::CedeNames { fragment: ino, .. }
            | Self::AcceptNames { fragment: ino, .. } => Some(*ino),
            Self::Make { inode } => Some(inode.ino),
            _ => None,
        }
    }

    /// The directory that has fewer entries after the edit.
    pub(crate) fn shrunk(&self) -> Option<Ino> {
        if let Self::TakeName { dir, .. } = self { Some(*dir) } else { None }
    }

    /// True if the edit concerns what a name refers to.
    pub(crate) fn is_of_name(&self) -> bool {
        matches!(self, Self::TakeName { .. } | Self::PutName { .. } | Self::Expect { .. })
    }

    /// Visits what clients may have cached and the edit changes.
    pub(crate) fn touched(&self, state: &State, see: &mut dyn FnMut(LeaseKey, Option<&Name>)) {
        match self {
            Self::Link { ino, .. } | Self::Unlink { ino, .. } | Self::Move { ino, .. } => {
                see(LeaseKey::Inode(*ino), None);
            }
            Self::TakeName { dir, name, .. } | Self::PutName { dir, name, .. } => {
                state.touched_name(*dir, name, see);
            }
            Self::CedeNames { fragment, names, .. } => {
                see(LeaseKey::Exclusive(*fragment), None);
                see(LeaseKey::Inode(*fragment), None);
                see(LeaseKey::Contents(*fragment), None);
                for FragmentName { name, .. } in names {
                    see(LeaseKey::Name { dir: *fragment, hash: state.slot(name).hash }, Some(name));
                }
            }
            Self::SetMap { dir: ino, .. } | Self::SetRights { ino, .. } => {
                see(LeaseKey::Exclusive(*ino), None);
                see(LeaseKey::Inode(*ino), None);
            }
            // A client that knows all names of the record would take the new ones for absent.
            Self::AcceptNames { fragment, .. } => {
                see(LeaseKey::Exclusive(*fragment), None);
                see(LeaseKey::Inode(*fragment), None);
                see(LeaseKey::Contents(*fragment), None);
            }
            Self::GiveFiles { inodes, .. } => {
                inodes.iter().for_each(|ino| see(LeaseKey::Inode(*ino), None));
            }
            // The fragment of a name is no attribute of its inode, and neither is its rank. Nobody
            // has leases on the files that come.
            Self::MoveNames { .. } | Self::AdoptFiles { .. } | Self::Relocate { .. } => {}
            Self::Make { .. } | Self::MoveLock | Self::Expect { .. } => {}
        }
    }
}

/// True if one of the edits creates this inode.
pub(super) fn makes(edits: &[Edit], ino: Ino) -> bool {
    edits.iter().any(|edit| matches!(edit, Edit::Make { inode } if inode.ino == ino))
}

/// The parent of a directory that one of the edits creates.
fn parent_made(edits: &[Edit], ino: Ino) -> Option<Ino> {
    edits.iter().find_map(|edit| match edit {
        Edit::Make { inode } if inode.ino == ino => match &inode.body {
            Body::Directory(directory) => Some(directory.parent),
            _ => None,
        },
        _ => None,
    })
}

impl State {
    /// Ensures that the edits' names are in memory; they locate inodes that lie in their dentries.
    pub(crate) fn load_names(&self, edits: &[Edit]) -> Step<()> {
        for edit in edits {
            if let Edit::TakeName { dir, name, .. } | Edit::PutName { dir, name, .. } = edit {
                self.dir(*dir)?;
                self.load_above(*dir)?;
                self.target(*dir, &self.slot(name))?;
            }
            if let Edit::CedeNames { fragment, names, .. } = edit {
                self.dir(*fragment)?;
                self.load_above(*fragment)?;
                for FragmentName { name, .. } in names {
                    self.target(*fragment, &self.slot(name))?;
                }
            }
            if let Edit::AdoptFiles { dir, files } = edit {
                self.dir(*dir)?;
                self.load_above(*dir)?;
                for (name, _) in files {
                    self.target(*dir, &self.slot(name))?;
                }
            }
            // The names' usage counts in every directory above.
            if let Edit::AcceptNames { fragment, .. } = edit {
                self.load_above(parent_made(edits, *fragment).unwrap_or(*fragment))?;
            }
        }
        Ok(())
    }

    /// Ensures that everything that the edits change is in memory.
    pub(crate) fn load_edits(&self, edits: &[Edit]) -> Step<()> {
        self.load_names(edits)?;
        for edit in edits {
            match edit {
                // The inode may have only this name, and only this dentry leads to it.
                Edit::Link { ino, found: Some((_, Location::Dentry { dir, hash })), .. }
                    if !self.inodes.contains_key(ino) =>
                {
                    let load = Load::Dentries { dir: *dir, from: *hash, limit: SAME_HASH };
                    return Err(Stop::Wait(Wait::Load(load)));
                }
                Edit::Link { ino, .. } | Edit::Unlink { ino, .. } | Edit::Move { ino, .. } => {
                    self.cached(*ino)?;
                    if let Edit::Unlink { dir, .. } = edit
                        && self.is_fragment(*ino)
                    {
                        self.load_above(*dir)?;
                    }
                }
                Edit::TakeName { referent: Referent { ino, at, .. }, .. }
                | Edit::PutName { referent: Referent { ino, at, .. }, .. }
                    if *at == self.rank() && !makes(edits, *ino) =>
                {
                    self.cached(*ino)?;
                }
                Edit::CedeNames { fragment: dir, names, .. }
                | Edit::AcceptNames { fragment: dir, names, .. } => {
                    for Referent { ino, at, .. } in names.iter().map(|name| name.referent) {
                        if at == self.rank() {
                            self.cached(ino)?;
                        }
                    }
                    if !makes(edits, *dir) {
                        self.dir(*dir)?;
                    }
                }
                Edit::MoveNames { inodes, .. } | Edit::GiveFiles { inodes, .. } => {
                    inodes.iter().try_for_each(|ino| self.cached(*ino).map(drop))?;
                }
                Edit::SetMap { dir: ino, .. } | Edit::SetRights { ino, .. } => drop(self.dir(*ino)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies all edits, or none if something is not in memory.
    pub(crate) fn apply_edits(&mut self, part: &Part) {
        part.edits.iter().for_each(|edit| self.apply_edit(edit, part.time));
    }

    fn apply_edit(&mut self, edit: &Edit, time: Time) {
        match edit {
            Edit::Make { inode } => {
                self.counts.add(InodeCounts::of(inode));
                self.insert_inode((**inode).clone(), Location::Table);
                if let Body::Directory(directory) = &inode.body {
                    self.owe_gain(directory.parent, inode.ino);
                }
            }
            Edit::Link { ino, dir, .. } => {
                self.leave_dentry(*ino);
                self.change(*ino, |inode| {
                    inode.nlink += 1;
                    inode.ctime = time;
                    add_name(inode.rare.names.get_or_insert_default(), *dir);
                });
                if let Some(cached) = self.inodes.untracked(ino) {
                    cached.nameless = false;
                }
                self.owe_gain(*dir, *ino);
            }
            Edit::Unlink { ino, dir, .. } => {
                if self.is_fragment(*ino) && self.is_here(*dir) {
                    // It may not have counted all losses of usage.
                    self.count(*dir, Usage::default(), self.weight(*ino));
                }
                self.owe_loss(*dir, *ino);
                self.lose_name(*ino, *dir, time);
                // The transaction has unlinked all fragments.
                self.remove_fragment_map(*ino);
                self.moves.note_ceded(*ino, true);
            }
            // The file stays a no-metafile file; `PutName` moves it.
            Edit::Move { ino, from, to, .. } if from == to && self.has_no_metafile(*ino) => {
                self.change(*ino, |inode| inode.ctime = time);
            }
            Edit::Move { ino, from, to, .. } => {
                self.move_name(*ino, *from, *to);
                self.change(*ino, |inode| inode.ctime = time);
            }
            Edit::TakeName { dir, name, referent, .. } => {
                self.count(*dir, Usage::default(), self.weight_here(*referent));
                self.erase_cell(*dir, &self.slot(name));
                self.entry_removed(*dir, referent.is_dir(), time);
            }
            Edit::PutName { dir, name, referent } => {
                self.put_name(*dir, name, *referent);
                self.entry_added(*dir, referent.is_dir(), time);
            }
            Edit::CedeNames { fragment, to, rest, names, is_done } => {
                self.cede_names(*fragment, *to, *rest, names);
                self.moves.note_ceded(*fragment, *is_done);
            }
            Edit::AcceptNames { fragment, hashes, names } => {
                let is_pulled = |file: Referent| file.at != self.rank() && !file.is_dir();
                if names.iter().any(|name| is_pulled(name.referent)) {
                    self.moves.begin_pull(*fragment);
                }
                self.accept_names(*fragment, *hashes, names);
            }
            Edit::MoveNames { from, to, inodes, .. } => {
                inodes.iter().for_each(|ino| self.move_name(*ino, *from, *to));
            }
            Edit::GiveFiles { dir, inodes, .. } => {
                inodes.iter().for_each(|ino| self.give_file(*ino, *dir));
            }
            Edit::AdoptFiles { dir, files } => {
                files.iter().for_each(|(name, file)| self.adopt_file(*dir, name, file));
            }
            Edit::Relocate { to, inodes, .. } => {
                inodes.iter().for_each(|ino| self.relocate(*ino, *to));
            }
            Edit::SetMap { dir, map, ended, .. } => {
                let ended = ended.map(|transfer| PastTransfer { at: time, ..transfer });
                self.set_fragment_map(*dir, map, ended);
            }
            Edit::SetRights { ino, rights } => self.set_rights(*ino, rights, time),
            Edit::MoveLock | Edit::Expect { .. } => {}
        }
    }

    /// Adds a name of an inode, as far as it concerns the directory's entries and usage.
    pub(crate) fn put_name(&mut self, dir: Ino, name: &Name, referent: Referent) {
        self.count(dir, self.weight_here(referent), Usage::default());
        let slot = self.slot(name);
        if self.has_no_metafile(referent.ino) || (referent.is_dir() && referent.at == self.rank()) {
            self.put_primary(dir, slot, referent.ino);
        } else {
            self.put_remote(dir, slot, referent);
        }
    }

    /// Moves a name of an inode to another directory, as far as it concerns the inode.
    pub(crate) fn move_name(&mut self, ino: Ino, from: Ino, to: Ino) {
        self.leave_dentry(ino);
        self.owe_loss(from, ino);
        self.owe_gain(to, ino);
        self.change(ino, |inode| {
            if let Body::Directory(directory) = &mut inode.body {
                directory.parent = to;
            } else {
                let names = inode.rare.names.get_or_insert_default();
                remove_name(names, from);
                add_name(names, to);
            }
        });
    }

    /// The usage that a name adds to its directory at this rank: none if its inode is at another
    /// rank, which reports it as usage deltas.
    pub(crate) fn weight_here(&self, referent: Referent) -> Usage {
        if referent.at == self.rank() { self.weight(referent.ino) } else { Usage::default() }
    }

    fn weight(&self, ino: Ino) -> Usage {
        self.inodes.get(&ino).map_or_else(Usage::default, |cached| cached.inode.weight())
    }

    /// Records the usage that a new name adds to a directory at another rank. For a directory of
    /// this rank, `PutName` counts it.
    fn owe_gain(&mut self, dir: Ino, ino: Ino) {
        if let Some(cached) = self.inodes.get(&ino).filter(|_| !self.is_here(dir)) {
            self.owe(dir, cached.inode.weight(), Usage::default());
        }
    }

    /// Records the usage that a removed name takes from a directory at another rank.
    pub(super) fn owe_loss(&mut self, dir: Ino, ino: Ino) {
        if let Some(cached) = self.inodes.get(&ino).filter(|_| !self.is_here(dir)) {
            self.owe(dir, Usage::default(), cached.inode.weight());
        }
    }

    /// Moves an inode to the inode table, since it is about to have a name at another rank.
    fn leave_dentry(&mut self, ino: Ino) {
        let Some(cached) = self.touch_inode(ino) else { return };
        let (location, kind) = (cached.location, cached.inode.kind);
        cached.inode.make_whole();
        match location {
            Location::Table => {}
            Location::Orphan => self.set_location(ino, Location::Table),
            Location::Dentry { dir, hash } => {
                if kind != FileType::Directory {
                    cached.inode.rare.names = Some(Box::new([(dir, 1)].into()));
                }
                let slot = self.primary_slot(dir, hash, ino);
                self.set_location(ino, Location::Table);
                if let Some(slot) = slot {
                    self.put_remote(dir, slot, Referent { ino, kind, at: self.rank() });
                }
            }
        }
    }
}
