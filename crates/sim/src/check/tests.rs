#![allow(clippy::unwrap_used)]

use espalier_client::{Answer, Call, Opening};
use espalier_proto::{
    Access, Attr, Dirent, END, Entry, Errno, FileType, Location, Name, NewNode, OpenHow, RenameFlags,
    Request, SetAttr, Time,
};

use super::*;

mod acl;
mod locks;
mod no_metafile;
mod policy;
mod privileges;
mod quotas;
mod users;
mod weaker;

const STRIP: u32 = 8;
const RULES: Rules = Rules {
    strip_bytes: STRIP,
    several_ranks: false,
    splits: false,
    scattered: false,
    server: Policy::NONE,
    live: false,
    privileges: false,
    durable: None,
    cached_views: None,
};

/// A checker whose clock advances with each event.
struct Run {
    checker: Checker,
    now: u64,
    calls: u64,
    creds: CallerCreds,
}

const ROOT: CallerCreds = CallerCreds::new(0, 0);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn attr(ino: u64, kind: FileType, nlink: u32, size: u64) -> Attr {
    Attr { nlink, size, ..Attr::new(Ino(ino), kind, 0o755, Time::default()) }
}

fn entry(attr: Attr) -> Answer {
    let (cacheable, name_leased, attr_leased, location, reclaim_token) =
        (true, false, false, Location::Table, 0);
    Answer::Entry(Entry {
        attr,
        cacheable,
        name_leased,
        attr_leased,
        sole_holder: false,
        location,
        reclaim_token,
    })
}

fn file(ino: u64) -> Answer {
    entry(attr(ino, FileType::Regular, 1, 0))
}

fn dir(ino: u64) -> Answer {
    entry(attr(ino, FileType::Directory, 2, 0))
}

fn listing(entries: &[(&str, u64)]) -> Answer {
    let dirent = |(text, ino): &(&str, u64)| {
        let (kind, cursor, entry) = (FileType::Regular, 3, None);
        Dirent { name: name(text), ino: Ino(*ino), kind, cursor, entry, remote: None }
    };
    Answer::Listing { entries: entries.iter().map(dirent).collect(), parent: Ino::ROOT, end: true }
}

fn make(dir: u64, text: &str, node: NewNode) -> Call<'static> {
    let (perm, umask, open, exclusive) = (0o755, 0, None, true);
    Call::Request(Request::Create {
        dir: Ino(dir),
        name: name(text),
        node,
        perm,
        umask,
        open,
        exclusive,
        writeback: None,
    })
}

fn create(text: &str) -> Call<'static> {
    make(1, text, NewNode::Regular)
}

fn mkdir(dir: u64, text: &str) -> Call<'static> {
    make(dir, text, NewNode::Directory)
}

fn lookup(text: &str) -> Call<'static> {
    Call::Request(Request::Lookup { dir: Ino::ROOT, name: name(text) })
}

fn unlink(text: &str) -> Call<'static> {
    Call::Request(Request::Unlink { dir: Ino::ROOT, name: name(text), time: None })
}

fn rename(from: (u64, &str), to: (u64, &str), flags: RenameFlags) -> Call<'static> {
    let (from_dir, from, to_dir, to) = (Ino(from.0), name(from.1), Ino(to.0), name(to.1));
    Call::Request(Request::Rename { from_dir, from, to_dir, to, flags, time: None })
}

fn getattr(ino: u64) -> Call<'static> {
    Call::Request(Request::GetAttr { ino: Ino(ino) })
}

fn list() -> Call<'static> {
    Call::Request(Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 100, plus: false })
}

fn write(offset: u64, data: &'static [u8]) -> Call<'static> {
    Call::write(Ino(2), offset, data.into(), false)
}

fn read(offset: u64, size: u32) -> Call<'static> {
    Call::read(Ino(2), offset, size, true)
}

fn truncate(size: u64) -> Call<'static> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    Call::Request(Request::SetAttr { ino: Ino(2), set })
}

