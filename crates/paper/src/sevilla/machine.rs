//! Chapter 4 on real servers.

use espalier_sim::source::OpKind;

use super::compile::workload;
use super::create::{CLIENTS, EVENLY, GREEDY, MADE, separate, shared};
use super::run::{claim, percent};
use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::summary::Summary;
use crate::trial::{Trial, medians};

const ABOUT: &str = "Servers and clients share the processors, so more ranks add work and no processor. Clients have write-back; ranks \
                     decide each 2 s, within the limits of docs/balancing.md.";

/// Divides the numbers of files and sources of the thesis.
fn fewer(setting: &Setting<'_>) -> u32 {
    if setting.quick { 20 } else { 4 }
}

fn trials(setting: &Setting<'_>) -> usize {
    if setting.quick { 1 } else { 3 }
}

/// A cluster whose directories are made as `pin` says.
fn cluster(ranks: u16, clients: u32, pin: &str, balancer: Option<&str>) -> String {
    let balancer =
        balancer.map_or(String::new(), |policy| format!("[balancer]\n{policy}\nevery = \"2 s\"\n"));
    format!("[cluster]\nranks = {ranks}\nclients = {clients}\n[policy]\npin = \"{pin}\"\n{balancer}")
}

/// Seconds between the first operation after the first barrier and the last operation.
fn seconds(summary: &Summary, phases: std::ops::RangeInclusive<u32>) -> Result<f64, PaperError> {
    let spans: Vec<_> = phases.filter_map(|phase| summary.span(phase)).collect();
    let begun = spans.iter().map(|(begun, _)| *begun).min();
    let ended = spans.iter().map(|(_, ended)| *ended).max();
    let (begun, ended) = begun.zip(ended).ok_or(PaperError::Nothing("a phase"))?;
    Ok(ended.as_secs_f64() - begun.as_secs_f64())
}

/// Seconds and moves of runs: medians of the trials.
fn play_all(
    setting: &Setting<'_>,
    runs: &[(&str, String)],
    phases: std::ops::RangeInclusive<u32>,
) -> Result<Vec<[f64; 2]>, PaperError> {
    let measured = medians(trials(setting), runs.len(), |way| {
        let summary = Trial::new(&runs[way].1)?.run(setting)?;
        Ok(vec![seconds(&summary, phases.clone())?, summary.moves as f64])
    })?;
    Ok(measured.into_iter().map(|figures| [figures[0], figures[1]]).collect())
}

/// A table of runs, with times relative to the first.
fn table(runs: &[(&str, String)], measured: &[[f64; 2]]) -> Table {
    let row = |((name, _), [seconds, moves]): (&(&str, String), &[f64; 2])| {
        let time = percent(seconds / measured[0][0]);
        vec![(*name).to_owned(), format!("{seconds:.1}"), time, format!("{moves:.0}")]
    };
    let columns = vec!["run", "seconds", "time", "moves"];
    Table { name: "runs", columns, rows: runs.iter().zip(measured).map(row).collect() }
}

pub(super) fn fig4_4(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let clients: Vec<u32> = (1..=7).collect();
    let measured = medians(trials(setting), clients.len(), |way| {
        let text = cluster(1, clients[way], "parent", None) + &separate(fewer(setting));
        let summary = Trial::new(&text)?.run(setting)?;
        let creates = summary.phase(MADE, OpKind::Create)?;
        Ok(vec![creates.rate(), creates.latencies.mean() / 1e6, creates.latencies.stdev() / 1e6])
    })?;
    let rows = clients.iter().zip(&measured).map(|(clients, figures)| {
        let figures =
            [format!("{:.0}", figures[0]), format!("{:.3}", figures[1]), format!("{:.3}", figures[2])];
        std::iter::once(clients.to_string()).chain(figures).collect()
    });
    let (more, longer) = (measured[6][0] / measured[4][0], measured[6][1] / measured[4][1]);
    let claims = vec![
        claim("with more than five clients throughput stops improving", "", percent(more), more < 1.1),
        claim("and latency increases further", "", percent(longer), longer > 1.0),
    ];
    Ok(ExperimentResult {
        setup: format!(
            "Each client makes {} files in a directory of its own. {ABOUT}",
            100_000 / fewer(setting)
        ),
        claims,
        tables: vec![Table {
            name: "clients",
            columns: vec!["clients", "files a second", "latency ms", "deviation ms"],
            rows: rows.collect(),
        }],
        ..ExperimentResult::default()
    })
}

