//! Write-behind: writes to big files.

use std::sync::Arc;

use espalier_client::{Actions, Answer, Call, DataOperation, DataOutcome, FrontendEvent, Interrupt, Work};
use espalier_proto::{
    Access, Attr, Capability, Delegation, Distribution, Errno, FileType, Ino, Layout, LockOwner, RangeOp,
    Rank, Reply, Request, RequestId, ServerId, StreamIo, Touched, pieces_of,
};

use super::world::*;

const FILE: Ino = Ino(FIRST);

fn delegation() -> Box<Delegation> {
    let layout = Layout::new(Distribution::SimpleStripe { strip: 64 }, vec![ServerId(0)]).expect("a layout");
    let (ino, access, server, seal) = (FILE, Access::WRITE, ServerId(0), [0; 32]);
    let (incarnation, session, since, announced) = (1, 1, 0, false);
    let capability = Capability { ino, access, server, incarnation, session, since, announced, seal };
    Box::new(Delegation { layout: Some(Arc::new(layout)), capability, limited: false })
}

fn big(offset: u64, length: usize) -> Call<'static> {
    big_of(FILE, offset, length)
}

fn big_of(ino: Ino, offset: u64, length: usize) -> Call<'static> {
    Call::write(ino, offset, vec![b'x'; length].into(), false)
}

fn unlock() -> Request {
    let owner = LockOwner { flock: false, number: 7 };
    Request::Unlock { ino: FILE, owner, first: 0, last: u64::MAX }
}

impl ClientWorld {
    /// A client with an open big file that it has created in an exclusive directory.
    fn with_a_big_file() -> Self {
        Self::with_one_that_has_grown(Reply::Outgrown(delegation()))
    }

    /// As [`Self::with_a_big_file`], with the file's bytes at the metadata server.
    fn with_a_big_file_there() -> Self {
        let mut world = Self::with_one_that_has_grown(Reply::Streamed);
        let (id, _, request) = world.last();
        assert_eq!(request, Request::Delegate { ino: FILE, access: Access::WRITE });
        world.reply(id, Touched::default(), Ok(Reply::Delegated(None)));
        world.write_done();
        world
    }

    /// As [`Self::with_a_big_file_there`], with two gathered writes pending as one request.
    fn with_a_list_under_way() -> (Self, RequestId) {
        let mut world = Self::with_a_big_file_there();
        world.write_at(&[1000, 3000, 5000]);
        world.write_done();
        world.tick();
        let id = world.streams.remove(0).id;
        (world, id)
    }

    fn write_at(&mut self, offsets: &[u64]) {
        assert!(offsets.iter().all(|offset| self.is_written(big(*offset, 1000))));
    }

    fn sent_to_streams(&self) -> Vec<Vec<(u64, usize)>> {
        assert!(self.streams.iter().all(|write| write.acknowledged), "a quota could reject it");
        self.streams.iter().map(|write| write.pieces.clone()).collect()
    }

    /// The metadata server has executed the first write that was sent.
    fn write_done(&mut self) {
        let id = self.streams.remove(0).id;
        self.reply(id, Touched::default(), Ok(Reply::Written(1000)));
    }

    fn with_one_that_has_grown(how: Reply) -> Self {
        let mut world = Self::new();
        world.call(create("big", true));
        let (id, ..) = world.last();
        world.made(id, FILE.0, 3);
        // Until then the file is small.
        world.call_as(user(0, 0), big(0, 1000));
        let (id, ..) =
            world.last_write().map(|(id, ..)| (id,)).expect("the first write is sent to the metadata server");
        world.reply(id, Touched::default(), Ok(how));
        world.frontend.clear();
        world
    }

