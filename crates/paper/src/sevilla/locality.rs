//! One client that compiles: what its phases use (Fig. 2.1), which directories are hot (Fig. 2.2),
//! and what it costs to spread them (Fig. 4.2).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use espalier_proto::Rank;
use espalier_sim::{Line, Nanos, World};

use super::compile::{about, build};
use super::machine;
use super::run::{Ran, claim, limits, percent, simulate, simulate_all, table};
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult, Picture, Table};
use crate::{EVERYWHERE, Experiment, SIMULATED, Setting, Testbed};

pub(crate) const FIG2_1: Experiment = Experiment {
    id: "sevilla-fig2.1",
    title: "What the phases of a compilation use",
    places: SIMULATED,
    run: fig2_1,
};
pub(crate) const FIG2_2: Experiment = Experiment {
    id: "sevilla-fig2.2",
    title: "Hot directories of a compilation",
    places: SIMULATED,
    run: fig2_2,
};
pub(crate) const FIG4_2: Experiment = Experiment {
    id: "sevilla-fig4.2",
    title: "Locality and spread for one compilation",
    places: EVERYWHERE,
    run: fig4_2,
};

/// Phases of the workload, with the barriers before them.
const PHASES: [(&str, u32); 4] = [("untar", 1), ("configure", 2), ("compile", 3), ("link", 4)];

fn slow(setting: &Setting<'_>) -> u32 {
    if setting.quick { 50 } else { 1 }
}

/// Seconds at which a phase begins and ends.
fn span(ran: &Ran, number: u32) -> Result<(f64, f64), PaperError> {
    let (begun, ended) = ran.summary.span(number).ok_or(PaperError::Nothing("a phase"))?;
    Ok((begun.as_secs_f64(), ended.as_secs_f64()))
}

fn fig2_1(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let slow = slow(setting);
    let durable = build(1, 1, 1, "parent", slow)
        .replace("writeback = false\n", "writeback = false\ndurability = \"durable\"\n")
        .replace("series = \"5 s\"", "series = \"500 ms\"");
    let ran = simulate(setting, &durable, Vec::new(), |_, _| {})?;
    let (mut rows, mut uses) = (Vec::new(), Vec::new());
    for (name, number) in PHASES {
        let (begun, ended) = span(&ran, number)?;
        let within = |time: &f64| *time > begun && *time <= ended.max(begun + 0.5);
        let samples: Vec<_> = ran.series.servers.iter().filter(|sample| within(&sample.time)).collect();
        let count = samples.len().max(1) as f64;
        let cpu = samples.iter().map(|sample| sample.utilisation).sum::<f64>() / count;
        let disk = samples.iter().map(|sample| sample.disk_utilisation).sum::<f64>() / count;
        let messages = ran.series.messages.iter().filter(|sample| within(&sample.time));
        let messages = messages.map(|sample| sample.messages).sum::<u64>() as f64 / (0.5 * count);
        rows.push(vec![
            name.to_owned(),
            format!("{:.1}", ended - begun),
            format!("{:.1}", 100.0 * cpu),
            format!("{:.1}", 100.0 * disk),
            format!("{messages:.1}"),
        ]);
        uses.push([cpu, disk, messages]);
    }
    let most = |of: usize| uses.iter().all(|phase| phase[of] <= uses[0][of]);
    // Each resource relative to its largest use.
    let sum = |phase: &[f64; 3]| -> f64 {
        (0..3)
            .map(|of| phase[of] / uses.iter().map(|phase| phase[of]).fold(f64::MIN_POSITIVE, f64::max))
            .sum()
    };
    let combined: Vec<f64> = uses.iter().map(sum).collect();
    let claims = vec![
        claim(
            "unpacking has the highest combined use of processor, disk and network",
            "the highest",
            format!(
                "{:.2} of 3, others at most {:.2}",
                combined[0],
                combined[1..].iter().copied().fold(0.0, f64::max)
            ),
            combined[1..].iter().all(|other| *other <= combined[0]),
        ),
        claim("and the highest use of the disk", "the highest", rows[0][3].clone() + " %", most(1)),
    ];
    let points = |of: usize, scale: f64| {
        uses.iter().enumerate().map(|(at, phase)| (at as f64, phase[of] * scale)).collect::<Vec<_>>()
    };
    let lines = vec![
        Line { name: "processor".into(), points: points(0, 100.0), dots: false },
        Line { name: "disk".into(), points: points(1, 100.0), dots: false },
    ];
    Ok(ExperimentResult {
        setup: about("One client", slow) + " Changes are durable before they are acknowledged.",
        claims,
        tables: vec![Table {
            name: "phases",
            columns: vec!["phase", "seconds", "processor %", "disk %", "messages a second"],
            rows,
        }],
        charts: vec![Chart { name: "use", over: "phase", quantity: "percent", lines }],
        ..ExperimentResult::default()
    })
}

/// Seconds between two columns of the heat map.
const COLUMN: f64 = 5.0;

/// Top-level directories of the tree, as the workload has them.
const ROWS: [&str; 8] = ["include", "arch", "kernel", "mm", "fs", "lib", "net", "drivers"];

/// Reads and writes of inodes, with decay, of each top-level directory.
fn heat(world: &World<'_>) -> [f64; ROWS.len()] {
    let mut heat = [0.0; ROWS.len()];
    let report = world.load_report(Rank(0), 1000);
    for dir in report.iter().flat_map(|report| &report.directories) {
        let top = dir.path.as_deref().and_then(|path| path.split('/').nth(3));
        if let Some(row) = ROWS.iter().position(|row| Some(*row) == top) {
            heat[row] += dir.own.ird.get() + dir.own.iwr.get();
        }
    }
    heat
}

