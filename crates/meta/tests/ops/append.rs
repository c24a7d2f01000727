//! Appends to streams, which the server executes itself.

use espalier_meta::{Acknowledge, Config, Input, Striping};
use espalier_proto::*;

use crate::harness::{DataServers, Engine, Fault, Harness, ROOT_CALLER, config, name, open_how};

const SESSION_MS: u32 = 60_000;
const BEFORE: &[u8] = &[b'.'; 100];

/// The place of a server's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BytesAt {
    /// With its tables, in memory or in a directory.
    Here(Engine),
    OnDataServers,
}

const EVERYWHERE: [BytesAt; 3] =
    [BytesAt::Here(Engine::Memory), BytesAt::Here(Engine::Local), BytesAt::OnDataServers];

/// A server with a file of 100 bytes in a stream, which two clients have open.
struct TestServer {
    fs: Harness,
    ino: Ino,
    /// Each client's hold on it.
    held: [Held; 2],
}

const ONE: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);

impl TestServer {
    fn new(bytes_at: BytesAt) -> Self {
        let distribution = Distribution::SimpleStripe { strip: 10 };
        let striping = Striping::new(distribution, (0..3).map(ServerId).collect(), 3).unwrap();
        let config = Config {
            session_ms: Some(SESSION_MS),
            acknowledge: Acknowledge::Written,
            journal_capacity: (1 << 20) + (256 << 10),
            striping: (bytes_at == BytesAt::OnDataServers).then_some(striping),
            ..config()
        };
        let engine = if let BytesAt::Here(engine) = bytes_at { engine } else { Engine::Local };
        let mut fs = Harness::on(engine, config);
        fs.data = DataServers::new(3);
        for client in [ONE, OTHER] {
            fs.input(Input::Connect { client, leases: true, resumes: false });
        }
        let how = open_how(Access::READ | Access::WRITE, false);
        let create = Request::Create {
            dir: Ino::ROOT,
            name: name("file"),
            node: NewNode::Regular,
            perm: 0o644,
            umask: 0,
            open: Some(how),
            exclusive: true,
            writeback: None,
        };
        let Ok(Reply::Created(entry, opened)) = fs.ask(create) else { panic!("no file") };
        let ino = entry.attr.ino;
        let one = Held {
            ino,
            location: entry.location,
            lookups: 1,
            opens: 1,
            lookup_token: entry.reclaim_token,
            opened: opened.reclaim_token,
            exclusive: false,
        };
        let mut server = Self { fs, ino, held: [one; 2] };
        assert_eq!(server.append(ONE, 2, &BEFORE[..50]), Ok(Reply::Done));
        assert_eq!(server.append(ONE, 3, &BEFORE[50..]), Ok(Reply::Streamed));
        assert_eq!(server.append(ONE, 4, &BEFORE[50..]), Ok(Reply::Written(50)));
        let lookup = Request::Lookup { dir: Ino::ROOT, name: name("file") };
        let Ok(Reply::Entry(entry)) = server.ask(OTHER, 1, lookup) else { panic!("no name") };
        let Ok(Reply::Opened(opened)) = server.ask(OTHER, 2, Request::Open { ino, how }) else {
            panic!("not open")
        };
        server.held[1] = Held { lookup_token: entry.reclaim_token, opened: opened.reclaim_token, ..one };
        server.fs.count = 0;
        server
    }

    fn send(&mut self, from: ClientId, number: u64, request: Request) -> RequestId {
        // Requests of different clients get different numbers, so the harness can distinguish them.
        let id = RequestId((from.0 << 32) + number);
        let below = RequestId((from.0 << 32) + 1);
        self.fs.input(Input::Request { from, id, below, follows: Vec::new(), caller: ROOT_CALLER, request });
        id
    }

    fn answer(&mut self, id: RequestId) -> Option<Result<Reply, Errno>> {
        self.fs.answers.remove(&id.0)
    }

    fn ask(&mut self, from: ClientId, number: u64, request: Request) -> Result<Reply, Errno> {
        let id = self.send(from, number, request);
        self.answer(id).unwrap_or(Err(Errno::EIO))
    }

    fn send_append(&mut self, from: ClientId, number: u64, data: &[u8]) -> RequestId {
        let (ino, data) = (self.ino, data.to_vec());
        self.send(
            from,
            number,
            Request::Write { ino, offset: END, data: data.into(), kill_suid_gid: false, time: None },
        )
    }

    fn append(&mut self, from: ClientId, number: u64, data: &[u8]) -> Result<Reply, Errno> {
        let id = self.send_append(from, number, data);
        self.answer(id).unwrap_or(Err(Errno::EIO))
    }

    /// Kills and restarts the server. `cold`: its journal is empty.
    fn restart(mut self, cold: bool) -> Self {
        self.fs = self.fs.crash();
        if cold {
            self.fs.checkpoint();
            self.fs = self.fs.crash();
        }
        self
    }

