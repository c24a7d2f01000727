//! Namespace syncs: records that others see, and that change what earlier ones have made.

use espalier_meta::{Body, Decoupled, Directory, Inode, MergeBatch, MergeEnd, MergeRecord, encode};
use espalier_proto::*;

use super::decouple::{ID, abort, decouple, share, state};
use super::merge::{DIGEST, Namespace, TIME, create, file, inode, send, send_as};
use crate::harness::{Harness, ROOT_CALLER, everywhere, name, open_how, under_faults, user};

/// Records of a sync, after those that are merged.
fn sync(fs: &mut Harness, dir: Ino, records: Vec<MergeRecord>) -> Result<Reply, Errno> {
    sync_as(fs, &ROOT_CALLER, dir, records)
}

fn sync_as(fs: &mut Harness, caller: &Caller, dir: Ino, records: Vec<MergeRecord>) -> Result<Reply, Errno> {
    let Decoupled { merged, digest, .. } = state(fs, dir)?;
    let batch = MergeBatch {
        id: ID,
        digest: DIGEST + merged,
        base: digest,
        after: merged,
        records,
        shows: true,
        end: None,
    };
    send_as(fs, caller, dir, encode(&batch))
}

/// Syncs the first records of a namespace: two directories, two files and a link.
fn synced(fs: &mut Harness, dir: Ino, decoupled: &Decoupled) -> Namespace {
    let namespace = Namespace::of(decoupled);
    let batch = MergeBatch { shows: true, ..namespace.batch(0..5) };
    assert_eq!(send(fs, dir, &batch), Ok(Reply::Done));
    namespace
}

fn end(fs: &mut Harness, dir: Ino) -> Result<Reply, Errno> {
    let Decoupled { merged: after, digest: base, .. } = state(fs, dir)?;
    let end = Some(MergeEnd { records: after, change: Default::default() });
    send(fs, dir, &MergeBatch { id: ID, digest: 1, base, after, records: Vec::new(), shows: false, end })
}

fn remove(dir: Ino, text: &str) -> MergeRecord {
    MergeRecord::Remove { dir, name: name(text), ino: None }
}

fn rename(from: (Ino, &str), to: (Ino, &str)) -> MergeRecord {
    MergeRecord::Move { from: (from.0, name(from.1)), to: (to.0, name(to.1)), ino: None }
}

fn directory(ino: Ino, perm: u32) -> Inode {
    let body = Body::Directory(Directory::empty(Ino::ROOT));
    Inode { perm, ..inode(ino, FileType::Directory, body) }
}

fn update(inode: Inode, bytes: &[u8]) -> MergeRecord {
    MergeRecord::Update { inode: Box::new(inode), bytes: bytes.to_vec(), xattrs: Vec::new() }
}

#[test]
fn synced_entries_are_visible_and_nobody_changes_them() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        synced(fs, dir, &decoupled);
        assert_eq!(fs.attr("job").size, 2);
        let (sub, ino) = (fs.walk("job/sub").unwrap(), fs.walk("job/sub/file").unwrap());
        assert_eq!((sub, ino.0), (decoupled.first, decoupled.first.0 + 1));
        assert_eq!(fs.read(ino), b"bytes");
        let other = fs.file("other", b"");
        let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        let attribute = |ino| Request::SetXattr {
            ino,
            name: b"user.a".as_slice().into(),
            value: b"x".as_slice().into(),
            mode: XattrMode::Any,
            kill_sgid: false,
        };
        let renamed = |from_dir, from, to_dir, to| {
            let (from, to, flags) = (name(from), name(to), RenameFlags::empty());
            Request::Rename { from_dir, from, to_dir, to, flags, time: None }
        };
        assert_eq!(fs.create(sub, "new", NewNode::Regular), Err(Errno::EBUSY));
        assert_eq!(fs.create(dir, "new", NewNode::Regular), Err(Errno::EBUSY));
        for request in [
            Request::SetAttr { ino, set },
            Request::SetAttr { ino: sub, set },
            attribute(ino),
            attribute(sub),
            Request::Unlink { dir: sub, name: name("file"), time: None },
            Request::RmDir { dir, name: name("sub"), time: None },
            Request::Link { ino, dir: Ino::ROOT, name: name("new") },
            Request::Link { ino: other, dir: sub, name: name("new") },
            renamed(sub, "file", Ino::ROOT, "new"),
            renamed(Ino::ROOT, "other", sub, "new"),
            Request::Open { ino, how: open_how(Access::WRITE, false) },
            Request::Open { ino, how: open_how(Access::READ, true) },
            Request::RemoveTree { dir: sub },
        ] {
            let shown = format!("{request:?}");
            assert_eq!(fs.ask(request), Err(Errno::EBUSY), "{shown}");
        }
        assert_eq!(end(fs, dir), Ok(Reply::Done));
        assert!(fs.create(sub, "new", NewNode::Regular).is_ok());
        assert!(fs.ask(attribute(ino)).is_ok());
    });
}

