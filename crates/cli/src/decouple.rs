//! `espalier decouple`: mounts a namespace of its own over a directory, and runs a command in it.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use espalier_meta::{DECOUPLE, Decouple, Decoupled, decode, encode};
use espalier_runtime::RootAttributes;
use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fgetxattr, fremovexattr, fsetxattr, openat};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::DecoupleArgs;
use crate::background;
use crate::merge::{self, copy_xattrs};
use crate::place::MountedPath;
use crate::report::store_of;

/// Longest encoding of a [`Decoupled`].
const MAX_STATE: usize = 256;

pub(crate) fn decouple(args: &DecoupleArgs) -> Result<ExitCode> {
    let path = args.path.canonicalize().with_context(|| format!("no directory {}", args.path.display()))?;
    let dir = open_dir(&path)?;
    let place = MountedPath::of(&dir).context("cannot read the table of mounts")?;
    if !place.espalier {
        bail!("{} is not in a mounted Espalier file system", path.display());
    }
    if let Some(mount) = place.mounts_below.first() {
        bail!("something is mounted on {}", mount.display());
    }
    let id = random_id()?;
    let store = make_private(&args.store.clone().map_or_else(|| default_store(id), Ok)?)?;
    let decoupled = request(&dir, &path, &Decouple { id, inodes: numbers(args) })?;
    if let Err(error) = start(&dir, &path, &store, &decoupled) {
        // Nothing was done in the namespace.
        if store_of(&path)?.as_deref() == Some(&*store) {
            let _ = espalier_fuse::unmount(&path);
        }
        let _ = fremovexattr(&dir, DECOUPLE);
        return Err(error);
    }
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
        eprintln!(
            "espalier: the command failed ({status}), so {0} stays decoupled: merge it by `espalier merge {0}`, or \
             give it up by `espalier merge --abort {0}`",
            path.display()
        );
        return Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)));
    }
    merge::merge_mounted(&path, &store)
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

/// Inode numbers to provision: the upper half is for inodes that cannot keep theirs.
fn numbers(args: &DecoupleArgs) -> u64 {
    2 * args.inodes
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
fn start(dir: &File, path: &Path, store: &Path, decoupled: &Decoupled) -> Result<()> {
    let metadata = dir.metadata().context("cannot read the directory's attributes")?;
    espalier_runtime::mkfs_namespace(store, decoupled, root_of(&metadata))?;
    mount(store, path)?;
    copy_xattrs(dir, &open_dir(path)?)
}

fn root_of(metadata: &Metadata) -> RootAttributes {
    RootAttributes { uid: metadata.uid(), gid: metadata.gid(), perm: metadata.mode() & 0o7777 }
}

/// Makes an empty directory that only the caller may read, as other users' files will be in it.
fn make_private(store: &Path) -> Result<PathBuf> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(store);
    let cannot = || format!("cannot make {}", store.display());
    let store = made.and_then(|()| store.canonicalize()).with_context(cannot)?;
    if fs::read_dir(&store).with_context(cannot)?.next().is_some() {
        bail!("{} is not empty: choose another --store", store.display());
    }
    Ok(store)
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

/// The directory of the namespace with this number.
pub(crate) fn default_store(id: u128) -> Result<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib")
    } else if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()) {
        state.into()
    } else {
        let home = std::env::var_os("HOME").context("HOME is not set: use --store, or --from")?;
        Path::new(&home).join(".local/state")
    };
    Ok(base.join("espalier/decoupled").join(format!("{id:032x}")))
}
