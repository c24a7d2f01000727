//! Operations across ranks, one at a time: permissions and errors.

use crate::harness::{Harness, ROOT_CALLER, Ranks, STRIP, config, name, open_how, user};
use espalier_meta::{Acknowledge, Check, Config, Input, PeerMessage, Usage};
use espalier_proto::*;

#[test]
fn directories_inherit_policies_wherever_they_are_made() {
    let fs = &mut Ranks::new(2);
    let attribute = || -> Box<[u8]> { (*b"user.espalier.num_dfiles").into() };
    let (value, mode, kill_sgid) = ((*b"2").into(), XattrMode::Any, false);
    fs.ask(Request::SetXattr { ino: Ino::ROOT, name: attribute(), value, mode, kill_sgid }).unwrap();
    for rank in [1, 0] {
        let above = fs.mkdir_at(rank, Ino::ROOT, &format!("dir{rank}"), 0o755);
        let dir = fs.mkdir_at(1 - rank, above, "below", 0o755);
        fs.rename((above, "below"), (Ino::ROOT, &format!("moved{rank}"))).unwrap();
        for ino in [above, dir] {
            assert_eq!(
                fs.ask(Request::GetXattr { ino, name: attribute() }),
                Ok(Reply::Bytes(b"2"[..].into()))
            );
        }
    }
    fs.fsck();
}

#[test]
fn directories_are_made_round_robin_and_files_with_their_directory() {
    let fs = &mut Ranks::new(3);
    let mut made = [0; 3];
    for number in 0..9 {
        let dir = fs.create_as(&ROOT_CALLER, Ino::ROOT, &format!("dir{number}"), NewNode::Directory, 0o755);
        made[dir.rank().0 as usize] += 1;
        let file = fs.create_as(&ROOT_CALLER, dir, "file", NewNode::Regular, 0o644);
        assert_eq!(file.rank(), dir.rank());
    }
    assert_eq!(made, [3; 3]);
    assert_eq!(fs.attr(Ino::ROOT).nlink, 2 + 9);
    fs.fsck();
}

#[test]
fn new_directory_is_the_same_at_any_rank() {
    let fs = &mut Ranks::new(2);
    let parent = fs.mkdir_at(0, Ino::ROOT, "parent", 0o2777);
    let set = SetAttr { gid: Some(7), perm: Some(0o2777), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino: parent, set }).unwrap();
    let made = ["a", "b"].map(|file| {
        let ino = fs.create_as(&user(5), parent, file, NewNode::Directory, 0o750);
        fs.attr(ino)
    });
    assert_ne!(made[0].ino.rank(), made[1].ino.rank());
    for attr in made {
        assert_eq!((attr.uid, attr.gid, attr.perm, attr.nlink), (5, 7, 0o2750, 2));
        assert_ne!(attr.mtime, Time::default());
    }
    fs.fsck();
}

#[test]
fn sticky_directory_protects_remote_entries() {
    let fs = &mut Ranks::new(3);
    let (sticky, open) =
        (fs.mkdir_at(1, Ino::ROOT, "sticky", 0o1777), fs.mkdir_at(2, Ino::ROOT, "open", 0o777));
    let dir = loop {
        let ino = fs.create_as(&user(5), sticky, "dir", NewNode::Directory, 0o777);
        if ino.rank() != sticky.rank() {
            break ino;
        }
        fs.ask(Request::RmDir { dir: sticky, name: name("dir"), time: None }).unwrap();
    };
    let file = fs.create_as(&user(5), open, "file", NewNode::Regular, 0o644);
    let reply = fs.ask_as(&user(5), Request::Link { ino: file, dir: sticky, name: name("file") });
    assert_eq!(fs.found(reply).unwrap().nlink, 2);
    let remove = Request::RmDir { dir: sticky, name: name("dir"), time: None };
    assert_eq!(fs.ask_as(&user(6), remove.clone()), Err(Errno::EPERM));
    assert_eq!(fs.rename_as(&user(6), (sticky, "dir"), (open, "dir")), Err(Errno::EPERM));
    let unlink = Request::Unlink { dir: sticky, name: name("file"), time: None };
    assert_eq!(fs.ask_as(&user(6), unlink.clone()), Err(Errno::EPERM));
    // Nor may they replace them.
    fs.create_as(&user(6), open, "other", NewNode::Regular, 0o644);
    assert_eq!(fs.rename_as(&user(6), (open, "other"), (sticky, "file")), Err(Errno::EPERM));
    assert_eq!(fs.attr(dir).nlink, 2);
    for request in [remove, unlink] {
        assert_eq!(fs.ask_as(&user(5), request), Ok(Reply::Done));
    }
    assert_eq!(fs.attr(file).nlink, 1);
    fs.fsck();
}

