//! Finds what a path names, name by name.

use espalier_client::Answer;
use espalier_proto::{Attr, Errno, FileType, Ino, Name, NameError, Request};

/// As many symbolic links as Linux follows.
const MAX_LINKS: u32 = 40;

/// An inode that has been looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) ino: Ino,
    pub(super) kind: FileType,
    /// Unknown of where a path ends with `..`, and of the root.
    pub(super) attr: Option<Attr>,
}

/// Where a name is, or is to be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dir: Ino,
    pub(super) name: Name,
    /// The path ends with a slash.
    pub(super) is_dir: bool,
    pub(super) known: Known,
}

/// What is known of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    NotAsked,
    Absent,
    Is(Found),
}

/// What a path ends at.
#[derive(Clone, Debug)]
pub(super) enum End {
    Found(Found),
    Place(Place),
}

/// What is wanted of a path's last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// Where it is, without looking it up.
    Place,
    /// Where it is, and what it stands for, if anything.
    Look,
    /// What it stands for, and if that is a symbolic link, what that names.
    Follow,
    NoFollow,
}

/// How a walk goes on.
#[derive(Debug)]
pub(super) enum Step {
    Ask(Request),
    End(Result<End, Errno>),
}

/// A walk under way.
#[derive(Debug)]
pub(super) struct Walk {
    last: Last,
    is_dir: bool,
    links: u32,
    /// From where it begins to where it has come.
    dirs: Vec<Ino>,
    /// What is left of the path, its end first.
    left: Vec<Vec<u8>>,
    /// The name that is being looked up, or whose link is being read.
    asked: Option<Name>,
}

impl Walk {
    pub(super) fn new(origin: Ino, path: &[u8], last: Last) -> Result<Self, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let is_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        let (dirs, left) = (vec![origin], components(path).collect());
        Ok(Self { last, is_dir, links: 0, dirs, left, asked: None })
    }

    /// `answer`: to what was asked last.
    pub(super) fn step(&mut self, answer: Option<Answer>) -> Step {
        match self.take(answer).and_then(|step| step.map_or_else(|| self.go_on(), Ok)) {
            Ok(step) => step,
            Err(errno) => Step::End(Err(errno)),
        }
    }

    fn dir(&self) -> Ino {
        self.dirs.last().copied().unwrap_or(Ino::ROOT)
    }

    fn take(&mut self, answer: Option<Answer>) -> Result<Option<Step>, Errno> {
        let (Some(answer), Some(name)) = (answer, self.asked.take()) else { return Ok(None) };
        let is_last = self.left.is_empty();
        let (dir, is_dir) = (self.dir(), self.is_dir);
        let place = |name, known| Step::End(Ok(End::Place(Place { dir, name, is_dir, known })));
        match answer {
            Answer::Entry(entry) | Answer::Unmeasured(entry) => {
                let (ino, kind) = (entry.attr.ino, entry.attr.kind);
                let attr = if let Answer::Entry(_) = answer { Some(entry.attr) } else { None };
                let found = Found { ino, kind, attr };
                if is_last && self.last == Last::Look {
                    return Ok(Some(place(name, Known::Is(found))));
                }
                match kind {
                    FileType::Symlink if !is_last || self.last == Last::Follow || self.is_dir => {
                        self.links += 1;
                        if self.links > MAX_LINKS {
                            return Err(Errno::ELOOP);
                        }
                        self.asked = Some(name);
                        Ok(Some(Step::Ask(Request::ReadLink { ino })))
                    }
                    FileType::Directory if is_last => Ok(Some(Step::End(Ok(End::Found(found))))),
                    FileType::Directory => {
                        self.dirs.push(ino);
                        Ok(None)
                    }
                    _ if !is_last || self.is_dir => Err(Errno::ENOTDIR),
                    _ => Ok(Some(Step::End(Ok(End::Found(found))))),
                }
            }
            Answer::Absent { .. } if is_last && self.last == Last::Look => {
                Ok(Some(place(name, Known::Absent)))
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

    fn go_on(&mut self) -> Result<Step, Errno> {
        while let Some(component) = self.left.pop() {
            if component == b".." {
                if self.dirs.len() > 1 {
                    self.dirs.pop();
                } else if self.dir() != Ino::ROOT {
                    // Nobody keeps what lies above a working directory.
                    return Err(Errno::EOPNOTSUPP);
                }
                continue;
            }
            let name = Name::new(&component).map_err(|error| match error {
                NameError::TooLong => Errno::ENAMETOOLONG,
                NameError::Invalid => Errno::EINVAL,
            })?;
            let dir = self.dir();
            if self.left.is_empty() && self.last == Last::Place {
                let (is_dir, known) = (self.is_dir, Known::NotAsked);
                return Ok(Step::End(Ok(End::Place(Place { dir, name, is_dir, known }))));
            }
            self.asked = Some(name.clone());
            return Ok(Step::Ask(Request::Lookup { dir, name }));
        }
        let found = Found { ino: self.dir(), kind: FileType::Directory, attr: None };
        Ok(Step::End(Ok(End::Found(found))))
    }
}

/// A path's components, the last one first.
fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let all = path.split(|byte| *byte == b'/').rev();
    all.filter(|component| !matches!(*component, b"" | b".")).map(<[u8]>::to_vec)
}
