//! Figs. 5.2, 5.3 and 5.5: sequencers that move between servers. In the simulator a model with the
//! thesis' service times; on this machine hosts of the shared log, as processes.

use std::time::Duration;

use espalier_balancer::{BalancerEngine, BalancerPolicy, SavedState};
use espalier_shared_log::{HostLoad, NumberSource, SequencerLoad, plan_moves, policies};
use espalier_sim::Line;

use super::hosts::HostProcesses;
use super::model::{RequestRoute, SequencerCosts, SequencerModel, THESIS};
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};
use crate::{Setting, Testbed};

/// Clients of each sequencer, as in the thesis.
const CLIENTS: usize = 4;

const MODEL: &str = "A model: servers that work on one request at a time, 260 us to receive it and 265 us to find the tail, so that \
    two sequencers on one server get less than 1,000 requests a second each, as in the thesis. In client mode the \
    first server has 300 us of cache coherence for each request: an assumption, made so that proxy mode wins.";
const MACHINE: &str = "Hosts of the shared log as processes of this machine; two processors for all hosts and clients. Numbers are \
    taken and no entries written.";

fn rate(value: f64) -> String {
    format!("{value:.0}/s")
}

/// Names of the modes, routes of requests, and the server of each sequencer.
const MODES: [(&str, RequestRoute, &[usize]); 5] = [
    ("no balancing", RequestRoute::Client, &[0, 0]),
    ("client mode (half)", RequestRoute::Client, &[0, 1]),
    ("client mode (full)", RequestRoute::Client, &[1, 1]),
    ("proxy mode (half)", RequestRoute::Proxy, &[0, 1]),
    ("proxy mode (full)", RequestRoute::Proxy, &[1, 1]),
];

fn model_rate(setting: &Setting<'_>, costs: SequencerCosts, mode: usize) -> f64 {
    let (_, route, placement) = MODES[mode];
    let mut model = SequencerModel::new(costs, route, 2, 2, CLIENTS);
    model.placement.copy_from_slice(placement);
    model.throughput(if setting.quick { 10 } else { 60 })
}

/// Rates of the modes on this machine, of both sequencers together.
fn machine_rates(setting: &Setting<'_>) -> Result<Vec<f64>, PaperError> {
    let seconds = if setting.quick { 0.7 } else { 5.0 };
    let hosts = HostProcesses::start(setting, &["a", "b"], 2, None)?;
    MODES
        .iter()
        .map(|(_, route, placement)| {
            hosts.place(placement)?;
            let source = match route {
                RequestRoute::Client => NumberSource::Direct,
                RequestRoute::Proxy => NumberSource::Proxy("a".into()),
            };
            let rates = hosts.measure(&source, CLIENTS, Duration::from_secs_f64(seconds), setting)?;
            Ok(rates.iter().flatten().sum::<f64>() / rates[0].len() as f64)
        })
        .collect()
}

pub(super) fn fig5_3(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let rates = match setting.place {
        Testbed::Simulator => (0..MODES.len()).map(|mode| model_rate(setting, THESIS, mode)).collect(),
        Testbed::Machine => machine_rates(setting)?,
    };
    let rows = MODES.iter().zip(&rates);
    let rows = rows.map(|((name, ..), value)| vec![(*name).into(), rate(*value)]).collect();
    let table = Table { name: "modes", columns: vec!["mode", "numbers"], rows };
    let [none, client_half, _, proxy_half, proxy_full] = [0, 1, 2, 3, 4].map(|mode: usize| rates[mode]);
    let mut claims = Vec::new();
    if setting.place == Testbed::Simulator {
        claims.push(Claim {
            text: "the best mode and migration unit have twice the throughput of no balancing".into(),
            paper: "up to 2 times".into(),
            ours: format!("proxy mode (full): {:.2} times", proxy_full / none),
            holds: (1.8..=2.2).contains(&(proxy_full / none)),
        });
        claims.push(Claim {
            text: "proxy mode (full) is the best".into(),
            paper: String::new(),
            ours: format!("{}, proxy mode (half) {}", rate(proxy_full), rate(proxy_half)),
            holds: rates.iter().all(|other| *other <= proxy_full),
        });
    } else {
        claims.push(Claim {
            text: "without coherence traffic, client mode has more throughput than proxy mode (half)".into(),
            paper: "less".into(),
            ours: format!("{} and {}", rate(client_half), rate(proxy_half)),
            holds: client_half > proxy_half,
        });
    }
    let setup = format!(
        "{} Two sequencers with {CLIENTS} clients each, two servers. Half: one sequencer has moved to the second server. Full: both have.",
        if setting.place == Testbed::Simulator { MODEL } else { MACHINE }
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], ..ExperimentResult::default() })
}

