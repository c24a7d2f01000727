//! Benchmarks of servers without a mount: clients in this process, each with its own connection.
//!
//! The clients are distributed over at most as many threads as processors; a call stays on its
//! thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use espalier_library::{Credentials, FileSystem, OpenOptions};
use hdrhistogram::Histogram;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::commands::Counts;
use crate::error::Error;
use crate::place::BenchTarget;
use crate::report::{PhaseReport, Report};
use crate::team::PhaseOutcome;
use crate::worker::{file_name, histogram};
use espalier_runtime::{Servers, may_open};

/// Parameters of a benchmark of servers.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// Such as `espalier://HOST:PORT/`.
    pub url: String,
    pub credentials: Credentials,
    pub clients: u32,
    /// Number of additional idle clients.
    pub idle: u32,
    /// Outstanding calls per client.
    pub outstanding: u32,
    /// Number of files per client, each client in its own directory.
    pub files: u64,
    /// File size in bytes in phases that write and read.
    pub bytes: u64,
    pub runs: u32,
    /// Set by the caller to end the benchmark.
    pub stop: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NativeWork {
    Create,
    Stat,
    Unlink,
    Write,
    Read,
}

/// Name of a phase, its work, and true if its clients connect anew with empty caches.
type NativePhase = (&'static str, NativeWork, bool);

const PHASES: [NativePhase; 6] = [
    ("create", NativeWork::Create, false),
    ("stat", NativeWork::Stat, true),
    ("stat leased", NativeWork::Stat, false),
    ("unlink", NativeWork::Unlink, false),
    ("create and write", NativeWork::Write, false),
    ("open and read", NativeWork::Read, true),
];

/// Measures a server. Everything created there is removed, also after a failure.
///
/// # Errors
/// A client cannot connect, or a call fails.
pub fn native(options: &NativeOptions) -> Result<Report, Error> {
    let least = [
        ("clients", options.clients.into()),
        ("outstanding", options.outstanding.into()),
        ("files", options.files),
        ("runs", options.runs.into()),
    ];
    if let Some((option, _)) = least.into_iter().find(|(_, value)| *value == 0_u64) {
        return Err(Error::TooSmall { option, least: 1 });
    }
    let outcomes = runs(options, &PHASES, &Processors::default)?;
    let transport = if options.credentials == Credentials::Insecure { "no TLS" } else { "TLS" };
    let place = BenchTarget {
        dir: options.url.clone().into(),
        file_system: "espalier, native".into(),
        source: options.url.clone().into(),
        options: format!("{transport}, {} outstanding of each client", options.outstanding),
        durability: "as the server is configured".into(),
    };
    let phases = PHASES.iter().zip(&outcomes).map(|((name, ..), runs)| {
        let runs = runs.iter().map(|(outcome, _)| outcome).collect();
        PhaseReport::new(format!("native/{name}"), options.clients, &[runs])
    });
    let phases = phases.collect();
    Ok(Report { algorithm: 1, runs: options.runs, uncached: None, sides: vec![place], phases })
}

/// Measurements of one operation, for all clients together.
#[derive(Debug)]
pub struct Sample {
    /// `create`, `stat` with an empty cache, or `unlink`.
    pub name: &'static str,
    /// Seconds from the first call to the last reply.
    pub seconds: f64,
    /// Latency of each call in nanoseconds.
    pub latencies: Histogram<u64>,
    /// Processor time of all calls.
    pub processors: Processors,
    /// Requests sent for these calls.
    pub requests: u64,
}

impl Sample {
    /// Merges two measurements.
    pub fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.latencies += &other.latencies;
        self.processors = self.processors.plus(other.processors);
        self.requests += other.requests;
    }
}

/// Duration and processor time of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    processors: Processors,
    requests: u64,
}

/// Processor times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub clients: Duration,
    pub servers: Duration,
}

impl Processors {
    /// Current processor times of this process, which runs the clients, and of a server.
    pub fn used(server: u32) -> Self {
        Self { clients: processor_time("self"), servers: processor_time(&server.to_string()) }
    }

    fn plus(self, other: Self) -> Self {
        Self { clients: self.clients + other.clients, servers: self.servers + other.servers }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            clients: self.clients.saturating_sub(other.clients),
            servers: self.servers.saturating_sub(other.servers),
        }
    }
}

