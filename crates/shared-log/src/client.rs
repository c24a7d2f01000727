//! A client of a log.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::call::{LogCall, LogStep, SealState};
use crate::directory::{HeldEpoch, LogDirectory, LogEntry};
use crate::host::{HostRecord, hosts_dir, live_hosts};
use crate::sequencer::{EpochHolder, EpochRecord, LeaseLimits, Sequencer, TakenNumbers};
use crate::wire::{LineConnection, NumberReply, NumberRequest};
use crate::{ENTRY_BYTES_MAX, LogError, NUMBERS_MAX};

/// Pause before a sequencer is tried again, doubled each time up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A host that does not answer for so long is not asked again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// The source of a client's log positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NumberSource {
    /// The client holds the sequencer itself for a while, and takes numbers without a message. If a
    /// host holds it, as [`NumberSource::Direct`].
    Lease(LeaseLimits),
    /// A request to the host that holds the sequencer.
    Direct,
    /// A request to this host, which asks the holder.
    Proxy(String),
}

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    pub source: NumberSource,
    /// Entries are synced to the disk before an append returns.
    pub durable: bool,
    /// Milliseconds to wait for a sequencer.
    pub timeout_ms: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        let source = NumberSource::Lease(LeaseLimits::default());
        Self { source, durable: false, timeout_ms: 30_000 }
    }
}

/// A tenure of this client.
#[derive(Debug)]
struct LeasedSequencer {
    held: HeldEpoch,
    sequencer: Sequencer,
}

/// A client of one log.
#[derive(Debug)]
pub struct SharedLog {
    dir: LogDirectory,
    name: String,
    hosts: PathBuf,
    options: LogOptions,
    lease: Option<LeasedSequencer>,
    connection: Option<(HostRecord, LineConnection)>,
    /// The last epoch that was found sealed.
    sealed: u64,
    /// An epoch of another client's, and when this one has seen it first.
    seen: (u64, Instant),
    begun: Instant,
}

impl SharedLog {
    /// Opens the log in a directory. `create`: makes it, if there is none. Hosts of its sequencer
    /// are those of the directory above.
    ///
    /// # Errors
    /// The directory is not accessible.
    pub fn open(path: &Path, create: bool, options: LogOptions) -> Result<Self, LogError> {
        let dir = LogDirectory::open(path, create, options.durable)?;
        let path = path.canonicalize().map_err(|cause| LogError::File { path: path.into(), cause })?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let hosts = hosts_dir(path.parent().unwrap_or(&path));
        let begun = Instant::now();
        let (lease, connection, sealed, seen) = (None, None, 0, (0, begun));
        Ok(Self { dir, name, hosts, options, lease, connection, sealed, seen, begun })
    }

    pub fn directory(&self) -> &LogDirectory {
        &self.dir
    }

    /// Appends an entry and returns its position. Positions of one client increase. The entry is
    /// complete and readable by all clients.
    ///
    /// # Errors
    /// [`LogError`]; after [`LogError::File`], [`LogError::NoSequencer`] and [`LogError::Trimmed`]
    /// the entry may be in the log.
    pub fn append(&mut self, data: &[u8]) -> Result<u64, LogError> {
        let position = self.run(LogCall::append(), data)?;
        if position < self.dir.trim_mark()? {
            return Err(LogError::Trimmed(position));
        }
        Ok(position)
    }

    /// The position after the last number that was handed out. Every append that returned before
    /// is below.
    ///
    /// # Errors
    /// [`LogError`]
    pub fn tail(&mut self) -> Result<u64, LogError> {
        self.run(LogCall::tail(), &[])
    }

    /// Reads a position, as [`LogDirectory::read`].
    ///
    /// # Errors
    /// [`LogError`]
    pub fn read(&self, position: u64) -> Result<LogEntry, LogError> {
        self.dir.read(position)
    }

    /// Fills a hole below the tail, so that readers need not wait for it. Returns the position's
    /// entry, which is data if a writer was first.
    ///
    /// # Errors
    /// [`LogError::BeyondTail`]
    pub fn fill(&mut self, position: u64) -> Result<LogEntry, LogError> {
        if position >= self.tail()? {
            return Err(LogError::BeyondTail(position));
        }
        if self.read(position)? == LogEntry::Unwritten {
            self.dir.place(position, None)?;
        }
        self.read(position)
    }

