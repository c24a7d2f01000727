//! Path resolution, from the cache where possible.

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use espalier_client::{Answer, Binding, Sessions};
use espalier_proto::{Attr, Entry, Errno, FileType, Ino, Name, NameError, Request};
use smallvec::{SmallVec, smallvec};

use crate::session::Session;

/// Linux's limit of symbolic links in a resolution.
const MAX_LINKS: u32 = 40;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    /// The attributes, if they came with the lookup or are cached.
    pub(crate) attr: Option<Attr>,
}

/// A directory entry that exists or is to be created.
#[derive(Debug)]
pub(crate) struct TargetName {
    pub(crate) dir: Ino,
    pub(crate) name: Name,
    /// The path ends with a slash, or with `/.`.
    pub(crate) is_dir: bool,
}

/// The result of a resolution.
enum End {
    Found(Found),
    TargetName(TargetName),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The last component is not looked up.
    TargetName,
    Follow,
    NoFollow,
}

/// A resolution in progress.
struct PathWalk<'a> {
    /// The path with symbolic links expanded.
    path: Cow<'a, [u8]>,
    /// Offset of the unresolved part.
    at: usize,
    /// The directories from the root to the present one.
    dirs: SmallVec<[Ino; 8]>,
    links: u32,
    last: Last,
    is_dir: bool,
}

/// The next step of a resolution.
enum WalkStep {
    End(End),
    /// Renew the lease on the root. It has no name whose lookup would do so.
    Root,
    LookUp(Ino, Name),
    /// Read this symbolic link.
    Follow(Ino),
}

impl<'a> PathWalk<'a> {
    fn new(path: &'a [u8], last: Last) -> Result<Self, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        let is_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        Ok(Self { path: path.into(), at: 0, dirs: smallvec![Ino::ROOT], links: 0, last, is_dir })
    }

    fn advance<T>(&mut self, sessions: &Sessions<T>, now: u64) -> Result<WalkStep, Errno> {
        while let Some(component) = next(&self.path, &mut self.at) {
            if component == b".." {
                if self.dirs.len() > 1 {
                    self.dirs.pop();
                }
                continue;
            }
            let name = Name::new(component).map_err(|error| match error {
                NameError::TooLong => Errno::ENAMETOOLONG,
                NameError::Invalid => Errno::EINVAL,
            })?;
            let (dir, is_last) = (self.dir(), self.is_last());
            if is_last && self.last == Last::TargetName {
                return Ok(WalkStep::End(End::TargetName(TargetName { dir, name, is_dir: self.is_dir })));
            }
            let (ino, kind) = match sessions.name(dir, &name, now) {
                None => return Ok(WalkStep::LookUp(dir, name)),
                Some(Binding::Absent) => return Err(Errno::ENOENT),
                Some(Binding::Inode(ino, kind)) => (ino, kind),
            };
            let attr = if is_last { sessions.attr(ino, now) } else { None };
            if let Some(step) = self.enter(Found { ino, kind, attr })? {
                return Ok(step);
            }
        }
        let ino = self.dir();
        let attr = sessions.attr(ino, now);
        Ok(WalkStep::End(End::Found(Found { ino, kind: FileType::Directory, attr })))
    }

    /// Enters the inode of the last component.
    fn enter(&mut self, found: Found) -> Result<Option<WalkStep>, Errno> {
        let is_last = self.is_last();
        let must_be_dir = !is_last || self.is_dir;
        match found.kind {
            FileType::Symlink if must_be_dir || self.last == Last::Follow => {
                self.links += 1;
                if self.links > MAX_LINKS {
                    return Err(Errno::ELOOP);
                }
                Ok(Some(WalkStep::Follow(found.ino)))
            }
            FileType::Directory if !is_last => {
                self.dirs.push(found.ino);
                Ok(None)
            }
            kind if must_be_dir && kind != FileType::Directory => Err(Errno::ENOTDIR),
            _ => Ok(Some(WalkStep::End(End::Found(found)))),
        }
    }