/// Also if the flag is set during the operation.
#[test]
fn protected_inode_keeps_names_at_other_ranks() {
    let mut fs = Ranks::new(2);
    let near = fs.mkdir_at(0, Ino::ROOT, "near", 0o755);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let file = fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    fs.create_as(&ROOT_CALLER, near, "other", NewNode::Regular, 0o644);
    let link = |fs: &mut Ranks, to| fs.ask(Request::Link { ino: file, dir: near, name: name(to) });
    let unlink = |fs: &mut Ranks, file| fs.ask(Request::Unlink { dir: near, name: name(file), time: None });
    let set = |fs: &mut Ranks, ino, flags| {
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        fs.ask(Request::SetAttr { ino, set }).unwrap();
    };
    let (none, refused) = (InodeFlags::empty(), Err(Errno::EPERM));
    link(&mut fs, "name").unwrap();
    for flags in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        set(&mut fs, file, flags);
        assert_eq!(link(&mut fs, "second"), refused);
        assert_eq!(unlink(&mut fs, "name"), refused);
        assert_eq!(fs.rename((far, "file"), (near, "moved")), refused);
        assert_eq!(fs.rename((near, "other"), (far, "file")), refused);
        set(&mut fs, file, none);
        // A directory whose entry is at the other rank.
        set(&mut fs, near, flags);
        assert_eq!(unlink(&mut fs, "name"), refused);
        assert_eq!(fs.rename((near, "name"), (far, "moved")), refused);
        set(&mut fs, near, none);
        set(&mut fs, far, flags);
        assert_eq!(fs.rename((far, "file"), (near, "moved")), refused);
        let is_immutable = flags == InodeFlags::IMMUTABLE;
        assert_eq!(fs.rename((near, "other"), (far, "new")).is_err(), is_immutable);
        set(&mut fs, far, none);
    }
    assert!(unlink(&mut fs, "name").is_ok());
}

#[test]
fn a_directory_that_becomes_sticky_while_a_name_of_it_is_moved_away_keeps_it() {
    for flags in [RenameFlags::empty(), RenameFlags::EXCHANGE] {
        let fs = &mut Ranks::new(2);
        let (shared, own) =
            (fs.mkdir_at(0, Ino::ROOT, "shared", 0o777), fs.mkdir_at(1, Ino::ROOT, "own", 0o777));
        let theirs = fs.create_as(&user(5), shared, "file", NewNode::Regular, 0o666);
        fs.create_as(&user(6), own, "file", NewNode::Regular, 0o666);
        let (from, to) = (name("file"), name("file"));
        let rename = Request::Rename { from_dir: own, from, to_dir: shared, to, flags, time: None };
        let id = fs.0[1].send(&user(6), rename);
        for (to, message) in std::mem::take(&mut fs.0[1].peers) {
            fs.0[to.0 as usize].input(Input::Peer { from: Rank(1), message });
        }
        let found = std::mem::take(&mut fs.0[0].peers);
        assert!(!found.is_empty());

        let set = SetAttr { perm: Some(0o1777), ..SetAttr::default() };
        fs.ask(Request::SetAttr { ino: shared, set }).unwrap();
        fs.0[0].peers = found;
        for _ in 0..50 {
            fs.deliver();
            fs.tick();
        }
        assert_eq!(fs.0[1].answers.remove(&id), Some(Err(Errno::EPERM)), "{flags:?}");
        let reply = fs.ask(Request::Lookup { dir: shared, name: name("file") });
        assert_eq!(fs.found(reply).unwrap().ino, theirs);
        fs.fsck();
    }
}

#[test]
fn rights_are_checked_at_each_rank_and_with_all_groups() {
    let fs = &mut Ranks::new(2);
    let (ours, theirs) =
        (fs.mkdir_at(0, Ino::ROOT, "ours", 0o777), fs.mkdir_at(1, Ino::ROOT, "theirs", 0o770));
    fs.create_as(&user(5), ours, "file", NewNode::Regular, 0o644);
    assert_eq!(fs.rename_as(&user(5), (ours, "file"), (theirs, "file")), Err(Errno::EACCES));
    // A supplementary group of user 5, which only its own kernel knows.
    let set = SetAttr { gid: Some(1005), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino: theirs, set }).unwrap();
    assert_eq!(fs.rename_as(&user(5), (ours, "file"), (theirs, "file")), Ok(Reply::Done));
    // Only the owner of a directory may change its `..`.
    let dir = fs.mkdir_at(1, ours, "dir", 0o755);
    assert_eq!(fs.rename_as(&user(5), (ours, "dir"), (theirs, "dir")), Err(Errno::EACCES));
    let set = SetAttr { uid: Some(5), ..SetAttr::default() };
    fs.ask(Request::SetAttr { ino: dir, set }).unwrap();
    assert_eq!(fs.rename_as(&user(5), (ours, "dir"), (theirs, "dir")), Ok(Reply::Done));
    fs.fsck();
}

