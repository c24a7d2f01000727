//! Sums of the attributes of all fragments, and their syncs.

use espalier_client::{Actions, Interrupt};
use espalier_proto::{
    Attr, Caller, Errno, FromClient, FromServer, Lease, Rank, Reply, Request, RequestId, RevocationId,
    Touched,
};

use super::{
    Call, DIR, LEASE_MS, Machine, ONE, TWO, fragment, fragments, get_attr, merged, part, reply_with,
};

impl Machine {
    /// Replies to the last request, without a lease.
    fn reply_to_last(&mut self, result: Result<Reply, Errno>) {
        let (rank, id, _) = self.requests.pop_back().expect("a request");
        self.reply_to((rank, id), 0, Touched::default(), result);
    }

    /// The requests that have no reply, in the order in which they were sent.
    fn unanswered(&self) -> Vec<Request> {
        self.requests.iter().map(|(_, _, request)| request.clone()).collect()
    }

    /// Interrupts the only call, whose process dies. Returns the requests that this cancels.
    fn kill_caller(&mut self) -> Vec<RequestId> {
        let mut actions = Actions::default();
        let interrupt = self.sessions.interrupt(self.calls, |_| true, |_| false, &mut actions);
        assert_eq!(interrupt, Interrupt::Heard);
        let cancelled = actions.send.iter().filter_map(|(_, message)| match message {
            FromClient::Cancel { id } => Some(*id),
            _ => None,
        });
        let cancelled = cancelled.collect();
        self.take(actions);
        cancelled
    }
}

#[test]
fn unleased_attributes_are_summed_until_two_rounds_agree() {
    let mut machine = Machine::new();
    let sizes = |machine: &mut Machine, sizes: [u64; 3]| {
        machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, sizes[0], 3))));
        if machine.sent() == Some((0, Request::Fragments { dir: DIR })) {
            machine.reply(0, Ok(fragments(&[1, 2])));
        }
        machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, sizes[1], 4))));
        machine.expect(get_attr(TWO), Ok(Reply::Attr(fragment(TWO, sizes[2], 2))));
    };
    machine.call(get_attr(DIR));
    sizes(&mut machine, [10, 20, 30]);
    sizes(&mut machine, [10, 19, 30]);
    sizes(&mut machine, [10, 19, 31]);
    sizes(&mut machine, [10, 19, 31]);
    assert_eq!(machine.attr(), (DIR, 60, 2 + 1 + 2));
    assert!(machine.sessions.attr(DIR, 0).is_none());
}

#[test]
fn sum_is_repeated_with_the_map_of_a_directory_that_splits_meanwhile() {
    let mut machine = Machine::new();
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 1, 10, 2))));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1])));
    machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 10, 2))));
    // Four of the first fragment's names have gone to another.
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 6, 2))));
    machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 10, 2))));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 10, 2))));
    machine.expect(get_attr(TWO), Ok(Reply::Attr(fragment(TWO, 4, 2))));
    for attr in [part(DIR, 2, 6, 2), fragment(ONE, 10, 2), fragment(TWO, 4, 2)] {
        machine.expect(get_attr(attr.ino), Ok(Reply::Attr(attr)));
    }
    assert_eq!(machine.attr(), (DIR, 20, 2));
}

#[test]
fn sum_has_no_attributes_from_before_its_map() {
    let mut machine = Machine::new();
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 1, 10, 2))));
    // Four of the first fragment's names have gone to another since.
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 10, 2))));
    machine.expect(get_attr(TWO), Ok(Reply::Attr(fragment(TWO, 4, 2))));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    for _ in 0..2 {
        for attr in [part(DIR, 2, 6, 2), fragment(ONE, 10, 2), fragment(TWO, 4, 2)] {
            machine.expect(get_attr(attr.ino), Ok(Reply::Attr(attr)));
        }
    }
    assert_eq!(machine.attr(), (DIR, 20, 2));
}

