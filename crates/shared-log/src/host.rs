//! A host of sequencers: serves numbers of any log of a directory, takes over sequencers whose
//! holders died, and hands sequencers to other hosts as a policy says.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use espalier_balancer::{BalancerEngine, MovePlan, SavedState};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::balance::{HostLoad, SequencerLoad, plan_moves};
use crate::call::SealState;
use crate::directory::{HeldEpoch, LogDirectory, LogEntry, random_id};
use crate::sequencer::{EpochHolder, Sequencer, TakenNumbers};
use crate::wire::{LineConnection, NumberReply, NumberRequest};
use crate::{LogError, NUMBERS_MAX};

/// Clients that a host serves at the same time.
const CONNECTIONS_MAX: usize = 512;
/// Interval at which a host writes its record and looks for newer epochs.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A host whose record is older is dead.
const SILENCE_MAX_MS: u64 = 30_000;
/// A host does not take a sequencer back for so long after handing it over.
const HANDOVER: Duration = Duration::from_secs(2);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// A host's entry in the directory `.hosts` beside the logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRecord {
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Requests must carry it: users that can read the directory get numbers.
    pub token: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Requests for numbers a second, including those that it passes on.
    pub requests: f64,
    /// The same of each sequencer that it holds.
    pub sequencers: Vec<(String, f64)>,
}

impl HostRecord {
    /// `None`: there is no such host.
    pub(crate) fn read(hosts: &Path, name: &str) -> Result<Option<Self>, LogError> {
        check_name(name)?;
        let path = hosts.join(name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|_| LogError::Damaged(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(LogError::File { path, cause }),
        }
    }
}

pub(crate) fn hosts_dir(logs: &Path) -> PathBuf {
    logs.join(".hosts")
}

/// Names of logs and hosts are names of files, and none that is hidden.
fn check_name(name: &str) -> Result<(), LogError> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(is_valid) {
        return Err(LogError::Name(name.into()));
    }
    Ok(())
}

/// The hosts of a directory `.hosts` with a recent record, by name.
///
/// # Errors
/// The directory is not readable.
pub fn live_hosts(dir: &Path) -> Result<Vec<HostRecord>, LogError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(LogError::File { path: dir.into(), cause }),
    };
    let mut hosts = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| check_name(name).is_ok()) else { continue };
        hosts.extend(HostRecord::read(dir, name)?);
    }
    hosts.retain(|host| host.at_ms.saturating_add(SILENCE_MAX_MS) > now_ms());
    hosts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(hosts)
}

fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// A callback for each plan of a host that moves sequencers or fails.
pub type PlanObserver = Box<dyn Fn(&MovePlan) + Send>;

/// Options of a host.
pub struct HostOptions {
    /// Unique among the hosts of the logs.
    pub name: String,
    /// Address to listen on; port 0 takes a free one.
    pub listen: String,
    /// The policy that hands sequencers over, and the interval of its decisions.
    pub balancer: Option<(BalancerEngine, Duration)>,
    pub on_plan: PlanObserver,
}

/// The sequencer of a log, as far as this host has it.
struct SequencerSlot {
    dir: LogDirectory,
    held: Option<(HeldEpoch, Sequencer)>,
    /// The host does not claim the sequencer before this time.
    barred_until: Option<Instant>,
    moved_ms: Option<u64>,
    /// Requests in this interval, and a second in the last one.
    counted: u64,
    rate: f64,
}

type SharedSlot = Arc<Mutex<SequencerSlot>>;

struct HostState {
    logs: PathBuf,
    name: String,
    address: String,
    token: String,
    slots: Mutex<HashMap<String, SharedSlot>>,
    requests: AtomicU64,
    connections: AtomicUsize,
    is_stopping: AtomicBool,
}

/// A running host. Dropping it releases its sequencers.
pub struct SequencerHost {
    state: Arc<HostState>,
    heartbeat: Option<JoinHandle<()>>,
    acceptor: Option<JoinHandle<()>>,
    _lock: File,
}

/// Connections to the holders of logs.
type PeerConnections = HashMap<String, PeerConnection>;

