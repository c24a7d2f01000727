use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::StoreError;
use crate::error::Context;

const FILE: &str = "lock";
/// [`is_locked`] and [`is_open`] hold the lock briefly; an attempt to take it waits that out.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// A store's lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct StoreLock(File);

impl Drop for StoreLock {
    /// A child that was just forked may share the descriptor, so closing it may not release the
    /// lock.
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl StoreLock {
    /// Takes the exclusive lock of a writer.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let lock = Self(file.context("open", &path)?);
        lock.acquire(&path, FlockOperation::NonBlockingLockExclusive)?;
        lock.sign().context("write", &path)?;
        Ok(lock)
    }

    /// Takes the shared lock of a reader, without writing.
    pub(crate) fn share(dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            // A store on a read-only medium may have no lock file, and cannot be written to.
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(StoreError::io("open", &path, cause)),
        };
        let lock = Self(file);
        lock.acquire(&path, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(lock))
    }

    fn acquire(&self, path: &Path, how: FlockOperation) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            match flock(&self.0, how) {
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                outcome => return outcome.context("lock", path),
            }
        }
        let holder = Holder::read(&self.0).filter(Holder::runs);
        Err(StoreError::InUse {
            path: path.parent().unwrap_or(path).into(),
            pid: holder.map(|holder| holder.pid),
        })
    }

    /// Records the holder in the lock file.
    fn sign(&self) -> std::io::Result<()> {
        let pid = std::process::id();
        let text = format!("pid = {pid}\nstarted = {}\n", started(pid).unwrap_or_default());
        let mut file = &self.0;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())
    }
}

/// The process that the lock file names as the writer. Readers are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pid: u32,
    started: u64,
}

impl Holder {
    /// The recorded holder of the store in `dir`. It may have released the lock.
    pub fn of(dir: &Path) -> Option<Self> {
        Self::read(&File::open(dir.join(FILE)).ok()?)
    }

    /// A running process.
    pub fn of_process(pid: u32) -> Option<Self> {
        Some(Self { pid, started: started(pid)? })
    }

    fn read(file: &File) -> Option<Self> {
        let mut text = String::new();
        file.take(256).read_to_string(&mut text).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        Some(Self { pid: field("pid = ")?.parse().ok()?, started: field("started = ")?.parse().ok()? })
    }

    /// True until the process has ended: it may still have files of the store open.
    pub fn runs(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// Start time of a running process, in clock ticks since boot. Pid and start time together are
/// unique.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses with arbitrary characters.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let [state, .., threads, _, started] = fields.get(..20)? else { return None };
    // A zombie has no open files, unless other threads of the process still run.
    let has_ended = matches!(*state, "Z" | "X") && matches!(*threads, "0" | "1");
    if has_ended { None } else { started.parse().ok() }
}

/// True if a process has the store in `dir` open for writing.
pub fn is_locked(dir: &Path) -> bool {
    is_held(dir, FlockOperation::NonBlockingLockShared)
}

/// True if any process has the store in `dir` open.
pub fn is_open(dir: &Path) -> bool {
    is_held(dir, FlockOperation::NonBlockingLockExclusive)
}

/// True if the lock cannot be taken in mode `how`.
fn is_held(dir: &Path, how: FlockOperation) -> bool {
    let Ok(file) = File::open(dir.join(FILE)) else { return false };
    flock(&StoreLock(file).0, how) == Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_released_while_child_has_descriptor() {
        let dir = tempfile::tempdir().expect("a directory");
        let lock = StoreLock::take(dir.path()).expect("a lock");
        let _inherited = lock.0.try_clone().expect("a descriptor");
        assert!(is_locked(dir.path()));
        drop(lock);
        assert!(!is_locked(dir.path()));
    }

    #[test]
    fn a_holder_runs_until_its_process_has_ended() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(Holder::of(dir.path()), None);
        let lock = StoreLock::take(dir.path()).expect("a lock");
        drop(lock);
        assert!(Holder::of(dir.path()).expect("a holder").runs(), "runs, though the lock is free");
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let holder = Holder { pid: other.id(), started: started(other.id()).expect("a time") };
        assert!(holder.runs() && !Holder { started: holder.started + 1, ..holder }.runs());
        other.kill().expect("it ends");
        // The process is a zombie until it is waited for.
        let ends = (0..1000).any(|_| {
            std::thread::sleep(PAUSE);
            !holder.runs()
        });
        assert!(ends && std::fs::exists(format!("/proc/{}", holder.pid)).expect("/proc is readable"));
        other.wait().expect("it has ended");
    }
}
