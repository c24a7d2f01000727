//! Merges of decoupled namespaces.

use std::ops::Range;

use espalier_meta::{
    Body, Change, Decoupled, Directory, Inode, MERGE, MergeBatch, MergeEnd, MergeRecord, Rare, encode,
};
use espalier_proto::*;

use super::decouple::{ID, INODES, abort, decouple, share, state};
use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

pub const DIGEST: u64 = 99;
pub const TIME: Time = Time::new(500, 6);

/// A namespace with entries of many types.
pub struct Namespace(pub Vec<MergeRecord>);

pub fn inode(ino: Ino, kind: FileType, body: Body) -> Inode {
    Inode {
        ino,
        kind,
        perm: 0o640,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        body,
        acl: None,
        default_acl: None,
        has_xattrs: false,
        rare: Rare::default(),
    }
}

pub fn create(dir: Ino, file: &str, inode: Inode, bytes: &[u8]) -> MergeRecord {
    let (name, inode) = (name(file), Box::new(inode));
    MergeRecord::Create { dir, name, inode, bytes: bytes.to_vec(), xattrs: Vec::new() }
}

pub fn file(ino: Ino, bytes: &[u8]) -> Inode {
    inode(ino, FileType::Regular, Body::Stuffed { size: bytes.len() as u64, stored: bytes.len() as u32 })
}

impl Namespace {
    pub fn of(decoupled: &Decoupled) -> Self {
        let at = |number| Ino(decoupled.first.0 + number);
        let directory = |ino| inode(ino, FileType::Directory, Body::Directory(Directory::empty(Ino::ROOT)));
        let symlink = Body::Symlink(b"target".as_slice().into());
        let mut labelled = create(at(0), "labelled", file(at(5), b"x"), b"x");
        if let MergeRecord::Create { xattrs, .. } = &mut labelled {
            xattrs.push((b"user.a".as_slice().into(), b"value".as_slice().into()));
        }
        let names = vec![(Ino::ROOT, name("second")), (at(0), name("third"))];
        Self(vec![
            create(Ino::ROOT, "sub", directory(at(0)), b""),
            create(at(0), "file", file(at(1), b"bytes"), b"bytes"),
            create(Ino::ROOT, "link", inode(at(2), FileType::Symlink, symlink), b""),
            create(at(0), "empty", file(at(4), b""), b""),
            labelled,
            MergeRecord::Link { ino: at(1), names, time: TIME },
            MergeRecord::Finish { ino: at(0), atime: TIME, mtime: TIME, ctime: TIME, flags: None },
        ])
    }

    /// These records; with the last ones, the end.
    pub fn batch(&self, range: Range<usize>) -> MergeBatch {
        let records = self.0.len() as u64;
        let change = Change { perm: Some(0o750), mtime: Some(TIME), ..Change::default() };
        let end = (range.end == self.0.len()).then_some(MergeEnd { records, change });
        let after = range.start as u64;
        MergeBatch {
            id: ID,
            digest: DIGEST,
            base: 0,
            after,
            records: self.0[range].to_vec(),
            shows: false,
            end,
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

pub fn send(fs: &mut Harness, dir: Ino, batch: &MergeBatch) -> Result<Reply, Errno> {
    send_as(fs, &ROOT_CALLER, dir, encode(batch))
}

pub fn send_as(fs: &mut Harness, caller: &Caller, dir: Ino, value: Vec<u8>) -> Result<Reply, Errno> {
    let (name, value, mode) = (MERGE.as_bytes().into(), value.into(), XattrMode::Any);
    fs.ask_as(caller, Request::SetXattr { ino: dir, name, value, mode, kill_sgid: false })
}

#[test]
fn entries_appear_with_the_last_record() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        let (namespace, shown) = (Namespace::of(&decoupled), fs.dump());
        assert_eq!(send(fs, dir, &namespace.batch(0..4)), Ok(Reply::Done));
        assert_eq!(fs.dump(), shown, "nothing is visible");
        assert_eq!(
            (fs.lookup(dir, "sub"), fs.create(dir, "sub", NewNode::Regular)),
            (None, Err(Errno::EBUSY))
        );
        assert_eq!(send(fs, dir, &namespace.batch(4..namespace.len())), Ok(Reply::Done));
        assert_eq!(state(fs, dir), Err(Errno::ENODATA));
        let attr = fs.attr("job");
        assert_eq!((attr.perm, attr.nlink, attr.size, attr.mtime), (0o750, 3, 3, TIME));
        let sub = fs.attr("job/sub");
        assert_eq!((sub.ino, sub.nlink, sub.size, sub.mtime), (decoupled.first, 2, 4, TIME));
        let file = fs.attr("job/sub/file");
        assert_eq!((file.ino.0, file.nlink, file.mtime), (decoupled.first.0 + 1, 3, TIME));
        assert_eq!(fs.read(file.ino), b"bytes");
        assert_eq!((fs.walk("job/second"), fs.walk("job/sub/third")), (Ok(file.ino), Ok(file.ino)));
        let ino = fs.walk("job/sub/labelled").unwrap();
        let value = fs.ask(Request::GetXattr { ino, name: b"user.a".as_slice().into() });
        assert_eq!(value, Ok(Reply::Bytes(b"value".as_slice().into())));
        let link = fs.walk("job/link").unwrap();
        assert_eq!(fs.ask(Request::ReadLink { ino: link }), Ok(Reply::Bytes(b"target".as_slice().into())));
        assert!(fs.create(dir, "new", NewNode::Regular).is_ok());
        assert_eq!(send(fs, dir, &namespace.batch(0..4)), Err(Errno::ESTALE), "it is merged already");
    });
}

