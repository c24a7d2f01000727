//! Checks a store that is not mounted.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use espalier_meta::{Check, Finding};
use espalier_proto::{Errno, Ino, Lease, Name, Rank, Recall, ServerId};
use espalier_store::{Store, Superblock};

use crate::calls::{CallOutcome, Calls, Frontend};
use crate::data::DataStore;
use crate::disk::Disk;
use crate::error::Error;
use crate::location::StoreLocation;
use crate::node::Node;
use crate::ranks::{finish_transactions, open_ranks};
use crate::shared::SharedStore;
use crate::volume::{OpenOptions, Volume};
use crate::watch::Watch;

/// The result of a check.
#[derive(Debug, Default)]
pub struct FsckReport {
    /// Events replayed from the journal before the check.
    pub replayed: u64,
    pub records: u64,
    pub files: u64,
    pub directories: u64,
    /// Empty if the file system is clean.
    pub findings: Vec<Finding>,
}

/// Replays the journal as mounting does, then checks all records for consistency. `progress`
/// receives the number of records read.
pub fn fsck(location: impl Into<StoreLocation>, progress: impl Fn(u64)) -> Result<FsckReport, Error> {
    // Refuses the store of one of several ranks.
    report_damage(
        Volume::open(location, OpenOptions::read_once())
            .and_then(|volume| check_all(vec![volume], &[], &progress)),
    )
}

/// As [`fsck`], for the stores of all ranks, after finishing transactions between them. Compares
/// files with datafiles, if the stores of all data servers are given.
pub fn fsck_cluster(
    ranks: &[PathBuf],
    data: &[(ServerId, PathBuf)],
    progress: impl Fn(u64),
) -> Result<FsckReport, Error> {
    let open = |(number, path): &(ServerId, PathBuf)| DataStore::open(path, *number, false);
    let data = data.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    report_damage(
        open_ranks(ranks, &OpenOptions::read_once())
            .and_then(|volumes| check_ranks(volumes, &data, &progress)),
    )
}

/// As [`fsck_cluster`], for a store that servers share.
pub fn fsck_shared(shared: &SharedStore, progress: impl Fn(u64)) -> Result<FsckReport, Error> {
    let opened = shared.open_all(&OpenOptions::read_once());
    report_damage(opened.and_then(|volumes| check_ranks(volumes, &[], &progress)))
}

fn check_ranks(
    mut volumes: Vec<Volume>,
    data: &[DataStore],
    progress: &impl Fn(u64),
) -> Result<FsckReport, Error> {
    finish_transactions(&mut volumes);
    check_all(volumes, data, progress)
}

/// Reports damage as a finding.
fn report_damage(checked: Result<FsckReport, Error>) -> Result<FsckReport, Error> {
    match checked {
        Err(error) if error.is_damage() => {
            let findings = vec![Finding { ino: None, message: error.to_string() }];
            Ok(FsckReport { findings, ..FsckReport::default() })
        }
        outcome => outcome,
    }
}

fn check_all(volumes: Vec<Volume>, data: &[DataStore], progress: &impl Fn(u64)) -> Result<FsckReport, Error> {
    let mut report = FsckReport::default();
    let mut checks = Vec::new();
    for volume in volumes {
        let open = volume.meta.open_transactions();
        let (Superblock { hash_key, rank, .. }, replayed) = (volume.superblock.clone(), volume.replayed);
        let (disk, records) = (checkpoint(volume)?, report.records);
        let check = read(&disk, (hash_key, rank), &|read| progress(records + read))?;
        report.replayed += replayed;
        report.records += check.records;
        report.files += check.counts.files;
        report.directories += check.directories;
        if open > 0 {
            let message = format!("{open} operations among ranks do not come to their end at rank {rank}");
            report.findings.push(Finding { ino: None, message });
        }
        checks.push(check);
    }
    for store in data {
        for (ino, size) in store.datafiles()? {
            // Datafiles of no file are reported with the rank of the number, if there is one.
            let home = Some(usize::from(ino.rank().0)).filter(|rank| *rank < checks.len()).unwrap_or(0);
            let rank = checks.iter().position(|check| check.has_striped(ino)).unwrap_or(home);
            if let Some(check) = checks.get_mut(rank) {
                check.datafile(store.number(), ino, size);
            }
        }
    }
    if !data.is_empty() {
        checks.iter_mut().for_each(Check::datafiles_end);
    }
    progress(report.records);
    report.findings.append(&mut Check::finish_all(checks));
    Ok(report)
}

/// Checks the records of a single store for consistency.
pub(crate) fn check(
    disk: &Disk,
    hash_key: [u8; 16],
    replayed: u64,
    progress: &impl Fn(u64),
) -> Result<FsckReport, Error> {
    let check = read(disk, (hash_key, Rank(0)), progress)?;
    progress(check.records);
    let (records, files, directories) = (check.records, check.counts.files, check.directories);
    Ok(FsckReport { replayed, records, files, directories, findings: check.finish() })
}

/// Feeds all records of a store to a check.
pub(crate) fn read(
    disk: &Disk,
    (hash_key, rank): ([u8; 16], Rank),
    progress: &impl Fn(u64),
) -> Result<Check, Error> {
    disk.store.verify()?;
    let mut check = Check::new(hash_key, rank);
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
    Ok(check)
}

/// Writes the journal's events to the tables.
pub(crate) fn checkpoint(volume: Volume) -> Result<Arc<Disk>, Error> {
    let (node, background) = Node::new(volume.meta, Arc::clone(&volume.disk), Closed, Watch::new(1, None));
    std::thread::scope(|scope| {
        scope.spawn(|| node.run_background(background));
        let drained = node.drain(Duration::from_secs(600));
        node.background_work.stop();
        if drained { Ok(()) } else { Err(Error::Unwritten(node.state().1.unwrap_or(Errno::EIO))) }
    })?;
    Ok(volume.disk)
}

/// A frontend without calls.
struct Closed;

impl Frontend for Closed {
    type Ticket = ();

    fn answer(&self, _: &impl Calls<Self>, (): (), _: Result<CallOutcome<'_>, Errno>, _: Duration) {}

    fn revoke(
        &self,
        _: &Lease,
        _: bool,
        _: impl Fn() + Send + Sync + 'static,
        _: impl FnOnce() + Send + 'static,
    ) {
    }

    fn distrust_names(&self) {}

    fn distrust(&self, _: Vec<(Ino, Name)>, _: &[Ino]) {}

    fn recall(&self, _: &[Recall], _: &[(Ino, Name)]) {}

    fn changed(&self, _: &[Ino]) {}
    fn privileges_removed(&self, _: Ino) {}

    fn flushed_behind(&self, _: Ino, _: Range<u64>) {}
}
