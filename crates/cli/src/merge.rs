//! `espalier merge`: sends a decoupled namespace to its server, in batches that continue where an
//! earlier merge has stopped.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use espalier_meta::{DECOUPLE, Decoupled, MERGE, MergeBatch, MergeEnd, MergeRecord, encode};
use espalier_policy::{Key, PREFIX};
use espalier_proto::{Attr, Ino};
use espalier_runtime::{BigFile, Merged, NOTIFIED, Namespace, StoreLocation};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{
    Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr,
    fremovexattr, fsetxattr, fsync, futimens, openat,
};
use rustix::io::Errno;

use crate::args::{MergeArgs, UmountArgs};
use crate::decouple::{open_dir, place, state_of};
use crate::mount::{patiently, umount};
use crate::remove::text;
use crate::report::store_of;

/// Bounds of a batch: encoded bytes, records, and open files.
const BATCH_BYTES: usize = 60 << 10;
const BATCH_RECORDS: usize = 1024;
const BATCH_FILES: usize = 64;
/// Linux's limit for the value of an extended attribute, or for a list of names.
const MAX_XATTR: usize = 64 << 10;
/// Restarts of the server that a merge survives, and the pause before it continues.
const RETRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn merge(args: &MergeArgs) -> Result<ExitCode> {
    let path = args.path.canonicalize().with_context(|| format!("no directory {}", args.path.display()))?;
    let mounted = store_of(&path)?.filter(|store| is_namespace(store));
    if args.abort {
        return abort(&path, mounted.as_deref());
    }
    match (mounted, &args.from) {
        (Some(store), None) => merge_mounted(&path, &store),
        (Some(store), Some(from)) if from.canonicalize().is_ok_and(|from| from == store) => {
            merge_mounted(&path, &store)
        }
        (Some(store), Some(_)) => {
            bail!("{} is the namespace of {}: merge it without --from", store.display(), path.display())
        }
        (None, from) => merge_from(&path, from.clone()),
    }
}

/// True for the store of a namespace, as opposed to that of a file system.
fn is_namespace(store: &Path) -> bool {
    espalier_store::superblock::read(store).is_ok_and(|superblock| superblock.label == "decoupled")
}

