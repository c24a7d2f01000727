//! The policies for small files on data servers (carns III.A, III.B).

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{DataServers, Fault, Harness, ROOT_CALLER, config, name, open_how};
use espalier_meta::{Acknowledge, Config, DataLocation, Finding, Input, Striping};
use espalier_policy::{Key, Policy};
use espalier_proto::*;

const SERVERS: u16 = 4;
const WIDTH: usize = 3;

fn cluster(config: Config) -> Harness {
    let mut fs = Harness::with(config);
    fs.data = DataServers::new(SERVERS);
    fs
}

fn policy(settings: &[(Key, &str)]) -> Policy {
    let mut policy = Policy::NONE;
    settings.iter().for_each(|(key, text)| policy.set(*key, text).unwrap());
    policy
}

/// Files are striped from the start.
fn unstuffed(acknowledge: Acknowledge) -> Config {
    let servers = (0..SERVERS).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, WIDTH).unwrap();
    let policy = policy(&[(Key::Stuffing, "false")]);
    Config { striping: Some(striping), policy, acknowledge, ..config() }
}

fn create_request(text: &str) -> Request {
    let (node, dir, open) = (NewNode::Regular, Ino::ROOT, Some(open_how(Access::WRITE, false)));
    Request::Create {
        dir,
        name: name(text),
        node,
        perm: 0o644,
        umask: 0,
        open,
        exclusive: true,
        writeback: None,
    }
}

fn create(fs: &mut Harness, text: &str) -> Result<(Attr, Opened), Errno> {
    match fs.ask(create_request(text))? {
        Reply::Created(entry, opened) => Ok((entry.attr, opened)),
        other => panic!("{other:?}"),
    }
}

/// Writes the last byte of a file of `size` bytes, as a client.
fn write(fs: &mut Harness, ino: Ino, size: u64) -> Result<(), Errno> {
    let extended = fs.ask(Request::Extend {
        ino,
        offset: size - 1,
        length: 1,
        from: None,
        discards: false,
        acknowledged: false,
    })?;
    assert_eq!(extended, Reply::Granted);
    let layout = fs.meta.place_of(&StreamIo::write(ino, 0, 1));
    let DataLocation::Servers(layout) = layout else { panic!("{layout:?}") };
    let end = layout.segments(size - 1, 1).next().unwrap();
    let write = DataRequest::write(ino, end.local, vec![1].into());
    fs.data.ask(layout.servers()[end.place], &write).map(drop)
}

fn close(fs: &mut Harness, ino: Ino) {
    fs.send(&ROOT_CALLER, Request::Release { ino });
    fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: 1 });
}

fn unlink(fs: &mut Harness, text: &str) -> Result<Reply, Errno> {
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name(text), time: None })
}

/// Reports all data servers as reached, after a restart.
fn reach(fs: &mut Harness) {
    for server in (0..SERVERS).map(ServerId) {
        let Ok(DataReply::Inos(inos)) = fs.data.ask(server, &DataRequest::New) else { panic!("no list") };
        fs.input(Input::NewDatafiles { server, inos });
    }
    fs.checkpoint();
    fs.drain();
}

#[test]
fn file_striped_at_creation_needs_no_data_server_until_written() {
    let mut fs = cluster(unstuffed(Acknowledge::Volatile));
    fs.data.down = true;
    let (made, opened) = create(&mut fs, "file").unwrap();
    assert!(opened.streamed && made.streamed);
    assert_eq!((made.size, made.mtime), (0, fs.now));
    fs.data.down = false;
    let ino = made.ino;
    assert_eq!((fs.attr_of(ino).size, fs.attr_of(ino).mtime), (0, made.mtime), "no client has written to it");
    let mtime = Time::new(5, 0);
    let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino, set }).unwrap();
    assert_eq!(fs.attr_of(ino).mtime, mtime);
    assert_eq!(fs.data.files(), BTreeMap::new());
    write(&mut fs, ino, 25).unwrap();
    assert_eq!(fs.attr_of(ino).size, 25);
    assert_eq!(fs.data.files(), BTreeMap::from([(ino, 1)]));
    unlink(&mut fs, "file").unwrap();
    close(&mut fs, ino);
    fs.drain();
    assert_eq!(fs.data.files(), BTreeMap::new());
    assert_eq!(fsck(&mut fs), []);
}

#[test]
fn without_data_servers_files_are_stuffed() {
    let mut fs = Harness::with(Config { policy: policy(&[(Key::Stuffing, "false")]), ..config() });
    assert!(!create(&mut fs, "file").unwrap().1.streamed);
}

