//! Fits a model of servers and clients to measurements on one machine (wu 4.3), and compares the
//! two.
//!
//! All clients wait for the server's replies and use directories of their own, so the measurements
//! are round-trip times: of one client with one request at a time, of several clients, and of one
//! client with many outstanding requests. With many outstanding requests on one connection no
//! processor sleeps and messages arrive in batches: the processor time per operation is its cost.
//! With several connections it is larger by the cost of switching connections; with one request at
//! a time, by the cost of waking. The rest of a round trip is attributed to the network, including
//! all variation, since scheduling delays take time but no processor. These values start the fit,
//! which changes times until the simulated means of all loads equal the measured ones (least
//! squares, Levenberg-Marquardt).

mod least_squares;

use std::path::Path;

use serde::Serialize;

use crate::model::Work;
use crate::report::Report;
use crate::scenario::{Machine, Scenario};
use crate::source::OpKind;
use crate::time::Nanos;
use crate::world::{RunError, World};

/// Measurements of one operation.
#[derive(Clone, Debug)]
pub struct Measured {
    pub work: Work,
    /// Mean time from call to reply.
    pub mean: Nanos,
    /// Ascending quantiles at equal steps of probability, from the minimum to the maximum.
    pub quantiles: Vec<Nanos>,
    /// Processor time per operation.
    pub client: Nanos,
    pub server: Nanos,
}

/// A model of a machine that runs clients and servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Processor time of a server per type of request.
    pub works: Vec<(Work, Nanos)>,
    pub client: Nanos,
    pub wake: Nanos,
    pub client_wake: Nanos,
    pub turn: Nanos,
    pub client_turn: Nanos,
    pub append: Nanos,
    /// One-way latency: quantiles as in [`Measured`].
    pub latency: Vec<Nanos>,
    pub processors: usize,
}

/// A load: concurrent clients that each make files in their own directory, look them up with an
/// empty cache, and remove them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Trial {
    pub clients: u32,
    /// Outstanding requests of each client.
    pub outstanding: u32,
    /// Number of files of each client.
    pub files: u64,
}

/// Measurements of one load.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    pub trial: Trial,
    pub operations: &'a [Measured],
}

/// The measurements to fit; all have the same operations in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// One request at a time.
    pub one: Sampled<'a>,
    /// Few requests on each of several connections.
    pub several: Sampled<'a>,
    /// Many requests on one connection.
    pub many: Sampled<'a>,
}

/// Number of parameters in addition to the cost of each operation; see [`Fitted::turned`].
const COMMON: usize = 3;
/// Initial value of the cost of writing to the journal: about a system call.
const APPEND: Nanos = Nanos(15_000);
/// Change of a parameter, in nanoseconds, for the numerical derivative.
const STEP: f64 = 2_000.0;
/// Most steps of the fit.
const MOST: usize = 20;
/// Number of files of all clients in a simulation. With a quarter of them, the start of each phase
/// would contribute a tenth of its mean.
const FILES: u64 = 2560;
/// Sum of squared [`Fitted::errors`] at which the fit ends: all means are right within a few
/// percent.
const ENOUGH: f64 = 0.001;

impl Fitted {
    /// # Errors
    /// [`RunError`]
    pub fn new(samples: Samples<'_>, processors: usize) -> Result<Self, RunError> {
        let guess = Self::guess(samples, processors);
        let knobs = guess.works.len() + COMMON;
        least_squares::fit(
            guess,
            (knobs, STEP, MOST, ENOUGH),
            |model, by| model.turned(by),
            |model| model.errors(samples),
        )
    }

    /// A copy with parameters changed by these numbers of nanoseconds, clamped to zero.
    fn turned(&self, by: &[f64]) -> Self {
        let mut new = self.clone();
        let adjust = |time: &mut Nanos, by: f64| *time = Nanos((time.0 as f64 + by).max(0.0) as u64);
        let (works, common) = by.split_at(new.works.len());
        new.works.iter_mut().zip(works).for_each(|((_, time), by)| adjust(time, *by));
        // The client's share of an operation stays as measured; no load separates it from the
        // server's.
        let sum = |of: &Self| of.works.iter().map(|(_, time)| time.0).sum::<u64>() as f64;
        new.client = Nanos((self.client.0 as f64 * sum(&new) / sum(self).max(1.0)) as u64);
        [&mut new.turn, &mut new.client_turn].into_iter().for_each(|time| adjust(time, common[0]));
        adjust(&mut new.append, common[1]);
        new.latency.iter_mut().for_each(|time| adjust(time, common[2]));
        new
    }

