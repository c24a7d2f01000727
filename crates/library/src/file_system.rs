//! A file system by paths.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use espalier_client::Answer;
use espalier_proto::{
    Access, Capacity, Errno, FileType, Ino, NewNode, OpenHow, RenameFlags, Request, SetAttr, XattrMode,
};
use espalier_runtime::{Messages, Traced};

use crate::file::{File, OpenOptions, open};
use crate::metadata::{DirEntry, Metadata, set_time};
use crate::options::ConnectOptions;
use crate::session::{ConnectError, Credentials, Handle, Session, User};
use crate::walk::TargetName;

/// A connection to a file system; clones share it. Paths start at the root, with or without a
/// slash.
#[derive(Clone, Debug)]
pub struct FileSystem(pub(crate) Arc<Session>);

/// Number of attempts of a call whose path resolution meets a forgotten inode.
const TRIES: u32 = 4;
/// Maximum number of entries in a listing request.
const ENTRIES: u32 = 512;

pub(crate) fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}

impl FileSystem {
    /// Connects to a server, with a URL `espalier://HOST:PORT,HOST:PORT/`, as the user of this
    /// process. A lost connection is re-established; calls wait for it.
    ///
    /// # Errors
    /// [`ConnectError`]; its text says what to do.
    pub async fn connect(url: &str, credentials: &Credentials) -> Result<Self, ConnectError> {
        ConnectOptions::new().connect(url, credentials).await
    }