fn bytes(bytes: &[u8]) -> Answer {
    Answer::Bytes(bytes.to_vec().into())
}

fn absent() -> Answer {
    Answer::Absent { cacheable: true }
}

impl Run {
    fn new() -> Self {
        Self { checker: Checker::new(RULES), now: 0, calls: 0, creds: ROOT }
    }

    /// With file "f", number 2.
    fn with_file() -> Self {
        let mut run = Self::new();
        assert!(run.did(create("f"), Ok(file(2))));
        run
    }

    fn tick(&mut self) -> Nanos {
        self.now += 1_000_000;
        Nanos(self.now)
    }

    fn asks(&mut self, call: Call<'_>) -> u64 {
        let now = self.tick();
        self.calls += 1;
        self.checker.invoked(now, ClientId(self.calls), 0, self.creds.clone(), &call);
        self.calls
    }

    fn ends(&mut self, call: u64, result: Result<Answer, Errno>) -> bool {
        let now = self.tick();
        let was_right = self.checker.answered(now, ClientId(call), 0, &result).is_ok();
        assert!(!self.checker.has_given_up());
        was_right
    }

    fn did(&mut self, call: Call<'_>, result: Result<Answer, Errno>) -> bool {
        let call = self.asks(call);
        self.ends(call, result)
    }
}

#[test]
fn created_file_exists() {
    let mut run = Run::with_file();
    assert!(run.did(lookup("f"), Ok(file(2))));
    assert!(run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 0)))));
    assert!(run.did(list(), Ok(listing(&[("f", 2)]))));
    assert!(run.did(create("f"), Err(Errno::EEXIST)));
    assert!(run.did(unlink("f"), Ok(Answer::Done)));
    assert!(run.did(lookup("f"), Ok(absent())));
    assert!(run.did(getattr(2), Err(Errno::ESTALE)));
    assert_eq!(run.checker.checked(), 8);
}

#[test]
fn impossible_answers_are_detected() {
    let wrong: Vec<(Call<'_>, Result<Answer, Errno>)> = vec![
        (lookup("f"), Ok(absent())),
        (lookup("f"), Ok(file(3))),
        (lookup("f"), Err(Errno::ESTALE)),
        (lookup("g"), Ok(file(2))),
        (getattr(2), Ok(Answer::Attr(attr(2, FileType::Regular, 2, 0)))),
        (getattr(2), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 1)))),
        (getattr(2), Err(Errno::ESTALE)),
        (list(), Ok(listing(&[]))),
        (list(), Ok(listing(&[("f", 2), ("g", 3)]))),
        (create("f"), Ok(file(3))),
        (create("g"), Ok(file(2))),
        (create("g"), Err(Errno::EEXIST)),
        (unlink("f"), Err(Errno::ENOENT)),
        (unlink("g"), Ok(Answer::Done)),
        (read(0, 10), Ok(bytes(b"x"))),
        (rename((1, "f"), (1, "g"), RenameFlags::empty()), Err(Errno::ENOENT)),
        (rename((1, "f"), (1, "g"), RenameFlags::EXCHANGE), Ok(Answer::Done)),
    ];
    for (call, result) in wrong {
        let text = format!("{call:?} {result:?}");
        assert!(!Run::with_file().did(call, result), "{text}");
    }
}

#[test]
fn of_two_at_a_time_either_may_be_first() {
    for (first, second) in [(Ok(file(2)), Err(Errno::EEXIST)), (Err(Errno::EEXIST), Ok(file(2)))] {
        let mut run = Run::new();
        let (a, b) = (run.asks(create("f")), run.asks(create("f")));
        assert!(run.ends(a, first));
        assert!(run.ends(b, second));
    }
    let mut run = Run::new();
    let (a, b) = (run.asks(create("f")), run.asks(create("f")));
    assert!(run.ends(a, Ok(file(2))));
    assert!(!run.ends(b, Ok(file(3))));
}

