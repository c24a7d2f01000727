//! Migration: moves a store to another place while it is used.
//!
//! Nothing but the source is changed by its users until the switch, and the destination may fail
//! at any time. [`MovableStore`] notes what changes while it is copied; [`Migrator`] copies that
//! again, until so little is left that a pause can copy it. [`MigrationMachine`] has the order.

mod changes;
mod copy;
mod machine;
mod movable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use espalier_proto::{Ino, Position};

use changes::{CHUNK_BYTES, ChangeLog, StreamChange};
use copy::{BATCH, copy_stream, differences, different_chunk, is_equal, key_of, size_of, write};
pub use machine::{MigrationMachine, MigrationStart, MigrationStep, StartError, StepOutcome};
pub use movable::MovableStore;

use crate::store::{RecordKey, Store};
use crate::{Journal, MigrationState, StoreError};

/// Bytes of records between two checkpoints of the destination.
const PUBLISH_BYTES: u64 = 16 << 20;
/// Number of noted changes from which on they are copied during a long step.
const MANY: usize = 65536;
/// Bytes that take as long to copy as the request for one record or stream.
const REQUEST_BYTES: u64 = 32 << 10;
/// Attempts to find out whether a superblock was written.
const ATTEMPTS: u32 = 3;

/// The progress of a migration, for other threads.
#[derive(Debug, Default)]
pub struct MigrationProgress {
    /// Bytes of records and streams that were copied or compared.
    done: AtomicU64,
    /// All that will be, as far as is known; 0 while it is being determined.
    total: AtomicU64,
    stopped: AtomicBool,
}

impl MigrationProgress {
    /// Bytes done, and all.
    pub fn bytes(&self) -> (u64, u64) {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        (done, total.max(done))
    }

    /// Stops the migration soon, unless it has switched.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) -> Result<(), StoreError> {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        if self.stopped.load(Ordering::Relaxed) { Err(StoreError::Stopped) } else { Ok(()) }
    }
}

/// Carries out the steps of a migration.
pub struct Migrator<'a> {
    source: Arc<MovableStore>,
    journal: Arc<Mutex<Journal>>,
    destination: Arc<dyn Store>,
    destination_journal: Journal,
    /// The destination's name.
    to: String,
    changes: Arc<ChangeLog>,
    progress: Arc<MigrationProgress>,
    /// Files whose changes are not noted, since the kernel makes them. None are added once the
    /// migration has begun.
    unseen: Box<dyn Fn() -> Vec<Ino> + 'a>,
    unseen_before: Vec<Ino>,
    /// End of the source's journal when its file was copied.
    journal_copied: Option<Position>,
}

impl Drop for Migrator<'_> {
    fn drop(&mut self) {
        let mut place = self.source.pause();
        place.changes.take_if(|changes| Arc::ptr_eq(changes, &self.changes));
    }
}

impl<'a> Migrator<'a> {
    /// From now on changes of the source are noted. `unseen` returns the files that the kernel
    /// changes itself; after [`MovableStore::stream_file`] has returned nothing there are no more.
    pub fn new(
        (source, journal): (Arc<MovableStore>, Arc<Mutex<Journal>>),
        (destination, destination_journal): (impl Into<Arc<dyn Store>>, Journal),
        to: String,
        progress: Arc<MigrationProgress>,
        unseen: impl Fn() -> Vec<Ino> + 'a,
    ) -> Self {
        let changes = Arc::new(ChangeLog::default());
        source.pause().changes = Some(Arc::clone(&changes));
        let unseen_before = unseen();
        Self {
            source,
            journal,
            destination: destination.into(),
            destination_journal,
            to,
            changes,
            progress,
            unseen: Box::new(unseen),
            unseen_before,
            journal_copied: None,
        }
    }

