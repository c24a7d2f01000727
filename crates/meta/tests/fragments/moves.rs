//! Fragments that move to other ranks, merge, and are pinned.

use super::routed::*;
use crate::harness::{ROOT_CALLER, name, user};
use espalier_proto::*;

const FRAGMENTS: &str = "user.espalier.fragments";

pub fn move_all(fs: &mut Routed, dir: Ino, rank: u16) {
    fs.ask(set_xattr(dir, FRAGMENTS, rank.to_string().as_bytes())).unwrap();
    fs.settle();
}

pub fn ranks(fs: &mut Routed, dir: Ino) -> Vec<u16> {
    fs.map(dir).fragments().map(|(_, ino)| ino.rank().0).collect()
}

impl Routed {
    /// Lets transfers in the background end.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            self.fs.0.iter_mut().for_each(|host| host.uptime_ms += 1000);
            self.fs.deliver();
            self.fs.tick();
        }
        self.fs.deliver();
    }
}

#[test]
fn directory_moves_to_each_rank_and_back_with_all_its_names() {
    let route = [2, 0, 3, HOME, 2, HOME];
    for moves in 2..2 * route.len() {
        let (mut fs, dir, mut files) = if moves % 2 == 0 { full_dir() } else { full_dir_on_disk() };
        for (at, rank) in route.into_iter().take(moves / 2).enumerate() {
            let moved = fs.fs.attr(dir);
            move_all(&mut fs, dir, rank);
            assert_eq!(ranks(&mut fs, dir), [rank]);
            assert_eq!(fs.attr(dir).ino, moved.ino);
            fs.assert_names(dir, &files);
            assert_eq!(fs.parent(dir), Ino::ROOT);
            let new = names(&format!("new{at}-"), 4);
            fs.make_files(dir, &new);
            assert!(new.iter().all(|file| fs.lookup(dir, file).unwrap().ino.rank() == Rank(rank)));
            let below = fs.make(dir, &format!("below{at}"), NewNode::Directory);
            assert_eq!(fs.parent(below), dir);
            files.extend(new);
            files.push(format!("below{at}"));
            fs.ask(set_perm(dir, 0o750 + at as u32)).unwrap();
            assert_eq!(fs.attr(dir).perm, 0o750 + at as u32);
            let gone = files.remove(10);
            fs.ask(unlink(dir, &gone)).unwrap();
            let nlink = fs.attr(dir).nlink;
            assert_eq!(
                nlink as usize,
                2 + files.iter().filter(|file| file.contains("dir") || file.contains("below")).count()
            );
        }
        fs.fs.fsck();
    }
}

#[test]
fn usage_of_moved_names_reaches_directories_that_are_not_in_memory() {
    let mut fs = Routed::evicting();
    let top = fs.fs.mkdir_at(HOME, Ino::ROOT, "top", 0o755);
    let above = fs.fs.mkdir_at(HOME, top, "above", 0o755);
    let dir = fs.fs.mkdir_at(HOME, above, "dir", 0o755);
    fs.make_files(dir, &names("file", 12));
    let find = |fs: &mut Routed| {
        for (parent, file) in [(Ino::ROOT, "top"), (top, "above"), (above, "dir")] {
            fs.lookup(parent, file).unwrap();
        }
    };
    let usage = |fs: &mut Routed, dir| {
        fs.ask(Request::GetXattr { ino: dir, name: (*b"user.espalier.rfiles").into() })
    };
    let expected = [above, top].map(|dir| usage(&mut fs, dir));
    assert_eq!(usage(&mut fs, dir), Ok(Reply::Bytes("12".into())));
    for rank in [2, HOME] {
        fs.restart();
        find(&mut fs);
        for known in [above, top] {
            fs.fs.0[usize::from(HOME)].forget(known);
        }
        move_all(&mut fs, dir, rank);
        find(&mut fs);
        assert_eq!([above, top].map(|dir| usage(&mut fs, dir)), expected, "{rank}");
    }
    fs.fs.fsck();
}

