//! Outcomes of actions in one tree, and their comparison with replies.

use std::collections::{BTreeMap, BTreeSet};

use espalier_client::Answer;
use espalier_proto::{Attr, Dirent, Entry, Errno, FileType, Ino, Name};

use super::action::Action;
use super::policy::Layout;
use super::tree::{ModelNode, Tree};

/// Attributes of a node that `stat` returns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stat {
    pub node: ModelNode,
    pub kind: u32,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpectedOutcome {
    Done,
    /// Fails with any of these errors.
    Fails(BTreeSet<i32>),
    Absent,
    /// The inode of a name.
    Named(Stat),
    Stat(Stat),
    Listing(BTreeMap<Name, ModelNode>),
    /// A partitioned directory, whose fragments are read at different instants: its names at each
    /// of them.
    Listings(Vec<BTreeMap<Name, ModelNode>>),
    Bytes(Vec<u8>),
    /// Placement of a file's data.
    Layout(Box<Layout>),
    /// The data is written.
    Written,
    /// The file's last name is removed: this outcome if the caller has it open, otherwise an error.
    OrGone(Box<ExpectedOutcome>),
    /// This outcome, or a permission error.
    OrRefused(Box<ExpectedOutcome>),
    /// The directory is removed.
    Gone,
    /// The subject of the action is unknown.
    Unknown,
}

impl ExpectedOutcome {
    pub fn fails(errnos: impl IntoIterator<Item = Errno>) -> Self {
        Self::Fails(errnos.into_iter().map(Errno::raw).collect())
    }

    /// The names of a listing.
    pub fn listing(&self) -> Option<&BTreeMap<Name, ModelNode>> {
        match self {
            Self::Listing(names) => Some(names),
            Self::OrRefused(outcome) => outcome.listing(),
            _ => None,
        }
    }

    /// The outcome for callers that have the file open.
    pub fn of_open(&self) -> &Self {
        match self {
            Self::OrGone(outcome) => outcome,
            outcome => outcome,
        }
    }
}

/// The reply to a call, for one of its actions.
pub struct Observed<'a> {
    pub action: &'a Action,
    pub result: &'a Result<Answer, Errno>,
    /// Offset in the reply of the data of this action, in bytes.
    pub skip: usize,
    /// Files whose data may have been changed in several steps meanwhile: their size may combine
    /// several instants.
    pub loose: &'a BTreeSet<Ino>,
    /// A restarted server may have repeated the reply, with attributes of a later instant than the
    /// action.
    pub is_late: bool,
    /// Strips are on several servers: size and data of a file are read at different instants.
    pub scattered: bool,
    /// Directories may be partitioned.
    pub splits: bool,
    /// True if the action's inode may be open.
    pub may_be_open: bool,
}

/// True for errors that are possible in any tree and imply no change: exhausted resources or too
/// much concurrency.
pub fn is_refusal(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENOSPC
            | Errno::EDQUOT
            | Errno::EAGAIN
            | Errno::ETXTBSY
            | Errno::EXDEV
            | Errno::EMLINK
            | Errno::EFBIG
    )
}

/// True if a call with this error may have been executed, or may be later.
pub fn is_unknown(errno: Errno) -> bool {
    matches!(errno, Errno::EIO | Errno::EINTR)
}

