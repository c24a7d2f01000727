//! Repairs a store that is not mounted: opens and replays as much as possible, then makes the
//! records consistent. Everything that is replaced or removed is saved in the directory
//! `quarantine` of the store.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use espalier_meta::{
    Config, Finding, Format, Inode, Recovery, Repair, Repaired, StreamCall, Super, decode, is_sound_record,
};
use espalier_proto::{ObjectId, Position, TableWrite};
use espalier_store::{
    Journal, JournalError, LocalOptions, LocalStore, Mended, RealFile, Store, StoreError, mend, new_journal,
    replace_journal, superblock,
};

use crate::clock;
use crate::disk::Disk;
use crate::dump::unfinished;
use crate::error::Error;
use crate::fsck::{FsckReport, check, checkpoint};
use crate::volume::{Volume, fetch, require_single_rank};

/// The result of a repair.
#[derive(Debug)]
pub struct RepairReport {
    /// The repairs; empty if nothing was wrong.
    pub done: Vec<Finding>,
    /// Directory of the saved old records and files.
    pub quarantine: Option<PathBuf>,
    /// The result of the final check.
    pub after: FsckReport,
}

/// Repairs a file system. An undamaged one is changed only as by mounting.
///
/// # Errors
/// The store is in use, or the disk fails. The repair can be repeated then.
pub fn repair(dir: &Path, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    match try_repair(dir, progress) {
        Err(error) if error.is_damage() => {
            let findings = vec![Finding { ino: None, message: error.to_string() }];
            let after = FsckReport { findings, ..FsckReport::default() };
            Ok(RepairReport { done: Vec::new(), quarantine: None, after })
        }
        outcome => outcome,
    }
}

