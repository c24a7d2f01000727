//! What a kernel keeps of what files and directories hold.

use espalier_client::{Answer, Call, ForDoor};
use espalier_proto::{
    Access, Attr, FileType, Ino, OpenHow, Opened, Reads, Reply, Request, RequestId, Time, Touched,
};

use super::world::*;

const OLD: Ino = Ino(11);

impl World {
    /// Opens the file, which is not known. Whether what the kernel has kept of it is so.
    fn keeps_old(&mut self) -> bool {
        let how = OpenHow { access: Access::READ, reads: Reads::Server, ..OpenHow::default() };
        let call = self.call(Request::Open { ino: OLD, how });
        let (id, ..) = self.last();
        let opened = Reply::Opened(Opened { proof: 9, ..Opened::default() });
        self.reply(id, Touched { attrs: vec![self.old()], ..Touched::default() }, Ok(opened));
        match self.answer(call) {
            Some(Ok(Answer::Opened(opening))) => opening.keep,
            other => panic!("{other:?}"),
        }
    }

    /// As a kernel does before it opens a file of which it does not know much any more.
    fn look_at_old(&mut self, attr: Attr) {
        self.call(Request::GetAttr { ino: OLD });
        let (id, ..) = self.last();
        self.reply(id, Touched::default(), Ok(Reply::Attr(attr)));
    }

    fn old(&self) -> Attr {
        attr(OLD, FileType::Regular, 4)
    }

    /// Asks for what it holds, and is told.
    fn reads_old(&mut self) -> u64 {
        let id = self.asks_for_old();
        self.tells_old(id)
    }

    fn asks_for_old(&mut self) -> RequestId {
        self.call_as(user(0, 0), Call::Read { ino: OLD, offset: 0, size: 10, noatime: true });
        self.last().0
    }

    /// For how long the kernel may keep it.
    fn tells_old(&mut self, id: RequestId) -> u64 {
        self.reply(id, Touched::default(), Ok(Reply::Bytes(b"0123"[..].into())));
        match self.door.pop() {
            Some(ForDoor::Answer { result: Ok(Answer::Bytes(_)), lease_ms, .. }) => lease_ms,
            other => panic!("{other:?}"),
        }
    }

    fn close_old(&mut self) {
        self.call_as(user(0, 0), Call::Release { ino: OLD });
    }

    /// What the kernel is to drop by then.
    fn dropped(&mut self, now: u64) -> Vec<Ino> {
        self.now = now;
        self.tick();
        let dropped = self.door.drain(..).filter_map(|told| match told {
            ForDoor::Changed(inos) => Some(inos),
            _ => None,
        });
        dropped.flatten().collect()
    }

    fn renewals(&mut self) -> Vec<(RequestId, Vec<Ino>)> {
        let asked = |(id, _, request): &(RequestId, _, Request)| match request {
            Request::Renew { inodes, .. } => Some((*id, inodes.clone())),
            _ => None,
        };
        self.sent.iter().filter_map(asked).collect()
    }
}

#[test]
fn what_is_kept_of_an_open_file_is_renewed_as_long_as_the_server_allows_it() {
    let mut world = World::new();
    assert!(!world.keeps_old(), "it may have kept anything");
    assert!(world.reads_old() > 9_000);
    assert!(world.renewals().is_empty());
    assert!(world.dropped(5_101).is_empty());
    let [(id, inodes)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    assert_eq!(*inodes, [OLD]);
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(vec![OLD])));
    assert!(world.dropped(10_000).is_empty());
    assert!(world.renewals().is_empty());
    assert!(world.dropped(12_601).is_empty());
    // It goes on, but the server does not.
    let [(id, _)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(Vec::new())));
    assert!(world.dropped(13_900).is_empty());
    assert_eq!(world.dropped(14_101), [OLD], "a second before");
    world.term = 0;
    assert_eq!(world.reads_old(), 0);
    world.tick();
    world.term = TERM;
    let [.., (id, _)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(vec![OLD])));
    assert!(world.reads_old() > 9_000);
    // Where there is none for long it is asked for once a second.
    world.revoke_inode(1, OLD);
    world.term = 0;
    let asked = world.renewals().len();
    for _ in 0..3 {
        assert_eq!(world.reads_old(), 0);
        world.tick();
    }
    assert_eq!(world.renewals().len(), asked);
    world.now += 1_000;
    world.tick();
    assert_eq!(world.renewals().len(), asked + 1);
    world.close_old();
    assert!(world.dropped(30_000).is_empty(), "whoever opens it is told");
}

/// A kernel that drops what it has with an opening waits for what is being read.
#[test]
fn an_opening_drops_nothing_of_what_is_open_already() {
    let mut world = World::new();
    world.term = 0;
    assert!(!world.keeps_old());
    world.asks_for_old();
    assert!(world.keeps_old());
    world.close_old();
    world.close_old();
    assert!(!world.keeps_old());
}

#[test]
fn what_was_asked_for_before_the_lease_began_is_not_kept() {
    let mut world = World::new();
    world.keeps_old();
    let (before, after) = (world.asks_for_old(), world.asks_for_old());
    world.revoke_inode(1, OLD);
    // It is told once more.
    world.keeps_old();
    world.term = 0;
    assert_eq!(world.tells_old(before), 0);
    world.term = TERM;
    assert!(world.tells_old(after) > 9_000, "unless the lease comes with it");
    assert!(world.reads_old() > 9_000);
}

#[test]
fn whoever_opens_a_file_again_finds_what_was_kept_if_it_has_not_changed_since() {
    let mut world = World::new();
    world.keeps_old();
    world.reads_old();
    world.close_old();
    assert!(world.keeps_old(), "the lease has lasted");
    world.close_old();
    world.now += 20_000;
    world.tick();
    world.look_at_old(world.old());
    assert!(world.keeps_old(), "it is as it was");
    world.close_old();
    world.now += 20_000;
    world.tick();
    world.look_at_old(Attr { ctime: Time::new(2, 0), ..world.old() });
    assert!(!world.keeps_old());
}

#[test]
fn what_is_written_is_kept_too() {
    let mut world = World::new();
    world.call(create("new", true));
    world.door.clear();
    world.call_as(user(0, 0), write(FIRST, 0, b"new"));
    let told = world.door.pop();
    assert!(matches!(told, Some(ForDoor::Answer { lease_ms, .. }) if lease_ms > 9_000), "{told:?}");
}

#[test]
fn a_listing_is_kept_as_long_as_the_lease_on_its_directory_lasts() {
    let mut world = World::new();
    let open = |world: &mut World| world.sessions.open_dir(world.now, DIR);
    assert_eq!(open(&mut world), Some(true), "it has been listed");
    assert_eq!(open(&mut world), Some(true));
    world.sessions.close_dir(DIR);
    assert!(world.dropped(5_101).is_empty());
    assert_eq!(world.renewals().len(), 1, "it is open once more");
    world.sessions.close_dir(DIR);
    assert!(world.dropped(20_000).is_empty());
    assert_eq!(open(&mut world), None, "there is no lease");
}