    /// Creates an open big file with its bytes at the metadata server, in the exclusive directory.
    fn makes_a_big_file(&mut self, file: &str) -> u64 {
        self.call(create(file, true));
        let takes = |request: &Request| matches!(request, Request::TakeNumbers { .. });
        let created = |(id, _, request): &(RequestId, _, Request)| match request {
            Request::Create { writeback: Some(writeback), .. } => Some((*id, writeback.ino)),
            _ => None,
        };
        let (id, ino) = self.sent.iter().find_map(created).expect("a pending create");
        self.made(id, ino.0, 3);
        if let Some((id, ..)) = self.sent.iter().find(|(_, _, request)| takes(request)).cloned() {
            let Reply::Numbers { first, count, time, strip, accesses } = numbers() else { unreachable!() };
            let first = Ino(first.0 + u64::from(count));
            self.reply(id, Touched::default(), Ok(Reply::Numbers { first, count, time, strip, accesses }));
        }
        self.call_as(user(0, 0), big_of(ino, 0, 1000));
        let (id, ..) = self.last_write().expect("the first write is sent to the metadata server");
        self.reply(id, Touched::default(), Ok(Reply::Streamed));
        let (id, ..) = self.last();
        self.reply(id, Touched::default(), Ok(Reply::Delegated(None)));
        self.write_done();
        self.frontend.clear();
        ino.0
    }

    /// The outcome of the first request to data servers.
    fn data_done(&mut self, outcome: DataOutcome) {
        let number = self.data.remove(0).number;
        let mut actions = Actions::default();
        self.sessions.data_completed(self.now, number, outcome, &mut actions);
        self.take(actions);
    }

    fn data_written(&mut self) {
        self.data_done(DataOutcome::Done(Ok(Reply::Written(1000))));
    }

    /// The data servers refuse the capability, and the client gets another.
    fn gets_another(&mut self, delegation: Box<Delegation>) {
        self.data_done(DataOutcome::Stale);
        let (id, _, request) = self.last();
        assert_eq!(request, Request::Delegate { ino: FILE, access: Access::WRITE });
        self.reply(id, Touched::default(), Ok(Reply::Delegated(Some(delegation))));
    }

    fn waits(&mut self, request: Request) -> u64 {
        let call = self.call(request);
        assert!(self.answer(call).is_none());
        call
    }
}

#[test]
fn write_to_unshared_large_file_is_acknowledged_at_once() {
    let mut world = ClientWorld::with_a_big_file();
    assert!(world.is_written(big(0, 20_000)));
    assert!(world.is_written(big(20_000, 20_000)));
    assert_eq!(world.data.len(), 2, "both are in flight");
    assert_eq!(world.sessions.unanswered_changes(), 2);
    // An overlapping write comes after the pending one.
    assert!(!world.is_written(big(25_000, 1000)));
    assert_eq!(world.data.len(), 2);
    world.data_written();
    world.data_written();
    assert!(matches!(world.frontend[..], [FrontendEvent::Answer { result: Ok(Answer::Written(1000)), .. }]));
    assert_eq!(world.data.len(), 1);
    world.data_written();
    assert_eq!(world.sessions.unanswered_changes(), 0);
}

#[test]
fn no_more_is_under_way_than_there_is_room_for() {
    let mut world = ClientWorld::with_a_big_file();
    let count = (0..100).take_while(|n| world.is_written(big(n << 20, 1 << 20))).count();
    assert_eq!(count, 8);
    // Calls on other files and on metadata are not blocked.
    assert!(world.is_answered(create("other", false)));
    world.data_written();
    assert!(matches!(world.frontend[..], [FrontendEvent::Answer { result: Ok(Answer::Written(_)), .. }]));
    assert_eq!(world.data.len(), 8);
}

#[test]
fn short_writes_are_gathered_while_one_is_in_flight() {
    let mut world = ClientWorld::with_a_big_file_there();
    world.write_at(&[1000, 5000, 3000, 2000]);
    world.write_done();
    assert_eq!(world.sent_to_streams().len(), 0);
    world.tick();
    assert_eq!(world.sent_to_streams(), [[(2000, 2000), (5000, 1000)]]);
    world.write_done();
    assert_eq!(world.sessions.unanswered_changes(), 0);
    assert!(!world.sessions.has_write_behind(FILE));
    // No write is pending: the gathered one is sent at once.
    assert!(world.is_written(big(1000, 1000)));
    assert_eq!(world.sent_to_streams(), [[(1000, 1000)]]);
}