#[test]
fn later_records_change_move_and_remove_what_is_merged() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        synced(fs, dir, &decoupled);
        let at = |number| Ino(decoupled.first.0 + number);
        let usage = fs.figure(Ino::ROOT, "rbytes");
        let mut changed = file(at(1), b"other bytes");
        (changed.perm, changed.mtime) = (0o600, Time::new(700, 8));
        let sub = fs.attr("job/sub").ino;
        let mut moved = inode(
            sub,
            FileType::Directory,
            espalier_meta::Body::Directory(espalier_meta::Directory::empty(Ino::ROOT)),
        );
        moved.mtime = TIME;
        let records = vec![
            update(changed.clone(), b"other bytes"),
            // Replaces the empty file.
            rename((at(0), "file"), (at(0), "empty")),
            remove(at(0), "labelled"),
            remove(Ino::ROOT, "link"),
            create(
                Ino::ROOT,
                "new",
                inode(
                    at(6),
                    FileType::Directory,
                    espalier_meta::Body::Directory(espalier_meta::Directory::empty(Ino::ROOT)),
                ),
                b"",
            ),
            rename((Ino::ROOT, "sub"), (at(6), "sub")),
            update(moved, b""),
        ];
        assert_eq!(sync(fs, dir, records), Ok(Reply::Done));
        assert_eq!((fs.walk("job/new/sub"), fs.walk("job/new/sub/empty")), (Ok(at(0)), Ok(at(1))));
        let attr = fs.attr("job/new/sub/empty");
        assert_eq!((attr.perm, attr.size, attr.mtime), (0o600, 11, Time::new(700, 8)));
        assert_eq!(fs.read(at(1)), b"other bytes");
        assert_eq!((fs.list(dir, false).len(), fs.list(at(0), false).len()), (1, 1));
        assert_eq!((fs.attr("job/new/sub").mtime, fs.attr("job/new").nlink), (TIME, 3));
        assert_ne!(fs.figure(Ino::ROOT, "rbytes"), usage);
        // The same, and without the attribute.
        changed.perm = 0o640;
        assert_eq!(sync(fs, dir, vec![update(changed, b"")]), Err(Errno::EINVAL), "bytes are missing");
        assert_eq!(sync(fs, dir, vec![update(file(at(1), b""), b"")]), Ok(Reply::Done));
        assert_eq!((fs.attr("job/new/sub/empty").size, fs.attr("job/new/sub/empty").perm), (0, 0o640));
        for (record, errno) in [
            (remove(at(6), "sub"), Errno::ENOTEMPTY),
            (remove(at(6), "none"), Errno::ENOENT),
            (remove(at(50), "none"), Errno::EINVAL),
            (rename((at(6), "sub"), (at(0), "below")), Errno::EINVAL),
            (rename((at(6), "none"), (at(0), "below")), Errno::ENOENT),
            (rename((at(0), "empty"), (at(6), "sub")), Errno::EISDIR),
            (rename((at(6), "sub"), (at(0), "empty")), Errno::EINVAL),
            (update(file(at(60), b""), b""), Errno::EINVAL),
            (update(file(at(6), b""), b""), Errno::EINVAL),
            (create(Ino::ROOT, "used", file(at(6), b""), b""), Errno::EINVAL),
        ] {
            let shown = format!("{record:?}");
            assert_eq!(sync(fs, dir, vec![record]), Err(errno), "{shown}");
        }
        // Numbers of the upper half do not use up the lower one.
        let records = vec![
            create(Ino::ROOT, "spare", file(at(70), b""), b""),
            create(Ino::ROOT, "next", file(at(7), b""), b""),
        ];
        assert_eq!(sync(fs, dir, records), Ok(Reply::Done));
        assert_eq!(end(fs, dir), Ok(Reply::Done));
        assert_eq!((fs.walk("job/spare"), fs.walk("job/next")), (Ok(at(70)), Ok(at(7))));
    });
}