    /// As [`Self::connect`], as another user. The server's configuration may forbid it.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_as(url: &str, credentials: &Credentials, user: User) -> Result<Self, ConnectError> {
        ConnectOptions::new().user(user).connect(url, credentials).await
    }

    /// Ends the session and waits until the server knows. Open files and clones become unusable.
    /// Without this call, the session ends when the last of them is dropped.
    pub async fn close(self) {
        self.0.close().await;
    }

    /// Counts of messages sent and received.
    pub fn messages(&self) -> Messages {
        self.0.messages()
    }

    /// Spans of this client's operations with numbers from `since` on; `None` returns none
    /// (docs/tracing.md). Recording stays on for at least `lasting`.
    pub fn trace(&self, since: Option<u64>, lasting: Duration) -> Traced {
        self.0.trace(since, lasting)
    }

    /// Retries if an inode is forgotten between lookup and use.
    pub(crate) async fn retry<T, F: Future<Output = Result<T, Errno>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> io::Result<T> {
        for _ in 1..TRIES {
            match attempt().await {
                Err(Errno::ESTALE) => drop(self.0.cached(|sessions, _| sessions.cache().distrust())),
                outcome => return outcome.map_err(error),
            }
        }
        attempt().await.map_err(error)
    }

    /// Returns when all earlier changes, by any client, are durable. `path`: a changed file, or the
    /// directory of created or removed entries.
    ///
    /// # Errors
    /// As fsync(2). Reports the failure of a write-back operation once
    /// ([`ConnectOptions::writeback`](crate::ConnectOptions::writeback)).
    pub async fn sync_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.at(path.as_ref(), true, |ino| Request::Fsync { ino }).await.map(drop)
    }

    /// Makes a request on the directory entry of a path's last component.
    async fn change(
        &self,
        path: &Path,
        otherwise: Errno,
        request: impl Fn(TargetName) -> Result<Request, Errno>,
    ) -> io::Result<Answer> {
        self.retry(async || self.0.ask(request(self.0.place(path, otherwise).await?)?).await).await
    }

    /// Makes a request on the inode of a path.
    async fn at(&self, path: &Path, follow: bool, request: impl Fn(Ino) -> Request) -> io::Result<Answer> {
        self.retry(async || self.0.ask(request(self.0.find(path, follow).await?.ino)).await).await
    }

    async fn stat(&self, path: &Path, follow: bool) -> io::Result<Metadata> {
        let attr = self.retry(async || {
            let found = self.0.find(path, follow).await?;
            match found.attr {
                Some(attr) => Ok(attr),
                None => self.0.attr(found.ino).await,
            }
        });
        attr.await.map(Metadata)
    }

    /// # Errors
    /// As stat(2).
    pub async fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.stat(path.as_ref(), true).await
    }

    /// As [`Self::metadata`], without following a symbolic link.
    ///
    /// # Errors
    /// As lstat(2).
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        self.stat(path.as_ref(), false).await
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As open(2).
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(self, path).await
    }

    /// Opens a file for writing; creates or truncates it.
    ///
    /// # Errors
    /// As open(2).
    pub async fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path).await
    }

    async fn make(&self, path: &Path, node: NewNode, perm: u32) -> io::Result<()> {
        let umask = self.0.umask();
        let is_dir = node == NewNode::Directory;
        let request = |place: TargetName| {
            if place.is_dir && !is_dir {
                return Err(Errno::ENOENT);
            }
            let (dir, name, node) = (place.dir, place.name, node.clone());
            Ok(Request::Create { dir, name, node, perm, umask, open: None, exclusive: true, writeback: None })
        };
        self.change(path, Errno::EEXIST, request).await.map(drop)
    }

    /// Creates an empty file without opening it, in one message.
    ///
    /// # Errors
    /// As mknod(2).
    pub async fn create_file(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        self.make(path.as_ref(), NewNode::Regular, mode).await
    }

    /// # Errors
    /// As mkdir(2).
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.make(path.as_ref(), NewNode::Directory, 0o777).await
    }

    /// Creates a symbolic link `link` to `target`.
    ///
    /// # Errors
    /// As symlink(2).
    pub async fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        if target.is_empty() {
            return Err(error(Errno::ENOENT));
        }
        self.make(link.as_ref(), NewNode::Symlink(target.into()), 0o777).await
    }

    /// # Errors
    /// As readlink(2).
    pub async fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = path.as_ref();
        let target = self.retry(async || {
            let found = self.0.find(path, false).await?;
            if found.kind != FileType::Symlink {
                return Err(Errno::EINVAL);
            }
            self.0.target(found.ino).await
        });
        Ok(OsString::from_vec(target.await?).into())
    }

    /// Creates `link`, another name of the file `original`.
    ///
    /// # Errors
    /// As link(2).
    pub async fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let linked = self.retry(async || {
            let ino = self.0.find(original, false).await?.ino;
            let TargetName { dir, name, is_dir } = self.0.place(link, Errno::EEXIST).await?;
            if is_dir {
                return Err(Errno::ENOENT);
            }
            self.0.ask(Request::Link { ino, dir, name }).await
        });
        linked.await.map(drop)
    }

    /// # Errors
    /// As unlink(2).
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let request = |TargetName { dir, name, is_dir }| match is_dir {
            true => Err(Errno::ENOTDIR),
            false => Ok(Request::Unlink { dir, name, time: None }),
        };
        self.change(path.as_ref(), Errno::EISDIR, request).await.map(drop)
    }

    /// # Errors
    /// As rmdir(2).
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let request = |TargetName { dir, name, .. }| Ok(Request::RmDir { dir, name, time: None });
        self.change(path.as_ref(), Errno::EBUSY, request).await.map(drop)
    }

    /// # Errors
    /// As rename(2).
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (old, new) = (from.as_ref(), to.as_ref());
        let renamed = self.retry(async || {
            let from = self.0.place(old, Errno::EBUSY).await?;
            let to = self.0.place(new, Errno::EBUSY).await?;
            if (from.is_dir || to.is_dir) && self.0.find(old, false).await?.kind != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            let (from_dir, from, to_dir, to) = (from.dir, from.name, to.dir, to.name);
            let flags = RenameFlags::empty();
            self.0.ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None }).await
        });
        renamed.await.map(drop)
    }

    async fn set(&self, path: &Path, set: SetAttr) -> io::Result<()> {
        self.at(path, true, |ino| Request::SetAttr { ino, set }).await.map(drop)
    }

    /// `mode`: permission bits, at most 0o7777.
    ///
    /// # Errors
    /// As chmod(2).
    pub async fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        self.set(path.as_ref(), SetAttr { perm: Some(mode & 0o7777), ..SetAttr::default() }).await
    }

    /// # Errors
    /// As chown(2).
    pub async fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> io::Result<()> {
        let set = SetAttr { uid, gid, kill_suid_gid: true, ..SetAttr::default() };
        self.set(path.as_ref(), set).await
    }

    /// # Errors
    /// As utimensat(2).
    pub async fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> io::Result<()> {
        let (atime, mtime) = (accessed.map(set_time), modified.map(set_time));
        self.set(path.as_ref(), SetAttr { atime, mtime, ..SetAttr::default() }).await
    }

    /// # Errors
    /// As opendir(3).
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir> {
        let path = path.as_ref();
        let how = OpenHow { access: Access::READ, ..OpenHow::default() };
        let handle = self.retry(async || {
            let found = self.0.find(path, true).await?;
            if found.kind != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            open(&self.0, found.ino, how).await
        });
        let handle = handle.await?;
        Ok(ReadDir {
            session: Arc::clone(&self.0),
            handle,
            after: 0,
            is_end: false,
            entries: VecDeque::new(),
        })
    }

    /// Reads an extended attribute, such as `user.colour`.
    ///
    /// # Errors
    /// As getxattr(2).
    pub async fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<Vec<u8>> {
        let name = name.as_ref().as_bytes();
        let answer = self.at(path.as_ref(), true, |ino| Request::GetXattr { ino, name: name.into() }).await?;
        bytes(answer)
    }

    /// # Errors
    /// As setxattr(2).
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        let set = self.at(path.as_ref(), true, |ino| Request::SetXattr {
            ino,
            name: name.into(),
            value: value.into(),
            mode: XattrMode::Any,
            kill_sgid: false,
        });
        set.await.map(drop)
    }

    /// # Errors
    /// As listxattr(2).
    pub async fn list_xattrs(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let listed = bytes(self.at(path.as_ref(), true, |ino| Request::ListXattr { ino }).await?)?;
        let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| OsString::from_vec(name.to_vec())).collect())
    }

    /// # Errors
    /// As removexattr(2).
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = name.as_ref().as_bytes();
        // Servers permit writers of a file to remove `security.capability`, for kernels.
        if name.starts_with(b"security.") && !self.0.caller().is_superuser() {
            return Err(error(Errno::EPERM));
        }
        self.at(path.as_ref(), true, |ino| Request::RemoveXattr { ino, name: name.into() }).await.map(drop)
    }

    /// Free and total space at a path, limited by quotas that apply there.
    ///
    /// # Errors
    /// As statfs(2).
    pub async fn capacity(&self, path: impl AsRef<Path>) -> io::Result<Capacity> {
        match self.at(path.as_ref(), true, |ino| Request::StatFs { ino }).await? {
            Answer::StatFs(capacity) => Ok(capacity),
            _ => Err(error(Errno::EIO)),
        }
    }

    /// Reads a file completely.
    ///
    /// # Errors
    /// As open(2) and read(2).
    pub async fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        const STEP: usize = 64 << 10;
        let file = self.open(path).await?;
        let mut all = Vec::new();
        loop {
            let begin = all.len();
            // The first request suffices for a small file; each further one doubles the buffer.
            all.resize(begin + begin.max(STEP), 0);
            let read = file.read_at(&mut all[begin..], begin as u64).await?;
            if begin + read < all.len() {
                all.truncate(begin + read);
                return Ok(all);
            }
        }
    }

    /// Creates or replaces a file with these bytes.
    ///
    /// # Errors
    /// As open(2) and write(2).
    pub async fn write(&self, path: impl AsRef<Path>, data: &[u8]) -> io::Result<()> {
        self.create(path).await?.write_all_at(data, 0).await
    }
}

fn bytes(answer: Answer) -> io::Result<Vec<u8>> {
    match answer {
        Answer::Bytes(bytes) => Ok(bytes.into()),
        _ => Err(error(Errno::EIO)),
    }
}

/// A directory listing in progress, without `.` and `..`.
#[derive(Debug)]
pub struct ReadDir {
    session: Arc<Session>,
    handle: Handle,
    after: u64,
    is_end: bool,
    entries: VecDeque<DirEntry>,
}

impl ReadDir {
    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// As readdir(3).
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        while self.entries.is_empty() && !self.is_end {
            let request =
                Request::ReadDir { dir: self.handle.ino, after: self.after, limit: ENTRIES, plus: false };
            let answer = self.session.ask(request).await.map_err(error)?;
            let Answer::Listing { entries, end, .. } = answer else { return Err(error(Errno::EIO)) };
            self.after = entries.last().map_or(self.after, |last| last.cursor);
            self.is_end = end || entries.is_empty();
            self.entries.extend(entries.into_iter().map(|entry| DirEntry {
                name: OsString::from_vec(entry.name.to_vec()),
                ino: entry.ino,
                kind: entry.kind,
            }));
        }
        Ok(self.entries.pop_front())
    }
}
