//! A process: its program, and the work of a kernel for it. The kernel walks paths name by name,
//! keeps file offsets, and turns every operation into calls of the client machine, one at a time.

mod files;
mod inodes;
mod task;
mod walk;

use std::collections::VecDeque;

use espalier_client::{Answer, Call};
use espalier_proto::{Caller, Errno, Ino};

use crate::source::{Done, Next, Source};
use crate::{Nanos, Random};
use task::{ProcessTask, TaskStep};

pub use files::{FileTable, WORKING_DIR};

/// The next action of a process.
#[derive(Debug)]
pub enum Act {
    /// Make a call and wait for the reply.
    Call(Caller, Call<'static>),
    /// As `Call`, interrupted after the given time.
    CallFor(Caller, Call<'static>, Nanos),
    /// Wait for the given time.
    Pause(Nanos),
    /// Drop the client's caches, and continue.
    Forget,
    /// Wait until all running processes of the workload have reached the barrier with this number,
    /// counted from 0.
    Barrier(u32),
    /// The process has ended.
    End,
}

/// A program on a client: calls of the client machine, one at a time.
pub trait Program: std::fmt::Debug {
    /// Continues until the next action: at the start, and whenever the last action is complete.
    /// `answer`: after [`Act::Call`].
    fn step(&mut self, now: Nanos, random: &mut Random, answer: Option<Result<Answer, Errno>>) -> Act;

    /// Returns the operations that have ended since the last call.
    fn take_finished(&mut self) -> Vec<Done> {
        Vec::new()
    }
}

/// The frontend between a program and the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Frontend {
    /// A kernel, which looks up each name before it uses it.
    #[default]
    Mount,
    /// The library, which omits lookups where possible.
    Library,
}

/// Credentials and number of a process.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Unique in a run; marks the data that the process writes.
    pub number: u32,
    pub caller: Caller,
    pub umask: u32,
    pub frontend: Frontend,
}

/// See the module description.
#[derive(Debug)]
pub struct Process {
    kernel: Kernel,
    source: Box<dyn Source>,
    task: Option<ProcessTask>,
    last: Option<Done>,
    finished: Vec<Done>,
    barriers: u32,
    /// Inodes that remain to be released at the end.
    left_open: Option<VecDeque<Ino>>,
}

/// Kernel state of a process.
#[derive(Debug)]
struct Kernel {
    identity: Identity,
    files: FileTable,
    /// Number of writes so far; marks the written data.
    writes: u32,
    /// Time of the last request for the root's attributes.
    root_requested: Option<Nanos>,
}

impl Process {
    pub fn new(identity: Identity, source: Box<dyn Source>) -> Self {
        Self::sharing(identity, source, &FileTable::default())
    }

    /// As [`Self::new`], with open files shared with other processes of its client.
    pub fn sharing(identity: Identity, source: Box<dyn Source>, files: &FileTable) -> Self {
        files.begin();
        let kernel = Kernel { identity, files: files.clone(), writes: 0, root_requested: None };
        let (task, last, finished) = (None, None, Vec::new());
        Self { kernel, source, task, last, finished, barriers: 0, left_open: None }
    }

    /// Closes the files that the process left open.
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
                    TaskStep::Ask(call) => {
                        let caller = task.caller(&self.kernel.identity.caller);
                        self.task = Some(task);
                        return Act::Call(caller, call);
                    }
                    TaskStep::Done(result) => {
                        let (kind, phase) = (task.kind(), self.barriers);
                        let done = Done { kind, phase, begun: task.begun, ended: now, result };
                        self.finished.push(done);
                        self.last = Some(done);
                    }
                }
            }
            match self.source.next(random, self.last.as_ref()) {
                Next::Do(op) => self.task = Some(ProcessTask::new(op, now)),
                Next::Pause(time) => return Act::Pause(time),
                Next::Barrier => {
                    self.barriers += 1;
                    return Act::Barrier(self.barriers - 1);
                }
                Next::Forget => {
                    self.kernel.root_requested = None;
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