#[test]
fn reads_never_go_back() {
    let mut run = Run::new();
    let making = run.asks(create("f"));
    assert!(run.did(lookup("f"), Ok(absent())));
    assert!(run.did(lookup("f"), Ok(file(2))));
    assert!(!run.did(lookup("f"), Ok(absent())));
    // The rejected reply left the state unchanged.
    assert!(run.ends(making, Ok(file(2))));
}

#[test]
fn concurrent_lookup_may_see_old_state() {
    let mut run = Run::with_file();
    let late: Vec<u64> = (0..3).map(|_| run.asks(lookup("f"))).collect();
    assert!(run.did(unlink("f"), Ok(Answer::Done)));
    assert!(run.did(create("f"), Ok(file(3))));
    for (call, answer) in late.into_iter().zip([absent(), file(3), file(2)]) {
        assert!(run.ends(call, Ok(answer)));
    }
    assert!(!run.did(lookup("f"), Ok(file(2))));
}

#[test]
fn unanswered_change_may_have_happened() {
    let lose = || {
        let mut run = Run::with_file();
        let lost = run.asks(unlink("f"));
        run.checker.lost(ClientId(lost));
        assert!(run.did(lookup("f"), Ok(file(2))));
        run
    };
    assert!(lose().did(lookup("f"), Ok(absent())));
    let mut run = lose();
    assert!(run.did(unlink("f"), Ok(Answer::Done)));
    // The action takes effect only once.
    assert!(run.did(create("f"), Ok(file(3))));
    assert!(run.did(lookup("f"), Ok(absent())));
    assert!(run.did(create("f"), Ok(file(4))));
    assert!(!run.did(lookup("f"), Ok(absent())));
    let mut run = Run::with_file();
    assert!(run.did(unlink("f"), Err(Errno::EIO)));
    assert!(run.did(create("f"), Ok(file(3))));
}

#[test]
fn refused_request_is_not_executed() {
    let mut run = Run::new();
    assert!(run.did(create("f"), Err(Errno::ENOSPC)));
    assert!(!run.did(lookup("f"), Ok(file(2))));
    let mut run = Run::new();
    let making = run.asks(create("f"));
    assert!(run.did(lookup("f"), Ok(file(2))));
    assert!(!run.ends(making, Err(Errno::ENOSPC)));
}

#[test]
fn a_rename_is_done_at_once_and_whole() {
    let both = |first: &[(&str, u64)]| {
        let mut run = Run::with_file();
        let moving = run.asks(rename((1, "f"), (1, "g"), RenameFlags::empty()));
        run.did(list(), Ok(listing(first))) && run.ends(moving, Ok(Answer::Done))
    };
    assert!(both(&[("f", 2)]) && both(&[("g", 2)]));
    assert!(!both(&[]) && !both(&[("f", 2), ("g", 2)]));
}

/// Fragments are read at different instants.
#[test]
fn listing_of_partitioned_directory_spans_instants() {
    let partitioned = || {
        let mut run = Run { checker: Checker::new(Rules { splits: true, ..RULES }), ..Run::new() };
        assert!(run.did(create("f"), Ok(file(2))) && run.did(create("h"), Ok(file(3))));
        run
    };
    let renames = || rename((1, "f"), (1, "g"), RenameFlags::empty());
    let listed = |entries: &[(&str, u64)]| {
        let mut run = partitioned();
        let listing_names = run.asks(list());
        assert!(run.did(renames(), Ok(Answer::Done)));
        let is_explained = run.ends(listing_names, Ok(listing(entries)));
        is_explained
            && run.did(lookup("f"), Ok(absent()))
            && run.did(list(), Ok(listing(&[("g", 2), ("h", 3)])))
    };
    assert!(listed(&[("f", 2), ("h", 3)]) && listed(&[("g", 2), ("h", 3)]));
    assert!(listed(&[("h", 3)]) && listed(&[("f", 2), ("g", 2), ("h", 3)]));
    // The other name was there all the time.
    assert!(!listed(&[("f", 2)]) && !listed(&[]));
    assert!(!listed(&[("g", 3), ("h", 3)]) && !listed(&[("h", 3), ("i", 2)]));
    // Only changes during the listing matter.
    let mut run = partitioned();
    assert!(run.did(renames(), Ok(Answer::Done)));
    let listing_names = run.asks(list());
    assert!(!run.ends(listing_names, Ok(listing(&[("h", 3)]))));
}

