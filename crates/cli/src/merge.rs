//! `espalier merge`: sends a decoupled namespace to its server, in batches that continue where an
//! earlier merge has stopped.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_meta::{DECOUPLE, Decoupled, MERGE};
use espalier_policy::PREFIX;
use espalier_proto::Ino;
use espalier_runtime::{
    BigFile, ClientJournal, Error, NOTIFIED, NamespaceOrigin, StoreLocation, next_batch, open_client_journal,
};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{
    Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr,
    fremovexattr, fsetxattr, fsync, futimens, openat,
};
use rustix::io::Errno;

use crate::args::UmountArgs;
use crate::decouple::{open_dir, place, state_of};
use crate::mount::{patiently, umount};
use crate::policy;
use crate::remove::text;
use crate::report::store_of;

/// Linux's limit for the value of an extended attribute, or for a list of names.
const MAX_XATTR: usize = 64 << 10;
/// Restarts of the server that a merge survives, and the pause before it continues.
const RETRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub struct MergeArgs {
    /// The decoupled directory.
    #[arg(value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
    /// The namespace's directory or its exported journal, if it is neither mounted on PATH nor in
    /// the default place.
    #[arg(long, value_name = "PLACE", value_hint = ValueHint::AnyPath, conflicts_with = "abort")]
    pub from: Option<PathBuf>,
    /// Give the namespace up: PATH is empty again, or has what was synced. The namespace's
    /// directory stays.
    #[arg(long)]
    pub abort: bool,
}

