//! Creates: how much one rank serves (Fig. 4.4), CephFS's balancer (Fig. 4.3), and spilling (Figs.
//! 4.6 and 4.7).

use espalier_balancer::BalancerPolicy;
use espalier_sim::Line;
use espalier_sim::source::OpKind;

use super::machine;
use super::run::{CLIENT_US, Ran, claim, described, limits, model, percent, simulate_all, table};
use crate::error::PaperError;
use crate::outcome::{Chart, ExperimentResult, Table};
use crate::{EVERYWHERE, Experiment, SIMULATED, Setting, Testbed};

pub(crate) const FIG4_3: Experiment = Experiment {
    id: "sevilla-fig4.3",
    title: "CephFS's balancer, four runs of one job",
    places: SIMULATED,
    run: fig4_3,
};
pub(crate) const FIG4_4: Experiment = Experiment {
    id: "sevilla-fig4.4",
    title: "One rank and up to seven clients",
    places: EVERYWHERE,
    run: fig4_4,
};
pub(crate) const FIG4_6: Experiment = Experiment {
    id: "sevilla-fig4.6",
    title: "Creates in one directory, over time",
    places: EVERYWHERE,
    run: fig4_6,
};
pub(crate) const FIG4_7: Experiment = Experiment {
    id: "sevilla-fig4.7",
    title: "Creates in one directory, speedups",
    places: EVERYWHERE,
    run: fig4_7,
};

/// Clients that use one rank fully.
pub(super) const CLIENTS: u32 = 4;
/// Clients of Fig. 4.3, for 3 ranks.
const MORE_CLIENTS: u32 = 6;
/// Fragments of the shared directory (4.1.2.3).
const FRAGMENTS: u32 = 8;
/// Barriers before files are made.
pub(super) const MADE: u32 = 2;

fn slow(setting: &Setting<'_>) -> u32 {
    if setting.quick { 40 } else { 1 }
}

fn files(slow: u32) -> u32 {
    100_000 / slow
}

fn cluster(seed: u32, ranks: u16, clients: u32, pin: &str, slow: u32) -> String {
    format!(
        "seed = {seed}\n[cluster]\nranks = {ranks}\nclients = {clients}\nwriteback = false\n[policy]\npin = \"{pin}\"\n\
         [output]\nseries = \"5 s\"\n{}",
        model(slow, CLIENT_US)
    )
}

pub(super) fn separate(slow: u32) -> String {
    format!("[[workload]]\nkind = \"create\"\nfiles = {}\nshared = false\none_makes = true\n", files(slow))
}

pub(super) fn shared(slow: u32) -> String {
    format!("[[workload]]\nkind = \"create\"\nfiles = {}\ndirectories = {FRAGMENTS}\n", files(slow))
}

fn balancer(policy: &str) -> String {
    format!("[balancer]\n{policy}\n{}", limits())
}

fn fig4_4(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::fig4_4(setting);
    }
    let slow = slow(setting);
    let clients: Vec<u32> = (1..=7).collect();
    let text = |clients: &u32| cluster(1, 1, *clients, "parent", slow) + &separate(slow);
    let runs = simulate_all(setting, &clients.iter().map(text).collect::<Vec<_>>())?;
    let (mut rows, mut rates, mut means, mut deviations) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (clients, ran) in clients.iter().zip(&runs) {
        let rate = ran.summary.phase(MADE, OpKind::Create)?.rate();
        let (mean, deviation) = ran.latency(MADE, OpKind::Create)?;
        let cpu = 100.0 * ran.report.servers[0].utilisation;
        rows.push(vec![
            clients.to_string(),
            format!("{rate:.0}"),
            format!("{mean:.3}"),
            format!("{deviation:.3}"),
            format!("{cpu:.0}"),
        ]);
        rates.push(rate);
        means.push(mean);
        deviations.push(deviation);
    }
    let more = rates[6] / rates[4];
    let longer = means[6] / means[4];
    let wider = deviations[6] / deviations[2];
    let claims = vec![
        claim("with more than five clients throughput stops improving", "", percent(more), more < 1.05),
        claim("and latency increases further", "", percent(longer), longer > 1.2),
        claim(
            "the deviation of latencies is larger with seven clients than with three",
            "up to 3 times",
            format!("{wider:.1} times"),
            wider > 1.0,
        ),
        claim(
            "one rank serves four clients at 90 % of four times the rate of one",
            "up to four clients",
            percent(rates[3] / rates[0] / 4.0),
            rates[3] / rates[0] > 3.6,
        ),
    ];
    let points = rates.iter().copied().zip(means.iter().copied()).collect();
    let line = Line { name: "1 to 7 clients".into(), points, dots: false };
    let columns = vec!["clients", "files a second", "latency ms", "deviation ms", "processor %"];
    Ok(ExperimentResult {
        setup: format!(
            "Each client makes {} files in a directory of its own. {}",
            files(slow),
            described(slow, CLIENT_US)
        ),
        claims,
        tables: vec![Table { name: "clients", columns, rows }],
        charts: vec![Chart { name: "latency", over: "files a second", quantity: "ms", lines: vec![line] }],
        ..ExperimentResult::default()
    })
}

