//! Set-id bits and capabilities.

use espalier_proto::XattrMode;

use super::*;

const USER: CallerCreds = CallerCreds::new(1001, 100);
const PERM: u32 = 0o4777;

/// With a set-user-ID file that everybody may write to.
fn run() -> Run {
    let mut run = Run { checker: Checker::new(Rules { privileges: true, ..RULES }), ..Run::new() };
    assert!(run.did(create("f"), Ok(file(2))));
    let set = SetAttr { perm: Some(PERM), ..SetAttr::default() };
    assert!(run.did(Call::Request(Request::SetAttr { ino: Ino(2), set }), Ok(is(PERM, 0))));
    run
}

fn is(perm: u32, size: u64) -> Answer {
    Answer::Attr(Attr { perm, ..attr(2, FileType::Regular, 1, size) })
}

fn set_capability() -> Call<'static> {
    let (name, value) = (CAPABILITY.into(), b"cap"[..].into());
    Call::Request(Request::SetXattr { ino: Ino(2), name, value, mode: XattrMode::Any, kill_sgid: false })
}

fn capability() -> Call<'static> {
    Call::Request(Request::GetXattr { ino: Ino(2), name: CAPABILITY.into() })
}

/// Sets a capability during a write that is known to have removed the set-user-ID bit.
fn set_during_write(kills: bool) -> Run {
    let mut run = run();
    run.creds = USER;
    let writing = run.asks(Call::write(Ino(2), 0, b"a"[..].into(), kills));
    run.creds = ROOT;
    assert!(run.did(getattr(2), Ok(is(0o777, 0))));
    assert!(run.did(set_capability(), Ok(Answer::Done)));
    assert!(run.ends(writing, Ok(Answer::Written(1))));
    run
}

#[test]
fn second_step_of_a_write_removes_a_capability_again() {
    assert!(set_during_write(true).did(capability(), Err(Errno::ENODATA)));
    // A write in one step has removed both.
    assert!(!set_during_write(false).did(capability(), Err(Errno::ENODATA)));
}

#[test]
fn refused_truncation_may_remove_the_capability_only() {
    let truncated = |result: Result<Answer, Errno>, perm| {
        let mut run = run();
        assert!(run.did(set_capability(), Ok(Answer::Done)));
        run.creds = USER;
        let set = SetAttr { size: Some(1), kill_suid_gid: true, ..SetAttr::default() };
        let size = u64::from(result.is_ok());
        assert!(run.did(Call::Request(Request::SetAttr { ino: Ino(2), set }), result));
        run.did(getattr(2), Ok(is(perm, size))) && run.did(capability(), Err(Errno::ENODATA))
    };
    assert!(truncated(Err(Errno::ENOSPC), PERM) && truncated(Err(Errno::ENOSPC), 0o777));
    assert!(truncated(Ok(is(0o777, 1)), 0o777) && !truncated(Ok(is(PERM, 1)), PERM));
}

#[test]
fn a_capability_that_is_set_after_a_write_remains() {
    let mut run = set_during_write(true);
    assert!(run.did(set_capability(), Ok(Answer::Done)));
    assert!(!run.did(capability(), Err(Errno::ENODATA)));
    let mut run = set_during_write(true);
    assert!(run.did(set_capability(), Ok(Answer::Done)));
    assert!(run.did(capability(), Ok(bytes(b"cap"))));
}
