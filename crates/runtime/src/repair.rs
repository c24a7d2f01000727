//! Repairs stores that are not mounted: opens and replays as much as possible, then makes the
//! records of all ranks consistent. Everything that is replaced or removed is saved in the
//! directory `quarantine` of its store; of a store in a cluster, in the working directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_meta::{
    Check, Config, Finding, Format, Inode, Recovery, Repair, Repaired, StreamCall, Super, decode,
    is_sound_record,
};
use espalier_proto::{ObjectId, Position, Rank, ServerId, TableWrite, Time};
use espalier_store::{
    Journal, JournalError, LocalOptions, Mended, Store, StoreError, Superblock, mend, new_journal,
    replace_journal,
};

use crate::clock;
use crate::disk::Disk;
use crate::dump::unfinished;
use crate::error::Error;
use crate::fsck::{FsckReport, check, checkpoint, fsck_cluster, fsck_shared, read};
use crate::location::StoreLocation;
use crate::ranks::{are_one_tree, finish_transactions};
use crate::shared::SharedStore;
use crate::volume::{Volume, fetch, require_single_rank};

/// The result of a repair.
#[derive(Debug)]
pub struct RepairReport {
    /// The repairs; empty if nothing was wrong.
    pub done: Vec<Finding>,
    /// Directories of the saved old records and files.
    pub quarantines: Vec<PathBuf>,
    /// The result of the final check.
    pub after: FsckReport,
}

/// A store under repair.
struct Repairing {
    location: StoreLocation,
    quarantine: PathBuf,
    superblock: Superblock,
}

/// A store that is open, with its journal replayed as far as possible.
enum OpenedStore {
    /// The journal could not be used.
    Unreplayed(Arc<Disk>),
    Replayed {
        volume: Box<Volume>,
        /// If later events are lost: where replay began, and the end of the good ones.
        lost: Option<(Position, Position)>,
    },
}

/// Repairs a file system. An undamaged one is changed only as by mounting.
///
/// # Errors
/// The store is in use, or the disk fails. The repair can be repeated then.
pub fn repair(location: impl Into<StoreLocation>, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    report_damage(try_repair(&location.into(), progress))
}

/// As [`repair`], for the stores of all ranks, after finishing transactions between them. Datafiles
/// are checked, and not repaired.
///
/// # Errors
/// As of [`repair`]; the stores are not those of one complete tree.
pub fn repair_cluster(
    ranks: &[PathBuf],
    data: &[(ServerId, PathBuf)],
    progress: impl Fn(u64),
) -> Result<RepairReport, Error> {
    report_damage(try_repair_cluster(ranks, data, progress))
}

/// As [`repair_cluster`], for a store that servers share. No server may run.
///
/// # Errors
/// As of [`repair`].
pub fn repair_shared(location: &StoreLocation, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    report_damage(try_repair_shared(location, progress))
}

/// Reports damage that prevents a repair as a finding.
fn report_damage(repaired: Result<RepairReport, Error>) -> Result<RepairReport, Error> {
    match repaired {
        Err(error) if error.is_damage() => {
            let findings = vec![Finding { ino: None, message: error.to_string() }];
            let after = FsckReport { findings, ..FsckReport::default() };
            Ok(RepairReport { done: Vec::new(), quarantines: Vec::new(), after })
        }
        outcome => outcome,
    }
}

fn try_repair(location: &StoreLocation, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    let (now, name) = (clock::now(), location.name());
    let mut done = Vec::new();
    if let Ok(superblock) = location.superblock() {
        require_single_rank(&superblock, &name)?;
    }
    let store = Repairing::mend(location.clone(), now, &mut done)?;
    require_single_rank(&store.superblock, &name)?;
    let opened = store.open(&mut done)?;
    let (disk, replayed) = store.checkpoint(opened)?;
    let hash_key = store.superblock.hash_key;
    let mut after = check(&disk, hash_key, replayed, &progress)?;
    let (stores, disks) = ([store], [disk]);
    if !after.findings.is_empty() {
        repair_records(&stores, &disks, now, &mut done)?;
        after = check(&disks[0], hash_key, replayed, &progress)?;
    }
    Ok(RepairReport { done, quarantines: quarantines(&stores), after })
}

fn try_repair_cluster(
    ranks: &[PathBuf],
    data: &[(ServerId, PathBuf)],
    progress: impl Fn(u64),
) -> Result<RepairReport, Error> {
    let now = clock::now();
    let mut done = Vec::new();
    let mut stores = Vec::new();
    for dir in ranks {
        let mut of_rank = Vec::new();
        let store = Repairing::mend(dir.into(), now, &mut of_rank)?;
        say_rank(store.superblock.rank, of_rank, &mut done);
        stores.push(store);
    }
    repair_ranks(stores, done, now, &progress, || fsck_cluster(ranks, data, &progress))
}