/// Its fragments do not learn of a `chmod` after the removal.
#[test]
fn removed_partitioned_directory_may_refuse_lookups() {
    let refused = |splits| {
        let mut run = Run { checker: Checker::new(Rules { splits, ..RULES }), ..Run::new() };
        let removal = Request::RmDir { dir: Ino::ROOT, name: name("d"), time: None };
        assert!(run.did(mkdir(1, "d"), Ok(dir(2))) && run.did(Call::Request(removal), Ok(Answer::Done)));
        run.creds = CallerCreds::new(1001, 100);
        let lookup = Request::Lookup { dir: Ino(2), name: name("f") };
        run.did(Call::Request(lookup), Err(Errno::EACCES))
    };
    assert!(refused(true) && !refused(false));
}

#[test]
fn directories_are_not_moved_into_each_other() {
    let mut run = Run::new();
    assert!(run.did(mkdir(1, "a"), Ok(dir(2))) && run.did(mkdir(1, "b"), Ok(dir(3))));
    let first = run.asks(rename((1, "a"), (3, "x"), RenameFlags::empty()));
    let second = run.asks(rename((1, "b"), (2, "y"), RenameFlags::empty()));
    assert!(run.ends(first, Ok(Answer::Done)));
    assert!(!run.ends(second, Ok(Answer::Done)));
}

#[test]
fn directories_count_their_entries() {
    let mut run = Run::new();
    assert!(run.did(mkdir(1, "a"), Ok(dir(2))) && run.did(mkdir(2, "b"), Ok(dir(3))));
    assert!(run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Directory, 3, 1)))));
    assert!(run.did(rename((2, "b"), (1, "b"), RenameFlags::empty()), Ok(Answer::Done)));
    assert!(!run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Directory, 3, 0)))));
    assert!(run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Directory, 2, 0)))));
    let rmdir = Call::Request(Request::RmDir { dir: Ino::ROOT, name: name("b"), time: None });
    assert!(run.did(rmdir, Ok(Answer::Done)));
    assert!(run.did(mkdir(3, "c"), Err(Errno::ENOENT)));
}

#[test]
fn links_are_counted() {
    let mut run = Run::with_file();
    let linking = Call::Request(Request::Link { ino: Ino(2), dir: Ino::ROOT, name: name("g") });
    let linking = run.asks(linking);
    let looking = run.asks(getattr(2));
    assert!(run.ends(linking, Ok(entry(attr(2, FileType::Regular, 2, 0)))));
    assert!(run.did(unlink("f"), Ok(Answer::Done)));
    assert!(run.ends(looking, Ok(Answer::Attr(attr(2, FileType::Regular, 2, 0)))));
    assert!(run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 0)))));
}

#[test]
fn written_bytes_are_read_back() {
    let mut run = Run::with_file();
    assert!(run.did(write(0, b"abc"), Ok(Answer::Written(3))));
    assert!(run.did(write(5, b"d"), Ok(Answer::Written(1))));
    assert!(run.did(read(0, 100), Ok(bytes(b"abc\0\0d"))));
    assert!(run.did(read(1, 2), Ok(bytes(b"bc"))));
    assert!(!run.did(read(1, 2), Ok(bytes(b"b"))));
    assert!(run.did(getattr(2), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 6)))));
    assert!(run.did(truncate(2), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 2)))));
    assert!(run.did(write(END, b"x"), Ok(Answer::Written(1))));
    assert!(run.did(read(0, 100), Ok(bytes(b"abx"))));
    let how = OpenHow { access: Access::WRITE, truncate: true, ..OpenHow::default() };
    let opening =
        Opening { ino: Ino(2), accessed: true, shared: false, keep_cache: true, passthrough: false };
    assert!(run.did(Call::Request(Request::Open { ino: Ino(2), how }), Ok(Answer::Opened(opening))));
    assert!(run.did(read(0, 100), Ok(bytes(b""))));
}