#[test]
fn leased_attributes_are_summed_in_one_round_and_cached() {
    let mut machine = Machine::with_map(&[1]);
    machine.call(get_attr(DIR));
    for attr in [part(DIR, 1, 10, 2), fragment(ONE, 5, 3)] {
        assert_eq!(machine.sent(), Some((attr.ino.rank().0, get_attr(attr.ino))));
        machine.reply(LEASE_MS, Ok(Reply::Attr(attr)));
    }
    assert_eq!(machine.attr(), (DIR, 15, 3));
    assert_eq!(machine.sessions.attr(DIR, 1).map(|attr| attr.size), Some(15));
    // The first of their leases that ends is that of the answer.
    let (number, lease) = (RevocationId(1), Lease::Inode { ino: ONE });
    machine.sessions.received(1, Rank(1), FromServer::Revoke { number, lease }, &mut Actions::default());
    assert!(machine.sessions.attr(DIR, 1).is_none());
}

#[test]
fn permissions_of_a_contended_directory_are_known_without_its_sum() {
    let mut machine = Machine::with_map(&[1]);
    machine.call(get_attr(DIR));
    for attr in [part(DIR, 1, 10, 2), fragment(ONE, 5, 3)] {
        machine.reply(LEASE_MS, Ok(Reply::Attr(attr)));
    }
    machine.attr();
    let call = Call::Request(get_attr(DIR));
    let revoke = |machine: &mut Machine, lease| {
        let revoke = FromServer::Revoke { number: RevocationId(1), lease };
        machine.sessions.received(0, Rank(1), revoke, &mut Actions::default());
    };
    revoke(&mut machine, Lease::Contents { dir: ONE });
    // The next sum may be leased again.
    assert_eq!(machine.sessions.rights_of_contended(0, &call), None);
    machine.call(get_attr(DIR));
    machine.reply(LEASE_MS, Ok(Reply::Attr(part(DIR, 1, 10, 2))));
    for _ in 0..2 {
        let contended = Attr { contents_leased: false, ..fragment(ONE, 6, 3) };
        assert_eq!(machine.sent(), Some((1, get_attr(ONE))));
        machine.reply(LEASE_MS, Ok(Reply::Attr(contended)));
    }
    assert_eq!(machine.attr(), (DIR, 16, 3));
    assert!(machine.sessions.answer(0, &Caller::SERVER, &call).is_none(), "the sum is not leased");
    assert_eq!(machine.sessions.rights_of_contended(0, &call).map(|attr| attr.perm), Some(0o755));
    revoke(&mut machine, Lease::Inode { ino: DIR });
    assert_eq!(machine.sessions.rights_of_contended(0, &call), None);
}

#[test]
fn fragments_of_a_round_are_asked_at_the_same_time() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 10, 2))));
    assert_eq!(machine.unanswered(), [get_attr(ONE), get_attr(TWO)]);
    assert_eq!([0, 1, 2].map(|rank| machine.sessions.waiting(Rank(rank))), [0, 1, 1]);
    // Replies come in any order.
    machine.reply_to_last(Ok(Reply::Attr(fragment(TWO, 30, 2))));
    assert_eq!([0, 1, 2].map(|rank| machine.sessions.waiting(Rank(rank))), [0, 1, 0]);
    machine.reply_to_last(Ok(Reply::Attr(fragment(ONE, 20, 2))));
    // A round begins after the one before has ended.
    assert_eq!(machine.unanswered(), [DIR, ONE, TWO].map(get_attr));
    for attr in [fragment(TWO, 30, 2), fragment(ONE, 20, 2), part(DIR, 2, 10, 2)] {
        assert!(machine.answers.is_empty());
        machine.reply_to_last(Ok(Reply::Attr(attr)));
    }
    assert_eq!(machine.attr(), (DIR, 60, 2));
}

