//! Listings with attributes (`readdirplus`, carns III.E).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use espalier_client::{Answer, Call};
use espalier_proto::{Attr, Dirent, Errno, FileType, Ino, Request};
use tokio::sync::oneshot;

use crate::file_system::FileSystem;
use crate::frontend::Completion;
use crate::metadata::{DirEntry, Listed, Metadata};
use crate::session::Session;

/// A pending request of the second round.
type Waits = oneshot::Receiver<Result<Completion, Errno>>;

impl FileSystem {
    /// Lists a directory with attributes, without `.` and `..`, in no particular order. Takes one
    /// message per 2048 entries; then, concurrently, one per inode at another server and per
    /// symbolic link.
    ///
    /// # Errors
    /// As opendir(3) and readdir(3).
    pub async fn read_dir_plus(&self, path: impl AsRef<Path>) -> io::Result<Vec<Listed>> {
        let path = path.as_ref();
        self.retry(async || {
            let found = self.0.find(path, true).await?;
            if found.kind != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            list(&self.0, found.ino).await
        })
        .await
    }
}

async fn list(session: &Arc<Session>, dir: Ino) -> Result<Vec<Listed>, Errno> {
    let mut requested = Vec::new();
    let mut after = 0;
    loop {
        let request = Request::ReadDir { dir, after, limit: Request::MAX_ENTRIES, plus: true };
        let Answer::Listing { entries, end, .. } = session.ask(request).await? else {
            return Err(Errno::EIO);
        };
        let is_end = end || entries.is_empty();
        after = entries.last().map_or(after, |last| last.cursor);
        for entry in entries {
            let attr = if entry.entry.is_none() { Some(ask_for(session, dir, &entry)) } else { None };
            let target = (entry.kind == FileType::Symlink)
                .then(|| session.begin(Call::Request(Request::ReadLink { ino: entry.ino })));
            requested.push((entry, attr, target));
        }
        if is_end {
            break;
        }
    }
    let mut listed = Vec::with_capacity(requested.len());
    for (entry, attr, target) in requested {
        match complete(session, entry, attr, target).await {
            // The entry was removed meanwhile.
            Err(Errno::ENOENT | Errno::ESTALE) => {}
            entry => listed.push(entry?),
        }
    }
    Ok(listed)
}

/// Requests what the listing lacks: attributes of inodes whose servers were slow, and of files on
/// an unreachable data server.
fn ask_for(session: &Arc<Session>, dir: Ino, entry: &Dirent) -> Waits {
    let Dirent { name, ino, kind, .. } = entry;
    let request = match ino.rank() == dir.rank() {
        true => Request::Lookup { dir, name: name.clone() },
        false => Request::Find { ino: *ino, kind: Some(*kind), open: None },
    };
    session.begin(Call::Request(request))
}

async fn complete(
    session: &Arc<Session>,
    entry: Dirent,
    attr: Option<Waits>,
    target: Option<Waits>,
) -> Result<Listed, Errno> {
    let attr: Attr = match (entry.entry, attr) {
        (Some(completion), _) => completion.attr,
        (None, Some(attr)) => match answer(attr).await? {
            Answer::Entry(completion) => completion.attr,
            Answer::Unmeasured(completion) => session.attr(completion.attr.ino).await?,
            Answer::Absent { .. } => return Err(Errno::ENOENT),
            _ => return Err(Errno::EIO),
        },
        (None, None) => return Err(Errno::EIO),
    };
    let target = match target {
        Some(target) => match answer(target).await? {
            Answer::Bytes(target) => Some(OsString::from_vec(target.into()).into()),
            _ => return Err(Errno::EIO),
        },
        None => None,
    };
    let name = OsString::from_vec(entry.name.to_vec());
    Ok(Listed {
        entry: DirEntry { name, ino: entry.ino, kind: entry.kind },
        metadata: Metadata(attr),
        target,
    })
}

async fn answer(waits: Waits) -> Result<Answer, Errno> {
    Ok(waits.await.unwrap_or(Err(Errno::EIO))?.answer)
}
