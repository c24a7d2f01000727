//! Groups of phases, and their selection by `--phases`.

use crate::error::Error;
use crate::groups::{big, durable, growth, mdtest, paper, programs, small, synced};
use crate::worker::{Laps, Worker, WorkerResult};

/// Phases that depend on each other: one uses the files of the previous ones.
#[derive(Debug)]
pub struct Group {
    pub name: &'static str,
    /// Default number of files per process, and of bytes per file.
    pub files: u64,
    pub bytes: u64,
    pub procs: Procs,
    /// The processes can work in one directory.
    pub(crate) may_share: bool,
    pub(crate) source: ProgramInput,
    /// Untimed preparation.
    pub(crate) start: fn(&mut Worker) -> WorkerResult,
    pub(crate) phases: &'static [Phase],
}

/// Number of processes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Procs {
    /// The user's numbers, or by default each of these.
    Default(&'static [u32]),
    /// A single program.
    One,
}

/// Input that a group's programs need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramInput {
    Nothing,
    /// A tar archive of a source tree.
    Archive,
    /// A git repository of a source tree.
    Repository,
}

#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) uncached: Uncached,
    pub(crate) work: fn(&mut Worker, &mut Laps) -> WorkerResult,
}

/// Kernel caches to drop before a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncached {
    Nothing,
    /// Names and attributes.
    Names,
    /// Names, attributes and file contents.
    Everything,
}

impl Phase {
    pub(crate) const fn new(name: &'static str, work: fn(&mut Worker, &mut Laps) -> WorkerResult) -> Phase {
        Phase { name, uncached: Uncached::Nothing, work }
    }

    pub(crate) const fn uncached(self, uncached: Uncached) -> Phase {
        Phase { uncached, ..self }
    }
}

pub static GROUPS: [&Group; 10] = [
    &paper::GROUP,
    &mdtest::GROUP,
    &small::GROUP,
    &durable::GROUP,
    &synced::GROUP,
    &big::GROUP,
    &programs::TREE,
    &programs::BULK,
    &programs::GIT,
    &growth::GROUP,
];

pub(crate) fn find(name: &str) -> Option<&'static Group> {
    GROUPS.into_iter().find(|group| group.name == name)
}

/// A group to run, and its phases to report. The phases before these run as well, since phases
/// depend on each other.
#[derive(Debug)]
pub(crate) struct Selected {
    pub(crate) group: &'static Group,
    phases: Vec<&'static str>,
}

impl Selected {
    pub(crate) fn reports(&self, phase: &Phase) -> bool {
        self.phases.contains(&phase.name)
    }

    /// The phases to run.
    pub(crate) fn needed(&self) -> &'static [Phase] {
        let phases = self.group.phases;
        let last = phases.iter().rposition(|phase| self.reports(phase));
        last.map_or(phases, |last| &phases[..=last])
    }
}

/// Selects by names such as `paper` (a whole group) and `small/unlink` (one phase); each group
/// occurs once.
pub(crate) fn select(names: &[String]) -> Result<Vec<Selected>, Error> {
    let mut all: Vec<Selected> = Vec::new();
    for name in names {
        let (group, phase) = match name.split_once('/') {
            Some((group, phase)) => (group, Some(phase)),
            None => (name.as_str(), None),
        };
        let unknown = |known| Error::UnknownPhase { name: name.clone(), known };
        let found = find(group).ok_or_else(|| unknown(GROUPS.map(|group| group.name).join(", ")))?;
        let names = found.phases.iter().map(|phase| phase.name);
        let wanted: Vec<_> = names.clone().filter(|name| phase.is_none_or(|phase| phase == *name)).collect();
        if wanted.is_empty() {
            return Err(unknown(names.map(|name| format!("{group}/{name}")).collect::<Vec<_>>().join(", ")));
        }
        match all.iter_mut().find(|selected| selected.group.name == found.name) {
            Some(selected) => selected.phases.extend(wanted),
            None => all.push(Selected { group: found, phases: wanted }),
        }
    }
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn reported(names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let reported = |selected: &Selected| {
            let phases = selected.group.phases.iter().filter(|phase| selected.reports(phase));
            phases.map(|phase| format!("{}/{}", selected.group.name, phase.name)).collect::<Vec<_>>()
        };
        select(&names).unwrap().iter().flat_map(reported).collect()
    }

    #[test]
    fn a_group_means_all_of_its_phases_and_a_path_means_one() {
        assert_eq!(reported(&["paper"]).len(), 9);
        assert_eq!(reported(&["small/unlink", "small/create"]), ["small/create", "small/unlink"]);
        assert_eq!(reported(&["small/unlink", "durable"]).len(), 1 + durable::GROUP.phases.len());
        let needed = |name: &str| select(&[name.into()]).unwrap()[0].needed().last().unwrap().name;
        assert_eq!((needed("small/unlink"), needed("durable")), ("unlink", "overwrite+fdatasync"));
    }

    #[test]
    fn unknown_name_is_reported_with_valid_ones() {
        for (bad, known) in [("nonsense", "mdtest"), ("small/nonsense", "small/unlink"), ("", "paper")] {
            let error = select(&[bad.into()]).unwrap_err().to_string();
            assert!(error.contains(known), "{error}");
        }
    }
}