fn abort(path: &Path, mounted: Option<&Path>) -> Result<ExitCode> {
    if mounted.is_some() {
        unmount(path)?;
    }
    let dir = open_dir(path)?;
    match fremovexattr(&dir, DECOUPLE) {
        Ok(()) => {}
        Err(Errno::NODATA) => bail!("{} is not decoupled", path.display()),
        Err(Errno::PERM) => bail!("{} belongs to another user: only its owner can abort", path.display()),
        Err(errno) => return Err(errno).with_context(|| format!("cannot abort {}", path.display())),
    }
    if let Some(store) = mounted {
        println!(
            "{} is empty; the namespace stays in {}, which `espalier mount` mounts",
            path.display(),
            store.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Merges the namespace that is mounted on the directory.
pub(crate) fn merge_mounted(path: &Path, store: &Path) -> Result<ExitCode> {
    unmount(path)?;
    merge_from(path, Some(store.into()))
}

fn unmount(path: &Path) -> Result<()> {
    let umounted = umount(&UmountArgs { mountpoint: path.into(), force: false, timeout: 600 });
    umounted
        .map(drop)
        .with_context(|| format!("the namespace is in use: repeat `espalier merge {}` then", path.display()))
}

fn merge_from(path: &Path, from: Option<PathBuf>) -> Result<ExitCode> {
    let dir = open_dir(path)?;
    let Some(decoupled) = state_of(&dir)? else {
        bail!("{} is not decoupled: it was merged before, or aborted", path.display());
    };
    if decoupled.id == Decoupled::ABORTED {
        bail!("an abort was interrupted: repeat `espalier merge --abort {}`", path.display());
    }
    let store = from.map_or_else(|| place::find(path, decoupled.id), Ok)?;
    let location = StoreLocation::Directory(store.clone());
    let namespace = patiently(&location, || Namespace::open(&store, &decoupled))?;
    if decoupled.merged > 0 && decoupled.digest != namespace.digest() {
        bail!(
            "{} has changed since its merge began: give it up by `espalier merge --abort {}`",
            store.display(),
            path.display()
        );
    }
    let merger = Merger { dir: &dir, path, namespace: &namespace };
    merger.prepare_root()?;
    merger.send_all(decoupled.merged)?;
    drop(namespace);
    // The entries are merged even if these fail.
    let _ = fgetxattr(&dir, NOTIFIED, &mut [0; 1]);
    std::fs::remove_dir_all(&store)
        .with_context(|| format!("merged, but cannot remove {}", store.display()))?;
    Ok(ExitCode::SUCCESS)
}

struct Merger<'a> {
    dir: &'a File,
    path: &'a Path,
    namespace: &'a Namespace,
}

/// Records to send, with the files that their links name.
#[derive(Default)]
struct OutgoingBatch {
    records: Vec<MergeRecord>,
    files: Vec<File>,
    bytes: usize,
}

impl OutgoingBatch {
    fn is_full(&self) -> bool {
        self.records.len() >= BATCH_RECORDS || self.files.len() >= BATCH_FILES
    }
}

impl Merger<'_> {
    /// Sets what the root of the namespace has and a record cannot say.
    fn prepare_root(&self) -> Result<()> {
        let root = &self.namespace.root;
        let set = |name: &OsStr, value: &[u8]| {
            let set = fsetxattr(self.dir, name, value, XattrFlags::empty());
            set.with_context(|| format!("cannot set {} of {}", name.display(), self.path.display()))
        };
        for (name, value) in self.namespace.root_xattrs()? {
            set(OsStr::from_bytes(&name), &value)?;
        }
        for key in Key::ALL {
            if let Some(value) = root.policy().get(key) {
                set(OsStr::new(&key.attribute()), value.as_bytes())?;
            }
        }
        if root.has_quota() {
            eprintln!("espalier: the quota of {0} itself is not merged: set it again", self.path.display());
        }
        Ok(())
    }

    fn send_all(&self, merged: u64) -> Result<()> {
        let (total, mut at, mut retries) = (self.namespace.len(), merged, 0);
        let bar = ProgressBar::new(total);
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {pos} of {len} records ({per_sec}, {eta} left)",
        )?);
        loop {
            bar.set_position(at);
            let outgoing = self.collect(at)?;
            let next = at + outgoing.records.len() as u64;
            match self.send(at, outgoing) {
                Ok(()) if next == total => break,
                Ok(()) => at = next,
                // A restarted server may have lost the last batches.
                Err(errno) => match state_of(self.dir)? {
                    Some(state) if errno == Errno::INVAL && state.merged < at && retries < RETRIES => {
                        (at, retries) = (state.merged, retries + 1);
                        std::thread::sleep(PAUSE);
                    }
                    state => return Err(self.failure(state.as_ref(), errno)),
                },
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn send(&self, after: u64, outgoing: OutgoingBatch) -> rustix::io::Result<()> {
        let records = self.namespace.len();
        let is_last = after + outgoing.records.len() as u64 == records;
        let batch = MergeBatch {
            id: self.namespace.id,
            digest: self.namespace.digest(),
            after,
            records: outgoing.records,
            end: is_last.then(|| MergeEnd { records, change: self.namespace.root_change() }),
        };
        // The files without names stay open until the server has named them.
        let sent = fsetxattr(self.dir, MERGE, &encode(&batch), XattrFlags::empty());
        drop(outgoing.files);
        sent
    }

    fn failure(&self, state: Option<&Decoupled>, errno: Errno) -> anyhow::Error {
        let shown = self.path.display();
        let Some(state) = state else { return anyhow::anyhow!("{shown} was coupled again by somebody else") };
        let entry = self.namespace.path_of(state.merged);
        anyhow::anyhow!(
            "cannot merge '{}': {}; nothing of {shown} is visible yet: remove the cause and repeat `espalier merge \
             {shown}`, or give it up by `espalier merge --abort {shown}`",
            OsStr::from_bytes(&entry).display(),
            text(errno)
        )
    }

    /// The records from `at` on that fit into a batch.
    fn collect(&self, at: u64) -> Result<OutgoingBatch> {
        let mut outgoing = OutgoingBatch::default();
        for number in at..self.namespace.len() {
            if outgoing.is_full() {
                break;
            }
            let record = match self.namespace.record(number)? {
                Merged::Record(record) => record,
                Merged::Big(file) => {
                    let (opened, ino) = self.upload(&file)?;
                    outgoing.files.push(opened);
                    MergeRecord::Link { ino, names: file.names, time: file.inode.ctime }
                }
            };
            let bytes = encode(&record).len();
            if outgoing.bytes + bytes > BATCH_BYTES && !outgoing.records.is_empty() {
                break;
            }
            outgoing.bytes += bytes;
            outgoing.records.push(record);
        }
        Ok(outgoing)
    }

    /// Writes a big file to a file without a name, with all its attributes, durably.
    fn upload(&self, file: &BigFile) -> Result<(File, Ino)> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = openat(self.dir, ".", flags, Mode::from_raw_mode(0o600));
        let opened = File::from(opened.context("cannot make a file at the server")?);
        let attr = self.namespace.copy_big(file, &opened)?;
        set_attributes(&opened, file, &attr).context("cannot set the attributes of a big file")?;
        Ok((opened.try_clone()?, Ino(opened.metadata()?.ino())))
    }
}

fn set_attributes(opened: &File, file: &BigFile, attr: &Attr) -> rustix::io::Result<()> {
    fchown(opened, Some(Uid::from_raw(attr.uid)), Some(Gid::from_raw(attr.gid)))?;
    for (name, value) in &file.xattrs {
        fsetxattr(opened, OsStr::from_bytes(name), value, XattrFlags::empty())?;
    }
    fchmod(opened, Mode::from_raw_mode(attr.perm))?;
    let time = |time: espalier_proto::Time| Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    futimens(opened, &Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) })?;
    fsync(opened)
}

/// Copies extended attributes of a directory, ACLs included, but not its policy, which the server
/// applies at the merge.
pub(crate) fn copy_xattrs(from: &File, to: &File) -> Result<()> {
    let mut names = vec![0; MAX_XATTR];
    let length = flistxattr(from, &mut names[..]).context("cannot list the directory's attributes")?;
    let mut value = vec![0; MAX_XATTR];
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let copied = fgetxattr(from, name, &mut value[..])
            .and_then(|length| fsetxattr(to, name, &value[..length], XattrFlags::empty()));
        copied.with_context(|| format!("cannot copy the attribute {}", name.to_string_lossy()))?;
    }
    Ok(())
}
