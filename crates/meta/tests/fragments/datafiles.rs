//! Provisional datafiles of files that have followed their names to another rank: remains of
//! attempts to move a file's bytes to data servers.

use std::collections::BTreeMap;

use super::moves::move_all;
use super::pulls::{assert_files, files_at_home, rank_of};
use super::routed::*;
use crate::harness::{DataServers, Harness, ROOT_CALLER, Ranks, config};
use espalier_meta::{Config, Input, Striping};
use espalier_proto::*;

const SERVERS: [ServerId; 3] = [ServerId(0), ServerId(1), ServerId(2)];

/// Ranks with data servers. Each rank has datafiles of its own, which show what it removes.
fn with_data_servers() -> (Routed, Ino) {
    let striping = Striping::new(Distribution::SimpleStripe { strip: 100 }, SERVERS.into(), 3).unwrap();
    let host = |rank| {
        let striping = Some(striping.clone());
        let mut host = Harness::with(Config { rank: Rank(rank), ranks: RANKS, striping, ..config() });
        host.data = DataServers::new(3);
        host
    };
    let mut fs = Routed { fs: Ranks((0..RANKS).map(host).collect()), maps: [].into() };
    let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
    (fs, dir)
}

/// Makes a datafile as an attempt leaves it behind whose server or rank crashes.
fn leave_datafile(host: &Harness, server: ServerId, ino: Ino) {
    let (data, mtime) = (b"remains of an attempt".as_slice(), Time::default());
    let fill = DataRequest::Fill { ino, data: data.into(), size: data.len() as u64, mtime, sync: true };
    assert_eq!(host.data.ask(server, &fill), Ok(DataReply::Done));
}

/// Has a rank reach a data server for the first time.
fn report(fs: &mut Routed, rank: u16, server: ServerId) {
    let host = &mut fs.fs.0[usize::from(rank)];
    let Ok(DataReply::Inos(inos)) = host.data.ask(server, &DataRequest::New) else { panic!("no list") };
    host.input(Input::NewDatafiles { server, inos });
}

fn report_all(fs: &mut Routed) {
    for rank in 0..RANKS {
        SERVERS.into_iter().for_each(|server| report(fs, rank, server));
    }
    fs.settle();
}

/// As [`files_at_home`]; all data servers are reached.
fn files_beside_data_servers(fs: &mut Routed, dir: Ino, count: usize) -> BTreeMap<String, Ino> {
    let files = files_at_home(fs, dir, count);
    report_all(fs);
    files
}

/// Gives files the time to follow their names.
fn follow(fs: &mut Routed) {
    (0..40).for_each(|_| fs.settle());
}

fn resize(ino: Ino, size: u64) -> Request {
    Request::SetAttr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() } }
}

#[test]
fn only_the_rank_that_has_a_file_removes_its_provisional_datafile() {
    let (mut fs, dir) = with_data_servers();
    let mut files = files_beside_data_servers(&mut fs, dir, 3);
    let other = fs.fs.mkdir_at(HOME, Ino::ROOT, "other", 0o777);
    let at_home = fs.make(other, "file", NewNode::Regular);
    move_all(&mut fs, dir, 2);
    let removed = files.remove("file0").unwrap();
    fs.ask(unlink(dir, "file0")).unwrap();
    fs.restart();
    fs.settle();
    let (relocated, streamed) = (files["file1"], files.remove("file2").unwrap());
    fs.ask(resize(streamed, 500)).unwrap();
    let all = [removed, relocated, streamed, at_home];
    for host in &fs.fs.0 {
        all.into_iter().for_each(|ino| leave_datafile(host, SERVERS[1], ino));
    }
    report_all(&mut fs);
    let removers = all.map(|ino| {
        let removes = |rank: &u16| !fs.fs.0[usize::from(*rank)].data.files().contains_key(&ino);
        (0..RANKS).filter(removes).collect::<Vec<_>>()
    });
    assert_eq!(removers, [vec![HOME], vec![2], vec![], vec![HOME]]);
    assert_files(&mut fs, dir, &files);
}

#[test]
fn file_with_remains_on_a_data_server_follows_its_name_after_their_removal() {
    let (mut fs, dir) = with_data_servers();
    let files = files_beside_data_servers(&mut fs, dir, 2);
    let ino = files["file1"];
    let home = usize::from(HOME);
    fs.restart();
    leave_datafile(&fs.fs.0[home], SERVERS[1], ino);
    // Its rank does not know yet what remains there are.
    move_all(&mut fs, dir, 2);
    [SERVERS[0], SERVERS[2]].into_iter().for_each(|server| report(&mut fs, HOME, server));
    follow(&mut fs);
    assert_eq!(rank_of(&mut fs, ino), HOME);
    // The removal fails.
    fs.fs.0[home].data.down = true;
    fs.fs.0[home].input(Input::NewDatafiles { server: SERVERS[1], inos: vec![ino] });
    follow(&mut fs);
    assert_eq!(rank_of(&mut fs, ino), HOME);
    assert_eq!(rank_of(&mut fs, files["file0"]), 2);
    fs.fs.0[home].data.down = false;
    report(&mut fs, HOME, SERVERS[1]);
    follow(&mut fs);
    assert_eq!(rank_of(&mut fs, ino), 2);
    assert_eq!(fs.fs.0[home].data.files(), [].into());
    assert_files(&mut fs, dir, &files);
    fs.fs.fsck();
}

#[test]
fn relocated_file_outgrows_its_strip_while_remains_are_reported() {
    for seed in 0..200 {
        let (mut fs, dir) = with_data_servers();
        let files = files_beside_data_servers(&mut fs, dir, 1);
        let ino = files["file0"];
        move_all(&mut fs, dir, 2);
        fs.restart();
        let host = &mut fs.fs.0[2];
        SERVERS.into_iter().for_each(|server| leave_datafile(host, server, ino));
        host.shuffle = Some(fastrand::Rng::with_seed(seed));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut steps = [None, Some(SERVERS[0]), Some(SERVERS[1]), Some(SERVERS[2])];
        random.shuffle(&mut steps);
        let mut id = 0;
        for step in steps {
            match step {
                Some(server) => report(&mut fs, 2, server),
                None => id = fs.fs.0[2].send(&ROOT_CALLER, resize(ino, 90)),
            }
            for _ in 0..random.usize(..12) {
                if random.usize(..4) == 0 {
                    fs.fs.0[2].input(Input::Tick);
                } else {
                    fs.fs.0[2].run_one();
                }
                fs.fs.deliver();
            }
        }
        while fs.fs.0[2].run_one() {
            fs.fs.deliver();
        }
        let host = &mut fs.fs.0[2];
        host.shuffle = None;
        assert!(matches!(host.answers.remove(&id), Some(Ok(Reply::Attr(attr))) if attr.size == 90));
        host.drain();
        assert_eq!(host.attr_of(ino).size, 90, "{seed}");
        // The file has 90 bytes on one server and none on others.
        let sizes: Vec<u64> = host.data.all().into_iter().map(|(_, _, size)| size).collect();
        assert_eq!(sizes.iter().sum::<u64>(), 90, "{seed}: {sizes:?}");
    }
}
