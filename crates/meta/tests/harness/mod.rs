//! A driver of the machine for tests: tables, journal and streams in memory, any of which can lose what is not synced.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use espalier_meta::{
    Atime, Check, Config, Finding, Format, Input, Io, IoDone, IoId, Load, Meta, Now, Outbox, Recall,
    Recovery, StreamCall, StreamDone,
};
use espalier_proto::*;

pub type Key = (ObjectId, Vec<u8>);

/// What survives a crash.
#[derive(Clone, Default)]
pub struct Disk {
    pub tables: BTreeMap<Key, Vec<u8>>,
    /// Frames of the journal, with the positions after them.
    pub journal: Vec<(u64, Vec<u8>)>,
    /// How many of the frames are synced.
    pub synced: usize,
    /// Where the journal ends.
    pub end: u64,
    pub streams: HashMap<Ino, Vec<u8>>,
    pub new_streams: BTreeSet<Ino>,
}

pub struct Harness {
    pub meta: Meta,
    pub disk: Disk,
    pub now: Time,
    pub config: Config,
    /// Answers that have come, by request.
    pub answers: HashMap<u64, Result<Reply, Errno>>,
    /// I/O that a test lets happen when it likes.
    pub waiting: Vec<(IoId, Io)>,
    /// Journal and checkpoint I/O stays in `waiting` until [`Self::settle`].
    pub lazy: bool,
    /// What the machine has asked clients to forget.
    pub recalled: Vec<Recall>,
    staged: Vec<TableWrite>,
    next: u64,
}

pub const ROOT_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };

pub fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, pid: uid, groups: None }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn config() -> Config {
    Config { atime: Atime::Never, reserve: 0, ..Config::new([7; 16], 64, 8 << 20) }
}

