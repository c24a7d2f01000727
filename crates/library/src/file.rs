//! Open files.

use std::io;
use std::path::Path;
use std::sync::Arc;

use espalier_client::{Answer, Call};
use espalier_proto::{Access, END, Errno, FileType, Ino, NewNode, OpenHow, Reads, Request, SetAttr};

use crate::file_system::{FileSystem, error};
use crate::metadata::Metadata;
use crate::session::{Handle, Session};

/// Maximum size of one read or write request, in bytes.
const CHUNK: usize = 1 << 20;

/// Options for opening a file, as in [`std::fs::OpenOptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// No access; new files get the permissions 0o666, less the umask.
    pub fn new() -> Self {
        Self { read: false, write: false, truncate: false, create: false, create_new: false, mode: 0o666 }
    }

    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, which must not exist.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Permissions of a new file, at most 0o7777.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// # Errors
    /// As open(2); `EINVAL` without any access, or without write access where it is needed.
    pub async fn open(&self, fs: &FileSystem, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        let file = fs.retry(|| self.open_once(&fs.0, path)).await?;
        let Self { read, write, .. } = *self;
        Ok(File { session: Arc::clone(&fs.0), handle: file, read, write })
    }

    fn how(&self, session: &Session) -> Result<OpenHow, Errno> {
        let needs_write = self.truncate || self.create || self.create_new;
        if !self.write && (needs_write || !self.read) {
            return Err(Errno::EINVAL);
        }
        let mut access = Access::empty();
        access.set(Access::READ, self.read);
        access.set(Access::WRITE, self.write);
        let (kill_suid_gid, truncate) = (!session.caller().is_superuser(), self.truncate);
        let how = OpenHow { access, kill_suid_gid, truncate, ..OpenHow::default() };
        Ok(OpenHow { reads: Reads::Whole, ..how })
    }

    async fn open_once(&self, session: &Arc<Session>, path: &Path) -> Result<Handle, Errno> {
        let how = self.how(session)?;
        if self.create || self.create_new {
            let place = session.place(path, Errno::EISDIR).await?;
            if place.is_dir {
                return Err(Errno::EISDIR);
            }
            let request = Request::Create {
                dir: place.dir,
                name: place.name,
                node: NewNode::Regular,
                perm: self.mode,
                umask: session.umask(),
                open: Some(how),
                exclusive: self.create_new,
                writeback: None,
            };
            match session.request(request).await {
                Ok(completion) => return completion.handle.ok_or(Errno::EIO),
                // Open the target of the symbolic link; do not create it.
                Err(Errno::ELOOP) => {}
                Err(errno) => return Err(errno),
            }
        }
        let found = session.find(path, true).await?;
        if found.kind != FileType::Regular {
            return Err(not_a_file(found.kind));
        }
        open(session, found.ino, how).await
    }
}

fn not_a_file(kind: FileType) -> Errno {
    match kind {
        FileType::Directory => Errno::EISDIR,
        // No kernel opens this file type here.
        _ => Errno::ENXIO,
    }
}

pub(crate) async fn open(session: &Arc<Session>, ino: Ino, how: OpenHow) -> Result<Handle, Errno> {
    session.request(Request::Open { ino, how }).await?.handle.ok_or(Errno::EIO)
}

/// An open file. It can be used until it is dropped, even if it is unlinked.
#[derive(Debug)]
pub struct File {
    session: Arc<Session>,
    handle: Handle,
    read: bool,
    write: bool,
}

impl File {
    /// Reads at an offset until the buffer is full or the file ends; returns the number of bytes.
    ///
    /// # Errors
    /// As read(2); `EBADF` if the file was not opened for reading.
    pub async fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.may(self.read)?;
        let mut done = 0;
        while done < buffer.len() {
            let size = (buffer.len() - done).min(CHUNK);
            let call = Call::read(self.handle.ino, offset + done as u64, size as u32, false);
            let completion = self.session.call(call).await.map_err(error)?;
            let Answer::Bytes(bytes) = completion.answer else { return Err(error(Errno::EIO)) };
            let read = bytes.len().min(size);
            buffer[done..done + read].copy_from_slice(&bytes[..read]);
            done += read;
            if read < size {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `data` at an offset.
    ///
    /// # Errors
    /// As write(2); `EBADF` if the file was not opened for writing. A part may have been written.
    pub async fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + CHUNK);
            done += self.write(&data[done..end], offset + done as u64).await?;
        }
        Ok(())
    }

    /// Appends to the file. Data of more than 1 MiB may be interleaved with other appends.
    ///
    /// # Errors
    /// As [`Self::write_all_at`].
    pub async fn append(&self, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + CHUNK);
            done += self.write(&data[done..end], END).await?;
        }
        Ok(())
    }

    async fn write(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.may(self.write)?;
        let ino = self.handle.ino;
        let kill_suid_gid = !self.session.caller().is_superuser();
        let call = Call::write(ino, offset, data.into(), kill_suid_gid);
        let completion = self.session.call(call).await.map_err(error)?;
        match completion.answer {
            Answer::Written(written) if written > 0 => Ok((written as usize).min(data.len())),
            Answer::Written(_) => Err(io::ErrorKind::WriteZero.into()),
            _ => Err(error(Errno::EIO)),
        }
    }

    /// Returns when all earlier writes to the file, by any client, are durable.
    ///
    /// # Errors
    /// As fsync(2).
    pub async fn sync_all(&self) -> io::Result<()> {
        self.session.ask(Request::Fsync { ino: self.handle.ino }).await.map_err(error)?;
        Ok(())
    }

    /// # Errors
    /// As fstat(2); `ESTALE` if the server has lost the open file.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        self.session.attr(self.handle.ino).await.map(Metadata).map_err(error)
    }

    /// # Errors
    /// As ftruncate(2); `EBADF` if the file was not opened for writing.
    pub async fn set_len(&self, size: u64) -> io::Result<()> {
        self.may(self.write)?;
        let kill_suid_gid = !self.session.caller().is_superuser();
        let set = SetAttr { size: Some(size), kill_suid_gid, through_handle: true, ..SetAttr::default() };
        self.session.ask(Request::SetAttr { ino: self.handle.ino, set }).await.map_err(error)?;
        Ok(())
    }

    fn may(&self, may: bool) -> io::Result<()> {
        if may { Ok(()) } else { Err(error(Errno::EBADF)) }
    }
}