#[test]
fn a_file_is_used_under_a_name_at_another_rank() {
    let fs = &mut Ranks::new(2);
    let (near, far) = (fs.mkdir_at(0, Ino::ROOT, "near", 0o755), fs.mkdir_at(1, Ino::ROOT, "far", 0o755));
    let file = fs.create_as(&ROOT_CALLER, near, "file", NewNode::Regular, 0o644);
    fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) }).unwrap();
    let write =
        Request::Write { ino: file, offset: 0, data: b"bytes"[..].into(), kill_suid_gid: false, time: None };
    assert_eq!(fs.ask(write), Ok(Reply::Done));
    assert_eq!(fs.rename((near, "file"), (far, "there")), Ok(Reply::Done));
    let create = |open, exclusive| Request::Create {
        dir: far,
        name: name("there"),
        node: NewNode::Regular,
        perm: 0o644,
        umask: 0,
        open: Some(open),
        exclusive,
        writeback: None,
    };
    let how = open_how(Access::READ, false);
    assert_eq!(fs.ask(create(how, true)), Err(Errno::EEXIST));
    let Ok(Reply::Remote { ino, kind, .. }) = fs.ask(create(how, false)) else { panic!() };
    assert_eq!((ino, kind), (file, FileType::Regular));
    let Ok(Reply::Created(entry, _)) = fs.ask(Request::Find { ino, kind: Some(kind), open: Some(how) })
    else {
        panic!()
    };
    assert_eq!((entry.attr.size, entry.attr.nlink), (5, 1));
    // Its last name is removed; the file stays for those who have it open.
    assert_eq!(fs.ask(Request::Unlink { dir: far, name: name("there"), time: None }), Ok(Reply::Done));
    assert_eq!(fs.attr(file).nlink, 0);
    let read = Request::Read { ino, offset: 0, size: 10, noatime: true };
    assert_eq!(fs.ask(read), Ok(Reply::Bytes(b"bytes"[..].into())));
    assert_eq!(fs.0[0].meta.files(), 3);
    for _ in 0..2 {
        fs.ask(Request::Release { ino }).unwrap();
    }
    fs.0[0].forget(file);
    assert_eq!(fs.0[0].meta.files(), 2, "the file is freed");
    fs.fsck();
}

#[test]
fn a_big_file_moves_to_another_rank_and_replaces_one_there() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let old = fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    let file = fs.0[0].file("file", &[7; 3 * STRIP as usize]);
    let syncs = fs.0[0].count;
    assert_eq!(fs.rename((Ino::ROOT, "file"), (far, "file")), Ok(Reply::Done));
    assert!(fs.0[0].count > syncs);
    let found = fs.ask(Request::Lookup { dir: far, name: name("file") });
    assert_eq!(fs.found(found).unwrap().size, 3 * STRIP);
    assert_eq!(fs.attr(old).nlink, 0);
    assert_eq!(fs.0[0].read(file), [7; 3 * STRIP as usize]);
    fs.0[1].forget(old);
    fs.fsck();
}

#[test]
fn a_file_without_a_name_gets_its_first_one_at_another_rank() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let reply = fs.ask(Request::TmpFile { dir: Ino::ROOT, perm: 0o644, umask: 0 });
    let ino = fs.found(reply).unwrap().ino;
    let link = |file: &str| Request::Link { ino, dir: far, name: name(file) };
    let reply = fs.ask(link("a"));
    assert_eq!(fs.found(reply).unwrap().nlink, 1);
    assert_eq!(fs.ask(link("a")), Err(Errno::EEXIST));
    assert_eq!(fs.ask(Request::Unlink { dir: far, name: name("a"), time: None }), Ok(Reply::Done));
    assert_eq!(fs.ask(link("b")), Err(Errno::ENOENT), "what has lost its last name gets no other");
    fs.ask(Request::Release { ino }).unwrap();
    fs.0[0].forget(ino);
    fs.fsck();
}

/// A kernel caches the new name if the reply has a lease. Only the rank of the name can grant one.
#[test]
fn rename_to_other_rank_grants_no_lease() {
    let host =
        |rank| Harness::with(Config { rank: Rank(rank), ranks: 2, lease_ms: Some(10_000), ..config() });
    let fs = &mut Ranks((0..2).map(host).collect());
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    let rename = |from, to_dir, to| {
        let (from_dir, from, to, flags) = (Ino::ROOT, name(from), name(to), RenameFlags::empty());
        Request::Rename { from_dir, from, to_dir, to, flags, time: None }
    };
    assert_eq!(fs.leased(rename("file", far, "file")), (Ok(Reply::Done), 0));
    // A name of this rank has a lease, even if its inode is at another rank.
    assert_eq!(fs.leased(rename("far", Ino::ROOT, "away")), (Ok(Reply::Done), 10_000));
    fs.fsck();
}

/// A client asks the inode's rank, and caches the name as after a lookup.
#[test]
fn listing_with_attributes_leases_names_of_other_ranks() {
    let host =
        |rank| Harness::with(Config { rank: Rank(rank), ranks: 2, lease_ms: Some(10_000), ..config() });
    let fs = &mut Ranks((0..2).map(host).collect());
    let [far, near] = [(1, "far"), (0, "near")].map(|(rank, name)| fs.mkdir_at(rank, Ino::ROOT, name, 0o755));
    for plus in [true, false] {
        let list = Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus };
        let (Ok(Reply::Listing { entries, .. }), 10_000) = fs.leased(list) else { panic!("no lease") };
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!(entry.entry.is_some(), plus && entry.ino == near);
            let remote = RemoteName { at: Rank(1), cacheable: true, name_leased: true };
            assert_eq!(entry.remote, Some(remote).filter(|_| plus && entry.ino == far));
        }
    }
    let remove = Request::RmDir { dir: Ino::ROOT, name: name("far"), time: None };
    fs.0[0].send_from(ClientId(2), &ROOT_CALLER, remove);
    fs.deliver();
    let is_name = |lease: &Lease| *lease == Lease::Name { dir: Ino::ROOT, name: name("far") };
    assert!(fs.0[0].revocations.iter().any(|it| it.client == ClientId(1) && is_name(&it.lease)));
}

