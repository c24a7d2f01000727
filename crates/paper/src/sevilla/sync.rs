//! Sevilla 6.4.2.3: the cost of namespace syncs at different intervals (Fig. 6.9), on mounts of
//! this machine.

use std::path::Path;

use espalier_sim::Line;

use super::mechanisms::{ClusterMount, create, one_server};
use super::run::claim;
use crate::cluster::LocalCluster;
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult, Table};
use crate::trial::medians;
use crate::{Experiment, Setting, Testbed};

pub(crate) const FIG6_9: Experiment = Experiment {
    id: "sevilla-fig6.9",
    title: "Cost of namespace syncs, by their interval",
    places: &[Testbed::Machine],
    run,
};

/// Seconds between two syncs; `None`: there are none.
const INTERVALS: [Option<u32>; 6] = [None, Some(1), Some(2), Some(5), Some(10), Some(25)];
/// The interval with the least overhead in the thesis.
const BEST: usize = 4;

/// Seconds that creates in a namespace take, and files that another mount sees at their end.
fn measure(
    setting: &Setting<'_>,
    cluster: &LocalCluster,
    at: &Path,
    interval: Option<u32>,
    files: u32,
) -> Result<Vec<f64>, PaperError> {
    let mount = |name: &str| {
        let at = at.join(name);
        ClusterMount::new(setting.program, cluster.url(), at, "insecure")
    };
    let (mount, other) = (mount("client")?, mount("other")?);
    let dir = mount.at.join("job");
    std::fs::create_dir(&dir)?;
    if let Some(seconds) = interval {
        mount.on(&dir, &["policy"], &["--set", &format!("sync_interval={seconds}s")])?;
    }
    mount.on(&dir, &["decouple"], &[])?;
    let created = create(setting, &dir, files);
    let seen = std::fs::read_dir(other.at.join("job")).map(Iterator::count);
    // Also after an error: the namespace would stay mounted.
    mount.on(&dir, &["merge"], &[])?;
    Ok(vec![created?, seen? as f64])
}

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (files, trials) = if setting.quick { (60_000, 1) } else { (500_000, 3) };
    let measured = medians(trials, INTERVALS.len(), |way| {
        let (cluster, dir) = (one_server(setting)?, tempfile::tempdir()?);
        measure(setting, &cluster, dir.path(), INTERVALS[way], files)
    })?;
    let overhead = |way: usize| 100.0 * (measured[way][0] / measured[0][0] - 1.0);
    let name = |interval: Option<u32>| interval.map_or("none".to_owned(), |seconds| format!("{seconds} s"));
    let row = |way: usize| {
        let [seconds, seen] = [measured[way][0], measured[way][1]];
        let rate = f64::from(files) / seconds;
        vec![
            name(INTERVALS[way]),
            format!("{seconds:.1}"),
            format!("{rate:.0}"),
            format!("{:+.1}", overhead(way)),
            format!("{:.0}", 100.0 * seen / f64::from(files)),
        ]
    };
    let points = INTERVALS.iter().enumerate();
    let points =
        points.filter_map(|(way, interval)| Some((f64::from((*interval)?), overhead(way)))).collect();
    let (often, best) = (overhead(1), overhead(BEST));
    let most = (2..INTERVALS.len()).all(|way| overhead(way) <= often);
    let claims = vec![
        claim("syncs each second cost most", "9 %", format!("{often:+.1} %"), most),
        claim("syncs each 10 s cost at most 1 %", "2 %", format!("{best:+.1} %"), best <= 1.0),
        claim(
            "others see part of the files meanwhile",
            "they judge the progress of jobs",
            format!("{:.0} % with syncs each second", 100.0 * measured[1][1] / f64::from(files)),
            measured[1][1] > 0.0 && measured[0][1] == 0.0,
        ),
    ];
    Ok(ExperimentResult {
        setup: format!(
            "A client makes {files} files in a decoupled directory, whose namespace is on its disk (in the thesis 1 million). A sync reads a checkpoint and \
             sends what is new, in the background; in the thesis the client forks. Client, server and the mount that looks share the processors of this machine; times are medians."
        ),
        claims,
        tables: vec![Table {
            name: "overhead",
            columns: vec!["interval", "seconds", "files/s", "overhead in %", "seen at the end in %"],
            rows: (0..INTERVALS.len()).map(row).collect(),
        }],
        charts: vec![Chart {
            name: "overhead",
            over: "seconds between two syncs",
            quantity: "overhead in %",
            lines: vec![Line { name: "overhead".into(), points, dots: false }],
        }],
        ..ExperimentResult::default()
    })
}
