//! What processes do: operations on paths and open files, one after the other, as programs ask them of a kernel.

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
pub use script::{Script, Step, list, make_file};
pub use workload::{Started, Workload};

use espalier_proto::Errno;

use crate::{Nanos, Random};

/// What a process does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    Do(Op),
    /// It computes, or waits for something else, for so long.
    Pause(Nanos),
    /// It waits until all processes of its workload have come as far.
    Barrier,
    /// The process's client forgets what it has cached, as one that has just been mounted.
    Forget,
    /// It has come to its end, and is not asked again.
    End,
}

/// The program of a process.
pub trait Source: std::fmt::Debug {
    /// `last`: the operation that was done last. `random`: the process's own.
    fn next(&mut self, random: &mut Random, last: Option<&Done>) -> Next;
}

/// An operation that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: OpKind,
    /// So many barriers its process had passed.
    pub phase: u32,
    pub begun: Nanos,
    pub ended: Nanos,
    /// Bytes that were read or written; entries that were listed, 0 at the end; a file's size (`stat`); or 0.
    pub result: Result<u64, Errno>,
}