#[test]
fn requests_of_an_earlier_sync_change_nothing() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        synced(fs, dir, &decoupled);
        let at = |number| Ino(decoupled.first.0 + number);
        let batch = |(digest, base), after, text: &str, number| {
            let records = vec![create(Ino::ROOT, text, file(at(number), b""), b"")];
            MergeBatch { id: ID, digest, base, after, records, shows: true, end: None }
        };
        assert_eq!(send(fs, dir, &batch((5, 4), 5, "late", 6)), Err(Errno::EINVAL), "after another one");
        assert_eq!(send(fs, dir, &batch((5, DIGEST), 5, "new", 6)), Ok(Reply::Done));
        assert_eq!(send(fs, dir, &batch((6, DIGEST), 5, "late", 6)), Err(Errno::EINVAL));
        assert_eq!(send(fs, dir, &batch((5, DIGEST), 5, "new", 6)), Ok(Reply::Done), "the same again");
        // The second request of a sync, of whose first one the server has lost the records.
        assert_eq!(send(fs, dir, &batch((6, DIGEST), 6, "late", 7)), Err(Errno::EINVAL));
        assert_eq!(state(fs, dir).map(|state| (state.merged, state.digest)), Ok((6, 5)));
        assert_eq!((fs.walk("job/late"), fs.walk("job/new")), (Err(Errno::ENOENT), Ok(at(6))));
    });
}

#[test]
fn records_before_the_first_sync_stay_hidden() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&decouple(fs, dir));
        assert_eq!(send(fs, dir, &namespace.batch(0..2)), Ok(Reply::Done));
        assert_eq!(send(fs, dir, &MergeBatch { shows: true, ..namespace.batch(2..3) }), Ok(Reply::Done));
        assert_eq!((fs.lookup(dir, "sub"), fs.list(dir, false).len()), (None, 0));
        assert_eq!(send(fs, dir, &namespace.batch(3..namespace.len())), Ok(Reply::Done));
        assert_eq!(fs.list(dir, false).len(), 3);
    });
}

#[test]
fn abort_leaves_what_was_synced() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        synced(fs, dir, &decoupled);
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
        assert!(fs.walk("job/sub/file").is_ok());
        assert!(fs.create(dir, "new", NewNode::Regular).is_ok());
    });
}

#[test]
fn changes_by_others_stand_if_they_are_allowed() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = share(fs, dir);
        synced(fs, dir, &decoupled);
        let at = |number| Ino(decoupled.first.0 + number);
        fs.ask(Request::Unlink { dir: at(0), name: name("file"), time: None }).unwrap();
        let theirs = fs.file("job/sub/file", b"theirs");
        fs.file("job/sub/target", b"theirs");
        let records = vec![
            remove(at(0), "file"),
            update(file(at(1), b"lost"), b"lost"),
            rename((at(0), "file"), (at(0), "lost")),
            rename((at(0), "empty"), (at(0), "target")),
        ];
        fs.forget(at(1));
        assert_eq!(sync(fs, dir, records), Ok(Reply::Done));
        assert_eq!((fs.walk("job/sub/file"), fs.walk("job/sub/target")), (Ok(theirs), Ok(at(4))));
        assert_eq!(end(fs, dir), Ok(Reply::Done));
    });
}

#[test]
fn sync_under_faults() {
    let before = |fs: &mut Harness| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        synced(fs, dir, &decoupled);
        fs.forget(dir);
    };
    // Each record is applied as a whole or not at all.
    for number in 0..3 {
        under_faults(before, |fs| {
            let dir = fs.walk("job")?;
            let decoupled = state(fs, dir)?;
            let at = |number| Ino(decoupled.first.0 + number);
            let records = [
                update(file(at(1), b"new"), b"new"),
                rename((at(0), "file"), (Ino::ROOT, "moved")),
                remove(at(0), "empty"),
            ];
            // An earlier attempt may have merged it.
            let record = records[number].clone();
            let records = if decoupled.merged > 5 { Vec::new() } else { vec![record] };
            let reply = sync(fs, dir, records);
            fs.forget(dir);
            reply
        });
    }
}

