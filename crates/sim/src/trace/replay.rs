//! Replays a trace and compares the results with the recorded ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use espalier_proto::{Caller, Errno};

use super::{Act, Expected, RecordedOp, Trace};
use crate::process::{FileTable, Frontend, Identity, Process};
use crate::source::{Done, Next, Op, OpKind, Source};
use crate::{Nanos, Random};

/// Most differences that are described.
const MAX_REPORTED: usize = 100;
/// Initial interval, doubled each time, at which a process checks the operations that it must wait
/// for.
const PATIENCE: Nanos = Nanos(10_000);
const MOST_PATIENCE: Nanos = Nanos(1_000_000);
/// Time after which a process stops waiting, since the other one may be stopped.
const GIVES_UP: Nanos = Nanos(60_000_000_000);

/// A replay of a trace, shared by its processes.
#[derive(Clone, Debug)]
pub struct Replay(Rc<SharedReplay>);

#[derive(Debug)]
struct SharedReplay {
    trace: Rc<Trace>,
    /// Directory of the replay.
    dir: String,
    state: RefCell<ReplayState>,
}

#[derive(Debug)]
struct ReplayState {
    /// Completed entries of each process.
    done: Vec<usize>,
    replayed: Replayed,
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// By kind: operations in the trace, operations in the replay, and those with equal results.
    pub kinds: BTreeMap<&'static str, [u64; 3]>,
    /// The first differences.
    pub differences: Vec<Difference>,
}

/// An operation with a different result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Line in the trace; 0: preparation of the files that existed before.
    pub line: u64,
    pub kind: OpKind,
    /// A path, an open file, or a recorded call.
    pub subject: String,
    pub expected: Expected,
    pub result: Result<u64, Errno>,
}

impl Replay {
    /// `dir`: absolute path of the directory for the replay, which is created.
    pub fn new(trace: Rc<Trace>, dir: String) -> Self {
        let mut replayed = Replayed::default();
        for entry in trace.processes.iter().flatten() {
            if let Act::Do(op, _) = &entry.act {
                replayed.kinds.entry(op.kind().name()).or_default()[0] += 1;
            }
        }
        let done = vec![0; trace.processes.len()];
        Self(Rc::new(SharedReplay { trace, dir, state: RefCell::new(ReplayState { done, replayed }) }))
    }

    /// The processes, each with the number of its client. `first`: number of the first process.
    pub fn start(&self, first: u32, clients: u32) -> Vec<(u32, Process)> {
        let shared = FileTable::default();
        let Trace { processes, is_local, .. } = &*self.0.trace;
        let process = |at: usize| {
            let number = first + at as u32;
            let caller = Caller { uid: 0, gid: 0, pid: number + 1, groups: Some([].into()) };
            let identity = Identity { number, caller, umask: 0o022, frontend: Frontend::Mount };
            let files = if *is_local { shared.clone() } else { FileTable::default() };
            let client = if *is_local { first } else { number };
            (client % clients.max(1), Process::sharing(identity, self.source(at), &files))
        };
        (0..processes.len()).map(process).collect()
    }

    /// The program of a process.
    fn source(&self, process: usize) -> Box<dyn Source> {
        let before = if process == 0 { self.making().collect::<Vec<_>>() } else { Vec::new() };
        Box::new(Player {
            replay: self.clone(),
            process,
            before: before.into_iter(),
            is_begun: false,
            at: 0,
            doing: None,
            paused: false,
            waited: Nanos::ZERO,
        })
    }

    /// Operations that make the directory and the files that existed before.
    fn making(&self) -> impl Iterator<Item = Op> {
        let SharedReplay { trace, dir, .. } = &*self.0;
        let parents = dir.match_indices('/').map(|(at, _)| &dir[..at]).filter(|dir| !dir.is_empty());
        let dirs = parents.chain([dir.as_str()]).map(|dir| Op::MkDir { path: dir.into(), mode: 0o777 });
        dirs.chain(trace.before.iter().map(|op| moved(op, dir)))
    }

    /// Parts of the trace that are not replayed, with their number.
    pub fn skipped(&self) -> &BTreeMap<String, u64> {
        &self.0.trace.skipped
    }

    /// Results so far.
    pub fn replayed(&self) -> Replayed {
        self.0.state.borrow().replayed.clone()
    }

