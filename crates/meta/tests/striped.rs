//! Striped files: requests to data servers, and that a crash loses no datafile and leaves none
//! behind.

use std::collections::BTreeMap;

use crate::harness::{self, DataServers, Fault, Harness, ROOT_CALLER, STRIP, config, name, open_how};
use espalier_meta::{Acknowledge, Config, Input, Striping};
use espalier_proto::*;

const SERVERS: u16 = 4;
const WIDTH: usize = 3;

fn striped(acknowledge: Acknowledge) -> Config {
    let servers = (0..SERVERS).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, WIDTH).unwrap();
    Config { striping: Some(striping), acknowledge, ..config() }
}

fn cluster(acknowledge: Acknowledge) -> Harness {
    let mut fs = Harness::with(striped(acknowledge));
    fs.data = DataServers::new(SERVERS);
    fs
}

fn resize(ino: Ino, size: u64) -> Request {
    Request::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } }
}

/// Makes a file with bytes followed by a hole.
fn make(fs: &mut Harness, text: &str, size: u64) -> Result<Ino, Errno> {
    let (node, dir) = (NewNode::Regular, Ino::ROOT);
    let create = Request::Create {
        dir,
        name: name(text),
        node,
        perm: 0o644,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    };
    let ino = match fs.ask(create)? {
        Reply::Entry(entry) | Reply::Created(entry, _) => entry.attr.ino,
        other => panic!("{other:?}"),
    };
    let data: Vec<u8> = (0..STRIP as u8).collect();
    fs.ask(Request::Write { ino, offset: 0, data: data.into(), kill_suid_gid: false, time: None })?;
    fs.ask(resize(ino, size))?;
    Ok(ino)
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
fn syncfs_makes_all_datafiles_durable() {
    let mut fs = cluster(Acknowledge::Written);
    make(&mut fs, "file", 200).unwrap();
    let made = fs.data.all();
    assert!(made.iter().any(|(_, _, size)| *size > 0));
    assert_eq!(fs.ask(Request::SyncFs { rank: Rank(0) }), Ok(Reply::Done));
    fs.data.lose_power();
    assert_eq!(fs.data.all(), made);
}

#[test]
fn files_are_spread_over_their_servers() {
    let mut fs = cluster(Acknowledge::Volatile);
    let first = make(&mut fs, "first", 100).unwrap();
    let second = make(&mut fs, "second", 200).unwrap();
    assert_eq!((fs.attr_of(first).size, fs.attr_of(second).size), (100, 200));
    assert_eq!(fs.data.files(), BTreeMap::from([(first, WIDTH), (second, WIDTH)]));
    let has = |fs: &Harness, server, ino| {
        let Ok(DataReply::Stats(stats)) = fs.data.ask(server, &DataRequest::Stat { inos: vec![ino] }) else {
            panic!("no size")
        };
        stats[0].size
    };
    let sizes =
        |fs: &Harness, ino| (0..SERVERS).map(|server| has(fs, ServerId(server), ino)).collect::<Vec<_>>();
    // Consecutive files start at consecutive servers.
    assert_eq!(sizes(&fs, first), [30, 0, 40, 30].map(|size| if first.0 % 4 == 2 { size } else { 99 }));
    assert_eq!(sizes(&fs, second).iter().filter(|size| **size > 0).count(), WIDTH);
    // A listing can omit the sizes.
    let listing = |fs: &mut Harness| {
        let list = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: true };
        let Ok(Reply::Listing { entries, .. }) = fs.ask(list) else { panic!("no listing") };
        entries.iter().filter_map(|entry| Some(entry.entry?.attr.size)).sum::<u64>()
    };
    assert_eq!(listing(&mut fs), 300);
    fs.data.down = true;
    assert_eq!(listing(&mut fs), 0);
    fs.data.down = false;
    fs.ask(resize(first, 35)).unwrap();
    assert_eq!(fs.attr_of(first).size, 35);
    fs.ask(resize(first, 135)).unwrap();
    assert_eq!(fs.attr_of(first).size, 135);
    assert_eq!(fs.ask(resize(first, u64::MAX)), Err(Errno::EFBIG));
    fs.drain();
    for number in 0..SERVERS {
        assert_eq!(
            fs.data.ask(ServerId(number), &DataRequest::New),
            Ok(DataReply::Inos(vec![])),
            "finalised"
        );
    }
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("first"), time: None }).unwrap();
    fs.send(&harness::ROOT_CALLER, Request::Forget { ino: first, lookups: 2 });
    fs.drain();
    assert_eq!(fs.data.files(), BTreeMap::from([(second, WIDTH)]));
    assert_eq!(fs.fsck(), []);
}

