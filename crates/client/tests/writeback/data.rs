//! Bytes of files that other clients write.

use espalier_client::{Answer, Call, FrontendEvent};
use espalier_proto::{Access, Errno, Ino, OpenHow, Opened, Reply, Request, RevocationId, Touched};

use super::world::*;

const FILE: Ino = Ino(11);

impl ClientWorld {
    fn open_file(&mut self, access: Access, opened: Opened) {
        let how = OpenHow { access, ..OpenHow::default() };
        self.call(Request::Open { ino: FILE, how });
        let (id, ..) = self.last();
        self.reply(id, Touched::default(), Ok(Reply::Opened(Opened { reclaim_token: 9, ..opened })));
        self.frontend.clear();
    }

    fn read_page(&mut self) -> u64 {
        self.call_as(user(0, 0), Call::read(FILE, 0, 4096, true))
    }

    /// Answers the last request.
    fn expect_request(&mut self, expected: &Request, term: u32, result: Result<Reply, Errno>) {
        let (id, _, request) = self.last();
        assert_eq!(request, *expected);
        self.term = term;
        self.reply(id, Touched::default(), result);
        self.term = TERM;
    }

    /// How long the kernel may cache its pages.
    fn retained_for(&mut self) -> Option<u64> {
        match self.frontend.pop()? {
            FrontendEvent::Answer { result: Ok(Answer::Bytes(_)), lease_ms, .. } => Some(lease_ms),
            other => panic!("{other:?}"),
        }
    }

    /// True if a write to the stream waits for a message other than the write.
    fn write_waits(&mut self) -> bool {
        let call = self.call_as(user(0, 0), write(FILE.0, 0, b"written"));
        if let Some((id, _, Request::Delegate { .. })) = self.sent.last().cloned() {
            self.reply(id, Touched::default(), Ok(Reply::Delegated(None)));
        }
        let written = self.streams.pop().expect("a write to the stream");
        self.reply(written.id, Touched::default(), Ok(Reply::Written(7)));
        self.answer(call).is_none()
    }
}

#[test]
fn kernel_caches_shared_file_under_data_lease() {
    let mut world = ClientWorld::new();
    world.open_file(Access::READ, Opened::default());
    world.revoke_inode(1, FILE);
    world.frontend.clear();
    let read = || Request::Read { ino: FILE, offset: 0, size: 4096, noatime: true };
    let lease = Request::LeaseData { ino: FILE };
    let bytes = || Ok(Reply::Bytes(b"0123"[..].into()));
    world.read_page();
    world.expect_request(&read(), 0, bytes());
    assert_eq!(world.retained_for(), None, "no lease covers it");
    world.expect_request(&lease, TERM, Ok(Reply::Done));
    world.expect_request(&read(), 0, bytes());
    assert!(world.retained_for().is_some_and(|ms| ms > 9_000));
    world.read_page();
    world.expect_request(&read(), 0, bytes());
    assert!(world.retained_for().is_some_and(|ms| ms > 9_000), "the lease covers further reads");
    world.revoke_data(2, FILE);
    assert!(
        matches!(&world.frontend[..], [FrontendEvent::Revoke { number: RevocationId(2), .. }]),
        "{:?}",
        world.frontend
    );
    world.frontend.clear();
    world.read_page();
    world.expect_request(&read(), 0, bytes());
    for _ in 0..4 {
        world.expect_request(&lease, 0, Ok(Reply::Done));
        world.expect_request(&read(), 0, bytes());
    }
    assert_eq!(world.retained_for(), Some(0), "the server grants no lease");
}

#[test]
fn write_is_announced_before_its_caller_is_answered_while_others_may_cache_the_file() {
    let mut world = ClientWorld::new();
    world.open_file(Access::WRITE, Opened { shared: true, streamed: true, ..Opened::default() });
    let announce = Request::Announce(FILE);
    assert!(world.write_waits());
    world.expect_request(&announce, 0, Ok(Reply::Announced(true)));
    assert!(matches!(
        world.frontend.pop(),
        Some(FrontendEvent::Answer { result: Ok(Answer::Written(7)), .. })
    ));
    assert!(world.write_waits());
    world.expect_request(&announce, 0, Ok(Reply::Announced(false)));
    assert!(!world.write_waits(), "no client caches it");
    world.revoke_unannounced(5, FILE);
    assert_eq!(world.revoked, [5], "answered at once");
    assert!(world.write_waits());
}