    fn may_begin(&self, entry: &RecordedOp) -> bool {
        let state = self.0.state.borrow();
        entry.after.iter().all(|(process, number)| state.done[*process] > *number)
    }

    fn record(&self, line: u64, op: &Op, expected: Expected, done: &Done) {
        let is_met = expected.is_met(done.result);
        let replayed = &mut self.0.state.borrow_mut().replayed;
        if line > 0 {
            let counts = replayed.kinds.entry(op.kind().name()).or_default();
            counts[1] += 1;
            counts[2] += u64::from(is_met);
        }
        if !is_met && replayed.differences.len() < MAX_REPORTED {
            let (kind, subject, result) = (op.kind(), subject(op), done.result);
            replayed.differences.push(Difference { line, kind, subject, expected, result });
        }
    }
}

impl Replayed {
    /// True if all operations were executed with equal results.
    pub fn is_faithful(&self) -> bool {
        self.differences.is_empty() && self.kinds.values().all(|[was, is, same]| was == is && is == same)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, kind, subject, expected, result } = self;
        match line {
            0 => write!(f, "before the trace: ")?,
            line => write!(f, "line {line}: ")?,
        }
        write!(f, "{} {subject}: ", kind.name())?;
        match result {
            Ok(_) => write!(f, "succeeded, but failed in the trace: {expected}"),
            Err(errno) => write!(f, "{errno}, expected: {expected}"),
        }
    }
}

/// A process of a trace.
#[derive(Debug)]
struct Player {
    replay: Replay,
    process: usize,
    /// Remaining preparation.
    before: std::vec::IntoIter<Op>,
    is_begun: bool,
    /// Index of the next entry.
    at: usize,
    /// The operation in progress: line, operation, expected result.
    doing: Option<(u64, Op, Expected)>,
    paused: bool,
    waited: Nanos,
}

impl Source for Player {
    fn next(&mut self, _: &mut Random, last: Option<&Done>) -> Next {
        if let (Some((line, op, expected)), Some(done)) = (self.doing.take(), last) {
            self.replay.record(line, &op, expected, done);
            if line > 0 {
                self.replay.0.state.borrow_mut().done[self.process] = self.at;
            }
        }
        if let Some(op) = self.before.next() {
            // Replays of several traces may share directories.
            let expected = if matches!(op, Op::MkDir { .. }) { None } else { Some(Expected::Success) };
            self.doing = expected.map(|expected| (0, op.clone(), expected));
            return Next::Do(op);
        }
        if !self.is_begun {
            self.is_begun = true;
            return Next::Barrier;
        }
        let trace = Rc::clone(&self.replay.0.trace);
        let Some(entry) = trace.processes[self.process].get(self.at) else { return Next::End };
        if !self.paused && entry.pause > Nanos::ZERO {
            self.paused = true;
            return Next::Pause(entry.pause);
        }
        if self.waited < GIVES_UP && !self.replay.may_begin(entry) {
            let wait = Nanos((self.waited.0).clamp(PATIENCE.0, MOST_PATIENCE.0));
            self.waited += wait;
            return Next::Pause(wait);
        }
        (self.at, self.paused, self.waited) = (self.at + 1, false, Nanos::ZERO);
        match &entry.act {
            Act::Barrier => Next::Barrier,
            Act::Do(op, expected) => {
                let op = moved(op, &self.replay.0.dir);
                self.doing = Some((entry.line, op.clone(), *expected));
                Next::Do(op)
            }
        }
    }
}

/// The operation with paths below `dir`.
fn moved(op: &Op, dir: &str) -> Op {
    let mut op = op.clone();
    let into = |path: &mut Vec<u8>| {
        if !path.starts_with(b"/") {
            path.insert(0, b'/');
        }
        path.splice(..0, dir.bytes());
    };
    op.paths().into_iter().for_each(into);
    if let Op::Symlink { target, .. } = &mut op
        && target.starts_with(b"/")
    {
        into(target);
    }
    op
}

/// The subject of an operation, for messages.
fn subject(op: &Op) -> String {
    match op {
        Op::Recorded(call) => format!("{:?}", call.recorded),
        op => match (op.clone().paths().as_slice(), op.file()) {
            ([first, ..], _) => String::from_utf8_lossy(first).into_owned(),
            ([], Some(file)) => format!("open file {file}"),
            ([], None) => String::new(),
        },
    }
}
