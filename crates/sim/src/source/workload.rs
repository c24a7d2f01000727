//! The tables `[[workload]]` of a scenario: which processes there are, and what they do.

use std::rc::Rc;

use espalier_proto::Caller;
use serde::Deserialize;

use super::compile::Compile;
use super::create::Create;
use super::mdtest::MdTest;
use super::phases::Phases;
use super::untar::Untar;
use super::zipf::Zipf;
use super::{Script, Source};
use crate::process::{Door, Identity, Process};

/// Processes that do the same, and meet at barriers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct Workload {
    common: Common,
    kind: Kind,
}

/// What all kinds have.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Common {
    processes: u32,
    /// The directory in the root in which they work [default: `work` and the workload's number].
    dir: Option<String>,
    /// Of the processes; the directory is the superuser's, and all may write there.
    uid: u32,
    gid: u32,
    umask: u32,
    door: Door,
}

impl Default for Common {
    fn default() -> Self {
        Self { processes: 1, dir: None, uid: 0, gid: 0, umask: 0o022, door: Door::Mount }
    }
}

const COMMON: [&str; 6] = ["processes", "dir", "uid", "gid", "umask", "door"];

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
    /// What each value by itself does not say.
    fn check(&self) -> Result<(), String> {
        let Common { processes, dir, umask, .. } = &self.common;
        range("processes", u64::from(*processes), 1, 1 << 20)?;
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
        }
    }

    /// The processes of the scenario's workload of that number, each with the number of the client that it runs on: they are dealt out
    /// in turn. `first`: the number of the first process.
    pub fn start(&self, number: u32, first: u32, clients: u32) -> Vec<(u32, Process)> {
        let processes = self.common.processes;
        let dir = self.common.dir.clone().unwrap_or_else(|| format!("work{number}"));
        let crew = Rc::new(Crew { dir: format!("/{dir}"), processes, is_root: self.common.uid == 0 });
        let process = |number| {
            let Common { uid, gid, umask, door, .. } = self.common;
            let caller = Caller { uid, gid, pid: first + number + 1, groups: Some([].into()) };
            let identity = Identity { number: first + number, caller, umask, door };
            let source = self.source(&Member { crew: Rc::clone(&crew), number });
            ((first + number) % clients.max(1), Process::new(identity, source))
        };
        (0..processes).map(process).collect()
    }

    fn source(&self, member: &Member) -> Box<dyn Source> {
        match &self.kind {
            Kind::Create(create) => Box::new(Script::new(create.script(member))),
            Kind::MdTest(mdtest) => Box::new(Script::new(mdtest.script(member))),
            Kind::NinePhases(phases) => Box::new(Script::new(phases.script(member))),
            Kind::Zipf(zipf) => zipf.source(member),
            Kind::Untar(untar) => Box::new(Script::new(untar.script(member))),
            Kind::Compile(compile) => Box::new(Script::new(compile.script(member))),
        }
    }
}

/// The processes of a workload.
#[derive(Debug)]
pub(super) struct Crew {
    /// The directory in which they work.
    pub(super) dir: String,
    pub(super) processes: u32,
    pub(super) is_root: bool,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) crew: Rc<Crew>,
    /// From 0 on.
    pub(super) number: u32,
}

impl Member {
    pub(super) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// The path of something in the workload's directory.
    pub(super) fn path(&self, name: impl std::fmt::Display) -> String {
        format!("{}/{name}", self.crew.dir)
    }

    /// A directory that no other process uses.
    pub(super) fn own(&self) -> String {
        self.path(self.number)
    }

    /// Which of `count` things are this process's, of things that are shared out.
    pub(super) fn share(&self, count: u64) -> impl Iterator<Item = u64> + use<> {
        (u64::from(self.number)..count).step_by(self.crew.processes as usize)
    }
}

/// # Errors
/// What the value is to be, if it is not.
pub(super) fn range(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(format!("`{key}` is {least} to {most}")) }
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
        for kind in ["create", "mdtest", "nine-phases", "zipf", "untar", "compile"] {
            let workloads = parse(&format!("kind = \"{kind}\"\nprocesses = 5")).expect("a workload");
            let clients: Vec<_> = workloads[0].start(0, 7, 3).into_iter().map(|(client, _)| client).collect();
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
        ] {
            let error = parse(text).expect_err("an error");
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