#[test]
fn records_change_only_inodes_of_their_caller() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = share(fs, dir);
        fs.chown("job", 5, 5);
        synced(fs, dir, &decoupled);
        let at = |number| Ino(decoupled.first.0 + number);
        let own = |inode| Inode { uid: 5, gid: 5, ..inode };
        let shown = fs.dump();
        let times = MergeRecord::Finish { ino: at(1), atime: TIME, mtime: TIME, ctime: TIME, flags: None };
        for (record, errno) in [
            (update(own(file(at(1), b"new")), b"new"), Errno::EPERM),
            (times, Errno::EPERM),
            (remove(at(0), "file"), Errno::EACCES),
            (rename((at(0), "file"), (at(0), "moved")), Errno::EACCES),
            (rename((at(0), "file"), (Ino::ROOT, "moved")), Errno::EACCES),
            (rename((Ino::ROOT, "link"), (at(0), "moved")), Errno::EACCES),
            (create(at(0), "new", own(file(at(7), b"")), b""), Errno::EACCES),
        ] {
            let text = format!("{record:?}");
            assert_eq!(sync_as(fs, &user(5), dir, vec![record]), Err(errno), "{text}");
        }
        assert_eq!(fs.dump(), shown);
        let flags = Some(InodeFlags::IMMUTABLE);
        fs.ask(Request::SetAttr { ino: at(1), set: SetAttr { flags, ..SetAttr::default() } }).unwrap();
        let changed = update(file(at(1), b"new"), b"new");
        assert_eq!(sync(fs, dir, vec![changed.clone()]), Err(Errno::EPERM), "it is immutable");
        let finish = |flags| MergeRecord::Finish { ino: at(1), atime: TIME, mtime: TIME, ctime: TIME, flags };
        assert_eq!(sync(fs, dir, vec![finish(Some(InodeFlags::empty())), changed]), Ok(Reply::Done));
        assert_eq!(fs.read(at(1)), b"new");
    });
}

#[test]
fn inode_that_others_moved_to_a_name_keeps_it() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = share(fs, dir);
        synced(fs, dir, &decoupled);
        let at = |number| Ino(decoupled.first.0 + number);
        let (from, to, flags) = (name("file"), name("empty"), RenameFlags::empty());
        fs.ask(Request::Rename { from_dir: at(0), from, to_dir: at(0), to, flags, time: None }).unwrap();
        let records = vec![
            MergeRecord::Move { from: (at(0), name("empty")), to: (at(0), name("moved")), ino: Some(at(4)) },
            MergeRecord::Remove { dir: at(0), name: name("empty"), ino: Some(at(4)) },
        ];
        assert_eq!(sync(fs, dir, records), Ok(Reply::Done));
        assert_eq!((fs.walk("job/sub/empty"), fs.walk("job/sub/moved")), (Ok(at(1)), Err(Errno::ENOENT)));
        let removal = MergeRecord::Remove { dir: at(0), name: name("empty"), ino: Some(at(1)) };
        assert_eq!(sync(fs, dir, vec![removal]), Ok(Reply::Done));
        assert_eq!(fs.walk("job/sub/empty"), Err(Errno::ENOENT));
    });
}

#[test]
fn owner_moves_directory_without_write_permission() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        fs.chown("job", 5, 5);
        let at = |number| Ino(decoupled.first.0 + number);
        let own = |ino, perm| Inode { uid: 5, gid: 5, ..directory(ino, perm) };
        let records = vec![
            create(Ino::ROOT, "a", own(at(0), 0o555), b""),
            create(at(0), "b", own(at(1), 0o555), b""),
            create(Ino::ROOT, "c", own(at(2), 0o755), b""),
        ];
        assert_eq!(sync_as(fs, &user(5), dir, records), Ok(Reply::Done));
        let below = rename((Ino::ROOT, "a"), (at(1), "a"));
        assert_eq!(sync_as(fs, &user(5), dir, vec![below]), Err(Errno::EINVAL));
        let moved = rename((at(0), "b"), (at(2), "b"));
        assert_eq!(sync_as(fs, &user(5), dir, vec![moved]), Ok(Reply::Done));
        assert_eq!(fs.walk("job/c/b"), Ok(at(1)));
    });
}