pub(super) fn fig5_5(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    match setting.place {
        Testbed::Simulator => modes_in_model(setting),
        Testbed::Machine => modes_on_machine(setting),
    }
}

/// Proxy mode from the 60th second on, as in Fig. 5.5 (a), and the coherence traffic at which both
/// modes are equal.
fn modes_in_model(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let mut lines = Vec::new();
    for (name, route) in [("proxy", RequestRoute::Proxy), ("client", RequestRoute::Client)] {
        let mut model = SequencerModel::new(THESIS, route, 2, 2, CLIENTS);
        let mut points = [Vec::new(), Vec::new()];
        for second in 0..120_u32 {
            setting.check_stop()?;
            if second == 60 {
                model.placement = vec![1, 0];
            }
            model.served.fill(0);
            model.run(1_000_000);
            let served = points.iter_mut().zip(&model.served);
            served.for_each(|(points, served)| points.push((second.into(), *served as f64)));
        }
        lines.extend(points.into_iter().enumerate().map(|(index, points)| Line {
            name: format!("{name} mode, sequencer {}", index + 1),
            points,
            dots: false,
        }));
    }
    let last = |line: usize| lines[line].points.last().map_or(0.0, |point| point.1);
    let [proxy, client] = [last(0) + last(1), last(2) + last(3)];
    let without = SequencerCosts { coherence: 0, ..THESIS };
    let [client_without, proxy_without] = [1, 3].map(|mode| model_rate(setting, without, mode));
    let equal = (0..1000).step_by(10).find(|coherence| {
        let costs = SequencerCosts { coherence: *coherence, ..THESIS };
        model_rate(setting, costs, 1) < model_rate(setting, costs, 3)
    });
    let equal = equal.map_or("over 1000".into(), |coherence| coherence.to_string());
    let claims = vec![
        Claim {
            text: "on one server each sequencer has less than 1,000 requests a second".into(),
            paper: "less than 1,000/s".into(),
            ours: rate(lines[0].points[30].1),
            holds: lines[0].points[30].1 < 1000.0,
        },
        Claim {
            text: "proxy mode has more throughput than client mode".into(),
            paper: String::new(),
            ours: format!("{} and {}, with 300 us of coherence a request", rate(proxy), rate(client)),
            holds: proxy > client,
        },
        Claim {
            text: "in client mode sequencer 2, on the first server, has less throughput than sequencer 1"
                .into(),
            paper: String::new(),
            ours: format!("{} and {}", rate(last(3)), rate(last(2))),
            holds: last(3) < last(2),
        },
        Claim {
            text: "without coherence traffic client mode has more than proxy mode".into(),
            paper: String::new(),
            ours: format!("{} and {}; equal at {equal} us", rate(client_without), rate(proxy_without)),
            holds: client_without > proxy_without,
        },
    ];
    let charts = vec![Chart { name: "modes", over: "seconds", quantity: "numbers a second", lines }];
    let setup = format!(
        "{MODEL} Two sequencers with {CLIENTS} clients each, two servers; at 60 s sequencer 1 moves to the second one. The clients of both sequencers \
         queue at the proxy in order of arrival, so both gain, whereas in the thesis sequencer 2 loses."
    );
    Ok(ExperimentResult { setup, claims, charts, ..ExperimentResult::default() })
}

