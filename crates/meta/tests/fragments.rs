//! Partitioned directories.

mod datafiles;
mod forwards;
mod growth;
mod moves;
mod pulls;
mod quotas;
mod races;
mod rate;
mod repair;
mod routed;
mod show;

use std::collections::BTreeSet;

use crate::harness::{ROOT_CALLER, name, user};
use espalier_meta::{Check, Finding, InoRecord};
use espalier_proto::*;
use routed::*;

#[test]
fn full_directory_splits_and_each_name_is_in_one_fragment() {
    let (mut fs, dir) = Routed::with_dir();
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
    let files = names("file", 40);
    fs.make_files(dir, &files);
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.assert_names(dir, &files);
    assert_eq!(fs.ask(create(dir, "file7", NewNode::Regular)), Err(Errno::EEXIST));
    for file in &files[..20] {
        assert_eq!(fs.ask(unlink(dir, file)), Ok(Reply::Done));
        assert_eq!(fs.lookup(dir, file), Err(Errno::ENOENT));
    }
    fs.assert_names(dir, &files[20..]);
    fs.fs.fsck();
}

#[test]
fn empty_directory_gets_all_fragments_that_its_policy_wants_at_once() {
    let (mut fs, dir) = Routed::with_dir();
    fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"3")).unwrap();
    let map = fs.map(dir);
    assert_eq!(map.fragments().map(|(_, ino)| ino.rank().0).collect::<Vec<_>>(), [1, 2, 3]);
    fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"1000")).unwrap();
    assert_eq!(fs.map(dir).fragments().count(), 4, "all servers");
    fs.fs.fsck();
}

#[test]
fn directories_below_a_policy_are_spread_wherever_they_are_made() {
    let mut fs = Routed::new();
    fs.ask(set_xattr(Ino::ROOT, "user.espalier.dir_servers", b"4")).unwrap();
    assert_eq!(fs.map(Ino::ROOT).fragments().count(), 4);
    let dirs = names("dir", 12);
    for file in &dirs {
        let dir = fs.make(Ino::ROOT, file, NewNode::Directory);
        assert_eq!(fs.map(dir).fragments().count(), 4);
        assert_eq!(fs.parent(dir), Ino::ROOT);
    }
    fs.assert_names(Ino::ROOT, &dirs);
    fs.fs.fsck();
}

#[test]
fn directory_is_not_moved_below_itself_through_a_fragment() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    for (number, rank) in (0..4).flat_map(|number| (0..4).map(move |rank| (number, rank))) {
        let file = name_in(&map, number, &format!("dir{rank}"));
        let below = loop {
            let ino = fs.make(dir, &file, NewNode::Directory);
            if ino.rank() == Rank(rank) {
                break ino;
            }
            fs.ask(rmdir(dir, &file)).unwrap();
        };
        assert_eq!(fs.rename_as(&ROOT_CALLER, (Ino::ROOT, "dir"), (below, "dir")), Err(Errno::EINVAL));
        let deeper = fs.make(below, "deeper", NewNode::Directory);
        assert_eq!(fs.rename_as(&ROOT_CALLER, (dir, &file), (deeper, "dir")), Err(Errno::EINVAL));
    }
    fs.fs.fsck();
}

#[test]
fn names_of_two_fragments_are_exchanged_and_replaced() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        for node in [NewNode::Regular, NewNode::Directory] {
            let [one, two] = [(from, "one"), (to, "two")].map(|(number, tag)| name_in(&map, number, tag));
            let inodes = [&one, &two].map(|file| fs.make(dir, file, node.clone()));
            let (names, flags) = ((name(&one), name(&two)), RenameFlags::EXCHANGE);
            let (from, to) = names.clone();
            assert_eq!(
                fs.ask(Request::Rename { from_dir: dir, from, to_dir: dir, to, flags, time: None }),
                Ok(Reply::Done)
            );
            let found = [&two, &one].map(|file| fs.lookup(dir, file).unwrap().ino);
            assert_eq!(found, inodes);
            assert_eq!(fs.rename_as(&ROOT_CALLER, (dir, &one), (dir, &two)), Ok(Reply::Done));
            assert_eq!(fs.lookup(dir, &two).unwrap().ino, inodes[1]);
            assert_eq!(fs.lookup(dir, &one), Err(Errno::ENOENT));
            fs.fs.0[usize::from(inodes[0].rank().0)].forget(inodes[0]);
            let left = if node == NewNode::Directory { rmdir(dir, &two) } else { unlink(dir, &two) };
            assert_eq!(fs.ask(left), Ok(Reply::Done));
        }
    }
    fs.assert_names(dir, &[]);
    fs.fs.fsck();
}

