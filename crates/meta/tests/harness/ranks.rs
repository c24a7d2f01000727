//! Several ranks, and a caller that follows replies to the rank that they name.

use espalier_meta::{Check, Config, Input, Revocation};
use espalier_proto::*;

use super::{Harness, ROOT_CALLER, config, name};

/// Ranks whose messages arrive at once.
pub struct Ranks(pub Vec<Harness>);

impl Ranks {
    pub fn new(ranks: u16) -> Self {
        let host = |rank| Harness::with(Config { rank: Rank(rank), ranks, ..config() });
        Self((0..ranks).map(host).collect())
    }

    pub fn ask_as(&mut self, caller: &Caller, request: Request) -> Result<Reply, Errno> {
        let mut at = request.rank().0 as usize;
        for _ in 0..4 {
            let id = self.0[at].send(caller, request.clone());
            self.deliver();
            match self.0[at].answers.remove(&id).expect("an answer") {
                Ok(Reply::Relocated { at: rank, .. }) => at = rank.0 as usize,
                reply => return reply,
            }
        }
        panic!("is sent in circles: {request:?}");
    }

    pub fn deliver(&mut self) {
        loop {
            let mut is_idle = true;
            for from in 0..self.0.len() {
                for (to, message) in std::mem::take(&mut self.0[from].peers) {
                    is_idle = false;
                    self.0[to.0 as usize].input(Input::Peer { from: Rank(from as u16), message });
                }
            }
            if is_idle {
                return;
            }
        }
    }

