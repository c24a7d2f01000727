//! Programs of processes: sequences of operations on paths and open files, as system calls.

mod build;
mod compile;
mod create;
mod mdtest;
mod op;
mod phases;
mod script;
mod untar;
mod workload;
mod zipf;

pub use op::{Op, OpKind, OpenFlags, RecordedCall, Target};
pub use script::{Script, ScriptStep, list, make_file};
pub use workload::{Started, Workload};

use espalier_proto::Errno;

use crate::{Nanos, Random};

/// The next step of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    Do(Op),
    /// Compute or wait for the given time.
    Pause(Nanos),
    /// Wait until all processes of the workload have reached this barrier.
    Barrier,
    /// Drop the client's caches, as if freshly mounted.
    Forget,
    /// The program has ended.
    End,
}

/// The program of a process.
pub trait Source: std::fmt::Debug {
    /// `last`: the previous operation. `random`: the generator of the process.
    fn next(&mut self, random: &mut Random, last: Option<&Done>) -> Next;
}

/// A completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: OpKind,
    /// Number of barriers that the process has passed.
    pub phase: u32,
    pub begun: Nanos,
    pub ended: Nanos,
    /// Bytes read or written; entries listed, 0 at the end; a file's size (`stat`); or 0.
    pub result: Result<u64, Errno>,
}