fn try_repair_shared(location: &StoreLocation, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    let now = clock::now();
    let shared = SharedStore::connect(location)?;
    let mut done = Vec::new();
    let mut stores = Vec::new();
    for rank in shared.ranks()? {
        let mut of_rank = Vec::new();
        stores.push(Repairing::mend_shared(location.clone(), rank, now, &mut of_rank)?);
        say_rank(rank, of_rank, &mut done);
    }
    // Ranks may have joined since the superblock was written.
    let ranks = stores.len() as u16;
    stores.iter_mut().for_each(|store| store.superblock.ranks = ranks);
    repair_ranks(stores, done, now, &progress, || fsck_shared(&shared, &progress))
}

/// Repairs the stores of all ranks. `check`: the final check of the closed stores.
fn repair_ranks(
    mut stores: Vec<Repairing>,
    mut done: Vec<Finding>,
    now: Time,
    progress: &impl Fn(u64),
    check: impl FnOnce() -> Result<FsckReport, Error>,
) -> Result<RepairReport, Error> {
    stores.sort_by_key(|store| store.superblock.rank);
    if !are_one_tree(stores.iter().map(|store| &store.superblock)) {
        return Err(Error::OtherRanks);
    }
    let disks = open_all(&stores, &mut done)?;
    let mut checks = Vec::new();
    for (store, disk) in stores.iter().zip(&disks) {
        let Superblock { hash_key, rank, .. } = store.superblock;
        checks.push(read(disk, (hash_key, rank), progress)?);
    }
    if !Check::finish_all(checks).is_empty() {
        repair_records(&stores, &disks, now, &mut done)?;
    }
    drop(disks);
    let after = check()?;
    Ok(RepairReport { done, quarantines: quarantines(&stores), after })
}

/// Opens the stores of all ranks, finishes transactions between them, and writes all events to the
/// tables.
fn open_all(stores: &[Repairing], done: &mut Vec<Finding>) -> Result<Vec<Arc<Disk>>, Error> {
    let (mut disks, mut volumes) = (BTreeMap::new(), Vec::new());
    let mut lost_events = BTreeMap::new();
    for store in stores {
        let (rank, mut found) = (store.superblock.rank, Vec::new());
        let opened = store.open(&mut found)?;
        say_rank(rank, found, done);
        match opened {
            OpenedStore::Unreplayed(disk) => drop(disks.insert(rank, disk)),
            OpenedStore::Replayed { volume, lost } => {
                volumes.push(*volume);
                lost_events.insert(rank, lost);
            }
        }
    }
    finish_transactions(&mut volumes);
    for volume in volumes {
        let rank = volume.superblock.rank;
        let lost = lost_events.remove(&rank).flatten();
        if let Some(store) = stores.iter().find(|store| store.superblock.rank == rank) {
            let opened = OpenedStore::Replayed { volume: Box::new(volume), lost };
            disks.insert(rank, store.checkpoint(opened)?.0);
        }
    }
    Ok(disks.into_values().collect())
}

/// Repairs the records of all ranks.
fn repair_records(
    stores: &[Repairing],
    disks: &[Arc<Disk>],
    now: Time,
    done: &mut Vec<Finding>,
) -> Result<(), Error> {
    let Some(first) = stores.first() else { return Ok(()) };
    let mut repair = Repair::new(first.superblock.hash_key, now, stores.len() as u16);
    for (store, disk) in stores.iter().zip(disks) {
        let rank = store.superblock.rank;
        for record in disk.store.records() {
            let (object, key, value) = record?;
            repair.record(rank, object, &key, &value);
        }
        for ino in disk.store.streams()? {
            repair.stream(rank, ino, disk.store.stream_stat(ino)?.size);
        }
    }
    for ((store, disk), repaired) in stores.iter().zip(disks).zip(repair.finish()) {
        if !repaired.writes.is_empty() {
            quarantine_records(disk.store.as_ref(), &repaired.writes, &store.quarantine)?;
        }
        carry_out(disk.store.as_ref(), &repaired)?;
        done.extend(repaired.done);
    }
    Ok(())
}

fn quarantines(stores: &[Repairing]) -> Vec<PathBuf> {
    let quarantines = stores.iter().map(|store| store.quarantine.clone());
    quarantines.filter(|quarantine| quarantine.exists()).collect()
}