/// Other ranks need not be asked.
#[test]
fn fsync_waits_for_undurable_changes_of_other_rank() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let file = fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    let linked = fs.create_as(&ROOT_CALLER, far, "linked", NewNode::Regular, 0o644);
    fs.0[0].lazy = true;
    assert_eq!(fs.rename((Ino::ROOT, "file"), (far, "file")), Ok(Reply::Done));
    assert!(fs.ask(Request::Link { ino: linked, dir: Ino::ROOT, name: name("linked") }).is_ok());
    let synced = [far, linked].map(|ino| fs.0[1].send(&ROOT_CALLER, Request::Fsync { ino }));
    fs.deliver();
    assert!(synced.iter().all(|id| !fs.0[1].answers.contains_key(id)));
    fs.0[0].lazy = false;
    fs.0[0].run_until_idle();
    assert_eq!(fs.ask(Request::Fsync { ino: file }), Ok(Reply::Done));
    for id in synced {
        assert_eq!(fs.0[1].answers.remove(&id), Some(Ok(Reply::Done)));
    }
    fs.fsck();
}

fn synced(mut host: Harness) -> Harness {
    host.disk.sync_journal();
    host
}

/// Its number does not suffice to locate it, and it is in use only for the name that it is about to
/// get.
#[test]
fn a_file_whose_rank_ends_before_it_hears_that_it_has_another_name_is_found_again() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let file = fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    fs.0[1].drain();
    let link = Request::Link { ino: file, dir: Ino::ROOT, name: name("linked") };
    let id = fs.0[0].send(&ROOT_CALLER, link);
    for (from, to) in [(0, 1), (1, 0)] {
        for (_, message) in std::mem::take(&mut fs.0[from].peers) {
            fs.0[to].input(Input::Peer { from: Rank(from as u16), message });
        }
    }
    assert!(matches!(fs.0[0].answers.remove(&id), Some(Ok(Reply::Remote { .. }))));
    assert_eq!(std::mem::take(&mut fs.0[0].peers).len(), 1, "one message, which is lost");
    let away = fs.0.pop().unwrap();
    fs.0.push(synced(away).crash());
    assert_eq!(fs.0[1].meta.open_transactions(), 1);
    fs.connect();
    assert_eq!(fs.0[1].meta.open_transactions(), 0);
    let reply = fs.ask(Request::Lookup { dir: Ino::ROOT, name: name("linked") });
    let found = fs.found(reply).unwrap();
    assert_eq!((found.ino, found.nlink), (file, 2));
    fs.fsck();
}

/// Its rank has looked the name up earlier, and would find the directory's new contents.
#[test]
fn a_directory_that_another_has_moved_away_does_not_refuse_to_be_replaced() {
    for rank in 0..3 {
        let fs = &mut Ranks::new(3);
        let (from_dir, root) = (fs.mkdir_at(1, Ino::ROOT, "from", 0o755), Ino::ROOT);
        fs.mkdir_at(2, from_dir, "c", 0o755);
        let target = fs.mkdir_at(rank, root, "c", 0o755);
        let flags = RenameFlags::empty();
        let rename =
            Request::Rename { from_dir, from: name("c"), to_dir: root, to: name("c"), flags, time: None };
        let id = fs.0[1].send(&ROOT_CALLER, rename);
        let (to, look) = fs.0[1].peers.pop().unwrap();
        assert_eq!((to, fs.0[1].peers.len()), (root.rank(), 0));
        fs.0[0].input(Input::Peer { from: Rank(1), message: look });
        let found = std::mem::take(&mut fs.0[0].peers);
        assert_eq!(found.len(), 1);

        assert_eq!(fs.rename((root, "c"), (root, "b")), Ok(Reply::Done));
        fs.create_as(&ROOT_CALLER, target, "file", NewNode::Regular, 0o644);
        fs.0[0].peers = found;
        for _ in 0..50 {
            fs.deliver();
            fs.tick();
        }
        assert_eq!(fs.0[1].answers.remove(&id), Some(Ok(Reply::Done)), "the directory is at rank {rank}");
        fs.fsck();
    }
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    let (from, to, flags) = (name("file"), name("moved"), RenameFlags::WHITEOUT);
    let rename =
        Request::Rename { from_dir: Ino::ROOT, from: from.clone(), to_dir: far, to, flags, time: None };
    assert_eq!(fs.ask(rename), Ok(Reply::Done));
    // Replay produces the same state.
    fs.0 = std::mem::take(&mut fs.0).into_iter().map(synced).map(Harness::crash).collect();
    fs.connect();
    let reply = fs.ask(Request::Lookup { dir: Ino::ROOT, name: from });
    let left = fs.found(reply).unwrap();
    assert_eq!((left.kind, left.rdev, left.nlink), (FileType::CharDevice, 0, 1));
    let reply = fs.ask(Request::Lookup { dir: far, name: name("moved") });
    assert_eq!(fs.found(reply).unwrap().kind, FileType::Regular);
    fs.fsck();
}

#[test]
fn single_rank_operation_is_refused() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    assert_eq!(fs.ask(Request::RemoveTree { dir: far }), Err(Errno::EXDEV));
    let levels = vec![CopyLevel { from: far, to: Ino::ROOT, after: 0 }];
    let copy = Request::CopyTree(CopyTree { levels, preserve: false, umask: 0 });
    assert_eq!(fs.ask(copy), Err(Errno::EXDEV));
    fs.fsck();
}

