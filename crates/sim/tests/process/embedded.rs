//! A driver of processes with one machine and without time: I/O completes at once.

use std::ops::Bound;

use espalier_client::{Answer, Call, Client, Next};
use espalier_meta::{
    Config, Format, Input, Io, IoDone, Load, Meta, Now, Outbox, Recovery, StreamCall, StreamDone,
};
use espalier_proto::{
    Caller, ClientId, Errno, ObjectId, Position, Reply, Request, RequestId, StreamIo, Time,
};
use espalier_recording::{Line, Observed, RecordedRequest};
use espalier_sim::process::{Act, Frontend, Identity, Process, Program};
use espalier_sim::source::{Done, Next as NextOp, Op, Source};
use espalier_sim::{Nanos, Random, Seed};
use espalier_store::{MemoryStore, Store, StoreError};

/// Largest size of a stuffed file in bytes.
pub const STRIP: u64 = 64;

pub struct Embedded {
    meta: Meta,
    client: Client,
    store: MemoryStore,
    journal: Vec<u8>,
    pub now: Nanos,
    requests: u64,
    /// Requests that the machine received.
    pub received: Vec<Request>,
    /// Recording of the calls, as of a mount, if enabled.
    pub recording: Option<Vec<u8>>,
}

impl Embedded {
    pub fn new() -> Self {
        let config = Config { reserve: 0, ..Config::new([7; 16], STRIP as u32, 2 << 20) };
        let store = MemoryStore::new();
        store.stage(Format { time: Time::new(1, 0), uid: 0, gid: 0, perm: 0o755 }.writes()).unwrap();
        store.publish().unwrap();
        let first = store.get(ObjectId::SUPER, b"").unwrap().unwrap();
        let (recovery, _) = Recovery::begin(config, &first, &[], &[]).unwrap();
        let (meta, _) =
            recovery.finish(Position(0), 0, &[], &[], &mut |wanted| load(&store, wanted)).unwrap();
        let (client, journal) = (Client::default(), Vec::new());
        Self {
            meta,
            client,
            store,
            journal,
            now: Nanos::ZERO,
            requests: 0,
            received: Vec::new(),
            recording: None,
        }
    }

    /// Results of the operations of a process of root.
    pub fn run(&mut self, ops: impl IntoIterator<Item = Op>) -> Vec<Result<u64, Errno>> {
        self.run_as(0, Frontend::Mount, ops)
    }

    pub fn run_as(
        &mut self,
        uid: u32,
        frontend: Frontend,
        ops: impl IntoIterator<Item = Op>,
    ) -> Vec<Result<u64, Errno>> {
        let caller = Caller { uid, gid: uid, pid: 1, groups: Some([].into()) };
        let identity = Identity { number: 1, caller, umask: 0o022, frontend };
        let list = List(ops.into_iter().collect::<Vec<_>>().into_iter());
        let done = self.run_all(vec![Process::new(identity, Box::new(list))]);
        done.into_iter().map(|(_, done)| done.result).collect()
    }

    /// Runs processes in turn, each until it waits.
    pub fn run_all(&mut self, mut processes: Vec<Process>) -> Vec<(usize, Done)> {
        let mut randoms: Vec<Random> =
            (0..processes.len()).map(|number| Seed(1).random("process", number as u64)).collect();
        let mut ended = vec![false; processes.len()];
        let mut at_barrier = vec![None; processes.len()];
        let mut all = Vec::new();
        while ended.contains(&false) {
            let is_met = (0..processes.len()).all(|at| ended[at] || at_barrier[at].is_some());
            if is_met {
                let passed: Vec<u32> = at_barrier.iter_mut().filter_map(Option::take).collect();
                assert!(passed.windows(2).all(|pair| pair[0] == pair[1]), "different barriers: {passed:?}");
            }
            for at in (0..processes.len()).filter(|at| !ended[*at]).collect::<Vec<_>>() {
                if at_barrier[at].is_some() {
                    continue;
                }
                let mut answer = None;
                loop {
                    self.now += Nanos(1000);
                    let act = processes[at].step(self.now, &mut randoms[at], answer.take());
                    all.extend(processes[at].take_finished().into_iter().map(|done| (at, done)));
                    match act {
                        Act::Call(caller, call) | Act::CallFor(caller, call, _) => {
                            let result = self.call(&caller, &call);
                            self.record(&caller, &call, &result);
                            answer = Some(result);
                        }
                        Act::Forget => {}
                        Act::Pause(time) => {
                            self.now += time;
                            break;
                        }
                        Act::Barrier(number) => {
                            at_barrier[at] = Some(number);
                            break;
                        }
                        Act::End => {
                            ended[at] = true;
                            break;
                        }
                    }
                }
            }
        }
        all
    }

    fn record(&mut self, caller: &Caller, call: &Call<'_>, result: &Result<Answer, Errno>) {
        let Some(recording) = &mut self.recording else { return };
        let &Caller { pid, uid, gid, .. } = caller;
        let recorded = RecordedRequest::from(call);
        let observed = match result {
            Ok(Answer::Bytes(bytes)) => Observed::data(&recorded, bytes),
            result => Observed::new(result.as_ref().map_err(|errno| *errno)),
        };
        let line = Line { at: self.now.0, took: 500, pid, uid, gid, recorded, observed, lost: 0 };
        line.write(recording).unwrap();
    }

