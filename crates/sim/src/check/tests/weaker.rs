//! Weaker guarantees: files on data servers, data after losses of power, and caching for a fixed
//! term.

use espalier_policy::Key;

use super::*;

/// With a file of 20 bytes in three strips on data servers.
fn scattered() -> Run {
    let mut run = Run { checker: Checker::new(Rules { scattered: true, ..RULES }), ..Run::new() };
    assert!(run.did(create("f"), Ok(file(2))) && run.did(write(0, &[1; 20]), Ok(Answer::Written(20))));
    run
}

#[test]
fn size_and_bytes_may_be_read_at_different_instants() {
    let replied = |replied: &[u8]| {
        let mut run = scattered();
        let reading = run.asks(read(0, 30));
        assert!(run.did(truncate(4), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 4)))));
        run.ends(reading, Ok(bytes(replied)))
    };
    // The first strip is read after the truncation, the others before.
    assert!(replied(&[1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]));
    assert!(replied(&[1, 1, 1, 1]));
    assert!(replied(&[1; 20]));
    assert!(!replied(&[1, 1, 0, 1]));
    // Without concurrency, results are exact.
    assert!(!scattered().did(read(0, 30), Ok(bytes(&[1; 19]))));
    assert!(scattered().did(read(0, 30), Ok(bytes(&[1; 20]))));
}

#[test]
fn write_concurrent_with_append_may_be_overwritten() {
    let append = || write(END, &[2; 4]);
    let mut run = scattered();
    assert!(run.did(append(), Ok(Answer::Written(4))));
    assert!(!run.did(read(16, 8), Ok(bytes(&[1; 4]))));
    let mut run = scattered();
    let appending = run.asks(append());
    assert!(run.did(write(22, &[3; 4]), Ok(Answer::Written(4))));
    assert!(run.ends(appending, Ok(Answer::Written(4))));
    assert!(run.did(read(20, 8), Ok(bytes(&[2, 2, 2, 2, 3, 3]))));
    // Two concurrent appends do not overwrite each other.
    let mut run = scattered();
    let appending = run.asks(append());
    assert!(run.did(append(), Ok(Answer::Written(4))) && run.ends(appending, Ok(Answer::Written(4))));
    assert!(!run.did(read(20, 8), Ok(bytes(&[2; 4]))));
}

/// Opens the file by name and truncates it.
fn empty() -> Call<'static> {
    let how = OpenHow { access: Access::WRITE, truncate: true, ..OpenHow::default() };
    let (dir, node, perm, umask) = (Ino::ROOT, NewNode::Regular, 0o755, 0);
    let (name, open, exclusive) = (name("f"), Some(how), false);
    Call::Request(Request::Create { dir, name, node, perm, umask, open, exclusive, writeback: None })
}

fn emptied() -> Answer {
    let Answer::Entry(entry) = file(2) else { unreachable!() };
    Answer::Created(
        entry,
        Opening { ino: Ino(2), accessed: true, shared: false, keep_cache: true, passthrough: false },
    )
}

#[test]
fn truncating_open_may_empty_strip_by_strip() {
    let mut run = scattered();
    let (opening, reading) = (run.asks(empty()), run.asks(read(0, 30)));
    assert!(run.ends(opening, Ok(emptied())));
    assert!(run.ends(reading, Ok(bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 1]))));
    assert!(!run.did(read(0, 30), Ok(bytes(&[0]))));
}

#[test]
fn durable_bytes_are_not_lost() {
    let fsync = || Call::Request(Request::Fsync { ino: Ino(2) });
    let lose = |before: &dyn Fn(&mut Run)| {
        let mut run = scattered();
        before(&mut run);
        run.checker.data_lost_power();
        run
    };
    let is_lost = |mut run: Run| run.did(read(0, 30), Ok(bytes(b"x")));
    assert!(is_lost(lose(&|_| {})));
    assert!(!is_lost(lose(&|run| assert!(run.did(fsync(), Ok(Answer::Done))))));
    assert!(is_lost(lose(&|run| {
        assert!(run.did(fsync(), Ok(Answer::Done)));
        run.asks(write(0, b"y"));
    })));
    assert!(is_lost(lose(&|run| {
        assert!(run.did(fsync(), Ok(Answer::Done)) && run.did(empty(), Ok(emptied())));
    })));
    assert!(is_lost(lose(&|run| {
        assert!(run.did(fsync(), Ok(Answer::Done)));
        run.asks(empty());
    })));
    assert!(is_lost(lose(&|run| {
        let syncing = run.asks(fsync());
        assert!(run.did(write(0, b"y"), Ok(Answer::Written(1))) && run.ends(syncing, Ok(Answer::Done)));
    })));
}

#[test]
fn small_files_lose_bytes_only_if_they_are_not_stuffed() {
    for unstuffed in [false, true] {
        let mut server = Policy::NONE;
        server.set(Key::Stuffing, if unstuffed { "false" } else { "true" }).unwrap();
        let rules = Rules { scattered: true, server, ..RULES };
        let mut run = Run { checker: Checker::new(rules), ..Run::new() };
        assert!(run.did(create("f"), Ok(file(2))) && run.did(write(0, &[1; 2]), Ok(Answer::Written(2))));
        run.checker.data_lost_power();
        assert_eq!(run.did(read(0, 30), Ok(bytes(&[]))), unstuffed);
    }
}

#[test]
fn recent_reply_may_be_served_from_cache() {
    let term = Nanos::from_millis(10);
    let run_again = || {
        let checker = Checker::new(Rules { cached_views: Some(term), ..RULES });
        let mut run = Run { checker, ..Run::with_file() };
        assert!(run.did(create("f"), Ok(file(2))));
        run.calls = 6;
        assert!(run.did(lookup("f"), Ok(file(2))));
        run.calls = 99;
        assert!(run.did(unlink("f"), Ok(Answer::Done)));
        run
    };
    // A reply from the cache.
    let replied = |run: &mut Run, client: u64, call: Call<'_>, answer: Answer| {
        let (now, client) = (run.tick(), ClientId(client));
        run.checker.invoked(now, client, 0, ROOT, &call);
        run.checker.answered(now, client, 0, &Ok(answer)).is_ok()
    };
    let attrs = || Answer::Attr(attr(2, FileType::Regular, 1, 0));
    assert!(
        replied(&mut run_again(), 7, lookup("f"), file(2))
            && replied(&mut run_again(), 7, getattr(2), attrs())
    );
    assert!(
        !replied(&mut run_again(), 8, lookup("f"), file(2))
            && !replied(&mut run_again(), 7, lookup("f"), file(3))
    );
    let mut late = run_again();
    late.now += 10_000_000;
    assert!(!replied(&mut late, 7, lookup("f"), file(2)) && replied(&mut late, 7, lookup("f"), absent()));
    // An uncached request returns the current state.
    let mut run = run_again();
    run.calls = 6;
    assert!(!run.did(lookup("f"), Ok(file(2))));
}
