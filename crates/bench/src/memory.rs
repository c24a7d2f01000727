//! A file system that answers from memory: the minimal cost of a FUSE file system.
//!
//! It omits all checks that the kernel makes, has no extended attributes, and splits its inodes
//! into shards to reduce lock contention. A thread never locks two shards at once.

use std::collections::hash_map::Entry as Place;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use espalier_fuse::{
    Attr, DirBuffer, Entry, Filesystem, Granted, InitFlags, Op, Opened, OpenedFlags, ROOT_NODE, Reply,
    Request, SetAttr, SetTime, StatFs,
};
use espalier_runtime::FOREVER;
use rustc_hash::FxHashMap;
use rustix::fs::OFlags;
use rustix::io::Errno;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const KIND: u32 = 0o170_000;
const PARTS: u64 = 64;

type Result<T> = std::result::Result<T, Errno>;

pub(crate) struct MemoryFs {
    parts: Vec<Mutex<FxHashMap<u64, MemoryInode>>>,
    last: AtomicU64,
    /// Write-only handles bypass the kernel's cache.
    writes_directly: bool,
    /// The kernel opens directories without a request.
    kernel_opens_directories: bool,
}

struct MemoryInode {
    attr: Attr,
    /// Lookup count of the kernel.
    lookups: u64,
    names: DirNames,
    /// File contents, or a link's target.
    data: Vec<u8>,
}

/// Names of a directory. The index of a name in `slots` is its listing offset.
#[derive(Default)]
struct DirNames {
    slots: Vec<Option<(Box<[u8]>, DirChild)>>,
    places: FxHashMap<Box<[u8]>, usize>,
}

#[derive(Clone, Copy)]
struct DirChild {
    node: u64,
    kind: u32,
}

impl DirNames {
    fn get(&self, name: &[u8]) -> Option<DirChild> {
        self.places.get(name).and_then(|&place| self.slots[place].as_ref()).map(|(_, child)| *child)
    }

    /// Adds a name; returns the child that it named before.
    fn insert(&mut self, name: &[u8], child: DirChild) -> Option<DirChild> {
        match self.places.entry(name.into()) {
            Place::Occupied(place) => {
                let slot = self.slots[*place.get()].as_mut();
                slot.map(|(_, named)| std::mem::replace(named, child))
            }
            Place::Vacant(place) => {
                place.insert(self.slots.len());
                self.slots.push(Some((name.into(), child)));
                None
            }
        }
    }

    fn remove(&mut self, name: &[u8]) -> Option<DirChild> {
        let place = self.places.remove(name)?;
        let child = self.slots[place].take().map(|(_, child)| child);
        if self.places.is_empty() {
            self.slots.clear();
        }
        child
    }
}

impl MemoryFs {
    /// An empty tree that belongs to this user.
    pub(crate) fn new(uid: u32, gid: u32, granted: &Granted, kernel_checks: bool) -> MemoryFs {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        let writes_directly = granted.coherent_direct_writes;
        let kernel_opens_directories = kernel_checks && granted.flags.contains(InitFlags::NO_OPENDIR_SUPPORT);
        let memory =
            MemoryFs { parts, last: AtomicU64::new(ROOT_NODE), writes_directly, kernel_opens_directories };
        let root = Attr { ino: ROOT_NODE, mode: DIRECTORY | 0o755, uid, gid, ..fresh() };
        memory.part(ROOT_NODE).insert(ROOT_NODE, MemoryInode::new(root));
        memory
    }

    fn part(&self, node: u64) -> MutexGuard<'_, FxHashMap<u64, MemoryInode>> {
        self.parts[(node % PARTS) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, node: u64, use_it: impl FnOnce(&mut MemoryInode) -> T) -> Result<T> {
        self.part(node).get_mut(&node).map(use_it).ok_or(Errno::NOENT)
    }

    /// Attributes of a node, counted as a lookup.
    fn known(&self, node: u64) -> Result<Entry> {
        self.with(node, |inode| {
            inode.lookups += 1;
            entry(inode.attr)
        })
    }

    fn lookup(&self, dir: u64, name: &[u8]) -> Result<Entry> {
        match self.with(dir, |inode| inode.names.get(name))? {
            Some(child) => self.known(child.node),
            None => Ok(Entry::absent(FOREVER)),
        }
    }

    fn create(&self, request: &Request, name: &[u8], mode: u32, data: &[u8]) -> Result<Entry> {
        let node = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (uid, gid, size) = (request.uid, request.gid, data.len() as u64);
        let attr = Attr { ino: node, mode, uid, gid, size, ..fresh() };
        let inode = MemoryInode { lookups: 1, data: data.to_vec(), ..MemoryInode::new(attr) };
        self.part(node).insert(node, inode);
        let child = DirChild { node, kind: mode & KIND };
        self.with(request.node, |dir| dir.names.insert(name, child))?;
        Ok(entry(attr))
    }

