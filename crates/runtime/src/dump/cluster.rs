//! Dumps of a stopped cluster: a directory with one dump per store. A dump is loaded into a cluster
//! of the same shape, which cannot start before the load is complete: metadata servers are prepared
//! first and finished last, the root's at the very end.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use espalier_proto::{Rank, ServerId};
use espalier_store::{FormatOptions, LocalOptions, Superblock, superblock};

use super::Dumped;
use super::frame::{StoreRole, read_failed, write_failed};
use super::load::{Dump, LoadOptions, make, prepare, resume, resume_data};
use super::write::{self, DumpSource};
use crate::data::DataStore;
use crate::error::Error;
use crate::fsck::checkpoint;
use crate::location::StoreLocation;
use crate::ranks::{finish_transactions, open_ranks};
use crate::serve::create_cluster_map;
use crate::shared::SharedStore;
use crate::volume::{OpenOptions, Volume};

/// Paths of a cluster's stores.
#[derive(Clone, Debug)]
pub struct ClusterStores {
    pub ranks: Vec<PathBuf>,
    pub data: Vec<(ServerId, PathBuf)>,
}

/// Dumps a stopped cluster into a directory, one file per store. With `resume`, an interrupted dump
/// there is completed. `progress` receives the number of bytes of the current file.
///
/// # Errors
/// As [`super::dump`] and [`super::resume_dump`]; the directory is not empty; unfinished
/// transactions between ranks.
pub fn dump_cluster(
    stores: &ClusterStores,
    to: &Path,
    resume: bool,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    begin(to, resume)?;
    // All stores stay locked until everything is written.
    let open = |(number, path): &(ServerId, PathBuf)| DataStore::open(path, *number, false);
    let data = stores.data.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let volumes = open_ranks(&stores.ranks, &OpenOptions::read_once())?;
    dump_all(volumes, &data, to, resume, &progress)
}

/// As [`dump_cluster`], for a store that servers share. No server may run.
///
/// # Errors
/// As [`dump_cluster`].
pub fn dump_shared(
    shared: &SharedStore,
    to: &Path,
    resume: bool,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    begin(to, resume)?;
    dump_all(shared.open_all(&OpenOptions::read_once())?, &[], to, resume, &progress)
}

/// Makes the directory of a dump.
fn begin(to: &Path, resume: bool) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(write_failed)?;
    let is_empty = fs::read_dir(to).map_err(write_failed)?.next().is_none();
    if resume || is_empty { Ok(()) } else { Err(Error::NotEmpty(to.into())) }
}

fn dump_all(
    mut volumes: Vec<Volume>,
    data: &[DataStore],
    to: &Path,
    resume: bool,
    progress: &dyn Fn(u64),
) -> Result<Dumped, Error> {
    // Ranks may have joined since the superblock was read.
    let ranks = u16::try_from(volumes.len()).map_err(|_| Error::OtherRanks)?;
    finish_transactions(&mut volumes);
    if volumes.iter().any(|volume| volume.meta.open_transactions() > 0) {
        return Err(Error::Undecided);
    }
    let mut disks = Vec::new();
    for volume in volumes {
        let superblock = volume.superblock.clone();
        disks.push((superblock, checkpoint(volume)?));
    }
    let mut all = Dumped::default();
    for (superblock, disk) in &disks {
        let part = StoreRole::Rank { rank: superblock.rank, ranks };
        let source = DumpSource { superblock, part: Some(part), store: disk.store.as_ref() };
        all += file(&source, &to.join(name(part)), resume, progress)?;
    }
    for store in data {
        let part = StoreRole::Data(store.number());
        let source = DumpSource { superblock: store.superblock(), part: Some(part), store: store.tables()? };
        all += file(&source, &to.join(name(part)), resume, progress)?;
    }
    File::open(to).and_then(|dir| dir.sync_all()).map_err(write_failed)?;
    Ok(all)
}

