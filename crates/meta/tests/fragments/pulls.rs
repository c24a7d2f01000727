//! Files that follow their names to another rank.

use std::collections::{BTreeMap, BTreeSet};

use super::moves::move_all;
use super::routed::*;
use crate::harness::{Harness, ROOT_CALLER, name, open_how};
use crate::repair::records;
use espalier_meta::{InoRecord, PeerMessage, Question};
use espalier_proto::*;

const ATTRIBUTE: &str = "user.note";

/// The rank that has an inode, as its server says.
pub fn rank_of(fs: &mut Routed, ino: Ino) -> u16 {
    let has = |host: &mut Harness| {
        let id = host.send(&ROOT_CALLER, Request::Find { ino, kind: None, open: None });
        matches!(host.answers.remove(&id), Some(Ok(Reply::Entry(_))))
    };
    let found: Vec<u16> = (0..RANKS).filter(|rank| has(&mut fs.fs.0[usize::from(*rank)])).collect();
    let [rank] = found[..] else { panic!("inode {ino} is at ranks {found:?}") };
    fs.fs.0[usize::from(rank)].forget(ino);
    rank
}

/// The records of homes that say where inodes are.
fn relocations(fs: &mut Routed) -> BTreeSet<Ino> {
    fs.fs.0.iter_mut().for_each(Harness::drain);
    let keys = fs.fs.0.iter().flat_map(|host| records(host.disk.store()).into_keys().collect::<Vec<_>>());
    let relocation = |(object, key): (ObjectId, Vec<u8>)| {
        let record = Some(key).filter(|_| object.kind == ObjectKind::Inodes)?;
        InoRecord::from_key(&record).filter(|(record, _)| *record == InoRecord::Relocation)
    };
    keys.filter_map(relocation).map(|(_, ino)| ino).collect()
}

fn read(fs: &mut Routed, ino: Ino) -> Vec<u8> {
    fs.ask(Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
    let reply = fs.ask(Request::Read { ino, offset: 0, size: 100, noatime: true });
    fs.ask(Request::Release { ino }).unwrap();
    let Ok(Reply::Bytes(bytes)) = reply else { panic!("{reply:?}") };
    bytes.to_vec()
}

/// A directory with small files at its rank that nobody uses, and their contents.
pub fn files_at_home(fs: &mut Routed, dir: Ino, count: usize) -> BTreeMap<String, Ino> {
    let files = names("file", count);
    let made = files.into_iter().map(|file| {
        let ino = fs.make(dir, &file, NewNode::Regular);
        fs.fs.write(ino, file.len());
        fs.ask(set_xattr(ino, ATTRIBUTE, file.as_bytes())).unwrap();
        (file, ino)
    });
    let made = made.collect();
    fs.fs.ask(Request::SyncFs { rank: Rank(HOME) }).unwrap();
    // Nobody knows the files after a restart.
    fs.restart();
    made
}

pub fn assert_files(fs: &mut Routed, dir: Ino, files: &BTreeMap<String, Ino>) {
    for (file, ino) in files {
        let attr = fs.lookup(dir, file).unwrap();
        assert_eq!((attr.ino, attr.size, attr.nlink), (*ino, file.len() as u64, 1), "{file}");
        assert_eq!(read(fs, *ino), vec![1; file.len()]);
        let get = Request::GetXattr { ino: *ino, name: ATTRIBUTE.as_bytes().into() };
        assert_eq!(fs.ask(get), Ok(Reply::Bytes(file.clone().into_bytes().into())));
    }
}

#[test]
fn files_follow_their_names_to_each_rank_and_back_home() {
    for is_evicting in [false, true] {
        let (mut fs, dir) = if is_evicting { with_dir_on_disk() } else { Routed::with_dir() };
        let files = files_at_home(&mut fs, dir, 12);
        fs.fs.send_usage();
        let usage = fs.fs.usage(dir);
        for rank in [2, 0, 3, HOME, 2] {
            fs.restart();
            move_all(&mut fs, dir, rank);
            for ino in files.values() {
                assert_eq!(rank_of(&mut fs, *ino), rank);
            }
            assert_files(&mut fs, dir, &files);
            fs.fs.send_usage();
            assert_eq!(fs.fs.usage(dir), usage);
            let expected = if rank == HOME { BTreeSet::new() } else { files.values().copied().collect() };
            assert_eq!(relocations(&mut fs), expected, "{rank}");
            fs.fs.fsck();
        }
    }
}

fn with_dir_on_disk() -> (Routed, Ino) {
    let mut fs = Routed::evicting();
    let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
    (fs, dir)
}

#[test]
fn relocated_files_are_changed_linked_renamed_and_removed_like_any_other() {
    let (mut fs, dir) = Routed::with_dir();
    let mut files = files_at_home(&mut fs, dir, 12);
    move_all(&mut fs, dir, 2);
    let far = fs.fs.mkdir_at(3, Ino::ROOT, "far", 0o777);
    let (linked, renamed) = (files["file1"], files["file2"]);
    for (file, ino) in &files {
        fs.ask(set_perm(*ino, 0o640)).unwrap();
        assert_eq!(fs.lookup(dir, file).unwrap().perm, 0o640);
    }
    // From the home of the number, from the rank of the inode, and from another one.
    for to in [dir, far, Ino::ROOT] {
        let reply = fs.ask(Request::Link { ino: linked, dir: to, name: name("again") });
        let attr = fs.fs.found(reply).unwrap();
        assert_eq!(attr.ino, linked);
        assert_eq!(fs.lookup(to, "again").unwrap().ino, linked);
    }
    assert_eq!(fs.lookup(dir, "file1").unwrap().nlink, 4);
    for to in [far, Ino::ROOT, dir] {
        let from = if to == far {
            (dir, "file2")
        } else if to == dir {
            (Ino::ROOT, "moved")
        } else {
            (far, "moved")
        };
        let file = if to == dir { "file2" } else { "moved" };
        assert_eq!(fs.rename_as(&ROOT_CALLER, from, (to, file)), Ok(Reply::Done));
        assert_eq!(fs.lookup(to, file).unwrap().ino, renamed);
    }
    assert_eq!(fs.rename_as(&ROOT_CALLER, (dir, "file3"), (dir, "file4")), Ok(Reply::Done));
    let moved = files.remove("file3").unwrap();
    assert_eq!(fs.lookup(dir, "file4").unwrap().ino, moved);
    for to in [dir, far, Ino::ROOT] {
        assert_eq!(fs.ask(unlink(to, "again")), Ok(Reply::Done));
    }
    assert_eq!(fs.lookup(dir, "file1").unwrap().nlink, 1);
    for file in files.keys() {
        assert_eq!(fs.ask(unlink(dir, file)), Ok(Reply::Done), "{file}");
    }
    fs.restart();
    fs.settle();
    assert_eq!(relocations(&mut fs), BTreeSet::new());
    assert_eq!(fs.fs.ask(rmdir(Ino::ROOT, "dir")), Ok(Reply::Done));
    fs.fs.fsck();
}

#[test]
fn home_says_where_a_file_is_and_other_ranks_send_to_the_home() {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 1);
    let ino = files["file0"];
    move_all(&mut fs, dir, 2);
    for (rank, at) in [(HOME, Some(2)), (0, Some(HOME)), (3, Some(HOME)), (2, None)] {
        for request in [Request::GetAttr { ino }, Request::Find { ino, kind: None, open: None }] {
            let host = &mut fs.fs.0[usize::from(rank)];
            let id = host.send(&ROOT_CALLER, request);
            let reply = host.answers.remove(&id).unwrap();
            match at {
                Some(at) => assert_eq!(reply, Ok(Reply::Relocated { ino, at: Rank(at) }), "{rank}"),
                None => assert!(matches!(reply, Ok(Reply::Attr(_) | Reply::Entry(_))), "{reply:?}"),
            }
        }
    }
    // A number that was never given out is nowhere.
    assert_eq!(fs.fs.ask(Request::GetAttr { ino: Ino(ino.0 + 1000) }), Err(Errno::ESTALE));
}