    /// Deviation of simulated from measured means: the logarithm of each ratio.
    fn errors(&self, Samples { one, several, many }: Samples<'_>) -> Result<Vec<f64>, RunError> {
        let machine = Machine::parse(&self.to_toml(), Path::new("fitted"))?;
        let mut errors = Vec::new();
        for Sampled { trial, operations } in [one, several, many] {
            let files = FILES / u64::from(trial.clients);
            let simulated = Trial { files, ..trial }.simulate(&machine, 1)?.operations;
            let ratios = simulated.iter().zip(operations).map(|(it, of)| it.mean_us * 1e3 / of.mean.0 as f64);
            errors.extend(ratios.map(f64::ln));
        }
        Ok(errors)
    }

    fn guess(Samples { one, several, many }: Samples<'_>, processors: usize) -> Self {
        let (one, several, many) = (one.operations, several.operations, many.operations);
        let mean = |of: &[Measured], field: fn(&Measured) -> Nanos| {
            Nanos(of.iter().map(|it| field(it).0).sum::<u64>() / of.len().max(1) as u64)
        };
        let [server, client]: [fn(&Measured) -> Nanos; 2] = [|it| it.server, |it| it.client];
        let more = |more: &[Measured], less: &[Measured], field| mean(more, field) - mean(less, field);
        // A quarter is the cost of waking. The rest does not delay other work: a processor that
        // goes to sleep or wakes up is accounted as busy.
        let wake = |field| Nanos(more(one, several, field).0 / 4);
        let [wake, client_wake] = [wake(server), wake(client)];
        let steps = one.iter().map(|measured| measured.quantiles.len()).min().unwrap_or(0);
        let there_and_back: Vec<_> = (0..steps)
            .map(|step| {
                let asleep = Nanos((wake + client_wake).0 * 3);
                let left = one.iter().map(|it| (it.quantiles[step] + asleep - (it.server + it.client)).0);
                Nanos(left.sum::<u64>() / one.len() as u64)
            })
            .collect();
        // The relative costs of operations also apply to single requests.
        let each = mean(one, server);
        let work = |(one, many): (&Measured, &Measured)| {
            (one.work, many.server + (one.server - each) - (each - one.server))
        };
        Self {
            works: one.iter().zip(many).map(work).collect(),
            client: mean(many, client),
            wake,
            client_wake,
            turn: more(several, many, server),
            client_turn: more(several, many, client),
            append: APPEND,
            latency: halves(&there_and_back),
            processors,
        }
    }

    /// The machine file that scenarios name by `machine`.
    pub fn to_toml(&self) -> String {
        let time = |time: &Nanos| format!("\"{:.3} us\"", time.0 as f64 / 1e3);
        let times = self.latency.iter().map(time).collect::<Vec<_>>().join(", ");
        let costs = [
            ("client", self.client),
            ("client_wake", self.client_wake),
            ("client_turn", self.client_turn),
            ("wake", self.wake),
            ("turn", self.turn),
            ("append", self.append),
        ];
        let works = self.works.iter().map(|(work, cost)| (work.name(), *cost));
        let costs = costs.into_iter().chain(works).map(|(name, cost)| format!("{name} = {}\n", time(&cost)));
        format!(
            "# What clients and servers take on one machine: made by `espalier sim calibrate`.\nprocessors = {}\n\n\
             [network]\npreset = \"loopback\"\nlatency = {{ quantiles = [{times}] }}\n\n[model]\n{}",
            self.processors,
            costs.collect::<String>()
        )
    }
}

/// One-way times: two independent ones add up to about this distribution. Halves the mean, and
/// scales the deviation by the square root of one half.
fn halves(times: &[Nanos]) -> Vec<Nanos> {
    let mean = times.windows(2).map(|pair| (pair[0].0 + pair[1].0) as f64 / 2.0).sum::<f64>()
        / (times.len().max(2) - 1) as f64;
    let half = |time: &Nanos| mean / 2.0 + (time.0 as f64 - mean) / std::f64::consts::SQRT_2;
    times.iter().map(|time| Nanos(half(time).max(0.0) as u64)).collect()
}