#[test]
fn sum_follows_a_fragment_that_has_merged() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 10, 2))));
    machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 20, 2))));
    // The names of the second fragment have gone to the first.
    machine.expect(get_attr(TWO), Err(Errno::ESTALE));
    let merged = merged(&[1, 2]);
    let version = merged.version();
    machine.expect(Request::Fragments { dir: DIR }, Ok(reply_with(merged)));
    for _ in 0..2 {
        machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, version, 10, 2))));
        machine.expect(get_attr(ONE), Ok(Reply::Attr(fragment(ONE, 50, 2))));
    }
    assert_eq!(machine.attr(), (DIR, 60, 2));
}

#[test]
fn removed_directory_has_the_attributes_of_its_own_record() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 0, 2))));
    // It is removed meanwhile, while a process has it open.
    machine.expect(get_attr(ONE), Err(Errno::ESTALE));
    machine.expect(get_attr(TWO), Err(Errno::ESTALE));
    machine.expect(Request::Fragments { dir: DIR }, Ok(fragments(&[1, 2])));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 0, 0))));
    machine.expect(get_attr(ONE), Err(Errno::ESTALE));
    machine.expect(get_attr(TWO), Err(Errno::ESTALE));
    assert_eq!(machine.attr(), (DIR, 0, 0));
}

#[test]
fn killed_caller_waits_for_no_fragment() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 10, 2))));
    let mut requested: Vec<_> = machine.requests.iter().map(|(_, id, _)| *id).collect();
    let mut cancelled = machine.kill_caller();
    requested.sort_unstable();
    cancelled.sort_unstable();
    assert_eq!(cancelled, requested);
    machine.reply(0, Err(Errno::EINTR));
    assert_eq!(machine.answers.remove(0).0.err(), Some(Errno::EINTR));
    // The other reply is not missed.
    machine.reply(0, Ok(Reply::Attr(fragment(TWO, 5, 2))));
    assert_eq!((machine.answers.len(), machine.sessions.waiting(Rank(2))), (0, 0));
}

#[test]
fn killed_caller_waits_for_no_server_that_is_down() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 10, 2))));
    machine.sessions.disconnected(Rank(2));
    machine.kill_caller();
    assert_eq!(machine.answers.remove(0).0.err(), Some(Errno::EINTR));
    machine.reply(0, Ok(Reply::Attr(fragment(ONE, 5, 2))));
    assert!(machine.answers.is_empty());
}

#[test]
fn sum_fails_once_with_the_sessions_of_its_servers() {
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(get_attr(DIR));
    machine.expect(get_attr(DIR), Ok(Reply::Attr(part(DIR, 2, 10, 2))));
    for rank in [1, 2].map(Rank) {
        let mut actions = Actions::default();
        machine.sessions.ended(0, rank, &mut actions);
        machine.take(actions);
    }
    let errors: Vec<_> = machine.answers.drain(..).map(|(result, _)| result.err()).collect();
    assert_eq!(errors, [Some(Errno::EIO)]);
}

#[test]
fn fsync_syncs_all_fragments_at_the_same_time() {
    let sync = |ino| Request::Fsync { ino };
    for failing in [None, Some(DIR), Some(ONE), Some(TWO)] {
        let mut machine = Machine::with_map(&[1, 2]);
        machine.call(sync(DIR));
        let reply = |ino| if failing == Some(ino) { Err(Errno::EIO) } else { Ok(Reply::Done) };
        machine.expect(sync(DIR), reply(DIR));
        if failing != Some(DIR) {
            assert_eq!(machine.unanswered(), [sync(ONE), sync(TWO)]);
            machine.reply_to_last(reply(TWO));
            assert_eq!(machine.answers.is_empty(), failing != Some(TWO));
            machine.reply_to_last(reply(ONE));
        }
        assert_eq!(machine.answer().err(), failing.map(|_| Errno::EIO));
    }
    // The fragment has merged into another one.
    let mut machine = Machine::with_map(&[1, 2]);
    machine.call(sync(DIR));
    machine.expect(sync(DIR), Ok(Reply::Done));
    machine.reply_to_last(Err(Errno::ESTALE));
    machine.reply_to_last(Ok(Reply::Done));
    assert_eq!(machine.answer().err(), None);
}
