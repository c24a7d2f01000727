use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, STRIP, everywhere, under_faults, user};

fn setattr(fs: &mut Harness, caller: &Caller, path: &str, set: SetAttr) -> Result<Attr, Errno> {
    let ino = fs.walk(path)?;
    match fs.ask_as(caller, Request::SetAttr { ino, set })? {
        Reply::Attr(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

fn perm(perm: u32) -> SetAttr {
    SetAttr { perm: Some(perm), ..SetAttr::default() }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), kill_suid_gid: true, ..SetAttr::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, kill_suid_gid: true, ..SetAttr::default() }
}

fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttr {
    SetAttr { atime, mtime, ..SetAttr::default() }
}

/// A file of user 5.
fn file(fs: &mut Harness) -> Attr {
    fs.file("file", b"bytes");
    fs.chown("file", 5, 5);
    fs.attr("file")
}

#[test]
fn chmod_is_for_the_owner() {
    everywhere(|fs| {
        let before = file(fs);
        assert_eq!(setattr(fs, &user(6), "file", perm(0o600)), Err(Errno::EPERM));
        let after = setattr(fs, &user(5), "file", perm(0o4600)).unwrap();
        assert_eq!((after.perm, after.mtime), (0o4600, before.mtime));
        assert!(after.ctime > before.ctime);
        // The owner cannot set the set-group-id bit of a group that it is not in.
        fs.chown("file", 5, 9);
        assert_eq!(setattr(fs, &user(5), "file", perm(0o2700)).unwrap().perm, 0o700);
        assert_eq!(setattr(fs, &ROOT_CALLER, "file", perm(0o2700)).unwrap().perm, 0o2700);
    });
}

#[test]
fn chown_is_for_the_superuser_and_chgrp_for_members() {
    everywhere(|fs| {
        file(fs);
        assert_eq!(setattr(fs, &user(5), "file", owner(Some(6), None)), Err(Errno::EPERM));
        assert_eq!(setattr(fs, &user(5), "file", owner(None, Some(6))), Err(Errno::EPERM));
        assert_eq!(setattr(fs, &user(6), "file", owner(None, Some(6))), Err(Errno::EPERM));
        fs.chmod("file", 0o6755);
        let given = setattr(fs, &user(5), "file", owner(Some(5), Some(1005))).unwrap();
        assert_eq!((given.uid, given.gid, given.perm), (5, 1005, 0o755));
        assert_eq!(setattr(fs, &ROOT_CALLER, "file", owner(Some(6), Some(7))).unwrap().uid, 6);
    });
}

#[test]
fn truncation_cuts_extends_and_moves_out() {
    everywhere(|fs| {
        let before = file(fs);
        assert_eq!(setattr(fs, &user(6), "file", size(1)), Err(Errno::EACCES));
        let after = setattr(fs, &user(5), "file", size(3)).unwrap();
        assert!(after.size == 3 && after.mtime > before.mtime && after.ctime == after.mtime);
        setattr(fs, &user(5), "file", size(6)).unwrap();
        let ino = fs.walk("file").unwrap();
        assert_eq!(fs.read(ino), b"byt\0\0\0");
        let big = setattr(fs, &user(5), "file", size(STRIP + 1)).unwrap();
        assert!(big.streamed && big.size == STRIP + 1);
        assert_eq!(fs.read(ino)[..6], *b"byt\0\0\0");
        assert_eq!(setattr(fs, &user(5), "file", size(2)).unwrap().size, 2);
        assert_eq!(fs.read(ino), b"by");
        assert_eq!(setattr(fs, &ROOT_CALLER, "", size(0)), Err(Errno::EISDIR));
        fs.make("fifo", NewNode::Fifo);
        assert_eq!(setattr(fs, &ROOT_CALLER, "fifo", size(0)), Err(Errno::EINVAL));
    });
}

#[test]
fn time_that_is_set_on_a_big_file_is_not_its_ctime() {
    everywhere(|fs| {
        file(fs);
        let ino = fs.walk("file").unwrap();
        setattr(fs, &user(5), "file", size(STRIP + 1)).unwrap();
        let set_to = |secs| times(None, Some(SetTime::To(Time::new(secs, 7))));
        let old = setattr(fs, &user(5), "file", set_to(1)).unwrap();
        assert_eq!(old.mtime, Time::new(1, 7));
        let to_come = setattr(fs, &user(5), "file", set_to(1 << 33)).unwrap();
        assert_eq!(to_come.mtime, Time::new(1 << 33, 7));
        assert!(old.ctime < to_come.ctime && to_come.ctime < to_come.mtime, "{old:?} {to_come:?}");
        let now = setattr(fs, &user(5), "file", times(None, Some(SetTime::Now))).unwrap();
        assert_eq!(fs.attr_of(ino), now);
        fs.checkpoint();
        assert_eq!((fs.attr("file").mtime, fs.attr("file").ctime), (now.mtime, now.ctime));
    });
}

#[test]
fn through_a_handle_the_right_was_checked_before() {
    everywhere(|fs| {
        file(fs);
        fs.chmod("file", 0);
        assert_eq!(setattr(fs, &user(5), "file", size(1)), Err(Errno::EACCES));
        let set = SetAttr { through_handle: true, ..size(1) };
        assert_eq!(setattr(fs, &user(5), "file", set).unwrap().size, 1);
    });
}

#[test]
fn times_are_the_owners_and_now_is_for_writers() {
    everywhere(|fs| {
        file(fs);
        fs.chmod("file", 0o602);
        let (now, some) = (Some(SetTime::Now), Some(SetTime::To(Time::new(77, 123_456_789))));
        assert_eq!(setattr(fs, &user(6), "file", times(some, some)), Err(Errno::EPERM));
        assert_eq!(setattr(fs, &user(6), "file", times(now, None)), Err(Errno::EPERM));
        assert!(setattr(fs, &user(6), "file", times(now, now)).is_ok());
        fs.chmod("file", 0o600);
        assert_eq!(setattr(fs, &user(6), "file", times(now, now)), Err(Errno::EACCES));
        let before = fs.attr("file");
        let after = setattr(fs, &user(5), "file", times(None, some)).unwrap();
        assert_eq!((after.atime, after.mtime), (before.atime, Time::new(77, 123_456_789)));
        assert!(after.ctime > before.ctime);
        // Likewise for a big file.
        fs.file("big", &[7; 100]);
        let after = setattr(fs, &ROOT_CALLER, "big", times(some, some)).unwrap();
        assert_eq!((after.atime, after.mtime), (Time::new(77, 123_456_789), Time::new(77, 123_456_789)));
    });
}

/// The request that a kernel sends before a write that it passes through, or for a `chown(2)` that
/// changes nothing.
#[test]
fn write_access_removes_set_id_bits() {
    everywhere(|fs| {
        file(fs);
        let kill = SetAttr { kill_suid_gid: true, ..SetAttr::default() };
        let passed = SetAttr { through_handle: true, ..kill };
        for (perm_, uid, set, left) in [
            (0o4755, 6, kill, 0o4755),
            (0o4757, 6, kill, 0o757),
            (0o4755, 6, passed, 0o755),
            (0o4555, 5, kill, 0o555),
            (0o6755, 0, kill, 0o755),
        ] {
            fs.chmod("file", perm_);
            let caller = if uid == 0 { ROOT_CALLER } else { user(uid) };
            assert_eq!(setattr(fs, &caller, "file", set).unwrap().perm, left, "{perm_:o} {uid}");
        }
    });
}

/// Overlayfs sets the mode of a new file without a name, and then its owner.
#[test]
fn set_id_bits_stay_in_a_copy_that_overlayfs_makes() {
    everywhere(|fs| {
        let made = fs.ask(Request::TmpFile { dir: Ino::ROOT, perm: 0o600, umask: 0 }).unwrap();
        let Reply::Created(entry, _) = made else { panic!("{made:?}") };
        let ino = entry.attr.ino;
        let mut set = |set| {
            let Ok(Reply::Attr(attr)) = fs.ask(Request::SetAttr { ino, set }) else {
                panic!("no attributes")
            };
            attr.perm
        };
        assert_eq!(set(perm(0o4755)), 0o4755);
        assert_eq!(set(owner(Some(5), Some(5))), 0o4755);
        // It belongs to another user, who may have written to it.
        assert_eq!(set(owner(Some(0), Some(0))), 0o755);
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        fs.file("dir/big", &[7; 100]);
        fs.chmod("dir/file", 0o6755);
    };
    let some = Some(SetTime::To(Time::new(77, 0)));
    for (path, set) in [
        ("dir/file", SetAttr { size: Some(3), ..owner(Some(5), Some(6)) }),
        ("dir/file", size(STRIP + 1)),
        ("dir", perm(0o700)),
        ("dir/big", perm(0o600)),
        ("dir/big", times(some, some)),
    ] {
        under_faults(before, |fs| {
            let attr = setattr(fs, &ROOT_CALLER, path, set)?;
            // The store determines the times of a stream.
            Ok(if attr.streamed { Reply::Offset(attr.size) } else { Reply::Attr(attr) })
        });
    }
}

#[test]
fn refused_operation_changes_nothing() {
    for seed in 0..20 {
        let mut fs = Harness::new();
        let big = fs.file("big", &[7; 100]);
        fs.chown("big", 5, 5);
        fs.chmod("big", 0o644);
        fs.shuffle = Some(fastrand::Rng::with_seed(seed));
        let chmod = fs.send(&user(5), Request::SetAttr { ino: big, set: perm(0o600) });
        let chown = fs.send(&ROOT_CALLER, Request::SetAttr { ino: big, set: owner(Some(6), None) });
        while fs.run_one() {}
        assert!(fs.answers[&chown].is_ok());
        let is_done = fs.answers[&chmod].is_ok();
        assert_eq!(fs.attr("big").perm, if is_done { 0o600 } else { 0o644 }, "seed {seed}");
    }
}