impl Trial {
    /// Simulates the load on a machine; returns the measured operations in order.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn simulate(&self, machine: &Machine, seed: u64) -> Result<Report, RunError> {
        let Self { clients, outstanding, files } = *self;
        let (processes, files) = (clients * outstanding, files.div_ceil(outstanding.into()).max(1));
        let text = format!(
            "seed = {seed}\n[cluster]\nclients = {clients}\ncores = {}\nwriteback = false\n[[workload]]\nkind = \"create\"\nfrontend = \"library\"\n\
             processes = {processes}\nfiles = {files}\nopen = false\nshared = false\none_makes = true\nstat = true\nfresh = true\nremove = true\n",
            machine.processors.unwrap_or(1)
        );
        let scenario =
            Scenario { on: Some(machine.clone()), ..Scenario::parse(&text, Path::new("calibration"))? };
        let (mut observer, mut mutator) = ((), ());
        let mut report = World::new(&scenario, &mut observer, &mut mutator)?.run()?;
        let measured = [OpKind::Create, OpKind::Stat, OpKind::Unlink].map(OpKind::name);
        report.operations.retain(|found| measured.contains(&found.kind));
        report.operations.sort_by_key(|found| measured.iter().position(|kind| *kind == found.kind));
        Ok(report)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::report::KindReport;

    const MICRO: u64 = 1000;

    fn measured(mean: u64, server: u64, client: u64) -> [Measured; 2] {
        let of = |work, more: u64| Measured {
            work,
            mean: Nanos((mean + more) * MICRO),
            // A spread of 10 us in both directions.
            quantiles: [mean + more - 10, mean + more, mean + more + 10]
                .map(|time| Nanos(time * MICRO))
                .into(),
            client: Nanos(client * MICRO),
            server: Nanos(server * MICRO),
        };
        [of(Work::Create, 0), of(Work::Remove, 4)]
    }

    #[test]
    fn processor_time_and_latency_are_separated() {
        let operations = [measured(98, 25, 20), measured(200, 19, 16), measured(500, 15, 13)];
        let sampled = |at: usize| {
            let trial = Trial { clients: 1, outstanding: 1, files: 1 };
            Sampled { trial, operations: &operations[at] }
        };
        let guess = Fitted::guess(Samples { one: sampled(0), several: sampled(1), many: sampled(2) }, 2);
        assert_eq!((guess.wake, guess.turn), (Nanos(1_500), Nanos(4_000)));
        assert_eq!((guess.client_wake, guess.client_turn), (Nanos(1_000), Nanos(3_000)));
        assert_eq!(guess.client, Nanos(13_000));
        // 100 us in the mean, of which processors worked for 45 and slept for 7.5 of these.
        assert_eq!(guess.latency[1], Nanos(31_250));
        assert_eq!(guess.works, [(Work::Create, Nanos(15_000)), (Work::Remove, Nanos(15_000))]);
    }

    #[test]
    fn fitted_model_reproduces_measurement() {
        let text = "processors = 2\n[network]\nlatency = \"5 us\"\n[model]\ncreate = \"16 us\"\nlookup = \"6 us\"\n\
                    remove = \"12 us\"\nclient = \"9 us\"\nwake = \"30 us\"\nclient_wake = \"20 us\"\n\
                    turn = \"12 us\"\nclient_turn = \"8 us\"\nappend = \"9 us\"";
        let real = Machine::parse(text, Path::new("machine.toml")).unwrap();
        let trial = |clients, outstanding| Trial { clients, outstanding, files: 1000 };
        // Measured processor times are inexact, and include going to sleep and waking.
        let measure = |trial: Trial, server, client| -> Vec<Measured> {
            let of = |(work, report): (Work, KindReport)| Measured {
                work,
                mean: Nanos((report.mean_us * 1e3) as u64),
                quantiles: vec![Nanos((report.mean_us * 1e3) as u64); 3],
                client: Nanos(client),
                server: Nanos(server),
            };
            let works = [Work::Create, Work::Lookup, Work::Remove];
            works.into_iter().zip(trial.simulate(&real, 2).unwrap().operations).map(of).collect()
        };
        let trials = [trial(1, 1), trial(8, 2), trial(1, 32)];
        let operations = [
            measure(trials[0], 155_000, 110_000),
            measure(trials[1], 35_000, 30_000),
            measure(trials[2], 20_000, 15_000),
        ];
        let sampled = |at: usize| Sampled { trial: trials[at], operations: &operations[at] };
        let samples = Samples { one: sampled(0), several: sampled(1), many: sampled(2) };
        let fitted = Fitted::new(samples, 2).unwrap();
        let machine = Machine::parse(&fitted.to_toml(), Path::new("machine.toml")).unwrap();
        let check = |trial: Trial, measured: &[Measured], most: f64| {
            for (simulated, measured) in trial.simulate(&machine, 3).unwrap().operations.iter().zip(measured)
            {
                let ratio = simulated.mean_us * 1e3 / measured.mean.0 as f64;
                assert!((ratio - 1.0).abs() < most, "{} of {trial:?}: {ratio}", simulated.kind);
            }
        };
        trials.iter().zip(&operations).for_each(|(trial, measured)| check(*trial, measured, 0.1));
        // A load outside the fit. Lookups take 1.10 times as long.
        check(trial(4, 4), &measure(trial(4, 4), 0, 0), 0.12);
    }

