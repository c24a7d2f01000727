//! Requests for names of other ranks that are forwarded (`dir_forward`).

use super::routed::*;
use crate::harness::{Harness, ROOT_CALLER, Ranks, config, name};
use espalier_meta::{Acknowledge, Config, Input};
use espalier_proto::*;

const CLIENT: ClientId = ClientId(1);

impl Routed {
    /// A directory that forwards, with a fragment at each rank, and a client with sessions at these
    /// ranks.
    fn forwarding(sessions: &[u16]) -> (Self, Ino) {
        let host = |rank| {
            let (session_ms, lease_ms) = (Some(u32::MAX), Some(10_000));
            let acknowledge = Acknowledge::Written;
            let config =
                Config { session_ms, lease_ms, acknowledge, rank: Rank(rank), ranks: RANKS, ..config() };
            Harness::with(config)
        };
        let mut fs = Self { fs: Ranks((0..RANKS).map(host).collect()), maps: Default::default() };
        // A split waits for the client's leases.
        (0..RANKS).for_each(|rank| fs.fs.connect_client(rank, false));
        let dir = fs.fs.mkdir_at(HOME, Ino::ROOT, "dir", 0o777);
        fs.ask(set_xattr(dir, "user.espalier.dir_servers", b"4")).unwrap();
        fs.ask(set_xattr(dir, "user.espalier.dir_forward", b"true")).unwrap();
        assert_eq!(fs.map(dir).fragments().count(), 4);
        for rank in 0..RANKS {
            match sessions.contains(&rank) {
                true => fs.fs.connect_client(rank, true),
                false => fs.fs.0[usize::from(rank)].input(Input::Leave { client: CLIENT }),
            }
        }
        (fs, dir)
    }

    /// Sends a request to the home server as one that was sent before, or the next one.
    fn send_home(&mut self, id: u64, request: &Request) -> Option<Result<Reply, Errno>> {
        self.send_to(HOME, RequestId(id), request)
    }

    fn send_to(&mut self, rank: u16, id: RequestId, request: &Request) -> Option<Result<Reply, Errno>> {
        let (caller, request, below) = (ROOT_CALLER, request.clone(), RequestId(0));
        let host = &mut self.fs.0[usize::from(rank)];
        host.input(Input::Request { from: CLIENT, id, below, follows: Vec::new(), caller, request });
        host.run_until_idle();
        host.answers.remove(&id.0)
    }

    fn executed(&mut self, rank: u16, id: RequestId) -> Option<Result<Reply, Errno>> {
        self.fs.deliver();
        self.fs.0[usize::from(rank)].answers.remove(&id.0)
    }

    fn forwards(&self) -> u64 {
        self.fs.0.iter().map(|host| host.meta.figures().fragment_counts.forwarded).sum()
    }

    /// A fragment at another rank than the directory, and a name in it.
    fn far_name(&mut self, dir: Ino) -> (Ino, String) {
        let map = self.map(dir);
        (map.ino(2).unwrap(), name_in(&map, 2, "far"))
    }
}

impl Ranks {
    fn connect_client(&mut self, rank: u16, leases: bool) {
        let host = &mut self.0[usize::from(rank)];
        host.input(Input::Connect { client: CLIENT, leases, resumes: false });
        host.run_until_idle();
    }
}

fn first_id() -> u64 {
    // Above those of the requests that have made the directory.
    500
}

/// The number of a request of the home server where it is executed.
fn forwarded(id: u64) -> RequestId {
    RequestId(id).forwarded_by(Rank(HOME))
}

fn made(reply: Option<Result<Reply, Errno>>) -> Ino {
    match reply.expect("an answer").unwrap() {
        Reply::Entry(entry) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn create_is_forwarded_to_the_fragment_of_its_name() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1, 2, 3]);
    let (fragment, file) = fs.far_name(dir);
    let id = first_id();
    let reply = fs.send_home(id, &create(dir, &file, NewNode::Regular)).expect("an answer");
    let Ok(Reply::Forwarded { to, fragments: Some(fragments) }) = reply else { panic!("{reply:?}") };
    assert_eq!((to, fragments.map), (fragment, fs.map(dir)));
    let ino = made(fs.executed(fragment.rank().0, forwarded(id)));
    assert_eq!(ino.rank(), fragment.rank());
    // The client may not hold the fragment, so nothing is leased.
    assert_eq!(fs.fs.0[usize::from(fragment.rank().0)].leases[&forwarded(id).0].0, 0);
    assert_eq!(fs.forwards(), 1);
    assert!(matches!(fs.ask(Request::Lookup { dir, name: name(&file) }), Ok(Reply::Entry(_))));
}