#[test]
fn writes_to_a_small_file_are_not_torn() {
    let read_meanwhile = |seen: &[u8]| {
        let mut run = Run::with_file();
        assert!(run.did(write(0, b"ab"), Ok(Answer::Written(2))));
        let writing = run.asks(write(0, b"xy"));
        run.did(read(0, 10), Ok(bytes(seen))) && run.ends(writing, Ok(Answer::Written(2)))
    };
    assert!(read_meanwhile(b"ab") && read_meanwhile(b"xy"));
    assert!(!read_meanwhile(b"xb"));
}

#[test]
fn strips_are_written_one_after_the_other() {
    let read_meanwhile = |seen: &[u8]| {
        let mut run = Run::with_file();
        assert!(run.did(write(0, b"aaaaaaaabbbb"), Ok(Answer::Written(12))));
        let writing = run.asks(write(6, b"xxyy"));
        let right = run.did(read(0, 100), Ok(bytes(seen)));
        assert!(run.ends(writing, Ok(Answer::Written(4))));
        assert!(run.did(read(0, 100), Ok(bytes(b"aaaaaaxxyybb"))));
        right
    };
    for seen in [b"aaaaaaaabbbb", b"aaaaaaxxbbbb", b"aaaaaaaayybb", b"aaaaaaxxyybb"] {
        assert!(read_meanwhile(seen));
    }
    assert!(!read_meanwhile(b"aaaaaaxaybbb"));
    let mut run = Run::with_file();
    assert!(run.did(write(0, b"aaaaaaaabbbb"), Ok(Answer::Written(12))));
    assert!(run.did(truncate(10), Ok(Answer::Attr(attr(2, FileType::Regular, 1, 10)))));
    assert!(run.did(write(20, b"c"), Ok(Answer::Written(1))));
    assert!(run.did(read(4, 100), Ok(bytes(b"aaaabb\0\0\0\0\0\0\0\0\0\0c"))));
}

#[test]
fn many_at_a_time_are_followed() {
    let mut run = Run::new();
    let names: Vec<String> = (0..4).map(|number| format!("f{number}")).collect();
    for round in 0..30 {
        let making: Vec<u64> = names.iter().map(|name| run.asks(create(name))).collect();
        let listing: Vec<u64> = (0..4).map(|_| run.asks(list())).collect();
        for (at, call) in making.iter().enumerate() {
            assert!(run.ends(*call, Ok(file(100 + round * 100 + at as u64))));
        }
        for (at, call) in listing.iter().enumerate() {
            let made = names[..at].iter().enumerate();
            let made: Vec<_> =
                made.map(|(at, name)| (name.as_str(), 100 + round * 100 + at as u64)).collect();
            assert!(run.ends(*call, Ok(super::tests::listing(&made))));
        }
        let removing: Vec<u64> = names.iter().map(|name| run.asks(unlink(name))).collect();
        for call in removing {
            assert!(run.ends(call, Ok(Answer::Done)));
        }
    }
}

