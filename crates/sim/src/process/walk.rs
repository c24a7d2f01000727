//! Path resolution, name by name.

use espalier_client::Answer;
use espalier_proto::{Attr, Errno, FileType, Ino, Name, NameError, Request};

/// Linux's limit of symbolic links in a path.
const MAX_LINKS: u32 = 40;

/// An inode that was looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) ino: Ino,
    pub(super) kind: FileType,
    /// Unknown for the root and for a path that ends with `..`.
    pub(super) attr: Option<Attr>,
}

/// Directory and name of an entry that may exist.
#[derive(Clone, Debug)]
pub(super) struct TargetName {
    pub(super) dir: Ino,
    pub(super) name: Name,
    /// The path ends with a slash.
    pub(super) is_dir: bool,
    pub(super) known: NameLookup,
}

/// Known state of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum NameLookup {
    NotRequested,
    Absent,
    Is(Found),
}

/// Result of a path walk.
#[derive(Clone, Debug)]
pub(super) enum End {
    Found(Found),
    TargetName(TargetName),
}

/// The resolution of a path's last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// Not looked up.
    TargetName,
    /// Looked up; it may not exist.
    Look,
    /// Looked up; symbolic links are followed.
    Follow,
    NoFollow,
}

/// Next step of a walk.
#[derive(Debug)]
pub(super) enum WalkStep {
    Ask(Request),
    End(Result<End, Errno>),
}

/// A walk in progress.
#[derive(Debug)]
pub(super) struct PathWalk {
    last: Last,
    is_dir: bool,
    links: u32,
    /// Directories from the start of the path to the present one.
    dirs: Vec<Ino>,
    /// Remaining components, last first.
    left: Vec<Vec<u8>>,
    /// The name that is being looked up, or whose link is being read.
    pending_name: Option<Name>,
}

impl PathWalk {
    pub(super) fn new(origin: Ino, path: &[u8], last: Last) -> Result<Self, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let is_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        let (dirs, left) = (vec![origin], components(path).collect());
        Ok(Self { last, is_dir, links: 0, dirs, left, pending_name: None })
    }

    /// `answer`: reply to the last request.
    pub(super) fn step(&mut self, answer: Option<Answer>) -> WalkStep {
        match self.take(answer).and_then(|step| step.map_or_else(|| self.advance(), Ok)) {
            Ok(step) => step,
            Err(errno) => WalkStep::End(Err(errno)),
        }
    }

    fn dir(&self) -> Ino {
        self.dirs.last().copied().unwrap_or(Ino::ROOT)
    }

    fn take(&mut self, answer: Option<Answer>) -> Result<Option<WalkStep>, Errno> {
        let (Some(answer), Some(name)) = (answer, self.pending_name.take()) else { return Ok(None) };
        let is_last = self.left.is_empty();
        let (dir, is_dir) = (self.dir(), self.is_dir);
        let place = |name, known| WalkStep::End(Ok(End::TargetName(TargetName { dir, name, is_dir, known })));
        match answer {
            Answer::Entry(entry) | Answer::Unmeasured(entry) => {
                let (ino, kind) = (entry.attr.ino, entry.attr.kind);
                let attr = if let Answer::Entry(_) = answer { Some(entry.attr) } else { None };
                let found = Found { ino, kind, attr };
                if is_last && self.last == Last::Look {
                    return Ok(Some(place(name, NameLookup::Is(found))));
                }
                match kind {
                    FileType::Symlink if !is_last || self.last == Last::Follow || self.is_dir => {
                        self.links += 1;
                        if self.links > MAX_LINKS {
                            return Err(Errno::ELOOP);
                        }
                        self.pending_name = Some(name);
                        Ok(Some(WalkStep::Ask(Request::ReadLink { ino })))
                    }
                    FileType::Directory if is_last => Ok(Some(WalkStep::End(Ok(End::Found(found))))),
                    FileType::Directory => {
                        self.dirs.push(ino);
                        Ok(None)
                    }
                    _ if !is_last || self.is_dir => Err(Errno::ENOTDIR),
                    _ => Ok(Some(WalkStep::End(Ok(End::Found(found))))),
                }
            }
            Answer::Absent { .. } if is_last && self.last == Last::Look => {
                Ok(Some(place(name, NameLookup::Absent)))
            }
            Answer::Absent { .. } => Err(Errno::ENOENT),
            Answer::Bytes(target) => {
                if target.starts_with(b"/") {
                    self.dirs = vec![Ino::ROOT];
                }
                self.left.extend(components(&target));
                Ok(None)
            }
            _ => Err(Errno::EIO),
        }
    }

    fn advance(&mut self) -> Result<WalkStep, Errno> {
        while let Some(component) = self.left.pop() {
            if component == b".." {
                if self.dirs.len() > 1 {
                    self.dirs.pop();
                } else if self.dir() != Ino::ROOT {
                    // The parents of a working directory are not recorded.
                    return Err(Errno::EOPNOTSUPP);
                }
                continue;
            }
            let name = Name::new(&component).map_err(|error| match error {
                NameError::TooLong => Errno::ENAMETOOLONG,
                NameError::Invalid => Errno::EINVAL,
            })?;
            let dir = self.dir();
            if self.left.is_empty() && self.last == Last::TargetName {
                let (is_dir, known) = (self.is_dir, NameLookup::NotRequested);
                return Ok(WalkStep::End(Ok(End::TargetName(TargetName { dir, name, is_dir, known }))));
            }
            self.pending_name = Some(name.clone());
            return Ok(WalkStep::Ask(Request::Lookup { dir, name }));
        }
        let found = Found { ino: self.dir(), kind: FileType::Directory, attr: None };
        Ok(WalkStep::End(Ok(End::Found(found))))
    }
}

/// Components of a path, last first.
fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let all = path.split(|byte| *byte == b'/').rev();
    all.filter(|component| !matches!(*component, b"" | b".")).map(<[u8]>::to_vec)
}