fn file(source: &DumpSource<'_>, path: &Path, resume: bool, progress: &dyn Fn(u64)) -> Result<Dumped, Error> {
    let mut options = File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(write_failed)?;
    let dumped = match resume {
        true => write::resume(source, &file, progress)?,
        false => write::begin(source, &mut BufWriter::new(&file), progress)?,
    };
    file.sync_all().map_err(write_failed)?;
    Ok(dumped)
}

fn name(part: StoreRole) -> String {
    match part {
        StoreRole::Rank { rank, .. } => format!("rank-{rank}.dump"),
        StoreRole::Data(number) => format!("data-{number}.dump"),
    }
}

/// A store, and the dump for it.
struct Pair {
    part: StoreRole,
    file: PathBuf,
    store: PathBuf,
    superblock: Superblock,
}

/// Loads a dump of [`dump_cluster`] into an empty cluster, or with `force` into one whose files are
/// lost. Until the load is complete, the metadata server with the root does not start. `progress`
/// receives the number of bytes of the current file.
///
/// # Errors
/// As [`super::load`]; the cluster has other servers than the dump, or contains files.
pub fn load_cluster(
    from: &Path,
    stores: &ClusterStores,
    options: &LoadOptions,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    let ranks = u16::try_from(stores.ranks.len()).map_err(|_| Error::OtherRanks)?;
    let mut trees = Vec::new();
    for store in &stores.ranks {
        let part = StoreRole::Rank { rank: superblock::read(store)?.rank, ranks };
        trees.push(Pair::of(from, part, store)?);
    }
    // The root is finished last.
    trees.sort_by_key(|pair| Reverse(pair.superblock.rank));
    let data = stores.data.iter().map(|(number, store)| Pair::of(from, StoreRole::Data(*number), store));
    let data = data.collect::<Result<Vec<_>, _>>()?;
    let files = fs::read_dir(from).map_err(read_failed)?.count();
    if files != trees.len() + data.len() {
        return Err(Error::OtherShape(from.into()));
    }
    if options.resume {
        // Existing content is lost only if it is no file system yet.
        let is_loading = |pair: &Pair| match pair.with_dump(|dump| resume(&(&pair.store).into(), &dump)) {
            Ok(found) => Ok(found.is_some()),
            Err(Error::Loaded(_)) => Ok(false),
            Err(error) => Err(error),
        };
        let loading = trees.iter().map(is_loading).collect::<Result<Vec<_>, _>>()?;
        if !loading.contains(&true) {
            return Err(Error::Loaded(trees.swap_remove(0).store));
        }
    } else {
        if !options.force && !is_new(stores)? {
            return Err(Error::HoldsFiles(trees.swap_remove(0).store));
        }
        for pair in &trees {
            pair.with_dump(|dump| prepare(&(&pair.store).into(), pair.format(&dump), dump.nothing()))?;
        }
    }
    let mut all = Dumped::default();
    for pair in data.iter().chain(&trees) {
        all += pair.load(options, &progress)?;
    }
    Ok(all)
}