    fn remove(&self, dir: u64, name: &[u8]) -> Result<()> {
        let child = self.with(dir, |inode| inode.names.remove(name))?.ok_or(Errno::NOENT)?;
        self.unname(child)
    }

    fn remove_directory(&self, dir: u64, name: &[u8]) -> Result<()> {
        let child = self.with(dir, |inode| inode.names.get(name))?.ok_or(Errno::NOENT)?;
        if !self.with(child.node, |inode| inode.names.places.is_empty())? {
            return Err(Errno::NOTEMPTY);
        }
        self.remove(dir, name)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<()> {
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let child = self.with(from.0, |inode| inode.names.remove(from.1))?.ok_or(Errno::NOENT)?;
        match self.with(to.0, |inode| inode.names.insert(to.1, child))? {
            Some(replaced) => self.unname(replaced),
            None => Ok(()),
        }
    }

    /// Removes a node's only name; the node stays while the kernel knows it.
    fn unname(&self, child: DirChild) -> Result<()> {
        self.with(child.node, |inode| inode.attr.nlink = 0)?;
        self.forget(child.node, 0);
        Ok(())
    }

    fn forget(&self, node: u64, lookups: u64) {
        let mut part = self.part(node);
        if let Place::Occupied(mut place) = part.entry(node) {
            let inode = place.get_mut();
            inode.lookups = inode.lookups.saturating_sub(lookups);
            if inode.lookups == 0 && inode.attr.nlink == 0 {
                place.remove();
            }
        }
    }

    fn set(&self, node: u64, set: &SetAttr) -> Result<Attr> {
        self.with(node, |inode| {
            if let Some(size) = set.size {
                inode.resize(size as usize);
            }
            let attr = &mut inode.attr;
            attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & KIND | mode & !KIND);
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            attr.atime = set.atime.map_or(attr.atime, chosen);
            attr.mtime = set.mtime.map_or(attr.mtime, chosen);
            *attr
        })
    }

    fn write(&self, node: u64, offset: u64, data: &[u8]) -> Result<u32> {
        self.with(node, |inode| {
            let (start, end) = (offset as usize, offset as usize + data.len());
            if end > inode.data.len() {
                inode.resize(end);
            }
            inode.data[start..end].copy_from_slice(data);
            data.len() as u32
        })
    }

    /// Fills a buffer with entries, with attributes if requested.
    fn list(&self, dir: u64, offset: u64, size: u32, plus: bool) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut buffer = DirBuffer::new(&mut bytes, size);
        // Two shards are never locked at once: collect the names that can fit, then their
        // attributes.
        let most = size as usize / if plus { 160 } else { 32 };
        let names: Vec<_> = self.with(dir, |inode| {
            let slots = inode.names.slots.iter().enumerate().skip(offset as usize);
            slots.filter_map(|(place, slot)| Some((place as u64 + 1, slot.clone()?))).take(most).collect()
        })?;
        for (next, (name, child)) in names {
            let fits = if plus {
                let Ok(entry) = self.known(child.node) else { continue };
                buffer.push_plus(&entry, child.node, next, child.kind, &name)
            } else {
                buffer.push(child.node, next, child.kind, &name)
            };
            if !fits {
                if plus {
                    self.forget(child.node, 1);
                }
                break;
            }
        }
        Ok(bytes)
    }

    fn answer(&self, request: &Request) -> Result<MemoryReply> {
        let node = request.node;
        Ok(match request.op {
            Op::Lookup { name } => MemoryReply::Entry(self.lookup(node, name)?),
            Op::GetAttr { .. } => MemoryReply::Attr(self.with(node, |inode| inode.attr)?),
            Op::SetAttr(ref set) => MemoryReply::Attr(self.set(node, set)?),
            Op::Create { name, mode, umask, .. } => {
                MemoryReply::Created(self.create(request, name, REGULAR | mode & !KIND & !umask, &[])?)
            }
            Op::MkDir { name, mode, umask } => {
                MemoryReply::Entry(self.create(request, name, DIRECTORY | mode & !KIND & !umask, &[])?)
            }
            Op::MkNod { name, mode, umask, .. } => {
                MemoryReply::Entry(self.create(request, name, mode & !umask, &[])?)
            }
            Op::Symlink { name, target } => {
                MemoryReply::Entry(self.create(request, name, SYMLINK | 0o777, target)?)
            }
            Op::ReadLink => MemoryReply::Data(self.with(node, |inode| inode.data.clone())?),
            Op::Unlink { name } => MemoryReply::Done(self.remove(node, name)?),
            Op::RmDir { name } => MemoryReply::Done(self.remove_directory(node, name)?),
            Op::Rename { name, new_parent, new_name, flags } => {
                MemoryReply::Done(self.rename((node, name), (new_parent, new_name), flags)?)
            }
            Op::Open { .. } => MemoryReply::Opened,
            Op::OpenDir { .. } if !self.kernel_opens_directories => MemoryReply::Opened,
            Op::Write { offset, data, .. } => MemoryReply::Written(self.write(node, offset, data)?),
            Op::ReadDir { offset, size, .. } => MemoryReply::Data(self.list(node, offset, size, false)?),
            Op::ReadDirPlus { offset, size, .. } => MemoryReply::Data(self.list(node, offset, size, true)?),
            Op::Release { .. }
            | Op::ReleaseDir { .. }
            | Op::Flush { .. }
            | Op::FSync { .. }
            | Op::FSyncDir { .. }
            | Op::Access { .. } => MemoryReply::Done(()),
            // The kernel does not repeat the request.
            _ => return Err(Errno::NOSYS),
        })
    }

    fn opened(&self, how: u32) -> Opened {
        let mut flags = OpenedFlags::NOFLUSH | OpenedFlags::KEEP_CACHE;
        flags.set(
            OpenedFlags::DIRECT_IO,
            self.writes_directly && OFlags::from_bits_retain(how) & OFlags::ACCMODE == OFlags::WRONLY,
        );
        Opened { flags, ..Opened::default() }
    }

    /// Replies without copying the data.
    fn read(&self, node: u64, offset: u64, size: u32, reply: Reply) {
        let part = self.part(node);
        let data = part.get(&node).map_or(&[][..], |inode| &inode.data);
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + size as usize);
        reply.data(&data[start..end]);
    }
}

