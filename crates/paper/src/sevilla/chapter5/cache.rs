//! Figs. 5.11, 5.12 and 5.14: cache policies on generated traces in the shape of ParSplice's. They
//! run in virtual time at both places, with the same results.

use espalier_cache_manager::trace::TraceShape;
use espalier_cache_manager::{ReplayReport, policies, replay, replay_observed};
use espalier_sim::Line;

use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};

/// Time that a miss takes, in times of a hit: the database instead of the cache. The thesis does
/// not give it.
const MISS: f64 = 0.2;

/// A trace of about 150,000 keys, as in 5.3.2, or a tenth of it.
fn shape(setting: &Setting<'_>) -> TraceShape {
    let full = TraceShape { seed: 1, seconds: 2000, groups: 10, group_keys: 10_000, reads_per_s: 2000 };
    match setting.quick {
        true => TraceShape { seconds: 150, group_keys: 1000, reads_per_s: 1000, ..full },
        false => full,
    }
}

fn scale(setting: &Setting<'_>) -> usize {
    if setting.quick { 10 } else { 1 }
}

/// Work done in the time that all reads take without misses.
fn progress(report: &ReplayReport) -> f64 {
    report.reads as f64 / (report.reads as f64 + MISS * report.misses as f64)
}

fn setup(setting: &Setting<'_>) -> String {
    let TraceShape { seconds, groups, group_keys, reads_per_s, .. } = shape(setting);
    format!(
        "A generated trace: {groups} groups of {group_keys} to {} keys in {seconds} s, {reads_per_s} reads a second that fall to a quarter, no key \
         read after its group. It changes groups at one instant, which suits the policy that finds groups. Progress is the part of the work that is \
         done in the same time if a miss takes {MISS} times a hit more; the thesis measures the length of a trajectory instead. Virtual time.",
        group_keys * 2 - group_keys / groups
    )
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Runs a policy; stops between policies.
fn run(
    setting: &Setting<'_>,
    name: &str,
    policy: &str,
    shape: &TraceShape,
) -> Result<ReplayReport, PaperError> {
    setting.check_stop()?;
    replay(name, policy, shape).map_err(|error| PaperError::Policy { name: name.into(), error })
}

pub(super) fn fig5_11(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (shape, scale) = (shape(setting), scale(setting));
    let baseline = run(setting, "none", policies::UNLIMITED, &shape)?;
    let mut rows = vec![row("none", &baseline)];
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    let burst = 50_000 / scale;
    for kind in ["fixed", "multi-policy"] {
        let mut points = Vec::new();
        for entries in [100_000, 10_000, 1000, 100, 10].map(|entries| entries / scale) {
            let policy = match kind {
                "fixed" => policies::lru(entries),
                _ => policies::multi_policy(entries, burst),
            };
            let report = run(setting, kind, &policy, &shape)?;
            rows.push(row(&format!("{kind} {entries}"), &report));
            points.push(((entries.max(1) as f64).log10(), progress(&report) * 100.0));
            found.push(report);
        }
        lines.push(Line { name: kind.into(), points, dots: false });
    }
    let (fixed, multi) = found.split_at(5);
    let claims = vec![
        Claim {
            text: "a fixed cache of two thirds of the keys has 99 % of the performance".into(),
            paper: "99 %".into(),
            ours: percent(progress(&fixed[0])),
            holds: progress(&fixed[0]) >= 0.99,
        },
        Claim {
            text: "smaller fixed caches degrade performance".into(),
            paper: String::new(),
            ours: fixed.iter().map(|report| percent(progress(report))).collect::<Vec<_>>().join(", "),
            holds: fixed.windows(2).all(|pair| progress(&pair[1]) <= progress(&pair[0])),
        },
        Claim {
            text: "a multi-policy cache performs at least as well as a fixed one of its size".into(),
            paper: String::new(),
            ours: multi.iter().map(|report| percent(progress(report))).collect::<Vec<_>>().join(", "),
            holds: multi.iter().zip(fixed).all(|(multi, fixed)| progress(multi) + 1e-9 >= progress(fixed)),
        },
    ];
    let table = Table { name: "policies", columns: COLUMNS.to_vec(), rows };
    let quantity = "progress, percent of a cache without limit";
    let charts = vec![Chart { name: "progress", over: "entries, logarithm to base 10", quantity, lines }];
    let setup =
        format!("{} A multi-policy cache limits its size after it had {burst} entries.", setup(setting));
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}

const COLUMNS: [&str; 6] = ["policy", "progress", "misses", "entries at the end", "at most", "on average"];

fn row(name: &str, report: &ReplayReport) -> Vec<String> {
    vec![
        name.into(),
        percent(progress(report)),
        percent(report.misses as f64 / report.reads.max(1) as f64),
        report.entries.to_string(),
        report.entries_max.to_string(),
        format!("{:.0}", report.entries_mean),
    ]
}

pub(super) fn fig5_12(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let (shape, scale) = (shape(setting), scale(setting));
    let multi = policies::multi_policy(1000 / scale, 50_000 / scale);
    let (mut lines, mut rows, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    for (name, policy) in
        [("none", policies::UNLIMITED), ("multi-policy", &multi), ("dynamic", policies::FANS)]
    {
        setting.check_stop()?;
        let mut points = Vec::new();
        let report = replay_observed(name, policy, &shape, |second, entries, _| {
            if second % (shape.seconds / 100) == 0 {
                points.push((second as f64, entries as f64));
            }
        });
        let report = report.map_err(|error| PaperError::Policy { name: name.into(), error })?;
        lines.push(Line { name: name.into(), points, dots: false });
        rows.push(row(name, &report));
        reports.push(report);
    }
    let [none, multi, dynamic] = [0, 1, 2].map(|at: usize| reports[at]);
    let saved = 1.0 - dynamic.entries_mean / none.entries_mean;
    let claims = vec![
        Claim {
            text: "the dynamic policy saves the most memory, on average over the run".into(),
            paper: String::new(),
            ours: format!("{} less than without a policy", percent(saved)),
            holds: dynamic.entries_mean < none.entries_mean.min(multi.entries_mean),
        },
        Claim {
            text: "without sacrificing performance".into(),
            paper: String::new(),
            ours: format!("{}, multi-policy {}", percent(progress(&dynamic)), percent(progress(&multi))),
            holds: progress(&dynamic) >= 0.99,
        },
    ];
    let table = Table { name: "policies", columns: COLUMNS.to_vec(), rows };
    let charts = vec![Chart { name: "memory", over: "seconds", quantity: "entries in the cache", lines }];
    Ok(ExperimentResult {
        setup: setup(setting),
        claims,
        tables: vec![table],
        charts,
        ..ExperimentResult::default()
    })
}

pub(super) fn fig5_14(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let first = shape(setting);
    // The smaller growth rate: hotter keys, a smaller key space; and a longer run.
    let slow = TraceShape { seed: 2, group_keys: first.group_keys / 4, groups: 4, ..first };
    let long = TraceShape { seed: 3, seconds: first.seconds * 8 / 5, groups: 3, ..first };
    let (mut rows, mut claims) = (Vec::new(), Vec::new());
    for (name, shape) in [("growth rate 1", first), ("growth rate 2", slow), ("growth rate 1, 4 hours", long)]
    {
        let none = run(setting, "none", policies::UNLIMITED, &shape)?;
        let dynamic = run(setting, "dynamic", policies::FANS, &shape)?;
        rows.push(row(&format!("{name}, none"), &none));
        rows.push(row(&format!("{name}, dynamic"), &dynamic));
        let saved = 1.0 - dynamic.entries_mean / none.entries_mean;
        claims.push(Claim {
            text: format!("{name}: the dynamic cache saves at least 32 % of the memory at equal progress"),
            paper: "32 to 66 %".into(),
            ours: format!("{} at {} of the progress", percent(saved), percent(progress(&dynamic))),
            holds: saved >= 0.32 && progress(&dynamic) >= 0.99,
        });
    }
    let table = Table { name: "policies", columns: COLUMNS.to_vec(), rows };
    let setup = format!(
        "{} Growth rate 2: 4 groups of a quarter of the keys. 4 hours: 3 groups, 1.6 times as long. Memory is the mean number of entries over the run.",
        setup(setting)
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], ..ExperimentResult::default() })
}