#[test]
fn directory_usage_includes_other_ranks() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let near = fs.mkdir_at(0, far, "near", 0o755);
    let file = fs.create_as(&ROOT_CALLER, near, "file", NewNode::Regular, 0o644);
    fs.write(file, 10);
    fs.send_usage();
    assert_eq!((fs.usage(near), fs.usage(far)), ([1, 0, 10], [1, 1, 10]));
    assert_eq!(fs.usage(Ino::ROOT), [1, 2, 10]);
    // A name counts where it is, wherever its file is.
    assert!(fs.ask(Request::Link { ino: file, dir: far, name: name("linked") }).is_ok());
    fs.write(file, 30);
    fs.send_usage();
    assert_eq!((fs.usage(near), fs.usage(far)), ([1, 0, 30], [2, 1, 60]));
    assert_eq!(fs.usage(Ino::ROOT), [2, 2, 60]);
    fs.rename((far, "near"), (Ino::ROOT, "near")).unwrap();
    fs.send_usage();
    assert_eq!((fs.usage(far), fs.usage(Ino::ROOT)), ([1, 0, 30], [2, 2, 60]));
    fs.rename((near, "file"), (far, "moved")).unwrap();
    fs.ask(Request::Unlink { dir: far, name: name("linked"), time: None }).unwrap();
    fs.send_usage();
    assert_eq!((fs.usage(near), fs.usage(far)), ([0, 0, 0], [1, 0, 30]));
    assert_eq!(fs.usage(Ino::ROOT), [1, 2, 30]);
    fs.fsck();
}

#[test]
fn usage_of_removed_directory_is_skipped() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let other = fs.mkdir_at(1, Ino::ROOT, "other", 0o755);
    fs.send_usage();
    fs.mkdir_at(0, far, "near", 0o755);
    fs.mkdir_at(0, other, "near", 0o755);
    // The delta is journaled and sent, but does not arrive.
    fs.0[0].input(Input::Tick);
    fs.0[0].peers.clear();
    fs.connect();
    assert_eq!((fs.usage(far), fs.usage(other)), ([0, 0, 0], [0, 0, 0]));
    fs.ask(Request::RmDir { dir: far, name: name("near"), time: None }).unwrap();
    fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("far"), time: None }).unwrap();
    fs.0[1].send(&ROOT_CALLER, Request::Forget { ino: far, lookups: 1 });
    fs.deliver();
    assert_eq!(fs.ask(Request::GetAttr { ino: far }), Err(Errno::ESTALE));
    fs.send_usage();
    assert_eq!((fs.usage(other), fs.usage(Ino::ROOT)), ([0, 1, 0], [0, 2, 0]));
    fs.fsck();
}

fn new_file(dir: Ino, file: &str, writeback: Option<WritebackCreate>) -> Request {
    let (node, perm, umask, open, exclusive) = (NewNode::Regular, 0o644, 0, None, true);
    Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback }
}

#[test]
fn quota_bounds_creates_at_other_ranks() {
    let fs = &mut Ranks::new(2);
    let top = fs.mkdir_at(0, Ino::ROOT, "top", 0o755);
    let far = fs.mkdir_at(1, top, "far", 0o755);
    let near = fs.mkdir_at(0, far, "near", 0o755);
    let limit = |figure: &str, max: &str| {
        let name = format!("user.espalier.quota.{figure}").into_bytes().into();
        let (value, mode) = (max.as_bytes().into(), XattrMode::Any);
        Request::SetXattr { ino: top, name, value, mode, kill_sgid: false }
    };
    fs.ask(limit("max_files", "5")).unwrap();
    // There is space for three more files. A rank hears last of a quota that is two ranks above its
    // directory.
    fs.ask(new_file(far, "a", None)).unwrap();
    fs.ask(new_file(near, "b", None)).unwrap();
    fs.send_usage();
    fs.ask(new_file(far, "c", None)).unwrap();
    assert_eq!(fs.ask(new_file(far, "d", None)), Err(Errno::EDQUOT));
    let dir = Request::Create {
        dir: far,
        name: name("d"),
        node: NewNode::Directory,
        perm: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    };
    for _ in 0..2 {
        assert_eq!(fs.ask(dir.clone()), Err(Errno::EDQUOT));
    }
    fs.send_usage();
    for dir in [top, far] {
        assert_eq!(fs.ask(new_file(dir, "d", None)), Err(Errno::EDQUOT));
    }
    // This rank knows nothing of the quota until it has a delta to report.
    fs.ask(new_file(near, "d", None)).unwrap();
    fs.send_usage();
    assert_eq!(fs.ask(new_file(near, "e", None)), Err(Errno::EDQUOT));
    fs.ask(Request::Unlink { dir: near, name: name("d"), time: None }).unwrap();
    fs.send_usage();
    fs.ask(Request::Unlink { dir: far, name: name("a"), time: None }).unwrap();
    fs.ask(new_file(far, "e", None)).unwrap();
    assert_eq!(fs.ask(new_file(far, "f", None)), Err(Errno::EDQUOT));
    fs.ask(limit("max_files", "100")).unwrap();
    assert_eq!(fs.ask(new_file(far, "f", None)), Err(Errno::EDQUOT));
    // An operation that is refused queries the quota.
    fs.tick();
    fs.ask(new_file(far, "f", None)).unwrap();
    fs.ask(limit("max_bytes", "20")).unwrap();
    let file = fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    fs.send_usage();
    fs.write(file, 20);
    let (data, kill_suid_gid) = (vec![1; 21], false);
    assert_eq!(
        fs.ask(Request::Write { ino: file, offset: 0, data: data.into(), kill_suid_gid, time: None }),
        Err(Errno::EDQUOT)
    );
    fs.fsck();
}