#[test]
fn records_are_merged_once_and_in_order() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&decouple(fs, dir));
        assert_eq!(send(fs, dir, &namespace.batch(2..4)), Err(Errno::EINVAL), "records are missing");
        for range in [0..2, 0..3, 1..5, 0..5] {
            assert_eq!(send(fs, dir, &namespace.batch(range)), Ok(Reply::Done));
        }
        assert_eq!(state(fs, dir).map(|state| state.merged), Ok(5));
        let changed = MergeBatch { digest: DIGEST + 1, ..namespace.batch(5..6) };
        assert_eq!(send(fs, dir, &changed), Err(Errno::EINVAL), "the namespace has changed");
        let foreign = MergeBatch { id: ID + 1, ..namespace.batch(5..6) };
        assert_eq!(send(fs, dir, &foreign), Err(Errno::ESTALE));
        let early = MergeBatch { end: namespace.batch(6..7).end, ..namespace.batch(5..6) };
        assert_eq!(send(fs, dir, &early), Err(Errno::EINVAL), "a record is missing");
        assert_eq!(send(fs, dir, &namespace.batch(0..7)), Ok(Reply::Done));
        assert_eq!(fs.list(dir, false).len(), 3);
    });
}

#[test]
fn a_crash_keeps_the_number_of_merged_records() {
    let mut fs = Harness::new();
    let dir = fs.mkdir("job");
    let namespace = Namespace::of(&decouple(&mut fs, dir));
    send(&mut fs, dir, &namespace.batch(0..4)).unwrap();
    fs.ask(Request::Fsync { ino: dir }).unwrap();
    send(&mut fs, dir, &namespace.batch(4..6)).unwrap();
    // Lost.
    fs.lazy = true;
    let mut fs = fs.crash();
    fs.walk("job").unwrap();
    let merged = state(&mut fs, dir).unwrap().merged;
    assert!(merged >= 4, "{merged}");
    fs.checkpoint();
    let mut fs = fs.crash();
    fs.walk("job").unwrap();
    assert_eq!(state(&mut fs, dir).unwrap().merged, merged);
    send(&mut fs, dir, &namespace.batch(merged as usize..7)).unwrap();
    assert_eq!((fs.attr("job/sub/file").nlink, fs.fsck()), (3, vec![]));
}