impl Harness {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: Config) -> Self {
        let mut disk = Disk::default();
        for write in (Format { time: Time::new(1, 0), uid: 0, gid: 0, perm: 0o755 }).writes() {
            disk.tables.insert((write.object, write.key), write.value.unwrap());
        }
        Self::recover(config, disk)
    }

    pub fn recover(config: Config, disk: Disk) -> Self {
        let super_value = &disk.tables[&(ObjectId::SUPER, vec![])];
        let orphans = disk.tables.iter().filter(|((object, _), _)| *object == ObjectId::ORPHANS);
        let orphans: Vec<_> = orphans.map(|((_, key), value)| (key.clone(), value.clone())).collect();
        let (mut recovery, from) = Recovery::begin(config.clone(), super_value, &orphans).unwrap();
        let mut fetch = |load: &Load| Ok(read(&disk.tables, load));
        for (end, frame) in &disk.journal {
            if *end > from.0 {
                recovery.frame(frame, &mut fetch).unwrap();
            }
        }
        let new_streams: Vec<Ino> = disk.new_streams.iter().copied().collect();
        let (meta, calls) = recovery.finish(Position(disk.end), 0, &new_streams, &mut fetch).unwrap();
        let mut disk = disk;
        for call in calls {
            stream(&mut disk, call);
        }
        let now = Time::new(1000, 0);
        let (answers, waiting, staged) = (HashMap::new(), Vec::new(), Vec::new());
        let recalled = Vec::new();
        Self { meta, disk, now, config, answers, waiting, lazy: false, recalled, staged, next: 0 }
    }

    /// The power goes: what is not synced is lost.
    pub fn crash(self) -> Self {
        let mut disk = self.disk;
        disk.journal.truncate(disk.synced);
        Self::recover(self.config, disk)
    }

    pub fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        self.ask_as(&ROOT_CALLER, request)
    }

    pub fn ask_as(&mut self, caller: &Caller, request: Request) -> Result<Reply, Errno> {
        let id = self.send(caller, request);
        self.answers.remove(&id).expect("an answer")
    }

    /// Sends a request whose answer may come later.
    pub fn send(&mut self, caller: &Caller, request: Request) -> u64 {
        self.next += 1;
        let id = self.next;
        self.now.nanos += 1;
        self.input(Input::Request { from: ClientId(1), id: RequestId(id), caller: caller.clone(), request });
        id
    }

    pub fn input(&mut self, input: Input) {
        let mut out = Outbox::default();
        self.meta.on(Now { time: self.now, queued: 0 }, input, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Outbox) {
        self.recalled.extend(out.recalls);
        for (_, id, result) in out.replies {
            self.answers.insert(id.0, result);
        }
        for (id, io) in out.io {
            if self.lazy && matches!(io, Io::Journal { .. } | Io::Stage { .. } | Io::Publish { .. }) {
                self.waiting.push((id, io));
            } else {
                let result = self.execute(io);
                self.input(Input::Done { id, result });
            }
        }
    }

    /// Lets waiting I/O happen, also what follows from it.
    pub fn settle(&mut self) {
        let lazy = std::mem::replace(&mut self.lazy, false);
        for (id, io) in std::mem::take(&mut self.waiting) {
            let result = self.execute(io);
            self.input(Input::Done { id, result });
        }
        self.lazy = lazy;
    }

    /// Lets just one waiting I/O happen.
    pub fn settle_one(&mut self) {
        if !self.waiting.is_empty() {
            let (id, io) = self.waiting.remove(0);
            let result = self.execute(io);
            self.input(Input::Done { id, result });
        }
    }

    pub fn checkpoint(&mut self) {
        for _ in 0..30 {
            self.input(Input::Tick);
        }
    }

    fn execute(&mut self, io: Io) -> Result<IoDone, Errno> {
        let disk = &mut self.disk;
        Ok(match io {
            Io::Load(load) => read(&disk.tables, &load),
            Io::Groups { pid } => IoDone::Groups([pid + 1000].into()),
            Io::Journal { frame, sync } => {
                disk.end += frame.len() as u64 + 8;
                let end = disk.end;
                disk.journal.push((end, frame.clone()));
                if sync {
                    disk.synced = disk.journal.len();
                }
                IoDone::Journaled { end: Position(end), used: self.used(), frame }
            }
            Io::Stage { writes } => {
                self.staged.extend(writes);
                IoDone::Staged
            }
            Io::Publish { trim } => {
                for write in self.staged.drain(..) {
                    match write.value {
                        Some(value) => disk.tables.insert((write.object, write.key), value),
                        None => disk.tables.remove(&(write.object, write.key)),
                    };
                }
                let old = disk.journal.partition_point(|(end, _)| *end <= trim.0);
                disk.journal.drain(..old);
                disk.synced = disk.synced.saturating_sub(old);
                IoDone::Published { used: self.used() }
            }
            Io::Stream(call) => IoDone::Stream(stream(disk, call)),
        })
    }

    fn used(&self) -> u64 {
        self.disk.journal.iter().map(|(_, frame)| frame.len() as u64 + 8).sum()
    }

    /// Checkpoints, and checks the tables as fsck does.
    pub fn fsck(&mut self) -> Vec<Finding> {
        self.settle();
        self.input(Input::Drain);
        assert!(self.meta.is_quiet());
        let mut check = Check::new(self.config.hash_key);
        for ((object, key), value) in &self.disk.tables {
            check.record(*object, key, value);
        }
        for ino in self.disk.streams.keys() {
            check.stream(*ino);
        }
        check.finish()
    }

    pub fn create(&mut self, dir: Ino, file: &str, node: NewNode) -> Result<Ino, Errno> {
        let request = Request::Create {
            dir,
            name: name(file),
            node,
            perm: 0o755,
            umask: 0,
            open: None,
            exclusive: true,
        };
        match self.ask(request)? {
            Reply::Entry(entry) => Ok(entry.attr.ino),
            other => panic!("{other:?}"),
        }
    }

    pub fn lookup(&mut self, dir: Ino, file: &str) -> Option<Attr> {
        match self.ask(Request::Lookup { dir, name: name(file) }).unwrap() {
            Reply::Entry(entry) => Some(entry.attr),
            Reply::Absent { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<Reply, Errno> {
        self.ask(Request::Write { ino, offset, data: data.to_vec(), kill_suid_gid: false })
    }

    pub fn read(&mut self, ino: Ino) -> Vec<u8> {
        match self.ask(Request::Read { ino, offset: 0, size: 1 << 20 }).unwrap() {
            Reply::Bytes(bytes) => bytes,
            Reply::Streamed => self.disk.streams.get(&ino).cloned().unwrap_or_default(),
            other => panic!("{other:?}"),
        }
    }

    pub fn is_streamed(&mut self, ino: Ino) -> bool {
        self.ask(Request::Read { ino, offset: 0, size: 0 }) == Ok(Reply::Streamed)
    }

    pub fn list(&mut self, dir: Ino, plus: bool) -> Vec<Dirent> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.ask(Request::ReadDir { dir, after, limit: 3, plus });
            match page.unwrap_or_else(|errno| panic!("listing of {dir} after {after}: {errno}")) {
                Reply::Listing { entries, end, .. } => {
                    after = entries.last().map_or(after, |entry| entry.cursor);
                    all.extend(entries);
                    if end {
                        return all;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Everything that can be seen of the tree, one line for each name.
    pub fn dump(&mut self) -> BTreeMap<String, String> {
        let mut lines = BTreeMap::new();
        self.dump_into(Ino::ROOT, String::new(), &mut lines);
        lines
    }

    fn dump_into(&mut self, dir: Ino, path: String, lines: &mut BTreeMap<String, String>) {
        for entry in self.list(dir, true) {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            let attr = entry.entry.unwrap().attr;
            let bytes = if attr.kind == FileType::Regular { self.read(attr.ino) } else { Vec::new() };
            let xattrs = self.ask(Request::ListXattr { ino: attr.ino });
            // What a stream holds is not journaled: after a crash it is whatever was written.
            let streamed = attr.kind == FileType::Regular && self.is_streamed(attr.ino);
            let shown =
                if streamed { String::from("streamed") } else { format!("{attr:?} {bytes:?} {xattrs:?}") };
            lines.insert(path.clone(), shown);
            if attr.kind == FileType::Directory {
                self.dump_into(attr.ino, path, lines);
            }
            self.send(&ROOT_CALLER, Request::Forget { ino: attr.ino, lookups: 1 });
        }
    }
}

fn read(tables: &BTreeMap<Key, Vec<u8>>, load: &Load) -> IoDone {
    match load {
        Load::Record { object, key } => IoDone::Record(tables.get(&(*object, key.clone())).cloned()),
        Load::Dentries { dir, from, limit } => {
            let object = ObjectId::fragment(*dir, 0);
            let page = tables.range((object, from.to_be_bytes().to_vec())..);
            let page = page.take_while(|((o, _), _)| *o == object).take(*limit);
            IoDone::Dentries(page.map(|((_, key), value)| (key.clone(), value.clone())).collect())
        }
    }
}

fn stream(disk: &mut Disk, call: StreamCall) -> StreamDone {
    let Disk { streams, new_streams, .. } = disk;
    match call {
        StreamCall::Stat(inos) => {
            let stat = |ino: &Ino| {
                let size = streams.get(ino).map_or(0, |bytes| bytes.len() as u64);
                StreamStat { size, blocks: size.div_ceil(512), ..StreamStat::default() }
            };
            return StreamDone::Stats(inos.iter().map(stat).collect());
        }
        StreamCall::Fill { ino, mut bytes, size, .. } => {
            bytes.resize(size as usize, 0);
            streams.insert(ino, bytes);
            new_streams.insert(ino);
        }
        StreamCall::Truncate { ino, size } => streams.entry(ino).or_default().resize(size as usize, 0),
        StreamCall::Remove { ino } => {
            streams.remove(&ino);
            new_streams.remove(&ino);
        }
        StreamCall::Settle { ino } => drop(new_streams.remove(&ino)),
        StreamCall::SetMtime { .. } | StreamCall::Sync { .. } => {}
    }
    StreamDone::Done
}