struct PeerConnection {
    token: String,
    connection: LineConnection,
}

impl PeerConnection {
    /// Passes a request on. `None`: the peer is not the holder, or is gone.
    fn pass_on(&mut self, request: &NumberRequest) -> Option<NumberReply> {
        let (token, log) = (self.token.clone(), request.log.clone());
        let reply = self.connection.ask(&NumberRequest { token, log, forward: false, ..*request });
        reply.ok().filter(|reply| matches!(reply, NumberReply::Taken(_)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SequencerHost {
    /// Starts to serve the logs in a directory.
    ///
    /// # Errors
    /// The address or the name is in use, or the directory is not writable.
    pub fn start(logs: &Path, options: HostOptions) -> Result<Self, LogError> {
        check_name(&options.name)?;
        let hosts = hosts_dir(logs);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |cause| LogError::File { path, cause }
        };
        fs::create_dir_all(&hosts).map_err(at(&hosts))?;
        let lock_path = hosts.join(format!(".{}.lock", options.name));
        let lock = File::create(&lock_path).map_err(at(&lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| at(&lock_path)(error.into()))?;
        let address = Path::new(&options.listen);
        let listener = TcpListener::bind(&options.listen).map_err(at(address))?;
        let state = Arc::new(HostState {
            logs: logs.to_owned(),
            name: options.name,
            address: listener.local_addr().map_err(at(address))?.to_string(),
            token: random_id().map_err(at(Path::new("/dev/urandom")))?,
            slots: Mutex::default(),
            requests: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
        });
        state.write_record(0.0)?;
        let acceptor = {
            let state = Arc::clone(&state);
            thread::spawn(move || state.accept(&listener))
        };
        let heartbeat = {
            let state = Arc::clone(&state);
            let (balancer, on_plan) = (options.balancer, options.on_plan);
            thread::spawn(move || state.run_heartbeat(balancer, &on_plan))
        };
        Ok(Self { state, heartbeat: Some(heartbeat), acceptor: Some(acceptor), _lock: lock })
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.state.address
    }

    /// Hands the sequencer of a log to another host.
    ///
    /// # Errors
    /// There is no such host, or this one does not hold the sequencer.
    pub fn hand_over(&self, log: &str, host: &str) -> Result<(), LogError> {
        self.state.hand_over(log, host)
    }
}

impl Drop for SequencerHost {
    fn drop(&mut self) {
        self.state.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor.
        let _ = TcpStream::connect(&self.state.address);
        for thread in [self.acceptor.take(), self.heartbeat.take()].into_iter().flatten() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(hosts_dir(&self.state.logs).join(&self.state.name));
        for slot in lock(&self.state.slots).values() {
            let mut slot = lock(slot);
            slot.barred_until = Some(Instant::now() + Duration::from_secs(3600));
            if let Some((held, sequencer)) = slot.held.take() {
                // The next holder recovers the tail if this fails.
                let _ = slot.dir.release(held, sequencer.tail());
            }
        }
    }
}

impl HostState {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.is_stopping.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else {
                // Out of file descriptors: others end.
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.connections.fetch_add(1, Ordering::SeqCst) < CONNECTIONS_MAX {
                let state = Arc::clone(&self);
                thread::spawn(move || {
                    // A client that is gone, or that sends anything else.
                    let _ = state.serve(stream);
                    state.connections.fetch_sub(1, Ordering::SeqCst);
                });
            } else {
                self.connections.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let mut connection = LineConnection::new(stream)?;
        let mut peers = PeerConnections::new();
        while let Some(request) = connection.receive::<NumberRequest>()? {
            if self.is_stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            let is_allowed = request.token == self.token && check_name(&request.log).is_ok();
            let reply = match is_allowed {
                // Errors of files: the client asks another host, or again.
                true => self.answer(&request, &mut peers).unwrap_or(NumberReply::NotHolder),
                false => NumberReply::Refused,
            };
            connection.send(&reply)?;
            if reply == NumberReply::Refused {
                return Ok(());
            }
        }
        Ok(())
    }

    fn answer(&self, request: &NumberRequest, peers: &mut PeerConnections) -> Result<NumberReply, LogError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // The holder so far, so that this host need not try a claim each time.
        if let Some(mut peer) = peers.remove(&request.log).filter(|_| request.forward)
            && let Some(reply) = peer.pass_on(request)
        {
            peers.insert(request.log.clone(), peer);
            return Ok(reply);
        }
        let slot = self.slot(&request.log)?;
        let holder = {
            let mut slot = lock(&slot);
            if let Some(taken) = self.take(&mut slot, request)? {
                return Ok(NumberReply::Taken(taken));
            }
            slot.dir.current()?.and_then(|record| record.holding_host())
        };
        let holder = holder.filter(|host| request.forward && *host != self.name);
        let record = holder.map(|host| HostRecord::read(&hosts_dir(&self.logs), &host)).transpose()?;
        let connected = record.flatten().and_then(|record| {
            let connection = LineConnection::connect(&record.address, REPLY_TIMEOUT).ok()?;
            Some(PeerConnection { token: record.token, connection })
        });
        let Some(mut peer) = connected else { return Ok(NumberReply::NotHolder) };
        let Some(reply) = peer.pass_on(request) else { return Ok(NumberReply::NotHolder) };
        peers.insert(request.log.clone(), peer);
        Ok(reply)
    }

    fn slot(&self, log: &str) -> Result<SharedSlot, LogError> {
        if let Some(slot) = lock(&self.slots).get(log) {
            return Ok(Arc::clone(slot));
        }
        // Epochs are synced: they are few.
        let dir = LogDirectory::open(&self.logs.join(log), false, true)?;
        let slot =
            SequencerSlot { dir, held: None, barred_until: None, moved_ms: None, counted: 0, rate: 0.0 };
        let slot = Arc::new(Mutex::new(slot));
        Ok(Arc::clone(lock(&self.slots).entry(log.to_owned()).or_insert(slot)))
    }

    /// Takes numbers if this host holds the sequencer, or can claim it.
    fn take(
        &self,
        slot: &mut SequencerSlot,
        request: &NumberRequest,
    ) -> Result<Option<TakenNumbers>, LogError> {
        if let Some((held, _)) = &slot.held
            && held.epoch <= request.sealed
            && slot.dir.seal_state(held.epoch)? != SealState::Open
        {
            slot.held = None;
        }
        if slot.held.is_none()
            && slot.barred_until.is_none_or(|until| Instant::now() >= until)
            && let Some(held) = slot.dir.claim(&EpochHolder::Host(self.name.clone()), false)?
        {
            let sequencer = Sequencer::new(held.epoch, held.begin, None, 0);
            slot.moved_ms = (held.epoch > 1).then(now_ms);
            slot.held = Some((held, sequencer));
        }
        let Some((_, sequencer)) = &mut slot.held else { return Ok(None) };
        slot.counted += 1;
        // A client raises the tail above an entry only: others could use up all numbers.
        let is_valid =
            request.floor <= sequencer.tail() || slot.dir.read(request.floor - 1)? != LogEntry::Unwritten;
        if !is_valid || request.count > NUMBERS_MAX {
            return Ok(None);
        }
        Ok(sequencer.take(request.count, request.floor, 0).ok())
    }

    fn hand_over(&self, log: &str, host: &str) -> Result<(), LogError> {
        let no_host = || LogError::NoHost(host.into());
        let record = HostRecord::read(&hosts_dir(&self.logs), host)?.ok_or_else(no_host)?;
        let Ok(mut connection) = LineConnection::connect(&record.address, REPLY_TIMEOUT) else {
            return Err(no_host());
        };
        let slot = self.slot(log)?;
        {
            let mut slot = lock(&slot);
            let Some((held, sequencer)) = slot.held.take() else { return Err(no_host()) };
            slot.barred_until = Some(Instant::now() + HANDOVER);
            slot.dir.release(held, sequencer.tail())?;
        }
        let (token, log) = (record.token, log.to_owned());
        let request = NumberRequest { token, log, count: 0, floor: 0, forward: false, sealed: 0 };
        // After a failure the first host that a client asks claims the sequencer.
        let _ = connection.ask(&request);
        Ok(())
    }

    fn write_record(&self, requests: f64) -> Result<(), LogError> {
        let mut sequencers = Vec::new();
        for (log, slot) in &*lock(&self.slots) {
            let slot = lock(slot);
            sequencers.extend(slot.held.is_some().then(|| (log.clone(), slot.rate)));
        }
        sequencers.sort_by(|a, b| a.0.cmp(&b.0));
        let (name, address, token) = (self.name.clone(), self.address.clone(), self.token.clone());
        let record = HostRecord { name, address, token, at_ms: now_ms(), requests, sequencers };
        let hosts = hosts_dir(&self.logs);
        let (path, temporary) = (hosts.join(&self.name), hosts.join(format!(".{}.new", self.name)));
        let write = || {
            fs::write(&temporary, serde_json::to_vec(&record)?)?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|cause| LogError::File { path, cause })
    }

    /// Ends tenures that were deposed, and measures rates.
    fn look_after_slots(&self, seconds: f64) {
        let slots: Vec<SharedSlot> = lock(&self.slots).values().map(Arc::clone).collect();
        for slot in slots {
            let mut slot = lock(&slot);
            let epoch = slot.held.as_ref().map(|(held, _)| held.epoch);
            let state = epoch.map(|epoch| slot.dir.seal_state(epoch));
            if matches!(state, Some(Ok(SealState::Sealed { .. }))) {
                slot.held = None;
            }
            slot.rate = slot.counted as f64 / seconds;
            slot.counted = 0;
        }
    }

    fn run_heartbeat(&self, balancer: Option<(BalancerEngine, Duration)>, on_plan: &PlanObserver) {
        let (mut last, mut decided) = (Instant::now(), Instant::now());
        let mut saved = SavedState::default();
        while !self.is_stopping.load(Ordering::SeqCst) {
            if last.elapsed() < HEARTBEAT {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let seconds = last.elapsed().as_secs_f64();
            last = Instant::now();
            let requests = self.requests.swap(0, Ordering::Relaxed) as f64 / seconds;
            self.look_after_slots(seconds);
            // A record that gets too old makes clients ask other hosts.
            let _ = self.write_record(requests);
            if let Some((engine, every)) = &balancer
                && decided.elapsed() >= *every
            {
                decided = Instant::now();
                self.balance(engine, &mut saved, on_plan);
            }
        }
    }

    fn balance(&self, engine: &BalancerEngine, saved: &mut SavedState, on_plan: &PlanObserver) {
        let Ok(hosts) = live_hosts(&hosts_dir(&self.logs)) else { return };
        let Some(whoami) = hosts.iter().position(|host| host.name == self.name) else { return };
        let loads: Vec<HostLoad> =
            hosts.iter().map(|host| HostLoad { at_ms: host.at_ms, requests: host.requests }).collect();
        let mut sequencers = Vec::new();
        for (log, slot) in &*lock(&self.slots) {
            let slot = lock(slot);
            if slot.held.is_some() {
                let (log, requests, moved_ms) = (log.clone(), slot.rate, slot.moved_ms);
                sequencers.push(SequencerLoad { log, requests, moved_ms });
            }
        }
        sequencers.sort_by(|a, b| a.log.cmp(&b.log));
        let end = Instant::now() + Duration::from_secs(1);
        let out_of_time = move || Instant::now() > end;
        let whoami = u16::try_from(whoami).unwrap_or(u16::MAX);
        let plan = plan_moves(engine, now_ms(), whoami, &loads, &sequencers, *saved, out_of_time);
        *saved = plan.state;
        if plan.is_failure() || !plan.moves.is_empty() {
            on_plan(&plan);
        }
        for planned in &plan.moves {
            let target = hosts.get(usize::from(planned.to));
            let log = sequencers.get(planned.fragment);
            if let (Some(target), Some(log)) = (target, log) {
                // A host that is gone gets nothing.
                let _ = self.hand_over(&log.log, &target.name);
            }
        }
    }
}