fn modes_on_machine(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let rates = machine_rates(setting)?;
    let [client, proxy] = [rates[1], rates[3]];
    let claims = vec![Claim {
        text: "proxy mode has more throughput than client mode".into(),
        paper: String::new(),
        ours: format!(
            "{} and {}: hosts have no coherence traffic, and a proxy costs a message",
            rate(proxy),
            rate(client)
        ),
        holds: proxy > client,
    }];
    let rows = [("client mode", client), ("proxy mode", proxy)];
    let rows = rows.iter().map(|(name, value)| vec![(*name).into(), rate(*value)]).collect();
    let table = Table { name: "modes", columns: vec!["mode", "numbers"], rows };
    let setup = format!("{MACHINE} Two sequencers with {CLIENTS} clients each, one sequencer on each host.");
    Ok(ExperimentResult { setup, claims, tables: vec![table], ..ExperimentResult::default() })
}

pub(super) fn fig5_2(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    match setting.place {
        Testbed::Simulator => balancers_in_model(setting),
        Testbed::Machine => balancers_on_machine(setting),
    }
}

/// Numbers a second over time with a balancer, and the seconds at which it moved something.
fn balanced(setting: &Setting<'_>, policy: Option<BalancerPolicy>) -> Result<(Line, Vec<u64>), PaperError> {
    const TICK_S: u64 = 10;
    let mut model = SequencerModel::new(THESIS, RequestRoute::Proxy, 3, 3, CLIENTS);
    let name = policy.as_ref().map_or("no balancing", BalancerPolicy::name).to_owned();
    let engine = policy.map(BalancerEngine::new);
    let mut states = [SavedState::default(); 3];
    let (mut points, mut moves, mut moved_ms) = (Vec::new(), Vec::new(), [None; 3]);
    let (mut served, mut received) = ([0; 3], [0; 3]);
    for second in 0..150_u64 {
        setting.check_stop()?;
        model.served.fill(0);
        model.received.fill(0);
        model.run(1_000_000);
        points.push((second as f64, model.served.iter().sum::<u64>() as f64));
        served.iter_mut().zip(&model.served).for_each(|(sum, served)| *sum += served);
        received.iter_mut().zip(&model.received).for_each(|(sum, received)| *sum += received);
        let Some(engine) = engine.as_ref().filter(|_| second % TICK_S == TICK_S - 1) else { continue };
        let now_ms = (second + 1) * 1000;
        let per_second = |count: u64| count as f64 / TICK_S as f64;
        // Work of a server: the requests that it received, or only the part that finds tails.
        let load = |server: usize| {
            let own = (0..3).filter(|it| model.placement[*it] == server).map(|it| served[it]).sum::<u64>();
            per_second(own.max(if server == 0 { received[0] / 2 } else { 0 }))
        };
        let hosts = [0, 1, 2].map(|server| HostLoad { at_ms: now_ms, requests: load(server) });
        let before = model.placement.clone();
        for server in 0..3_u16 {
            let here = (0..3).filter(|it| before[*it] == usize::from(server));
            let sequencers: Vec<SequencerLoad> = here
                .map(|it| SequencerLoad {
                    log: it.to_string(),
                    requests: per_second(served[it]),
                    moved_ms: moved_ms[it],
                })
                .collect();
            let state = states[usize::from(server)];
            let plan = plan_moves(engine, now_ms, server, &hosts, &sequencers, state, || false);
            states[usize::from(server)] = plan.state;
            for planned in &plan.moves {
                if let Ok(it) = planned.name.parse::<usize>() {
                    model.placement[it] = planned.to.into();
                    moved_ms[it] = Some(now_ms);
                    moves.push(second + 1);
                }
            }
        }
        (served, received) = ([0; 3], [0; 3]);
    }
    Ok((Line { name, points, dots: false }, moves))
}

