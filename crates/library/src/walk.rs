//! Finds what a path names, with what is cached, and with what the server is asked.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use espalier_client::{Answer, Binding};
use espalier_proto::{Attr, Entry, Errno, FileType, Ino, Name, NameError, Request};

use crate::session::Session;

/// As many symbolic links as Linux follows.
const MAX_LINKS: u32 = 40;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
    /// If they have come with it, or are cached.
    pub(crate) attr: Option<Attr>,
}

/// Where a name is, or is to be.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: Ino,
    pub(crate) name: Name,
    /// The path ends with a slash.
    pub(crate) is_dir: bool,
}

/// What a path ends at.
enum End {
    Found(Found),
    Place(Place),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Is not looked up.
    Place,
    Follow,
    NoFollow,
}

impl Session {
    /// What a path names. `follow`: if that is a symbolic link, what that names.
    pub(crate) async fn find(self: &Arc<Self>, path: &Path, follow: bool) -> Result<Found, Errno> {
        match self.walk(path, if follow { Last::Follow } else { Last::NoFollow }).await? {
            End::Found(found) => Ok(found),
            End::Place(_) => Err(Errno::EIO),
        }
    }

    /// The directory that a path's last name is in. `otherwise`: the error if there is none, as in `/`.
    pub(crate) async fn place(self: &Arc<Self>, path: &Path, otherwise: Errno) -> Result<Place, Errno> {
        match self.walk(path, Last::Place).await? {
            End::Place(place) => Ok(place),
            End::Found(_) => Err(otherwise),
        }
    }

    async fn walk(self: &Arc<Self>, path: &Path, last: Last) -> Result<End, Errno> {
        let path = path.as_os_str().as_bytes();
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.renew_root().await;
        let is_dir = path.ends_with(b"/") || path.ends_with(b"/.");
        let mut links = 0;
        // From the root to where it has come; and what is left, its end first.
        let mut dirs = vec![Ino::ROOT];
        let mut left = components(path);
        while let Some(component) = left.pop() {
            let dir = dirs.last().copied().unwrap_or(Ino::ROOT);
            if component == b".." {
                if dirs.len() > 1 {
                    dirs.pop();
                }
                continue;
            }
            let name = Name::new(&component).map_err(|error| match error {
                NameError::TooLong => Errno::ENAMETOOLONG,
                NameError::Invalid => Errno::EINVAL,
            })?;
            let is_last = left.is_empty();
            if is_last && last == Last::Place {
                return Ok(End::Place(Place { dir, name, is_dir }));
            }
            let found = self.look_up(dir, name).await?;
            match found.kind {
                FileType::Symlink if !is_last || last == Last::Follow || is_dir => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    let target = self.target(found.ino).await?;
                    if target.starts_with(b"/") {
                        dirs.truncate(1);
                    }
                    left.extend(components(&target));
                }
                FileType::Directory => dirs.push(found.ino),
                _ if !is_last || is_dir => return Err(Errno::ENOTDIR),
                _ => return Ok(End::Found(found)),
            }
        }
        let ino = dirs.last().copied().unwrap_or(Ino::ROOT);
        let attr = self.cached(|sessions, now| sessions.attr(ino, now)).flatten();
        Ok(End::Found(Found { ino, kind: FileType::Directory, attr }))
    }

    async fn look_up(self: &Arc<Self>, dir: Ino, name: Name) -> Result<Found, Errno> {
        let known = self.cached(|sessions, now| {
            sessions.name(dir, &name, now).map(|binding| match binding {
                Binding::Absent => Err(Errno::ENOENT),
                Binding::Inode(ino, kind) => Ok(Found { ino, kind, attr: sessions.attr(ino, now) }),
            })
        });
        if let Some(known) = known.flatten() {
            return known;
        }
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

    /// What a symbolic link names.
    pub(crate) async fn target(self: &Arc<Self>, ino: Ino) -> Result<Vec<u8>, Errno> {
        match self.ask(Request::ReadLink { ino }).await? {
            Answer::Bytes(target) => Ok(target.into()),
            _ => Err(Errno::EIO),
        }
    }

    /// An inode's attributes.
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

/// A path's components, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let all = path.split(|byte| *byte == b'/').rev();
    all.filter(|component| !matches!(*component, b"" | b".")).map(<[u8]>::to_vec).collect()
}