    pub fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        self.ask_as(&ROOT_CALLER, request)
    }

    /// Follows a reply to the rank that it names, as clients do.
    pub fn found(&mut self, reply: Result<Reply, Errno>) -> Result<Attr, Errno> {
        match reply? {
            Reply::Entry(entry) | Reply::Created(entry, _) => Ok(entry.attr),
            Reply::Remote { ino, kind, .. } => {
                let reply = self.ask(Request::Find { ino, kind: Some(kind), open: None });
                self.found(reply)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn create_as(&mut self, caller: &Caller, dir: Ino, file: &str, node: NewNode, perm: u32) -> Ino {
        let (open, exclusive, umask) = (None, true, 0);
        let request =
            Request::Create { dir, name: name(file), node, perm, umask, open, exclusive, writeback: None };
        let reply = self.ask_as(caller, request);
        self.found(reply).unwrap().ino
    }

    /// Makes a directory at a given rank.
    pub fn mkdir_at(&mut self, rank: u16, dir: Ino, file: &str, perm: u32) -> Ino {
        loop {
            let ino = self.create_as(&ROOT_CALLER, dir, file, NewNode::Directory, perm);
            if ino.rank() == Rank(rank) {
                return ino;
            }
            assert_eq!(self.ask(Request::RmDir { dir, name: name(file), time: None }), Ok(Reply::Done));
        }
    }

    pub fn attr(&mut self, ino: Ino) -> Attr {
        match self.ask(Request::GetAttr { ino }).unwrap() {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    /// The reply to the first rank's client, and for how many milliseconds it may be cached.
    pub fn leased(&mut self, request: Request) -> (Result<Reply, Errno>, u32) {
        let id = self.0[0].send(&ROOT_CALLER, request);
        self.deliver();
        for at in 0..self.0.len() {
            for Revocation { client, number, .. } in std::mem::take(&mut self.0[at].revocations) {
                self.0[at].input(Input::Revoked { client, number });
            }
            self.deliver();
        }
        (self.0[0].answers.remove(&id).expect("an answer"), self.0[0].leases[&id].0)
    }

    pub fn rename_as(&mut self, caller: &Caller, from: (Ino, &str), to: (Ino, &str)) -> Result<Reply, Errno> {
        let flags = RenameFlags::empty();
        let (from_dir, to_dir) = (from.0, to.0);
        self.ask_as(
            caller,
            Request::Rename { from_dir, from: name(from.1), to_dir, to: name(to.1), flags, time: None },
        )
    }

    pub fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Result<Reply, Errno> {
        self.rename_as(&ROOT_CALLER, from, to)
    }

    /// Adds a rank, of which the others hear with [`Self::hear`].
    pub fn join(&mut self) {
        let rank = self.0.len();
        self.0.push(Harness::with(Config { rank: Rank(rank as u16), ranks: rank as u16 + 1, ..config() }));
        (0..rank).for_each(|other| self.connect_pair(other, rank));
        self.deliver();
    }

    /// Has a rank hear of all others.
    pub fn hear(&mut self, at: u16) {
        let (ranks, host) = (self.0.len() as u16, &mut self.0[usize::from(at)]);
        host.config.ranks = ranks;
        host.input(Input::Ranks { ranks });
        self.deliver();
    }

    /// Reconnects all ranks.
    pub fn connect(&mut self) {
        for a in 0..self.0.len() {
            (a + 1..self.0.len()).for_each(|b| self.connect_pair(a, b));
        }
        self.deliver();
    }

    fn connect_pair(&mut self, a: usize, b: usize) {
        self.0[a].input(Input::PeerConnected { rank: Rank(b as u16) });
        self.0[b].input(Input::PeerConnected { rank: Rank(a as u16) });
    }

    /// Delivers one message between ranks. Returns false if there is none.
    pub fn deliver_one(&mut self) -> bool {
        let Some(from) = self.0.iter().position(|host| !host.peers.is_empty()) else { return false };
        let (to, message) = self.0[from].peers.remove(0);
        self.0[usize::from(to.0)].input(Input::Peer { from: Rank(from as u16), message });
        true
    }

    /// Ends the process of a rank, and starts it again; messages to and from it are lost. A power
    /// failure also loses what is not durable.
    pub fn crash(&mut self, rank: u16, is_power_failure: bool) {
        let mut host = self.0.remove(usize::from(rank));
        if !is_power_failure {
            host.disk.sync_journal();
        }
        self.0.insert(usize::from(rank), host.crash());
        for host in &mut self.0 {
            host.peers.retain(|(to, _)| to.0 != rank);
        }
        let at = usize::from(rank);
        (0..self.0.len()).filter(|other| *other != at).for_each(|other| self.connect_pair(at, other));
    }

    pub fn tick(&mut self) {
        for host in &mut self.0 {
            host.input(Input::Tick);
        }
        self.deliver();
    }

    /// Ticks until each rank has counted all usage below its directories.
    pub fn send_usage(&mut self) {
        for _ in 0..20 {
            if self.0.iter().all(|host| host.meta.unsent_usage() == 0) {
                return;
            }
            self.tick();
        }
        panic!("there are always more deltas");
    }

    /// Files, directories and bytes below a directory.
    pub fn usage(&mut self, dir: Ino) -> [u64; 3] {
        ["rfiles", "rsubdirs", "rbytes"].map(|figure| {
            let name = format!("user.espalier.{figure}").into_bytes().into();
            let Ok(Reply::Bytes(value)) = self.ask(Request::GetXattr { ino: dir, name }) else { panic!() };
            str::from_utf8(&value).unwrap().parse().unwrap()
        })
    }

    pub fn write(&mut self, ino: Ino, bytes: usize) {
        let (data, kill_suid_gid) = (vec![1; bytes], false);
        assert!(
            self.ask(Request::Write { ino, offset: 0, data: data.into(), kill_suid_gid, time: None }).is_ok()
        );
    }

    pub fn fsck(&mut self) {
        for _ in 0..5 {
            self.tick();
        }
        for host in &mut self.0 {
            assert_eq!(host.meta.open_transactions(), 0);
            host.drain();
        }
        for host in &self.0 {
            assert_eq!(host.disk.checked(&host.config).finish_one(), []);
        }
        let checks = self.0.iter().map(|host| host.disk.checked(&host.config)).collect();
        assert_eq!(Check::finish_all(checks), []);
    }
}