fn fig2_2(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let slow = slow(setting);
    let (mut columns, mut next): (Vec<(f64, [f64; ROWS.len()])>, f64) = (Vec::new(), 0.0);
    let look = |now: Nanos, world: &World<'_>| {
        if now.as_secs_f64() >= next {
            columns.push((now.as_secs_f64(), heat(world)));
            next = now.as_secs_f64() + COLUMN;
        }
    };
    let ran = simulate(setting, &build(1, 1, 1, "parent", slow), Vec::new(), look)?;
    let (begun, ended) = span(&ran, 3)?;
    let compiling = columns.iter().filter(|(time, _)| (begun..ended).contains(time));
    let (mut hottest, mut shares): (BTreeMap<&str, u32>, Vec<f64>) = (BTreeMap::new(), Vec::new());
    for (_, heat) in compiling {
        // The headers are used by all sources.
        let (row, most) = (1..ROWS.len())
            .map(|row| (row, heat[row]))
            .fold((1, 0.0), |best, now| if now.1 > best.1 { now } else { best });
        let all: f64 = heat[1..].iter().sum();
        if all > 0.0 {
            *hottest.entry(ROWS[row]).or_default() += 1;
            shares.push(most / all);
        }
    }
    let share = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    let times = |row: &str| hottest.get(row).copied().unwrap_or_default();
    let claims = vec![
        claim(
            "compiling has hotspots in arch, kernel, fs and mm: each is the hottest at some time",
            "arch, kernel, fs, mm",
            hottest.iter().map(|(row, count)| format!("{row} {count}")).collect::<Vec<_>>().join(", "),
            ["arch", "kernel", "fs", "mm"].iter().all(|row| times(row) > 0),
        ),
        claim(
            "one of seven top-level directories has most of the heat of sources at a time",
            "locality",
            format!("{:.0} %", 100.0 * share),
            share > 0.5,
        ),
    ];
    let row = |(time, heat): &(f64, [f64; ROWS.len()])| {
        std::iter::once(format!("{time:.0}")).chain(heat.iter().map(|heat| format!("{heat:.1}"))).collect()
    };
    let head = std::iter::once("seconds").chain(ROWS).collect();
    Ok(ExperimentResult {
        setup: about("One client", slow),
        claims,
        tables: vec![Table { name: "heat", columns: head, rows: columns.iter().map(row).collect() }],
        pictures: vec![Picture { name: "heat", svg: drawn(&columns) }],
        ..ExperimentResult::default()
    })
}

/// A heat map: time to the right, a row for each directory.
fn drawn(columns: &[(f64, [f64; ROWS.len()])]) -> String {
    const LEFT: usize = 80;
    const HEIGHT: usize = 28;
    let width = 860.0 / columns.len().max(1) as f64;
    let most = columns.iter().flat_map(|(_, heat)| heat).copied().fold(f64::MIN_POSITIVE, f64::max);
    let height = HEIGHT * ROWS.len();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"960\" height=\"{}\" font-family=\"sans-serif\" font-size=\"14\">\n",
        height + 40
    );
    for (row, name) in ROWS.iter().enumerate() {
        let y = row * HEIGHT;
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<text x=\"4\" y=\"{}\">{name}</text>", y + 18);
        for (at, (_, heat)) in columns.iter().enumerate() {
            // A root makes small heat visible.
            let white = 255 - (255.0 * (heat[row] / most).sqrt()) as u32;
            let x = LEFT as f64 + at as f64 * width;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.2}\" height=\"{HEIGHT}\" fill=\"rgb(255,{white},{white})\"/>"
            );
        }
    }
    let end = columns.last().map_or(0.0, |(time, _)| *time);
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">0 s</text>", height + 22);
    let _ = writeln!(svg, "<text x=\"900\" y=\"{}\">{end:.0} s</text>\n</svg>", height + 22);
    svg
}

fn fig4_2(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::fig4_2(setting);
    }
    let slow = slow(setting);
    let local = simulate(setting, &build(1, 3, 1, "parent", slow), Vec::new(), |_, _| {})?;
    let (compiles, _) = span(&local, 3)?;
    let evenly = format!(
        "{}[balancer]\npolicy = \"cephfs\"\nfrom = \"{compiles:.0} s\"\n{}",
        build(1, 3, 1, "parent", slow),
        limits()
    );
    let spread = simulate_all(setting, &[evenly, build(1, 3, 1, "off", slow)])?;
    let names = ["high locality", "spread evenly", "spread unevenly"];
    let runs: Vec<&Ran> = std::iter::once(&local).chain(&spread).collect();
    let ratio = |at: usize| runs[at].seconds() / runs[0].seconds();
    let messages = |at: usize| (runs[at].count("request") + runs[at].count("peer")) as f64;
    let claims = vec![
        claim(
            "the job with all metadata at one rank is faster than with them spread evenly",
            "18 to 19 %",
            percent(ratio(1)),
            ratio(1) > 1.0,
        ),
        claim(
            "and than with them spread unevenly, when they are made",
            "18 to 19 %",
            percent(ratio(2)),
            ratio(2) > 1.0,
        ),
        claim(
            "spread metadata cost more requests, most if they are spread unevenly",
            "more",
            format!("{} and {}", percent(messages(1) / messages(0)), percent(messages(2) / messages(0))),
            messages(1) > messages(0) && messages(2) > messages(1),
        ),
    ];
    Ok(ExperimentResult {
        setup: about("One client at 3 ranks", slow)
            + " Evenly: the sources are unpacked at one rank, and CephFS's balancer spreads them from the beginning of the compilation on. \
               Unevenly: each new directory is made at the next rank.",
        claims,
        tables: vec![table(names.into_iter().zip(runs.iter().copied()))],
        ..ExperimentResult::default()
    })
}