/// Processor time of all threads of a process, usually in ticks of 10 ms; 0 if it has ended.
fn processor_time(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The fields follow the name, which may contain any characters.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Measures single operations, for a model. `processors` returns the current processor times.
///
/// # Errors
/// As [`native`].
pub fn sample(options: &NativeOptions, processors: &dyn Fn() -> Processors) -> Result<Vec<Sample>, Error> {
    const SAMPLED: [NativePhase; 3] = [PHASES[0], PHASES[1], PHASES[3]];
    let outcomes = runs(options, &SAMPLED, processors)?;
    let sum = |(phase, runs): (&NativePhase, Vec<(PhaseOutcome, Took)>)| {
        let (mut seconds, mut latencies, mut all) = (0.0, histogram(), Took::default());
        for (outcome, took) in runs {
            (seconds, all.processors) = (seconds + outcome.seconds, all.processors.plus(took.processors));
            all.requests += took.requests;
            latencies += outcome.latencies;
        }
        let Took { processors, requests } = all;
        Sample { name: phase.0, seconds, latencies, processors, requests }
    };
    Ok(SAMPLED.iter().zip(outcomes).map(sum).collect())
}

/// By phase: the results of each run, and their durations.
fn runs(
    options: &NativeOptions,
    phases: &[NativePhase],
    processors: &dyn Fn() -> Processors,
) -> Result<Vec<Vec<(PhaseOutcome, Took)>>, Error> {
    // Each client connects to every server. An invalid URL is reported at connect.
    let servers = Servers::addresses(&options.url).map_or(1, |servers| servers.len() as u64);
    may_open(servers * (u64::from(options.clients) + u64::from(options.idle)))
        .map_err(|most| Error::Connections { most })?;
    let mut outcomes: Vec<Vec<_>> = phases.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.runs {
        let mut fleet = Fleet::new(options)?;
        let begun = fleet.make().and_then(|()| fleet.connect()).and_then(|()| fleet.connect_idle());
        let measured = begun.and_then(|()| fleet.run(phases, processors, &mut outcomes));
        let removed = fleet.remove();
        measured.and(removed)?;
    }
    Ok(outcomes)
}

/// All clients of a run.
struct Fleet<'a> {
    options: &'a NativeOptions,
    dir: String,
    /// Runtime of the main thread, which waits for the others.
    here: Runtime,
    ships: Vec<Ship>,
    clients: Vec<BenchClient>,
    idle: Vec<(FileSystem, Handle)>,
}

/// A client and its directory, on a thread.
struct BenchClient {
    fs: FileSystem,
    own: String,
    thread: Handle,
}

/// A thread that serves its clients continuously: other clients may wait for them to release
/// leases.
struct Ship {
    handle: Handle,
    /// The thread ends when the sender is dropped.
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Ship {
    fn new() -> Result<Self, Error> {
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || drop(runtime.block_on(stopped)));
        Ok(Self { handle, serving: Some((stop, thread)) })
    }
}

impl Drop for Ship {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.serving.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

pub(crate) fn runtime() -> Result<Runtime, Error> {
    Builder::new_current_thread().enable_all().build().map_err(Error::doing("start a runtime"))
}

impl<'a> Fleet<'a> {
    fn new(options: &'a NativeOptions) -> Result<Self, Error> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(options.clients as usize);
        let ships = (0..threads).map(|_| Ship::new()).collect::<Result<_, Error>>()?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let dir = format!("/espalier-bench-{}-{}", std::process::id(), since.as_nanos());
        Ok(Self { options, dir, here: runtime()?, ships, clients: Vec::new(), idle: Vec::new() })
    }

    fn own(&self) -> Vec<String> {
        (0..self.options.clients).map(|number| format!("{}/client{number}", self.dir)).collect()
    }

    /// Makes the directories. A single client makes and removes them all while no others are
    /// connected; otherwise clients would compete for leases on the parents and send a request for
    /// every call for a while.
    fn make(&self) -> Result<(), Error> {
        let dirs: Vec<_> = [self.dir.clone()].into_iter().chain(self.own()).collect();
        self.single(|fs| async move {
            for dir in dirs {
                fs.create_dir(dir).await?;
            }
            Ok(())
        })
    }

    /// Runs an action of a temporary client.
    fn single<F: Future<Output = io::Result<()>> + Send + 'static>(
        &self,
        work: impl FnOnce(FileSystem) -> F,
    ) -> Result<(), Error> {
        let Some(Ship { handle, .. }) = self.ships.first() else { return Ok(()) };
        let fs = self.connect_on(handle)?;
        let done = self.on(handle, work(fs.clone()))?;
        self.on(handle, fs.close())?;
        done.map_err(Error::doing(format!("make or remove {}", self.dir)))
    }

