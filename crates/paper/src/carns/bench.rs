//! The processes of Fig. 5 and of Blue Gene/P: phases of carns's microbenchmark and of mdtest with
//! unique directories (`-u`). Each process changes to a directory of its own, as mdtest does, so
//! that only names in it are looked up.

use espalier_proto::Caller;
use espalier_sim::Nanos;
use espalier_sim::process::{Frontend, Identity, Process, Program, WORKING_DIR};
use espalier_sim::source::{Op, OpKind, OpenFlags, Script, ScriptStep};

use crate::error::PaperError;
use crate::play::ProcessGroup;
use crate::summary::{PhaseSummary, Summary};

/// The operation of all processes between two barriers, on each file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    /// Creates files without opening them.
    Make,
    /// Creates and opens files.
    Create,
    /// Lists the directory and stats each file.
    List,
    Stat,
    Write,
    Read,
    Remove,
    MkDir,
    StatDir,
    RmDir,
}

/// Bytes of a file.
const BYTES: u64 = 8 << 10;
/// First descriptor of open files.
const FIRST: u32 = 3;
/// Entries of one listing request.
const PAGE: u32 = 512;
/// Pause before each phase: longer than attributes are cached, as with the paper's many files.
const PAUSE: Nanos = Nanos(150_000_000);
/// Barriers before the first phase.
const BEFORE: u32 = 2;

impl Does {
    fn steps(self, files: u32) -> Box<dyn Iterator<Item = ScriptStep>> {
        let each = move |op: fn(u32) -> Op| (0..files).map(op).map(ScriptStep::Do);
        match self {
            Self::Make => Box::new(each(|file| Op::mknod(name(file)))),
            Self::Create => Box::new(each(|file| {
                let how = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
                Op::open(FIRST + file, name(file), how)
            })),
            Self::List => {
                let from_its_begin = ScriptStep::Do(Op::Seek { file: WORKING_DIR, offset: 0 });
                let page = ScriptStep::UntilNothing(Op::List { file: WORKING_DIR, limit: PAGE, plus: false });
                Box::new([from_its_begin, page].into_iter().chain(each(|file| Op::stat(name(file)))))
            }
            Self::Stat => Box::new(each(|file| Op::stat(name(file)))),
            Self::Write => {
                Box::new(each(|file| Op::Write { file: FIRST + file, offset: Some(0), size: BYTES }))
            }
            Self::Read => {
                Box::new(each(|file| Op::Read { file: FIRST + file, offset: Some(0), size: BYTES }))
            }
            Self::Remove => Box::new(each(|file| Op::unlink(name(file)))),
            Self::MkDir => Box::new(each(|dir| Op::mkdir(dir_name(dir)))),
            Self::StatDir => Box::new(each(|dir| Op::stat(dir_name(dir)))),
            Self::RmDir => Box::new(each(|dir| Op::rmdir(dir_name(dir)))),
        }
    }

    fn kinds(self) -> &'static [OpKind] {
        match self {
            Self::Make | Self::Create => &[OpKind::Create],
            Self::List => &[OpKind::Stat, OpKind::List],
            Self::Stat | Self::StatDir => &[OpKind::Stat],
            Self::Write => &[OpKind::Write],
            Self::Read => &[OpKind::Read],
            Self::Remove => &[OpKind::Unlink],
            Self::MkDir => &[OpKind::MkDir],
            Self::RmDir => &[OpKind::RmDir],
        }
    }
}

fn name(file: u32) -> String {
    format!("file{file}")
}

fn dir_name(dir: u32) -> String {
    format!("dir{dir}")
}

/// Files a second in each phase.
///
/// # Errors
/// As [`Summary::phase`].
pub(super) fn rates(summary: &Summary, phases: &[Does]) -> Result<Vec<f64>, PaperError> {
    let rate = |(number, does): (u32, &Does)| {
        let phases: Result<Vec<&PhaseSummary>, _> =
            does.kinds().iter().map(|kind| summary.phase(BEFORE + number, *kind)).collect();
        let phases = phases?;
        let count = phases.first().map_or(0, |phase| phase.count);
        Ok(count as f64 / PhaseSummary::seconds_of(&phases).max(f64::MIN_POSITIVE))
    };
    (0..).zip(phases).map(rate).collect()
}

/// This many processes, assigned to clients round robin, each with this many files.
pub(super) fn crew(processes: u32, clients: u32, files: u32, phases: &'static [Does]) -> ProcessGroup {
    let process = |number| {
        let caller = Caller { uid: 0, gid: 0, pid: number + 1, groups: Some([].into()) };
        let identity = Identity { number, caller, umask: 0o022, frontend: Frontend::Mount };
        let own = format!("/processes/{number}");
        let begin = (number == 0).then(|| Op::mkdir("/processes").into()).into_iter().chain([
            ScriptStep::Barrier,
            Op::mkdir(own.clone()).into(),
            Op::open(WORKING_DIR, own, OpenFlags::READ | OpenFlags::DIRECTORY).into(),
        ]);
        let steps = phases.iter().flat_map(move |does| {
            [ScriptStep::Barrier, ScriptStep::Pause(PAUSE)].into_iter().chain(does.steps(files))
        });
        let program: Box<dyn Program> =
            Box::new(Process::new(identity, Box::new(Script::new(begin.chain(steps)))));
        (number % clients, program)
    };
    (0..processes).map(process).collect()
}