    /// Carries out a step. After an error the migration can be repeated from the superblocks.
    ///
    /// # Errors
    /// Those of both stores; [`StoreError::Stopped`], [`StoreError::DifferentCopy`],
    /// [`StoreError::Undecided`].
    pub fn carry_out(&mut self, step: MigrationStep) -> Result<StepOutcome, StoreError> {
        match step {
            MigrationStep::Measure => self.measure()?,
            MigrationStep::CopyRecords => self.copy_records()?,
            MigrationStep::CopyStreams => self.copy_streams()?,
            MigrationStep::CatchUp => return self.catch_up().map(StepOutcome::CaughtUp),
            MigrationStep::Verify => self.verify()?,
            MigrationStep::Wait => self.progress.advance(0)?,
            MigrationStep::Switch => return self.switch(),
            MigrationStep::Finish => self.destination.set_migration(MigrationState::None)?,
        }
        Ok(StepOutcome::Done)
    }

    /// Everything is read for the copy, and once more for the comparison.
    fn measure(&self) -> Result<(), StoreError> {
        let mut bytes = 0;
        let mut after = None;
        loop {
            let batch = self.source.records_after(after.as_ref(), BATCH)?;
            bytes += batch.iter().map(size_of).sum::<u64>();
            self.progress.advance(0)?;
            after = batch.last().map(key_of);
            if batch.len() < BATCH {
                break;
            }
        }
        for ino in self.source.streams()? {
            bytes += self.source.stream_stat(ino)?.size;
        }
        self.progress.total.store(2 * bytes, Ordering::Relaxed);
        Ok(())
    }

    fn copy_records(&mut self) -> Result<(), StoreError> {
        let is_new = self.destination.records_after(None, 1)?.is_empty();
        let mut after: Option<RecordKey> = None;
        let mut staged = 0;
        self.changes.begin_scan();
        loop {
            self.changes.begin_batch();
            let batch = self.source.records_after(after.as_ref(), BATCH)?;
            let end = if batch.len() < BATCH { None } else { batch.last().map(key_of) };
            self.changes.end_batch(end.as_ref());
            let bytes: u64 = batch.iter().map(size_of).sum();
            let writes = match is_new {
                true => batch
                    .into_iter()
                    .map(|(object, key, value)| write(((object, key), Some(value))))
                    .collect(),
                false => differences(batch, self.destination.as_ref(), after.as_ref(), end.as_ref())?,
            };
            if !writes.is_empty() {
                self.destination.stage(writes)?;
                staged += bytes;
            }
            if staged > PUBLISH_BYTES {
                staged = 0;
                self.publish()?;
            }
            self.progress.advance(bytes)?;
            if self.changes.len() > MANY {
                self.copy_changed_records(self.source.as_ref())?;
            }
            match end {
                Some(end) => after = Some(end),
                None => return self.publish(),
            }
        }
    }

    fn publish(&self) -> Result<(), StoreError> {
        self.destination.publish()?;
        while self.destination.maintain()? {}
        Ok(())
    }

    /// Copies the records that were noted; returns their keys, and the work as a number of bytes.
    fn copy_changed_records(&self, source: &dyn Store) -> Result<(BTreeSet<RecordKey>, u64), StoreError> {
        let keys = self.changes.take_records();
        let mut work = 0;
        if keys.is_empty() {
            return Ok((keys, work));
        }
        let mut writes = Vec::new();
        for key in &keys {
            let value = source.get(key.0, &key.1)?;
            work += REQUEST_BYTES + value.as_ref().map_or(0, |value| value.len() as u64);
            writes.push(write((key.clone(), value)));
            if writes.len() >= BATCH {
                self.destination.stage(std::mem::take(&mut writes))?;
            }
        }
        self.destination.stage(writes)?;
        self.destination.publish()?;
        Ok((keys, work))
    }