fn try_repair(dir: &Path, progress: impl Fn(u64)) -> Result<RepairReport, Error> {
    let now = clock::now();
    let quarantine = dir.join("quarantine").join(format!("{}.{:09}", now.secs, now.nanos));
    let mut done = Vec::new();
    if let Ok(superblock) = superblock::read(dir) {
        require_single_rank(&superblock, dir)?;
    }
    say_mended(&mend(dir, &quarantine)?, &mut done);
    let superblock = superblock::read(dir)?;
    require_single_rank(&superblock, dir)?;
    let (disk, replayed) = open(dir, &quarantine, &mut done)?;
    let mut after = check(&disk, superblock.hash_key, replayed, &progress)?;
    if !after.findings.is_empty() {
        let mut repair = Repair::new(superblock.hash_key, now);
        for record in disk.store.records() {
            let (object, key, value) = record?;
            repair.record(object, &key, &value);
        }
        for ino in disk.store.streams()? {
            repair.stream(ino, disk.store.stream_stat(ino)?.size);
        }
        let repaired = repair.finish();
        quarantine_records(&disk.store, &repaired.writes, dir, &quarantine)?;
        carry_out(&disk.store, &repaired)?;
        done.extend(repaired.done);
        after = check(&disk, superblock.hash_key, replayed, &progress)?;
    }
    let quarantine = quarantine.exists().then_some(quarantine);
    Ok(RepairReport { done, quarantine, after })
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

/// Opens the store and replays as much as possible; returns the number of replayed events.
fn open(dir: &Path, quarantine: &Path, done: &mut Vec<Finding>) -> Result<(Arc<Disk>, u64), Error> {
    let (store, mut journal) = LocalStore::open_with(dir, LocalOptions::default())?;
    match unfinished(&store, dir)? {
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
        let journal = replaced(dir, quarantine, &store)?;
        say(done, "where to begin in the journal is not known: what only it held is lost".into());
        return Ok((Arc::new(Disk::new(store, journal, false)), 0));
    };
    restore_root(&store, dir, quarantine, done)?;
    let superblock = store.superblock().clone();
    let mut config = Config::new(superblock.hash_key, superblock.strip_bytes, journal.capacity());
    // Clients of a stopped server keep their sessions.
    config.session_ms = Some(u32::MAX);
    let mut orphans = store.scan(ObjectId::ORPHANS, Bound::Unbounded, usize::MAX)?;
    let mut sessions = store.scan(ObjectId::SESSIONS, Bound::Unbounded, usize::MAX)?;
    orphans.retain(|(_, value)| decode::<Inode>(value).is_ok());
    sessions.retain(|(key, value)| is_sound_record(key, value));
    let (mut recovery, from) = Recovery::begin(config, &first, &orphans, &sessions)?;
    let failed = replay(&mut journal, from, &mut recovery, &store)?;
    if let Some((_, why)) = &failed {
        let events = recovery.events;
        say(
            done,
            format!("{why}: {events} events of the journal were replayed, and those after them are lost"),
        );
    }
    if let Some((good, _)) = &failed {
        // The old journal stays until a checkpoint contains the replayed events.
        journal = new_journal(dir, &superblock)?;
        journal.replay(*good, |_, _| ())?;
    }
    journal.forget_torn()?;
    let (replayed, new_streams) = (recovery.events, store.new_streams()?);
    let (end, used) = (journal.position(), journal.used());
    recovery.forget_lost(&mut |load| fetch(&store, load));
    let size = |ino| Ok::<_, StoreError>((ino, store.stream_stat(ino)?.size));
    let sizes = recovery.size_dirty().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let (meta, mut calls) =
        recovery.finish(end, used, &new_streams, &sizes, &mut |load| fetch(&store, load))?;
    if failed.is_some() {
        // The lost events may refer to these streams, so they are not removed.
        calls.retain(|call| !matches!(call, StreamCall::Remove { ino } if new_streams.contains(ino)));
    }
    let disk = Arc::new(Disk::new(store, journal, false));
    for call in calls {
        disk.stream_call(call)?;
    }
    let disk = checkpoint(Volume { disk, meta, superblock, replayed })?;
    if let Some((good, _)) = failed {
        begin_at(&disk.store, from, good)?;
        replace_journal(dir, quarantine)?;
    }
    Ok((disk, replayed))
}

/// Records the start of the new journal, unless a checkpoint did so.
fn begin_at(store: &LocalStore, before: Position, good: Position) -> Result<(), Error> {
    let first = store.get(ObjectId::SUPER, b"")?.and_then(|first| Super::parse(&first));
    if let Some(first) = first.filter(|first| first.journal == before.0) {
        let value = Some(Super { journal: good.0, ..first }.encode());
        store.stage(vec![TableWrite { object: ObjectId::SUPER, key: Vec::new(), value }])?;
        store.publish()?;
    }
    Ok(())
}

fn replaced(dir: &Path, quarantine: &Path, store: &LocalStore) -> Result<Journal<RealFile>, Error> {
    let journal = new_journal(dir, store.superblock())?;
    replace_journal(dir, quarantine)?;
    Ok(journal)
}

/// Creates a root directory if there is none, since replay needs one.
fn restore_root(
    store: &LocalStore,
    dir: &Path,
    quarantine: &Path,
    done: &mut Vec<Finding>,
) -> Result<(), Error> {
    let root = Format { time: clock::now(), uid: 0, gid: 0, perm: 0o755 }.root();
    let there = store.get(root.object, &root.key)?.and_then(|value| decode::<Inode>(&value).ok());
    if !there.is_some_and(|inode| inode.is_dir()) {
        say(done, "the root directory was missing or damaged, and is created again".into());
        let root = vec![root];
        quarantine_records(store, &root, dir, quarantine)?;
        store.stage(root)?;
        store.publish()?;
    }
    Ok(())
}

/// Replays up to the first damage. Returns the position after the last good frame, and the damage.
fn replay(
    journal: &mut Journal<RealFile>,
    from: Position,
    recovery: &mut Recovery,
    store: &LocalStore,
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
fn quarantine_records(
    store: &LocalStore,
    writes: &[TableWrite],
    dir: &Path,
    quarantine: &Path,
) -> Result<(), Error> {
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
    for place in [quarantine, &dir.join("quarantine"), dir] {
        File::open(place).and_then(|place| place.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the repairs in an order that permits repetition after an interruption.
fn carry_out(store: &LocalStore, repaired: &Repaired) -> Result<(), StoreError> {
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
