//! Checks a store that is not mounted.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_meta::{Check, Finding};
use espalier_proto::{Errno, Ino, Lease, Recall, ServerId};
use espalier_store::Store;

use crate::calls::{Calls, Door, Outcome};
use crate::data::DataStore;
use crate::disk::Disk;
use crate::error::Error;
use crate::node::Node;
use crate::volume::{OpenOptions, Volume};
use crate::watch::Watch;

/// What a check has found.
#[derive(Debug, Default)]
pub struct FsckReport {
    /// Events that were replayed from the journal first.
    pub replayed: u64,
    pub records: u64,
    pub files: u64,
    pub directories: u64,
    /// Empty: the file system is clean.
    pub findings: Vec<Finding>,
}

/// Replays the journal, as mounting would, and then checks that all records fit together. `progress` is told the
/// number of records read, now and then.
pub fn fsck(dir: &Path, progress: impl Fn(u64)) -> Result<FsckReport, Error> {
    fsck_cluster(dir, &[], progress)
}

/// As [`fsck`], and compares the files with the datafiles that are in these stores, if there are any: then in those of all data
/// servers.
pub fn fsck_cluster(
    dir: &Path,
    data: &[(ServerId, PathBuf)],
    progress: impl Fn(u64),
) -> Result<FsckReport, Error> {
    let open = |(number, path): &(ServerId, PathBuf)| DataStore::open(path, *number, false);
    let data = data.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let opened = Volume::open(dir, OpenOptions::read_once()).and_then(|volume| {
        let (hash_key, replayed) = (volume.superblock.hash_key, volume.replayed);
        let disk = checkpoint(volume)?;
        check(&disk, &data, hash_key, replayed, &progress)
    });
    match opened {
        Err(error) if error.is_damage() => {
            let findings = vec![Finding { ino: None, what: error.to_string() }];
            Ok(FsckReport { findings, ..FsckReport::default() })
        }
        outcome => outcome,
    }
}

/// Checks that all records can be read and fit together.
pub(crate) fn check(
    disk: &Disk,
    data: &[DataStore],
    hash_key: [u8; 16],
    replayed: u64,
    progress: &impl Fn(u64),
) -> Result<FsckReport, Error> {
    disk.store.verify()?;
    let mut check = Check::new(hash_key);
    for record in disk.store.records() {
        let (object, key, value) = record?;
        check.record(object, &key, &value);
        if check.records.is_multiple_of(4096) {
            progress(check.records);
        }
    }
    for ino in disk.store.streams()? {
        check.stream(ino, disk.store.stream_stat(ino)?.size);
    }
    for store in data {
        for (ino, size) in store.datafiles()? {
            check.datafile(store.number(), ino, size);
        }
    }
    if !data.is_empty() {
        check.datafiles_end();
    }
    progress(check.records);
    let (records, files, directories) = (check.records, check.files, check.directories);
    Ok(FsckReport { replayed, records, files, directories, findings: check.finish() })
}

/// Brings the tables up to the journal.
pub(crate) fn checkpoint(volume: Volume) -> Result<Arc<Disk>, Error> {
    let (node, background) = Node::new(volume.meta, Arc::clone(&volume.disk), Closed, Watch::new(1, None));
    std::thread::scope(|scope| {
        scope.spawn(|| node.run_background(background));
        let drained = node.drain(Duration::from_secs(600));
        node.errands.stop();
        if drained { Ok(()) } else { Err(Error::Unwritten(node.state().1.unwrap_or(Errno::EIO))) }
    })?;
    Ok(volume.disk)
}

/// No calls come in.
struct Closed;

impl Door for Closed {
    type Ticket = ();

    fn answer(&self, _: &impl Calls<Self>, (): (), _: Result<Outcome<'_>, Errno>, _: Duration) {}

    fn revoke(&self, _: &Lease, _: impl FnOnce() + Send + 'static) {}

    fn distrust(&self, _: &[Ino]) {}

    fn recall(&self, _: &[Recall]) {}

    fn changed(&self, _: &[Ino]) {}

    fn left_behind(&self, _: Ino, _: Range<u64>) {}
}
