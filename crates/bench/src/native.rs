//! Measures servers without a kernel in between: clients of this process, each with a connection of its own.
//!
//! As many threads as processors, at most, have the clients among them, so that no call changes threads on its way.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use espalier_library::{Credentials, FileSystem, OpenOptions};
use hdrhistogram::Histogram;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::place::Place;
use crate::report::{PhaseReport, Report};
use crate::team::Outcome;
use crate::worker::{file_name, histogram};
use espalier_runtime::{Servers, may_open};

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct NativeOptions {
    /// As `espalier://HOST:PORT/`.
    pub url: String,
    pub credentials: Credentials,
    pub clients: u32,
    /// Clients besides, which connect and do nothing more.
    pub idle: u32,
    /// So many calls of each client are under way at once.
    pub outstanding: u32,
    /// Of each client, in a directory of its own.
    pub files: u64,
    /// Of each file, in the phases that write and read.
    pub bytes: u64,
    pub runs: u32,
    /// Set from outside, it ends the benchmark.
    pub stop: Arc<AtomicBool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Create,
    Stat,
    Unlink,
    Write,
    Read,
}

/// A phase's name, what it does, and whether its clients have just connected and so know nothing.
type Phase = (&'static str, Work, bool);

const PHASES: [Phase; 6] = [
    ("create", Work::Create, false),
    ("stat", Work::Stat, true),
    ("stat leased", Work::Stat, false),
    ("unlink", Work::Unlink, false),
    ("create and write", Work::Write, false),
    ("open and read", Work::Read, true),
];

/// Measures a server. What was made there is removed again; also when it fails.
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
    let place = Place {
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

/// What came of an operation, of all clients together.
#[derive(Debug)]
pub struct Sample {
    /// `create`, `stat` of what nobody has told the client yet, or `unlink`.
    pub name: &'static str,
    /// From the first to the last.
    pub seconds: f64,
    /// Of each call, in nanoseconds.
    pub latencies: Histogram<u64>,
    /// For them all.
    pub processors: Processors,
    /// Requests that clients have sent for them.
    pub requests: u64,
}

impl Sample {
    /// As if this and that had been measured at once.
    pub fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.latencies += &other.latencies;
        self.processors = self.processors.plus(other.processors);
        self.requests += other.requests;
    }
}

/// What it took to do what all clients did at once.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    processors: Processors,
    requests: u64,
}

/// For how long processors have been busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub clients: Duration,
    pub servers: Duration,
}