fn set(fs: &mut Harness, dir: Ino, setting: &str, value: &str) {
    let name = format!("user.espalier.{setting}").into_bytes().into();
    let value = value.as_bytes().into();
    fs.ask(Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false }).unwrap();
}

/// The location of a file's bytes, as TOML.
fn layout(fs: &mut Harness, ino: Ino) -> String {
    match fs.ask(Request::GetXattr { ino, name: (*b"user.espalier.layout").into() }) {
        Ok(Reply::Bytes(text)) => String::from_utf8(text.into()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_lie_as_the_policy_of_their_directory_wants() {
    let mut fs = cluster(Acknowledge::Durable);
    let all = 0..SERVERS;
    for (settings, count, dist_name, dist_params) in [
        (&[("num_dfiles", "1")][..], 1, "simple_stripe", "strip_size:10"),
        (&[("num_dfiles", "1024"), ("dist_params", "strip_size:7")], 4, "simple_stripe", "strip_size:7"),
        (&[("dist_name", "basic"), ("num_dfiles", "2")], 1, "basic", ""),
        (&[("dist_params", "strips:0:20;1:5;0:3")], 2, "varstrip", "strips:0:20;1:5;0:3"),
        // Shares for servers that do not exist go to others.
        (
            &[("dist_name", "varstrip"), ("dist_params", "strips:5:20;1:5;2:1")],
            2,
            "varstrip",
            "strips:0:20;0:5;1:1",
        ),
        (&[("dist_name", "varstrip")], 4, "simple_stripe", "strip_size:10"),
    ] {
        let dir = fs.create(Ino::ROOT, &format!("{settings:?}"), NewNode::Directory).unwrap();
        settings.iter().for_each(|(setting, value)| set(&mut fs, dir, setting, value));
        let ino = fs.create(dir, "file", NewNode::Regular).unwrap();
        // A policy that is set later does not affect the file.
        set(&mut fs, dir, "num_dfiles", "3");
        fs.write(ino, 0, &[7; STRIP as usize]).unwrap();
        assert_eq!(layout(&mut fs, ino), "place = \"metadata\"\n");
        fs.ask(resize(ino, 101)).unwrap();
        let sizes = |fs: &mut Harness| -> Vec<u64> {
            let stat = DataRequest::Stat { inos: vec![ino] };
            let size = |server| match fs.data.ask(ServerId(server), &stat) {
                Ok(DataReply::Stats(stats)) => stats[0].size,
                other => panic!("{other:?}"),
            };
            all.clone().map(size).collect()
        };
        let reported = layout(&mut fs, ino);
        assert_eq!(reported.contains("dist_params"), !dist_params.is_empty());
        for part in [format!("dist_name = \"{dist_name}\""), format!("\"{dist_params}")] {
            assert!(reported.contains(&part), "{settings:?}: {reported}");
        }
        assert_eq!((sizes(&mut fs).iter().sum::<u64>(), fs.data.files()[&ino]), (101, count), "{settings:?}");
        fs = fs.crash();
        reach(&mut fs);
        let dir = fs.lookup(Ino::ROOT, &format!("{settings:?}")).unwrap().ino;
        assert_eq!(
            (fs.lookup(dir, "file").map(|attr| attr.size), layout(&mut fs, ino)),
            (Some(101), reported)
        );
        for size in [90, 20, 3, 1000] {
            fs.ask(resize(ino, size)).unwrap();
            assert_eq!(fs.attr_of(ino).size, size);
            assert!(sizes(&mut fs).iter().sum::<u64>() <= size);
        }
        assert_eq!(fs.fsck(), []);
    }
}

/// Changes some files; records the known sizes.
fn work(fs: &mut Harness, wanted: &mut BTreeMap<Ino, u64>) -> Result<(), Errno> {
    let retained = make(fs, "kept", 150)?;
    wanted.insert(retained, 150);
    let removed = make(fs, "removed", 90)?;
    wanted.insert(removed, 90);
    fs.ask(Request::Open { ino: retained, how: open_how(Access::WRITE, false) })?;
    // The client writes directly to the data servers.
    let layout = fs.meta.place_of(&StreamIo::write(retained, 0, 1));
    let espalier_meta::DataLocation::Servers(layout) = layout else { panic!("{layout:?}") };
    let end = layout.segments(299, 1).next().unwrap();
    let write = DataRequest::write(retained, end.local, vec![1].into());
    fs.data.ask(layout.servers()[end.place], &write)?;
    wanted.insert(retained, 300);
    fs.checkpoint();
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("removed"), time: None })?;
    fs.checkpoint();
    make(fs, "last", 70)?;
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("last"), time: None })?;
    Ok(())
}