/// Records that no correct client sends, with the error.
fn invalid(decoupled: &Decoupled, other: Ino) -> Vec<(MergeRecord, Errno)> {
    let at = |number| Ino(decoupled.first.0 + number);
    let named = |ino, body: Body| create(Ino::ROOT, "bad", Inode { body, ..file(ino, b"") }, b"");
    let finish = |ino| MergeRecord::Finish { ino, atime: TIME, mtime: TIME, ctime: TIME, flags: None };
    let link = |ino, names: &[&str]| {
        let names = names.iter().map(|text| (Ino::ROOT, name(text))).collect();
        MergeRecord::Link { ino, names, time: TIME }
    };
    let mut flagged = file(at(9), b"");
    flagged.perm = 0o10_000;
    vec![
        (create(Ino::ROOT, "bad", file(at(1), b""), b""), Errno::EINVAL),
        (create(Ino::ROOT, "bad", file(at(INODES), b""), b""), Errno::EINVAL),
        (create(Ino::ROOT, "bad", file(Ino(decoupled.first.0 - 1), b""), b""), Errno::EINVAL),
        (create(Ino::ROOT, "bad", file(Ino(u64::MAX), b""), b""), Errno::EINVAL),
        (create(Ino::ROOT, "sub", file(at(9), b""), b""), Errno::EEXIST),
        (create(at(50), "bad", file(at(9), b""), b""), Errno::EINVAL),
        (create(other, "bad", file(at(9), b""), b""), Errno::EINVAL),
        (create(at(1), "bad", file(at(9), b""), b""), Errno::ENOTDIR),
        (create(at(3), "bad", file(at(9), b""), b""), Errno::ESTALE),
        (create(Ino::ROOT, "bad", file(at(9), b"12"), b"1"), Errno::EINVAL),
        (create(Ino::ROOT, "bad", file(at(9), &[7; 65]), &[7; 65]), Errno::EINVAL),
        (create(Ino::ROOT, "bad", flagged, b""), Errno::EINVAL),
        (named(at(9), Body::Node), Errno::EINVAL),
        (named(at(9), Body::Streamed { counted: 5 }), Errno::EINVAL),
        (finish(Ino::ROOT), Errno::EINVAL),
        (finish(at(9)), Errno::EINVAL),
        (link(at(0), &["bad"]), Errno::EINVAL),
        (link(at(9), &["bad"]), Errno::ESTALE),
        (link(at(1), &["bad", "bad"]), Errno::EINVAL),
        (link(at(1), &["bad", "sub"]), Errno::EEXIST),
    ]
}

#[test]
fn invalid_records_change_nothing() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        let namespace = Namespace::of(&decoupled);
        send(fs, dir, &namespace.batch(0..5)).unwrap();
        let other = fs.mkdir("other");
        for (record, errno) in invalid(&decoupled, other) {
            let shown = format!("{record:?}");
            let batch = MergeBatch { records: vec![record], ..namespace.batch(5..6) };
            assert_eq!(send(fs, dir, &batch), Err(errno), "{shown}");
            assert_eq!(state(fs, dir).unwrap().merged, 5, "{shown}");
        }
        let whole = encode(&namespace.batch(5..7));
        for end in 0..whole.len() {
            let cut = send_as(fs, &ROOT_CALLER, dir, whole[..end].to_vec());
            assert_eq!(cut, Err(Errno::EINVAL), "cut at {end}");
        }
        assert_eq!(send(fs, dir, &namespace.batch(5..7)), Ok(Reply::Done));
    });
}

#[test]
fn flipped_bits_do_no_harm() {
    let mut fs = Harness::new();
    let dir = fs.mkdir("job");
    let namespace = Namespace::of(&decouple(&mut fs, dir));
    let whole = encode(&namespace.batch(0..7));
    for bit in 0..8 * whole.len() {
        let mut value = whole.clone();
        value[bit / 8] ^= 1 << (bit % 8);
        let _ = send_as(&mut fs, &user(5), dir, value.clone());
        let _ = send_as(&mut fs, &ROOT_CALLER, dir, value);
        if state(&mut fs, dir).map(|state| state.merged) != Ok(0) {
            assert_eq!(fs.fsck(), [], "bit {bit}");
            fs = Harness::new();
            fs.mkdir("job");
            decouple(&mut fs, dir);
        }
    }
}

