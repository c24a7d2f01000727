//! A log in a directory, with clients and hosts in this process.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use espalier_balancer::{BalancerEngine, BalancerPolicy};
use espalier_shared_log::{
    HostOptions, LeaseLimits, LogEntry, LogError, LogOptions, NumberSource, SequencerHost, SharedLog,
    live_hosts, policies,
};

fn with(source: NumberSource) -> LogOptions {
    LogOptions { source, ..LogOptions::default() }
}

fn open(dir: &Path, source: NumberSource) -> SharedLog {
    SharedLog::open(dir, true, with(source)).unwrap()
}

fn short_leases() -> NumberSource {
    NumberSource::Lease(LeaseLimits { quota: 10, term_ms: 20, backoff_ms: 1 })
}

fn host(dir: &Path, name: &str) -> SequencerHost {
    let options = HostOptions {
        name: name.into(),
        listen: "127.0.0.1:0".into(),
        balancer: None,
        on_plan: Box::new(|_| {}),
    };
    SequencerHost::start(dir, options).unwrap()
}

fn data(text: &str) -> LogEntry {
    LogEntry::Data(text.into())
}

#[test]
fn entries_are_read_back_filled_and_trimmed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut log = open(&path, short_leases());
    assert_eq!(log.tail().unwrap(), 0);
    for number in 0..2500 {
        assert_eq!(log.append(format!("entry {number}").as_bytes()).unwrap(), number);
    }
    assert_eq!((log.read(1024).unwrap(), log.read(2500).unwrap()), (data("entry 1024"), LogEntry::Unwritten));
    assert!(matches!(log.fill(2500), Err(LogError::BeyondTail(2500))));
    assert_eq!(log.fill(17).unwrap(), data("entry 17"));
    assert!(matches!(log.trim(2501), Err(LogError::BeyondTail(2501))));
    log.trim(2100).unwrap();
    assert_eq!((log.read(2099).unwrap(), log.read(2100).unwrap()), (LogEntry::Trimmed, data("entry 2100")));
    assert_eq!(log.fill(3).unwrap(), LogEntry::Trimmed);
    // The space is free.
    let segments: Vec<_> = std::fs::read_dir(path.join("entries")).unwrap().flatten().collect();
    let files: usize = segments.iter().map(|dir| std::fs::read_dir(dir.path()).unwrap().count()).sum();
    assert_eq!((segments.len(), files), (1, 400));
    log.trim(10).unwrap();
    log.trim(2500).unwrap();
    drop(log);
    // A new sequencer without an entry to begin with.
    let mut log = open(&path, short_leases());
    assert_eq!(log.seal().unwrap(), 2500);
    assert_eq!(log.append(&[]).unwrap(), 2500);
    assert_eq!(log.read(2500).unwrap(), data(""));
}

#[test]
fn written_positions_are_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let mut old = open(&path, NumberSource::Lease(LeaseLimits { term_ms: 60_000, ..LeaseLimits::default() }));
    assert_eq!(old.append(b"a").unwrap(), 0);
    let mut other = open(&path, short_leases());
    // The lease is in force, the seal ends it.
    assert_eq!(other.seal().unwrap(), 1);
    assert_eq!(other.append(b"b").unwrap(), 1);
    assert_eq!(other.append(b"c").unwrap(), 2);
    // The old holder finds its next numbers taken, and then its epoch sealed.
    assert_eq!(old.append(b"d").unwrap(), 3);
    assert_eq!(old.tail().unwrap(), 4);
    old.release().unwrap();
    assert_eq!(other.tail().unwrap(), 4);
    let entries: Vec<_> = (0..4).map(|position| other.read(position).unwrap()).collect();
    assert_eq!(entries, [data("a"), data("b"), data("c"), data("d")]);
}

#[test]
fn several_clients_with_leases_share_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(open(&path, short_leases()));
    let positions = append_by_threads(&path, &short_leases());
    assert_eq!(positions.len(), 4 * 50);
}

/// Appends with several threads, reads all back, and returns the positions.
fn append_by_threads(path: &Path, source: &NumberSource) -> HashSet<u64> {
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let mut log = open(path, source.clone());
            thread::spawn(move || {
                let append = |number| {
                    let text = format!("{writer}-{number}");
                    (log.append(text.as_bytes()).unwrap(), text)
                };
                (0..50).map(append).collect::<Vec<_>>()
            })
        })
        .collect();
    let reader = open(path, source.clone());
    let mut positions = HashSet::new();
    for writer in writers {
        let appended = writer.join().unwrap();
        assert!(appended.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (position, text) in appended {
            assert_eq!(reader.read(position).unwrap(), data(&text));
            assert!(positions.insert(position), "{position} twice");
        }
    }
    positions
}

