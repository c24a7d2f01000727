//! Where the store of a decoupled namespace is, by its durability.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use espalier_policy::Durability;
use rustix::fs::{FsWord, statfs};

/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// The type of tmpfs in statfs(2).
const TMPFS: FsWord = 0x0102_1994;

/// Makes the empty directory of a namespace, which only the caller may read, as other users' files
/// will be in it.
pub(super) fn make(chosen: Option<&Path>, durability: Durability, path: &Path, id: u128) -> Result<PathBuf> {
    let store = chosen.map_or_else(|| default(durability, path, id), |store| Ok(store.into()))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&store);
    let cannot = || format!("cannot make {}; choose another place by --store", store.display());
    let store = made.and_then(|()| store.canonicalize()).with_context(cannot)?;
    if fs::read_dir(&store).with_context(cannot)?.next().is_some() {
        bail!("{} is not empty: choose another --store", store.display());
    }
    check(durability, &store, path).inspect_err(|_| drop(fs::remove_dir(&store)))?;
    Ok(store)
}

/// The caller's existing store of a namespace whose durability is unknown, or its journal, in the
/// default places; a store precedes a journal.
///
/// # Errors
/// There is none.
pub(crate) fn find(path: &Path, id: u128) -> Result<Vec<PathBuf>> {
    let all = [Durability::Local, Durability::Global, Durability::None];
    let places: Vec<PathBuf> = all.into_iter().filter_map(|one| default(one, path, id).ok()).collect();
    let journals = places.iter().map(|place| journal_of(place));
    // Others may make entries in some of these places.
    let own = rustix::process::geteuid().as_raw();
    let is_own = |found: fs::Metadata| (found.is_dir() || found.is_file()) && found.uid() == own;
    let exists = |place: &PathBuf| fs::symlink_metadata(place).is_ok_and(is_own);
    let found: Vec<PathBuf> = places.iter().cloned().chain(journals).filter(exists).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let shown: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    bail!(
        "the namespace of {0} is not in {1}: merge it on the machine that has it, or with --from; if it is lost, give \
         it up by `espalier merge --abort {0}`",
        path.display(),
        shown.join(", ")
    )
}

/// The file for the journal of a namespace that is persisted after it was made.
pub(super) fn journal(durability: Durability, path: &Path, id: u128) -> Result<PathBuf> {
    let place = default(durability, path, id)?;
    if let Some(parent) = place.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.with_context(|| format!("cannot make {}", parent.display()))?;
    }
    Ok(journal_of(&place))
}

fn journal_of(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

/// Removes a namespace, or its exported journal.
pub(crate) fn remove(place: &Path) -> std::io::Result<()> {
    if place.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) }
}

fn default(durability: Durability, path: &Path, id: u128) -> Result<PathBuf> {
    Ok(match durability {
        Durability::None => Path::new(MEMORY).join(format!("espalier-decoupled-{id:032x}")),
        Durability::Local => local()?.join("espalier/decoupled").join(format!("{id:032x}")),
        // Every machine that has the directory has this one, too.
        Durability::Global => path
            .parent()
            .context("it is the root directory: choose a place by --store")?
            .join(format!(".espalier-decoupled-{id:032x}")),
    })
}

/// The directory for persistent state of the caller.
fn local() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib".into());
    }
    if let Some(state) = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()) {
        return Ok(state.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set: use --store, or --from")?;
    Ok(Path::new(&home).join(".local/state"))
}

fn check(durability: Durability, store: &Path, path: &Path) -> Result<()> {
    let device = |of: &Path| fs::metadata(of).map(|metadata| metadata.dev());
    match durability {
        Durability::None if statfs(store)?.f_type != TMPFS => bail!(
            "{} is not in memory, as durability none demands: choose a directory of a tmpfs by --store",
            store.display()
        ),
        Durability::Global if device(store)? != device(path)? || store.starts_with(path) => bail!(
            "{} is not at the servers of {1}, as durability global demands: choose a directory of that file system \
             outside {1} by --store",
            store.display(),
            path.display()
        ),
        Durability::None | Durability::Local | Durability::Global => Ok(()),
    }
}
