//! Delegated opens and deferred access times.

use espalier_client::{Answer, Call};
use espalier_proto::{
    Access, Attr, FileType, Ino, OpenHow, Opened, Reads, RenameFlags, Reply, Request, SetAttr, Time, Touched,
};

use super::world::*;

const OLD: Ino = Ino(11);

fn open() -> Request {
    Request::Open {
        ino: OLD,
        how: OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() },
    }
}

/// The open as the server is notified of it.
fn opening() -> Request {
    let how = OpenHow { access: Access::READ, reads: Reads::Client, ..OpenHow::default() };
    Request::Open { ino: OLD, how }
}

impl ClientWorld {
    /// A closed file whose contents are cached.
    fn known(accessed: bool) -> Self {
        let mut world = Self::new();
        let atime = Time::new(if accessed { 400 } else { 1 }, 0);
        world.call(Request::SetAttr { ino: OLD, set: SetAttr::default() });
        let (id, ..) = world.last();
        let attr = Attr { atime, ..attr(OLD, FileType::Regular, 4) };
        world.reply(id, Touched { attrs: vec![attr], ..Touched::default() }, Ok(Reply::Attr(attr)));
        assert!(!world.is_answered(open()));
        let (id, ..) = world.last();
        let opened = Opened { reclaim_token: 9, ..Opened::default() };
        world.reply(id, Touched::default(), Ok(Reply::OpenedWhole(opened, b"0123"[..].into())));
        world.close();
        world.tick();
        let (id, ..) = world.last();
        world.reply(id, Touched::default(), Ok(Reply::Done));
        world.frontend.clear();
        assert!(world.sent.is_empty());
        world
    }

    fn open(&mut self) -> bool {
        let call = self.call(open());
        let Some(Ok(Answer::Opened(opening))) = self.answer(call) else { panic!("the open waits") };
        opening.accessed
    }

    fn close(&mut self) {
        self.call_as(user(0, 0), Call::Release { ino: OLD });
    }

    fn requests(&self) -> Vec<Request> {
        self.sent.iter().map(|(_, _, request)| request.clone()).collect()
    }

    fn reply_opening(&mut self) {
        let sent = self.sent.iter().find(|(_, _, request)| *request == opening());
        let (id, ..) = sent.cloned().expect("an announcement");
        self.reply(
            id,
            Touched::default(),
            Ok(Reply::Opened(Opened { reclaim_token: 9, ..Opened::default() })),
        );
    }
}

#[test]
fn delegated_open_closed_in_time_sends_nothing() {
    let mut world = ClientWorld::known(true);
    for _ in 0..2 {
        assert!(!world.open() && !world.open());
        let call = world.call_as(user(0, 0), Call::read(OLD, 1, 9, false));
        assert!(matches!(world.answer(call), Some(Ok(Answer::Bytes(bytes))) if bytes == b"123"[..]));
        world.close();
        world.close();
        world.tick();
    }
    assert_eq!(world.requests(), []);
    world.revoke_inode(3, OLD);
    assert_eq!((world.requests(), &world.revoked[..]), (vec![], &[3][..]));
}

#[test]
fn delegated_lease_is_returned_after_server_records_open() {
    let mut world = ClientWorld::known(true);
    world.open();
    world.open();
    world.close();
    world.revoke_inode(3, OLD);
    assert_eq!((world.requests(), &world.revoked[..]), (vec![opening()], &[][..]));
    world.reply_opening();
    assert_eq!(world.revoked, [3]);
    // From here on it is closed like any other file.
    world.close();
    world.tick();
    assert!(matches!(&world.requests()[..], [Request::ForgetAll { released, .. }] if *released == [OLD]));
}

