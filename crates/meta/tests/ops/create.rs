use espalier_meta::{Config, Input};
use espalier_policy::Key;
use espalier_proto::*;

use super::set_layout::{ONE, OTHER, ask, cluster};
use super::take_numbers::{server, take, writeback};
use crate::harness::{Harness, ROOT_CALLER, STRIP, config, everywhere, name, open_how, under_faults, user};

fn create(fs: &mut Harness, caller: &Caller, path: &str, node: NewNode) -> Result<Attr, Errno> {
    let (dir, name) = fs.place(path)?;
    let request = Request::Create {
        dir,
        name,
        node,
        perm: 0o7777,
        umask: 0o022,
        open: None,
        exclusive: true,
        writeback: None,
    };
    match fs.ask_as(caller, request)? {
        Reply::Entry(entry) => Ok(entry.attr),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_is_made_for_the_caller() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.chmod("dir", 0o777);
        for (node, kind, rdev) in [
            (NewNode::Regular, FileType::Regular, 0),
            (NewNode::Directory, FileType::Directory, 0),
            (NewNode::Fifo, FileType::Fifo, 0),
            (NewNode::Socket, FileType::Socket, 0),
            (NewNode::CharDevice(0x103), FileType::CharDevice, 0x103),
            (NewNode::BlockDevice(0x700), FileType::BlockDevice, 0x700),
        ] {
            let attr = create(fs, &user(5), &format!("dir/{kind:?}"), node).unwrap();
            assert_eq!((attr.kind, attr.rdev, attr.perm), (kind, rdev, 0o7755));
            assert_eq!((attr.uid, attr.gid), (5, 5));
            assert_eq!(attr.nlink, if kind == FileType::Directory { 2 } else { 1 });
        }
        let link = create(fs, &user(5), "dir/link", NewNode::Symlink(b"to".as_slice().into())).unwrap();
        assert_eq!((link.kind, link.perm, link.size), (FileType::Symlink, 0o777, 2));
        let dir = fs.attr("dir");
        assert!(dir.nlink == 3 && dir.mtime == link.btime && dir.ctime == link.btime);
    });
}

#[test]
fn a_set_group_id_directory_gives_its_group() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.chown("dir", 0, 9);
        fs.chmod("dir", 0o2777);
        let sub = create(fs, &user(5), "dir/sub", NewNode::Directory).unwrap();
        assert_eq!((sub.gid, sub.perm & mode::SET_GID), (9, mode::SET_GID));
        // Executables lose the bit unless the caller is in the group.
        let file = create(fs, &user(5), "dir/file", NewNode::Regular).unwrap();
        assert_eq!((file.gid, file.perm), (9, 0o5755));
    });
}

#[test]
fn create_opens_existing_file_unless_exclusive() {
    everywhere(|fs| {
        let ino = fs.file("file", b"bytes");
        let request = |exclusive| Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open: Some(open_how(Access::WRITE, false)),
            exclusive,
            writeback: None,
        };
        assert_eq!(fs.ask(request(true)), Err(Errno::EEXIST));
        let Ok(Reply::Created(entry, _)) = fs.ask(request(false)) else { panic!("it is opened") };
        assert_eq!((entry.attr.ino, entry.attr.size), (ino, 5));
        assert_eq!(fs.ask_as(&user(5), request(false)), Err(Errno::EACCES));
        // An open file outlives its name.
        fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }).unwrap();
        fs.forget(ino);
        assert_eq!(fs.read(ino), b"bytes");
        fs.ask(Request::Release { ino }).unwrap();
    });
}

#[test]
fn create_opens_nothing_but_regular_files() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.create(Ino::ROOT, "link", NewNode::Symlink(b"target".as_slice().into())).unwrap();
        fs.create(Ino::ROOT, "fifo", NewNode::Fifo).unwrap();
        let before = fs.meta.files();
        for (there, errno) in [("dir", Errno::EISDIR), ("link", Errno::ELOOP), ("fifo", Errno::ENXIO)] {
            for access in [Access::READ, Access::WRITE] {
                let request = Request::Create {
                    dir: Ino::ROOT,
                    name: name(there),
                    node: NewNode::Regular,
                    perm: 0o644,
                    umask: 0,
                    open: Some(open_how(access, true)),
                    exclusive: false,
                    writeback: None,
                };
                // Whatever its permissions are.
                assert_eq!(fs.ask_as(&user(5), request.clone()), Err(errno), "{there}");
                assert_eq!(fs.ask(request), Err(errno), "{there}");
            }
        }
        assert_eq!(fs.meta.files(), before);
    });
}