#[test]
fn file_in_use_stays_until_it_is_forgotten_and_its_client_is_asked_to() {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 3);
    let (home, ino) = (usize::from(HOME), files["file1"]);
    fs.lookup(dir, "file1").unwrap();
    fs.ask(Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
    move_all(&mut fs, dir, 2);
    assert_eq!(rank_of(&mut fs, files["file0"]), 2);
    let is_recalled =
        |fs: &mut Routed| std::mem::take(&mut fs.fs.0[home].recalled).iter().any(|it| it.ino == ino);
    assert!(!is_recalled(&mut fs), "it is open");
    fs.ask(Request::Release { ino }).unwrap();
    fs.settle();
    fs.settle();
    assert!(is_recalled(&mut fs));
    assert!(matches!(fs.fs.0[home].ask(Request::GetAttr { ino }), Ok(Reply::Attr(_))));
    fs.fs.0[home].forget(ino);
    for _ in 0..40 {
        fs.settle();
    }
    assert_eq!(rank_of(&mut fs, ino), 2);
    assert_files(&mut fs, dir, &files);
    fs.fs.fsck();
}

#[test]
fn linked_and_large_files_stay() {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 3);
    let large = files["file2"];
    fs.ask(Request::Link { ino: files["file1"], dir, name: name("again") }).unwrap();
    fs.ask(Request::SetAttr { ino: large, set: SetAttr { size: Some(1 << 20), ..SetAttr::default() } })
        .unwrap();
    fs.restart();
    move_all(&mut fs, dir, 2);
    let at: Vec<u16> = files.values().map(|ino| rank_of(&mut fs, *ino)).collect();
    assert_eq!(at, [2, HOME, if fs.fs.attr(large).streamed { HOME } else { 2 }]);
    fs.ask(unlink(dir, "again")).unwrap();
    fs.restart();
    fs.settle();
    assert_eq!(rank_of(&mut fs, files["file1"]), 2);
    fs.fs.fsck();
}