/// Figs. 4.6 and 4.7.
pub(super) fn spills(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let ways = [
        ("1 rank", 1, None),
        ("greedy spill, 2 ranks", 2, Some(GREEDY)),
        ("greedy spill, 4 ranks", 4, Some(GREEDY)),
        ("greedy spill evenly, 4 ranks", 4, Some(EVENLY)),
    ];
    let runs = ways.map(|(name, ranks, policy)| {
        (name, cluster(ranks, CLIENTS, "parent", policy) + &shared(fewer(setting)))
    });
    let measured = play_all(setting, &runs, MADE..=MADE)?;
    let ratio = |at: usize| measured[at][0] / measured[0][0];
    let claims = vec![
        claim(
            "greedy spill sheds load to each of two ranks",
            "half of it",
            format!("{:.0} moves", measured[1][1]),
            measured[1][1] > 0.0,
        ),
        claim("greedy spill to four ranks, unevenly, hurts", "+20 % time", percent(ratio(2)), ratio(2) > 1.0),
        claim("greedy spill to four ranks, evenly, hurts", "+40 % time", percent(ratio(3)), ratio(3) > 1.0),
    ];
    Ok(ExperimentResult {
        setup: format!(
            "{CLIENTS} clients make {} files each in turn in the same directories. {ABOUT}",
            100_000 / fewer(setting)
        ),
        claims,
        tables: vec![table(&runs, &measured)],
        ..ExperimentResult::default()
    })
}

/// Phases of a compilation, from unpacking to linking.
const PHASES: std::ops::RangeInclusive<u32> = 1..=4;

fn compilation(ranks: u16, clients: u32, pin: &str, balancer: Option<&str>, slow: u32) -> String {
    cluster(ranks, clients, pin, balancer) + &workload(2 * slow)
}

pub(super) fn fig4_2(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let runs = [
        ("high locality", compilation(3, 1, "parent", None, fewer(setting))),
        ("spread when they are made", compilation(3, 1, "off", None, fewer(setting))),
    ];
    let measured = play_all(setting, &runs, PHASES)?;
    let ratio = measured[1][0] / measured[0][0];
    Ok(ExperimentResult {
        setup: format!("One client compiles, at 3 ranks. {ABOUT}"),
        claims: vec![claim(
            "the job with all metadata at one rank is faster than with them spread",
            "18 to 19 %",
            percent(ratio),
            ratio > 1.0,
        )],
        tables: vec![table(&runs, &measured)],
        ..ExperimentResult::default()
    })
}

/// Figs. 4.8 and 4.9.
pub(super) fn compilations(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let ways = [
        ("3 clients, 1 rank", 1, 3, None),
        ("3 clients, 3 ranks, adaptable", 3, 3, Some("adaptable")),
        ("5 clients, 1 rank", 1, 5, None),
        ("5 clients, 3 ranks, conservative", 3, 5, Some("adaptable-conservative")),
        ("5 clients, 3 ranks, adaptable", 3, 5, Some("adaptable")),
        ("5 clients, 3 ranks, too aggressive", 3, 5, Some("adaptable-too-aggressive")),
    ];
    let runs = ways.map(|(name, ranks, clients, policy)| {
        let policy = policy.map(|policy| format!("policy = \"{policy}\""));
        (name, compilation(ranks, clients, "parent", policy.as_deref(), fewer(setting)))
    });
    let measured = play_all(setting, &runs, PHASES)?;
    let penalty = measured[1][0] / measured[0][0];
    let (conservative, aggressive) = (measured[3][1], measured[5][1]);
    let claims: Vec<Claim> = vec![
        claim(
            "with 3 clients distribution is only a penalty",
            "no speedup",
            percent(penalty),
            penalty > 0.97,
        ),
        claim(
            "the conservative balancer moves no more than the too aggressive one",
            "less",
            format!("{conservative:.0} and {aggressive:.0} moves"),
            conservative <= aggressive && aggressive > 0.0,
        ),
    ];
    Ok(ExperimentResult {
        setup: format!("Each client compiles in a tree of its own. {ABOUT}"),
        claims,
        tables: vec![table(&runs, &measured)],
        ..ExperimentResult::default()
    })
}