#[test]
fn truncating_create_reports_large_file_empty() {
    everywhere(|fs| {
        let file = fs.file("file", b"bytes");
        fs.write(file, STRIP, b"more").unwrap();
        assert!(fs.is_streamed(file));
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, true)));
        let (perm, umask, exclusive) = (0o644, 0, false);
        let request = Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node,
            perm,
            umask,
            open,
            exclusive,
            writeback: None,
        };
        let Ok(Reply::Created(entry, _)) = fs.ask(request) else { panic!("it is there") };
        assert_eq!((entry.attr.size, entry.attr.blocks), (0, 0));
        assert_eq!(fs.attr("file").size, 0);
    });
}

#[test]
fn truncating_open_survives_unlink() {
    for steps in 0..10 {
        let mut fs = Harness::new();
        let file = fs.file("file", &[7; 100]);
        fs.ask(Request::Open { ino: file, how: open_how(Access::WRITE, false) }).unwrap();
        fs.shuffle = Some(fastrand::Rng::with_seed(0));
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, true)));
        let (perm, umask, exclusive) = (0o644, 0, false);
        let request = Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node,
            perm,
            umask,
            open,
            exclusive,
            writeback: None,
        };
        let create = fs.send(&ROOT_CALLER, request);
        (0..steps).for_each(|_| _ = fs.run_one());
        fs.send(&ROOT_CALLER, Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None });
        while fs.run_one() {}
        let Ok(Reply::Created(entry, _)) = &fs.answers[&create] else { panic!("it can be made") };
        let is_opened = entry.attr.ino == file;
        assert_eq!(fs.attr_of(file).size, if is_opened { 0 } else { 100 }, "after {steps} steps");
    }
}

#[test]
fn errors_come_in_order() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.file("dir/file", b"");
        let node = || NewNode::Regular;
        assert_eq!(create(fs, &user(5), "dir/file/x", node()), Err(Errno::ENOTDIR));
        // `EEXIST` takes precedence over missing write permission.
        assert_eq!(create(fs, &user(5), "dir/file", node()), Err(Errno::EEXIST));
        assert_eq!(create(fs, &user(5), "dir/new", node()), Err(Errno::EACCES));
        fs.chmod("dir", 0o700);
        assert_eq!(create(fs, &user(5), "dir/file", node()), Err(Errno::EACCES));
        // Nothing can be created in a removed directory.
        let gone = fs.mkdir("gone");
        fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("gone"), time: None }).unwrap();
        assert_eq!(fs.create(gone, "new", NewNode::Regular), Err(Errno::ENOENT));
        fs.forget(gone);
    });
}

#[test]
fn full_store_refuses_growth_but_allows_removal() {
    let mut fs = Harness::with(Config { reserve: 1, ..config() });
    fs.file("file", b"");
    fs.input(Input::Space { free: 0 });
    assert_eq!(fs.create(Ino::ROOT, "new", NewNode::Regular), Err(Errno::ENOSPC));
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }).unwrap();
    fs.input(Input::Space { free: 1 });
    assert!(fs.create(Ino::ROOT, "new", NewNode::Regular).is_ok());
}

#[test]
fn writeback_create_keeps_acknowledged_attributes() {
    let fs = &mut server();
    let (first, end) = take(fs, ONE);
    let time = Time::new(fs.now.secs - 3, 5);
    let Ok(Reply::Entry(entry)) = ask(fs, ONE, writeback("a", first + 7, time)) else { panic!("it is made") };
    assert_eq!((entry.attr.ino, entry.attr.size, entry.attr.streamed), (Ino(first + 7), 0, false));
    assert_eq!([entry.attr.mtime, entry.attr.ctime, entry.attr.btime], [time; 3]);
    let Ok(Reply::Attr(dir)) = ask(fs, ONE, Request::GetAttr { ino: Ino::ROOT }) else {
        panic!("it is there")
    };
    assert_eq!([dir.mtime, dir.ctime], [time; 2]);
    // A number is valid for one file, of the client that it was allocated to.
    let files = fs.meta.files();
    for (client, ino) in [(ONE, first + 7), (OTHER, first), (ONE, end), (ONE, 1), (ONE, u64::MAX)] {
        assert_eq!(ask(fs, client, writeback("b", ino, time)), Err(Errno::EINVAL), "{ino} of {client:?}");
    }
    let mut fifo = writeback("b", first, time);
    if let Request::Create { node, .. } = &mut fifo {
        *node = NewNode::Fifo;
    }
    assert_eq!(ask(fs, ONE, fifo), Err(Errno::EINVAL));
    assert_eq!(fs.meta.files(), files);
    // An existing file stays, and the number remains unused.
    assert_eq!(ask(fs, ONE, writeback("a", first, time)), Err(Errno::EEXIST));
    let mut open_it = writeback("a", first, time);
    if let Request::Create { open, exclusive, .. } = &mut open_it {
        (*open, *exclusive) = (Some(open_how(Access::READ, false)), false);
    }
    let Ok(Reply::Created(entry, _)) = ask(fs, ONE, open_it) else { panic!("it is opened") };
    assert_eq!(entry.attr.ino, Ino(first + 7));
    let Ok(Reply::Entry(entry)) = ask(fs, ONE, writeback("b", first, time)) else { panic!("it is made") };
    assert_eq!(entry.attr.ino, Ino(first));
    assert_eq!(fs.fsck(), []);
}