#[test]
fn users_merge_only_what_they_may_create() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        fs.chown("job", 5, 5);
        let at = |number| Ino(decoupled.first.0 + number);
        let own = |ino| Inode { uid: 5, gid: 5, ..file(ino, b"") };
        let device = Inode { kind: FileType::CharDevice, body: Body::Node, ..own(at(1)) };
        let mut trusted = create(Ino::ROOT, "a", own(at(1)), b"");
        if let MergeRecord::Create { xattrs, .. } = &mut trusted {
            xattrs.push((b"trusted.a".as_slice().into(), b"".as_slice().into()));
        }
        let send = |fs: &mut Harness, after, record: &MergeRecord| {
            let records = vec![record.clone()];
            let batch =
                MergeBatch { id: ID, digest: DIGEST, base: 0, after, records, shows: false, end: None };
            send_as(fs, &user(5), dir, encode(&batch))
        };
        for refused in [
            create(Ino::ROOT, "a", file(at(1), b""), b""),
            create(Ino::ROOT, "a", Inode { gid: 6, ..own(at(1)) }, b""),
            create(Ino::ROOT, "a", device, b""),
            trusted,
        ] {
            assert_eq!(send(fs, 0, &refused), Err(Errno::EPERM), "{refused:?}");
        }
        let record = create(Ino::ROOT, "a", own(at(1)), b"");
        assert_eq!(send(fs, 0, &record), Ok(Reply::Done));
        let mut flags =
            MergeRecord::Finish { ino: at(1), atime: TIME, mtime: TIME, ctime: TIME, flags: None };
        if let MergeRecord::Finish { flags, .. } = &mut flags {
            *flags = Some(InodeFlags::IMMUTABLE);
        }
        assert_eq!(send(fs, 1, &flags), Err(Errno::EPERM));
        fs.set_limit(Ino::ROOT, "max_files", 3).unwrap();
        let second = create(Ino::ROOT, "b", own(at(2)), b"");
        let third = create(Ino::ROOT, "c", own(at(3)), b"");
        let fourth = create(Ino::ROOT, "d", own(at(4)), b"");
        let sent = [send(fs, 1, &second), send(fs, 2, &third), send(fs, 3, &fourth)];
        assert!(sent.contains(&Err(Errno::EDQUOT)), "{sent:?}");
        let (records, shows) = (vec![record], false);
        let other =
            encode(&MergeBatch { id: ID, digest: DIGEST, base: 0, after: 0, records, shows, end: None });
        assert_eq!(send_as(fs, &user(6), dir, other), Err(Errno::EPERM));
    });
}

#[test]
fn a_file_without_a_name_is_merged_as_a_big_file() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        let Ok(Reply::Created(entry, _)) = fs.ask(Request::TmpFile { dir, perm: 0o600, umask: 0 }) else {
            panic!("it is made")
        };
        let ino = entry.attr.ino;
        assert!(ino.0 >= decoupled.first.0 + INODES);
        fs.write(ino, 0, b"bytes").unwrap();
        let names = vec![(Ino::ROOT, name("one")), (Ino::ROOT, name("two"))];
        let other = fs.file("other", b"");
        let end = Some(MergeEnd { records: 1, change: Change::default() });
        let link = |ino| MergeRecord::Link { ino, names: names.clone(), time: TIME };
        let batch = |ino| {
            let records = vec![link(ino)];
            MergeBatch { id: ID, digest: 0, base: 0, after: 0, records, shows: false, end }
        };
        assert_eq!(send(fs, dir, &batch(other)), Err(Errno::EINVAL), "a file that has a name");
        assert_eq!(send(fs, dir, &batch(ino)), Ok(Reply::Done));
        fs.ask(Request::Release { ino }).unwrap();
        assert_eq!((fs.walk("job/one"), fs.walk("job/two")), (Ok(ino), Ok(ino)));
        assert_eq!((fs.read(ino), fs.attr_of(ino).nlink), (b"bytes".to_vec(), 2));
    });
}