#[test]
fn short_writes_to_striped_files_are_gathered_too() {
    let mut world = ClientWorld::with_a_big_file();
    world.write_at(&[1000, 5000, 3000]);
    assert_eq!(world.data.len(), 1);
    world.data_written();
    world.tick();
    let [DataOperation { work: Work::Stream(io), data, .. }] = &world.data[..] else {
        panic!("{:?}", world.data)
    };
    assert_eq!(*io, StreamIo::new(FILE, RangeOp::WriteList { offset: 3000, end: 6000 }));
    let pieces: Vec<_> =
        pieces_of(data).expect("a list").iter().map(|(at, piece)| (*at, piece.len())).collect();
    assert_eq!(pieces, [(3000, 1000), (5000, 1000)]);
    // The capability is renewed for all pieces.
    world.gets_another(delegation());
    assert_eq!(world.data.len(), 1);
    world.data_written();
    assert_eq!(world.sessions.unanswered_changes(), 0);
}

#[test]
fn gathered_writes_are_admitted_one_by_one_under_quota() {
    let mut world = ClientWorld::with_a_big_file();
    world.write_at(&[1000, 5000, 3000]);
    world.data_written();
    world.tick();
    let before = world.sent.len();
    world.gets_another(Box::new(Delegation { limited: true, ..*delegation() }));
    let requested: Vec<_> = world.sent.drain(before..).map(|(_, _, request)| request).collect();
    assert!(matches!(requested[..], [Request::Extend { .. }, Request::Extend { .. }]), "{requested:?}");
}

impl ClientWorld {
    /// Writes, and the server executes the write. Returns whether it was acknowledged before.
    fn writes_back(&mut self) -> bool {
        let has_pending = self.is_written(big(1000, 1000));
        self.tick();
        self.write_done();
        self.frontend.clear();
        has_pending
    }

    /// The request that renews the exclusive lease.
    fn requests_exclusive(&self) -> Option<RequestId> {
        let sole_holder = Request::Renew { inodes: vec![DIR, FILE], exclusive_dir: Some(DIR) };
        self.sent.iter().find_map(|(id, _, request)| (*request == sole_holder).then_some(*id))
    }

    fn expects_exclusive(&mut self, exclusive: Option<Ino>, renewed: &[Ino]) {
        let id = self.requests_exclusive().expect("the renewal is sent");
        self.reply(id, Touched { exclusive, ..Touched::default() }, Ok(Reply::Renewed(renewed.to_vec())));
    }
}

#[test]
fn writing_renews_exclusive_lease() {
    let mut world = ClientWorld::with_a_big_file_there();
    assert!(world.writes_back());
    assert_eq!(world.requests_exclusive(), None, "the lease lasts long enough");
    world.now += 7_500;
    assert!(world.writes_back());
    world.expects_exclusive(Some(DIR), &[DIR, FILE]);
    world.now += 9_000;
    assert!(world.writes_back());
    world.expects_exclusive(None, &[DIR]);
    world.now += 900;
    assert!(world.writes_back());
    assert_eq!(world.requests_exclusive(), None, "at most one renewal per second");
    world.now += 100;
    assert!(!world.writes_back());
    world.expects_exclusive(Some(DIR), &[DIR]);
    world.now += 1_000;
    assert!(!world.writes_back(), "other clients know the file");
    world.expects_exclusive(Some(DIR), &[DIR, FILE]);
    assert!(world.writes_back());
    // The lease ended long ago.
    world.now += 30_000;
    assert!(!world.writes_back());
    world.expects_exclusive(Some(DIR), &[DIR, FILE]);
    assert!(world.writes_back());
}