#[test]
fn wrong_fragment_answers_where_the_fragments_are() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    for (number, fragment) in map.fragments() {
        let other = name_in(&map, (number + 1) % 4, "name");
        let requests = [
            Request::Lookup { dir: fragment, name: name(&other) },
            create(fragment, &other, NewNode::Regular),
            create(fragment, &other, NewNode::Directory),
            unlink(fragment, &other),
            rmdir(fragment, &other),
            Request::ReadDir {
                dir: fragment,
                after: *map.hashes(map.ino((number + 1) % 4).unwrap()).start() + 9,
                limit: 9,
                plus: false,
            },
        ];
        for request in requests {
            match fs.fs.ask(request.clone()) {
                Ok(Reply::Fragments(fragments)) => assert_eq!((number, &fragments.map), (0, &map)),
                Ok(Reply::Misrouted { dir: whole }) => assert_eq!((number > 0, whole), (true, dir)),
                other => panic!("{request:?}: {other:?}"),
            }
        }
        // The name that another rank looks up, or has the inode of.
        let file = fs.fs.create_as(&ROOT_CALLER, Ino::ROOT, &other, NewNode::Regular, 0o644);
        for request in [
            Request::Link { ino: file, dir: fragment, name: name(&other) },
            Request::Rename {
                from_dir: Ino::ROOT,
                from: name(&other),
                to_dir: fragment,
                to: name(&other),
                flags: RenameFlags::empty(),
                time: None,
            },
        ] {
            let reply = fs.fs.ask(request.clone());
            assert!(
                matches!(reply, Ok(Reply::Fragments(_) | Reply::Misrouted { .. })),
                "{request:?}: {reply:?}"
            );
        }
    }
    assert_eq!(fs.list(dir), [""; 0]);
    fs.fs.fsck();
}

#[test]
fn split_moves_names_of_inodes_at_third_ranks_and_of_linked_files() {
    let (mut fs, dir) = Routed::with_dir();
    let (dirs, files, links) = (names("dir", 16), names("file", 8), names("link", 8));
    let subdirs: Vec<Ino> = dirs.iter().map(|file| fs.make(dir, file, NewNode::Directory)).collect();
    assert_eq!(BTreeSet::from_iter(subdirs.iter().map(|ino| ino.rank().0)).len(), 4);
    for (file, link) in files.iter().zip(&links) {
        let ino = fs.make(dir, file, NewNode::Regular);
        let linked = fs.ask(Request::Link { ino, dir, name: name(link) });
        assert_eq!(fs.fs.found(linked).unwrap().nlink, 2);
    }
    let attr = fs.attr(dir);
    assert_eq!((attr.nlink, attr.size), (2 + 16, 32));
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
    assert_eq!(fs.map(dir).fragments().count(), 4);
    let split = fs.attr(dir);
    assert_eq!((split.nlink, split.size, split.mtime), (2 + 16, 32, attr.mtime));
    fs.assert_names(dir, dirs.iter().chain(&files).chain(&links));
    for (file, ino) in dirs.iter().zip(&subdirs) {
        assert_eq!(fs.lookup(dir, file).unwrap().ino, *ino);
        assert_eq!(fs.parent(*ino), dir);
    }
    for (file, link) in files.iter().zip(&links) {
        let found = fs.lookup(dir, link).unwrap();
        assert_eq!((found.ino, found.nlink), (fs.lookup(dir, file).unwrap().ino, 2));
        assert_eq!(fs.ask(unlink(dir, file)), Ok(Reply::Done));
        assert_eq!(fs.lookup(dir, link).unwrap().nlink, 1);
    }
    for (file, ino) in dirs.iter().zip(&subdirs) {
        let (new, to) = (format!("new-{file}"), if ino.0 % 2 == 0 { dir } else { Ino::ROOT });
        assert_eq!(fs.rename_as(&ROOT_CALLER, (dir, file), (to, &new)), Ok(Reply::Done));
        assert_eq!(fs.parent(*ino), to);
        assert_eq!(fs.ask(rmdir(to, &new)), Ok(Reply::Done));
    }
    let attr = fs.attr(dir);
    assert_eq!((attr.nlink, attr.size), (2, 8));
    fs.fs.fsck();
}

