//! Paths of streams, and a cache of their open file descriptors.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use espalier_proto::Ino;

use crate::StoreError;
use crate::error::Context;

const FAN_OUT: usize = 256;
/// Subdirectory of provisional streams: those that are not finalised.
const NEW: &str = "new";
const SHARDS: usize = 16;

/// The directories that hold streams.
pub(super) struct Places {
    root: PathBuf,
    /// Indexed by the low byte of the inode number; the last one is [`NEW`].
    dirs: [DirDurability; FAN_OUT + 1],
}

/// Durability of a directory's entries.
#[derive(Default)]
struct DirDurability {
    /// Number of changes of entries, and number of those that are durable.
    changes: AtomicU64,
    synced: Mutex<u64>,
    /// Removals are among the changes that are not durable.
    removals: AtomicBool,
}

impl Places {
    pub(super) fn create(root: &Path) -> Result<(), StoreError> {
        let subdirs = (0..FAN_OUT).map(|low| root.join(format!("{low:02x}")));
        for dir in [root.to_path_buf()].into_iter().chain(subdirs).chain([root.join(NEW)]) {
            std::fs::create_dir(&dir).context("create", &dir)?;
        }
        sync_dir(root)
    }

    pub(super) fn new(root: PathBuf) -> Self {
        // A killed process may have left entries that are not durable.
        let dir = |_| DirDurability { changes: AtomicU64::new(1), ..DirDurability::default() };
        Self { root, dirs: std::array::from_fn(dir) }
    }

    pub(super) fn path(&self, ino: Ino) -> PathBuf {
        self.root.join(format!("{:02x}/{:x}", ino.0 as u8, ino.0))
    }

    pub(super) fn new_path(&self, ino: Ino) -> PathBuf {
        self.root.join(format!("{NEW}/{:x}", ino.0))
    }

    /// Tries both paths of a stream. The stream may be finalised meanwhile, so the first path is
    /// tried again.
    pub(super) fn find<T>(
        &self,
        ino: Ino,
        attempt: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let path = self.path(ino);
        for path in [&path, &self.new_path(ino), &path] {
            match attempt(path) {
                Err(cause) if cause.kind() == ErrorKind::NotFound => {}
                outcome => return outcome.map(Some),
            }
        }
        Ok(None)
    }

    pub(super) fn is_new(&self, ino: Ino) -> bool {
        self.new_path(ino).exists()
    }