/// As [`load_cluster`], into a store that servers share. It cannot be resumed. Until the load is
/// complete there is no cluster map, and no server starts.
///
/// # Errors
/// As [`load_cluster`].
pub fn load_shared(
    from: &Path,
    location: &StoreLocation,
    options: &LoadOptions,
    progress: impl Fn(u64),
) -> Result<Dumped, Error> {
    if options.resume {
        return Err(Error::Option("a load into a store that servers share begins again with --force"));
    }
    let ranks = fs::read_dir(from).map_err(read_failed)?.count();
    let ranks = u16::try_from(ranks).map_err(|_| Error::OtherRanks)?;
    let file = |rank| from.join(name(StoreRole::Rank { rank, ranks }));
    let with_dump = |rank, then: &dyn Fn(Dump<'_>) -> Result<Dumped, Error>| {
        let file = File::open(file(rank)).map_err(|_| Error::OtherShape(from.into()))?;
        let mut reader = BufReader::new(file);
        let dump = Dump::begin(&mut reader)?;
        match dump.part() == Some(StoreRole::Rank { rank, ranks }) {
            true => then(dump),
            false => Err(Error::OtherShape(from.into())),
        }
    };
    // Everything is there before anything is replaced.
    for rank in (0..ranks).map(Rank) {
        with_dump(rank, &|_| Ok(Dumped::default()))?;
    }
    let superblock = location.superblock()?;
    if !options.force && !has_no_files(&SharedStore::connect(location)?.open_all(&OpenOptions::read_once())?)
    {
        return Err(Error::HoldsFiles(location.name()));
    }
    let Superblock { label, journal_bytes, uuid, data_pool, .. } = superblock;
    with_dump(Rank(0), &|dump| {
        let (label, uuid) = (label.clone(), Some(uuid));
        let data_pool = data_pool.as_ref().map(|pool| pool.name.clone());
        let format = FormatOptions { label, journal_bytes, uuid, ranks, data_pool, ..dump.format(true) };
        location.format(&format).map(|_| Dumped::default())
    })?;
    let mut all = Dumped::default();
    // The root is finished last.
    for rank in (0..ranks).rev().map(Rank) {
        all += with_dump(rank, &|dump| {
            let store = location.open_rank(rank, LocalOptions::default())?.store;
            let nothing = dump.nothing();
            dump.load_into(store, nothing, options.interval, &progress)
        })?;
    }
    create_cluster_map(SharedStore::connect(location)?.engine().as_ref(), ranks)?;
    Ok(all)
}

fn has_no_files(volumes: &[Volume]) -> bool {
    volumes.iter().map(|volume| volume.meta.files()).sum::<u64>() <= 1
}

/// True if nothing has been created in the cluster, according to its journals.
fn is_new(stores: &ClusterStores) -> Result<bool, Error> {
    let mut is_new = has_no_files(&open_ranks(&stores.ranks, &OpenOptions::read_once())?);
    for (number, store) in &stores.data {
        is_new &= DataStore::open(store, *number, false)?.datafiles()?.is_empty();
    }
    Ok(is_new)
}

impl Pair {
    fn of(from: &Path, part: StoreRole, store: &Path) -> Result<Self, Error> {
        let file = from.join(name(part));
        let pair = Self { part, file, store: store.into(), superblock: superblock::read(store)? };
        let is_same = pair.file.is_file() && pair.with_dump(|dump| Ok(dump.part() == Some(part)))?;
        if is_same { Ok(pair) } else { Err(Error::OtherShape(from.into())) }
    }

    fn with_dump<T>(&self, then: impl FnOnce(Dump<'_>) -> Result<T, Error>) -> Result<T, Error> {
        then(Dump::begin(&mut BufReader::new(File::open(&self.file).map_err(read_failed)?))?)
    }

    /// The format of the existing store, with the parameters that the dump's records depend on.
    fn format(&self, dump: &Dump<'_>) -> FormatOptions {
        let Superblock { label, journal_bytes, uuid, rank, ranks, .. } = self.superblock.clone();
        let uuid = Some(uuid);
        FormatOptions { label, journal_bytes, uuid, rank, ranks, ..dump.format(true) }
    }

    /// Loads the missing parts. A data server's store is loaded anew if its progress is unknown,
    /// since no metadata refers to it yet.
    fn load(&self, options: &LoadOptions, progress: &dyn Fn(u64)) -> Result<Dumped, Error> {
        self.with_dump(|dump| {
            let found = match self.part {
                StoreRole::Rank { .. } => match resume(&(&self.store).into(), &dump) {
                    Err(Error::Loaded(_)) => return Ok(Dumped::default()),
                    found => found?,
                },
                StoreRole::Data(_) if options.resume => resume_data(&(&self.store).into(), &dump)?,
                StoreRole::Data(_) => None,
            };
            let (store, done) = match found {
                Some(found) => found,
                None => (make(&(&self.store).into(), self.format(&dump))?, dump.nothing()),
            };
            dump.load_into(store, done, options.interval, progress)
        })
    }
}