/// Makes files, writes to some of them, and removes one.
fn work(fs: &mut Harness) -> Result<(), Errno> {
    let (written, _) = create(fs, "written")?;
    write(fs, written.ino, 25)?;
    create(fs, "empty")?;
    let (removed, _) = create(fs, "removed")?;
    write(fs, removed.ino, 5)?;
    close(fs, removed.ino);
    unlink(fs, "removed")?;
    let Reply::Created(entry, _) = fs.ask(Request::TmpFile { dir: Ino::ROOT, perm: 0o600, umask: 0 })? else {
        panic!("no file");
    };
    write(fs, entry.attr.ino, 15)
}

/// `fsck` findings in a cluster.
fn fsck(fs: &mut Harness) -> Vec<Finding> {
    fs.drain();
    let mut check = fs.disk.checked(&fs.config);
    for (server, ino, size) in fs.data.all() {
        check.datafile(server, ino, size);
    }
    check.datafiles_end();
    check.finish()
}

fn crash_everywhere(config: &Config) {
    let mut crashes = 0;
    for at in 0.. {
        let mut fs = cluster(config.clone());
        fs.fault = Some((at, Fault::Crash));
        let _ = work(&mut fs);
        let crashed = fs.is_dead();
        fs = fs.crash();
        reach(&mut fs);
        let files = ["written", "empty", "removed"].into_iter().filter_map(|text| fs.walk(text).ok());
        let bytes: u64 = files.collect::<Vec<_>>().into_iter().map(|ino| fs.attr_of(ino).size).sum();
        let counted = Request::GetXattr { ino: Ino::ROOT, name: (*b"user.espalier.rbytes").into() };
        assert_eq!(fs.ask(counted), Ok(Reply::Bytes(bytes.to_string().into_bytes().into())), "crash at {at}");
        assert_eq!(fsck(&mut fs), [], "crash at {at}");
        if !crashed {
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 5, "{crashes}");
}

#[test]
fn crash_at_any_io_leaves_no_part_of_striped_create() {
    for acknowledge in [Acknowledge::Volatile, Acknowledge::Durable] {
        crash_everywhere(&unstuffed(acknowledge));
    }
}

fn precreated(acknowledge: Acknowledge) -> Config {
    let policy = policy(&[(Key::Stuffing, "false"), (Key::Precreation, "true")]);
    Config { policy, ..unstuffed(acknowledge) }
}

#[test]
fn pooled_file_has_datafiles_without_data_server() {
    let mut fs = cluster(precreated(Acknowledge::Volatile));
    let (first, _) = create(&mut fs, "first").unwrap();
    assert!(!fs.data.files().contains_key(&first.ino), "there was no pool");
    fs.data.down = true;
    let made: Vec<Attr> = (0..50).map(|at| create(&mut fs, &at.to_string()).unwrap().0).collect();
    fs.data.down = false;
    let there = fs.data.files();
    assert!(made.iter().all(|attr| there.get(&attr.ino) == Some(&WIDTH)), "{there:?}");
    let (ino, mtime) = (made[7].ino, made[7].mtime);
    assert_eq!((fs.attr_of(ino).size, fs.attr_of(ino).mtime), (0, mtime));
    write(&mut fs, ino, 25).unwrap();
    assert_eq!(fs.attr_of(ino).size, 25);
    unlink(&mut fs, "7").unwrap();
    close(&mut fs, ino);
    fs.drain();
    assert!(!fs.data.files().contains_key(&ino));
    assert_eq!(fsck(&mut fs), []);
}

#[test]
fn exhausted_pool_falls_back_and_grows() {
    let mut fs = cluster(precreated(Acknowledge::Volatile));
    create(&mut fs, "first").unwrap();
    fs.data.down = true;
    for at in 0..200 {
        create(&mut fs, &format!("early {at}")).unwrap();
    }
    fs.data.down = false;
    fs.checkpoint();
    let made = |fs: &mut Harness, text: &str| {
        let inos: Vec<Ino> = (0..500).map(|at| create(fs, &format!("{text} {at}")).unwrap().0.ino).collect();
        let there = fs.data.files();
        inos.into_iter().filter(|ino| there.contains_key(ino)).count()
    };
    assert_eq!(made(&mut fs, "late"), 500);
    let there = fs.data.files().len();
    assert!(there > 600, "larger batches than before: {there}");
    assert_eq!(fsck(&mut fs), []);
}

#[test]
fn crash_at_any_io_leaves_no_stray_datafile() {
    for acknowledge in [Acknowledge::Volatile, Acknowledge::Durable] {
        crash_everywhere(&precreated(acknowledge));
    }
}

/// Numbers that clients have seen are never reused, wherever they come from.
#[test]
fn a_number_of_the_pool_comes_once_whatever_is_lost() {
    let sessions = Config { session_ms: Some(60_000), ..precreated(Acknowledge::Written) };
    let (mut fs, mut reported, mut lost, mut pooled) = (cluster(sessions), BTreeSet::new(), 0, 0);
    // A repeated request with the same number gets the same answer.
    let mut last = 0;
    let mut ask = |fs: &mut Harness, request: Request| {
        last += 1;
        let (from, id, caller) = (ClientId(9), RequestId(last), ROOT_CALLER);
        fs.input(Input::Request { from, id, below: id, follows: Vec::new(), caller, request });
        for _ in 0..100 {
            if let Some(answer) = fs.answers.remove(&last) {
                return answer;
            }
            fs.uptime_ms += 1000;
            fs.input(Input::Tick);
        }
        panic!("no answer")
    };
    for round in 0..4 {
        fs.input(Input::Connect { client: ClientId(9), leases: false, resumes: false });
        ask(&mut fs, Request::Reclaim { held: Vec::new(), last: true, again: vec![] }).unwrap();
        let before = Request::Lookup { dir: Ino::ROOT, name: name(&format!("{round}")) };
        lost += usize::from(matches!(ask(&mut fs, before), Ok(Reply::Absent { .. })));
        for at in 0..40 {
            // The next round looks for the last one.
            let text = if at == 39 { (round + 1).to_string() } else { format!("{round} {at}") };
            let Ok(Reply::Created(entry, _)) = ask(&mut fs, create_request(&text)) else { panic!("no file") };
            assert!(reported.insert(entry.attr.ino), "{} comes again in round {round}", entry.attr.ino);
            pooled += usize::from(fs.data.files().contains_key(&entry.attr.ino));
        }
        fs = fs.crash();
    }
    assert!(lost > 1 && pooled > 100, "{lost} lost, {pooled} of the pool: this shows nothing");
    reach(&mut fs);
    assert_eq!(fsck(&mut fs), []);
}

#[test]
fn pool_of_former_servers_is_removed() {
    let mut fs = cluster(precreated(Acknowledge::Volatile));
    create(&mut fs, "first").unwrap();
    assert_eq!(fs.data.files().len(), 64);
    let servers = (0..SERVERS).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, 1).unwrap();
    fs.config = Config { striping: Some(striping), ..fs.config };
    fs = fs.crash();
    reach(&mut fs);
    assert_eq!(fs.data.files(), BTreeMap::new());
    assert_eq!(fsck(&mut fs), []);
}