#[test]
fn permissions_policy_and_times_reach_all_fragments() {
    let (mut fs, dir) = Routed::with_fragments();
    let fragments: Vec<Ino> = fs.map(dir).fragments().map(|(_, ino)| ino).collect();
    let time = Time::new(4321, 5);
    let set = SetAttr {
        perm: Some(0o2750),
        uid: Some(5),
        gid: Some(7),
        flags: Some(InodeFlags::NODUMP),
        mtime: Some(SetTime::To(time)),
        ..SetAttr::default()
    };
    fs.ask(Request::SetAttr { ino: dir, set }).unwrap();
    fs.ask(set_xattr(dir, "user.espalier.num_dfiles", b"2")).unwrap();
    for ino in &fragments {
        let attr = fs.fs.attr(*ino);
        assert_eq!((attr.perm, attr.uid, attr.gid, attr.mtime), (0o2750, 5, 7, time));
        assert_eq!(attr.flags, InodeFlags::NODUMP);
        let get = Request::GetXattr { ino: *ino, name: (*b"user.espalier.num_dfiles").into() };
        assert_eq!(fs.fs.ask(get), Ok(Reply::Bytes(b"2"[..].into())));
    }
    assert_eq!(fs.attr(dir).mtime, time);
    let map = fs.map(dir);
    let request = |number: usize, tag: &str| create(dir, &name_in(&map, number, tag), NewNode::Regular);
    for number in 0..4 {
        assert_eq!(fs.ask_as(&user(6), request(number, "a")), Err(Errno::EACCES));
        let reply = fs.ask_as(&user(5), request(number, "a"));
        let made = fs.fs.found(reply).unwrap();
        assert_eq!((made.uid, made.gid), (5, 7), "the directory is set-gid");
    }
    assert!(fs.attr(dir).mtime != time);
    fs.ask(set_perm(dir, 0o1777)).unwrap();
    for number in 0..4 {
        let reply = fs.ask_as(&user(6), request(number, "b"));
        fs.fs.found(reply).unwrap();
        let refused = fs.ask_as(&user(6), unlink(dir, &name_in(&map, number, "a")));
        assert_eq!(refused, Err(Errno::EPERM), "the directory is sticky");
    }
    fs.fs.fsck();
}