#[test]
fn violation_lists_possible_and_actual_answers() {
    let mut run = Run::with_file();
    run.asks(create("g"));
    let call = run.asks(lookup("g"));
    let result = Ok(file(2));
    let violation = run.checker.answered(Nanos(9_000_000), ClientId(call), 0, &result).unwrap_err();
    let text = violation.to_string();
    for part in ["client 3: Request(Lookup", "Absent", "not answered yet", "Create"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn repeated_reply_after_restart_shows_current_state() {
    for (begins, is_right) in [(true, true), (false, false)] {
        let mut run = Run::new();
        let creates = run.asks(create("f"));
        let now = run.tick();
        if begins {
            run.checker.began(now, Rank(0));
        }
        let gone = || entry(attr(2, FileType::Regular, 0, 0));
        assert_eq!(run.ends(creates, Ok(gone())), is_right);
        // A later request is not answered from before.
        assert!(!begins || !run.did(create("g"), Ok(entry(attr(3, FileType::Regular, 0, 0)))));
    }
}

const SECOND: Nanos = Nanos(1_000_000_000);

fn fsync() -> Call<'static> {
    Call::Request(Request::Fsync { ino: Ino::ROOT })
}

impl Run {
    fn with_losses() -> Self {
        Self { checker: Checker::new(Rules { durable: Some(SECOND), ..RULES }), ..Self::new() }
    }

    fn loses_power(&mut self) -> bool {
        self.is_left_with(Left { until: Nanos::NEVER, lost: Nanos::ZERO })
    }

    fn is_left_with(&mut self, left: Left) -> bool {
        let now = self.tick();
        self.checker.lost_power(now, Rank(0), left).is_ok()
    }
}

#[test]
fn loss_of_power_loses_last_changes() {
    let lose = || {
        let mut run = Run::with_losses();
        assert!(run.did(create("a"), Ok(file(2))) && run.did(create("b"), Ok(file(3))));
        assert!(run.did(fsync(), Ok(Answer::Done)));
        assert!(run.did(create("c"), Ok(file(4))) && run.did(unlink("a"), Ok(Answer::Done)));
        assert!(run.did(create("d"), Ok(file(5))));
        assert!(run.loses_power());
        run
    };
    let all = [("a", 2), ("b", 3), ("c", 4), ("d", 5)];
    for (left, is_right) in [
        (vec![0, 1], true),
        (vec![0, 1, 2], true),
        (vec![1, 2], true),
        (vec![1, 2, 3], true),
        (vec![1], false),
        (vec![0, 1, 3], false),
        (vec![0], false),
        (vec![0, 1, 2, 3], false),
    ] {
        let left: Vec<_> = left.into_iter().map(|at: usize| all[at]).collect();
        assert_eq!(lose().did(list(), Ok(listing(&left))), is_right, "{left:?}");
    }
    // A lost change stays lost, and its number is not reused.
    let mut run = lose();
    assert!(run.did(lookup("d"), Ok(absent())) && run.did(getattr(5), Err(Errno::ESTALE)));
    assert!(!run.did(create("e"), Ok(file(5))));
    assert!(run.did(create("e"), Ok(file(6))) && run.did(lookup("e"), Ok(file(6))));
    assert!(run.loses_power() && run.did(lookup("e"), Ok(absent())));
}

/// A read between two changes is not recorded when there are too many orders, but must not be
/// rejected.
#[test]
fn reads_among_too_many_changes_are_unchecked() {
    let mut run = Run::with_file();
    assert!(run.did(write(0, &[1; 48]), Ok(Answer::Written(48))));
    let (writes, truncates, reads) =
        (run.asks(write(5, b"xyz")), run.asks(truncate(0)), run.asks(read(2, 4)));
    assert!(run.ends(writes, Ok(Answer::Written(3))));
    assert!(run.ends(truncates, Ok(Answer::Attr(attr(2, FileType::Regular, 1, 8)))));
    assert!(run.ends(reads, Ok(bytes(b""))));
    assert!(run.did(read(0, 8), Ok(bytes(b"\0\0\0\0\0xyz"))));
}

#[test]
fn changes_of_lost_file_are_not_lost_again() {
    let mut run = Run::with_losses();
    assert!(run.did(create("a"), Ok(file(2))) && run.loses_power() && run.did(lookup("a"), Ok(absent())));
    // Another rank may have the file open.
    assert!(run.did(write(0, b"x"), Ok(Answer::Written(1))));
    run.now += SECOND.0;
    assert!(run.loses_power());
    assert!(run.did(create("a"), Ok(file(3))) && run.did(lookup("a"), Ok(file(3))));
}

#[test]
fn concurrent_changes_may_be_lost_in_any_order() {
    for lost in ["a", "b"] {
        let mut run = Run::with_losses();
        let (a, b) = (run.asks(create("a")), run.asks(create("b")));
        assert!(run.ends(a, Ok(file(2))) && run.ends(b, Ok(file(3))));
        assert!(run.loses_power());
        let retained = if lost == "a" { ("b", 3) } else { ("a", 2) };
        assert!(run.did(lookup(lost), Ok(absent())) && run.did(lookup(retained.0), Ok(file(retained.1))));
    }
}

#[test]
fn journal_end_shows_lost_changes() {
    let lose = |until, lost| {
        let mut run = Run::with_losses();
        assert!(run.did(create("a"), Ok(file(2))) && run.did(create("b"), Ok(file(3))));
        let left = Left { until: Nanos(until), lost: Nanos(lost) };
        run.is_left_with(left).then_some(run)
    };
    // "a" was made in the first two milliseconds, "b" in the following two.
    let has = |run: Option<Run>, left: &[(&str, u64)]| run.unwrap().did(list(), Ok(listing(left)));
    assert!(has(lose(2_000_000, 3_000_000), &[("a", 2)]));
    assert!(!has(lose(2_000_000, 3_000_000), &[]));
    assert!(!has(lose(2_000_000, 3_000_000), &[("a", 2), ("b", 3)]));
    assert!(has(lose(0, 1_000_000), &[]) && !has(lose(0, 1_000_000), &[("a", 2)]));
    // The change was acknowledged and is missing.
    let mut run = Run::with_losses();
    assert!(run.did(create("a"), Ok(file(2))));
    run.now += SECOND.0;
    assert!(!run.is_left_with(Left { until: Nanos::ZERO, lost: Nanos(1_000_000) }));
}

#[test]
fn earlier_changes_are_durable() {
    let mut run = Run::with_losses();
    assert!(run.did(create("a"), Ok(file(2))));
    run.now += SECOND.0;
    assert!(run.did(create("b"), Ok(file(3))));
    assert!(run.loses_power());
    assert!(!run.did(lookup("a"), Ok(absent())));
    assert!(run.did(lookup("b"), Ok(absent())));
}

#[test]
fn state_that_peer_depends_on_is_durable() {
    let other = 1 << 48 | 7;
    let make = || {
        let mut run = Run::with_losses();
        assert!(run.did(mkdir(1, "d"), Ok(dir(other))));
        assert!(run.did(make(other, "f", NewNode::Regular), Ok(file(other + 1))));
        assert!(run.loses_power());
        run
    };
    assert!(make().did(lookup("d"), Ok(dir(other))));
    assert!(!make().did(lookup("d"), Ok(absent())));
}

#[test]
fn read_between_independent_changes_sees_one() {
    for (seen, is_right) in
        [(vec![("a", 2)], true), (vec![("b", 3)], true), (vec![], true), (vec![("c", 3)], false)]
    {
        let mut run = Run::new();
        let looking = run.asks(list());
        let (a, b) = (run.asks(create("a")), run.asks(create("b")));
        assert!(run.ends(a, Ok(file(2))) && run.ends(b, Ok(file(3))));
        assert_eq!(run.ends(looking, Ok(listing(&seen))), is_right, "{seen:?}");
    }
}

/// A single reply does not determine the inode of a number: the first inode made may not be the one
/// seen.
#[test]
fn a_number_may_be_of_an_inode_that_was_made_later() {
    let mut run = Run::new();
    let (first, unlink, second) = (run.asks(create("a")), run.asks(unlink("a")), run.asks(create("a")));
    assert!(run.did(lookup("a"), Ok(file(3))));
    assert!(
        run.ends(first, Ok(file(2))) && run.ends(unlink, Ok(Answer::Done)) && run.ends(second, Ok(file(3)))
    );
    assert!(run.did(lookup("a"), Ok(file(3))));
}