    /// Runs a task on a thread and waits for it.
    fn on<T: Send + 'static>(
        &self,
        thread: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        self.here.block_on(thread.spawn(work)).map_err(|error| Error::doing("go on")(error.into()))
    }

    /// Connects all clients, anew if connected.
    fn connect(&mut self) -> Result<(), Error> {
        self.disconnect()?;
        for (own, ship) in self.own().into_iter().zip(self.ships.iter().cycle()) {
            let thread = ship.handle.clone();
            self.clients.push(BenchClient { fs: self.connect_on(&thread)?, own, thread });
        }
        Ok(())
    }

    fn disconnect(&mut self) -> Result<(), Error> {
        for client in std::mem::take(&mut self.clients) {
            self.on(&client.thread, client.fs.close())?;
        }
        Ok(())
    }

    fn connect_on(&self, thread: &Handle) -> Result<FileSystem, Error> {
        let NativeOptions { url, credentials, .. } = self.options.clone();
        let connected = async move { FileSystem::connect(&url, &credentials).await };
        self.on(thread, connected)?.map_err(Error::Connect)
    }

    fn connect_idle(&mut self) -> Result<(), Error> {
        let threads = self.ships.iter().map(|ship| ship.handle.clone()).cycle();
        for thread in threads.take(self.options.idle as usize) {
            self.idle.push((self.connect_on(&thread)?, thread));
        }
        Ok(())
    }

    fn run(
        &mut self,
        phases: &[NativePhase],
        processors: &dyn Fn() -> Processors,
        outcomes: &mut [Vec<(PhaseOutcome, Took)>],
    ) -> Result<(), Error> {
        for (phase, outcomes) in phases.iter().zip(outcomes) {
            let (_, work, is_fresh) = *phase;
            if is_fresh {
                self.connect()?;
            }
            self.each(|fs, own| async move { fs.metadata(own).await.map(drop) })?;
            let (before, sent) = (processors(), self.requests());
            let outcome = self.measure(work)?;
            let processors = processors().minus(before);
            outcomes.push((outcome, Took { processors, requests: self.requests() - sent }));
        }
        Ok(())
    }

    /// Requests sent since the clients connected.
    fn requests(&self) -> u64 {
        self.clients.iter().map(|client| client.fs.messages().requests).sum()
    }

    /// Runs an action for each client and its directory.
    fn each<F: Future<Output = io::Result<()>> + Send + 'static>(
        &self,
        work: impl Fn(FileSystem, String) -> F,
    ) -> Result<(), Error> {
        for BenchClient { fs, own, thread } in &self.clients {
            let done = self.on(thread, work(fs.clone(), own.clone()))?;
            done.map_err(Error::doing(format!("use {own}")))?;
        }
        Ok(())
    }

    /// Runs the work of all clients concurrently.
    fn measure(&self, work: NativeWork) -> Result<PhaseOutcome, Error> {
        let options = self.options;
        let data: Arc<[u8]> = vec![b'e'; options.bytes as usize].into();
        let mut latencies = histogram();
        let mut tasks = Vec::new();
        let begun = Instant::now();
        // One per thread, not per task: a histogram is large.
        let of_thread: Vec<_> = self.ships.iter().map(|_| Arc::new(Mutex::new(histogram()))).collect();
        for (client, times) in self.clients.iter().zip(of_thread.iter().cycle()) {
            for first in 0..u64::from(options.outstanding) {
                let (fs, own, times) = (client.fs.clone(), client.own.clone(), Arc::clone(times));
                let (data, stop) = (Arc::clone(&data), Arc::clone(&options.stop));
                let files = (first..options.files).step_by(options.outstanding as usize);
                tasks.push(client.thread.spawn(async move {
                    for file in files {
                        if stop.load(Ordering::Relaxed) {
                            return Err(Error::Stopped);
                        }
                        let path = format!("{own}/{}", file_name(file));
                        let begun = Instant::now();
                        let done = operate(&fs, work, &path, &data).await;
                        let took = begun.elapsed().as_nanos() as u64;
                        done.map_err(|error| Error::doing(format!("{work:?} {path}").to_lowercase())(error))?;
                        times.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(took);
                    }
                    Ok(begun.elapsed())
                }));
            }
        }
        let mut longest: Result<_, Error> = Ok(Duration::ZERO);
        for task in tasks {
            let done = self.here.block_on(task).map_err(|error| Error::doing("go on")(error.into()));
            longest = longest.and_then(|longest| Ok(done.and_then(|done| done)?.max(longest)));
        }
        let seconds = longest?.as_secs_f64();
        for times in of_thread {
            latencies += &*times.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let operations = latencies.len();
        let bytes =
            if matches!(work, NativeWork::Write | NativeWork::Read) { operations * options.bytes } else { 0 };
        Ok(PhaseOutcome { seconds, operations, bytes, latencies, counts: Counts::new() })
    }

    /// Removes everything that remains.
    fn remove(mut self) -> Result<(), Error> {
        self.disconnect()?;
        for (fs, thread) in std::mem::take(&mut self.idle) {
            self.on(&thread, fs.close())?;
        }
        let (dir, own) = (self.dir.clone(), self.own());
        self.single(|fs| async move {
            for own in own {
                let mut listing = match fs.read_dir(&own).await {
                    // Not all directories could be made.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    listing => listing?,
                };
                while let Some(entry) = listing.next_entry().await? {
                    fs.remove_file(format!("{own}/{}", entry.file_name().to_string_lossy())).await?;
                }
                fs.remove_dir(own).await?;
            }
            fs.remove_dir(dir).await
        })
    }
}

async fn operate(fs: &FileSystem, work: NativeWork, path: &str, data: &[u8]) -> io::Result<()> {
    match work {
        NativeWork::Create => fs.create_file(path, 0o644).await,
        NativeWork::Stat => fs.metadata(path).await.map(drop),
        NativeWork::Unlink => fs.remove_file(path).await,
        NativeWork::Write => {
            let file = OpenOptions::new().write(true).create_new(true).open(fs, path).await?;
            file.write_all_at(data, 0).await
        }
        NativeWork::Read => {
            let mut bytes = vec![0; data.len()];
            let read = fs.open(path).await?.read_at(&mut bytes, 0).await?;
            if bytes[..read] == *data { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
        }
    }
}
