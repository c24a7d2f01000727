//! Where a store is: a directory, or a namespace of a RADOS cluster.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_proto::{Rank, Space};
use espalier_store::{
    Engine, FormatOptions, Journal, LocalOptions, LocalStore, MigrationState, ObjectOptions, ObjectStore,
    Rados, RadosAddress, RankLease, Store, StorePool, Superblock, SuperblockError, format_objects, pools_of,
    read_superblock, replace_objects_journal, superblock,
};

use crate::error::Error;

/// Start of the name of a store in a cluster.
const RADOS: &str = "rados:";
/// Term of the lease of a store in a cluster: how long a mount is unusable after the machine of the
/// last one has crashed.
const TERM: Duration = Duration::from_secs(15);

/// True for the name of a store in a cluster.
pub fn is_in_cluster(name: &Path) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(RADOS))
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    Directory(PathBuf),
    Rados(RadosAddress),
}

/// How to connect to a cluster.
#[derive(Clone, Debug, Default)]
pub struct RadosAccess {
    /// The cluster's configuration; `None`: Ceph's default.
    pub conf: Option<PathBuf>,
    /// User without the prefix `client.`; `None`: `admin`.
    pub user: Option<String>,
}

/// A store that is open, with its journal.
pub(crate) struct OpenedStore {
    pub superblock: Superblock,
    pub store: Box<dyn Store>,
    pub journal: Journal,
}

impl From<&Path> for StoreLocation {
    fn from(dir: &Path) -> Self {
        Self::Directory(dir.into())
    }
}

impl From<&PathBuf> for StoreLocation {
    fn from(dir: &PathBuf) -> Self {
        Self::Directory(dir.clone())
    }
}

impl From<&Self> for StoreLocation {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}

impl StoreLocation {
    /// Parses `rados:POOL` or `rados:POOL/NAMESPACE`; anything else is a directory.
    ///
    /// # Errors
    /// [`Error::Option`] for an incomplete name.
    pub fn parse(source: &Path, access: &RadosAccess) -> Result<Self, Error> {
        let Some(name) = source.to_str().and_then(|source| source.strip_prefix(RADOS)) else {
            return Ok(Self::Directory(source.into()));
        };
        let (pool, namespace) = name.split_once('/').unwrap_or((name, ""));
        if pool.is_empty() || namespace.contains('/') {
            return Err(Error::Option("a store in a cluster is rados:POOL or rados:POOL/NAMESPACE"));
        }
        Ok(Self::Rados(RadosAddress {
            pool: pool.into(),
            namespace: namespace.into(),
            conf: access.conf.clone(),
            user: access.user.clone().unwrap_or_else(|| "admin".into()),
        }))
    }

    /// The store's name for users; the directory itself for a store in a directory.
    pub fn name(&self) -> PathBuf {
        match self {
            Self::Directory(dir) => dir.clone(),
            Self::Rados(RadosAddress { pool, namespace, .. }) if namespace.is_empty() => {
                format!("{RADOS}{pool}").into()
            }
            Self::Rados(RadosAddress { pool, namespace, .. }) => format!("{RADOS}{pool}/{namespace}").into(),
        }
    }

    /// The store's name for other processes: an absolute path without links. It is the same before
    /// and after the directory is made.
    pub fn full_name(&self) -> PathBuf {
        match self {
            Self::Directory(dir) => {
                let path = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
                let name_below = |ancestor: &Path| {
                    let missing = path.strip_prefix(ancestor).ok()?;
                    Some(ancestor.canonicalize().ok()?.join(missing).components().collect())
                };
                path.ancestors().find_map(name_below).unwrap_or(path)
            }
            Self::Rados(_) => self.name(),
        }
    }

    /// The directory of a store that is in one.
    pub fn directory(&self) -> Option<&Path> {
        if let Self::Directory(dir) = self { Some(dir) } else { None }
    }