    #[test]
    fn requests_of_one_connection_are_served_together() {
        let text = "[network]\npreset = \"free\"\n[model]\ncreate = \"1 us\"\nturn = \"10 us\"";
        let machine = Machine::parse(text, Path::new("machine.toml")).unwrap();
        let mean = |clients, outstanding| {
            let trial = Trial { clients, outstanding, files: 800 / u64::from(clients) };
            trial.simulate(&machine, 1).unwrap().operations[0].mean_us
        };
        // Eight requests each; with separate connections each costs one turn.
        let (together, apart) = (mean(1, 8), mean(8, 1));
        assert!((15.0..25.0).contains(&together) && (85.0..95.0).contains(&apart), "{together} {apart}");
    }

    #[test]
    fn idle_node_delays_nothing() {
        let mean = |latency: &str, turn: &str| {
            let text = format!(
                "[network]\nlatency = \"{latency}\"\n[model]\ncreate = \"1 us\"\nturn = \"{turn}\"\nclient_turn = \"{turn}\""
            );
            let machine = Machine::parse(&text, Path::new("machine.toml")).unwrap();
            let trial = Trial { clients: 1, outstanding: 1, files: 800 };
            trial.simulate(&machine, 1).unwrap().operations[0].mean_us
        };
        let hidden = mean("20 us", "10 us") - mean("20 us", "0 us");
        assert!(hidden.abs() < 0.5, "{hidden}");
        // The next request arrives during the turn.
        let seen = mean("2 us", "10 us") - mean("2 us", "0 us");
        assert!((3.0..10.0).contains(&seen), "{seen}");
    }

    #[test]
    fn simulated_clients_send_as_measured_clients() {
        let machine = Machine::parse("[network]\npreset = \"loopback\"", Path::new("machine.toml")).unwrap();
        let report = Trial { clients: 8, outstanding: 2, files: 500 }.simulate(&machine, 1).unwrap();
        // One request for each of three operations, plus a few at the start.
        let operations: u64 = report.operations.iter().map(|it| it.count).sum();
        let requests = report.messages["request"];
        assert!(operations == 12_000 && (12_000..12_200).contains(&requests), "{requests} for {operations}");
        assert!(report.operations.iter().all(|it| it.mean_us > 1.0), "no reply precedes the server's");
    }

    #[test]
    fn nodes_share_the_processors_of_a_machine() {
        let with = |processors| {
            let text = format!(
                "processors = {processors}\n[network]\npreset = \"free\"\n[model]\nclient = \"10 us\"\ncreate = \"10 us\""
            );
            let machine = Machine::parse(&text, Path::new("machine.toml")).unwrap();
            let simulated = Trial { clients: 1, outstanding: 16, files: 2000 }.simulate(&machine, 1).unwrap();
            simulated.operations[0].mean_us
        };
        // 16 requests, each of which takes 20 us of one processor.
        let (one, two) = (with(1), with(2));
        assert!((one / 320.0 - 1.0).abs() < 0.05 && (two / 160.0 - 1.0).abs() < 0.05, "{one} {two}");
    }
}
