//! `espalier decouple`: mounts a namespace of its own over a directory, and runs a command in it.

pub(crate) mod compose;
pub(crate) mod namespace_sync;
pub(crate) mod place;

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_meta::{DECOUPLE, Decouple, Decoupled, decode, encode};
use espalier_policy::{Composition, Consistency, Durability, Key, Level, Policy, PolicyError};
use espalier_proto::Ino;
use espalier_runtime::{NamespaceOrigin, RootAttributes};
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr, openat};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::background;
use crate::merge::{self, copy_xattrs};
use crate::place::MountedPath;
use crate::policy;
use crate::report::store_of;
use crate::sync::sync_one;

/// More than the longest encoding of a [`Decoupled`].
const MAX_STATE: usize = 16 << 10;

#[derive(Debug, Args)]
pub struct DecoupleArgs {
    /// An empty directory that the caller owns.
    #[arg(value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
    /// Directory for the namespace; created if absent, otherwise empty [default: by the directory's
    /// durability below /var/lib/espalier (~/.local/state/espalier without root), in /dev/shm, or
    /// beside PATH].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub store: Option<PathBuf>,
    /// Most inodes that can be created in the namespace; those of removed files count [default: the
    /// policy's allocated_inodes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub inodes: Option<u64>,
    /// Runs the command as this composition of mechanisms says, instead of the directory's policy,
    /// and prints the time of each, as in 'append client journal+local persist+volatile apply'.
    #[arg(long, value_name = "MECHANISMS", value_parser = Composition::parse, requires = "command")]
    pub compose: Option<Composition>,
    /// A command, after `--`. When it exits with 0, the namespace is merged, unless the directory's
    /// consistency is invisible. Without a command it stays decoupled until `espalier merge`.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A decoupled directory, and the place of its namespace.
pub(crate) struct DecoupledPath {
    path: PathBuf,
    store: PathBuf,
    id: u128,
}

pub(crate) fn decouple(args: &DecoupleArgs) -> Result<ExitCode> {
    let path = args.path.canonicalize().with_context(|| format!("no directory {}", args.path.display()))?;
    let dir = open_dir(&path)?;
    let mounted = MountedPath::of(&dir).context("cannot read the table of mounts")?;
    if !mounted.espalier {
        bail!("{} is not in a mounted Espalier file system", path.display());
    }
    if let Some(mount) = mounted.mounts_below.first() {
        bail!("something is mounted on {}", mount.display());
    }
    let policy = policy::effective(&path)?.or(&Policy::DEFAULT);
    if let Some(composition) = &args.compose {
        let level = Level::of(composition);
        if level.consistency != Consistency::Strong {
            check_offered(&path, level, &mounted)?;
        }
        return compose::run(args, composition, &path, || {
            begin(args, &dir, &path, &policy, compose::place(composition))
        });
    }
    let level = policy.level();
    check_offered(&path, level, &mounted)?;
    if level.consistency == Consistency::Strong {
        return run_in_place(args, &path);
    }
    let decoupled = begin(args, &dir, &path, &policy, level.durability)?;
    let DecoupledPath { path, store, .. } = &decoupled;
    drop(dir);
    if args.command.is_empty() {
        println!(
            "{0} is decoupled in {1}; merge it by `espalier merge {0}`",
            path.display(),
            store.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    let status = run(args)?;
    if !status.success() {
        return Ok(failed(path, status));
    }
    // The level may have changed meanwhile.
    let now = policy::effective(path)?.or(&Policy::DEFAULT).level();
    check_offered(path, now, &mounted)?;
    if now.consistency != Consistency::Invisible {
        return merge::merge_mounted(path, store);
    }
    if now.durability as u8 > level.durability as u8 {
        return compose::persist_mounted(&decoupled, now.durability);
    }
    sync_one(path).map_err(|why| anyhow::anyhow!("cannot sync the namespace: {why}"))?;
    eprintln!("espalier: {0} stays decoupled until `espalier merge {0}`", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Decouples a directory and mounts its namespace.
fn begin(
    args: &DecoupleArgs,
    dir: &File,
    path: &Path,
    policy: &Policy,
    durability: Durability,
) -> Result<DecoupledPath> {
    let id = random_id()?;
    let store = place::make(args.store.as_deref(), durability, path, id)?;
    let inodes = args.inodes.or(policy.allocated_inodes().map(|inodes| inodes.get().into())).unwrap_or(1);
    // The upper half is for inodes that cannot keep their number.
    let decoupled = request(dir, path, &Decouple { id, inodes: 2 * inodes })
        .inspect_err(|_| drop(std::fs::remove_dir(&store)))?;
    if let Err(error) = start(dir, path, &store, decoupled) {
        // Nothing was done in the namespace.
        if store_of(path)?.as_deref() == Some(&*store) {
            let _ = espalier_fuse::unmount(path);
        }
        let _ = fremovexattr(dir, DECOUPLE);
        let _ = std::fs::remove_dir_all(&store);
        return Err(error);
    }
    Ok(DecoupledPath { path: path.into(), store, id })
}

fn failed(path: &Path, status: ExitStatus) -> ExitCode {
    eprintln!(
        "espalier: the command failed ({status}), so {0} stays decoupled: merge it by `espalier merge {0}`, or give it \
         up by `espalier merge --abort {0}`",
        path.display()
    );
    exit_code(status)
}

/// Checks that the mount of a directory has a level.
fn check_offered(path: &Path, level: Level, mounted: &MountedPath) -> Result<()> {
    let shown = path.display();
    if !level.is_offered() {
        bail!("{shown} cannot be decoupled: {}", PolicyError::Level(level.durability));
    }
    let is_global = level.consistency != Consistency::Strong && level.durability == Durability::Global;
    if is_global && mounted.source.is_absolute() {
        bail!(
            "{shown} cannot have durability global: its mount has no servers, and a namespace is lost with the disk \
             {}; use durability local",
            mounted.source.display()
        );
    }
    Ok(())
}

/// Runs the command in the directory itself, whose changes others see immediately.
fn run_in_place(args: &DecoupleArgs, path: &Path) -> Result<ExitCode> {
    let shown = path.display();
    if args.command.is_empty() {
        bail!(
            "{shown} has consistency strong, so there is nothing to merge: set it to weak or invisible first"
        );
    }
    eprintln!("espalier: {shown} has consistency strong: the command works in the directory itself");
    Ok(exit_code(run(args)?))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

pub(crate) fn open_dir(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty());
    Ok(File::from(dir.with_context(|| format!("cannot open the directory {}", path.display()))?))
}

/// The state of a decoupled directory; `None` if it is not decoupled.
pub(crate) fn state_of(dir: &File) -> Result<Option<Decoupled>> {
    let mut value = vec![0; MAX_STATE];
    match fgetxattr(dir, DECOUPLE, &mut value[..]) {
        Ok(length) => {
            Ok(Some(decode(&value[..length]).map_err(|_| anyhow::anyhow!("the server's reply is invalid"))?))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(Errno::OPNOTSUPP) => bail!("it is not in a mounted Espalier file system"),
        Err(errno) => Err(errno).context("cannot ask the server about the directory"),
    }
}

fn random_id() -> Result<u128> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .context("the system has no random numbers")?;
    Ok(u128::from_ne_bytes(id))
}

fn request(dir: &File, path: &Path, decouple: &Decouple) -> Result<Decoupled> {
    let value = encode(decouple);
    let shown = path.display();
    match fsetxattr(dir, DECOUPLE, &value, XattrFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOTEMPTY) => {
            bail!("{shown} is not empty: decouple a new directory, and move its entries when it is merged")
        }
        Err(Errno::BUSY) => {
            bail!("{shown} is decoupled already: `espalier merge {shown}` ends that, or `--abort` with it")
        }
        Err(Errno::PERM) => bail!("{shown} belongs to another user: only its owner can decouple it"),
        Err(Errno::OPNOTSUPP) => {
            bail!(
                "{shown} cannot be decoupled: it is spread over servers, or its mount is of another version"
            )
        }
        Err(errno) => return Err(errno).with_context(|| format!("cannot decouple {shown}")),
    }
    state_of(dir)?.with_context(|| format!("{shown} was coupled again by somebody else"))
}

/// Makes the namespace and mounts it.
fn start(dir: &File, path: &Path, store: &Path, decoupled: Decoupled) -> Result<()> {
    let metadata = dir.metadata().context("cannot read the directory's attributes")?;
    let origin = NamespaceOrigin { directory: Ino(metadata.ino()), decoupled };
    espalier_runtime::mkfs_namespace(store, &origin, root_of(&metadata))?;
    let mut settings = policy::own(path)?;
    // The server checks the bound at the merge.
    settings.unset(Key::Bound);
    mount(store, path)?;
    policy::change(path, &Policy::NONE, &settings)?;
    copy_xattrs(dir, &open_dir(path)?)
}

fn root_of(metadata: &Metadata) -> RootAttributes {
    RootAttributes { uid: metadata.uid(), gid: metadata.gid(), perm: metadata.mode() & 0o7777 }
}

fn mount(store: &Path, path: &Path) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["mount", "--foreground", "--announce"]).arg(store).arg(path);
    if background::start(command)? != ExitCode::SUCCESS {
        bail!("cannot mount the namespace on {}", path.display());
    }
    Ok(())
}

/// Runs the command, whose working directory may be in the namespace.
fn run(args: &DecoupleArgs) -> Result<ExitStatus> {
    let Some((program, rest)) = args.command.split_first() else { bail!("no command") };
    // An interrupt ends the command, and not this program, which has to say what becomes of its
    // files.
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .context("cannot handle signals")?;
    }
    let mut command = Command::new(program);
    if let Ok(dir) = std::env::current_dir() {
        command.current_dir(dir);
    }
    command.args(rest).status().with_context(|| format!("cannot run {}", program.display()))
}