#[test]
fn crash_at_any_io_neither_leaks_nor_loses_datafiles() {
    for acknowledge in [Acknowledge::Volatile, Acknowledge::Durable] {
        let mut crashes = 0;
        for at in 0.. {
            let mut fs = cluster(acknowledge);
            fs.fault = Some((at, Fault::Crash));
            let mut wanted = BTreeMap::new();
            let _ = work(&mut fs, &mut wanted);
            let crashed = fs.is_dead();
            fs = fs.crash();
            reach(&mut fs);
            let (mut there, mut bytes) = (BTreeMap::new(), 0);
            for text in ["kept", "removed", "last"] {
                let Ok(ino) = fs.walk(text) else { continue };
                let size = fs.attr_of(ino).size;
                bytes += size;
                if fs.is_streamed(ino) {
                    there.insert(ino, size);
                }
            }
            let left: Vec<_> = fs.data.files().into_keys().collect();
            assert_eq!(left, there.keys().copied().collect::<Vec<_>>(), "crash at {at} {acknowledge:?}");
            for (&ino, &size) in &there {
                let wanted = wanted.get(&ino).copied().unwrap_or(size);
                assert!(
                    size == wanted || crashed && size <= 300,
                    "crash at {at}: {ino} has {size}, not {wanted}"
                );
            }
            let counted = Request::GetXattr { ino: Ino::ROOT, name: (*b"user.espalier.rbytes").into() };
            assert_eq!(
                fs.ask(counted),
                Ok(Reply::Bytes(bytes.to_string().into_bytes().into())),
                "crash at {at}"
            );
            assert_eq!(fs.fsck(), [], "crash at {at} {acknowledge:?}");
            if !crashed {
                break;
            }
            crashes += 1;
        }
        assert!(crashes > 20, "{crashes}");
    }
}

#[test]
fn unfinalised_stream_is_not_taken_for_garbage() {
    let mut fs = cluster(Acknowledge::Volatile);
    let ino = make(&mut fs, "file", STRIP).unwrap();
    fs.lazy = true;
    let write = Request::Write { ino, offset: STRIP, data: vec![1].into(), kill_suid_gid: false, time: None };
    let id = fs.send(&ROOT_CALLER, write);
    while !fs.answers.contains_key(&id) {
        assert!(fs.run_one());
    }
    assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Streamed)));
    // Its journal is not durable yet.
    fs.data.down = true;
    fs.run_until_idle();
    fs.lazy = false;
    fs.checkpoint();
    fs.drain();
    for _ in 0..2 {
        fs = fs.crash();
        fs.checkpoint();
        fs.drain();
    }
    // The data servers report their datafiles, and are down again.
    fs.data.down = false;
    for server in (0..SERVERS).map(ServerId) {
        let Ok(DataReply::Inos(inos)) = fs.data.ask(server, &DataRequest::New) else { panic!("no list") };
        fs.input(Input::NewDatafiles { server, inos });
    }
    assert_eq!(fs.data.files(), BTreeMap::from([(ino, WIDTH)]));
    fs = fs.crash();
    reach(&mut fs);
    assert_eq!(fs.data.files(), BTreeMap::from([(ino, WIDTH)]));
    assert_eq!(fs.attr_of(ino).size, STRIP);
    for server in (0..SERVERS).map(ServerId) {
        assert_eq!(fs.data.ask(server, &DataRequest::New), Ok(DataReply::Inos(vec![])), "all finalised");
    }
}

