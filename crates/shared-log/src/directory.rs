//! The files of a log.
//!
//! - `entries/SEGMENT/POSITION`: an entry. It is written under `tmp` and renamed without replacing,
//!   so that a position is written once, and complete.
//! - `epochs/EPOCH`: the record of an epoch, created in the same way, never changed or removed, and
//!   without gaps: if a process that slept for many epochs could create an old record again, it
//!   would hide the seal from another one. `ends/EPOCH.begin` and `ends/EPOCH.end` add to it.
//! - `locks/EPOCH`: locked by the holder of the epoch, so that its end is noticed.
//! - `trim`: positions below this number are trimmed.
//!
//! Numbers in names have 16 hexadecimal digits.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use crate::call::{SealState, SlotState};
use crate::sequencer::{ClaimDecision, EpochHolder, EpochRecord, HolderState, claim};
use crate::{ENTRY_BYTES_MAX, LogError};

/// Positions in a directory of entries.
const SEGMENT: u64 = 1024;
/// A file under `tmp` that is older belongs to a process that died.
const TMP_AGE: Duration = Duration::from_secs(3600);

const ENTRY: u8 = b'E';
const FILLED: u8 = b'F';

/// State of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    Data(Vec<u8>),
    /// A hole that was filled: it never gets data.
    Filled,
    Trimmed,
    Unwritten,
}

/// A tenure of the caller's. It ends with [`LogDirectory::release`], or without a clean end when
/// this is dropped.
#[derive(Debug)]
pub(crate) struct HeldEpoch {
    pub epoch: u64,
    pub begin: u64,
    _lock: File,
}

/// A log's directory.
#[derive(Debug)]
pub struct LogDirectory {
    path: PathBuf,
    /// Entries are synced before they count as written.
    durable: bool,
    /// Prefix of names under `tmp`, unique to this value.
    id: String,
    written: AtomicU64,
    /// An epoch that exists, or 0.
    known_epoch: AtomicU64,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |cause| LogError::File { path, cause }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Numbers in names of a directory's entries.
fn numbers(dir: &Path) -> Result<Vec<u64>, LogError> {
    let names = match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>(),
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let names = names.map_err(at(dir))?;
    let number = |name: &std::ffi::OsString| {
        name.to_str().filter(|name| name.len() == 16).and_then(|name| u64::from_str_radix(name, 16).ok())
    };
    Ok(names.iter().filter_map(number).collect())
}

fn read_text(path: &Path) -> Result<Option<String>, LogError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(cause) => Err(at(path)(cause)),
    }
}

fn read_number(path: &Path) -> Result<Option<u64>, LogError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| LogError::Damaged(path.to_owned()))
}