const EXCLUSIVE_DIR: ClientId = ClientId(100);

/// Two ranks that grant leases to [`EXCLUSIVE_DIR`].
fn leasing_ranks() -> Ranks {
    let host = |rank| {
        let (session_ms, lease_ms, acknowledge) = (Some(60_000), Some(10_000), Acknowledge::Written);
        Harness::with(Config { rank: Rank(rank), ranks: 2, session_ms, lease_ms, acknowledge, ..config() })
    };
    let mut fs = Ranks((0..2).map(host).collect());
    for (client, leases) in [(ClientId(1), false), (EXCLUSIVE_DIR, true)] {
        fs.0.iter_mut().for_each(|host| host.input(Input::Connect { client, leases, resumes: false }));
    }
    fs
}

/// A directory below another rank's directory with a quota. [`EXCLUSIVE_DIR`] has an exclusive
/// lease on it before its rank hears of the quota.
fn below_a_quota(limit: &[u8], value: &[u8]) -> (Ranks, Ino) {
    let mut fs = leasing_ranks();
    let top = fs.mkdir_at(0, Ino::ROOT, "top", 0o755);
    let far = fs.mkdir_at(1, top, "far", 0o755);
    let near = fs.mkdir_at(0, far, "near", 0o755);
    // No other client knows it.
    fs.ask(Request::ForgetAll { inodes: vec![(near, 100)], released: vec![] }).unwrap();
    fs.send_usage();
    let (value, mode, kill_sgid) = (value.into(), XattrMode::Any, false);
    fs.ask(Request::SetXattr { ino: top, name: limit.into(), value, mode, kill_sgid }).unwrap();
    (fs, near)
}

/// Sends a request to the first rank as [`EXCLUSIVE_DIR`]. Returns what the reply grants too.
fn ask_leased(fs: &mut Ranks, request: Request) -> (Result<Reply, Errno>, Touched) {
    let id = fs.0[0].send_from(EXCLUSIVE_DIR, &ROOT_CALLER, request);
    fs.deliver();
    let reply = fs.0[0].answers.remove(&id).expect("an answer");
    (reply, fs.0[0].leases.get(&id).map(|(_, touched)| touched.clone()).unwrap_or_default())
}

/// As [`ask_leased`], with the directory of an exclusive lease.
fn ask(fs: &mut Ranks, request: Request) -> (Result<Reply, Errno>, Option<Ino>) {
    let (reply, touched) = ask_leased(fs, request);
    (reply, touched.exclusive)
}

#[test]
fn directories_of_an_exclusive_one_are_acknowledged_if_they_stay_at_its_rank() {
    let mut fs = leasing_ranks();
    let top = fs.mkdir_at(0, Ino::ROOT, "top", 0o755);
    fs.ask(Request::ForgetAll { inodes: vec![(top, 100)], released: vec![] }).unwrap();
    let numbers = ask(&mut fs, Request::TakeNumbers { rank: Rank(0), count: 8 }).0;
    let Ok(Reply::Numbers { first, time, .. }) = numbers else { panic!("{numbers:?}") };
    ask(&mut fs, Request::Find { ino: top, kind: Some(FileType::Directory), open: None }).0.unwrap();
    let (mode, kill_sgid) = (XattrMode::Any, false);
    let pins: [(&[u8], bool); 3] = [(b"parent", false), (b"0", false), (b"off", true)];
    for (at, (pin, spreads_dirs)) in pins.into_iter().enumerate() {
        let (name, value) = (b"user.espalier.pin"[..].into(), pin.into());
        ask(&mut fs, Request::SetXattr { ino: top, name, value, mode, kill_sgid }).0.unwrap();
        let (made, touched) = ask_leased(&mut fs, new_file(top, &at.to_string(), None));
        made.unwrap();
        assert_eq!((touched.exclusive, touched.spreads_dirs), (Some(top), spreads_dirs), "{pin:?}");
    }
    // It was acknowledged before the server was about to place directories at other ranks.
    let mut mkdir = new_file(top, "sub", Some(WritebackCreate { ino: first, time }));
    if let Request::Create { node, open, .. } = &mut mkdir {
        (*node, *open) = (NewNode::Directory, None);
    }
    let (made, _) = ask(&mut fs, mkdir);
    assert!(matches!(&made, Ok(Reply::Entry(entry)) if entry.attr.ino == first), "{made:?}");
    fs.fsck();
}