    /// Expands the symbolic link of the last component.
    fn follow(&mut self, target: &[u8]) {
        if target.starts_with(b"/") {
            self.dirs.truncate(1);
        }
        self.path = [target, b"/", &self.path[self.at..]].concat().into();
        self.at = 0;
    }

    fn dir(&self) -> Ino {
        self.dirs.last().copied().unwrap_or(Ino::ROOT)
    }

    fn is_last(&self) -> bool {
        next(&self.path, &mut self.at.clone()).is_none()
    }
}

/// The next component of a path from offset `at`; advances `at`.
fn next<'a>(path: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    while *at < path.len() {
        let rest = &path[*at..];
        let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        *at = (*at + length + 1).min(path.len());
        if !matches!(&rest[..length], b"" | b".") {
            return Some(&rest[..length]);
        }
    }
    None
}

impl Session {
    /// Resolves a path. `follow`: follow a symbolic link in the last component.
    pub(crate) async fn find(self: &Arc<Self>, path: &Path, follow: bool) -> Result<Found, Errno> {
        match self.walk(path, if follow { Last::Follow } else { Last::NoFollow }).await? {
            End::Found(found) => Ok(found),
            End::TargetName(_) => Err(Errno::EIO),
        }
    }

    /// Resolves a path up to its last component. `otherwise`: the error if it has none, as `/`.
    pub(crate) async fn place(self: &Arc<Self>, path: &Path, otherwise: Errno) -> Result<TargetName, Errno> {
        match self.walk(path, Last::TargetName).await? {
            End::TargetName(place) => Ok(place),
            End::Found(_) => Err(otherwise),
        }
    }

    async fn walk(self: &Arc<Self>, path: &Path, last: Last) -> Result<End, Errno> {
        let mut walk = PathWalk::new(path.as_os_str().as_bytes(), last)?;
        let mut decided = None;
        loop {
            let step = decided.take().map_or_else(
                || {
                    let known = self.cached(|sessions, now| {
                        let is_due = !sessions.is_leased(Ino::ROOT, now) && self.may_ask_for_root(now);
                        if is_due { Ok(WalkStep::Root) } else { walk.advance(sessions, now) }
                    });
                    known.unwrap_or(Err(Errno::EIO))
                },
                Ok,
            );
            match step? {
                WalkStep::End(end) => return Ok(end),
                // Without this lease nothing can be cached, which is slow but correct.
                WalkStep::Root => drop(self.ask(Request::GetAttr { ino: Ino::ROOT }).await),
                WalkStep::LookUp(dir, name) => decided = walk.enter(self.look_up(dir, name).await?)?,
                WalkStep::Follow(ino) => walk.follow(&self.target(ino).await?),
            }
        }
    }

    async fn look_up(self: &Arc<Self>, dir: Ino, name: Name) -> Result<Found, Errno> {
        match self.ask(Request::Lookup { dir, name }).await? {
            Answer::Entry(entry) => {
                Ok(Found { ino: entry.attr.ino, kind: entry.attr.kind, attr: Some(entry.attr) })
            }
            Answer::Unmeasured(Entry { attr, .. }) => {
                Ok(Found { ino: attr.ino, kind: attr.kind, attr: None })
            }
            Answer::Absent { .. } => Err(Errno::ENOENT),
            _ => Err(Errno::EIO),
        }
    }

    /// Reads a symbolic link.
    pub(crate) async fn target(self: &Arc<Self>, ino: Ino) -> Result<Vec<u8>, Errno> {
        match self.ask(Request::ReadLink { ino }).await? {
            Answer::Bytes(target) => Ok(target.into()),
            _ => Err(Errno::EIO),
        }
    }

    /// The attributes of an inode, from the cache if possible.
    pub(crate) async fn attr(self: &Arc<Self>, ino: Ino) -> Result<Attr, Errno> {
        let cached = self.cached(|sessions, now| sessions.attr(ino, now));
        match cached.flatten() {
            Some(attr) => Ok(attr),
            None => match self.ask(Request::GetAttr { ino }).await? {
                Answer::Attr(attr) => Ok(attr),
                _ => Err(Errno::EIO),
            },
        }
    }
}