#[test]
fn forwarded_request_is_executed_once() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1, 2, 3]);
    let (fragment, file) = fs.far_name(dir);
    let (id, rank) = (first_id(), fragment.rank().0);
    let at_home = create(dir, &file, NewNode::Regular);
    let at_fragment = create(fragment, &file, NewNode::Regular);
    assert!(matches!(fs.send_home(id, &at_home), Some(Ok(Reply::Forwarded { .. }))));
    let ino = made(fs.executed(rank, forwarded(id)));
    // The client has not received the answer, and repeats the request at either server.
    assert_eq!(made(fs.send_to(rank, forwarded(id), &at_fragment)), ino);
    assert!(matches!(fs.send_home(id, &at_home), Some(Ok(Reply::Forwarded { .. }))));
    assert_eq!(fs.executed(rank, forwarded(id)), None, "it is not forwarded again");
    // Neither a restart of the one nor of the other executes it again.
    for crashed in [rank, HOME] {
        fs.fs.crash(crashed, false);
        fs.fs.connect_client(crashed, false);
        fs.reclaim(crashed);
        let Some(Ok(Reply::Forwarded { to, .. })) = fs.send_home(id, &at_home) else { panic!() };
        assert_eq!(to, fragment);
        fs.executed(rank, forwarded(id));
        assert_eq!(made(fs.send_to(rank, forwarded(id), &at_fragment)), ino);
    }
}

#[test]
fn request_that_is_repeated_after_a_restart_goes_where_it_was_forwarded_to() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1, 2, 3]);
    let (fragment, file) = fs.far_name(dir);
    let (id, rank) = (first_id(), fragment.rank().0);
    let at_home = create(dir, &file, NewNode::Regular);
    assert!(matches!(fs.send_home(id, &at_home), Some(Ok(Reply::Forwarded { .. }))));
    let ino = made(fs.executed(rank, forwarded(id)));
    // The name moves to the home server, which then would execute the request itself.
    (0..RANKS).for_each(|rank| fs.fs.connect_client(rank, false));
    fs.ask(set_xattr(dir, "user.espalier.pin", HOME.to_string().as_bytes())).unwrap();
    (0..40).for_each(|_| fs.fs.tick());
    assert_eq!(fs.map(dir).fragment(hash(&file)).rank(), Rank(HOME));
    fs.fs.crash(HOME, true);
    fs.fs.connect_client(HOME, false);
    fs.reclaim(HOME);
    let reply = fs.send_home(id, &at_home);
    assert!(matches!(reply, Some(Ok(Reply::Forwarded { to, .. })) if to == fragment), "{reply:?}");
    assert_eq!(made(fs.send_to(rank, forwarded(id), &create(fragment, &file, NewNode::Regular))), ino);
}

#[test]
fn server_without_a_session_of_the_client_leaves_a_forwarded_request_to_it() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1]);
    let (fragment, file) = fs.far_name(dir);
    let (id, rank) = (first_id(), fragment.rank().0);
    assert!(rank > 1);
    assert!(matches!(
        fs.send_home(id, &create(dir, &file, NewNode::Regular)),
        Some(Ok(Reply::Forwarded { .. }))
    ));
    assert_eq!(fs.executed(rank, forwarded(id)), None);
    fs.fs.connect_client(rank, false);
    made(fs.send_to(rank, forwarded(id), &create(fragment, &file, NewNode::Regular)));
}

#[test]
fn server_that_knows_no_map_forwards_to_the_home_server() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1, 2, 3]);
    let map = fs.map(dir);
    let (wrong, right) = (map.ino(1).unwrap(), map.ino(2).unwrap());
    let file = name_in(&map, 2, "far");
    let id = RequestId(first_id());
    let reply = fs.send_to(wrong.rank().0, id, &create(wrong, &file, NewNode::Regular));
    assert_eq!(reply, Some(Ok(Reply::Forwarded { to: dir, fragments: None })));
    let id = id.forwarded_by(wrong.rank());
    let reply = fs.executed(HOME, id);
    assert!(matches!(reply, Some(Ok(Reply::Forwarded { to, fragments: Some(_) })) if to == right));
    made(fs.executed(right.rank().0, id));
    assert_eq!(fs.forwards(), 2);
}

#[test]
fn acknowledged_change_and_rename_are_not_forwarded() {
    let (mut fs, dir) = Routed::forwarding(&[0, 1, 2, 3]);
    let (_, file) = fs.far_name(dir);
    let acknowledged = unlink(dir, &file).acknowledged(Ino(0), Time::new(1000, 0));
    assert!(matches!(fs.send_home(first_id(), &acknowledged), Some(Ok(Reply::Fragments(_)))));
    let (from, to, flags) = (name(&file), name("to"), RenameFlags::empty());
    let rename = Request::Rename { from_dir: dir, from, to_dir: dir, to, flags, time: None };
    assert!(matches!(fs.send_home(first_id() + 1, &rename), Some(Ok(Reply::Fragments(_)))));
    assert_eq!(fs.forwards(), 0);
}

impl Routed {
    fn reclaim(&mut self, rank: u16) {
        let again = Vec::from([forwarded(first_id())]);
        let reclaim = Request::Reclaim { held: Vec::new(), last: true, again };
        let reply = self.send_to(rank, RequestId(first_id() + 400), &reclaim);
        assert_eq!(reply, Some(Ok(Reply::Done)));
    }
}