#[test]
fn permissions_reach_fragments_at_the_rank_of_their_directory() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    let files: Vec<_> = (0..4).map(|number| name_in(&map, number, "name")).collect();
    fs.make_files(dir, &files);
    move_all(&mut fs, dir, HOME);
    assert_eq!(ranks(&mut fs, dir), [HOME; 4]);
    for (perm, expected) in [(0o700, Err(Errno::EACCES)), (0o755, Ok(()))] {
        fs.ask(set_perm(dir, perm)).unwrap();
        for file in &files {
            let reply = fs.ask_as(&user(7), Request::Lookup { dir, name: name(file) });
            assert_eq!(reply.map(drop), expected, "{perm:o} {file}");
        }
    }
    fs.fs.fsck();
}

#[test]
fn fragments_move_one_by_one_and_together() {
    let (mut fs, dir) = Routed::with_fragments();
    let mut files = names("file", 40);
    fs.make_files(dir, &files);
    let map = fs.map(dir);
    let (two, three) = (map.ino(2).unwrap(), map.ino(3).unwrap());
    for (record, rank) in [(two, 0), (dir, 2), (three, HOME)] {
        fs.ask(set_xattr(dir, FRAGMENTS, format!("{record} {rank}").as_bytes())).unwrap();
        fs.settle();
    }
    assert_eq!(ranks(&mut fs, dir), [2, 2, 0, HOME]);
    fs.assert_names(dir, &files);
    files.extend(names("more", 20));
    fs.make_files(dir, &files[40..]);
    fs.assert_names(dir, &files);
    move_all(&mut fs, dir, HOME);
    assert_eq!(ranks(&mut fs, dir), [HOME; 4]);
    fs.assert_names(dir, &files);
    for file in &files {
        fs.ask(unlink(dir, file)).unwrap();
    }
    assert_eq!(fs.ask(rmdir(Ino::ROOT, "dir")), Ok(Reply::Done));
    fs.fs.fsck();
}

#[test]
fn shrunken_fragments_merge() {
    let (mut fs, dir) = Routed::with_dir();
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"8")).unwrap();
    let files = names("file", 60);
    fs.make_files(dir, &files);
    fs.settle();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    for file in &files[2..] {
        fs.ask(unlink(dir, file)).unwrap();
    }
    fs.settle();
    assert_eq!(ranks(&mut fs, dir), [HOME]);
    fs.assert_names(dir, &files[..2]);
    fs.make_files(dir, &files[2..]);
    fs.settle();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn fragments_that_a_policy_wants_do_not_merge() {
    let (mut fs, dir) = Routed::with_fragments();
    fs.ask(set_xattr(dir, "user.espalier.dir_merge", b"100")).unwrap();
    fs.make(dir, "file", NewNode::Regular);
    fs.ask(unlink(dir, "file")).unwrap();
    fs.settle();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"1")).unwrap();
    fs.settle();
    assert_eq!(ranks(&mut fs, dir), [HOME]);
    fs.fs.fsck();
}

#[test]
fn pinned_directories_move_and_what_is_made_below_stays_there() {
    let (mut fs, dir, files) = full_dir();
    fs.ask(set_xattr(dir, "user.espalier.pin", b"3")).unwrap();
    fs.settle();
    assert_eq!(ranks(&mut fs, dir), [3]);
    fs.assert_names(dir, &files);
    let below = fs.make(dir, "below", NewNode::Directory);
    let file = fs.make(below, "file", NewNode::Regular);
    assert_eq!((below.rank(), file.rank()), (Rank(3), Rank(3)));
    assert_eq!(fs.ask(set_xattr(dir, FRAGMENTS, b"2")), Err(Errno::EBUSY));
    fs.ask(set_xattr(dir, "user.espalier.pin", b"off")).unwrap();
    move_all(&mut fs, dir, 2);
    assert_eq!(ranks(&mut fs, dir), [2]);
    fs.fs.fsck();
}