#[test]
fn writing_to_many_files_renews_all_of_them() {
    const FILES: u64 = 300;
    let mut world = ClientWorld::new();
    let files: Vec<u64> = (0..FILES).map(|at| world.makes_a_big_file(&format!("big {at}"))).collect();
    world.now += 7_500;
    for file in &files {
        assert!(world.is_written(big_of(Ino(*file), 1000, 1000)), "{file}");
        world.write_done();
    }
    world.sent.clear();
    world.tick();
    let mut renewed = Vec::new();
    for (_, _, request) in &world.sent {
        let Request::Renew { inodes, exclusive_dir: Some(DIR) } = request else { continue };
        assert!(inodes.len() <= 256 && inodes[0] == DIR);
        renewed.extend(inodes[1..].iter().map(|ino| ino.0));
    }
    assert!(renewed == files, "{} of {FILES}", renewed.len());
}

#[test]
fn file_being_linked_has_no_sole_holder() {
    let mut world = ClientWorld::with_a_big_file_there();
    world.now += 7_500;
    assert!(world.writes_back());
    let requested = world.requests_exclusive().expect("the renewal is sent");
    world.call(Request::Link { ino: FILE, dir: Ino::ROOT, name: name("link") });
    let actions = Touched { exclusive: Some(DIR), ..Touched::default() };
    world.reply(requested, actions, Ok(Reply::Renewed(vec![DIR, FILE])));
    assert!(!world.writes_back());
}

#[test]
fn gathered_writes_are_sent_when_waited_for() {
    let waits = [Call::Request(Request::Fsync { ino: FILE }), Call::Request(unlock()), big(3500, 1000)];
    for waits in waits {
        let mut world = ClientWorld::with_a_big_file_there();
        world.write_at(&[1000, 3000]);
        let call = world.call_as(user(0, 0), waits);
        assert!(world.answer(call).is_none());
        assert_eq!(world.sent_to_streams(), [[(1000, 1000)], [(3000, 1000)]]);
    }
    // The server revokes a lease.
    let mut world = ClientWorld::with_a_big_file_there();
    world.write_at(&[1000, 3000]);
    world.revoke(5);
    assert_eq!(world.sent_to_streams().len(), 2);
    world.write_done();
    assert_eq!(world.revoked, []);
    world.write_done();
    assert_eq!(world.revoked, [5]);
}

#[test]
fn rewritten_gathered_bytes_are_sent_once() {
    let mut world = ClientWorld::with_a_big_file_there();
    let write = |offset, byte| Call::write(FILE, offset, vec![byte; 1000].into(), false);
    for (offset, byte) in [(1000, b'a'), (3000, b'b'), (5000, b'c'), (3000, b'd')] {
        assert!(world.is_written(write(offset, byte)));
    }
    // A request that was sent may be executed after a later one.
    assert!(!world.is_written(write(1000, b'e')));
    assert_eq!(world.sent_to_streams(), [vec![(1000, 1000)], vec![(3000, 1000), (5000, 1000)]]);
    assert_eq!(world.streams[1].bytes[0], b'd');
}

#[test]
fn neither_many_bytes_are_gathered_nor_long_writes() {
    let mut world = ClientWorld::with_a_big_file_there();
    assert!((0..17).all(|number| world.is_written(big(32_768 * number, 16 << 10))));
    assert_eq!(world.sent_to_streams().iter().map(Vec::len).collect::<Vec<_>>(), [1, 16]);
    assert!(world.is_written(big(1 << 20, (16 << 10) + 1)));
    assert_eq!(world.sent_to_streams().len(), 3);
    // All of it counts as pending.
    let count = (2..100).take_while(|n| world.is_written(big(n << 20, 1 << 20))).count();
    assert_eq!(count, 7);
}

#[test]
fn a_list_has_no_more_pieces_than_fit_a_message() {
    let mut world = ClientWorld::with_a_big_file_there();
    assert!((0..5000).all(|number| world.is_written(big(2 * number, 1))));
    assert_eq!(world.sent_to_streams()[1..].iter().map(Vec::len).collect::<Vec<_>>(), [1024; 4]);
}