    /// Removes all entries below `before` and frees their space. They read as
    /// [`LogEntry::Trimmed`].
    ///
    /// # Errors
    /// [`LogError::BeyondTail`]
    pub fn trim(&mut self, before: u64) -> Result<(), LogError> {
        if before > self.tail()? {
            return Err(LogError::BeyondTail(before));
        }
        self.dir.trim(before)
    }

    /// Deposes the holder of the sequencer, even if it hangs, and returns the tail. The next
    /// process that needs a number becomes the holder. Appends with older numbers are completed.
    ///
    /// # Errors
    /// [`LogError::NoSequencer`] if other claims keep winning.
    pub fn seal(&mut self) -> Result<u64, LogError> {
        self.release()?;
        let mut pauses = Pauses::new(self.options.timeout_ms);
        loop {
            if let Some(held) = self.dir.claim(&EpochHolder::Lease { term_ms: 0 }, true)? {
                let begin = held.begin;
                self.dir.release(held, begin)?;
                return Ok(begin);
            }
            pauses.wait()?;
        }
    }

    /// Ends a lease on the sequencer, so that other clients need not wait for its end.
    ///
    /// # Errors
    /// The release cannot be written: the next holder recovers the tail.
    pub fn release(&mut self) -> Result<(), LogError> {
        let Some(LeasedSequencer { held, sequencer }) = self.lease.take() else { return Ok(()) };
        self.dir.release(held, sequencer.tail())
    }