fn fig4_3(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let slow = slow(setting);
    let even = cluster(1, 3, MORE_CLIENTS, "off", slow) + &separate(slow);
    let balanced = |seed: u32| {
        cluster(seed, 3, MORE_CLIENTS, "parent", slow) + &balancer("policy = \"cephfs\"") + &separate(slow)
    };
    let texts: Vec<String> = std::iter::once(even).chain((1..=3).map(balanced)).collect();
    let runs = simulate_all(setting, &texts)?;
    let names = ["spread from the start", "balanced, seed 1", "balanced, seed 2", "balanced, seed 3"];
    let times: Vec<f64> = runs[1..].iter().map(Ran::seconds).collect();
    let (longest, shortest) =
        (times.iter().copied().fold(0.0, f64::max), times.iter().copied().fold(f64::INFINITY, f64::min));
    let claims = vec![
        claim(
            "the job takes longest where load is balanced, compared to an even spread",
            "5 to 10 minutes",
            percent(longest / runs[0].seconds()),
            longest > runs[0].seconds(),
        ),
        claim(
            "the balanced job's time differs by more than 10 % from seed to seed",
            "up to 100 %",
            percent(longest / shortest),
            longest > 1.1 * shortest,
        ),
    ];
    let charts = ["even", "balanced-1", "balanced-2", "balanced-3"].into_iter().zip(&runs);
    let charts = charts.map(|(name, ran)| Chart {
        name,
        over: "seconds",
        quantity: "requests a second, stacked",
        lines: ran.stacked(""),
    });
    Ok(ExperimentResult {
        setup: format!(
            "{MORE_CLIENTS} clients make {} files each in directories of their own, at 3 ranks. {}",
            files(slow),
            described(slow, CLIENT_US)
        ),
        claims,
        tables: vec![table(names.into_iter().zip(&runs))],
        charts: charts.collect(),
        ..ExperimentResult::default()
    })
}

/// Fill & Spill with another share of the load and a processor's use from Fig. 4.4: what three
/// clients cause.
fn fill_and_spill(share: f64, busy: f64) -> String {
    let text =
        BalancerPolicy::shipped("fill-and-spill").map_or(String::new(), |policy| policy.text().to_owned());
    let text = text
        .replace("BUSY_CPU = 48", &format!("BUSY_CPU = {busy:.0}"))
        .replace("[\"load\"] / 4", &format!("[\"load\"] * {share}"));
    format!("script = '''\n{text}'''")
}

/// Use of the processor with three clients, in percent.
fn busy(setting: &Setting<'_>, slow: u32) -> Result<f64, PaperError> {
    let slow = slow.max(10);
    let ran = simulate_all(setting, &[cluster(1, 1, 3, "parent", slow) + &shared(slow)])?;
    Ok(100.0 * ran[0].report.servers[0].utilisation)
}

fn spilled(ranks: u16, policy: Option<&str>, slow: u32) -> String {
    let policy = policy.map_or(String::new(), balancer);
    cluster(1, ranks, CLIENTS, "parent", slow) + &policy + &shared(slow)
}

pub(super) const GREEDY: &str = "policy = \"greedy-spill\"";
pub(super) const EVENLY: &str = "policy = \"greedy-spill-evenly\"";

fn about_shared(slow: u32) -> String {
    format!(
        "{CLIENTS} clients make {} files each in turn in {FRAGMENTS} directories, which stand for the {FRAGMENTS} fragments of the thesis's \
         directory: a fragment of ours is at another rank from the beginning. {}",
        files(slow),
        described(slow, CLIENT_US)
    )
}