/// Adds the rank to what was found in its store.
fn say_rank(rank: Rank, found: Vec<Finding>, done: &mut Vec<Finding>) {
    let message =
        |finding: Finding| Finding { message: format!("rank {rank}: {}", finding.message), ..finding };
    done.extend(found.into_iter().map(message));
}

fn say(done: &mut Vec<Finding>, message: String) {
    done.push(Finding { ino: None, message });
}

fn say_mended(mended: &Mended, done: &mut Vec<Finding>) {
    if let Some(message) = &mended.superblock {
        say(done, message.clone());
    }
    if let Some((why, salvage)) = &mended.tables {
        let (read, blocks) = (salvage.read, salvage.lost_blocks);
        say(done, format!("{why}: of the tables {read} records could be read, {blocks} blocks could not"));
        for table in &salvage.lost_tables {
            say(done, format!("cannot read {table} completely"));
        }
        if salvage.unlisted {
            say(done, "the list of tables was damaged: files that were removed lately may be back".into());
        }
    }
    if let Some(why) = &mended.journal {
        say(done, format!("{why}: there is a new journal, and what only the old one held is lost"));
    }
    if mended.streams {
        say(done, "the directory of streams was missing: what big files held is lost".into());
    }
}

impl Repairing {
    /// Makes a store's superblock, tables and journal readable.
    fn mend(location: StoreLocation, now: Time, done: &mut Vec<Finding>) -> Result<Self, Error> {
        let time = format!("{}.{:09}", now.secs, now.nanos);
        if let Some(dir) = location.directory() {
            let quarantine = dir.join("quarantine").join(time);
            say_mended(&mend(dir, &quarantine)?, done);
            let superblock = location.superblock()?;
            return Ok(Self { location, quarantine, superblock });
        }
        let superblock = location.superblock()?;
        Self::mend_in_cluster(location, superblock, &time, done)
    }

    /// As [`Self::mend`], the store of a rank that servers share.
    fn mend_shared(
        location: StoreLocation,
        rank: Rank,
        now: Time,
        done: &mut Vec<Finding>,
    ) -> Result<Self, Error> {
        let superblock = Superblock { rank, ..location.superblock()? };
        let time = format!("{}.{:09}-rank-{rank}", now.secs, now.nanos);
        Self::mend_in_cluster(location, superblock, &time, done)
    }

    fn mend_in_cluster(
        location: StoreLocation,
        superblock: Superblock,
        name: &str,
        done: &mut Vec<Finding>,
    ) -> Result<Self, Error> {
        let quarantine = PathBuf::from(format!("quarantine-{}", superblock.uuid)).join(name);
        let quarantine = std::path::absolute(&quarantine)
            .map_err(|source| Error::Io { context: "the working directory is invalid".into(), source })?;
        let store = Self { location, quarantine, superblock };
        match store.location.open_rank(store.superblock.rank, LocalOptions::default()).map(drop) {
            Err(Error::Store(StoreError::Journal(
                why @ (JournalError::NoJournal | JournalError::Foreign | JournalError::Truncated { .. }),
            ))) => {
                store.replace_journal(false)?;
                say_mended(&Mended { journal: Some(why.to_string()), ..Mended::default() }, done);
            }
            outcome => outcome?,
        }
        Ok(store)
    }