#[test]
fn hosts_serve_numbers_directly_and_as_proxies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    drop(open(&path, NumberSource::Direct));
    let (a, b) = (host(dir.path(), "a"), host(dir.path(), "b"));
    let mut log = open(&path, NumberSource::Proxy("a".into()));
    assert_eq!(log.append(b"x").unwrap(), 0);
    a.hand_over("log", "b").unwrap();
    let all = [
        append_by_threads(&path, &NumberSource::Proxy("a".into())),
        append_by_threads(&path, &NumberSource::Direct),
        append_by_threads(&path, &short_leases()),
    ];
    assert_eq!(all.iter().flatten().collect::<HashSet<_>>().len(), 600);
    assert_eq!(log.tail().unwrap(), 601);
    assert_eq!(log.directory().current().unwrap().unwrap().holding_host().as_deref(), Some("b"));
    // The holder ends; the other host takes over.
    drop(b);
    assert_eq!(log.append(b"y").unwrap(), 601);
    assert_eq!(log.directory().current().unwrap().unwrap().holding_host().as_deref(), Some("a"));
    // Sealed behind the host's back.
    let mut other = open(&path, NumberSource::Direct);
    assert_eq!(other.seal().unwrap(), 602);
    assert_eq!((log.append(b"z").unwrap(), other.append(b"z").unwrap()), (602, 603));
}

#[test]
fn hosts_refuse_other_names_and_tokens() {
    use std::io::{BufRead, BufReader, Write};
    let dir = tempfile::tempdir().unwrap();
    let a = host(dir.path(), "a");
    drop(open(&dir.path().join("log"), NumberSource::Direct));
    let token = live_hosts(&dir.path().join(".hosts")).unwrap()[0].token.clone();
    let ask = |token: &str, log: &str, rest: &str| {
        let mut stream = std::net::TcpStream::connect(a.address()).unwrap();
        let line = format!("{{\"token\":\"{token}\",\"log\":\"{log}\",\"forward\":true,{rest}}}\n");
        stream.write_all(line.as_bytes()).unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply.trim().to_owned()
    };
    let one = "\"count\":1,\"floor\":0,\"sealed\":0";
    assert_eq!(ask("guess", "log", one), "\"refused\"");
    assert_eq!(ask(&token, "../log", one), "\"refused\"");
    assert_eq!(ask(&token, "none", one), "\"not_holder\"");
    let taken = |first| format!("{{\"taken\":{{\"epoch\":1,\"first\":{first}}}}}");
    assert_eq!(ask(&token, "log", one), taken(0));
    // Nobody uses up the numbers, or makes the host drop a sequencer that is not sealed.
    for far in ["18446744073709551615", "2"] {
        let rest = format!("\"count\":1,\"floor\":{far},\"sealed\":0");
        assert_eq!(ask(&token, "log", &rest), "\"not_holder\"");
    }
    assert_eq!(ask(&token, "log", "\"count\":1048577,\"floor\":0,\"sealed\":0"), "\"not_holder\"");
    assert_eq!(ask(&token, "log", "\"count\":1,\"floor\":0,\"sealed\":1"), taken(1));
    let twice = HostOptions {
        name: "a".into(),
        listen: "127.0.0.1:0".into(),
        balancer: None,
        on_plan: Box::new(|_| {}),
    };
    assert!(SequencerHost::start(dir.path(), twice).is_err());
}

#[test]
fn balancer_spreads_sequencers_over_hosts() {
    let dir = tempfile::tempdir().unwrap();
    let logs: Vec<_> = (0..2).map(|number| dir.path().join(format!("log{number}"))).collect();
    logs.iter().for_each(|path| drop(open(path, NumberSource::Direct)));
    let mut engine = BalancerEngine::new(BalancerPolicy::new("sequencers", &policies::sequencers(0.5, 1)));
    engine.limits.dwell_ms = 60_000;
    let options = HostOptions {
        name: "a".into(),
        listen: "127.0.0.1:0".into(),
        balancer: Some((engine, Duration::from_secs(1))),
        on_plan: Box::new(|plan| assert!(!plan.is_failure(), "{plan}")),
    };
    let _a = SequencerHost::start(dir.path(), options).unwrap();
    // All sequencers begin at the only host.
    let mut clients: Vec<_> = logs.iter().map(|path| open(path, NumberSource::Direct)).collect();
    clients.iter_mut().for_each(|log| assert_eq!(log.append(b"first").unwrap(), 0));
    let _b = host(dir.path(), "b");
    let mut expected = 1;
    let begun = std::time::Instant::now();
    loop {
        for log in &mut clients {
            assert_eq!(log.append(b"more").unwrap(), expected);
        }
        expected += 1;
        let holders: HashSet<_> = clients
            .iter()
            .filter_map(|log| log.directory().current().unwrap().unwrap().holding_host())
            .collect();
        if holders.len() == 2 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{holders:?}");
    }
    for log in &mut clients {
        assert_eq!(log.append(b"after").unwrap(), expected);
    }
}
