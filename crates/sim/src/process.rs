//! A process: its program, and what a kernel does for it. Paths are walked name by name, open files have places where reading goes on,
//! and every operation becomes calls of the client's machine, one at a time.

mod files;
mod inodes;
mod task;
mod walk;

use std::collections::VecDeque;

use espalier_client::{Answer, Call};
use espalier_proto::{Caller, Errno, Ino};

use crate::source::{Done, Next, Source};
use crate::{Nanos, Random};
use task::{Task, Turn};

pub use files::{FileTable, WORKING_DIR};

/// What a process waits for.
#[derive(Debug)]
pub enum Act {
    /// The answer to a call.
    Call(Caller, Call<'static>),
    /// The same, but after that time it is interrupted.
    CallFor(Caller, Call<'static>, Nanos),
    /// That so much time goes by.
    Pause(Nanos),
    /// Nothing, but its client forgets what it has cached.
    Forget,
    /// That all processes of its workload that have not ended have come to the barrier of that number, from 0 on.
    Barrier(u32),
    /// Nothing: it has ended.
    End,
}

/// What runs on a client: calls of its machine, one at a time.
pub trait Program: std::fmt::Debug {
    /// Goes on until it waits for something: to be called at first, and when that has come. `answer`: after [`Act::Call`].
    fn step(&mut self, now: Nanos, random: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act;

    /// The operations that have ended since this was last asked.
    fn take_finished(&mut self) -> Vec<Done> {
        Vec::new()
    }
}

/// By which door a program's operations come to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Door {
    /// A kernel, which looks up a name before it asks for anything to be done with it.
    #[default]
    Mount,
    /// The library, which does not if it need not.
    Library,
}

/// Who a process is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Unique in a run: what it writes bears this number.
    pub number: u32,
    pub caller: Caller,
    pub umask: u32,
    pub door: Door,
}

/// See the module's description.
#[derive(Debug)]
pub struct Process {
    kernel: Kernel,
    source: Box<dyn Source>,
    task: Option<Task>,
    last: Option<Done>,
    finished: Vec<Done>,
    barriers: u32,
    /// Inodes that are still to be released at its end.
    left_open: Option<VecDeque<Ino>>,
}

/// What a kernel knows of a process.
#[derive(Debug)]
struct Kernel {
    identity: Identity,
    files: FileTable,
    /// Bytes written so far bear numbers up to this.
    writes: u32,
    /// When the root was last asked for.
    root_asked: Option<Nanos>,
}

impl Process {
    pub fn new(identity: Identity, source: Box<dyn Source>) -> Self {
        Self::sharing(identity, source, &FileTable::default())
    }

    /// As [`Self::new`], with open files that it shares with other processes of its client.
    pub fn sharing(identity: Identity, source: Box<dyn Source>, files: &FileTable) -> Self {
        files.begin();
        let kernel = Kernel { identity, files: files.clone(), writes: 0, root_asked: None };
        let (task, last, finished) = (None, None, Vec::new());
        Self { kernel, source, task, last, finished, barriers: 0, left_open: None }
    }

    /// When a process ends, the kernel closes what it has left open.
    fn release_next(&mut self) -> Act {
        match self.left_open.as_mut().and_then(VecDeque::pop_front) {
            Some(ino) => Act::Call(self.kernel.identity.caller.clone(), Call::Release { ino }),
            None => Act::End,
        }
    }
}

impl Program for Process {
    fn step(&mut self, now: Nanos, random: &mut Random, mut answer: Option<Result<Answer, Errno>>) -> Act {
        loop {
            if self.left_open.is_some() {
                return self.release_next();
            }
            if let Some(mut task) = self.task.take() {
                match task.step(&mut self.kernel, now, answer.take()) {
                    Turn::Ask(call) => {
                        let caller = task.caller(&self.kernel.identity.caller);
                        self.task = Some(task);
                        return Act::Call(caller, call);
                    }
                    Turn::Done(result) => {
                        let (kind, phase) = (task.kind(), self.barriers);
                        let done = Done { kind, phase, begun: task.begun, ended: now, result };
                        self.finished.push(done);
                        self.last = Some(done);
                    }
                }
            }
            match self.source.next(random, self.last.as_ref()) {
                Next::Do(op) => self.task = Some(Task::new(op, now)),
                Next::Pause(time) => return Act::Pause(time),
                Next::Barrier => {
                    self.barriers += 1;
                    return Act::Barrier(self.barriers - 1);
                }
                Next::Forget => {
                    self.kernel.root_asked = None;
                    return Act::Forget;
                }
                Next::End => self.left_open = Some(self.kernel.files.end()),
            }
        }
    }

    fn take_finished(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.finished)
    }
}