fn balancers_in_model(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let mantle = BalancerPolicy::new("sequencers", &policies::sequencers(0.5, 2));
    let all = [None, BalancerPolicy::shipped("cephfs"), Some(mantle)];
    let runs = all.into_iter().map(|policy| balanced(setting, policy)).collect::<Result<Vec<_>, _>>()?;
    let last = |run: usize| runs[run].0.points[140].1;
    let [none, cephfs, mantle] = [0, 1, 2].map(last);
    let rows = runs.iter().map(|(line, moves)| {
        let moves: Vec<_> = moves.iter().map(u64::to_string).collect();
        vec![line.name.clone(), rate(line.points[5].1), rate(line.points[140].1), moves.join(" ")]
    });
    let columns = vec!["balancer", "at first", "at 140 s", "moves, s"];
    let table = Table { name: "balancers", columns, rows: rows.collect() };
    let first = |run: usize| runs[run].1.first().copied().unwrap_or(u64::MAX);
    let claims = vec![
        Claim {
            text: "both balancers have more throughput than sequencers on one server".into(),
            paper: String::new(),
            ours: format!("{}, {} and {}", rate(cephfs), rate(mantle), rate(none)),
            holds: cephfs > none && mantle > none,
        },
        Claim {
            text: "the policy for sequencers waits longer with its first move than that of CephFS".into(),
            paper: "10 s and just before 50 s".into(),
            ours: format!("{} and {} s", first(1), first(2)),
            holds: first(1) < first(2),
        },
        Claim {
            text: "in the end the policy for sequencers has at least the throughput of that of CephFS, within 2 %".into(),
            paper: "more".into(),
            ours: format!("{} and {}", rate(mantle), rate(cephfs)),
            holds: mantle >= 0.98 * cephfs,
        },
    ];
    let lines = runs.into_iter().map(|(line, _)| line).collect();
    let charts = vec![Chart { name: "balancers", over: "seconds", quantity: "numbers a second", lines }];
    let setup = format!(
        "{MODEL} Three sequencers with {CLIENTS} clients each, three servers, proxy mode, a decision of each server every 10 s."
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}

fn balancers_on_machine(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let seconds = if setting.quick { 8 } else { 40 };
    let (mut lines, mut rows, mut spread) = (Vec::new(), Vec::new(), 0);
    for balancer in [None, Some("sequencers")] {
        let hosts = HostProcesses::start(setting, &["a", "b", "c"], 3, balancer)?;
        hosts.place(&[0, 0, 0])?;
        let rates = hosts.measure(&NumberSource::Direct, CLIENTS, Duration::from_secs(seconds), setting)?;
        let holders = hosts.holders()?;
        spread = holders.iter().collect::<std::collections::BTreeSet<_>>().len();
        let name = balancer.unwrap_or("no balancing");
        let sums: Vec<f64> = (0..rates[0].len()).map(|at| rates.iter().map(|of| of[at]).sum()).collect();
        let (first, last) = (sums[0], sums[sums.len() - 1]);
        rows.push(vec![name.into(), rate(first), rate(last), holders.join(" ")]);
        let points = sums.iter().enumerate().map(|(second, sum)| (second as f64, *sum)).collect();
        lines.push(Line { name: name.into(), points, dots: false });
    }
    let claims = vec![Claim {
        text: "the policy moves sequencers to other hosts while clients take numbers, and none is handed out twice".into(),
        paper: String::new(),
        ours: format!("three sequencers on {spread} hosts"),
        holds: spread > 1,
    }];
    let columns = vec!["balancer", "first second", "last second", "hosts"];
    let table = Table { name: "balancers", columns, rows };
    let charts = vec![Chart { name: "balancers", over: "seconds", quantity: "numbers a second", lines }];
    let setup = format!(
        "{MACHINE} Three sequencers with {CLIENTS} clients each, three hosts that decide every second. As all share two processors, moves gain nothing here."
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}