#[test]
fn namespace_takes_priority_over_others() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let decoupled = share(fs, dir);
        let namespace = Namespace::of(&decoupled);
        // A directory of the same name, a file that is replaced, an empty directory where the
        // namespace has a link, and files with other names.
        let theirs = fs.mkdir("job/sub");
        fs.chmod("job/sub", 0o711);
        let replaced = fs.file("job/sub/file", b"theirs");
        fs.mkdir("job/link");
        fs.file("job/sub/other", b"theirs");
        let before = fs.attr("job").mtime;
        assert_eq!(send(fs, dir, &namespace.batch(0..4)), Ok(Reply::Done));
        assert_eq!(fs.walk("job/sub"), Ok(theirs), "directories are united");
        let merged = fs.walk("job/sub/file").unwrap();
        assert_eq!(merged.0, decoupled.first.0 + 1, "records are visible at once");
        assert_ne!(merged, replaced);
        let late = fs.file("job/second", b"late");
        assert_eq!(send(fs, dir, &namespace.batch(4..namespace.len())), Ok(Reply::Done));
        assert_eq!(state(fs, dir), Err(Errno::ENODATA));
        assert_eq!((fs.walk("job/second"), fs.attr("job/sub/file").nlink), (Ok(merged), 3));
        assert_ne!(merged, late);
        assert_eq!(fs.attr("job/link").kind, FileType::Symlink);
        let other = fs.walk("job/sub/other").unwrap();
        assert_eq!(fs.read(other), b"theirs");
        let (top, sub) = (fs.attr("job"), fs.attr("job/sub"));
        assert_eq!((top.perm, sub.perm, sub.size), (0o750, 0o711, 5));
        assert!(top.mtime >= before, "times do not go back");
    });
}

#[test]
fn removal_by_others_during_a_merge_stands() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&share(fs, dir));
        assert_eq!(send(fs, dir, &namespace.batch(0..2)), Ok(Reply::Done));
        let sub = fs.walk("job/sub").unwrap();
        fs.ask(Request::Unlink { dir: sub, name: name("file"), time: None }).unwrap();
        fs.ask(Request::RmDir { dir, name: name("sub"), time: None }).unwrap();
        fs.forget(sub);
        assert_eq!(send(fs, dir, &namespace.batch(2..namespace.len())), Ok(Reply::Done));
        assert_eq!((state(fs, dir), fs.list(dir, false).len()), (Err(Errno::ENODATA), 1));
    });
}

#[test]
fn removal_of_a_united_directory_stands() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&share(fs, dir));
        let theirs = fs.mkdir("job/sub");
        assert_eq!(send(fs, dir, &namespace.batch(0..1)), Ok(Reply::Done));
        fs.ask(Request::RmDir { dir, name: name("sub"), time: None }).unwrap();
        fs.forget(theirs);
        assert_eq!(send(fs, dir, &namespace.batch(1..namespace.len())), Ok(Reply::Done));
        assert_eq!((state(fs, dir), fs.list(dir, false).len()), (Err(Errno::ENODATA), 1));
    });
}

#[test]
fn directory_with_entries_stops_a_file_of_its_name() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&share(fs, dir));
        fs.mkdir("job/link");
        fs.file("job/link/file", b"");
        assert_eq!(send(fs, dir, &namespace.batch(0..4)), Err(Errno::EEXIST));
        assert_eq!(state(fs, dir).unwrap().merged, 2);
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
        assert!(fs.walk("job/link/file").is_ok() && fs.walk("job/sub/file").is_ok());
    });
}

#[test]
fn replacement_under_faults() {
    let before = |fs: &mut Harness| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&share(fs, dir));
        let sub = fs.mkdir("job/sub");
        let file = fs.file("job/sub/file", b"theirs");
        send(fs, dir, &namespace.batch(0..1)).unwrap();
        [file, sub, dir].into_iter().for_each(|ino| fs.forget(ino));
    };
    under_faults(before, |fs| {
        let dir = fs.walk("job")?;
        let reply = match state(fs, dir) {
            Ok(decoupled) if decoupled.merged == 1 => send(fs, dir, &Namespace::of(&decoupled).batch(1..2)),
            state => state.map(|_| Reply::Done),
        };
        fs.forget(dir);
        reply
    });
}

#[test]
fn merge_under_faults() {
    let before = |fs: &mut Harness| {
        let dir = fs.mkdir("job");
        let namespace = Namespace::of(&decouple(fs, dir));
        send(fs, dir, &namespace.batch(0..2)).unwrap();
        fs.forget(dir);
    };
    under_faults(before, |fs| {
        let dir = fs.walk("job")?;
        let reply = match state(fs, dir) {
            Ok(decoupled) => send(fs, dir, &Namespace::of(&decoupled).batch(2..7)),
            // An earlier attempt was complete.
            Err(Errno::ENODATA) => Ok(Reply::Done),
            Err(errno) => Err(errno),
        };
        fs.forget(dir);
        reply
    });
}
