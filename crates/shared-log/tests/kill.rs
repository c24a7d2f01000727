//! Writers and hosts that are killed at random points, as processes. A checker reads the log: each
//! acknowledged entry is at its position, and no entry is in the log twice.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use espalier_shared_log::{
    HostOptions, LeaseLimits, LogEntry, LogOptions, NumberSource, SequencerHost, SharedLog,
};

const LOG: &str = "SHARED_LOG_TEST_DIR";
const ROLE: &str = "SHARED_LOG_TEST_ROLE";

/// Body of the processes below: a writer, a host, or nothing.
#[test]
#[ignore = "run by the other tests, as a process"]
fn process() {
    let (Ok(dir), Ok(role)) = (std::env::var(LOG), std::env::var(ROLE)) else { return };
    let dir = Path::new(&dir);
    match role.split_once(' ').unwrap() {
        ("host", name) => {
            let options = HostOptions {
                name: name.into(),
                listen: "127.0.0.1:0".into(),
                balancer: None,
                on_plan: Box::new(|_| {}),
            };
            let _host = SequencerHost::start(dir, options).unwrap();
            loop {
                thread::park();
            }
        }
        (source, id) => write_until_killed(dir, &source_named(source), id),
    }
}

fn source_named(name: &str) -> NumberSource {
    match name {
        "lease" => NumberSource::Lease(LeaseLimits { quota: 20, term_ms: 20, backoff_ms: 1 }),
        "direct" => NumberSource::Direct,
        host => NumberSource::Proxy(host.into()),
    }
}

/// Appends, and records each acknowledged position and the tail after it.
fn write_until_killed(dir: &Path, source: &NumberSource, id: &str) {
    let options = LogOptions { source: source.clone(), ..LogOptions::default() };
    let mut log = SharedLog::open(&dir.join("log"), false, options).unwrap();
    let mut acknowledged = File::create_new(dir.join(format!("acknowledged-{id}"))).unwrap();
    for number in 0.. {
        let text = format!("{id}-{number}");
        let position = log.append(text.as_bytes()).unwrap();
        // One write: a killed process leaves whole lines.
        acknowledged.write_all(format!("{position} {text}\n").as_bytes()).unwrap();
        if number % 5 == 0 {
            let tail = log.tail().unwrap();
            assert!(tail > position, "tail {tail} after an append at {position}");
        }
    }
}

fn start(dir: &Path, role: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "process", "--ignored", "--nocapture"]).env(LOG, dir).env(ROLE, role);
    let errors = File::options().create(true).append(true).open(dir.join("errors")).unwrap();
    command.stdout(Stdio::null()).stderr(errors).spawn().unwrap()
}

/// A process that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // A process that has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills and restarts processes for some seconds; returns the number of acknowledged entries.
fn run(dir: &Path, roles: &[&str], seconds: u64) -> usize {
    drop(SharedLog::open(&dir.join("log"), true, LogOptions::default()).unwrap());
    let mut starts = 0;
    let mut begin = |role: &str| {
        starts += 1;
        // A writer's entries are unique to its process.
        let role = if role.starts_with("host") { role.to_owned() } else { format!("{role} w{starts}") };
        Killed(start(dir, &role))
    };
    let mut processes: Vec<Option<Killed>> = roles.iter().map(|role| Some(begin(role))).collect();
    let (begun, mut random) = (Instant::now(), 7_u64);
    while begun.elapsed() < Duration::from_secs(seconds) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis(20 + (random >> 33) % 200));
        let index = (random >> 40) as usize % roles.len();
        let ended = processes[index].as_mut().and_then(|process| process.0.try_wait().unwrap());
        let errors = || fs::read_to_string(dir.join("errors")).unwrap();
        assert_eq!(ended, None, "{}: {}", roles[index], errors());
        // Killed before the next one starts, which may have the same name.
        processes[index] = None;
        processes[index] = Some(begin(roles[index]));
    }
    drop(processes);
    check(dir)
}

/// Reads the log and compares it with what was acknowledged.
fn check(dir: &Path) -> usize {
    let mut log = SharedLog::open(&dir.join("log"), false, LogOptions::default()).unwrap();
    let tail = log.tail().unwrap();
    let mut entries = BTreeMap::new();
    for position in 0..tail {
        if let LogEntry::Data(bytes) = log.fill(position).unwrap() {
            entries.insert(position, String::from_utf8(bytes).unwrap());
        }
    }
    let mut positions = HashMap::new();
    for (position, text) in &entries {
        assert_eq!(positions.insert(text.clone(), *position), None, "{text} is in the log twice");
    }
    let mut count = 0;
    for file in fs::read_dir(dir).unwrap().flatten() {
        if !file.file_name().to_str().unwrap().starts_with("acknowledged-") {
            continue;
        }
        for line in fs::read_to_string(file.path()).unwrap().lines() {
            let (position, text) = line.split_once(' ').unwrap();
            assert_eq!(entries.get(&position.parse().unwrap()).map(String::as_str), Some(text));
            count += 1;
        }
    }
    count
}

#[test]
fn clients_with_leases_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let count = run(dir.path(), &["lease", "lease", "lease"], 6);
    assert!(count > 50, "{count}");
}

#[test]
fn hosts_and_clients_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let count = run(dir.path(), &["host a", "host b", "direct", "direct", "a", "lease"], 8);
    assert!(count > 50, "{count}");
}

#[test]
fn host_that_hangs_is_deposed_and_harms_nothing_when_it_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let options = |source| LogOptions { source, timeout_ms: 60_000, ..LogOptions::default() };
    drop(SharedLog::open(&path, true, LogOptions::default()).unwrap());
    let host = Killed(start(dir.path(), "host a"));
    let mut log = SharedLog::open(&path, false, options(NumberSource::Direct)).unwrap();
    (0..20).for_each(|number| assert_eq!(log.append(b"before").unwrap(), number));
    let pid = rustix::process::Pid::from_raw(host.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut other = SharedLog::open(&path, false, options(source_named("lease"))).unwrap();
    assert_eq!(other.seal().unwrap(), 20);
    (20..40).for_each(|number| assert_eq!(other.append(b"after").unwrap(), number));
    drop(other);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    // The connection to the old host is still there, and so is its tail.
    assert_eq!(log.append(b"again").unwrap(), 40);
    assert_eq!(log.tail().unwrap(), 41);
}
