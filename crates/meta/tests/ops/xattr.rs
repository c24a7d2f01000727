use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, STRIP, everywhere, open_how, under_faults, user};

const ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

fn set(
    fs: &mut Harness,
    caller: &Caller,
    (path, name, value): (&str, &str, &[u8]),
    mode: XattrMode,
) -> Result<Reply, Errno> {
    let (ino, name, value) = (fs.walk(path)?, name.as_bytes().into(), value.into());
    fs.ask_as(caller, Request::SetXattr { ino, name, value, mode, kill_sgid: false })
}

fn get(fs: &mut Harness, caller: &Caller, path: &str, name: &str) -> Result<Vec<u8>, Errno> {
    let ino = fs.walk(path)?;
    match fs.ask_as(caller, Request::GetXattr { ino, name: name.as_bytes().into() })? {
        Reply::Bytes(bytes) => Ok(bytes.into()),
        other => panic!("{other:?}"),
    }
}

fn list(fs: &mut Harness, caller: &Caller, path: &str) -> String {
    let ino = fs.walk(path).unwrap();
    match fs.ask_as(caller, Request::ListXattr { ino }).unwrap() {
        Reply::Bytes(bytes) => String::from_utf8(bytes.into()).unwrap().replace('\0', " "),
        other => panic!("{other:?}"),
    }
}

fn remove(fs: &mut Harness, caller: &Caller, path: &str, name: &str) -> Result<Reply, Errno> {
    let ino = fs.walk(path)?;
    fs.ask_as(caller, Request::RemoveXattr { ino, name: name.as_bytes().into() })
}

/// An ACL in the kernel's encoding: the owner and, within `mask`, user 7 may read and write; others
/// may nothing.
fn acl(mask: u16) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 6, none), entry(2, 6, 7), entry(4, 0, none), entry(16, mask, none), entry(32, 0, none)];
    [&2u32.to_le_bytes()[..], &entries.concat()].concat()
}

#[test]
fn values_come_back_until_they_are_removed() {
    everywhere(|fs| {
        fs.file("file", b"");
        let before = fs.attr("file");
        set(fs, &ROOT_CALLER, ("file", "user.b", b"two"), XattrMode::Any).unwrap();
        set(fs, &ROOT_CALLER, ("file", "user.a", &[0, 255]), XattrMode::Any).unwrap();
        let after = fs.attr("file");
        assert!(after.ctime > before.ctime && after.mtime == before.mtime);
        assert_eq!(get(fs, &ROOT_CALLER, "file", "user.a"), Ok(vec![0, 255]));
        assert_eq!(list(fs, &ROOT_CALLER, "file"), "user.a user.b ");
        remove(fs, &ROOT_CALLER, "file", "user.a").unwrap();
        assert_eq!(get(fs, &ROOT_CALLER, "file", "user.a"), Err(Errno::ENODATA));
        assert_eq!(remove(fs, &ROOT_CALLER, "file", "user.a"), Err(Errno::ENODATA));
        assert_eq!(list(fs, &ROOT_CALLER, "file"), "user.b ");
    });
}