    /// Reclaims a client's hold after a restart. `again`: the requests that it repeats.
    fn reclaim(&mut self, client: ClientId, again: &[u64]) {
        self.fs.input(Input::Connect { client, leases: true, resumes: false });
        let held = self.held[usize::from(client == OTHER)];
        let again = again.iter().map(|number| RequestId((client.0 << 32) + number)).collect();
        let reclaim = Request::Reclaim { held: vec![held], last: true, again };
        assert_eq!(self.ask(client, 9, reclaim), Ok(Reply::Done));
    }

    fn expire(&mut self) {
        for _ in 0..3 {
            self.fs.uptime_ms += u64::from(SESSION_MS);
            self.fs.input(Input::Tick);
        }
    }

    fn contents(&self) -> Vec<u8> {
        let layout = self.fs.meta.place_of(&StreamIo::read(self.ino, 0, 0));
        match layout {
            espalier_meta::DataLocation::Servers(layout) => self.fs.data.read(&layout, self.ino),
            _ => {
                let mut bytes = vec![0; 200];
                let read = self.fs.disk.store().stream_read(self.ino, 0, &mut bytes).unwrap();
                bytes[..read].to_vec()
            }
        }
    }
}

fn with(appended: &[&[u8]]) -> Vec<u8> {
    [BEFORE, &appended.concat()].concat()
}

#[test]
fn append_follows_existing_bytes() {
    for bytes_at in EVERYWHERE {
        let mut server = TestServer::new(bytes_at);
        assert_eq!(server.append(ONE, 5, b"one"), Ok(Reply::Written(3)), "{bytes_at:?}");
        assert_eq!(server.append(OTHER, 3, b"other"), Ok(Reply::Written(5)));
        assert_eq!(server.append(OTHER, 4, b""), Ok(Reply::Written(0)));
        assert_eq!(server.append(ONE, 5, b"one"), Ok(Reply::Written(3)), "the answer is sent again");
        assert_eq!(server.contents(), with(&[b"one", b"other"]));
    }
}

/// Files that are not open for writing, and quotas.
#[test]
fn caller_without_permission_is_refused() {
    let mut server = TestServer::new(BytesAt::Here(Engine::Memory));
    let (limit, dir) = (b"user.espalier.quota.max_bytes".as_slice().into(), Ino::ROOT);
    let (value, mode) = (b"104".as_slice().into(), XattrMode::Any);
    server.ask(ONE, 6, Request::SetXattr { ino: dir, name: limit, value, mode, kill_sgid: false }).unwrap();
    assert_eq!(server.append(ONE, 7, b"12345"), Err(Errno::EDQUOT));
    assert_eq!(server.append(ONE, 8, b"1234"), Ok(Reply::Written(4)));
    server.ask(ONE, 10, Request::Release { ino: server.ino }).unwrap();
    assert_eq!(server.append(ONE, 11, b""), Err(Errno::EBADF));
    assert_eq!(server.contents(), with(&[b"1234"]));
}

/// At whatever I/O the server is killed, and whether others append or truncate before the client
/// repeats the request.
#[test]
fn an_append_is_made_once_whatever_the_server_is_killed_at() {
    // These keep what was written, as a kernel does.
    for bytes_at in [BytesAt::Here(Engine::Local), BytesAt::OnDataServers] {
        let mut calm = TestServer::new(bytes_at);
        assert_eq!(calm.append(ONE, 5, b"one"), Ok(Reply::Written(3)));
        let ios = calm.fs.count;
        assert!(ios >= 4, "where it ends, the journal, the bytes, the journal: {ios}");
        for (crash, cold) in (0..=ios).flat_map(|crash| [(crash, false), (crash, true)]) {
            let context = format!("{bytes_at:?}, killed at I/O {crash}, cold: {cold}");
            let killed = || {
                let mut server = TestServer::new(bytes_at);
                server.fs.fault = Some((crash, Fault::Crash));
                assert_eq!(server.append(ONE, 5, b"one").is_ok(), crash == ios, "{context}");
                let mut server = server.restart(cold);
                server.reclaim(OTHER, &[]);
                server
            };
            let mut server = killed();
            let other = server.send_append(OTHER, 3, b"other");
            server.reclaim(ONE, &[5]);
            assert_eq!(server.append(ONE, 5, b"one"), Ok(Reply::Written(3)), "{context}");
            assert_eq!(server.append(ONE, 5, b"one"), Ok(Reply::Written(3)), "{context}");
            assert_eq!(server.answer(other), Some(Ok(Reply::Written(5))), "{context}");
            let either = [with(&[b"one", b"other"]), with(&[b"other", b"one"])];
            assert!(either.contains(&server.contents()), "{context}: {:?}", server.contents());

            // Its outcome is unknown, and no client waits for it.
            let mut server = killed();
            let set = SetAttr { size: Some(100), ..SetAttr::default() };
            let truncated = server.send(OTHER, 3, Request::SetAttr { ino: server.ino, set });
            server.fs.input(Input::Tick);
            server.fs.uptime_ms += u64::from(SESSION_MS);
            server.send(OTHER, 4, Request::GetAttr { ino: server.ino });
            server.fs.uptime_ms += 1;
            server.fs.input(Input::Tick);
            assert!(matches!(server.answer(truncated), Some(Ok(Reply::Attr(_)))), "{context}");
            assert_eq!(server.append(OTHER, 5, b"other"), Ok(Reply::Written(5)), "{context}");
            assert_eq!(server.contents(), with(&[b"other"]), "{context}");
            server.expire();
            assert_eq!(server.fs.fsck(), [], "{context}");
        }
    }
}