/// A program's writes of one MiB arrive as 1,048,560 and 16 bytes.
#[test]
fn gathered_writes_precede_later_ones() {
    let mut world = ClientWorld::with_a_big_file_there();
    let pieces = [(0, 1 << 20), (1 << 20, 16), ((1 << 20) + 16, 1 << 20)];
    assert!(pieces.iter().all(|(offset, length)| world.is_written(big(*offset, *length))));
    assert_eq!(world.sent_to_streams(), pieces.map(|piece| [piece]));
}

#[test]
fn failed_gathered_write_is_reported() {
    let (mut world, id) = ClientWorld::with_a_list_under_way();
    world.reply(id, Touched::default(), Err(Errno::ENOSPC));
    let call = world.call(Request::Fsync { ino: FILE });
    assert!(matches!(world.answer(call), Some(Err(Errno::ENOSPC))));
    assert_eq!(world.sessions.unanswered_changes(), 0);
}

#[test]
fn gathered_writes_are_dropped_with_session() {
    let mut world = ClientWorld::with_a_big_file_there();
    world.write_at(&[1000, 3000]);
    let mut actions = Actions::default();
    world.sessions.ended(world.now, Rank(0), &mut actions);
    world.take(actions);
    assert_eq!(world.streams.len(), 1, "the gathered write was sent before");
    assert_eq!(world.sessions.unanswered_changes(), 0);
    let failed = |actions: &&FrontendEvent<u64>| {
        matches!(actions, FrontendEvent::Failed { ino: FILE, errno: Errno::EIO, .. })
    };
    assert_eq!(world.frontend.iter().filter(failed).count(), 2);
}

/// A power failure has undone the unstuffing; the client writes the pieces again.
#[test]
fn gathered_writes_to_stuffed_file_are_sent_one_by_one() {
    let (mut world, id) = ClientWorld::with_a_list_under_way();
    let before = world.sent.len();
    world.reply(id, Touched::default(), Ok(Reply::Stuffed));
    let requested: Vec<_> = world.sent.drain(before..).collect();
    let written = |request: &Request| match request {
        Request::Write { ino: FILE, offset, data, .. } => Some((*offset, data.len())),
        _ => None,
    };
    let writes: Vec<_> = requested.iter().filter_map(|(_, _, request)| written(request)).collect();
    assert_eq!(writes, [(3000, 1000), (5000, 1000)]);
    let ids: Vec<_> = requested.into_iter().map(|(id, ..)| id).collect();
    world.reply(ids[0], Touched::default(), Err(Errno::EDQUOT));
    assert_eq!(world.sessions.unanswered_changes(), 1);
    world.reply(ids[1], Touched::default(), Ok(Reply::Written(1000)));
    assert_eq!(world.sessions.unanswered_changes(), 0);
    let call = world.call(Request::Fsync { ino: FILE });
    assert!(matches!(world.answer(call), Some(Err(Errno::EDQUOT))));
}

#[test]
fn dependent_call_waits_for_write() {
    let mut world = ClientWorld::with_a_big_file();
    assert!(world.is_written(big(1000, 1000)));
    let sent = world.sent.len();
    let stat = world.waits(Request::GetAttr { ino: FILE });
    let sync = world.waits(Request::Fsync { ino: FILE });
    let sync_all = world.waits(Request::SyncFs { rank: Rank(0) });
    let close = world.waits(unlock());
    assert_eq!(world.sent.len(), sent);
    // No later write precedes them, so they cannot starve.
    assert!(!world.is_written(big(2000, 1000)));
    // Operations on other files do not matter.
    world.call(Request::Fsync { ino: Ino(11) });
    assert_eq!(world.sent.len(), sent + 1);
    world.data_written();
    let waited: Vec<_> = world.sent.drain(sent + 1..).map(|(_, _, request)| request).collect();
    let whole = Request::SyncFs { rank: Rank(0) };
    assert_eq!(waited, [Request::GetAttr { ino: FILE }, Request::Fsync { ino: FILE }, whole, unlock()]);
    assert!([stat, sync, sync_all, close].into_iter().all(|call| world.answer(call).is_none()));
}