#[test]
fn late_quota_does_not_reject_acknowledged_operations() {
    let (mut fs, near) = below_a_quota(b"user.espalier.quota.max_files", b"3");
    let fs = &mut fs;
    let numbers = ask(fs, Request::TakeNumbers { rank: Rank(0), count: 8 }).0;
    let Ok(Reply::Numbers { first, time, .. }) = numbers else { panic!("{numbers:?}") };
    ask(fs, Request::Find { ino: near, kind: Some(FileType::Directory), open: None }).0.unwrap();
    let make = |file: &str, writeback: Option<u64>| {
        new_file(near, file, writeback.map(|number| WritebackCreate { ino: Ino(first.0 + number), time }))
    };
    let mut fifo = make("fifo", Some(2));
    if let Request::Create { node, .. } = &mut fifo {
        *node = NewNode::Fifo;
    }
    assert_eq!(ask(fs, fifo).0, Err(Errno::EINVAL), "no client numbers it");
    // The rank in between hears of it first.
    for (file, writeback) in [("a", None), ("b", Some(0))] {
        let (made, exclusive_in) = ask(fs, make(file, writeback));
        assert_eq!((made.is_ok(), exclusive_in), (true, Some(near)));
        fs.send_usage();
    }
    let (made, exclusive_in) = ask(fs, make("c", Some(1)));
    assert_eq!((made.is_ok(), exclusive_in), (true, None), "{made:?}");
    assert_eq!(ask(fs, make("d", None)).0, Err(Errno::EDQUOT));
}

#[test]
fn late_quota_does_not_reject_acknowledged_stream_writes() {
    let (mut fs, near) = below_a_quota(b"user.espalier.quota.max_bytes", b"150");
    let fs = &mut fs;
    ask(fs, Request::TakeNumbers { rank: Rank(0), count: 8 }).0.unwrap();
    ask(fs, Request::Find { ino: near, kind: Some(FileType::Directory), open: None }).0.unwrap();
    let (made, exclusive_in) = ask(fs, new_file(near, "big", None));
    let ino = match made {
        Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => entry.attr.ino,
        other => panic!("{other:?}"),
    };
    assert_eq!(exclusive_in, Some(near));
    ask(fs, Request::Open { ino, how: open_how(Access::WRITE, false) }).0.unwrap();
    let set = SetAttr { size: Some(100), ..SetAttr::default() };
    fs.send_usage();
    ask(fs, Request::SetAttr { ino, set }).0.unwrap();
    fs.send_usage();
    let extend = |length, acknowledged| Request::Extend {
        ino,
        offset: 100,
        length,
        from: None,
        discards: false,
        acknowledged,
    };
    assert_eq!(ask(fs, extend(51, false)).0, Err(Errno::EDQUOT));
    assert_eq!(ask(fs, extend(51, true)).0, Ok(Reply::Granted));
    assert_eq!(ask(fs, extend(52, false)).0, Err(Errno::EDQUOT));
}

/// `fsck` findings about usage. `lie`: the first rank has received a wrong delta.
fn miscounted(lie: bool) -> Vec<Option<Ino>> {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    if lie {
        let usage = Usage { files: 7, ..Usage::default() };
        let message = PeerMessage::Usage { last: 1, changes: vec![(Ino::ROOT, usage)], about: vec![] };
        fs.0[0].input(Input::Peer { from: Rank(1), message });
        fs.send_usage();
    }
    fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    for host in &mut fs.0 {
        host.drain();
    }
    assert_eq!(fs.0[1].meta.unsent_usage(), 1);
    let findings = Check::finish_all(fs.0.iter().map(|host| host.disk.checked(&host.config)).collect());
    findings.iter().filter(|finding| finding.message.contains("counts")).map(|finding| finding.ino).collect()
}

#[test]
fn fsck_accounts_for_unsent_usage_deltas() {
    assert_eq!(miscounted(false), []);
    assert_eq!(miscounted(true), [Some(Ino::ROOT)]);
}

#[test]
fn rank_that_is_down_blocks_only_its_operations_interruptibly() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let make = Request::Create {
        dir: far,
        name: name("new"),
        node: NewNode::Directory,
        perm: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    };
    // Until the next directory belongs to rank 0.
    let id = loop {
        let id = fs.0[1].send(&ROOT_CALLER, make.clone());
        if !fs.0[1].answers.contains_key(&id) {
            break id;
        }
        fs.ask(Request::RmDir { dir: far, name: name("new"), time: None }).unwrap();
    };
    fs.0[1].peers.clear();
    fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    fs.0[1].input(Input::Cancel { from: ClientId(1), id: RequestId(id) });
    assert_eq!(fs.0[1].answers.remove(&id), Some(Err(Errno::EINTR)));
    // Another request is resent once the connection is back.
    let id = fs.0[1].send(&ROOT_CALLER, make.clone());
    fs.0[1].peers.clear();
    fs.connect();
    assert!(matches!(fs.0[1].answers.remove(&id), Some(Ok(_))));
    fs.fsck();
}