impl Processors {
    /// Until now: for this process, whose clients measure, and for a server's.
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

/// Of all threads of a process, to the kernel's tick of 10 ms, usually; 0 if it is gone.
fn processor_time(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Measures single operations, to make a model of them. `processors`: what processors have done until now, for whomever counts.
///
/// # Errors
/// As [`native`].
pub fn sample(options: &NativeOptions, processors: &dyn Fn() -> Processors) -> Result<Vec<Sample>, Error> {
    const SAMPLED: [Phase; 3] = [PHASES[0], PHASES[1], PHASES[3]];
    let outcomes = runs(options, &SAMPLED, processors)?;
    let sum = |(phase, runs): (&Phase, Vec<(Outcome, Took)>)| {
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

/// By phase, what has come of each run, and what it took.
fn runs(
    options: &NativeOptions,
    phases: &[Phase],
    processors: &dyn Fn() -> Processors,
) -> Result<Vec<Vec<(Outcome, Took)>>, Error> {
    // Each client is connected to each of them. Who cannot name them is told so when he connects.
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
    /// Waits for what the threads do.
    here: Runtime,
    ships: Vec<Ship>,
    clients: Vec<Client>,
    idle: Vec<(FileSystem, Handle)>,
}

/// A client and its directory, on a thread.
struct Client {
    fs: FileSystem,
    own: String,
    thread: Handle,
}

/// A thread, which serves its clients all the time: others may wait for them to give leases back.
struct Ship {
    handle: Handle,
    /// It ends when its sender is dropped.
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

    /// Makes the directories. One client makes and removes them all, when no others are connected: what these know of the
    /// directories above would be fought over, and not be leased for a while, so that each of their calls would ask for it.
    fn make(&self) -> Result<(), Error> {
        let dirs: Vec<_> = [self.dir.clone()].into_iter().chain(self.own()).collect();
        self.alone(|fs| async move {
            for dir in dirs {
                fs.create_dir(dir).await?;
            }
            Ok(())
        })
    }

    /// What one client does that is connected for that.
    fn alone<F: Future<Output = io::Result<()>> + Send + 'static>(
        &self,
        work: impl FnOnce(FileSystem) -> F,
    ) -> Result<(), Error> {
        let Some(Ship { handle, .. }) = self.ships.first() else { return Ok(()) };
        let fs = self.connect_on(handle)?;
        let done = self.on(handle, work(fs.clone()))?;
        self.on(handle, fs.close())?;
        done.map_err(Error::doing(format!("make or remove {}", self.dir)))
    }

    /// Runs something on a thread until it is done.
    fn on<T: Send + 'static>(
        &self,
        thread: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        self.here.block_on(thread.spawn(work)).map_err(|error| Error::doing("go on")(error.into()))
    }

    /// Anew, if they were connected.
    fn connect(&mut self) -> Result<(), Error> {
        self.disconnect()?;
        for (own, ship) in self.own().into_iter().zip(self.ships.iter().cycle()) {
            let thread = ship.handle.clone();
            self.clients.push(Client { fs: self.connect_on(&thread)?, own, thread });
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
        phases: &[Phase],
        processors: &dyn Fn() -> Processors,
        outcomes: &mut [Vec<(Outcome, Took)>],
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

    /// That clients have sent since they connected.
    fn requests(&self) -> u64 {
        self.clients.iter().map(|client| client.fs.messages().requests).sum()
    }

    /// Does something once for each client, with its directory.
    fn each<F: Future<Output = io::Result<()>> + Send + 'static>(
        &self,
        work: impl Fn(FileSystem, String) -> F,
    ) -> Result<(), Error> {
        for Client { fs, own, thread } in &self.clients {
            let done = self.on(thread, work(fs.clone(), own.clone()))?;
            done.map_err(Error::doing(format!("use {own}")))?;
        }
        Ok(())
    }

    /// What all clients do, at once.
    fn measure(&self, work: Work) -> Result<Outcome, Error> {
        let options = self.options;
        let data: Arc<[u8]> = vec![b'e'; options.bytes as usize].into();
        let mut latencies = histogram();
        let mut tasks = Vec::new();
        let begun = Instant::now();
        // Not one for each task: it is big.
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
        let bytes = if matches!(work, Work::Write | Work::Read) { operations * options.bytes } else { 0 };
        Ok(Outcome { seconds, operations, bytes, latencies })
    }

    /// Removes what is still there.
    fn remove(mut self) -> Result<(), Error> {
        self.disconnect()?;
        for (fs, thread) in std::mem::take(&mut self.idle) {
            self.on(&thread, fs.close())?;
        }
        let (dir, own) = (self.dir.clone(), self.own());
        self.alone(|fs| async move {
            for own in own {
                let mut listing = match fs.read_dir(&own).await {
                    // They could not all be made.
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

async fn operate(fs: &FileSystem, work: Work, path: &str, data: &[u8]) -> io::Result<()> {
    match work {
        Work::Create => fs.create_file(path, 0o644).await,
        Work::Stat => fs.metadata(path).await.map(drop),
        Work::Unlink => fs.remove_file(path).await,
        Work::Write => {
            let file = OpenOptions::new().write(true).create_new(true).open(fs, path).await?;
            file.write_all_at(data, 0).await
        }
        Work::Read => {
            let mut bytes = vec![0; data.len()];
            let read = fs.open(path).await?.read_at(&mut bytes, 0).await?;
            if bytes[..read] == *data { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
        }
    }
}