    fn copy_streams(&self) -> Result<(), StoreError> {
        let provisional = self.source.new_streams()?.into_iter().collect();
        let inos: BTreeSet<Ino> = self.source.streams()?.into_iter().collect();
        let stores = (self.source.as_ref() as &dyn Store, self.destination.as_ref());
        for ino in self.destination.streams()? {
            if !inos.contains(&ino) {
                self.changes.note_stream(ino, StreamChange::WHOLE);
            }
        }
        for ino in inos {
            copy_stream(stores, ino, &StreamChange::WHOLE, &provisional, |bytes| {
                self.progress.advance(bytes)
            })?;
            if self.changes.len() > MANY {
                self.copy_changed_records(self.source.as_ref())?;
            }
        }
        self.destination.sync_all()
    }

    /// Copies the streams that were noted, durably; returns what was copied, and the work as a
    /// number of bytes.
    fn copy_changed_streams(
        &self,
        source: &dyn Store,
    ) -> Result<(BTreeMap<Ino, StreamChange>, u64), StoreError> {
        let mut changed = self.changes.take_streams();
        let mut work = 0;
        if changed.is_empty() {
            return Ok((changed, work));
        }
        let provisional = source.new_streams()?.into_iter().collect();
        let stores = (source, self.destination.as_ref());
        for (ino, change) in &mut changed {
            work += REQUEST_BYTES;
            let progress = |bytes| {
                work += bytes;
                self.progress.advance(0)
            };
            *change = copy_stream(stores, *ino, change, &provisional, progress)?;
        }
        for ino in changed.keys() {
            self.destination.stream_sync(*ino)?;
        }
        self.destination.sync_new_streams()?;
        self.destination.sync_removed_streams()?;
        Ok((changed, work))
    }

    /// Copies what has changed, and makes everything durable.
    fn catch_up(&mut self) -> Result<u64, StoreError> {
        self.progress.advance(0)?;
        let unseen = (self.unseen)();
        for ino in self.unseen_before.iter().filter(|ino| !unseen.contains(ino)) {
            self.changes.note_stream(*ino, StreamChange::WHOLE);
        }
        self.unseen_before.retain(|ino| unseen.contains(ino));
        let (_, streams) = self.copy_changed_streams(self.source.as_ref())?;
        let (_, records) = self.copy_changed_records(self.source.as_ref())?;
        while self.destination.maintain()? {}
        self.copy_journal()?;
        Ok(streams + records)
    }

    fn copy_journal(&mut self) -> Result<(), StoreError> {
        let (handle, end) = {
            let journal = lock(&self.journal);
            (journal.sync_handle(), journal.position())
        };
        self.destination_journal.copy_frames(&handle, self.journal_copied, end)?;
        self.journal_copied = Some(end);
        Ok(())
    }

    /// Compares everything. Differences are errors unless they are noted.
    fn verify(&self) -> Result<(), StoreError> {
        let mut after: Option<RecordKey> = None;
        loop {
            let batch = self.source.records_after(after.as_ref(), BATCH)?;
            let end = if batch.len() < BATCH { None } else { batch.last().map(key_of) };
            let bytes = batch.iter().map(size_of).sum();
            let different = differences(batch, self.destination.as_ref(), after.as_ref(), end.as_ref())?;
            let keys = different.into_iter().map(|write| (write.object, write.key));
            self.check_records(keys.filter(|key| !self.changes.has_record(key)).collect())?;
            self.progress.advance(bytes)?;
            match end {
                Some(end) => after = Some(end),
                None => break,
            }
        }
        let mut inos: BTreeSet<Ino> = self.source.streams()?.into_iter().collect();
        inos.extend(self.destination.streams()?);
        let stores = (self.source.as_ref() as &dyn Store, self.destination.as_ref());
        for ino in inos.into_iter().filter(|ino| !self.unseen_before.contains(ino)) {
            let mut rest = StreamChange::WHOLE;
            let progress = |bytes| self.progress.advance(bytes);
            while let Some(chunk) = different_chunk(stores, ino, &rest, progress)? {
                self.check_stream(ino, Some(chunk))?;
                rest = StreamChange::tail(chunk + CHUNK_BYTES);
            }
            if !is_equal(stores, ino, &StreamChange::NONE, progress)? {
                self.check_stream(ino, None)?;
            }
        }
        Ok(())
    }