fn fig4_6(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::spills(setting);
    }
    let slow = slow(setting);
    let fill = fill_and_spill(0.25, busy(setting, slow)?);
    let names =
        ["1 rank", "greedy spill, 4 ranks", "greedy spill evenly, 4 ranks", "fill and spill, 4 ranks"];
    let texts = [(1, None), (4, Some(GREEDY)), (4, Some(EVENLY)), (4, Some(fill.as_str()))]
        .map(|(ranks, policy)| spilled(ranks, policy, slow));
    let runs = simulate_all(setting, &texts)?;
    let speedup = |at: usize| runs[0].seconds() / runs[at].seconds();
    let first_move = |ran: &Ran| ran.moves.first().map_or(f64::INFINITY, |moved| moved.time);
    let claims = vec![
        claim(
            "fill and spill has the highest throughput",
            "up to +9 %",
            percent(speedup(3)),
            speedup(3) > 1.0 && speedup(3) >= speedup(1).max(speedup(2)),
        ),
        claim(
            "greedy spill sheds load earlier than fill and spill",
            "at once; when overloaded",
            format!("after {:.0} s and {:.0} s", first_move(&runs[1]), first_move(&runs[3])),
            first_move(&runs[1]) < first_move(&runs[3]),
        ),
    ];
    let lines = names.into_iter().zip(&runs).map(|(name, ran)| ran.throughput(name)).collect();
    Ok(ExperimentResult {
        setup: about_shared(slow),
        claims,
        tables: vec![table(names.into_iter().zip(&runs))],
        charts: vec![Chart { name: "throughput", over: "seconds", quantity: "operations a second", lines }],
        ..ExperimentResult::default()
    })
}

fn fig4_7(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    if setting.place == Testbed::Machine {
        return machine::spills(setting);
    }
    let slow = slow(setting);
    let busy = busy(setting, slow)?;
    let (quarter, tenth) = (fill_and_spill(0.25, busy), fill_and_spill(0.1, busy));
    let ways = [
        ("1 rank", 1, None, Some(100.0)),
        ("greedy spill, 2 ranks", 2, Some(GREEDY), Some(110.0)),
        ("greedy spill, 3 ranks", 3, Some(GREEDY), Some(95.0)),
        ("greedy spill, 4 ranks", 4, Some(GREEDY), Some(80.0)),
        ("greedy spill evenly, 4 ranks", 4, Some(EVENLY), Some(60.0)),
        ("fill and spill 25 %, 4 ranks", 4, Some(quarter.as_str()), Some(106.0)),
        ("fill and spill 10 %, 4 ranks", 4, Some(tenth.as_str()), None),
    ];
    let texts: Vec<String> =
        ways.iter().map(|(_, ranks, policy, _)| spilled(*ranks, *policy, slow)).collect();
    let runs = simulate_all(setting, &texts)?;
    let speedup = |at: usize| runs[0].seconds() / runs[at].seconds();
    let claims = vec![
        claim("greedy spill to two ranks helps", "+10 %", percent(speedup(1)), speedup(1) > 1.0),
        claim("greedy spill to three ranks hurts", "-5 %", percent(speedup(2)), speedup(2) < 1.0),
        claim("greedy spill to four ranks, unevenly, hurts", "-20 %", percent(speedup(3)), speedup(3) < 1.0),
        claim("greedy spill to four ranks, evenly, hurts", "-40 %", percent(speedup(4)), speedup(4) < 1.0),
        claim(
            "fill and spill is about as fast as greedy spill to two ranks (within 5 %)",
            "+6 % and +10 %",
            format!("{} and {}", percent(speedup(5)), percent(speedup(1))),
            speedup(5) > 1.0 && (speedup(5) / speedup(1) - 1.0).abs() < 0.05,
        ),
        claim(
            "fill and spill uses half of the ranks",
            "2 of 4",
            format!("{} of 4", runs[5].ranks_in_use()),
            runs[5].ranks_in_use() <= 2,
        ),
        claim(
            "to spill a tenth of the load takes longer than to spill a quarter",
            "longer",
            percent(runs[6].seconds() / runs[5].seconds()),
            runs[6].seconds() > runs[5].seconds(),
        ),
    ];
    let points = (0..runs.len()).map(|at| (at as f64, 100.0 * speedup(at))).collect();
    let paper = ways.iter().enumerate().filter_map(|(at, way)| Some((at as f64, way.3?))).collect();
    let lines = vec![
        Line { name: "here".into(), points, dots: false },
        Line { name: "thesis".into(), points: paper, dots: true },
    ];
    Ok(ExperimentResult {
        setup: about_shared(slow),
        claims,
        tables: vec![table(ways.iter().map(|way| way.0).zip(&runs))],
        charts: vec![Chart {
            name: "speedup",
            over: "run, in the order of the table",
            quantity: "percent of one rank's",
            lines,
        }],
        ..ExperimentResult::default()
    })
}
