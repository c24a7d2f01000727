//! Access control lists: permissions, modes and inheritance.

use espalier_proto::XattrMode;

use super::*;

const OWNER: CallerCreds = CallerCreds::new(7, 70);
const FRIEND: CallerCreds = CallerCreds::new(8, 80);
const OTHER: CallerCreds = CallerCreds::new(9, 90);
const NOBODY: u32 = u32::MAX;

fn encoded(entries: &[(u16, u16, u32)]) -> Box<[u8]> {
    let entry = |(tag, right, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &right.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2, 0, 0, 0].into_iter().chain(entries.iter().flat_map(entry)).collect()
}

/// Entries for a friend, the owning group, group 90 and the mask; the owner has all permissions,
/// others none.
fn list(friend: u16, group: u16, named: u16, mask: u16) -> Box<[u8]> {
    let [none, id] = [NOBODY, 8];
    encoded(&[
        (1, 7, none),
        (2, friend, id),
        (4, group, none),
        (8, named, 90),
        (16, mask, none),
        (32, 0, none),
    ])
}

fn set(ino: u64, name: &[u8], value: Box<[u8]>) -> Call<'static> {
    let (ino, name, mode) = (Ino(ino), name.into(), XattrMode::Any);
    Call::Request(Request::SetXattr { ino, name, value, mode, kill_sgid: false })
}

fn get(ino: u64, name: &[u8]) -> Call<'static> {
    Call::Request(Request::GetXattr { ino: Ino(ino), name: name.into() })
}

fn replied(value: &[u8]) -> Result<Answer, Errno> {
    Ok(Answer::Bytes(value.to_vec().into()))
}

fn shown(ino: u64, kind: FileType, perm: u32) -> Attr {
    let is_dir = kind == FileType::Directory;
    Attr { perm, uid: 7, gid: 70, ..attr(ino, kind, if is_dir { 2 } else { 1 }, 0) }
}

fn chmod(perm: u32) -> Call<'static> {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    Call::Request(Request::SetAttr { ino: Ino(2), set })
}

/// With a directory of the owner, number 2.
fn owned() -> Run {
    let mut run = Run { creds: OWNER, ..Run::new() };
    assert!(run.did(mkdir(1, "d"), Ok(entry(shown(2, FileType::Directory, 0o755)))));
    run
}

fn with(name: &[u8], value: Box<[u8]>) -> Run {
    let mut run = owned();
    assert!(run.did(set(2, name, value), Ok(Answer::Done)));
    run
}

#[test]
fn named_acl_entry_is_limited_by_mask() {
    let make = || make(2, "f", NewNode::Fifo);
    for (list, creds, may) in [
        (list(7, 0, 0, 7), FRIEND, true),
        (list(7, 0, 0, 5), FRIEND, false),
        (list(5, 7, 7, 7), FRIEND, false),
        (list(0, 0, 7, 7), OTHER, true),
        (list(0, 7, 0, 7), OTHER, false),
        (list(0, 0, 0, 0), OWNER, true),
    ] {
        let made = Attr { uid: creds.uid, gid: creds.gid, ..shown(3, FileType::Fifo, 0o755) };
        for (result, is_right) in [(Ok(entry(made)), may), (Err(Errno::EACCES), !may)] {
            let mut run = Run { creds: creds.clone(), ..with(ACCESS_LIST, list.clone()) };
            assert_eq!(run.did(make(), result), is_right, "{creds:?} {list:?}");
        }
    }
}

#[test]
fn a_mode_has_the_mask_and_sets_it() {
    let mut run = with(ACCESS_LIST, list(7, 5, 0, 3));
    assert!(run.did(getattr(2), Ok(Answer::Attr(shown(2, FileType::Directory, 0o730)))));
    assert!(run.did(chmod(0o761), Ok(Answer::Attr(shown(2, FileType::Directory, 0o761)))));
    let mut changed = list(7, 5, 0, 6);
    let last = changed.len() - 6;
    changed[last] = 1;
    assert!(run.did(get(2, ACCESS_LIST), replied(&changed)));
    assert!(!run.did(get(2, ACCESS_LIST), replied(&list(7, 5, 0, 3))));
    // A list equivalent to a mode is not stored.
    let minimal = encoded(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 4, NOBODY)]);
    let mut run = with(ACCESS_LIST, minimal);
    assert!(run.did(getattr(2), Ok(Answer::Attr(shown(2, FileType::Directory, 0o644)))));
    assert!(run.did(get(2, ACCESS_LIST), Err(Errno::ENODATA)));
}

#[test]
fn new_inode_gets_default_acl_without_umask() {
    let made = |perm| Ok(entry(shown(3, FileType::Directory, perm)));
    let new = |perm| {
        let (dir, name, node) = (Ino(2), name("e"), NewNode::Directory);
        Call::Request(Request::Create {
            dir,
            name,
            node,
            perm,
            umask: 0o077,
            open: None,
            exclusive: true,
            writeback: None,
        })
    };
    let default = list(7, 5, 0, 7);
    let mut run = with(DEFAULT_LIST, default.clone());
    assert!(run.did(new(0o755), made(0o750)));
    assert!(run.did(get(3, DEFAULT_LIST), replied(&default)));
    assert!(run.did(get(3, ACCESS_LIST), replied(&list(7, 5, 0, 5))));
    assert!(!with(DEFAULT_LIST, default).did(new(0o755), made(0o700)));
    assert!(owned().did(new(0o755), made(0o700)));
}

#[test]
fn invalid_or_foreign_acl_is_refused() {
    let none: Box<[u8]> = encoded(&[(1, 7, NOBODY), (2, 7, 8), (4, 5, NOBODY), (32, 0, NOBODY)]);
    for (creds, value, errno) in [(OWNER, none, Errno::EINVAL), (FRIEND, list(7, 7, 7, 7), Errno::EPERM)] {
        let run = || Run { creds: creds.clone(), ..owned() };
        assert!(run().did(set(2, ACCESS_LIST, value.clone()), Err(errno)));
        assert!(!run().did(set(2, ACCESS_LIST, value.clone()), Ok(Answer::Done)));
    }
    let removal = || Call::Request(Request::RemoveXattr { ino: Ino(2), name: ACCESS_LIST.into() });
    assert!(owned().did(removal(), Err(Errno::ENODATA)));
    assert!(owned().did(set(2, ACCESS_LIST, encoded(&[])), Ok(Answer::Done)));
}