#[test]
fn a_file_is_released_when_all_is_written() {
    let mut world = ClientWorld::with_a_big_file();
    assert!(world.is_written(big(1000, 1000)));
    let sent = world.sent.len();
    world.call_as(user(0, 0), Call::Release { ino: FILE });
    assert_eq!(world.sent.len(), sent);
    world.gets_another(delegation());
    assert_eq!(world.sent.len(), sent);
    world.data_written();
    assert_eq!(world.last().2, Request::Release { ino: FILE });
}

#[test]
fn next_operation_reports_failed_write() {
    for next in [Call::Request(Request::Fsync { ino: FILE }), Call::Request(unlock()), big(3000, 10)] {
        let mut world = ClientWorld::with_a_big_file();
        assert!(world.is_written(big(1000, 1000)));
        assert!(world.sessions.has_write_behind(FILE));
        world.data_done(DataOutcome::Done(Err(Errno::ENOSPC)));
        let failed = |actions: &FrontendEvent<u64>| {
            matches!(actions, FrontendEvent::Failed { ino: FILE, name: None, errno: Errno::ENOSPC, .. })
        };
        assert!(world.frontend.iter().any(failed));
        assert!(world.sessions.has_write_behind(FILE), "the close reports the error");
        let is_unlock = matches!(next, Call::Request(Request::Unlock { .. }));
        let call = world.call_as(user(0, 0), next);
        assert!(matches!(world.answer(call), Some(Err(Errno::ENOSPC))));
        assert!(!world.sessions.has_write_behind(FILE), "the error is reported once");
        if is_unlock {
            assert_eq!(world.last().2, unlock(), "the file is closed nevertheless");
        }
    }
}

#[test]
fn interrupt_keeps_acknowledged_operation() {
    let mut world = ClientWorld::with_a_big_file();
    let call = world.call_as(user(0, 0), big(1000, 1000));
    assert!(world.answer(call).is_some());
    let mut actions = Actions::default();
    let heard = world.sessions.interrupt(call, |_| true, |_| true, &mut actions);
    assert_eq!(heard, Interrupt::Unknown);
    assert!(actions.abandoned.is_empty());
}

#[test]
fn file_is_visible_to_others_after_all_writes() {
    let mut world = ClientWorld::with_a_big_file();
    assert!(world.is_written(big(1000, 1000)));
    world.revoke(5);
    assert_eq!(world.revoked, []);
    // Other clients may overtake a write from here on.
    assert!(!world.is_written(big(5000, 1000)));
    world.data_written();
    assert_eq!(world.revoked, [5]);
    world.data.clear();
    world.revoke_inode(6, FILE);
    assert_eq!(world.revoked, [5, 6]);
}

#[test]
fn only_unshared_single_link_files_use_write_behind() {
    // A second name may be in a directory that other clients know.
    let mut world = ClientWorld::with_a_big_file();
    let link = Request::Link { ino: FILE, dir: DIR, name: name("second") };
    world.call(link);
    assert!(!world.is_written(big(1000, 1000)));

    let mut world = ClientWorld::with_a_big_file();
    let two = Attr { nlink: 2, streamed: true, ..attr(FILE, FileType::Regular, 1000) };
    world.sessions.cache().distrust();
    world.call(lookup("big"));
    let (id, ..) = world.last();
    let touched = Touched { exclusive: Some(DIR), ..Touched::default() };
    world.reply(id, touched, Ok(Reply::Entry(entry(two, true))));
    assert!(!world.is_written(big(1000, 1000)));
}

#[test]
fn writes_lost_with_session_are_reported() {
    let mut world = ClientWorld::with_a_big_file();
    assert!(world.is_written(big(1000, 1000)));
    // The session continues on another connection.
    world.connect(1, true);
    assert!(world.sessions.has_write_behind(FILE));
    world.frontend.clear();
    world.connect(2, false);
    assert!(
        world
            .frontend
            .iter()
            .any(|actions| matches!(actions, FrontendEvent::Failed { ino: FILE, errno: Errno::EIO, .. }))
    );
    assert_eq!(world.sessions.unanswered_changes(), 0);
}