    /// Time until [`SharedLog::release`] is due, if this client has a lease on the sequencer.
    pub fn lease_left(&self) -> Option<Duration> {
        let lease = self.lease.as_ref()?;
        lease.sequencer.left_ms(self.now_ms()).map(Duration::from_millis)
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn run(&mut self, mut call: LogCall, data: &[u8]) -> Result<u64, LogError> {
        if data.len() > ENTRY_BYTES_MAX {
            return Err(LogError::TooLong(data.len()));
        }
        loop {
            match call.step() {
                LogStep::Take { count, floor } => call.taken(self.take(count, floor)?),
                LogStep::Place { position } => {
                    call.placed(self.dir.place(position, Some(data))?);
                }
                LogStep::CheckSeal { epoch } => {
                    let state = self.dir.seal_state(epoch)?;
                    if state != SealState::Open {
                        // The host or the lease is that of an old epoch.
                        (self.connection, self.lease) = (None, None);
                        self.sealed = self.sealed.max(epoch);
                    }
                    call.checked(state);
                }
                LogStep::Done(value) => return Ok(value),
            }
        }
    }

    /// Takes the next numbers without writing entries: holes, until they are filled. None is below
    /// `floor`. Another process may seal their epoch at any time.
    ///
    /// # Errors
    /// [`LogError`]
    pub fn take(&mut self, count: u64, floor: u64) -> Result<TakenNumbers, LogError> {
        if count > NUMBERS_MAX {
            return Err(LogError::TooMany(count));
        }
        let mut pauses = Pauses::new(self.options.timeout_ms);
        loop {
            let taken = match self.options.source.clone() {
                NumberSource::Lease(limits) => self.take_by_lease(limits, count, floor)?,
                NumberSource::Direct => self.take_by_request(None, count, floor)?,
                NumberSource::Proxy(host) => self.take_by_request(Some(&host), count, floor)?,
            };
            match taken {
                Some(taken) => return Ok(taken),
                None => pauses.wait()?,
            }
        }
    }

    fn take_by_lease(
        &mut self,
        limits: LeaseLimits,
        count: u64,
        floor: u64,
    ) -> Result<Option<TakenNumbers>, LogError> {
        let now_ms = self.now_ms();
        if let Some(lease) = &mut self.lease {
            if let Ok(taken) = lease.sequencer.take(count, floor, now_ms) {
                return Ok(Some(taken));
            }
            self.release()?;
            thread::sleep(Duration::from_millis(limits.backoff_ms));
        }
        let holder = EpochHolder::Lease { term_ms: limits.term_ms };
        let limits = LeaseLimits { quota: limits.quota.max(count), ..limits };
        let is_overdue = self.is_overdue()?;
        if let Some(held) = self.dir.claim(&holder, is_overdue)? {
            let now_ms = self.now_ms();
            let mut sequencer = Sequencer::new(held.epoch, held.begin, Some(limits), now_ms);
            let taken = sequencer.take(count, floor, now_ms);
            self.lease = Some(LeasedSequencer { held, sequencer });
            return Ok(taken.ok());
        }
        match self.holding_host()? {
            Some(host) => self.request(&host, count, floor, false),
            None => Ok(None),
        }
    }

    /// True if a client's lease has been in force for more than twice its term by this client's
    /// clock: the client hangs, or does not use the log. A seal ends the lease safely.
    fn is_overdue(&mut self) -> Result<bool, LogError> {
        let current = self.dir.current()?.filter(|record| record.end.is_none());
        let Some(EpochRecord { epoch, holder: EpochHolder::Lease { term_ms }, .. }) = current else {
            return Ok(false);
        };
        if self.seen.0 != epoch {
            self.seen = (epoch, Instant::now());
        }
        Ok(self.seen.1.elapsed() > Duration::from_millis(term_ms.saturating_mul(2)))
    }

    /// The host that holds the sequencer by the current record.
    fn holding_host(&self) -> Result<Option<String>, LogError> {
        Ok(self.dir.current()?.and_then(|record| record.holding_host()))
    }

    fn take_by_request(
        &mut self,
        proxy: Option<&str>,
        count: u64,
        floor: u64,
    ) -> Result<Option<TakenNumbers>, LogError> {
        let first = match (&self.connection, proxy) {
            (Some((host, _)), _) => Some(host.name.clone()),
            (None, Some(proxy)) => Some(proxy.to_owned()),
            (None, None) => self.holding_host()?,
        };
        if let Some(host) = first
            && let Some(taken) = self.request(&host, count, floor, proxy.is_some())?
        {
            return Ok(Some(taken));
        }
        // Any host takes over a sequencer whose holder died, or passes the request on.
        let mut hosts = live_hosts(&self.hosts)?;
        let start = self.name.bytes().map(usize::from).sum::<usize>() % hosts.len().max(1);
        hosts.rotate_left(start);
        for host in hosts {
            if let Some(taken) = self.request(&host.name, count, floor, true)? {
                if proxy.is_none() {
                    self.connection = None;
                }
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// Asks one host. `None`: it is not there, or not the holder.
    fn request(
        &mut self,
        host: &str,
        count: u64,
        floor: u64,
        forward: bool,
    ) -> Result<Option<TakenNumbers>, LogError> {
        if self.connection.as_ref().is_none_or(|(connected, _)| connected.name != host) {
            let Some(record) = HostRecord::read(&self.hosts, host)? else { return Ok(None) };
            let Ok(connection) = LineConnection::connect(&record.address, REPLY_TIMEOUT) else {
                return Ok(None);
            };
            self.connection = Some((record, connection));
        }
        let Some((record, connection)) = &mut self.connection else { return Ok(None) };
        let (token, log, sealed) = (record.token.clone(), self.name.clone(), self.sealed);
        match connection.ask(&NumberRequest { token, log, count, floor, forward, sealed }) {
            Ok(NumberReply::Taken(taken)) => Ok(Some(taken)),
            Ok(NumberReply::NotHolder | NumberReply::Refused) | Err(_) => {
                self.connection = None;
                Ok(None)
            }
        }
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        // The next holder recovers the tail if this fails.
        let _ = self.release();
    }
}

/// Pauses between attempts, until a timeout.
struct Pauses {
    begun: Instant,
    timeout_ms: u64,
    next: Duration,
}

impl Pauses {
    fn new(timeout_ms: u64) -> Self {
        Self { begun: Instant::now(), timeout_ms, next: Duration::ZERO }
    }

    fn wait(&mut self) -> Result<(), LogError> {
        if self.begun.elapsed() > Duration::from_millis(self.timeout_ms) {
            return Err(LogError::NoSequencer(self.timeout_ms));
        }
        thread::sleep(self.next);
        self.next = (self.next * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        Ok(())
    }
}
