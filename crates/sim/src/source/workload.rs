//! The tables `[[workload]]` of a scenario: processes and their programs.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use espalier_proto::Caller;
use serde::Deserialize;

use super::build::Build;
use super::compile::Compile;
use super::create::Create;
use super::mdtest::MdTest;
use super::phases::Phases;
use super::untar::Untar;
use super::zipf::Zipf;
use super::{Script, Source};
use crate::Bytes;
use crate::process::{Frontend, Identity, Process};
use crate::trace::{Replay, Trace, TraceError};

/// Processes with the same program, which meet at barriers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct Workload {
    common: Common,
    kind: Kind,
}

/// Settings of all kinds of workloads.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Common {
    /// Number of processes, distributed round robin over the clients [default: one per client].
    processes: Option<u32>,
    /// Name of their directory in the root [default: `work` and the number of the workload].
    dir: Option<String>,
    /// User of the processes; the directory belongs to the superuser and is writable by all.
    uid: u32,
    gid: u32,
    umask: u32,
    frontend: Frontend,
}

impl Default for Common {
    fn default() -> Self {
        Self { processes: None, dir: None, uid: 0, gid: 0, umask: 0o022, frontend: Frontend::Mount }
    }
}

const COMMON: [&str; 6] = ["processes", "dir", "uid", "gid", "umask", "frontend"];

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Kind {
    Create(Create),
    #[serde(rename = "mdtest")]
    MdTest(MdTest),
    NinePhases(Phases),
    Zipf(Zipf),
    Untar(Untar),
    Compile(Compile),
    Build(Build),
    Trace(Traces),
}

/// Traces to replay concurrently, each with its own number of processes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Traces {
    files: Vec<PathBuf>,
    /// For strace logs: replay only operations below this directory.
    #[serde(default = "root")]
    root: PathBuf,
    /// Number of concurrent replays of each trace.
    #[serde(default = "one")]
    copies: u32,
}

fn root() -> PathBuf {
    "/".into()
}

fn one() -> u32 {
    1
}

/// A started workload.
#[derive(Debug, Default)]
pub struct Started {
    /// Groups of processes that meet at barriers, each process with its client.
    pub crews: Vec<Vec<(u32, Process)>>,
    /// Replays of traces, with their files.
    pub replays: Vec<(PathBuf, Replay)>,
}

impl TryFrom<toml::Table> for Workload {
    type Error = String;

    fn try_from(table: toml::Table) -> Result<Self, String> {
        let (common, kind): (toml::Table, toml::Table) =
            table.into_iter().partition(|(key, _)| COMMON.contains(&key.as_str()));
        let workload = Self {
            common: common.try_into().map_err(|error| error.message().to_string())?,
            kind: kind.try_into().map_err(|error| error.message().to_string())?,
        };
        workload.check()?;
        Ok(workload)
    }
}

impl Workload {
    /// Checks the ranges and combinations of values.
    fn check(&self) -> Result<(), String> {
        let Common { processes, dir, umask, .. } = &self.common;
        range("processes", u64::from(processes.unwrap_or(1)), 1, 1 << 20)?;
        range("umask", u64::from(*umask), 0, 0o777)?;
        if dir.as_ref().is_some_and(|dir| dir.is_empty() || dir.contains('/') || dir.starts_with('.')) {
            return Err("`dir` is the name of a directory in the root".into());
        }
        match &self.kind {
            Kind::Create(create) => create.check(),
            Kind::MdTest(mdtest) => mdtest.check(),
            Kind::NinePhases(phases) => phases.check(),
            Kind::Zipf(zipf) => zipf.check(),
            Kind::Untar(untar) => untar.check(),
            Kind::Compile(compile) => compile.check(),
            Kind::Build(build) => build.check(),
            Kind::Trace(traces) => traces.check(&self.common),
        }
    }

    /// Replays traces; of strace logs, the operations below the directory `root`.
    pub fn replay(files: Vec<PathBuf>, root: PathBuf) -> Self {
        Self { common: Common::default(), kind: Kind::Trace(Traces { files, root, copies: 1 }) }
    }

    /// Starts the processes of workload `number`, distributed round robin over clients. `first`:
    /// number of the first process; `from`: directory to which file names are relative.
    ///
    /// # Errors
    /// [`TraceError`]
    pub fn start(&self, number: u32, first: u32, clients: u32, from: &Path) -> Result<Started, TraceError> {
        let processes = self.common.processes.unwrap_or(clients);
        let dir = self.common.dir.clone().unwrap_or_else(|| format!("work{number}"));
        let crew =
            Rc::new(WorkloadProcesses { dir: format!("/{dir}"), processes, is_root: self.common.uid == 0 });
        if let Kind::Trace(traces) = &self.kind {
            return traces.start(&crew.dir, first, clients, from);
        }
        let process = |number| {
            let Common { uid, gid, umask, frontend, .. } = self.common;
            let caller = Caller { uid, gid, pid: first + number + 1, groups: Some([].into()) };
            let identity = Identity { number: first + number, caller, umask, frontend };
            let source = self.source(&Member { crew: Rc::clone(&crew), number });
            ((first + number) % clients.max(1), Process::new(identity, source))
        };
        Ok(Started { crews: vec![(0..processes).map(process).collect()], replays: Vec::new() })
    }

