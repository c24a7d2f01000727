//! The root of a running cluster, through a mount or through its servers.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use espalier_library::User;
use espalier_library::blocking::FileSystem;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::{cluster, report, subtree};

/// Maximum size in bytes of an extended attribute's value, as on Linux.
const MAX_VALUE: usize = 65536;

/// See the module description. Paths in it are absolute.
pub(super) enum ClusterRoot {
    /// A mount point.
    Mount(PathBuf),
    /// A cluster's directory, and a connection to its servers.
    Servers(PathBuf, FileSystem),
}

impl ClusterRoot {
    /// `path`: in a mount of the cluster's root, or the cluster's directory.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let root = mount_of(path)?;
        // A mount is not searched for the servers of a cluster, since it may be large.
        if report::store_of(&root)?.is_some() {
            return Ok(Self::Mount(root));
        }
        if !cluster::is_cluster(path) {
            bail!(
                "{} is neither in a mount of the root of several metadata servers nor a cluster's directory",
                path.display()
            );
        }
        let (url, credentials) = cluster::client_of(path)?;
        let fs = FileSystem::connect_as(&url, &credentials, User::current());
        Ok(Self::Servers(path.to_owned(), fs.with_context(|| format!("the cluster in {}", path.display()))?))
    }

    /// As the user has named it.
    pub(super) fn shown(&self) -> impl std::fmt::Display {
        let (Self::Mount(path) | Self::Servers(path, _)) = self;
        path.display()
    }

    /// The path of the file system's file with this path here, in a mount.
    fn in_mount(root: &Path, path: &Path) -> PathBuf {
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn get(&self, path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
        match self {
            Self::Mount(root) => {
                let mut value = vec![0; MAX_VALUE];
                let length = getxattr(Self::in_mount(root, path), name, &mut value)?;
                value.truncate(length);
                Ok(value)
            }
            Self::Servers(_, fs) => fs.get_xattr(path, name).map_err(|error| errno(&error)),
        }
    }

    /// Sets an attribute of the root.
    pub(super) fn set(&self, name: &str, value: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Mount(root) => setxattr(root, name, value, XattrFlags::empty()),
            Self::Servers(_, fs) => fs.set_xattr("/", name, value).map_err(|error| errno(&error)),
        }
    }

    /// The inode number of a file, and whether it is a directory.
    pub(super) fn inode(&self, path: &Path) -> Result<(u64, bool)> {
        let found = match self {
            Self::Mount(root) => {
                std::fs::metadata(Self::in_mount(root, path)).map(|it| (it.ino(), it.is_dir()))
            }
            Self::Servers(_, fs) => fs.metadata(path).map(|it| (it.ino(), it.is_dir())),
        };
        found.with_context(|| format!("cannot read {}", path.display()))
    }

    /// The paths and inode numbers of directories, `most` of them or a few more. Those that cannot
    /// be read are left out.
    pub(super) fn directories(&self, most: usize) -> Vec<(PathBuf, u64)> {
        match self {
            Self::Mount(root) => {
                let found = subtree::directories(root, most).unwrap_or_default();
                let inner = |(dir, ino): (PathBuf, u64)| {
                    Some((Path::new("/").join(dir.strip_prefix(root).ok()?), ino))
                };
                found.into_iter().filter_map(inner).collect()
            }
            Self::Servers(_, fs) => {
                let mut dirs = vec![(PathBuf::from("/"), 1)];
                let mut next = 0;
                while let Some((dir, _)) = dirs.get(next).filter(|_| dirs.len() < most).cloned() {
                    next += 1;
                    let listed = fs.read_dir_plus(&dir).unwrap_or_default();
                    let below = listed.into_iter().filter(|it| it.metadata.is_dir());
                    dirs.extend(below.map(|it| (dir.join(it.entry.file_name()), it.metadata.ino())));
                }
                dirs
            }
        }
    }

    /// The path in the file system of a path that the user gives: in the mount, or in the cluster.
    pub(super) fn inner(&self, path: &Path) -> Result<PathBuf> {
        let Self::Mount(root) = self else { return Ok(Path::new("/").join(path)) };
        let full = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
        let inner = full
            .strip_prefix(root)
            .with_context(|| format!("{} is not in {}", path.display(), root.display()))?;
        Ok(Path::new("/").join(inner))
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// The mount point of the file system that has a path.
fn mount_of(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev());
    let of = device(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let root = path.ancestors().take_while(|dir| device(dir).is_ok_and(|device| device == of)).last();
    Ok(root.unwrap_or(&path).to_owned())
}