#[test]
fn undecided_transaction_of_peer_is_kept() {
    let mut fs = cluster(Acknowledge::Volatile);
    let (server, own, other) = (ServerId(0), Ino(900), Ino(Ino::none_of(Rank(1)).0 + 900));
    for ino in [own, other] {
        let fill =
            DataRequest::Fill { ino, data: b"new"[..].into(), size: 3, mtime: Time::default(), sync: false };
        assert_eq!(fs.data.ask(server, &fill), Ok(DataReply::Done));
    }
    fs.input(Input::NewDatafiles { server, inos: vec![own, other] });
    fs.drain();
    assert_eq!(fs.data.files(), BTreeMap::from([(other, 1)]));
}

/// Nothing can be counted while leases from before a crash may last. Afterwards everything is,
/// including the writes of a client that never returns.
#[test]
fn writes_of_lost_client_are_counted() {
    const SESSION_MS: u32 = 60_000;
    let (session_ms, lease_ms) = (Some(SESSION_MS), Some(SESSION_MS));
    let mut fs = Harness::with(Config { session_ms, lease_ms, ..striped(Acknowledge::Written) });
    fs.data = DataServers::new(SERVERS);
    let connect = || Input::Connect { client: ClientId(1), leases: false, resumes: false };
    fs.input(connect());
    let (node, dir, open) = (NewNode::Regular, Ino::ROOT, Some(open_how(Access::WRITE, false)));
    let create = Request::Create {
        dir,
        name: name("file"),
        node,
        perm: 0o644,
        umask: 0,
        open,
        exclusive: true,
        writeback: None,
    };
    let Ok(Reply::Created(Entry { attr: Attr { ino, .. }, .. }, _)) = fs.ask(create) else {
        panic!("no file")
    };
    let data = vec![1; STRIP as usize];
    fs.ask(Request::Write { ino, offset: 0, data: data.into(), kill_suid_gid: false, time: None }).unwrap();
    fs.ask(resize(ino, 100)).unwrap();
    let espalier_meta::DataLocation::Servers(layout) = fs.meta.place_of(&StreamIo::write(ino, 0, 1)) else {
        panic!("it is not on data servers")
    };
    let end = layout.segments(299, 1).next().unwrap();
    let write = DataRequest::write(ino, end.local, vec![1].into());
    fs.data.ask(layout.servers()[end.place], &write).unwrap();
    fs.disk.sync_journal();
    let mut fs = fs.crash();
    for second in 0..=SESSION_MS / 1000 + 8 {
        // At the first query no data server answers.
        fs.data.down = (SESSION_MS / 1000 - 2..=SESSION_MS / 1000 + 4).contains(&second);
        fs.uptime_ms += 1000;
        fs.input(Input::Tick);
    }
    assert_eq!(fs.meta.awaited(), []);
    fs.input(connect());
    let counted = Request::GetXattr { ino: Ino::ROOT, name: (*b"user.espalier.rbytes").into() };
    assert_eq!(fs.ask(counted), Ok(Reply::Bytes(b"300"[..].into())));
}