    fn source(&self, member: &Member) -> Box<dyn Source> {
        match &self.kind {
            Kind::Create(create) => Box::new(Script::new(create.script(member))),
            Kind::MdTest(mdtest) => Box::new(Script::new(mdtest.script(member))),
            Kind::NinePhases(phases) => Box::new(Script::new(phases.script(member))),
            Kind::Zipf(zipf) => zipf.source(member),
            Kind::Untar(untar) => Box::new(Script::new(untar.script(member))),
            Kind::Compile(compile) => Box::new(Script::new(compile.script(member))),
            Kind::Build(build) => Box::new(Script::new(build.script(member))),
            // A trace has its own processes.
            Kind::Trace(_) => Box::new(Script::new(std::iter::empty())),
        }
    }
}

impl Traces {
    fn check(&self, common: &Common) -> Result<(), String> {
        if self.files.is_empty() {
            return Err("`files` names one trace at least".into());
        }
        if *common != (Common { dir: common.dir.clone(), ..Common::default() }) {
            return Err("a trace says itself which processes there are and who they are; there are `files`, `root`, `copies` and `dir`".into());
        }
        range("copies", u64::from(self.copies), 1, 1 << 16)
    }

    fn start(&self, dir: &str, mut first: u32, clients: u32, from: &Path) -> Result<Started, TraceError> {
        let mut started = Started::default();
        for (number, file) in self.files.iter().enumerate() {
            let trace = Rc::new(Trace::read(&from.join(file), &self.root)?);
            for copy in 0..self.copies {
                let replay = Replay::new(Rc::clone(&trace), format!("{dir}/{number}.{copy}"));
                let processes = replay.start(first, clients);
                first += processes.len() as u32;
                started.crews.push(processes);
                started.replays.push((file.clone(), replay));
            }
        }
        Ok(started)
    }
}

/// The processes of a workload.
#[derive(Debug)]
pub(super) struct WorkloadProcesses {
    /// Their directory.
    pub(super) dir: String,
    pub(super) processes: u32,
    pub(super) is_root: bool,
}

/// A process of a workload.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) crew: Rc<WorkloadProcesses>,
    /// Index in the workload, from 0.
    pub(super) number: u32,
}

impl Member {
    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Path of an entry of the workload's directory.
    pub(super) fn path(&self, name: impl std::fmt::Display) -> String {
        format!("{}/{name}", self.crew.dir)
    }

    /// The private directory of this process.
    pub(super) fn own(&self) -> String {
        self.path(self.number)
    }

    /// This process's share of the numbers below `count`.
    pub(super) fn share(&self, count: u64) -> impl Iterator<Item = u64> + use<> {
        (u64::from(self.number)..count).step_by(self.crew.processes as usize)
    }
}

/// # Errors
/// The valid range, if the value is outside it.
pub(super) fn range(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{key}` is {least} to {most}")) }
}

/// # Errors
/// The valid range, if one of the sizes is outside it.
pub(super) fn sizes<const N: usize>(sizes: [(&str, Bytes); N]) -> Result<(), String> {
    sizes.into_iter().try_for_each(|(key, bytes)| range(key, bytes.0, 0, 1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Scenario {
        workload: Vec<Workload>,
    }

    fn parse(text: &str) -> Result<Vec<Workload>, String> {
        let scenario: Result<Scenario, _> = toml::from_str(&format!("[[workload]]\n{text}"));
        scenario.map(|scenario| scenario.workload).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_has_defaults() {
        for kind in ["create", "mdtest", "nine-phases", "zipf", "untar", "compile", "build"] {
            let workloads = parse(&format!("kind = \"{kind}\"\nprocesses = 5")).expect("a workload");
            let started = workloads[0].start(0, 7, 3, Path::new("")).expect("no files are read");
            let clients: Vec<_> = started.crews[0].iter().map(|(client, _)| *client).collect();
            assert_eq!(clients, [1, 2, 0, 1, 2], "{kind}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("processes = 3", "kind"),
            ("kind = \"sort\"", "`sort`"),
            ("kind = \"create\"\nfile = 3", "`file`"),
            ("kind = \"create\"\nfiles = 0", "`files` is 1 to"),
            ("kind = \"create\"\nprocesses = 0", "`processes` is 1 to"),
            ("kind = \"create\"\ndir = \"a/b\"", "in the root"),
            ("kind = \"create\"\nbytes = \"1 TB\"", "with a unit"),
            ("kind = \"mdtest\"\ndepth = 60", "directories"),
            ("kind = \"zipf\"\nexponent = -1.0", "`exponent`"),
            ("kind = \"zipf\"\nreads = 1.5", "`reads`"),
            ("kind = \"untar\"\nsigma = 40.0", "`sigma`"),
            ("kind = \"compile\"\nsources = 0", "`sources`"),
            ("kind = \"build\"\nfiles_per_directory = 0", "`files_per_directory`"),
            ("kind = \"trace\"\nfiles = []", "one trace at least"),
            ("kind = \"trace\"\nfiles = [\"a\"]\nprocesses = 3", "`copies`"),
        ] {
            let error = parse(text).expect_err("an error");
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