/// Hexadecimal digits that no other process has.
pub(crate) fn random_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl LogDirectory {
    /// Opens a log, and creates it if `create` is set. `durable`: entries are synced to the disk
    /// before their appends return.
    ///
    /// # Errors
    /// The directory is no log, or not accessible.
    pub fn open(path: &Path, create: bool, durable: bool) -> Result<Self, LogError> {
        let id = random_id().map_err(at(Path::new("/dev/urandom")))?;
        let log = Self {
            path: path.to_owned(),
            durable,
            id,
            written: AtomicU64::new(0),
            known_epoch: AtomicU64::new(0),
        };
        for part in ["entries", "tmp", "locks", "ends", "epochs"] {
            if create {
                fs::create_dir_all(path.join(part)).map_err(at(&path.join(part)))?;
            }
        }
        // Created last: a log that has it is complete.
        fs::metadata(path.join("epochs")).map_err(at(&path.join("epochs")))?;
        Ok(log)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn entry_path(&self, position: u64) -> PathBuf {
        self.path.join(format!("entries/{:016x}/{position:016x}", position / SEGMENT))
    }

    fn epoch_path(&self, epoch: u64) -> PathBuf {
        self.path.join(format!("epochs/{epoch:016x}"))
    }

    fn end_path(&self, epoch: u64, part: &str) -> PathBuf {
        self.path.join(format!("ends/{epoch:016x}.{part}"))
    }

    fn lock_path(&self, epoch: u64) -> PathBuf {
        self.path.join(format!("locks/{epoch:016x}"))
    }

    /// Writes a complete file under a name that is free, and returns its path.
    fn write_temporary(&self, parts: &[&[u8]]) -> Result<PathBuf, LogError> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("tmp/{}-{number}", self.id));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            file.write_all(&parts.concat())?;
            if self.durable { file.sync_all() } else { Ok(()) }
        };
        write().map_err(at(&path))?;
        Ok(path)
    }

    /// Gives a temporary file its name, unless that exists.
    fn publish_once(&self, temporary: &Path, path: &Path) -> Result<SlotState, LogError> {
        let rename = || renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE);
        let dir = path.parent().unwrap_or(&self.path);
        let mut renamed = rename();
        if renamed == Err(rustix::io::Errno::NOENT) {
            fs::create_dir_all(dir).map_err(at(dir))?;
            self.sync_dir(dir.parent().unwrap_or(&self.path))?;
            renamed = rename();
        }
        match renamed {
            Ok(()) => self.sync_dir(dir).map(|()| SlotState::Written),
            Err(error) => {
                fs::remove_file(temporary).map_err(at(temporary))?;
                match error {
                    rustix::io::Errno::EXIST => Ok(SlotState::Occupied),
                    error => Err(at(path)(error.into())),
                }
            }
        }
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), LogError> {
        if !self.durable {
            return Ok(());
        }
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
    }

    fn publish(&self, path: &Path, text: &str) -> Result<(), LogError> {
        let temporary = self.write_temporary(&[text.as_bytes()])?;
        fs::rename(&temporary, path).map_err(at(path))?;
        self.sync_dir(path.parent().unwrap_or(&self.path))
    }

    /// Writes data, or fills the position with `None`, if it is free.
    pub(crate) fn place(&self, position: u64, data: Option<&[u8]>) -> Result<SlotState, LogError> {
        let bytes = data.unwrap_or_default();
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(LogError::TooLong(bytes.len()));
        }
        let kind = if data.is_some() { ENTRY } else { FILLED };
        let temporary = self.write_temporary(&[&[kind], &(bytes.len() as u64).to_le_bytes(), bytes])?;
        self.publish_once(&temporary, &self.entry_path(position))
    }

    /// Reads a position. Needs no sequencer.
    ///
    /// # Errors
    /// A file is not readable or damaged.
    pub fn read(&self, position: u64) -> Result<LogEntry, LogError> {
        let path = self.entry_path(position);
        let found = match fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(error) if is_missing(&error) => None,
            Err(cause) => return Err(at(&path)(cause)),
        };
        // Read after the entry: a trim sets the mark before it removes entries.
        if position < self.trim_mark()? {
            return Ok(LogEntry::Trimmed);
        }
        let Some(bytes) = found else { return Ok(LogEntry::Unwritten) };
        let payload = bytes.get(9..).filter(|payload| (payload.len() as u64).to_le_bytes() == bytes[1..9]);
        match (bytes.first(), payload) {
            (Some(&ENTRY), Some(payload)) => Ok(LogEntry::Data(payload.to_vec())),
            (Some(&FILLED), Some(_)) => Ok(LogEntry::Filled),
            _ => Err(LogError::Damaged(path)),
        }
    }

    /// The lowest position that is not trimmed.
    ///
    /// # Errors
    /// The mark is not readable.
    pub fn trim_mark(&self) -> Result<u64, LogError> {
        Ok(read_number(&self.path.join("trim"))?.unwrap_or(0))
    }

    /// The position after the last entry, from the entries: a tail that is written, while numbers
    /// that were handed out may be above.
    ///
    /// # Errors
    /// A directory is not readable.
    pub fn written_end(&self) -> Result<u64, LogError> {
        let mut segments = numbers(&self.path.join("entries"))?;
        segments.sort_unstable();
        let mut end = self.trim_mark()?;
        for segment in segments.iter().rev() {
            let highest = numbers(&self.path.join(format!("entries/{segment:016x}")))?.into_iter().max();
            if let Some(highest) = highest {
                end = end.max(highest + 1);
                break;
            }
        }
        Ok(end)
    }

    /// Removes all entries below `before`, which is at most the tail.
    pub(crate) fn trim(&self, before: u64) -> Result<(), LogError> {
        let lock_path = self.path.join("locks/trim");
        let lock = self.lock_file(&lock_path)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| at(&lock_path)(error.into()))?;
        let mark = self.trim_mark()?.max(before);
        self.publish(&self.path.join("trim"), &mark.to_string())?;
        let entries = self.path.join("entries");
        for segment in numbers(&entries)?.into_iter().filter(|segment| segment * SEGMENT < mark) {
            let dir = entries.join(format!("{segment:016x}"));
            for position in numbers(&dir)?.into_iter().filter(|position| *position < mark) {
                let path = self.entry_path(position);
                fs::remove_file(&path).map_err(at(&path))?;
            }
            if (segment + 1) * SEGMENT <= mark {
                // An append that is late may have a file in it.
                let _ = fs::remove_dir(&dir);
            }
        }
        self.remove_leftovers()
    }

    /// Removes temporary files of processes that died.
    fn remove_leftovers(&self) -> Result<(), LogError> {
        let dir = self.path.join("tmp");
        let oldest = SystemTime::now() - TMP_AGE;
        for entry in fs::read_dir(&dir).map_err(at(&dir))?.flatten() {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            if modified.is_ok_and(|modified| modified < oldest) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    fn lock_file(&self, path: &Path) -> Result<File, LogError> {
        OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(at(path))
    }

    /// Returns a lock file of an epoch, locked, unless another process has it.
    fn try_lock(&self, epoch: u64) -> Result<Option<File>, LogError> {
        let path = self.lock_path(epoch);
        let file = self.lock_file(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(at(&path)(error.into())),
        }
    }

    fn has_epoch(&self, epoch: u64) -> Result<bool, LogError> {
        let path = self.epoch_path(epoch);
        path.try_exists().map_err(at(&path))
    }

    /// The last epoch; 0 if there is none. Records have no gaps: a search by doubling finds it.
    fn current_epoch(&self) -> Result<u64, LogError> {
        let (mut low, mut step) = (self.known_epoch.load(Ordering::Relaxed), 1);
        while self.has_epoch(low + step)? {
            low += step;
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            low += if self.has_epoch(low + step)? { step } else { 0 };
        }
        self.known_epoch.fetch_max(low, Ordering::Relaxed);
        Ok(low)
    }

    /// The record of the current epoch.
    ///
    /// # Errors
    /// It is not readable.
    pub fn current(&self) -> Result<Option<EpochRecord>, LogError> {
        let epoch = self.current_epoch()?;
        if epoch == 0 {
            return Ok(None);
        }
        let path = self.epoch_path(epoch);
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        let mut record: EpochRecord = serde_json::from_str(&text).map_err(|_| LogError::Damaged(path))?;
        if record.begin.is_none() {
            record.begin = read_number(&self.end_path(epoch, "begin"))?;
        }
        record.end = read_number(&self.end_path(epoch, "end"))?;
        Ok(Some(record))
    }

    pub(crate) fn seal_state(&self, epoch: u64) -> Result<SealState, LogError> {
        if !self.has_epoch(epoch + 1)? {
            return Ok(SealState::Open);
        }
        Ok(SealState::Sealed { begin: self.current()?.and_then(|record| record.begin) })
    }

    /// Tries to become the holder of the sequencer. `depose`: seals an epoch even if its holder
    /// runs. Returns `None` if another process is the holder, or claims it at the same time.
    pub(crate) fn claim(&self, by: &EpochHolder, depose: bool) -> Result<Option<HeldEpoch>, LogError> {
        let current = self.current()?;
        // Locked until the new epoch exists, so that one of several claims wins.
        let (mut holder, mut _old_lock) = (HolderState::Deposed, None);
        if let Some(record) = current.as_ref().filter(|record| !depose && record.end.is_none()) {
            _old_lock = self.try_lock(record.epoch)?;
            holder = if _old_lock.is_some() { HolderState::Dead } else { HolderState::Running };
        }
        let ClaimDecision::Claim { epoch, begin } = claim(current.as_ref(), holder) else { return Ok(None) };
        let Some(lock) = self.try_lock(epoch)? else { return Ok(None) };
        let record = EpochRecord { epoch, holder: by.clone(), begin, end: None };
        let path = self.epoch_path(epoch);
        let text = serde_json::to_string(&record).map_err(|error| at(&path)(error.into()))?;
        let temporary = self.write_temporary(&[text.as_bytes()])?;
        if self.publish_once(&temporary, &path)? == SlotState::Occupied {
            return Ok(None);
        }
        let begin = match begin {
            Some(begin) => begin,
            None => {
                let end = self.written_end()?;
                self.publish(&self.end_path(epoch, "begin"), &end.to_string())?;
                end
            }
        };
        self.remove_old_ends(epoch)?;
        Ok(Some(HeldEpoch { epoch, begin, _lock: lock }))
    }

    fn remove_old_ends(&self, epoch: u64) -> Result<(), LogError> {
        for dir in ["ends", "locks"].map(|part| self.path.join(part)) {
            for entry in fs::read_dir(&dir).map_err(at(&dir))?.flatten() {
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.get(..16));
                let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
                if number.is_some_and(|number| number + 1 < epoch) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(())
    }

    /// Ends a tenure: the next holder begins at `tail`.
    pub(crate) fn release(&self, held: HeldEpoch, tail: u64) -> Result<(), LogError> {
        self.publish(&self.end_path(held.epoch, "end"), &tail.to_string())
    }
}
