//! Cached contents of small files, and opens that use them.

use espalier_client::{Answer, Call};
use espalier_proto::{
    Access, Attr, Dirent, Entry, Errno, FileType, Ino, OpenHow, Opened, Reads, Reply, Request, SetAttr, Time,
    Touched,
};

use super::world::*;

const OLD: Ino = Ino(11);

fn open(ino: Ino) -> Request {
    Request::Open { ino, how: OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() } }
}

/// An open with `O_CREAT` and `O_TRUNC`.
fn emptied(file: &str) -> Request {
    let mut request = create(file, true);
    if let Request::Create { open: Some(how), exclusive, .. } = &mut request {
        (how.truncate, *exclusive) = (true, false);
    }
    request
}

impl ClientWorld {
    /// Reads from the cache; `None` if the read needs a message.
    fn read(&mut self, ino: Ino, offset: u64, size: u32) -> Option<Vec<u8>> {
        let call = self.call_as(user(0, 0), Call::read(ino, offset, size, false));
        match self.answer(call)? {
            Ok(Answer::Bytes(bytes)) => Some(bytes.into()),
            other => panic!("{other:?}"),
        }
    }

    fn reply_opened(&mut self, whole: Option<&[u8]>) -> Reads {
        let (id, _, request) = self.last();
        let Request::Open { how, .. } = request else { panic!("{request:?}") };
        let opened = Opened::default();
        let reply = match whole {
            Some(bytes) => Reply::OpenedWhole(opened, bytes.to_vec().into()),
            None => Reply::Opened(opened),
        };
        self.reply(id, Touched::default(), Ok(reply));
        how.reads
    }

    /// Sets the attributes of the existing file.
    fn report_old(&mut self, attr: Attr) {
        self.call(Request::SetAttr { ino: OLD, set: SetAttr::default() });
        let (id, ..) = self.last();
        self.reply(id, Touched { attrs: vec![attr], ..Touched::default() }, Ok(Reply::Attr(attr)));
    }

    /// Opens the file; the reply carries its bytes.
    fn open_old(&mut self) {
        assert!(!self.is_answered(open(OLD)));
        assert_eq!(self.reply_opened(Some(b"0123")), Reads::Whole);
        self.frontend.clear();
    }
}

#[test]
fn content_sent_with_open_is_read_without_message() {
    let mut world = ClientWorld::new();
    world.open_old();
    assert_eq!(world.read(OLD, 0, 100).as_deref(), Some(&b"0123"[..]));
    assert_eq!(world.read(OLD, 2, 1).as_deref(), Some(&b"2"[..]));
    assert_eq!(world.read(OLD, 4, 1).as_deref(), Some(&b""[..]));
    assert_eq!(world.read(OLD, u64::MAX, 1).as_deref(), Some(&b""[..]));
    assert!(world.sent.is_empty());
    world.now += u64::from(TERM);
    assert_eq!(world.read(OLD, 0, 100), None, "the lease has ended");
}

#[test]
fn changed_or_revoked_file_is_read_from_server() {
    for change in [
        Call::Request(Request::SetAttr { ino: OLD, set: SetAttr { size: Some(2), ..SetAttr::default() } }),
        write(OLD.0, 0, b"x"),
        Call::Request(emptied("old")),
    ] {
        let mut world = ClientWorld::new();
        world.open_old();
        world.call_as(user(0, 0), change);
        let (id, ..) = world.last();
        // A reply to an earlier request is stale.
        assert_eq!(world.read(OLD, 0, 100), None);
        world.reply(id, Touched { others: vec![OLD], ..Touched::default() }, Err(Errno::EIO));
        assert_eq!(world.read(OLD, 0, 100), None);
    }
    let mut world = ClientWorld::new();
    world.open_old();
    world.revoke_inode(3, OLD);
    assert_eq!(world.read(OLD, 0, 100), None);
}

#[test]
fn new_file_holds_what_was_written() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", true)));
    let (id, ..) = world.last();
    assert!(world.is_written(write(FIRST, 2, b"cd")) && world.is_written(write(FIRST, 0, b"a")));
    assert_eq!(world.read(Ino(FIRST), 0, 100).as_deref(), Some(&b"a\0cd"[..]));
    world.made(id, FIRST, 3);
    for _ in 0..2 {
        let (id, ..) = world.last_write().expect("the write is sent");
        let touched = Touched { attrs: vec![attr(Ino(FIRST), FileType::Regular, 4)], ..Touched::default() };
        world.reply(id, touched, Ok(Reply::Done));
    }
    assert_eq!(world.read(Ino(FIRST), 0, 100).as_deref(), Some(&b"a\0cd"[..]));
    // A file that outgrows the strip is handled by the server.
    assert!(!world.is_written(write(FIRST, 4, &[0; STRIP as usize])));
    assert_eq!(world.read(Ino(FIRST), 0, 100), None);
}