    /// Reads the superblock.
    pub(crate) fn superblock(&self) -> Result<Superblock, Error> {
        match self {
            Self::Directory(dir) => Ok(superblock::read(dir)?),
            Self::Rados(address) => self.superblock_in(&Rados::connect(address)?),
        }
    }

    fn superblock_in(&self, engine: &impl Engine) -> Result<Superblock, Error> {
        Ok(read_superblock(engine, &self.name().to_string_lossy())?)
    }

    /// The superblock, and the pools of a store in a cluster.
    pub(crate) fn examine(&self) -> Result<(Superblock, Vec<StorePool>), Error> {
        let Self::Rados(address) = self else { return Ok((self.superblock()?, Vec::new())) };
        let engine = Rados::connect(address)?;
        let superblock = self.superblock_in(&engine)?;
        let pools = pools_of(&engine, &superblock)?;
        Ok((superblock, pools))
    }

    /// Refuses the name of a data pool that the existing store does not have.
    pub(crate) fn check_data_pool(&self, found: &Superblock, wanted: Option<&str>) -> Result<(), Error> {
        let has = found.data_pool.as_ref().map(|pool| &*pool.name);
        if wanted.is_none() || wanted == has {
            return Ok(());
        }
        let has = has.map_or_else(|| "the same place as the rest".into(), |pool| format!("the pool {pool}"));
        Err(Error::OtherDataPool { path: self.name(), has })
    }

