//! Clients that compile in trees of their own, with the adaptable balancer (Figs. 4.8 and 4.9).

use espalier_balancer::BalancerPolicy;

use super::machine;
use super::run::{Ran, claim, described, limits, model, percent, simulate_all, table};
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const FIG4_8: Experiment = Experiment {
    id: "sevilla-fig4.8",
    title: "Compilation by 3 and 5 clients at up to 5 ranks",
    places: EVERYWHERE,
    run: fig4_8,
};
pub(crate) const FIG4_9: Experiment = Experiment {
    id: "sevilla-fig4.9",
    title: "Compilation by 5 clients, three balancers",
    places: EVERYWHERE,
    run: fig4_9,
};

/// Computing time of a client for each request, in microseconds. It runs several compilers: three
/// clients do not overload a rank, five do (4.3.3).
const CLIENT_US: f64 = 300.0;
/// Small files: their bytes do not matter here.
const SIZES: &str = "source_bytes = \"2000 B\"\nheader_bytes = \"1000 B\"\nobject_bytes = \"4000 B\"\n";
/// Least load that the conservative balancer moves: more than there is before the compilation.
const OFFLOAD_MIN: u32 = 30_000;
/// Sources of each client's tree, without `slow`.
const SOURCES: u32 = 20_000;

fn slow(setting: &Setting<'_>) -> u32 {
    if setting.quick { 50 } else { 1 }
}

/// One run. `pin`: where directories are made.
pub(super) fn build(seed: u32, ranks: u16, clients: u32, pin: &str, slow: u32) -> String {
    format!(
        "seed = {seed}\n[cluster]\nranks = {ranks}\nclients = {clients}\nwriteback = false\n[policy]\npin = \"{pin}\"\n\
         [output]\nseries = \"5 s\"\n{}{}",
        model(slow, CLIENT_US),
        workload(slow)
    )
}

pub(super) fn workload(slow: u32) -> String {
    format!(
        "[[workload]]\nkind = \"build\"\nsources = {}\nheaders = {}\ntime = \"{} ms\"\n{SIZES}",
        SOURCES / slow,
        SOURCES / 5 / slow,
        f64::from(slow) / 5.0
    )
}

pub(super) fn about(clients: &str, slow: u32) -> String {
    format!(
        "{clients}: unpack a tree of {} sources and {} headers (a kernel's directories), configure, compile a third of it, link; each in its own tree. {}",
        SOURCES / slow,
        SOURCES / 5 / slow,
        described(slow, CLIENT_US)
    )
}

/// A shipped policy. Loads are lower if everything is slower.
fn policy(name: &str, slow: u32) -> String {
    let text = BalancerPolicy::shipped(name).map_or(String::new(), |policy| policy.text().to_owned());
    let text = text.replace("OFFLOAD_MIN = 1000", &format!("OFFLOAD_MIN = {}", OFFLOAD_MIN / slow));
    format!("[balancer]\nscript = '''\n{text}'''\n{}", limits())
}

/// Numbers of ranks of Fig. 4.8.
const RANKS: [u16; 4] = [1, 2, 3, 5];

