//! Leases for the kernel's page cache.

use espalier_client::{Answer, Call, FrontendEvent};
use espalier_proto::{
    Access, Attr, FileType, Ino, OpenHow, Opened, Reads, Reply, Request, RequestId, Time, Touched,
};

use super::world::*;

const OLD: Ino = Ino(11);

impl ClientWorld {
    /// Opens the file, whose contents are not cached; returns whether the kernel's pages are valid.
    fn retains_old(&mut self) -> bool {
        let how = OpenHow { access: Access::READ, reads: Reads::Server, ..OpenHow::default() };
        let call = self.call(Request::Open { ino: OLD, how });
        let (id, ..) = self.last();
        let opened = Reply::Opened(Opened { reclaim_token: 9, ..Opened::default() });
        self.reply(id, Touched { attrs: vec![self.old()], ..Touched::default() }, Ok(opened));
        match self.answer(call) {
            Some(Ok(Answer::Opened(opening))) => opening.keep_cache,
            other => panic!("{other:?}"),
        }
    }

    /// A kernel does this before it opens a file whose attributes have expired.
    fn look_at_old(&mut self, attr: Attr) {
        self.call(Request::GetAttr { ino: OLD });
        let (id, ..) = self.last();
        self.reply(id, Touched::default(), Ok(Reply::Attr(attr)));
    }

    fn old(&self) -> Attr {
        attr(OLD, FileType::Regular, 4)
    }

    /// Requests the contents and receives them.
    fn reads_old(&mut self) -> u64 {
        let id = self.asks_for_old();
        self.reports_old(id)
    }

    fn asks_for_old(&mut self) -> RequestId {
        self.call_as(user(0, 0), Call::read(OLD, 0, 10, true));
        self.last().0
    }

    /// How long the kernel may cache the pages.
    fn reports_old(&mut self, id: RequestId) -> u64 {
        self.reply(id, Touched::default(), Ok(Reply::Bytes(b"0123"[..].into())));
        match self.frontend.pop() {
            Some(FrontendEvent::Answer { result: Ok(Answer::Bytes(_)), lease_ms, .. }) => lease_ms,
            other => panic!("{other:?}"),
        }
    }

    fn close_old(&mut self) {
        self.call_as(user(0, 0), Call::Release { ino: OLD });
    }

    /// The inodes whose pages the kernel must drop by then.
    fn dropped(&mut self, now: u64) -> Vec<Ino> {
        self.now = now;
        self.tick();
        let dropped = self.frontend.drain(..).filter_map(|reported| match reported {
            FrontendEvent::Changed(inos) => Some(inos),
            _ => None,
        });
        dropped.flatten().collect()
    }

    fn renewals(&mut self) -> Vec<(RequestId, Vec<Ino>)> {
        let requested = |(id, _, request): &(RequestId, _, Request)| match request {
            Request::Renew { inodes, .. } => Some((*id, inodes.clone())),
            _ => None,
        };
        self.sent.iter().filter_map(requested).collect()
    }
}

#[test]
fn leases_of_open_files_are_renewed() {
    let mut world = ClientWorld::new();
    assert!(!world.retains_old(), "the kernel's pages are of unknown age");
    assert!(world.reads_old() > 9_000);
    assert!(world.renewals().is_empty());
    assert!(world.dropped(5_101).is_empty());
    let [(id, inodes)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    assert_eq!(*inodes, [OLD]);
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(vec![OLD])));
    assert!(world.dropped(10_000).is_empty());
    assert!(world.renewals().is_empty());
    assert!(world.dropped(12_601).is_empty());
    // The session continues, but the server does not renew.
    let [(id, _)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(Vec::new())));
    assert!(world.dropped(13_900).is_empty());
    assert_eq!(world.dropped(14_101), [OLD], "one second before the lease ends");
    world.term = 0;
    assert_eq!(world.reads_old(), 0);
    world.tick();
    world.term = TERM;
    let [.., (id, _)] = &world.renewals()[..] else { panic!("{:?}", world.sent) };
    world.reply(*id, Touched::default(), Ok(Reply::Renewed(vec![OLD])));
    assert!(world.reads_old() > 9_000);
    // A lease that stays missing is requested once per second.
    world.revoke_inode(1, OLD);
    world.term = 0;
    let requested = world.renewals().len();
    for _ in 0..3 {
        assert_eq!(world.reads_old(), 0);
        world.tick();
    }
    assert_eq!(world.renewals().len(), requested);
    world.now += 1_000;
    world.tick();
    assert_eq!(world.renewals().len(), requested + 1);
    world.close_old();
    assert!(world.dropped(30_000).is_empty(), "the next open reports it");
}

/// A kernel that drops pages during an open waits for reads in progress.
#[test]
fn open_keeps_cache_of_already_open_file() {
    let mut world = ClientWorld::new();
    world.term = 0;
    assert!(!world.retains_old());
    world.asks_for_old();
    assert!(world.retains_old());
    world.close_old();
    world.close_old();
    assert!(!world.retains_old());
}

#[test]
fn reply_requested_before_lease_is_not_cached() {
    let mut world = ClientWorld::new();
    world.retains_old();
    let (before, after) = (world.asks_for_old(), world.asks_for_old());
    world.revoke_inode(1, OLD);
    // The data is returned again.
    world.retains_old();
    world.term = 0;
    assert_eq!(world.reports_old(before), 0);
    world.term = TERM;
    assert!(world.reports_old(after) > 9_000, "the lease comes with the data");
    assert!(world.reads_old() > 9_000);
}

#[test]
fn reopen_keeps_pages_of_unchanged_file() {
    let mut world = ClientWorld::new();
    world.retains_old();
    world.reads_old();
    world.close_old();
    assert!(world.retains_old(), "the lease is uninterrupted");
    world.close_old();
    world.now += 20_000;
    world.tick();
    world.look_at_old(world.old());
    assert!(world.retains_old(), "the file is unchanged");
    world.close_old();
    world.now += 20_000;
    world.tick();
    world.look_at_old(Attr { ctime: Time::new(2, 0), ..world.old() });
    assert!(!world.retains_old());
}

#[test]
fn written_pages_are_cached() {
    let mut world = ClientWorld::new();
    world.call(create("new", true));
    world.frontend.clear();
    world.call_as(user(0, 0), write(FIRST, 0, b"new"));
    let reported = world.frontend.pop();
    assert!(
        matches!(reported, Some(FrontendEvent::Answer { lease_ms, .. }) if lease_ms > 9_000),
        "{reported:?}"
    );
}

#[test]
fn listing_is_cached_for_the_directory_lease() {
    let mut world = ClientWorld::new();
    let open = |world: &mut ClientWorld| world.sessions.open_dir(world.now, DIR);
    assert_eq!(open(&mut world), Some(true), "the listing is cached");
    assert_eq!(open(&mut world), Some(true));
    world.sessions.close_dir(DIR);
    assert!(world.dropped(5_101).is_empty());
    assert_eq!(world.renewals().len(), 1, "it is still open once");
    world.sessions.close_dir(DIR);
    assert!(world.dropped(20_000).is_empty());
    assert_eq!(open(&mut world), None, "the lease is revoked");
}