/// An ACL in the kernel's encoding: user 7 has all rights, others than the owner have none.
fn acl() -> Vec<u8> {
    let entry = |(tag, perm, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let entries = [(1, 7, u32::MAX), (2, 7, 7), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
    [&2u32.to_le_bytes()[..], &entries.map(entry).concat()].concat()
}

#[test]
fn access_control_lists_reach_all_fragments() {
    let (mut fs, dir) = Routed::with_fragments();
    for attribute in ["system.posix_acl_access", "system.posix_acl_default"] {
        fs.ask(set_xattr(dir, attribute, &acl())).unwrap();
    }
    let map = fs.map(dir);
    for number in 0..4 {
        let file = name_in(&map, number, "name");
        assert_eq!(fs.ask_as(&user(6), create(dir, &file, NewNode::Regular)), Err(Errno::EACCES));
        let reply = fs.ask_as(&user(7), create(dir, &file, NewNode::Regular));
        let ino = fs.fs.found(reply).unwrap().ino;
        let get = Request::GetXattr { ino, name: (*b"system.posix_acl_access").into() };
        assert!(matches!(fs.fs.ask(get), Ok(Reply::Bytes(_))), "the file inherits the default list");
    }
    fs.fs.fsck();
}

/// Changes a file system with a partitioned directory so that the name `dir` goes.
type Removal = fn(&mut Routed) -> Result<Reply, Errno>;

#[test]
fn partitioned_directory_is_removed_only_if_all_fragments_are_empty() {
    let removals: [Removal; 3] = [
        |fs| fs.ask(rmdir(Ino::ROOT, "dir")),
        |fs| fs.rename_as(&ROOT_CALLER, (Ino::ROOT, "near"), (Ino::ROOT, "dir")),
        |fs| fs.rename_as(&ROOT_CALLER, (Ino::ROOT, "far"), (Ino::ROOT, "dir")),
    ];
    for (removal, home) in removals.into_iter().flat_map(|removal| [0, HOME].map(|home| (removal, home))) {
        let mut fs = Routed::new();
        fs.fs.mkdir_at(0, Ino::ROOT, "near", 0o777);
        fs.fs.mkdir_at(2, Ino::ROOT, "far", 0o777);
        let dir = fs.fs.mkdir_at(home, Ino::ROOT, "dir", 0o777);
        fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"4")).unwrap();
        let map = fs.map(dir);
        for number in 0..4 {
            let file = name_in(&map, number, "name");
            fs.make(dir, &file, NewNode::Regular);
            assert_eq!(removal(&mut fs), Err(Errno::ENOTEMPTY), "fragment {number}");
            assert_eq!(fs.ask(unlink(dir, &file)), Ok(Reply::Done));
            assert_eq!(fs.map(dir), map);
        }
        let lookup = fs.lookup(Ino::ROOT, "dir").unwrap();
        assert_eq!(lookup.ino, dir);
        assert_eq!(removal(&mut fs), Ok(Reply::Done));
        assert_ne!(fs.lookup(Ino::ROOT, "dir").map(|attr| attr.ino), Ok(dir));
        for fragment in map.others() {
            assert_eq!(fs.fs.ask(Request::GetAttr { ino: fragment }), Err(Errno::ESTALE));
        }
        fs.fs.0[usize::from(home)].forget(dir);
        fs.fs.fsck();
    }
}

#[test]
fn moving_a_directory_between_fragments_does_not_change_its_parent() {
    let (mut fs, dir) = Routed::with_fragments();
    let other = fs.fs.mkdir_at(2, Ino::ROOT, "other", 0o777);
    let map = fs.map(dir);
    for (from, to) in (0..4).flat_map(|from| (0..4).map(move |to| (from, to))) {
        for rank in 0..4 {
            let (from, to) = (name_in(&map, from, "from"), name_in(&map, to, "to"));
            let moved = loop {
                let ino = fs.make(dir, &from, NewNode::Directory);
                if ino.rank() == Rank(rank) {
                    break ino;
                }
                fs.ask(rmdir(dir, &from)).unwrap();
            };
            fs.ask(set_perm(moved, 0o755)).unwrap();
            assert_eq!(fs.rename_as(&user(5), (dir, &from), (dir, &to)), Ok(Reply::Done));
            assert_eq!((fs.lookup(dir, &to).unwrap().ino, fs.parent(moved)), (moved, dir));
            assert_eq!(fs.rename_as(&user(5), (dir, &to), (other, &to)), Err(Errno::EACCES));
            assert_eq!(fs.ask(rmdir(dir, &to)), Ok(Reply::Done));
        }
    }
    fs.fs.fsck();
}