fn fig4_8(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::compilations(setting);
    }
    let slow = slow(setting);
    let ways: Vec<(u32, u16)> =
        [3, 5].into_iter().flat_map(|clients| RANKS.map(move |ranks| (clients, ranks))).collect();
    let texts: Vec<String> = ways
        .iter()
        .map(|(clients, ranks)| {
            let balancer = if *ranks > 1 { policy("adaptable", slow) } else { String::new() };
            build(1, *ranks, *clients, "parent", slow) + &balancer
        })
        .collect();
    let runs = simulate_all(setting, &texts)?;
    let names: Vec<String> =
        ways.iter().map(|(clients, ranks)| format!("{clients} clients, {ranks} ranks")).collect();
    let few = RANKS.len();
    // `first`: the first of the runs with the same number of clients.
    let speedup = |first: usize, at: usize| runs[first].seconds() / runs[first + at].seconds();
    let best = |first: usize| (1..few).map(|at| speedup(first, at)).fold(0.0, f64::max);
    let more = speedup(few, 3) / speedup(few, 2);
    let claims = vec![
        claim("with 3 clients distribution is only a penalty", "no speedup", percent(best(0)), best(0) < 1.0),
        claim(
            "with 5 clients distribution speeds the job up",
            "a speedup",
            percent(best(few)),
            best(few) > 1.0,
        ),
        claim(
            "5 clients are as fast with 3 ranks as with 5, within 5 %",
            "just as efficient",
            percent(more),
            more < 1.05,
        ),
    ];
    let lines = [(0, "3 clients"), (few, "5 clients")].map(|(first, name)| espalier_sim::Line {
        name: name.into(),
        points: (0..few).map(|at| (RANKS[at].into(), 100.0 * speedup(first, at))).collect(),
        dots: false,
    });
    Ok(ExperimentResult {
        setup: about("3 and 5 clients", slow),
        claims,
        tables: vec![table(names.iter().map(String::as_str).zip(&runs))],
        charts: vec![Chart {
            name: "speedup",
            over: "ranks",
            quantity: "percent of one rank's",
            lines: lines.to_vec(),
        }],
        ..ExperimentResult::default()
    })
}

fn fig4_9(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::compilations(setting);
    }
    let (slow, seeds) = (slow(setting), if setting.quick { 2 } else { 4 });
    let policies = ["adaptable-conservative", "adaptable", "adaptable-too-aggressive"];
    let mut texts = vec![build(1, 1, 5, "parent", slow)];
    for name in policies {
        texts.extend((1..=seeds).map(|seed| build(seed, 5, 5, "parent", slow) + &policy(name, slow)));
    }
    let runs = simulate_all(setting, &texts)?;
    let mut names = vec!["1 rank".to_owned()];
    for name in policies {
        names.extend((1..=seeds).map(|seed| format!("{name}, seed {seed}")));
    }
    let of = |at: usize| &runs[1 + at * seeds as usize..1 + (at + 1) * seeds as usize];
    let mean = |at: usize| of(at).iter().map(Ran::seconds).sum::<f64>() / f64::from(seeds);
    let deviation = |at: usize| {
        let square = |ran: &Ran| (ran.seconds() - mean(at)).powi(2);
        (of(at).iter().map(square).sum::<f64>() / f64::from(seeds)).sqrt()
    };
    let forwards = |at: usize| of(at).iter().map(|ran| ran.report.fragments.misrouted).sum::<u64>();
    let moves = |at: usize| of(at).iter().map(|ran| ran.moves.len() as u64).sum::<u64>();
    let claims = vec![
        claim(
            "the adaptable balancer speeds the job up",
            "a speedup",
            percent(runs[0].seconds() / mean(1)),
            mean(1) < runs[0].seconds(),
        ),
        claim(
            "the conservative one begins later and moves less",
            "from a spike at 5 min on",
            format!("{} and {} moves", moves(0), moves(1)),
            moves(0) < moves(1),
        ),
        claim(
            "too aggressive adaptation costs more forwards",
            "60 times",
            format!("{} instead of {}", forwards(2), forwards(1)),
            forwards(2) > forwards(1),
        ),
        claim("and makes the job take longer", "worse", percent(mean(2) / mean(1)), mean(2) > mean(1)),
        claim(
            "and its time less certain",
            "a much higher deviation",
            format!("{:.1} s and {:.1} s", deviation(2), deviation(1)),
            deviation(2) > deviation(1),
        ),
    ];
    let chart = |(at, name): (usize, &'static str)| {
        let mut lines = of(at)[0].stacked("");
        lines.push(runs[0].stacked("one rank: ").remove(0));
        Chart { name, over: "seconds", quantity: "requests a second, stacked", lines }
    };
    let charts = ["conservative", "adaptable", "too-aggressive"].into_iter().enumerate().map(chart);
    Ok(ExperimentResult {
        setup: about("5 clients", slow),
        claims,
        tables: vec![table(names.iter().map(String::as_str).zip(&runs))],
        charts: charts.collect(),
        ..ExperimentResult::default()
    })
}