#[test]
fn writeback_create_is_stuffed_under_any_policy() {
    for settings in [&[(Key::Stuffing, "false")][..], &[(Key::NoMetafile, "true")], &[]] {
        // Clients make files step by step.
        let fs = &mut cluster(settings);
        let policy = b"user.espalier.stuffing".as_slice().into();
        let (value, mode) = (b"false".as_slice().into(), XattrMode::Any);
        ask(fs, ONE, Request::SetXattr { ino: Ino::ROOT, name: policy, value, mode, kill_sgid: false })
            .unwrap();
        let (first, time) = (take(fs, ONE).0, fs.now);
        let mut request = writeback("file", first, time);
        if let Request::Create { open, .. } = &mut request {
            *open = Some(open_how(Access::WRITE, false));
        }
        let Ok(Reply::Created(entry, opened)) = ask(fs, ONE, request) else { panic!("it is made") };
        assert_eq!((entry.attr.ino, entry.attr.perm), (Ino(first), 0o644));
        assert!(!entry.attr.streamed && !opened.streamed);
        let ino = entry.attr.ino;
        let write =
            Request::Write { ino, offset: 0, data: b"bytes"[..].into(), kill_suid_gid: false, time: None };
        assert_eq!(ask(fs, ONE, write), Ok(Reply::Done), "with its inode");
        let name = b"user.espalier.policy".as_slice().into();
        let Ok(Reply::Bytes(policy)) = ask(fs, ONE, Request::GetXattr { ino, name }) else {
            panic!("it has one")
        };
        assert!(String::from_utf8(policy.into()).unwrap().contains("stuffing"), "attributes as usual");
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn client_time_near_server_clock_is_accepted() {
    let fs = &mut server();
    let (first, end) = take(fs, ONE);
    let now = Time::new(5000, 500);
    let reported = [
        (Time::new(4990, 500), true),
        (Time::new(4990, 499), false),
        (Time::new(5010, 500), true),
        (Time::new(5010, 501), false),
        (Time::new(i64::MIN, 0), false),
        (Time::new(i64::MAX, 999_999_999), false),
    ];
    for ((time, is_accepted), ino) in reported.into_iter().zip(first..end) {
        // The time advances with each request.
        fs.now = Time { nanos: now.nanos - 1, ..now };
        let Ok(Reply::Entry(entry)) = ask(fs, ONE, writeback(&ino.to_string(), ino, time)) else {
            panic!("it is made")
        };
        assert_eq!(entry.attr.mtime, if is_accepted { time } else { now }, "{time:?}");
    }
    // No second has that many nanoseconds.
    fs.now = now;
    let request = writeback("odd", first + 9, Time { secs: 5000, nanos: u32::MAX });
    let Ok(Reply::Entry(entry)) = ask(fs, ONE, request) else { panic!("it is made") };
    assert_eq!(entry.attr.mtime, Time::new(5000, 999_999_999));
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.chmod("dir", 0o777);
        fs.file("dir/old", b"bytes");
    };
    for node in [NewNode::Regular, NewNode::Directory, NewNode::Symlink(b"to".as_slice().into())] {
        under_faults(before, |fs| create(fs, &user(5), "dir/new", node.clone()).map(Reply::Attr));
    }
    under_faults(before, |fs| {
        let (dir, name) = fs.place("dir/old")?;
        let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
        let request = Request::Create {
            dir,
            name,
            node,
            perm: 0o644,
            umask: 0,
            open,
            exclusive: false,
            writeback: None,
        };
        fs.ask_as(&ROOT_CALLER, request)
    });
}