/// The client knows that the request has failed, and does not repeat it; but it may repeat an older
/// one.
#[test]
fn abandoned_append_blocks_nothing() {
    for (cold, is_wanted) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut server = TestServer::new(BytesAt::OnDataServers);
        server.fs.fault = Some((3, Fault::Crash));
        server.append(ONE, 6, b"one").unwrap_err();
        let mut server = server.restart(cold);
        server.reclaim(OTHER, &[]);
        let other = server.send_append(OTHER, 3, b"other");
        assert_eq!(server.answer(other), None, "it may come yet");
        server.reclaim(ONE, if is_wanted { &[5, 6] } else { &[5] });
        let written = Some(Ok(Reply::Written(5)));
        assert_eq!(server.answer(other), if is_wanted { None } else { written.clone() });
        if is_wanted {
            assert_eq!(server.append(ONE, 6, b"one"), Ok(Reply::Written(3)));
            assert_eq!(server.answer(other), written);
        }
        let either = [with(&[b"one", b"other"]), with(&[b"other"])];
        assert!(either.contains(&server.contents()), "{:?}", server.contents());
    }
}

/// The second append arrives during the first, and may be interrupted.
#[test]
fn appends_to_a_file_come_one_after_the_other() {
    for bytes_at in EVERYWHERE {
        let mut server = TestServer::new(bytes_at);
        server.fs.shuffle = Some(fastrand::Rng::with_seed(1));
        let one = server.send_append(ONE, 5, b"one");
        let interrupted = server.send_append(OTHER, 3, b"never");
        let other = server.send_append(OTHER, 4, b"other");
        server.fs.input(Input::Cancel { from: OTHER, id: interrupted });
        assert_eq!(server.answer(interrupted), Some(Err(Errno::EINTR)));
        while server.fs.run_one() {}
        for (id, written) in [(one, 3), (other, 5)] {
            assert_eq!(server.answer(id), Some(Ok(Reply::Written(written))), "{bytes_at:?}");
        }
        assert_eq!(server.contents(), with(&[b"one", b"other"]));
    }
}

/// A refused append has changed nothing, and a written one is not refused.
#[test]
fn a_quota_that_is_set_meanwhile_comes_before_an_append_or_after_it() {
    let mut counts = [0, 0];
    for (bytes_at, seed) in
        EVERYWHERE.into_iter().flat_map(|bytes_at| (0..60).map(move |seed| (bytes_at, seed)))
    {
        let mut server = TestServer::new(bytes_at);
        server.fs.shuffle = Some(fastrand::Rng::with_seed(seed));
        let append = server.send_append(ONE, 5, &[b'+'; 50]);
        for _ in 0..seed % 6 {
            server.fs.run_one();
        }
        let (ino, mode) = (Ino::ROOT, XattrMode::Any);
        let (name, value) = (b"user.espalier.quota.max_bytes".as_slice().into(), b"120".as_slice().into());
        server.send(OTHER, 3, Request::SetXattr { ino, name, value, mode, kill_sgid: false });
        while server.fs.run_one() {}
        let answer = server.answer(append);
        let is_written = answer == Some(Ok(Reply::Written(50)));
        assert!(is_written || answer == Some(Err(Errno::EDQUOT)), "{answer:?}");
        let after: &[&[u8]] = if is_written { &[&[b'+'; 50]] } else { &[] };
        assert_eq!(server.contents(), with(after), "{bytes_at:?}, {seed}");
        counts[usize::from(is_written)] += 1;
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// A failed append is not repeated, and blocks nothing.
#[test]
fn failed_append_does_not_block_the_next() {
    for bytes_at in EVERYWHERE {
        let mut server = TestServer::new(bytes_at);
        server.fs.fault = Some((2, Fault::Fails(Errno::ENOSPC)));
        assert_eq!(server.append(ONE, 5, b"one"), Err(Errno::ENOSPC), "{bytes_at:?}");
        assert_eq!(server.append(ONE, 5, b"one"), Err(Errno::ENOSPC), "the answer is sent again");
        assert_eq!(server.append(OTHER, 3, b"other"), Ok(Reply::Written(5)));
        assert_eq!(server.contents(), with(&[b"other"]));
    }
}