    /// Records a new entry, which a sync of the stream must make durable.
    pub(super) fn entered(&self, ino: Ino, new: bool) {
        self.dirs[Self::dir(ino, new)].changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Records a removed entry. `now`: this call removed it.
    pub(super) fn removed(&self, ino: Ino, new: bool, now: bool) {
        let dir = &self.dirs[Self::dir(ino, new)];
        dir.changes.fetch_add(u64::from(now), Ordering::AcqRel);
        dir.removals.store(true, Ordering::Release);
    }

    /// Makes a stream's directory entry durable.
    pub(super) fn sync(&self, ino: Ino, new: bool) -> Result<(), StoreError> {
        self.sync_at(Self::dir(ino, new))
    }

    pub(super) fn sync_new(&self) -> Result<(), StoreError> {
        self.sync_at(FAN_OUT)
    }

    pub(super) fn sync_removed(&self) -> Result<(), StoreError> {
        for (index, dir) in self.dirs.iter().enumerate() {
            if dir.removals.swap(false, Ordering::AcqRel) {
                self.sync_at(index).inspect_err(|_| dir.removals.store(true, Ordering::Release))?;
            }
        }
        Ok(())
    }

    fn sync_at(&self, index: usize) -> Result<(), StoreError> {
        let dir = &self.dirs[index];
        let wanted = dir.changes.load(Ordering::Acquire);
        let mut synced = lock(&dir.synced);
        if *synced < wanted {
            let changes = dir.changes.load(Ordering::Acquire);
            let name = if index == FAN_OUT { NEW.into() } else { format!("{index:02x}") };
            let path = self.root.join(name);
            match File::open(&path).and_then(|dir| dir.sync_all()) {
                // A missing directory has no entries.
                Err(cause) if cause.kind() != ErrorKind::NotFound => {
                    return Err(StoreError::io("sync", &path, cause));
                }
                _ => *synced = changes,
            }
        }
        Ok(())
    }

    /// Makes the parent directory of a path if it is missing.
    pub(super) fn make_dir_of(&self, path: &Path) -> Result<(), StoreError> {
        let dir = path.parent().unwrap_or(&self.root);
        match std::fs::create_dir(dir) {
            Err(cause) if cause.kind() != ErrorKind::AlreadyExists => {
                Err(StoreError::io("create", dir, cause))
            }
            _ => sync_dir(&self.root),
        }
    }

    pub(super) fn list_new(&self) -> Result<Vec<Ino>, StoreError> {
        let mut inos = Vec::new();
        list(&self.root.join(NEW), &mut inos)?;
        // A stream at both paths was finalised; a power failure brought its old name back.
        inos.retain(|&ino| !self.path(ino).exists());
        inos.sort_unstable();
        Ok(inos)
    }

    pub(super) fn list(&self) -> Result<Vec<Ino>, StoreError> {
        let mut inos = Vec::new();
        for low in 0..FAN_OUT {
            list(&self.root.join(format!("{low:02x}")), &mut inos)?;
        }
        list(&self.root.join(NEW), &mut inos)?;
        inos.sort_unstable();
        inos.dedup();
        Ok(inos)
    }

    fn dir(ino: Ino, new: bool) -> usize {
        if new { FAN_OUT } else { usize::from(ino.0 as u8) }
    }
}

fn list(dir: &Path, inos: &mut Vec<Ino>) -> Result<(), StoreError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(StoreError::io("read", dir, cause)),
    };
    for entry in entries {
        let name = entry.context("read", dir)?.file_name();
        let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        inos.extend(number.map(Ino));
    }
    Ok(())
}

fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|dir| dir.sync_all()).context("sync", path)
}

/// Cache of open files. It drops the least recently used file when it is full; the descriptor is
/// closed when its last user drops it.
pub(super) struct Files {
    shards: [Mutex<Shard>; SHARDS],
    capacity: usize,
}

#[derive(Default)]
struct Shard {
    files: HashMap<Ino, (Arc<File>, u64)>,
    /// Inodes by time of last use.
    order: BTreeMap<u64, Ino>,
    now: u64,
}

impl Files {
    pub(super) fn new(capacity: usize) -> Self {
        Self { shards: Default::default(), capacity: capacity.div_ceil(SHARDS).max(1) }
    }

    /// Returns the file of a stream, opened by `open` if it is not cached. Excludes concurrent
    /// opens of the same stream, and opens during its removal.
    pub(super) fn get(
        &self,
        ino: Ino,
        open: impl FnOnce() -> Result<Option<File>, StoreError>,
    ) -> Result<Option<Arc<File>>, StoreError> {
        let mut shard = self.shard(ino);
        if let Some(file) = shard.touch(ino) {
            return Ok(Some(file));
        }
        let Some(file) = open()? else { return Ok(None) };
        let file = Arc::new(file);
        let now = shard.tick();
        shard.files.insert(ino, (Arc::clone(&file), now));
        shard.order.insert(now, ino);
        if shard.files.len() > self.capacity
            && let Some((_, oldest)) = shard.order.pop_first()
        {
            shard.files.remove(&oldest);
        }
        Ok(Some(file))
    }

    pub(super) fn cached(&self, ino: Ino) -> Option<Arc<File>> {
        self.shard(ino).touch(ino)
    }

    /// Drops a stream's file and calls `then` before the file can be opened again.
    pub(super) fn forget_and<T>(&self, ino: Ino, then: impl FnOnce() -> T) -> T {
        let mut shard = self.shard(ino);
        if let Some((_, used)) = shard.files.remove(&ino) {
            shard.order.remove(&used);
        }
        then()
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }
}

impl Shard {
    fn touch(&mut self, ino: Ino) -> Option<Arc<File>> {
        let now = self.tick();
        let (file, used) = self.files.get_mut(&ino)?;
        self.order.remove(used);
        *used = now;
        self.order.insert(now, ino);
        Some(Arc::clone(file))
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
