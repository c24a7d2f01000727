//! Figs. 5.8 and 5.9: entries on each server while the directory grows.

use espalier_sim::Line;

use super::grid::{Costs, CreateRun, Division, setup, size};
use super::throughput::ends;
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};
use crate::{Experiment, SIMULATED, Setting};

pub(crate) const FIG5_8: Experiment = Experiment {
    id: "wu-fig5.8",
    title: "growth of a pre-distributed directory",
    places: SIMULATED,
    run: pre_distributed,
};
pub(crate) const FIG5_9: Experiment = Experiment {
    id: "wu-fig5.9",
    title: "growth of a splitting directory",
    places: SIMULATED,
    run: splitting,
};

/// Events between two samples.
const STEP: u64 = 2000;

/// Entries on each server: samples with their time in seconds.
type Samples = Vec<(f64, Vec<u64>)>;

fn sample(setting: &Setting<'_>, division: Division) -> Result<Samples, PaperError> {
    let ((_, servers), (_, clients)) = (ends(size(setting).servers), ends(size(setting).clients));
    let files = size(setting).files;
    let run = CreateRun { division, costs: Costs::Thesis, servers, clients, processes: 1, files };
    let mut samples = Samples::new();
    run.trial()?.sampled(setting, &mut (), STEP, &mut |now, world| {
        let entries = world.fragment_entries();
        if samples.last().is_none_or(|(_, last)| *last != entries) {
            samples.push((now.as_secs_f64(), entries));
        }
    })?;
    Ok(samples)
}

/// Number of servers whose entries have become fewer, after the first 5 % of all: the first clients
/// begin while the servers are still distributing the directory.
fn shrunk(samples: &Samples) -> usize {
    let count = samples.first().map_or(0, |(_, entries)| entries.len());
    let sum = |(_, entries): &(f64, Vec<u64>)| entries.iter().sum::<u64>();
    let all = samples.last().map_or(0, sum);
    let begin = samples.partition_point(|sample| 20 * sum(sample) < all);
    let shrinks = |server: &usize| {
        samples[begin..].windows(2).any(|pair| pair[1].1.get(*server) < pair[0].1.get(*server))
    };
    (0..count).filter(shrinks).count()
}

fn pre_distributed(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let samples = sample(setting, Division::PreDistributed)?;
    let last = samples.last().map(|(_, entries)| entries.clone()).unwrap_or_default();
    let (least, most) = (last.iter().min().copied().unwrap_or(0), last.iter().max().copied().unwrap_or(0));
    let shrunk = shrunk(&samples);
    let claims = vec![
        Claim {
            text: "the entries of every server keep increasing".into(),
            paper: "each is put into use since the very beginning".into(),
            ours: format!("{shrunk} servers lose entries, the last has {least}"),
            holds: shrunk == 0 && least > 0,
        },
        Claim {
            text: "entries are not equally distributed".into(),
            paper: "the hash function is not ideal".into(),
            ours: format!("{least} to {most} entries: as random numbers are"),
            holds: most > least,
        },
    ];
    Ok(result(setting, Division::PreDistributed, &samples, claims))
}

fn splitting(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let samples = sample(setting, Division::Splitting)?;
    let shrunk = shrunk(&samples);
    let used = |entries: &Vec<u64>| entries.iter().filter(|count| **count > 0).count();
    let first = samples.iter().map(|(_, entries)| used(entries)).find(|used| *used > 0).unwrap_or(0);
    let last = samples.last().map_or(0, |(_, entries)| used(entries));
    let claims = vec![
        Claim {
            text: "the entries of some servers decrease".into(),
            paper: "which indicates directory splitting operation".into(),
            ours: format!("those of {shrunk} servers"),
            holds: shrunk > 0,
        },
        Claim {
            text: "servers are put into use one after another".into(),
            paper: "the number of servers is small in the beginning".into(),
            ours: format!("{first} at first, {last} in the end"),
            holds: first < last && first <= 2,
        },
    ];
    Ok(result(setting, Division::Splitting, &samples, claims))
}

fn result(
    setting: &Setting<'_>,
    division: Division,
    samples: &Samples,
    claims: Vec<Claim>,
) -> ExperimentResult {
    let count = samples.first().map_or(0, |(_, entries)| entries.len());
    let line = |server: usize| Line {
        name: format!("server {server}"),
        points: samples.iter().map(|(time, entries)| (*time, entries[server] as f64)).collect(),
        dots: false,
    };
    let chart = Chart {
        name: "entries",
        over: "seconds",
        quantity: "entries on a server",
        lines: (0..count).map(line).collect(),
    };
    let rows = samples.iter().flat_map(|(time, entries)| {
        let row = move |(server, count): (usize, &u64)| {
            vec![format!("{time:.6}"), server.to_string(), count.to_string()]
        };
        entries.iter().enumerate().map(row)
    });
    // The end is enough for readers; charts have the rest.
    let rows: Vec<_> = rows.collect();
    let end = rows[rows.len().saturating_sub(count)..].to_vec();
    ExperimentResult {
        setup: setup(setting, division),
        claims,
        tables: vec![Table { name: "end", columns: vec!["seconds", "server", "entries"], rows: end }],
        charts: vec![chart],
        ..ExperimentResult::default()
    }
}
