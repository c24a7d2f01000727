//! Ranks that join while directories are in use (wu 3.4).

use std::collections::{BTreeMap, BTreeSet};

use super::moves::ranks;
use super::routed::*;
use crate::harness::{Ranks, name};
use espalier_proto::*;

/// A cluster of so many ranks, with the directory `dir` at the last of them.
fn cluster(count: u16) -> (Routed, Ino) {
    let mut fs = Routed { fs: Ranks::new(count), maps: BTreeMap::new() };
    let dir = fs.fs.mkdir_at(count - 1, Ino::ROOT, "dir", 0o777);
    (fs, dir)
}

fn all_join(fs: &mut Routed) {
    fs.fs.join();
    (0..fs.fs.0.len() as u16).for_each(|rank| fs.fs.hear(rank));
    fs.settle();
}

#[test]
fn inseparable_fragments_split_to_each_rank_that_joins() {
    for at_first in 1..=3 {
        let (mut fs, dir) = cluster(at_first);
        fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
        let mut files = names("file", 60);
        fs.make_files(dir, &files);
        fs.settle();
        for joined in 0..=3 {
            let found = ranks(&mut fs, dir).into_iter().collect::<BTreeSet<_>>();
            assert_eq!(found, (0..at_first + joined).collect(), "each rank has a fragment");
            fs.assert_names(dir, &files);
            all_join(&mut fs);
            let new = names(&format!("new{joined}-"), 4);
            fs.make_files(dir, &new);
            files.extend(new);
        }
        fs.fs.fsck();
    }
}

#[test]
fn directory_gets_the_servers_that_its_policy_wants_when_they_join() {
    let (mut fs, dir) = cluster(2);
    fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"4")).unwrap();
    assert_eq!(ranks(&mut fs, dir), [1, 0]);
    let files = names("file", 30);
    fs.make_files(dir, &files);
    all_join(&mut fs);
    assert_eq!(ranks(&mut fs, dir), [1, 0, 2]);
    all_join(&mut fs);
    assert_eq!(ranks(&mut fs, dir), [1, 0, 2, 3]);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn growth_survives_restarts_of_all_ranks() {
    let (mut fs, dir) = cluster(2);
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
    let files = names("file", 60);
    fs.make_files(dir, &files);
    all_join(&mut fs);
    for rank in 0..3 {
        fs.fs.0[rank].checkpoint();
        fs.fs.deliver();
        fs.fs.crash(rank as u16, true);
        fs.fs.deliver();
    }
    fs.maps.clear();
    assert_eq!(ranks(&mut fs, dir), [1, 0, 2]);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn rank_that_has_not_heard_serves_directories_with_fragments_at_the_new_one() {
    // The home server hears last, or a server of another fragment.
    for last in [1, 0] {
        let (mut fs, dir) = cluster(2);
        fs.ask(set_xattr(dir, "user.espalier.dir_split", b"8")).unwrap();
        let mut files = names("file", 60);
        fs.make_files(dir, &files);
        for _ in 0..2 {
            fs.fs.join();
        }
        [2, 1 - last].into_iter().for_each(|rank| fs.fs.hear(rank));
        let more = names("more", 30);
        fs.make_files(dir, &more);
        files.extend(more);
        fs.settle();
        // The fragment at the rank that has heard splits.
        assert_eq!(ranks(&mut fs, dir), if last == 1 { [1, 0, 3] } else { [1, 0, 2] });
        fs.assert_names(dir, &files);
        fs.ask(set_perm(dir, 0o751)).unwrap();
        assert_eq!(fs.attr(dir).perm, 0o751);
        for file in &files {
            fs.rename(dir, file);
        }
        fs.fs.hear(last);
        fs.settle();
        assert_eq!(ranks(&mut fs, dir), [1, 0, 2, 3]);
        fs.fs.fsck();
    }
}

impl Routed {
    /// Moves a name to the root and back.
    fn rename(&mut self, dir: Ino, file: &str) {
        let flags = RenameFlags::empty();
        for (from_dir, to_dir) in [(dir, Ino::ROOT), (Ino::ROOT, dir)] {
            let (from, to) = (name(file), name(file));
            assert_eq!(
                self.ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None }),
                Ok(Reply::Done)
            );
        }
    }
}

#[test]
fn directories_that_are_spread_by_pin_move_only_to_the_rank_that_joins() {
    let (mut fs, _) = cluster(3);
    fs.ask(set_xattr(Ino::ROOT, "user.espalier.pin", b"parent")).unwrap();
    let dirs: Vec<Ino> =
        names("dir", 40).iter().map(|file| fs.make(Ino::ROOT, file, NewNode::Directory)).collect();
    for dir in &dirs {
        fs.ask(set_xattr(*dir, "user.espalier.pin", b"distributed")).unwrap();
    }
    fs.settle();
    let before: Vec<_> = dirs.iter().map(|dir| ranks(&mut fs, *dir)).collect();
    all_join(&mut fs);
    fs.settle();
    let after: Vec<_> = dirs.iter().map(|dir| ranks(&mut fs, *dir)).collect();
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    let moved: Vec<_> = moved.map(|(_, after)| after.clone()).collect();
    assert!(moved.iter().all(|after| *after == [3]), "{moved:?}");
    assert!((4..=16).contains(&moved.len()), "about a quarter of 40: {}", moved.len());
    for rank in 0..3 {
        let count = before.iter().filter(|ranks| **ranks == [rank]).count();
        assert!((6..=22).contains(&count), "about a third of 40: {count} at rank {rank}");
    }
    fs.fs.fsck();
}