enum MemoryReply {
    Done(()),
    Entry(Entry),
    Attr(Attr),
    Created(Entry),
    Opened,
    Written(u32),
    Data(Vec<u8>),
}

impl Filesystem for MemoryFs {
    fn request(&self, request: Request<'_>, reply: Reply) {
        let flags = match request.op {
            Op::Create { flags, .. } | Op::Open { flags, .. } => flags,
            _ => 0,
        };
        match request.op {
            Op::Read { offset, size, .. } => return self.read(request.node, offset, size, reply),
            Op::Forget { lookups } => {
                self.forget(request.node, lookups);
                return reply.none();
            }
            Op::BatchForget(forgets) => {
                forgets.for_each(|(node, lookups)| self.forget(node, lookups));
                return reply.none();
            }
            Op::Interrupt { .. } => return reply.none(),
            Op::StatFs => return reply.statfs(&ROOM),
            _ => {}
        }
        match self.answer(&request) {
            Ok(MemoryReply::Done(())) => reply.ok(),
            Ok(MemoryReply::Entry(entry)) => reply.entry(&entry),
            Ok(MemoryReply::Attr(attr)) => reply.attr(&attr, FOREVER),
            Ok(MemoryReply::Created(entry)) => reply.create(&entry, &self.opened(flags)),
            Ok(MemoryReply::Opened) => reply.open(&self.opened(flags)),
            Ok(MemoryReply::Written(bytes)) => reply.written(bytes),
            Ok(MemoryReply::Data(bytes)) => reply.data(&bytes),
            Err(errno) => reply.error(errno.raw_os_error()),
        }
    }
}

/// Fixed, large free space.
const ROOM: StatFs = StatFs {
    blocks: 1 << 30,
    blocks_free: 1 << 30,
    blocks_available: 1 << 30,
    files: 1 << 30,
    files_free: 1 << 30,
    block_size: 4096,
    fragment_size: 4096,
    name_max: 255,
};

impl MemoryInode {
    fn new(attr: Attr) -> MemoryInode {
        MemoryInode { attr, lookups: 0, names: DirNames::default(), data: Vec::new() }
    }

    fn resize(&mut self, size: usize) {
        self.data.resize(size, 0);
        self.attr.size = size as u64;
        self.attr.blocks = self.attr.size.div_ceil(512);
    }
}

/// Attributes of a new node. A link count of 1 marks a directory whose links are not counted.
fn fresh() -> Attr {
    let now = now();
    Attr { nlink: 1, blksize: 4096, atime: now, mtime: now, ctime: now, ..Attr::default() }
}

fn now() -> (i64, u32) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() as i64, now.subsec_nanos())
}

fn chosen(time: SetTime) -> (i64, u32) {
    match time {
        SetTime::Now => now(),
        SetTime::To(seconds, nanos) => (seconds, nanos),
    }
}

fn entry(attr: Attr) -> Entry {
    Entry { node: attr.ino, generation: 0, attr, entry_valid: FOREVER, attr_valid: FOREVER }
}