    fn call(&mut self, caller: &Caller, call: &Call<'_>) -> Result<Answer, Errno> {
        let mut next = self.client.start(call);
        loop {
            next = match next {
                Next::Apart => return Err(Errno::EIO),
                Next::Answer(answer) => return answer,
                Next::Ask(request) | Next::Find(request, _) => {
                    let reply = self.ask(caller, request);
                    self.client.reply(call, reply)
                }
                Next::Notify(request, answer) => {
                    self.ask(caller, request)?;
                    return Ok(answer);
                }
                Next::Release(ino) => {
                    self.ask(caller, Request::Release { ino })?;
                    return Ok(Answer::Done);
                }
                Next::Stream(io) => return self.stream(io, call),
                Next::Data(..) => return Err(Errno::EIO),
            }
        }
    }

    fn ask(&mut self, caller: &Caller, request: Request) -> Result<Reply, Errno> {
        self.received.push(request.clone());
        self.requests += 1;
        let id = RequestId(self.requests);
        let (from, caller) = (ClientId(1), caller.clone());
        let mut inputs = vec![Input::Request { from, id, below: id, follows: Vec::new(), caller, request }];
        let mut answer = None;
        while let Some(input) = inputs.pop() {
            let mut out = Outbox::default();
            let time = Time::new(1000 + (self.now.0 / 1_000_000_000) as i64, 0);
            self.meta.on(Now { time, uptime_ms: self.now.as_millis(), queued: 0 }, input, &mut out);
            answer = out.replies.into_iter().find(|answered| answered.id == id).or(answer);
            inputs.extend(out.io.into_iter().map(|(id, io)| Input::Done { id, result: self.perform(io) }));
        }
        answer.expect("an answer").result
    }

    fn perform(&mut self, io: Io) -> Result<IoDone, Errno> {
        match io {
            Io::Load(wanted) => load(&self.store, &wanted),
            Io::Stream(call, _) => {
                perform(&self.store, call).map(IoDone::Stream).map_err(|error| error.errno())
            }
            Io::Journal { frame, .. } => {
                self.journal.extend_from_slice(&frame);
                Ok(IoDone::Journaled { end: Position(self.journal.len() as u64), used: 0, frame })
            }
            Io::Sync => Ok(IoDone::Synced),
            Io::Yield | Io::Rest | Io::WriteDelay => Ok(IoDone::Paused),
            other => panic!("{other:?}"),
        }
    }

    fn stream(&mut self, io: StreamIo, call: &Call<'_>) -> Result<Answer, Errno> {
        Answer::of_stream(self.store.stream_io(io.ino, io.op, call.data()).unwrap())
    }
}

fn load(store: &MemoryStore, wanted: &Load) -> Result<IoDone, Errno> {
    let done = match wanted {
        Load::Record { object, key } => store.get(*object, key).map(IoDone::Record),
        Load::Dentries { dir, from, limit } => {
            let object = ObjectId::fragment(*dir, 0);
            store.scan(object, Bound::Included(&from.to_be_bytes()), *limit).map(IoDone::Dentries)
        }
    };
    done.map_err(|error| error.errno())
}

fn perform(store: &MemoryStore, call: StreamCall) -> Result<StreamDone, StoreError> {
    match call {
        StreamCall::Stat(inos) | StreamCall::TryStat(inos) => {
            let stats = inos.into_iter().map(|ino| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(StreamDone::Stats(stats));
        }
        StreamCall::Measure(files) => {
            let stats = files.into_iter().map(|(ino, _)| store.stream_stat(ino)).collect::<Result<_, _>>()?;
            return Ok(StreamDone::Stats(stats));
        }
        StreamCall::Fill { ino, bytes, size, mtime, .. } => {
            store.stream_create(ino)?;
            store.stream_truncate(ino, 0)?;
            store.stream_write(ino, 0, &bytes)?;
            store.stream_truncate(ino, size)?;
            store.stream_set_mtime(ino, mtime)?;
        }
        StreamCall::Write { ino, offset, bytes } => store.stream_write(ino, offset, &bytes)?,
        StreamCall::Truncate { ino, size, .. } => store.stream_truncate(ino, size)?,
        StreamCall::SetMtime { ino, mtime } => store.stream_set_mtime(ino, mtime)?,
        StreamCall::Sync { ino } => store.stream_sync(ino)?,
        StreamCall::Finalise { ino, .. } => store.stream_finalise(ino)?,
        StreamCall::Remove { ino } => store.stream_remove(ino)?,
        StreamCall::SyncStore => store.sync_all()?,
        // These concern only data servers.
        StreamCall::Precreate | StreamCall::Discard | StreamCall::SyncServers => {}
    }
    Ok(StreamDone::Done)
}

/// A fixed sequence of operations.
#[derive(Debug)]
struct List(std::vec::IntoIter<Op>);

impl Source for List {
    fn next(&mut self, _: &mut Random, _: Option<&Done>) -> NextOp {
        self.0.next().map_or(NextOp::End, NextOp::Do)
    }
}