    /// Compares records while they cannot change.
    fn check_records(&self, keys: Vec<RecordKey>) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let place = self.source.pause();
        let unnoted = keys.into_iter().filter(|key| !self.changes.has_record(key));
        self.compare_records(place.store.as_ref(), unnoted)
    }

    fn compare_records(
        &self,
        source: &dyn Store,
        keys: impl IntoIterator<Item = RecordKey>,
    ) -> Result<(), StoreError> {
        for (object, key) in keys {
            if source.get(object, &key)? != self.destination.get(object, &key)? {
                return Err(StoreError::DifferentCopy(format!("record {object:?} {}", key.escape_ascii())));
            }
        }
        Ok(())
    }

    /// Compares a chunk of a stream, or its size and time, while it cannot change.
    fn check_stream(&self, ino: Ino, chunk: Option<u64>) -> Result<(), StoreError> {
        let place = self.source.pause();
        let (is_noted, part) = match chunk {
            Some(chunk) => (self.changes.has_chunk(ino, chunk), StreamChange::range(chunk..chunk + 1)),
            None => (self.changes.has_stream(ino), StreamChange::NONE),
        };
        if is_noted { Ok(()) } else { self.compare_streams(place.store.as_ref(), [(ino, part)]) }
    }

    fn compare_streams(
        &self,
        source: &dyn Store,
        parts: impl IntoIterator<Item = (Ino, StreamChange)>,
    ) -> Result<(), StoreError> {
        let stores = (source, self.destination.as_ref());
        for (ino, part) in parts {
            if !is_equal(stores, ino, &part, |_| self.progress.advance(0))? {
                return Err(StoreError::DifferentCopy(format!("the bytes of inode {ino}")));
            }
        }
        Ok(())
    }

    /// Copies the rest in a pause, and makes the destination the place of the store.
    fn switch(&mut self) -> Result<StepOutcome, StoreError> {
        let Some(copied) = self.journal_copied.filter(|_| self.unseen_before.is_empty()) else {
            return Ok(StepOutcome::NotYet);
        };
        let source = Arc::clone(&self.source);
        let mut place = source.pause();
        // Part of a checkpoint must not become durable.
        if source.is_staged() {
            return Ok(StepOutcome::NotYet);
        }
        let (records, _) = self.copy_changed_records(place.store.as_ref())?;
        // The rest of these streams was compared before.
        let (streams, _) = self.copy_changed_streams(place.store.as_ref())?;
        self.compare_records(place.store.as_ref(), records)?;
        self.compare_streams(place.store.as_ref(), streams)?;
        let mut journal = lock(&self.journal);
        self.destination_journal.take_over(&journal, copied)?;
        let moved = MigrationState::Moved { to: self.to.clone() };
        if let Err(error) = place.store.set_migration(moved.clone()) {
            match found(place.store.as_ref()) {
                Ok(found) if found != moved => return Err(error),
                // It may be readable without being durable.
                Ok(_) if place.store.set_migration(moved).is_ok() => {}
                _ => {
                    place.is_undecided = true;
                    return Err(StoreError::Undecided);
                }
            }
        }
        std::mem::swap(&mut *journal, &mut self.destination_journal);
        drop(journal);
        place.changes = None;
        let moved_from = std::mem::replace(&mut place.store, Arc::clone(&self.destination));
        drop(place);
        // Closing it takes a while.
        drop(moved_from);
        Ok(StepOutcome::Done)
    }
}

/// The state of a superblock after an error.
fn found(store: &dyn Store) -> Result<MigrationState, StoreError> {
    let mut outcome = store.migration();
    for _ in 1..ATTEMPTS {
        if outcome.is_ok() {
            break;
        }
        outcome = store.migration();
    }
    outcome
}

fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}