impl Observed<'_> {
    /// True if the outcome matches the reply. Learns inode numbers from the reply.
    pub fn is(&self, outcome: &ExpectedOutcome, tree: &mut Tree<'_>) -> bool {
        match (outcome, self.result) {
            (ExpectedOutcome::Unknown, _) => true,
            (ExpectedOutcome::Done, Ok(Answer::Done | Answer::Opened(_))) => true,
            (ExpectedOutcome::Done, Ok(Answer::Attr(_))) => {
                self.removes_privileges() || matches!(self.action, Action::Truncate { .. })
            }
            (ExpectedOutcome::Done, Ok(Answer::Written(_))) => self.removes_privileges(),
            // The privileges are removed before the write of the bytes is refused.
            (ExpectedOutcome::Done, Err(errno)) => self.removes_privileges() && is_refusal(*errno),
            (ExpectedOutcome::Written, Ok(Answer::Written(_))) => true,
            // A refused truncation returns no attributes to check.
            (ExpectedOutcome::Stat(_), Err(Errno::EACCES)) => {
                matches!(self.action, Action::SetAttr { perm: None, .. })
            }
            (ExpectedOutcome::Fails(errnos), Err(errno)) => errnos.contains(&errno.raw()),
            (ExpectedOutcome::Absent, Ok(Answer::Absent { .. }) | Err(Errno::ENOENT)) => true,
            (ExpectedOutcome::Gone, Err(Errno::ESTALE | Errno::ENOENT) | Ok(Answer::Absent { .. })) => true,
            // The fragments of a removed directory have the permissions from before its removal.
            (ExpectedOutcome::Gone, Err(Errno::EACCES)) => {
                self.splits && matches!(self.action, Action::Lookup { .. })
            }
            (ExpectedOutcome::Gone, Ok(Answer::Attr(attr))) => attr.nlink == 0,
            (
                ExpectedOutcome::Gone,
                Ok(Answer::Entry(entry) | Answer::Unmeasured(entry) | Answer::Created(entry, _)),
            ) => entry.attr.nlink == 0,
            (ExpectedOutcome::Gone, Ok(Answer::Listing { entries, .. })) => entries.is_empty(),
            (ExpectedOutcome::OrGone(_), Err(Errno::ESTALE | Errno::ENOENT)) => true,
            (ExpectedOutcome::OrGone(_), _)
                if !self.may_be_open && matches!(self.action, Action::Find { .. }) =>
            {
                false
            }
            (ExpectedOutcome::OrGone(outcome), _) => self.is(outcome, tree),
            (ExpectedOutcome::OrRefused(_), Err(Errno::EACCES | Errno::EPERM)) => true,
            (ExpectedOutcome::OrRefused(outcome), _) => self.is(outcome, tree),
            // Fragments at other ranks have the rest of these attributes, and a kernel requests
            // them.
            (ExpectedOutcome::Named(stat), Ok(Answer::Entry(entry)))
                if entry.attr.map_version > 0 && !entry.attr_leased =>
            {
                let (size, nlink) = (entry.attr.size, entry.attr.nlink);
                self.names(&Stat { size, nlink, ..stat.clone() }, entry, tree)
            }
            (ExpectedOutcome::Named(stat), Ok(Answer::Entry(entry) | Answer::Created(entry, _))) => {
                self.names(stat, entry, tree)
            }
            (ExpectedOutcome::Named(stat), Ok(Answer::Unmeasured(entry))) => {
                let is_dir = entry.attr.kind == FileType::Directory;
                let nlink = if is_dir { entry.attr.nlink } else { stat.nlink };
                let stat = Stat { size: entry.attr.size, nlink, ..stat.clone() };
                self.names(&stat, entry, tree)
            }
            // The client reads the rest of these attributes only for a `stat`.
            (ExpectedOutcome::Stat(stat), Ok(Answer::Attr(attr)))
                if attr.map_version > 0 && !matches!(self.action, Action::Attr { .. }) =>
            {
                let (size, nlink) = (attr.size, attr.nlink);
                self.matches_attr(&Stat { size, nlink, ..stat.clone() }, attr)
                    && tree.bind(attr.ino, stat.node)
            }
            (ExpectedOutcome::Stat(stat), Ok(Answer::Attr(attr))) => {
                self.matches_attr(stat, attr) && tree.bind(attr.ino, stat.node)
            }
            (ExpectedOutcome::Listing(names), Ok(Answer::Listing { entries, end, .. })) => {
                self.lists(&[names], entries, *end, tree)
            }
            (ExpectedOutcome::Listings(instants), Ok(Answer::Listing { entries, end, .. })) => {
                self.lists(&instants.iter().collect::<Vec<_>>(), entries, *end, tree)
            }
            (ExpectedOutcome::Layout(layout), Ok(Answer::Bytes(observed))) => {
                std::str::from_utf8(observed).is_ok_and(|observed| layout.is(observed))
            }
            (ExpectedOutcome::Bytes(bytes), Ok(Answer::Bytes(observed))) => match self.action {
                Action::Read { ino, from, to, .. } => {
                    let observed = observed.get(self.skip..).unwrap_or_default();
                    let observed = &observed[..observed.len().min(to - from)];
                    let is_loose = self.scattered && self.loose.contains(ino);
                    if is_loose { are_as_far_as_known(observed, bytes) } else { observed == bytes }
                }
                Action::ListXattr { .. } => sorted(bytes) == sorted(observed),
                _ => bytes == observed,
            },
            _ => false,
        }
    }

    /// True if each entry was there at one of the instants, and each name without an entry was
    /// absent at one of them. POSIX leaves open whether an entry that is added or removed during a
    /// listing is returned; so a file that is renamed may show neither name, or both.
    fn lists(
        &self,
        instants: &[&BTreeMap<Name, ModelNode>],
        entries: &[Dirent],
        end: bool,
        tree: &mut Tree<'_>,
    ) -> bool {
        let is_whole = end && self.skip == 0;
        let listed: BTreeSet<&Name> = entries.iter().map(|entry| &entry.name).collect();
        let is_missed = |name: &Name| instants.iter().all(|names| names.contains_key(name));
        if is_whole && instants[0].keys().any(|name| !listed.contains(name) && is_missed(name)) {
            return false;
        }
        listed.len() == entries.len()
            && entries.iter().all(|entry| {
                let nodes: BTreeSet<ModelNode> =
                    instants.iter().filter_map(|names| names.get(&entry.name)).copied().collect();
                let is_of_inode = |attr: &Attr| (attr.ino, attr.kind) == (entry.ino, entry.kind);
                entry.entry.as_ref().is_none_or(|it| is_of_inode(&it.attr))
                    && nodes.into_iter().any(|node| {
                        let kind = tree.inode(node).map(|inode| inode.kind);
                        kind == Some(entry.kind.bits()) && tree.bind(entry.ino, node)
                    })
            })
    }

    fn removes_privileges(&self) -> bool {
        matches!(self.action, Action::RemovePrivileges { .. })
    }

    fn names(&self, stat: &Stat, entry: &Entry, tree: &mut Tree<'_>) -> bool {
        let attr = &entry.attr;
        let dir = match self.action {
            Action::Lookup { dir, .. }
            | Action::Parent { dir }
            | Action::Create { dir, .. }
            | Action::Link { dir, .. } => Some(dir),
            _ => None,
        };
        // Name and attributes from different ranks may be of different instants.
        let is_of_two = dir.is_some_and(|dir| self.splits || dir.rank() != attr.ino.rank());
        // The same holds for a file that is truncated first, strip by strip.
        let empties = matches!(self.action, Action::Create { open: Some(true), exclusive: false, .. });
        let is_known =
            if is_of_two || empties { attr.kind.bits() == stat.kind } else { self.matches_attr(stat, attr) };
        is_known && tree.bind(attr.ino, stat.node)
    }

    fn matches_attr(&self, stat: &Stat, attr: &Attr) -> bool {
        if self.is_late {
            return stat.kind == attr.kind.bits();
        }
        // The client may already be removing the datafiles of a file that is not open (`create =
        // "client"`).
        let may_be_less = self.scattered && attr.nlink == 0 && attr.size < stat.size;
        (stat.kind, stat.perm, stat.nlink) == (attr.kind.bits(), attr.perm, attr.nlink)
            && (stat.uid, stat.gid) == (attr.uid, attr.gid)
            && (stat.size == attr.size || may_be_less || self.loose.contains(&attr.ino))
    }
}

/// Names of extended attributes, sorted.
fn sorted(names: &[u8]) -> Vec<&[u8]> {
    let mut names: Vec<&[u8]> = names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names
}

/// True if the bytes read agree with those written, if the file may be longer or shorter.
fn are_as_far_as_known(observed: &[u8], written: &[u8]) -> bool {
    let shared = observed.len().min(written.len());
    observed[..shared] == written[..shared] && observed[shared..].iter().all(|byte| *byte == 0)
}