#[test]
fn directory_policy_applies_to_new_files_only() {
    let mut fs = cluster(Config { policy: Policy::NONE, ..unstuffed(Acknowledge::Volatile) });
    let set = |fs: &mut Harness, name: &str, value: &str| {
        let (name, value) = (format!("user.espalier.{name}").into_bytes(), value.as_bytes().into());
        let (ino, mode, kill_sgid) = (Ino::ROOT, XattrMode::Any, false);
        fs.ask(Request::SetXattr { ino, name: name.into(), value, mode, kill_sgid })
    };
    assert!(!create(&mut fs, "stuffed").unwrap().1.streamed);
    set(&mut fs, "stuffing", "false").unwrap();
    let (striped, opened) = create(&mut fs, "striped").unwrap();
    assert!(opened.streamed && fs.data.files().is_empty());
    set(&mut fs, "precreation", "true").unwrap();
    create(&mut fs, "first").unwrap();
    let (pooled, _) = create(&mut fs, "pooled").unwrap();
    assert_eq!(fs.data.files().get(&pooled.ino), Some(&WIDTH));
    // Its spread differs from that of the precreated files.
    set(&mut fs, "num_dfiles", "1").unwrap();
    let (narrow, _) = create(&mut fs, "narrow").unwrap();
    assert_eq!(fs.data.files().get(&narrow.ino), None);
    set(&mut fs, "stuffing", "true").unwrap();
    assert!(!create(&mut fs, "stuffed again").unwrap().1.streamed);
    assert_eq!(set(&mut fs, "stuffing", "perhaps"), Err(Errno::EINVAL));
    assert!(fs.is_streamed(striped.ino));
    assert_eq!(fsck(&mut fs), []);
}