/// Of bytes that were not durable: a file is counted with those that are left.
#[test]
fn bytes_lost_by_data_servers_are_not_counted() {
    let mut fs = cluster(Acknowledge::Written);
    let ino = make(&mut fs, "file", 100).unwrap();
    let how = open_how(Access::READ | Access::WRITE, false);
    fs.ask(Request::Open { ino, how }).unwrap();
    let espalier_meta::DataLocation::Servers(layout) = fs.meta.place_of(&StreamIo::write(ino, 0, 1)) else {
        panic!("it is not on data servers")
    };
    let end = layout.segments(299, 1).next().unwrap();
    let write = DataRequest::write(ino, end.local, vec![1].into());
    fs.data.ask(layout.servers()[end.place], &write).unwrap();
    fs.ask(Request::Release { ino }).unwrap();
    let counted = Request::GetXattr { ino: Ino::ROOT, name: (*b"user.espalier.rbytes").into() };
    assert_eq!(fs.ask(counted.clone()), Ok(Reply::Bytes(b"300"[..].into())));
    fs.data.lose_power();
    (0..40).for_each(|_| fs.input(Input::Tick));
    let left = fs.attr_of(ino).size;
    assert!(left < 300, "{left}");
    assert_eq!(fs.ask(counted), Ok(Reply::Bytes(left.to_string().into_bytes().into())));
    fs.drain();
    assert_eq!(fs.fsck(), []);
}

/// A file's datafiles move from a drained server to another one, wherever its inode is: in a
/// dentry, in the inode table, or among the orphans.
#[test]
fn files_are_moved_away_from_a_server() {
    let mut fs = cluster(Acknowledge::Volatile);
    let files = ["named", "linked", "nameless", "small"].map(|file| make(&mut fs, file, 100).unwrap());
    fs.ask(Request::Link { ino: files[1], dir: Ino::ROOT, name: name("again") }).unwrap();
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("nameless"), time: None }).unwrap();
    fs.drain();
    let layout_of = |fs: &Harness, ino| match fs.meta.place_of(&StreamIo::read(ino, 0, 1)) {
        espalier_meta::DataLocation::Servers(layout) => layout,
        other => panic!("{other:?}"),
    };
    let before = files.map(|ino| layout_of(&fs, ino));
    let (from, mut writes) = (ServerId(1), Vec::new());
    for record in fs.disk.store().records() {
        let (object, key, value) = record.unwrap();
        writes.extend(espalier_meta::relayout(object, &key, &value, |ino, layout| {
            if !layout.servers().contains(&from) {
                return None;
            }
            let to = (0..SERVERS).map(ServerId).find(|server| !layout.servers().contains(server))?;
            fs.data.copy(ino, from, to);
            layout.replace(from, to).ok()
        }));
    }
    assert_eq!(writes.len(), before.iter().filter(|layout| layout.servers().contains(&from)).count());
    fs.disk.store().stage(writes).unwrap();
    fs.disk.store().publish().unwrap();
    fs = fs.crash();
    // No client holds the nameless file.
    for ino in [files[0], files[1], files[3]] {
        fs.attr_of(ino);
        let layout = layout_of(&fs, ino);
        assert!(layout.servers().len() == WIDTH && !layout.servers().contains(&from), "{layout:?}");
        assert_eq!(fs.data.read(&layout, ino)[..STRIP as usize], (0..STRIP as u8).collect::<Vec<_>>());
    }
}

#[test]
fn no_new_files_come_to_lie_on_drained_servers() {
    let all = |drained: &[u16]| {
        let striping = striped(Acknowledge::Volatile).striping.unwrap();
        striping.drain(&drained.iter().copied().map(ServerId).collect::<Vec<_>>())
    };
    assert!(all(&[0, 1, 2, 3]).is_err());
    for (drained, width) in [(&[][..], 3), (&[2], 3), (&[0, 3], 2)] {
        let mut fs = Harness::with(Config { striping: all(drained).ok(), ..striped(Acknowledge::Volatile) });
        fs.data = DataServers::new(SERVERS);
        for file in ["a", "b", "c", "d"] {
            let ino = make(&mut fs, file, 100).unwrap();
            let place = fs.meta.place_of(&StreamIo::read(ino, 0, 1));
            let espalier_meta::DataLocation::Servers(layout) = place else { panic!("{place:?}") };
            assert_eq!(layout.servers().len(), width);
            assert!(!drained.iter().any(|server| layout.servers().contains(&ServerId(*server))));
        }
    }
}