#[test]
fn calls_on_delegated_open_follow_its_announcement() {
    let rename = |from: &str, to: &str| {
        let (from, to, flags) = (name(from), name(to), RenameFlags::empty());
        Request::Rename { from_dir: DIR, from, to_dir: DIR, to, flags, time: None }
    };
    let chmod = Request::SetAttr { ino: OLD, set: SetAttr { perm: Some(0), ..SetAttr::default() } };
    let write = OpenHow { access: Access::WRITE, ..OpenHow::default() };
    for request in [
        unlink("old"),
        rename("fifo", "old"),
        rename("old", "new"),
        chmod,
        Request::Link { ino: OLD, dir: DIR, name: name("other") },
        Request::Open { ino: OLD, how: write },
        Request::RemoveTree { dir: DIR },
    ] {
        let mut world = ClientWorld::known(true);
        world.open();
        world.call(request.clone());
        assert_eq!(world.requests()[0], opening(), "{request:?}");
        world.reply_opening();
        assert_eq!(world.requests().len(), 1, "{request:?}");
        assert_ne!(world.last().2, opening(), "{request:?}");
    }
    // A name with an unknown binding may refer to any file.
    let mut world = ClientWorld::known(true);
    world.open();
    world.call(Request::Unlink { dir: Ino::ROOT, name: name("unheard-of"), time: None });
    assert_eq!(world.requests()[0], opening());
}

#[test]
fn the_server_knows_before_the_lease_ends() {
    let mut world = ClientWorld::known(true);
    world.open();
    world.now += u64::from(TERM) / 2;
    world.tick();
    assert_eq!(world.requests(), []);
    world.now += u64::from(TERM) / 2 - 500;
    world.tick();
    assert_eq!(world.requests(), [opening()]);
}

#[test]
fn pending_opens_are_announced_to_disconnected_server() {
    for (incarnation, resumed) in [(1, true), (2, true), (2, false)] {
        let mut world = ClientWorld::known(true);
        world.open();
        world.open();
        world.connect(incarnation, resumed);
        let goes_on = (incarnation, resumed) == (1, true);
        let said: Vec<_> = world.held.iter().filter(|held| held.ino == OLD).collect();
        if goes_on {
            assert_eq!((world.requests(), said.len()), (vec![opening(), opening()], 0), "one per caller");
        } else {
            assert_eq!((said[0].opens, said[0].opened), (2, 9));
            assert_eq!(world.requests(), []);
        }
    }
}

#[test]
fn opens_without_token_are_announced_at_once() {
    let mut world = ClientWorld::new();
    // As `mknod` does.
    assert!(world.is_answered(create("new", false)));
    let (id, _, request) = world.last();
    let Request::Create { writeback: Some(writeback), .. } = request else { panic!("{request:?}") };
    let made = entry(attr(writeback.ino, FileType::Regular, 0), true);
    world.reply(id, Touched { exclusive: Some(DIR), ..Touched::default() }, Ok(Reply::Entry(made)));
    let how = OpenHow { access: Access::READ, reads: Reads::Whole, ..OpenHow::default() };
    assert!(
        world.is_answered(Request::Open { ino: writeback.ino, how }),
        "its contents are known to be empty"
    );
    let how = OpenHow { reads: Reads::Client, ..how };
    assert_eq!(world.requests(), [Request::Open { ino: writeback.ino, how }]);
}

#[test]
fn accesses_are_batched_and_deferred() {
    let mut world = ClientWorld::known(false);
    assert!(world.open());
    world.close();
    assert!(!world.open(), "the access is recorded already");
    world.close();
    assert_eq!((world.requests(), world.sessions.unanswered_changes()), (vec![], 1));
    let get = world.call(Request::GetAttr { ino: OLD });
    let Some(Ok(Answer::Attr(attr))) = world.answer(get) else { panic!("the attributes are cached") };
    assert!(attr.atime >= Time::new(500, 0));
    world.tick();
    world.tick();
    assert_eq!(world.requests(), [Request::Accessed { files: vec![(OLD, attr.atime)] }]);
}

#[test]
fn access_is_sent_before_later_calls() {
    for revokes in [true, false] {
        let mut world = ClientWorld::known(false);
        world.open();
        world.close();
        if revokes {
            world.revoke_inode(3, OLD);
        } else {
            world.call(Request::SetAttr { ino: OLD, set: SetAttr::default() });
        }
        assert!(matches!(world.requests()[0], Request::Accessed { .. }));
    }
}