pub(crate) fn merge(args: &MergeArgs) -> Result<ExitCode> {
    let path = args.path.canonicalize().with_context(|| format!("no directory {}", args.path.display()))?;
    let mounted = mounted_namespace(&path)?;
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

/// The store of the namespace that is mounted on a directory.
pub(crate) fn mounted_namespace(path: &Path) -> Result<Option<PathBuf>> {
    Ok(store_of(path)?.filter(|store| NamespaceOrigin::read(store).is_ok()))
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
            "{} has only what was visible before; the namespace stays in {}, which `espalier mount` mounts",
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

pub(crate) fn unmount(path: &Path) -> Result<()> {
    let umounted = umount(&UmountArgs { mountpoint: path.into(), force: false, timeout: 600 });
    umounted
        .map(drop)
        .with_context(|| format!("the namespace is in use: repeat `espalier merge {}` then", path.display()))
}

fn merge_from(path: &Path, from: Option<PathBuf>) -> Result<ExitCode> {
    let decoupled = decoupled(path, &open_dir(path)?)?;
    let is_export = from.as_ref().is_some_and(|from| from.is_file());
    let places = from.map_or_else(|| place::find(path, decoupled.id), |from| Ok(vec![from]))?;
    let journal = open_journal(&places[0])?;
    apply(path, &*journal, &places[0])?;
    drop(journal);
    // A file that the user names stays.
    for place in places.iter().filter(|_| !is_export) {
        place::remove(place).with_context(|| format!("merged, but cannot remove {}", place.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The state of a decoupled directory that can be merged into.
fn decoupled(path: &Path, dir: &File) -> Result<Decoupled> {
    let Some(decoupled) = state_of(dir)? else {
        bail!("{} is not decoupled: it was merged before, or aborted", path.display());
    };
    if decoupled.id == Decoupled::ABORTED {
        bail!("an abort was interrupted: repeat `espalier merge --abort {}`", path.display());
    }
    Ok(decoupled)
}

/// Opens the journal of a namespace, or an exported one. Waits for a mount that is ending.
pub(crate) fn open_journal(name: &Path) -> Result<Box<dyn ClientJournal>> {
    patiently(&StoreLocation::Directory(name.into()), || open_client_journal(name))
}

/// Volatile apply: sends a client's journal to the server of the decoupled directory.
pub(crate) fn apply(path: &Path, journal: &dyn ClientJournal, name: &Path) -> Result<()> {
    let dir = open_dir(path)?;
    for _ in 0..RETRIES {
        let decoupled = decoupled(path, &dir)?;
        let rest = journal.rest(&decoupled)?;
        let journal = rest.as_deref().unwrap_or(journal);
        journal.check_origin(&decoupled, name)?;
        let merger = Merger { dir: &dir, path, journal };
        merger.prepare_root()?;
        if merger.send_all(decoupled.merged)? {
            // The entries are merged even if this fails.
            let _ = fgetxattr(&dir, NOTIFIED, &mut [0; 1]);
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    bail!("the server of {} loses what it has merged: look at its log", path.display())
}

struct Merger<'a> {
    dir: &'a File,
    path: &'a Path,
    journal: &'a dyn ClientJournal,
}

impl Merger<'_> {
    /// Sets what the root of the namespace has and a record cannot say.
    fn prepare_root(&self) -> Result<()> {
        let root = self.journal.root();
        let set = |name: &OsStr, value: &[u8]| {
            let set = fsetxattr(self.dir, name, value, XattrFlags::empty());
            set.with_context(|| format!("cannot set {} of {}", name.display(), self.path.display()))
        };
        for (name, value) in self.journal.root_xattrs()? {
            set(OsStr::from_bytes(&name), &value)?;
        }
        let old = policy::own(self.path)?;
        policy::change(self.path, &old, &policy::with_bound_of(root.policy().clone(), &old)?)?;
        if root.has_quota() {
            eprintln!("espalier: the quota of {0} itself is not merged: set it again", self.path.display());
        }
        Ok(())
    }

    /// Returns false if the directory has other records from syncs than those that the journal
    /// continues.
    fn send_all(&self, merged: u64) -> Result<bool> {
        let (total, mut at, mut retries) = (self.journal.len(), merged, 0);
        let bar = ProgressBar::new(total);
        bar.set_style(ProgressStyle::with_template(
            "{bar:30} {pos} of {len} records ({per_sec}, {eta} left)",
        )?);
        loop {
            bar.set_position(at);
            let batch = next_batch(self.journal, at, |file| self.upload(file))?;
            let sent = fsetxattr(self.dir, MERGE, &batch.value, XattrFlags::empty());
            // Until here the files without names had to stay open.
            drop(batch.files);
            match sent {
                Ok(()) if batch.next == total => break,
                Ok(()) => at = batch.next,
                // A restarted server may have lost the last batches.
                Err(errno) => match state_of(self.dir)? {
                    Some(state) if errno == Errno::INVAL && self.journal.is_outdated(&state) => {
                        return Ok(false);
                    }
                    Some(state) if errno == Errno::INVAL && state.merged < at && retries < RETRIES => {
                        (at, retries) = (state.merged, retries + 1);
                        std::thread::sleep(PAUSE);
                    }
                    state => return Err(self.failure(state.as_ref(), errno)),
                },
            }
        }
        bar.finish_and_clear();
        Ok(true)
    }

    fn failure(&self, state: Option<&Decoupled>, errno: Errno) -> anyhow::Error {
        let shown = self.path.display();
        let Some(state) = state else { return anyhow::anyhow!("{shown} was coupled again by somebody else") };
        let entry = self.journal.path_of(state.merged);
        let visible = if state.shows { "what was synced" } else { "nothing" };
        anyhow::anyhow!(
            "cannot merge '{}': {}; {visible} of {shown} is visible yet: remove the cause and repeat `espalier merge \
             {shown}`, or give it up by `espalier merge --abort {shown}`",
            OsStr::from_bytes(&entry).display(),
            text(errno)
        )
    }

    /// Writes a big file to a file without a name, with all its attributes, durably.
    fn upload(&self, file: &BigFile) -> Result<(File, Ino)> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let opened = openat(self.dir, ".", flags, Mode::from_raw_mode(0o600));
        let opened = File::from(opened.context("cannot make a file at the server")?);
        let failed = |source| Error::Io { context: "cannot write a big file to the server".into(), source };
        self.journal
            .read_big(file, &mut |offset, bytes| opened.write_all_at(bytes, offset).map_err(failed))?;
        opened.set_len(file.attr.size).map_err(failed)?;
        set_attributes(&opened, file).context("cannot set the attributes of a big file")?;
        Ok((opened.try_clone()?, Ino(opened.metadata()?.ino())))
    }
}

fn set_attributes(opened: &File, file: &BigFile) -> rustix::io::Result<()> {
    let attr = &file.attr;
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