#[test]
fn listing_shows_each_name_once_while_the_directory_splits() {
    let files = names("file", 40);
    for (servers, at) in [b"1", b"2"].into_iter().flat_map(|servers| (0..20).map(move |at| (servers, at))) {
        let (mut fs, dir) = Routed::with_dir();
        fs.ask(set_xattr(dir, "user.espalier.dir_servers", servers)).unwrap();
        fs.make_files(dir, &files);
        let (mut listed, mut after, mut pages) = (Vec::new(), Some(0), 0);
        while let Some(cursor) = after {
            if pages == at {
                fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
            }
            let (entries, next) = fs.page(dir, cursor, 3);
            assert!(next != after);
            listed.extend(entries.iter().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap()));
            (after, pages) = (next, pages + 1);
        }
        assert_eq!((listed.len(), fs.map(dir).fragments().count() == 4), (40, pages > at), "page {at}");
        assert_eq!(BTreeSet::from_iter(&listed), BTreeSet::from_iter(&files));
    }
}

/// A crash of a rank after each number of messages of all splits of a directory.
fn split_with_crash_of(rank: u16, is_power_failure: bool) {
    for messages in 0.. {
        let (mut fs, dir, mut files) = full_dir();
        let split = set_xattr(dir, "user.espalier.dir_split", b"4");
        fs.fs.0[usize::from(HOME)].send(&ROOT_CALLER, split.clone());
        let is_over = (0..messages).any(|_| !fs.fs.deliver_one());
        fs.fs.crash(rank, is_power_failure);
        fs.fs.deliver();
        for _ in 0..5 {
            fs.fs.tick();
        }
        fs.assert_names(dir, &files);
        // Splits that the crash has ended begin again.
        fs.ask(split).unwrap();
        files.push("last".into());
        fs.make(dir, "last", NewNode::Regular);
        assert_eq!(fs.map(dir).fragments().count(), 4, "{messages} messages");
        fs.assert_names(dir, &files);
        fs.fs.fsck();
        if is_over {
            assert!(messages > 20, "{messages} messages");
            return;
        }
    }
}

#[test]
fn split_survives_crash_of_home() {
    split_with_crash_of(HOME, false);
    split_with_crash_of(HOME, true);
}

#[test]
fn split_survives_crash_of_the_rank_of_the_first_new_fragment() {
    split_with_crash_of(HOME + 1, false);
    split_with_crash_of(HOME + 1, true);
}

#[test]
fn split_survives_crash_of_other_ranks() {
    for rank in [0, 3] {
        split_with_crash_of(rank, false);
        split_with_crash_of(rank, true);
    }
}

#[test]
fn removed_partitioned_directory_in_use_takes_no_names() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    for ino in map.others() {
        fs.fs.ask(Request::Find { ino, kind: Some(FileType::Directory), open: None }).unwrap();
    }
    assert_eq!(fs.ask(rmdir(Ino::ROOT, "dir")), Ok(Reply::Done));
    for (number, fragment) in map.fragments() {
        let file = name_in(&map, number, "name");
        for node in [NewNode::Regular, NewNode::Directory] {
            assert_eq!(fs.fs.ask(create(fragment, &file, node)), Err(Errno::ENOENT));
        }
    }
    assert_eq!(fs.map(dir).fragments().count(), 1);
    for number in 0..4 {
        let file = name_in(&map, number, "name");
        assert_eq!(fs.ask(create(dir, &file, NewNode::Regular)), Err(Errno::ENOENT));
    }
    fs.ask(set_perm(dir, 0o700)).unwrap();
    let attr = fs.attr(dir);
    assert_eq!((attr.perm, attr.nlink, attr.size), (0o700, 0, 0));
    assert_eq!(fs.list(dir), [""; 0]);
    for (_, ino) in map.fragments() {
        fs.fs.0[usize::from(ino.rank().0)].forget(ino);
        assert_eq!(fs.fs.ask(Request::GetAttr { ino }), Err(Errno::ESTALE));
    }
    fs.fs.fsck();
}