#[test]
fn relocated_file_outgrows_its_strip() {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 2);
    move_all(&mut fs, dir, 2);
    let ino = files["file1"];
    let set = SetAttr { size: Some(1 << 20), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino, set }).unwrap();
    let attr = fs.lookup(dir, "file1").unwrap();
    assert_eq!((attr.size, rank_of(&mut fs, ino)), (1 << 20, 2));
    fs.restart();
    assert_eq!(fs.lookup(dir, "file1").unwrap().size, 1 << 20);
    fs.ask(unlink(dir, "file1")).unwrap();
    fs.fs.0[2].forget(ino);
    fs.settle();
    assert_eq!(fs.fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    fs.fs.fsck();
}

/// Moves a directory twice with its files while a rank crashes after each number of messages.
fn with_crash_of(rank: u16, is_power_failure: bool) {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 4);
    move_all(&mut fs, dir, 2);
    drop((fs, files));
    for messages in 0.. {
        let (mut fs, dir) = Routed::with_dir();
        let files = files_at_home(&mut fs, dir, 4);
        move_all(&mut fs, dir, 2);
        fs.restart();
        // Three ranks take part in the second move: the number's, the file's and the name's.
        fs.fs.0[usize::from(HOME)].send(&ROOT_CALLER, set_xattr(dir, "user.espalier.fragments", b"3"));
        let mut is_over = false;
        for at in 0..messages {
            if !fs.fs.deliver_one() {
                // The pull begins with a tick.
                is_over = at > 0 && fs.fs.0.iter().all(|host| host.meta.figures().pulls_unfinished == 0);
                fs.fs.0.iter_mut().for_each(|host| host.input(espalier_meta::Input::Tick));
                if is_over {
                    break;
                }
            }
        }
        fs.fs.crash(rank, is_power_failure);
        fs.settle();
        if super::moves::ranks(&mut fs, dir) != [3] {
            move_all(&mut fs, dir, 3);
        }
        for _ in 0..3 {
            fs.settle();
        }
        for ino in files.values() {
            assert_eq!(rank_of(&mut fs, *ino), 3, "{messages} messages");
        }
        assert_files(&mut fs, dir, &files);
        fs.fs.fsck();
        if is_over {
            assert!(messages > 20, "{messages} messages");
            return;
        }
    }
}

#[test]
fn pull_survives_crash_of_the_rank_of_the_names() {
    with_crash_of(3, true);
}

#[test]
fn pull_survives_crash_of_the_rank_of_the_files() {
    with_crash_of(2, true);
}

#[test]
fn pull_survives_crash_of_the_home() {
    with_crash_of(HOME, true);
}

#[test]
fn file_that_changes_while_it_moves_keeps_the_change() {
    for messages in 0..60 {
        let (mut fs, dir) = Routed::with_dir();
        let files = files_at_home(&mut fs, dir, 4);
        let ino = files["file1"];
        fs.ask(set_xattr(dir, "user.espalier.fragments", b"2")).unwrap();
        fs.fs.0.iter_mut().for_each(|host| host.input(espalier_meta::Input::Tick));
        for _ in 0..messages {
            fs.fs.deliver_one();
        }
        let host = &mut fs.fs.0[usize::from(HOME)];
        let id = host.send(&ROOT_CALLER, set_perm(ino, 0o604));
        fs.fs.deliver();
        match fs.fs.0[usize::from(HOME)].answers.remove(&id) {
            Some(Ok(Reply::Relocated { .. })) => drop(fs.ask(set_perm(ino, 0o604)).unwrap()),
            reply => drop(reply.expect("an answer").unwrap()),
        }
        fs.settle();
        fs.settle();
        assert_eq!(rank_of(&mut fs, ino), 2);
        assert_eq!(fs.lookup(dir, "file1").unwrap().perm, 0o604, "{messages} messages");
        assert_files(&mut fs, dir, &files);
        fs.fs.fsck();
    }
}

#[test]
fn rank_that_does_not_own_the_names_gets_no_files() {
    let (mut fs, dir) = Routed::with_dir();
    let files = files_at_home(&mut fs, dir, 1);
    let names = vec![(name("file0"), files["file0"])];
    let id = espalier_meta::TransactionId { began: 1, number: 1, rank: Rank(3) };
    let question = Question::Movable { dir: Ino(dir.0 + 7), names };
    let message = PeerMessage::Ask { id, caller: Caller::SERVER, question };
    let host = &mut fs.fs.0[usize::from(HOME)];
    host.input(espalier_meta::Input::Peer { from: Rank(3), message });
    let refused = espalier_meta::PeerAnswer::Refused(Errno::ESTALE);
    assert!(host.peers.iter().any(|(to, message)| {
        (*to, message) == (Rank(3), &PeerMessage::Answer { id, answer: refused.clone() })
    }));
}
