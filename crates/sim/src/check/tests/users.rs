//! Permissions of callers other than the superuser.

use super::*;

const OWNER: CallerCreds = CallerCreds::new(7, 70);
const FRIEND: CallerCreds = CallerCreds::new(8, 70);
const OTHER: CallerCreds = CallerCreds::new(9, 90);

fn chmod(ino: u64, perm: u32) -> Call<'static> {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    Call::Request(Request::SetAttr { ino: Ino(ino), set })
}

fn shown(attr: Attr, perm: u32) -> Attr {
    Attr { perm, uid: OWNER.uid, gid: OWNER.gid, ..attr }
}

/// The owner has made directory 2 with this mode, and a file in it.
fn owned(perm: u32) -> Run {
    let mut run = Run { creds: OWNER, ..Run::new() };
    let made = shown(attr(2, FileType::Directory, 2, 0), 0o755);
    assert!(run.did(mkdir(1, "d"), Ok(entry(made))));
    let made = shown(attr(3, FileType::Regular, 1, 0), 0o755);
    assert!(run.did(make(2, "f", NewNode::Regular), Ok(entry(made))));
    let changed = shown(attr(2, FileType::Directory, 2, 1), perm);
    assert!(run.did(chmod(2, perm), Ok(Answer::Attr(changed))));
    run
}

fn remove() -> Call<'static> {
    Call::Request(Request::Unlink { dir: Ino(2), name: name("f"), time: None })
}

#[test]
fn permission_decides_refusal() {
    for (perm, creds, errno) in [
        (0o755, OWNER, None),
        (0o755, FRIEND, Some(Errno::EACCES)),
        (0o755, ROOT, None),
        (0o775, FRIEND, None),
        (0o775, OTHER, Some(Errno::EACCES)),
        (0o777, OTHER, None),
        (0o1777, OTHER, Some(Errno::EPERM)),
        (0o1777, OWNER, None),
        (0o555, OWNER, Some(Errno::EACCES)),
        (0o555, ROOT, None),
    ] {
        for replied in [None, Some(Errno::EACCES), Some(Errno::EPERM)] {
            let mut run = Run { creds: creds.clone(), ..owned(perm) };
            let result = replied.map_or(Ok(Answer::Done), Err);
            let is_right = replied == errno || (replied.is_some() && errno.is_some());
            assert_eq!(run.did(remove(), result), is_right, "{perm:o} {creds:?} {replied:?}");
        }
    }
}

#[test]
fn refused_call_has_no_effect() {
    let mut run = Run { creds: OTHER, ..owned(0o755) };
    assert!(run.did(remove(), Err(Errno::EACCES)));
    run.creds = OWNER;
    assert!(run.did(remove(), Ok(Answer::Done)));
}

#[test]
fn modes_are_for_their_owner_to_change() {
    let mut run = Run { creds: OTHER, ..owned(0o755) };
    assert!(run.did(chmod(2, 0o777), Err(Errno::EPERM)) && !run.did(chmod(2, 0o777), Err(Errno::ENOENT)));
    // Both results are possible during the change.
    for result in [Ok(Answer::Done), Err(Errno::EACCES)] {
        let mut run = owned(0o755);
        let changing = run.asks(chmod(2, 0o777));
        run.creds = OTHER;
        let removing = run.asks(remove());
        assert!(run.ends(removing, result));
        // A caller with permission had it before.
        assert!(run.ends(changing, Ok(Answer::Attr(shown(attr(2, FileType::Directory, 2, 1), 0o777)))));
    }
}

#[test]
fn cached_names_are_shown_to_all_callers() {
    let look = || Call::Request(Request::Lookup { dir: Ino(2), name: name("f") });
    let there = || Ok(entry(shown(attr(3, FileType::Regular, 1, 0), 0o755)));
    assert!(Run { creds: OTHER, ..owned(0o700) }.did(look(), there()));
    assert!(Run { creds: OTHER, ..owned(0o700) }.did(look(), Err(Errno::EACCES)));
    assert!(!Run { creds: OTHER, ..owned(0o700) }.did(look(), Ok(absent())));
    assert!(!Run { creds: OTHER, ..owned(0o755) }.did(look(), Err(Errno::EACCES)));
}
