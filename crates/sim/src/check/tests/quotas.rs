//! Quotas: none is exceeded, and no refusal is unjustified.

use espalier_proto::XattrMode;

use super::*;

const FILES: &[u8] = b"user.espalier.quota.max_files";
const BYTES: &[u8] = b"user.espalier.quota.max_bytes";

fn limit(name: &[u8], value: &str) -> Call<'static> {
    let (ino, name, value) = (Ino(2), name.into(), value.as_bytes().into());
    Call::Request(Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false })
}

fn get_limit(name: &[u8]) -> Call<'static> {
    Call::Request(Request::GetXattr { ino: Ino(2), name: name.into() })
}

fn remove(text: &str) -> Call<'static> {
    Call::Request(Request::Unlink { dir: Ino(2), name: name(text), time: None })
}

fn new(text: &str) -> Call<'static> {
    make(2, text, NewNode::Regular)
}

fn put(ino: u64, data: &'static [u8]) -> Call<'static> {
    Call::write(Ino(ino), 0, data.into(), false)
}

/// Directory 2 with this quota and two files, 3 and 4, the first of two bytes.
fn limited(name: &[u8], value: &str) -> Run {
    let mut run = Run::new();
    assert!(run.did(mkdir(1, "d"), Ok(dir(2))));
    assert!(run.did(new("a"), Ok(file(3))));
    assert!(run.did(new("b"), Ok(file(4))));
    assert!(run.did(put(3, b"ab"), Ok(Answer::Written(2))));
    assert!(run.did(limit(name, value), Ok(Answer::Done)));
    run
}

#[test]
fn unlimited_directory_refuses_nothing() {
    assert!(!Run::with_file().did(create("g"), Err(Errno::EDQUOT)));
    assert!(!limited(FILES, "0").did(new("c"), Err(Errno::EDQUOT)));
}

#[test]
fn only_changes_over_quota_are_refused() {
    for (max, call, fits) in
        [("2", new("c"), false), ("3", new("c"), true), ("1", new("c"), false), ("1", create("c"), true)]
    {
        assert_eq!(limited(FILES, max).did(call.clone(), Ok(file(5))), fits, "{max} {call:?}");
        assert_eq!(limited(FILES, max).did(call.clone(), Err(Errno::EDQUOT)), !fits, "{max} {call:?}");
    }
    for (max, data, fits) in [("4", &b"cd"[..], true), ("3", b"cd", false), ("2", b"", true)] {
        let done = || Ok(Answer::Written(data.len() as u32));
        assert_eq!(limited(BYTES, max).did(put(4, data), done()), fits, "{max} {data:?}");
        assert_eq!(limited(BYTES, max).did(put(4, data), Err(Errno::EDQUOT)), !fits, "{max} {data:?}");
    }
    // A reduction is allowed even above the limit.
    assert!(limited(FILES, "1").did(remove("a"), Ok(Answer::Done)));
    assert!(!limited(FILES, "1").did(remove("a"), Err(Errno::EDQUOT)));
    assert!(limited(BYTES, "1").did(put(3, b"cd"), Ok(Answer::Written(2))));
}

#[test]
fn move_is_checked_against_quota() {
    let moves = |flags| rename((1, "e"), (2, "c"), flags);
    for (max, fits) in [("3", false), ("4", true)] {
        for result in [Ok(Answer::Done), Err(Errno::EDQUOT)] {
            let mut run = limited(FILES, max);
            assert!(run.did(mkdir(1, "e"), Ok(dir(5))));
            assert!(run.did(make(5, "f", NewNode::Regular), Ok(file(6))));
            let is_right = fits == result.is_ok();
            assert_eq!(run.did(moves(RenameFlags::empty()), result), is_right, "{max}");
        }
    }
    // A replacement needs no room.
    let mut run = limited(FILES, "2");
    assert!(run.did(create("e"), Ok(file(5))));
    assert!(run.did(rename((1, "e"), (2, "a"), RenameFlags::empty()), Ok(Answer::Done)));
}

#[test]
fn refused_change_leaves_no_trace() {
    let mut run = limited(FILES, "2");
    assert!(run.did(new("c"), Err(Errno::EDQUOT)));
    assert!(!run.did(Call::Request(Request::Lookup { dir: Ino(2), name: name("c") }), Ok(file(5))));
}

#[test]
fn either_of_two_concurrent_creates_may_exceed_quota() {
    for (first, second, is_right) in [
        (Ok(file(5)), Err(Errno::EDQUOT), true),
        (Err(Errno::EDQUOT), Ok(file(5)), true),
        (Ok(file(5)), Ok(file(6)), false),
    ] {
        let mut run = limited(FILES, "3");
        let (a, b) = (run.asks(new("c")), run.asks(new("e")));
        assert!(run.ends(a, first));
        assert_eq!(run.ends(b, second), is_right);
    }
    // A concurrent removal may make room.
    for result in [Ok(file(5)), Err(Errno::EDQUOT)] {
        let mut run = limited(FILES, "2");
        let (a, b) = (run.asks(remove("a")), run.asks(new("c")));
        assert!(run.ends(a, Ok(Answer::Done)));
        assert!(run.ends(b, result));
    }
}

#[test]
fn refused_target_may_be_unlinked_later() {
    let taken = |call: Call<'static>| {
        let mut run = limited(BYTES, "2");
        let (a, b) = (run.asks(put(4, b"cd")), run.asks(call));
        assert!(run.ends(b, Ok(Answer::Done)));
        run.ends(a, Err(Errno::EDQUOT))
    };
    assert!(taken(remove("b")));
    let (from, to, flags) = (name("a"), name("b"), RenameFlags::empty());
    assert!(taken(Call::Request(Request::Rename {
        from_dir: Ino(2),
        from,
        to_dir: Ino(2),
        to,
        flags,
        time: None
    })));
}

#[test]
fn quota_reads_back_as_set() {
    let mut run = limited(FILES, "2");
    assert!(run.did(get_limit(FILES), Ok(bytes(b"2"))));
    assert!(run.did(get_limit(BYTES), Err(Errno::ENODATA)));
    assert!(!limited(FILES, "2").did(get_limit(FILES), Ok(bytes(b"3"))));
    let mut run = Run { creds: CallerCreds::new(7, 7), ..limited(FILES, "2") };
    assert!(run.did(limit(FILES, "9"), Err(Errno::EPERM)));
}

#[test]
fn several_ranks_know_of_quotas_late() {
    let late = |rests: &[u64], result: Result<Answer, Errno>| {
        let mut run = Run::new();
        run.checker = Checker::new(Rules { several_ranks: true, ..RULES });
        assert!(run.did(mkdir(1, "d"), Ok(dir(2))));
        assert!(run.did(limit(FILES, "1"), Ok(Answer::Done)));
        for (at, rest) in rests.iter().enumerate() {
            run.now += rest * 1_000_000_000;
            assert!(run.did(new(&format!("{at}")), Ok(file(3 + at as u64))));
        }
        run.now += 30_000_000_000;
        run.did(new("last"), result)
    };
    assert!(late(&[1, 1], Ok(file(9))));
    assert!(!late(&[30], Ok(file(9))));
    assert!(late(&[30], Err(Errno::EDQUOT)));
}