#[test]
fn one_may_insist_on_making_or_replacing() {
    everywhere(|fs| {
        fs.file("file", b"");
        let one = ("file", "user.a", &b"x"[..]);
        assert_eq!(set(fs, &ROOT_CALLER, one, XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(set(fs, &ROOT_CALLER, one, XattrMode::Create), Ok(Reply::Done));
        assert_eq!(set(fs, &ROOT_CALLER, one, XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(set(fs, &ROOT_CALLER, one, XattrMode::Replace), Ok(Reply::Done));
    });
}

#[test]
fn each_namespace_has_its_rules() {
    everywhere(|fs| {
        fs.file("file", b"");
        fs.chmod("file", 0o700);
        fs.make("fifo", NewNode::Fifo);
        let any = XattrMode::Any;
        assert_eq!(set(fs, &user(5), ("file", "user.a", b""), any), Err(Errno::EACCES));
        assert_eq!(get(fs, &user(5), "file", "user.a"), Err(Errno::EACCES));
        assert_eq!(set(fs, &ROOT_CALLER, ("fifo", "user.a", b""), any), Err(Errno::EPERM));
        assert_eq!(get(fs, &ROOT_CALLER, "fifo", "user.a"), Err(Errno::ENODATA));
        set(fs, &ROOT_CALLER, ("file", "trusted.a", b"x"), any).unwrap();
        assert_eq!(get(fs, &user(5), "file", "trusted.a"), Err(Errno::ENODATA));
        assert_eq!(set(fs, &user(5), ("file", "trusted.a", b""), any), Err(Errno::EPERM));
        assert_eq!(list(fs, &user(5), "file"), "");
        assert_eq!(set(fs, &user(5), ("file", "security.a", b""), any), Err(Errno::EPERM));
        assert_eq!(set(fs, &ROOT_CALLER, ("file", "other.a", b""), any), Err(Errno::EOPNOTSUPP));
        assert_eq!(set(fs, &ROOT_CALLER, ("file", "user.", b""), any), Err(Errno::EINVAL));
    });
}

#[test]
fn there_is_a_limit() {
    let fs = &mut Harness::new();
    fs.file("file", b"");
    let value = [7; 65536];
    for name in ["user.1", "user.2", "user.3"] {
        set(fs, &ROOT_CALLER, ("file", name, &value), XattrMode::Any).unwrap();
    }
    assert_eq!(set(fs, &ROOT_CALLER, ("file", "user.4", &value), XattrMode::Any), Err(Errno::ENOSPC));
    set(fs, &ROOT_CALLER, ("file", "user.3", &value), XattrMode::Any).unwrap();
    assert_eq!(fs.fsck(), []);
}

#[test]
fn an_access_control_list_is_the_mode_and_more() {
    everywhere(|fs| {
        fs.file("file", b"");
        let any = XattrMode::Any;
        assert_eq!(get(fs, &ROOT_CALLER, "file", ACL), Err(Errno::ENODATA));
        assert_eq!(set(fs, &user(5), ("file", ACL, &acl(6)), any), Err(Errno::EPERM));
        assert_eq!(set(fs, &ROOT_CALLER, ("file", ACL, b"nonsense"), any), Err(Errno::EINVAL));
        set(fs, &ROOT_CALLER, ("file", ACL, &acl(6)), any).unwrap();
        assert_eq!(get(fs, &ROOT_CALLER, "file", ACL), Ok(acl(6)));
        assert_eq!(fs.attr("file").perm, 0o660, "the group's class shows the mask");
        let ino = fs.walk("file").unwrap();
        let access = |uid| (user(uid), Request::Access { ino, want: Access::WRITE });
        let ((seven, asks), (eight, asks_too)) = (access(7), access(8));
        assert_eq!(fs.ask_as(&seven, asks), Ok(Reply::Done));
        assert_eq!(fs.ask_as(&eight, asks_too), Err(Errno::EACCES));
        remove(fs, &ROOT_CALLER, "file", ACL).unwrap();
        assert_eq!(list(fs, &ROOT_CALLER, "file"), "");
    });
}

#[test]
fn a_default_list_is_inherited() {
    everywhere(|fs| {
        fs.mkdir("dir");
        fs.file("file", b"");
        let any = XattrMode::Any;
        assert_eq!(set(fs, &ROOT_CALLER, ("file", DEFAULT_ACL, &acl(6)), any), Err(Errno::EACCES));
        set(fs, &ROOT_CALLER, ("dir", DEFAULT_ACL, &acl(6)), any).unwrap();
        // It is made with mode 0755, so the group class may read.
        fs.file("dir/file", b"");
        assert_eq!(get(fs, &ROOT_CALLER, "dir/file", ACL), Ok(acl(4)));
        fs.mkdir("dir/sub");
        assert_eq!(get(fs, &ROOT_CALLER, "dir/sub", DEFAULT_ACL), Ok(acl(6)));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
        set(fs, &ROOT_CALLER, ("dir/file", "user.old", b"old"), XattrMode::Any).unwrap();
    };
    for (path, name, value) in
        [("dir/file", "user.new", b"new".to_vec()), ("dir/file", ACL, acl(6)), ("dir", DEFAULT_ACL, acl(6))]
    {
        under_faults(before, |fs| set(fs, &ROOT_CALLER, (path, name, &value), XattrMode::Any));
    }
    under_faults(before, |fs| remove(fs, &ROOT_CALLER, "dir/file", "user.old"));
    under_faults(before, |fs| {
        get(fs, &ROOT_CALLER, "dir/file", "user.old").map(|value| Reply::Bytes(value.into()))
    });
}

#[test]
fn write_drops_file_capability() {
    const NAME: &str = "security.capability";
    everywhere(|fs| {
        let (small, big) = (fs.file("small", b"program"), fs.file("big", b"program"));
        assert_eq!(fs.write(big, STRIP, b"more"), Ok(Reply::Streamed));
        for path in ["small", "big"] {
            set(fs, &ROOT_CALLER, (path, NAME, b"all"), XattrMode::Any).unwrap();
            set(fs, &ROOT_CALLER, (path, "user.a", b"1"), XattrMode::Any).unwrap();
        }
        fs.write(small, 0, b"").unwrap();
        assert_eq!(get(fs, &ROOT_CALLER, "small", NAME), Ok(b"all".to_vec()), "nothing was written");
        fs.write(small, 0, b"X").unwrap();
        fs.ask(Request::Extend {
            ino: big,
            offset: 0,
            length: 1,
            from: None,
            discards: false,
            acknowledged: false,
        })
        .unwrap();
        for path in ["small", "big"] {
            assert_eq!(list(fs, &ROOT_CALLER, path), "user.a ");
        }
        let (mode, empty) = (AllocateMode::KEEP_SIZE, SetAttr::default());
        for request in [
            Request::Allocate { ino: small, offset: 0, length: 1, mode },
            Request::SetAttr { ino: small, set: SetAttr { size: Some(1), ..empty } },
            Request::SetAttr { ino: big, set: SetAttr { size: Some(1), ..empty } },
            Request::SetAttr { ino: small, set: SetAttr { uid: Some(0), ..empty } },
            Request::RemovePrivileges { ino: small },
            Request::Open { ino: small, how: open_how(Access::WRITE, true) },
            Request::Open { ino: big, how: open_how(Access::WRITE, true) },
        ] {
            for path in ["small", "big"] {
                set(fs, &ROOT_CALLER, (path, NAME, b"all"), XattrMode::Any).unwrap();
            }
            fs.ask(request.clone()).unwrap();
            let left = ["small", "big"].map(|path| get(fs, &ROOT_CALLER, path, NAME).is_err());
            assert_ne!(left[0], left[1], "{request:?}");
        }
    });
}

/// A kernel sends this for a user who writes, after its own checks.
#[test]
fn write_access_removes_file_capability() {
    const NAME: &str = "security.capability";
    everywhere(|fs| {
        let ino = fs.file("file", b"program");
        fs.chown("file", 5, 5);
        for (perm, uid, is_open, may) in [
            (0o755, 6, false, false),
            (0o757, 6, false, true),
            (0o555, 5, false, true),
            (0o755, 6, true, true),
        ] {
            fs.chmod("file", perm);
            set(fs, &ROOT_CALLER, ("file", NAME, b"all"), XattrMode::Any).unwrap();
            if is_open {
                fs.open("file");
            }
            let expected = if may { Ok(Reply::Done) } else { Err(Errno::EPERM) };
            assert_eq!(remove(fs, &user(uid), "file", NAME), expected, "{perm:o} {uid}");
            if is_open {
                fs.ask(Request::Release { ino }).unwrap();
            }
        }
        assert_eq!(set(fs, &user(5), ("file", NAME, b"all"), XattrMode::Any), Err(Errno::EPERM));
    });
}