    /// An empty journal for the repair, which [`Self::replace_journal`] installs. In a cluster it
    /// is in the quarantine until then.
    fn new_journal(&self) -> Result<Journal, Error> {
        let dir = self.location.directory().unwrap_or(&self.quarantine);
        if dir == self.quarantine {
            let failed = |source| Error::Io { context: format!("cannot create {}", dir.display()), source };
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        Ok(new_journal(dir, &self.superblock)?.erase())
    }

    /// Replaces the store's journal by an empty one, and saves the old one. `is_open`: the store is
    /// open.
    fn replace_journal(&self, is_open: bool) -> Result<(), Error> {
        if let Some(dir) = self.location.directory() {
            return Ok(replace_journal(dir, &self.quarantine)?);
        }
        let path = self.quarantine.join("journal");
        let failed = |source| Error::Io { context: format!("cannot write {}", path.display()), source };
        std::fs::create_dir_all(&self.quarantine).map_err(failed)?;
        let old = File::create(&path).map_err(failed)?;
        let sync = || {
            old.sync_all()?;
            // The directory of all quarantines, and the quarantine in it, may be new as well.
            let dirs = self.quarantine.ancestors().take(3);
            dirs.map(File::open).try_for_each(|dir| dir?.sync_all())
        };
        self.location.replace_journal(&self.superblock, &mut &old, sync, is_open)?;
        match std::fs::remove_file(self.quarantine.join("journal.new")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Opens the store and replays as much as possible.
    fn open(&self, done: &mut Vec<Finding>) -> Result<OpenedStore, Error> {
        let quarantine = &self.quarantine;
        let opened = self.location.open_rank(self.superblock.rank, LocalOptions::default())?;
        let crate::location::OpenedStore { superblock, store, mut journal } = opened;
        match unfinished(store.as_ref(), &superblock, &self.location.name())? {
            loading @ Error::Loading(_) => return Err(loading),
            datafiles @ Error::Datafiles(_) if store.get(ObjectId::SUPER, b"")?.is_none() => {
                return Err(datafiles);
            }
            unfinished if store.records().next().is_none() => return Err(unfinished),
            _ => {}
        }
        let first = store.get(ObjectId::SUPER, b"")?.filter(|first| Super::parse(first).is_some());
        let Some(first) = first else {
            // A journal is usable only with the record of its start; it must not be replayed from
            // another position.
            let journal = self.new_journal()?;
            self.replace_journal(true)?;
            say(done, "where to begin in the journal is not known: what only it held is lost".into());
            return Ok(OpenedStore::Unreplayed(Arc::new(Disk::new(store, journal, false))));
        };
        if self.superblock.rank == Rank(0) {
            restore_root(store.as_ref(), quarantine, done)?;
        }
        let (mut recovery, from) = begin(store.as_ref(), &self.superblock, &journal, &first)?;
        let failed = replay(&mut journal, from, &mut recovery, store.as_ref())?;
        if let Some((_, why)) = &failed {
            let events = recovery.events;
            let lost = format!("{events} events of the journal were replayed, and those after them are lost");
            say(done, format!("{why}: {lost}"));
        }
        if let Some((good, _)) = &failed {
            // The old journal stays until a checkpoint contains the replayed events.
            journal = self.new_journal()?;
            journal.replay(*good, |_, _| ())?;
        }
        journal.forget_torn()?;
        let lost = failed.map(|(good, _)| (from, good));
        Ok(OpenedStore::Replayed { volume: Box::new(self.recovered(store, journal, recovery, lost)?), lost })
    }

    /// The volume after replay. `lost`: as of [`OpenedStore::Replayed`].
    fn recovered(
        &self,
        store: Box<dyn Store>,
        journal: Journal,
        mut recovery: Recovery,
        lost: Option<(Position, Position)>,
    ) -> Result<Volume, Error> {
        let (replayed, new_streams) = (recovery.events, store.new_streams()?);
        let (end, used) = (journal.position(), journal.used());
        recovery.forget_lost(&mut |load| fetch(store.as_ref(), load));
        let size = |ino| Ok::<_, StoreError>((ino, store.stream_stat(ino)?.size));
        let sizes = recovery.size_dirty().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
        let (meta, mut calls) =
            recovery.finish(end, used, &new_streams, &sizes, &mut |load| fetch(store.as_ref(), load))?;
        if lost.is_some() {
            // The lost events may refer to these streams, so they are not removed.
            calls.retain(|call| !matches!(call, StreamCall::Remove { ino } if new_streams.contains(ino)));
        }
        let disk = Arc::new(Disk::new(store, journal, false));
        for call in calls {
            disk.stream_call(call)?;
        }
        Ok(Volume {
            disk,
            meta,
            superblock: self.superblock.clone(),
            replayed,
            replayed_tail: replayed,
            is_warm: false,
        })
    }

    /// Writes the replayed events to the tables; returns their number.
    fn checkpoint(&self, opened: OpenedStore) -> Result<(Arc<Disk>, u64), Error> {
        let (volume, lost) = match opened {
            OpenedStore::Unreplayed(disk) => return Ok((disk, 0)),
            OpenedStore::Replayed { volume, lost } => (*volume, lost),
        };
        let replayed = volume.replayed;
        let disk = checkpoint(volume)?;
        if let Some((from, good)) = lost {
            begin_at(disk.store.as_ref(), from, good)?;
            self.replace_journal(true)?;
        }
        Ok((disk, replayed))
    }
}

/// Begins the recovery of a store without its damaged records.
fn begin(
    store: &dyn Store,
    superblock: &Superblock,
    journal: &Journal,
    first: &[u8],
) -> Result<(Recovery, Position), Error> {
    let mut config = Config::new(superblock.hash_key, superblock.strip_bytes, journal.capacity());
    (config.rank, config.ranks) = (superblock.rank, superblock.ranks);
    // Clients of a stopped server keep their sessions.
    config.session_ms = Some(u32::MAX);
    let mut orphans = store.scan(ObjectId::ORPHANS, Bound::Unbounded, usize::MAX)?;
    let mut sessions = store.scan(ObjectId::SESSIONS, Bound::Unbounded, usize::MAX)?;
    orphans.retain(|(_, value)| decode::<Inode>(value).is_ok());
    sessions.retain(|(key, value)| is_sound_record(key, value));
    Ok(Recovery::begin(config, first, &orphans, &sessions)?)
}

/// Records the start of the new journal, unless a checkpoint did so.
fn begin_at(store: &dyn Store, before: Position, good: Position) -> Result<(), Error> {
    let first = store.get(ObjectId::SUPER, b"")?.and_then(|first| Super::parse(&first));
    if let Some(first) = first.filter(|first| first.journal == before.0) {
        let value = Some(Super { journal: good.0, ..first }.encode());
        store.stage(vec![TableWrite { object: ObjectId::SUPER, key: Vec::new(), value }])?;
        store.publish()?;
    }
    Ok(())
}

/// Creates a root directory if there is none, since replay needs one.
fn restore_root(store: &dyn Store, quarantine: &Path, done: &mut Vec<Finding>) -> Result<(), Error> {
    let root = Format { time: clock::now(), uid: 0, gid: 0, perm: 0o755 }.root();
    let there = store.get(root.object, &root.key)?.and_then(|value| decode::<Inode>(&value).ok());
    if !there.is_some_and(|inode| inode.is_dir()) {
        say(done, "the root directory was missing or damaged, and is created again".into());
        let root = vec![root];
        quarantine_records(store, &root, quarantine)?;
        store.stage(root)?;
        store.publish()?;
    }
    Ok(())
}

/// Replays up to the first damage. Returns the position after the last good frame, and the damage.
fn replay(
    journal: &mut Journal,
    from: Position,
    recovery: &mut Recovery,
    store: &dyn Store,
) -> Result<Option<(Position, String)>, Error> {
    let (mut good, mut failed) = (from, None);
    let read = journal.replay(from, |end, frame| {
        if failed.is_none() {
            match recovery.frame(frame, &mut |load| fetch(store, load)) {
                Ok(()) => good = end,
                Err(error) => failed = Some(error.to_string()),
            }
        }
    });
    match read {
        Ok(_) => {}
        Err(error @ JournalError::Corrupt { .. }) => failed = failed.or(Some(error.to_string())),
        Err(error) => return Err(error.into()),
    }
    // Positions are multiples of 8.
    Ok(failed.map(|why| (Position(good.0.next_multiple_of(8)), why)))
}

/// Saves the records that are about to change, one per line: object, key and value in hexadecimal.
fn quarantine_records(store: &dyn Store, writes: &[TableWrite], quarantine: &Path) -> Result<(), Error> {
    let path = quarantine.join("records");
    let failed = |source| Error::Io { context: format!("cannot write {}", path.display()), source };
    std::fs::create_dir_all(quarantine).map_err(failed)?;
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    let mut file = BufWriter::new(file);
    for TableWrite { object, key, .. } in writes {
        if let Some(value) = store.get(*object, key)? {
            let (object, key, value) = (hex(&object.to_bytes()), hex(key), hex(&value));
            writeln!(file, "{object} {key} {value}").map_err(failed)?;
        }
    }
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    for place in quarantine.ancestors().take(3) {
        File::open(place).and_then(|place| place.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the repairs in an order that permits repetition after an interruption.
fn carry_out(store: &dyn Store, repaired: &Repaired) -> Result<(), StoreError> {
    for ino in &repaired.empty {
        store.stream_create(*ino)?;
        store.stream_truncate(*ino, 0)?;
        store.stream_sync(*ino)?;
    }
    for (from, to) in &repaired.copies {
        store.stream_create(*to)?;
        store.stream_truncate(*to, 0)?;
        let (mut offset, size) = (0, store.stream_stat(*from)?.size);
        while offset < size {
            match store.stream_copy(*from, offset, *to, offset, size - offset)? {
                0 => break,
                copied => offset += copied,
            }
        }
        store.stream_sync(*to)?;
    }
    for ino in store.new_streams()? {
        store.stream_finalise(ino)?;
    }
    store.stage(repaired.writes.clone())?;
    store.publish()?;
    for (from, _) in &repaired.copies {
        store.stream_remove(*from)?;
    }
    store.sync_removed_streams()
}