#[test]
fn a_file_of_which_all_is_known_is_opened_at_once() {
    let mut world = ClientWorld::new();
    let atime = Time::new(500, 0);
    world.report_old(Attr { atime, ..attr(OLD, FileType::Regular, 4) });
    assert!(!world.is_answered(open(OLD)), "the contents are not cached");
    world.reply_opened(Some(b"0123"));
    world.frontend.clear();
    let open_how = |reads| OpenHow { access: Access::READ, reads, ..OpenHow::default() };
    for how in [
        open_how(Reads::Server),
        OpenHow { truncate: true, ..open_how(Reads::Whole) },
        OpenHow { access: Access::READ | Access::WRITE, ..open_how(Reads::Whole) },
    ] {
        let mut world = ClientWorld::new();
        world.open_old();
        assert!(!world.is_answered(Request::Open { ino: OLD, how }), "{how:?}");
    }
    let call = world.call_as(user(5, 5), Call::Request(open(OLD)));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Opened(opening))) if !opening.accessed));
    let (id, caller, request) = world.last();
    assert_eq!((caller.uid, request), (5, Request::Open { ino: OLD, how: open_how(Reads::Client) }));
    let call = world.call(open(OLD));
    assert!(world.answer(call).is_some());
    assert_eq!(world.sent.len(), 1, "the second is sent after the first reply");
    assert_eq!(world.read(OLD, 0, 100).as_deref(), Some(&b"0123"[..]));
    for _ in 0..3 {
        world.call_as(user(0, 0), Call::Release { ino: OLD });
    }
    world.revoke_inode(3, OLD);
    world.reply(id, Touched::default(), Ok(Reply::Opened(Opened::default())));
    assert_eq!(world.revoked, [], "the second is pending");
    assert_eq!(world.reply_opened(None), Reads::Client);
    assert_eq!(world.revoked, [3]);
    assert!(!world.is_answered(open(OLD)), "the contents are dropped");
}

#[test]
fn uncertain_reader_waits_for_server() {
    let mut world = ClientWorld::new();
    let atime = Time::new(500, 0);
    world.report_old(Attr { perm: 0o600, uid: 5, atime, ..attr(OLD, FileType::Regular, 4) });
    world.open_old();
    let mut is_opened = |uid| {
        let call = world.call_as(user(uid, uid), Call::Request(open(OLD)));
        world.answer(call).is_some()
    };
    assert_eq!((is_opened(5), is_opened(0), is_opened(6)), (true, true, false));
}

#[test]
fn access_time_is_updated() {
    let mut world = ClientWorld::new();
    world.open_old();
    // It has not been accessed since its last change.
    let call = world.call(open(OLD));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Opened(opening))) if opening.accessed));
    let get = world.call(Request::GetAttr { ino: OLD });
    assert!(world.answer(get).is_none(), "the server determines the access time");
    let accessed = Attr { atime: Time::new(501, 0), ..attr(OLD, FileType::Regular, 4) };
    let (id, ..) = world.last();
    let touched = Touched { attrs: vec![accessed], ..Touched::default() };
    world.reply(id, touched, Ok(Reply::Opened(Opened::default())));
    let get = world.call(Request::GetAttr { ino: OLD });
    assert!(matches!(world.answer(get), Some(Ok(Answer::Attr(attr))) if attr == accessed));
}

/// The server grants no lease for a while, as on a file that other clients change all the time.
#[test]
fn newer_uncacheable_reply_drops_cached_state() {
    for (newer, is_known) in [(false, true), (true, false)] {
        let mut world = ClientWorld::new();
        let known = attr(OLD, FileType::Regular, 4);
        world.report_old(known);
        world.call(emptied("old"));
        let (id, ..) = world.last();
        let ctime = if newer { Time::new(501, 0) } else { known.ctime };
        let emptied = Entry { attr_leased: false, ..entry(Attr { ctime, size: 0, ..known }, true) };
        world.reply(id, Touched::default(), Ok(Reply::Created(emptied, Opened::default())));
        assert_eq!(world.size_of(OLD).is_some(), is_known);
    }
}

#[test]
fn reply_older_than_pending_operation_is_requested_again() {
    let mut world = ClientWorld::new();
    let look = Request::Lookup { dir: Ino::ROOT, name: name("dir") };
    assert!(world.is_answered(create("a", false)));
    // The server has restarted and waits for other clients before it creates the file.
    world.connect(2, true);
    let (made, ..) = world.last();
    let call = world.call(look.clone());
    let (id, _, request) = world.last();
    assert_eq!(request, look);
    let before = entry(attr(DIR, FileType::Directory, 2), false);
    world.reply(id, Touched::default(), Ok(Reply::Entry(before)));
    assert!(world.answer(call).is_none());
    assert!(!world.sent.iter().any(|(_, _, request)| *request == look));
    world.made(made, FIRST, 3);
    let (id, _, request) = world.last();
    assert_eq!(request, look);
    let after = entry(attr(DIR, FileType::Directory, 3), false);
    world.reply(id, Touched::default(), Ok(Reply::Entry(after)));
    assert!(matches!(world.answer(call), Some(Ok(Answer::Entry(entry))) if entry.attr.size == 3));
}

#[test]
fn listing_older_than_pending_operation_omits_its_attributes() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("a", false)));
    world.connect(2, true);
    let call = world.call(Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 10, plus: true });
    let (id, ..) = world.last();
    let before = Some(entry(attr(DIR, FileType::Directory, 2), false));
    let dirent = Dirent {
        name: name("dir"),
        ino: DIR,
        kind: FileType::Directory,
        cursor: 7,
        entry: before,
        remote: None,
    };
    let listing = Reply::Listing { entries: vec![dirent], parent: Ino::ROOT, end: true, until: u64::MAX };
    world.reply(id, Touched::default(), Ok(listing));
    let Some(Ok(Answer::Listing { entries, .. })) = world.answer(call) else {
        panic!("{:?}", world.frontend)
    };
    assert_eq!(entries.first().map(|dirent| (dirent.ino, dirent.entry)), Some((DIR, None)));
}
