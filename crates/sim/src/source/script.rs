//! Scripts: programs with fixed steps and loops that end when an operation returns nothing.

use std::fmt;

use super::{Done, Next, Op, OpenFlags, Source};
use crate::{Nanos, Random};

/// A step of a script.
#[derive(Clone, Debug)]
pub enum ScriptStep {
    Do(Op),
    /// Repeat until the operation returns 0 or fails.
    UntilNothing(Op),
    Pause(Nanos),
    Barrier,
    Forget,
}

impl From<Op> for ScriptStep {
    fn from(op: Op) -> Self {
        Self::Do(op)
    }
}

/// A program with fixed steps.
pub struct Script {
    steps: Box<dyn Iterator<Item = ScriptStep>>,
    /// The operation that is being repeated.
    again: Option<Op>,
}

impl Script {
    pub fn new(steps: impl Iterator<Item = ScriptStep> + 'static) -> Self {
        Self { steps: Box::new(steps), again: None }
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("again", &self.again).finish_non_exhaustive()
    }
}

impl Source for Script {
    fn next(&mut self, _: &mut Random, last: Option<&Done>) -> Next {
        if let Some(op) = &self.again
            && matches!(last, Some(Done { result: Ok(1..), .. }))
        {
            return Next::Do(op.clone());
        }
        self.again = None;
        match self.steps.next() {
            None => Next::End,
            Some(ScriptStep::Do(op)) => Next::Do(op),
            Some(ScriptStep::Pause(time)) => Next::Pause(time),
            Some(ScriptStep::Barrier) => Next::Barrier,
            Some(ScriptStep::Forget) => Next::Forget,
            Some(ScriptStep::UntilNothing(op)) => Next::Do(self.again.insert(op).clone()),
        }
    }
}

/// Number of the open file in scripts that use one file at a time.
pub(super) const FILE: u32 = 3;
/// Entries per listing request.
const PAGE: u32 = 512;

pub(super) fn script<const N: usize>(steps: [ScriptStep; N]) -> impl Iterator<Item = ScriptStep> {
    steps.into_iter()
}

/// The steps, if `wanted`.
pub(super) fn only_if<I: IntoIterator<Item = ScriptStep>>(
    wanted: bool,
    steps: I,
) -> impl Iterator<Item = ScriptStep> {
    wanted.then_some(steps).into_iter().flatten()
}

/// Creates a file of `bytes` bytes in writes of `piece` bytes.
pub fn make_file(path: String, bytes: u64, piece: u64) -> impl Iterator<Item = ScriptStep> {
    std::iter::once(Op::create(FILE, path))
        .chain(write(FILE, bytes, piece))
        .chain([Op::Close { file: FILE }])
        .map(ScriptStep::Do)
}

/// Writes of `piece` bytes each, the last one possibly shorter.
pub(super) fn write(file: u32, bytes: u64, piece: u64) -> impl Iterator<Item = Op> {
    let pieces = (0..bytes).step_by(piece.max(1) as usize);
    pieces.map(move |begin| Op::Write { file, offset: None, size: piece.min(bytes - begin) })
}

/// Reads a file to its end, without requesting its size.
pub(super) fn read_file(path: String, piece: u64) -> impl Iterator<Item = ScriptStep> {
    script([
        ScriptStep::Do(Op::open(FILE, path, OpenFlags::READ)),
        ScriptStep::UntilNothing(Op::Read { file: FILE, offset: None, size: piece }),
        ScriptStep::Do(Op::Close { file: FILE }),
    ])
}

/// Lists a directory; `plus`: with attributes.
pub fn list(path: String, plus: bool) -> impl Iterator<Item = ScriptStep> {
    script([
        ScriptStep::Do(Op::open(FILE, path, OpenFlags::READ | OpenFlags::DIRECTORY)),
        ScriptStep::UntilNothing(Op::List { file: FILE, limit: PAGE, plus }),
        ScriptStep::Do(Op::Close { file: FILE }),
    ])
}