#[test]
fn distributed_pins_spread_directories() {
    let (mut fs, dir) = Routed::with_dir();
    fs.ask(set_xattr(dir, "user.espalier.pin", b"distributed")).unwrap();
    fs.settle();
    let dirs = names("dir", 24);
    let made: Vec<Ino> = dirs.iter().map(|file| fs.make(dir, file, NewNode::Directory)).collect();
    fs.settle();
    let mut counts = [0; RANKS as usize];
    for below in made {
        let found = ranks(&mut fs, below);
        assert_eq!(found.len(), 1);
        counts[usize::from(found[0])] += 1;
        fs.make(below, "file", NewNode::Regular);
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    fs.fs.fsck();
}

#[test]
fn bad_requests_to_move_are_refused() {
    let (mut fs, dir) = Routed::with_fragments();
    for text in ["", "x", "4", "70000", "-1", "5 1", "1 2 3", "0x2"] {
        assert_eq!(fs.ask(set_xattr(dir, FRAGMENTS, text.as_bytes())), Err(Errno::EINVAL), "{text:?}");
    }
    let request = set_xattr(dir, FRAGMENTS, b"2");
    assert_eq!(fs.ask_as(&user(7), request.clone()), Err(Errno::EPERM));
    let file = fs.make(dir, "file", NewNode::Regular);
    assert!(fs.ask_as(&ROOT_CALLER, set_xattr(file, FRAGMENTS, b"2")).is_err());
    assert_eq!(ranks(&mut fs, dir), [1, 2, 3, 0]);
    fs.fs.fsck();
}

/// Moves a directory or merges its fragments while a rank crashes after each number of messages:
/// the transfer is finished after the restart.
fn with_crash_of(rank: u16, is_power_failure: bool, begin: fn(&mut Routed, Ino) -> Vec<u16>) {
    for messages in 0.. {
        let (mut fs, dir, files) = full_dir();
        let expected = begin(&mut fs, dir);
        let is_over = (0..messages).any(|_| !fs.fs.deliver_one());
        fs.fs.crash(rank, is_power_failure);
        fs.settle();
        if ranks(&mut fs, dir) != expected {
            // A move that has not begun is forgotten.
            begin(&mut fs, dir);
            fs.settle();
        }
        assert_eq!(ranks(&mut fs, dir), expected, "{messages} messages");
        fs.assert_names(dir, &files);
        fs.fs.fsck();
        if is_over {
            assert!(messages > 20, "{messages} messages");
            return;
        }
    }
}

fn begin_move(fs: &mut Routed, dir: Ino) -> Vec<u16> {
    let home = usize::from(HOME);
    fs.fs.0[home].send(&ROOT_CALLER, set_xattr(dir, FRAGMENTS, b"2"));
    [2].into()
}

#[test]
fn move_survives_crash_of_either_side() {
    for rank in [HOME, 2] {
        with_crash_of(rank, false, begin_move);
        with_crash_of(rank, true, begin_move);
    }
}

#[test]
fn move_survives_crash_of_other_ranks() {
    for rank in [0, 3] {
        with_crash_of(rank, true, begin_move);
    }
}

#[test]
fn directory_that_has_come_back_is_changed_and_removed_like_any_other() {
    let (mut fs, dir) = Routed::with_dir();
    for at in 0..4 {
        let file = format!("below{at}");
        let below = fs.make(dir, &file, NewNode::Directory);
        let home = below.rank().0;
        move_all(&mut fs, below, (home + 1) % RANKS);
        let files = names("file", 3);
        fs.make_files(below, &files);
        move_all(&mut fs, below, home);
        fs.ask(set_xattr(below, "user.espalier.dir_servers", b"1")).unwrap();
        fs.ask(set_perm(below, 0o700)).unwrap();
        fs.assert_names(below, &files);
        for name in &files {
            fs.ask(unlink(below, name)).unwrap();
        }
        assert_eq!(fs.ask(rmdir(dir, &file)), Ok(Reply::Done));
    }
    fs.assert_names(dir, &[]);
    fs.fs.fsck();
}