    /// As [`Self::superblock`]; `None` if there is no store.
    pub(crate) fn find_superblock(&self) -> Result<Option<Superblock>, Error> {
        use SuperblockError::{NoDirectory, NoStore};
        use espalier_store::StoreError::Superblock as InStore;
        match self.superblock() {
            Err(Error::Superblock(NoDirectory(_) | NoStore(_)) | Error::Store(InStore(NoStore(_)))) => {
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Makes empty stores: in a directory of one rank, in a cluster of all.
    pub(crate) fn format(&self, options: &FormatOptions) -> Result<Superblock, Error> {
        match self {
            Self::Directory(_) if options.data_pool.is_some() => {
                Err(Error::Option("--data-pool is for stores in a cluster: rados:POOL/NAMESPACE"))
            }
            Self::Directory(dir) => Ok(superblock::format(dir, options)?),
            Self::Rados(address) => {
                let engine = Arc::new(Rados::connect(address)?);
                Ok(format_objects(&engine, &self.name().to_string_lossy(), options)?)
            }
        }
    }

    /// Opens the store; its journal is not replayed.
    pub(crate) fn open(&self, options: LocalOptions) -> Result<OpenedStore, Error> {
        self.open_rank(Rank(0), options)
    }

    /// As [`Self::open`], the store of a rank in a cluster.
    pub(crate) fn open_rank(&self, rank: Rank, options: LocalOptions) -> Result<OpenedStore, Error> {
        match self {
            Self::Directory(dir) => {
                let (store, journal) = LocalStore::open_with(dir, options)?;
                let superblock = store.superblock().clone();
                Ok(OpenedStore { superblock, store: Box::new(store), journal: journal.erase() })
            }
            Self::Rados(address) => {
                let engine = Arc::new(Rados::connect(address)?);
                let superblock = Superblock { rank, ..self.superblock_in(engine.as_ref())? };
                let LocalOptions { read_only, cache_bytes, incoming, .. } = options;
                if !(incoming && matches!(superblock.migration, MigrationState::Incoming { .. })) {
                    superblock.check_present(&self.name())?;
                }
                let in_objects = ObjectOptions { read_only, cache_bytes };
                let lease = RankLease::acquire(&engine, rank, TERM)?;
                let (store, journal) = ObjectStore::open(&engine, &superblock, lease, in_objects)?;
                Ok(OpenedStore { superblock, store: Box::new(store), journal: journal.erase() })
            }
        }
    }

    /// Replaces the journal of a store in a cluster by an empty one. `old` gets its bytes, and
    /// `sync` makes them durable. `is_open`: the caller has the store open, and with it its lease.
    pub(crate) fn replace_journal(
        &self,
        superblock: &Superblock,
        old: &mut dyn Write,
        sync: impl FnOnce() -> std::io::Result<()>,
        is_open: bool,
    ) -> Result<(), Error> {
        match self {
            Self::Directory(_) => Err(Error::Option("the store is in no cluster")),
            Self::Rados(address) => {
                let engine = Arc::new(Rados::connect(address)?);
                let rank = superblock.rank;
                let _lease = (!is_open).then(|| RankLease::acquire(&engine, rank, TERM)).transpose()?;
                Ok(replace_objects_journal(&engine, superblock, rank, old, sync)?)
            }
        }
    }

    /// Space of the file system or pool that has the metadata, or will have them.
    pub(crate) fn space(&self) -> Result<Space, Error> {
        match self {
            Self::Directory(dir) => {
                let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
                let existing = dir.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&dir);
                let stat = rustix::fs::statvfs(existing).map_err(|error| Error::Io {
                    context: format!("cannot look at {}", existing.display()),
                    source: error.into(),
                })?;
                let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
                let (total, free) = (bytes(stat.f_blocks), bytes(stat.f_bfree));
                let available = bytes(stat.f_bavail);
                Ok(Space { total, free, available, files: stat.f_files, files_free: stat.f_favail })
            }
            Self::Rados(address) => {
                Ok(Rados::connect(address)?.space().map_err(espalier_store::StoreError::from)?)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use espalier_store::engine::PoolId;

    use super::*;

    #[test]
    fn a_directory_has_the_same_name_before_it_is_made() {
        let work = tempfile::tempdir().unwrap();
        std::fs::create_dir(work.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", work.path().join("link")).unwrap();
        let location = StoreLocation::Directory(work.path().join("link/a/b"));
        let before = location.full_name();
        std::fs::create_dir_all(location.directory().unwrap()).unwrap();
        assert_eq!(before, location.full_name());
        assert_eq!(before, work.path().canonicalize().unwrap().join("real/a/b"));
    }

    #[test]
    fn data_pools_are_those_of_stores_in_clusters() {
        let work = tempfile::tempdir().unwrap();
        let location = StoreLocation::Directory(work.path().join("a"));
        let options = FormatOptions { data_pool: Some("data".into()), ..FormatOptions::default() };
        assert!(matches!(location.format(&options), Err(Error::Option(_))));
        assert!(!work.path().join("a").exists(), "nothing was made");
        let superblock = location.format(&FormatOptions::default()).unwrap();
        location.check_data_pool(&superblock, None).unwrap();
        let refused = location.check_data_pool(&superblock, Some("data"));
        assert!(matches!(refused, Err(Error::OtherDataPool { .. })));
        let data_pool = Some(PoolId { name: "data".into(), number: 3 });
        let with_pool = Superblock { data_pool, ..superblock };
        location.check_data_pool(&with_pool, Some("data")).unwrap();
        assert!(location.check_data_pool(&with_pool, Some("other")).is_err());
    }

    #[test]
    fn sources_are_directories_or_namespaces() {
        let access = RadosAccess { conf: Some("c".into()), user: None };
        let parse = |source: &str| StoreLocation::parse(Path::new(source), &access);
        assert_eq!(parse("a/rados:b").unwrap(), StoreLocation::from(Path::new("a/rados:b")));
        for (source, pool, namespace) in [("rados:p", "p", ""), ("rados:p/n", "p", "n")] {
            let location = parse(source).unwrap();
            let StoreLocation::Rados(address) = &location else { panic!("{location:?}") };
            assert_eq!((&*address.pool, &*address.namespace, &*address.user), (pool, namespace, "admin"));
            assert_eq!((location.name(), location.directory()), (PathBuf::from(source), None));
        }
        for source in ["rados:", "rados:/n", "rados:p/n/m"] {
            assert!(parse(source).is_err(), "{source}");
        }
    }
}