#[test]
fn undecided_transactions_of_lost_rank_are_aborted() {
    let fs = &mut Ranks::new(2);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    let (open, exclusive, node) = (None, true, NewNode::Regular);
    let create = |dir| Request::Create {
        dir,
        name: name("new"),
        node: node.clone(),
        perm: 0,
        umask: 0,
        open,
        exclusive,
        writeback: None,
    };
    let (from, to, flags) = (name("file"), name("new"), RenameFlags::empty());
    fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    fs.create_as(&ROOT_CALLER, far, "file", NewNode::Regular, 0o644);
    let rename = |from_dir, to_dir| Request::Rename {
        from_dir,
        from: from.clone(),
        to_dir,
        to: to.clone(),
        flags,
        time: None,
    };
    // Both ranks prepare what the other coordinates, and neither hears the decision.
    let ids = [rename(Ino::ROOT, far), rename(far, Ino::ROOT)].map(|request| {
        let at = request.rank().0 as usize;
        fs.0[at].send(&ROOT_CALLER, request);
        at
    });
    assert_eq!(ids, [0, 1]);
    for _ in 0..20 {
        for from in 0..2 {
            for (to, message) in std::mem::take(&mut fs.0[from].peers) {
                if !matches!(message, PeerMessage::Finish { .. }) {
                    fs.0[usize::from(to.0)].input(Input::Peer { from: Rank(from as u16), message });
                }
            }
        }
    }
    let prepared =
        |fs: &Ranks| fs.0[1].meta.prepared_for(Rank(0)).map(|(_, edits)| edits.len()).sum::<usize>();
    let unfinished = |fs: &Ranks| fs.0[1].meta.unfinished_at(Rank(0)).count();
    assert!(prepared(fs) > 0 && unfinished(fs) > 0, "{} {}", prepared(fs), unfinished(fs));
    let id = fs.0[1].send(&ROOT_CALLER, create(far));
    assert!(!fs.0[1].answers.contains_key(&id), "the name is locked");
    fs.0[1].input(Input::PeerLost { rank: Rank(0) });
    assert_eq!((prepared(fs), unfinished(fs), fs.0[1].meta.open_transactions()), (0, 0, 0));
    assert!(matches!(fs.0[1].answers.remove(&id), Some(Ok(Reply::Entry(_)))), "nor does anybody wait for it");
}

#[test]
fn only_the_coordinator_ends_a_transaction() {
    let fs = &mut Ranks::new(3);
    let far = fs.mkdir_at(1, Ino::ROOT, "far", 0o755);
    fs.create_as(&ROOT_CALLER, Ino::ROOT, "file", NewNode::Regular, 0o644);
    let (from_dir, to_dir, flags) = (Ino::ROOT, far, RenameFlags::empty());
    let rename = Request::Rename { from_dir, from: name("file"), to_dir, to: name("new"), flags, time: None };
    let id = fs.0[0].send(&ROOT_CALLER, rename);
    let mut decisions = Vec::new();
    for _ in 0..20 {
        for from in 0..3 {
            for (to, message) in std::mem::take(&mut fs.0[from].peers) {
                if matches!(message, PeerMessage::Finish { vote: Some(_), .. }) {
                    assert_eq!((from, to), (0, Rank(1)));
                    decisions.push(message);
                } else {
                    fs.0[usize::from(to.0)].input(Input::Peer { from: Rank(from as u16), message });
                }
            }
        }
    }
    let prepared = |fs: &Ranks| fs.0[1].meta.prepared_for(Rank(0)).map(|(id, _)| id).collect::<Vec<_>>();
    let [transaction] = prepared(fs)[..] else { panic!() };
    let decision = decisions.pop().expect("a decision");
    for message in [PeerMessage::Finish { id: transaction, vote: None }, decision.clone()] {
        fs.0[1].input(Input::Peer { from: Rank(2), message });
        assert_eq!(prepared(fs), [transaction]);
    }
    fs.0[1].input(Input::Peer { from: Rank(0), message: decision });
    assert_eq!(prepared(fs), []);
    fs.deliver();
    assert!(matches!(fs.0[0].answers.remove(&id), Some(Ok(_))));
    fs.fsck();
}

#[test]
fn long_ancestor_chain_is_returned_in_parts() {
    let fs = &mut Ranks::new(2);
    let top = fs.mkdir_at(1, Ino::ROOT, "top", 0o755);
    let mut dirs = vec![top];
    while dirs.len() < 2500 {
        dirs.push(fs.mkdir_at(1, dirs[dirs.len() - 1], "d", 0o755));
    }
    let deepest = dirs[dirs.len() - 1];
    fs.mkdir_at(0, Ino::ROOT, "moved", 0o755);
    assert_eq!(fs.rename((Ino::ROOT, "top"), (deepest, "below-itself")), Err(Errno::EINVAL));
    assert_eq!(fs.rename((Ino::ROOT, "moved"), (deepest, "moved")), Ok(Reply::Done));
    fs.fsck();
}

#[test]
fn rank_does_not_wait_for_client_that_left_while_it_was_down() {
    let host =
        |rank| Harness::with(Config { rank: Rank(rank), ranks: 2, session_ms: Some(60_000), ..config() });
    let fs = &mut Ranks((0..2).map(host).collect());
    let clients = [ClientId(100), ClientId(101), ClientId(102)];
    for client in clients {
        for host in &mut fs.0 {
            host.input(Input::Connect { client, leases: true, resumes: false });
            host.run_until_idle();
        }
    }
    let mut away = fs.0.pop().unwrap();
    away.drain();
    fs.0[0].input(Input::Leave { client: clients[0] });
    fs.0[0].input(Input::Leave { client: clients[1] });
    fs.0.push(away.crash());
    // One of them has come back since, at least to this rank.
    fs.0[1].input(Input::Connect { client: clients[1], leases: true, resumes: false });
    let caller = ROOT_CALLER;
    let (below, id, from) = (RequestId(1), RequestId(1), clients[1]);
    let request = Request::Reclaim { held: Vec::new(), last: true, again: vec![] };
    fs.0[1].input(Input::Request { from, id, below, follows: Vec::new(), caller, request });
    let sessions = |fs: &Ranks| (fs.0[1].meta.figures().sessions, fs.0[1].meta.figures().awaited_sessions);
    assert_eq!(sessions(fs), (3, 2));
    fs.connect();
    assert_eq!(sessions(fs), (2, 1));
}
