//! Blocking variants of the calls, for programs without a tokio runtime. They may be called from
//! several threads, but not within a tokio runtime, whose threads must not block.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::runtime::{Builder, Runtime};

use crate::{
    Capacity, ConnectError, ConnectOptions, Credentials, DirEntry, Listed, Messages, Metadata, OpenOptions,
    User,
};

/// As [`crate::FileSystem`].
#[derive(Clone, Debug)]
pub struct FileSystem {
    shared: Arc<SharedRuntime>,
}

#[derive(Debug)]
struct SharedRuntime {
    runtime: Runtime,
    fs: crate::FileSystem,
}

impl Drop for SharedRuntime {
    fn drop(&mut self) {
        self.runtime.block_on(self.fs.clone().close());
    }
}

impl FileSystem {
    /// As [`crate::FileSystem::connect`].
    ///
    /// # Errors
    /// [`ConnectError`]; its text says what to do.
    pub fn connect(url: &str, credentials: &Credentials) -> Result<Self, ConnectError> {
        Self::connect_with(&ConnectOptions::new(), url, credentials)
    }

    /// As [`crate::FileSystem::connect_as`].
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_as(url: &str, credentials: &Credentials, user: User) -> Result<Self, ConnectError> {
        Self::connect_with(ConnectOptions::new().user(user), url, credentials)
    }

    /// As [`ConnectOptions::connect`].
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(
        options: &ConnectOptions,
        url: &str,
        credentials: &Credentials,
    ) -> Result<Self, ConnectError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(ConnectError::Threads)?;
        let fs = runtime.block_on(options.connect(url, credentials))?;
        Ok(Self { shared: Arc::new(SharedRuntime { runtime, fs }) })
    }

    /// Counts of messages sent and received.
    pub fn messages(&self) -> Messages {
        self.shared.fs.messages()
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_with(&self, options: &OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
        let file = self.shared.runtime.block_on(options.open(&self.shared.fs, path))?;
        Ok(File { file, shared: Arc::clone(&self.shared) })
    }

    /// # Errors
    /// As [`crate::FileSystem::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// # Errors
    /// As [`crate::FileSystem::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(OpenOptions::new().write(true).create(true).truncate(true), path)
    }

    /// Lists all entries of a directory.
    ///
    /// # Errors
    /// As [`crate::FileSystem::read_dir`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
        self.shared.runtime.block_on(async {
            let mut dir = self.shared.fs.read_dir(path).await?;
            let mut entries = Vec::new();
            while let Some(entry) = dir.next_entry().await? {
                entries.push(entry);
            }
            Ok(entries)
        })
    }
}

/// Blocking variants of the methods of the same names.
macro_rules! blocking {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $completion:ty;)*) => {
        impl FileSystem {
            $(
                #[doc = concat!("As [`crate::FileSystem::", stringify!($name), "`].\n\n# Errors\nThe same.")]
                pub fn $name(&self, $($argument: $kind),*) -> io::Result<$completion> {
                    self.shared.runtime.block_on(self.shared.fs.$name($($argument),*))
                }
            )*
        }
    };
}

blocking! {
    read_dir_plus(path: impl AsRef<Path>) -> Vec<Listed>;
    metadata(path: impl AsRef<Path>) -> Metadata;
    symlink_metadata(path: impl AsRef<Path>) -> Metadata;
    create_file(path: impl AsRef<Path>, mode: u32) -> ();
    create_dir(path: impl AsRef<Path>) -> ();
    symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
    read_link(path: impl AsRef<Path>) -> PathBuf;
    hard_link(original: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
    remove_file(path: impl AsRef<Path>) -> ();
    remove_dir(path: impl AsRef<Path>) -> ();
    rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
    set_permissions(path: impl AsRef<Path>, mode: u32) -> ();
    set_owner(path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> ();
    set_times(path: impl AsRef<Path>, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> ();
    get_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Vec<u8>;
    set_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: &[u8]) -> ();
    list_xattrs(path: impl AsRef<Path>) -> Vec<OsString>;
    remove_xattr(path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> ();
    capacity(path: impl AsRef<Path>) -> Capacity;
    sync_all(path: impl AsRef<Path>) -> ();
    read(path: impl AsRef<Path>) -> Vec<u8>;
    write(path: impl AsRef<Path>, data: &[u8]) -> ();
}

/// As [`crate::File`].
#[derive(Debug)]
pub struct File {
    // Dropped before `shared`, whose runtime closes it.
    file: crate::File,
    shared: Arc<SharedRuntime>,
}

impl File {
    /// # Errors
    /// As [`crate::File::read_at`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shared.runtime.block_on(self.file.read_at(buffer, offset))
    }

    /// # Errors
    /// As [`crate::File::write_all_at`].
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.shared.runtime.block_on(self.file.write_all_at(data, offset))
    }

    /// # Errors
    /// As [`crate::File::append`].
    pub fn append(&self, data: &[u8]) -> io::Result<()> {
        self.shared.runtime.block_on(self.file.append(data))
    }

    /// # Errors
    /// As [`crate::File::sync_all`].
    pub fn sync_all(&self) -> io::Result<()> {
        self.shared.runtime.block_on(self.file.sync_all())
    }

    /// # Errors
    /// As [`crate::File::metadata`].
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.shared.runtime.block_on(self.file.metadata())
    }

    /// # Errors
    /// As [`crate::File::set_len`].
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.shared.runtime.block_on(self.file.set_len(size))
    }
}