#[test]
fn usage_is_that_of_all_fragments_which_count_as_no_directories() {
    let (mut fs, dir) = Routed::with_fragments();
    let map = fs.map(dir);
    for number in 0..4 {
        let ino = fs.make(dir, &name_in(&map, number, "file"), NewNode::Regular);
        fs.fs.write(ino, 10);
        fs.make(dir, &name_in(&map, number, "dir"), NewNode::Directory);
    }
    fs.fs.send_usage();
    assert_eq!((fs.fs.usage(dir), fs.fs.usage(Ino::ROOT)), ([4, 4, 40], [4, 5, 40]));
    fs.ask(unlink(dir, &name_in(&map, 2, "file"))).unwrap();
    fs.ask(rmdir(dir, &name_in(&map, 3, "dir"))).unwrap();
    fs.fs.send_usage();
    assert_eq!((fs.fs.usage(dir), fs.fs.usage(Ino::ROOT)), ([3, 3, 30], [3, 4, 30]));
    fs.fs.fsck();
}

#[test]
fn split_changes_no_usage_of_the_directory() {
    for is_counted in [false, true] {
        let (mut fs, dir, files) = full_dir();
        for file in files.iter().filter(|file| file.starts_with("file")) {
            let ino = fs.lookup(dir, file).unwrap().ino;
            fs.fs.write(ino, 5);
        }
        if is_counted {
            fs.fs.send_usage();
            assert_eq!(fs.fs.usage(dir), [13, 8, 60]);
        }
        fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
        fs.fs.send_usage();
        assert_eq!((fs.fs.usage(dir), fs.fs.usage(Ino::ROOT)), ([13, 8, 60], [14, 10, 60]));
        fs.fs.fsck();
    }
}

/// `fsck` findings after the records of each rank have been changed.
fn found_after(
    damage: impl Fn(Ino, &FragmentMap, ObjectId, &[u8], &[u8]) -> Vec<TableWrite>,
) -> Vec<Finding> {
    let (mut fs, dir) = Routed::with_fragments();
    fs.make_files(dir, &names("file", 20));
    let map = fs.map(dir);
    fs.fs.fsck();
    let mut writes = Vec::new();
    for host in &fs.fs.0 {
        for record in host.disk.store().records() {
            let (object, key, value) = record.unwrap();
            writes.extend(damage(dir, &map, object, &key, &value));
        }
    }
    assert!(!writes.is_empty());
    for host in &fs.fs.0 {
        // A rank without a record ignores its removal.
        host.disk.store().stage(writes.clone()).unwrap();
        host.disk.store().publish().unwrap();
    }
    Check::finish_all(fs.fs.0.iter().map(|host| host.disk.checked(&host.config)).collect())
}

fn without_inode(ino: Ino, object: ObjectId, key: &[u8]) -> Vec<TableWrite> {
    let is_inode = matches!(InoRecord::from_key(key), Some((InoRecord::Inode, one)) if one == ino);
    let is_inode = is_inode && object.kind == ObjectKind::Inodes;
    is_inode.then(|| TableWrite { object, key: key.into(), value: None }).into_iter().collect()
}

#[test]
fn fsck_finds_a_name_in_the_wrong_fragment() {
    let findings = found_after(|dir, map, object, key, value| {
        let is_name = object.kind == ObjectKind::Fragment && object.id == map.fragment(1 << 62).0;
        let (key, value) = (key.to_vec(), Some(value.to_vec()));
        let write = TableWrite { object: ObjectId { id: dir.0, ..object }, key, value };
        is_name.then_some(write).into_iter().collect()
    });
    let is_found = |finding: &Finding| finding.message == "has names that belong to another fragment";
    assert!(findings.iter().any(is_found), "{findings:?}");
}

#[test]
fn fsck_finds_a_fragment_that_is_missing() {
    let findings = found_after(|_, map, object, key, _| {
        map.others().skip(1).take(1).flat_map(|ino| without_inode(ino, object, key)).collect()
    });
    let is_found = |finding: &Finding| finding.message.starts_with("is missing: fragment 2 of directory");
    assert!(findings.iter().any(is_found), "{findings:?}");
}

#[test]
fn fsck_finds_fragments_that_no_map_names() {
    let findings = found_after(|dir, _, object, key, _| without_inode(dir, object, key));
    let is_found = |finding: &&Finding| finding.message.ends_with("whose map does not name it");
    assert_eq!(findings.iter().filter(is_found).count(), 3, "{findings:?}");
}
