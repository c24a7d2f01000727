//! Makes a model of servers and clients from what was measured of real ones on one machine (wu 4.3), and compares it with what was
//! measured.
//!
//! Clients wait for the server's answers, in directories of their own, too: it is round trips that are measured, of one client that waits for
//! each answer, of several, and of one with many requests under way. With many under way nobody sleeps, and much comes over the
//! connection at a time: what processors do for each operation is its cost. Where it comes over several connections, they do more, which
//! is the cost of turning to a connection; and still more when there is one at a time, which is the cost of waking. The rest of a round trip is
//! the network, which is where all that differs from one to the next is put: the scheduler's moods take time and not processors. That
//! is where the fit begins: times are then changed, as long as that helps, until simulations of all have the means that were measured
//! (least squares by K. Levenberg's and D. Marquardt's method).

mod least_squares;

use std::path::Path;

use serde::Serialize;

use crate::model::Work;
use crate::report::Report;
use crate::scenario::{Machine, Scenario};
use crate::source::OpKind;
use crate::time::Nanos;
use crate::world::{RunError, World};

/// What was measured of an operation.
#[derive(Clone, Debug)]
pub struct Measured {
    pub work: Work,
    /// From call to answer.
    pub mean: Nanos,
    /// The shortest first, the longest last, at equal steps of probability.
    pub quantiles: Vec<Nanos>,
    /// Of processors, for each operation.
    pub client: Nanos,
    pub server: Nanos,
}

/// A model of a machine on which clients and servers run.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Of a server's processor.
    pub works: Vec<(Work, Nanos)>,
    pub client: Nanos,
    pub wake: Nanos,
    pub client_wake: Nanos,
    pub turn: Nanos,
    pub client_turn: Nanos,
    pub append: Nanos,
    /// From one node to the other: quantiles, as in [`Measured`].
    pub latency: Vec<Nanos>,
    pub processors: usize,
}

/// Clients that do the same at once: each makes files in a directory of its own, looks at them after it has forgotten what it knew,
/// and removes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Trial {
    pub clients: u32,
    /// Requests that each has under way.
    pub outstanding: u32,
    /// Of each client.
    pub files: u64,
}

/// What was measured of clients that did something at once.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    pub trial: Trial,
    pub operations: &'a [Measured],
}

/// What a model is fitted to: of the same operations in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// One request at a time.
    pub one: Sampled<'a>,
    /// Few over each of many connections.
    pub several: Sampled<'a>,
    /// Many over one.
    pub many: Sampled<'a>,
}

/// What of a model is changed to fit it, beside what each operation costs: see [`Fitted::turned`].
const COMMON: usize = 3;
/// Where the fit of what writing to the journal costs begins: about what a system call costs.
const APPEND: Nanos = Nanos(15_000);
/// By so many nanoseconds each is changed to see what comes of that.
const STEP: f64 = 2_000.0;
/// The fit ends after so many steps at the latest.
const MOST: usize = 20;
/// Files of all clients in a simulation that is one of very many. With a quarter of them the beginning of each phase is a tenth of its mean.
const FILES: u64 = 2560;
/// All means are right within some percent: the sum of squares of what [`Fitted::errors`] says.
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

    /// With its times changed, each by so many nanoseconds. None becomes less than nothing.
    fn turned(&self, by: &[f64]) -> Self {
        let mut new = self.clone();
        let turn = |time: &mut Nanos, by: f64| *time = Nanos((time.0 as f64 + by).max(0.0) as u64);
        let (works, common) = by.split_at(new.works.len());
        new.works.iter_mut().zip(works).for_each(|((_, time), by)| turn(time, *by));
        // A client's part of an operation stays what it was measured to be: it is told from a server's by nothing else.
        let sum = |of: &Self| of.works.iter().map(|(_, time)| time.0).sum::<u64>() as f64;
        new.client = Nanos((self.client.0 as f64 * sum(&new) / sum(self).max(1.0)) as u64);
        [&mut new.turn, &mut new.client_turn].into_iter().for_each(|time| turn(time, common[0]));
        turn(&mut new.append, common[1]);
        new.latency.iter_mut().for_each(|time| turn(time, common[2]));
        new
    }

    /// How far simulated means are from those that were measured: the logarithm of each ratio.
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
        let mean = |of: &[Measured], what: fn(&Measured) -> Nanos| {
            Nanos(of.iter().map(|it| what(it).0).sum::<u64>() / of.len().max(1) as u64)
        };
        let [server, client]: [fn(&Measured) -> Nanos; 2] = [|it| it.server, |it| it.client];
        let more = |more: &[Measured], less: &[Measured], what| mean(more, what) - mean(less, what);
        // The rest of it nobody else could have used: a processor that goes to sleep, or wakes up, is accounted as busy.
        let wake = |what| Nanos(more(one, several, what).0 / 4);
        let [wake, client_wake] = [wake(server), wake(client)];
        let steps = one.iter().map(|measured| measured.quantiles.len()).min().unwrap_or(0);
        let there_and_back: Vec<_> = (0..steps)
            .map(|step| {
                let asleep = Nanos((wake + client_wake).0 * 3);
                let left = one.iter().map(|it| (it.quantiles[step] + asleep - (it.server + it.client)).0);
                Nanos(left.sum::<u64>() / one.len() as u64)
            })
            .collect();
        // Some operations cost more than others when there is one at a time, too.
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

    /// As scenarios name it by `machine`.
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

/// Times of which two independent ones together have about the same distribution as these: half their mean, and as much less of their
/// scatter as there is in a sum of two.
fn halves(times: &[Nanos]) -> Vec<Nanos> {
    let mean = times.windows(2).map(|pair| (pair[0].0 + pair[1].0) as f64 / 2.0).sum::<f64>()
        / (times.len().max(2) - 1) as f64;
    let half = |time: &Nanos| mean / 2.0 + (time.0 as f64 - mean) / std::f64::consts::SQRT_2;
    times.iter().map(|time| Nanos(half(time).max(0.0) as u64)).collect()
}

impl Trial {
    /// What comes of it on a machine, with the operations that are measured, in their order.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn simulate(&self, machine: &Machine, seed: u64) -> Result<Report, RunError> {
        let Self { clients, outstanding, files } = *self;
        let (processes, files) = (clients * outstanding, files.div_ceil(outstanding.into()).max(1));
        let text = format!(
            "seed = {seed}\n[cluster]\nclients = {clients}\ncores = {}\nearly = false\n[[workload]]\nkind = \"create\"\ndoor = \"library\"\n\
             processes = {processes}\nfiles = {files}\nopen = false\nshared = false\none_makes = true\nstat = true\nfresh = true\nremove = true\n",
            machine.processors.unwrap_or(1)
        );
        let scenario =
            Scenario { on: Some(machine.clone()), ..Scenario::parse(&text, Path::new("calibration"))? };
        let (mut observer, mut saboteur) = ((), ());
        let mut report = World::new(&scenario, &mut observer, &mut saboteur)?.run()?;
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
            // From 10 us less to 10 us more.
            quantiles: [mean + more - 10, mean + more, mean + more + 10]
                .map(|time| Nanos(time * MICRO))
                .into(),
            client: Nanos(client * MICRO),
            server: Nanos(server * MICRO),
        };
        [of(Work::Create, 0), of(Work::Remove, 4)]
    }

    #[test]
    fn processors_and_latencies_are_told_apart() {
        let operations = [measured(98, 25, 20), measured(200, 19, 16), measured(500, 15, 13)];
        let sampled = |at: usize| {
            let trial = Trial { clients: 1, outstanding: 1, files: 1 };
            Sampled { trial, operations: &operations[at] }
        };
        let guess = Fitted::guess(Samples { one: sampled(0), several: sampled(1), many: sampled(2) }, 2);
        assert_eq!((guess.wake, guess.turn), (Nanos(1_500), Nanos(4_000)));
        assert_eq!((guess.client_wake, guess.client_turn), (Nanos(1_000), Nanos(3_000)));
        assert_eq!(guess.client, Nanos(13_000));
        // 100 us in the mean, of which processors had 45, and were asleep for 7.5 of these.
        assert_eq!(guess.latency[1], Nanos(31_250));
        assert_eq!(guess.works, [(Work::Create, Nanos(15_000)), (Work::Remove, Nanos(15_000))]);
    }

    #[test]
    fn what_is_fitted_simulates_what_was_measured() {
        let text = "processors = 2\n[network]\nlatency = \"5 us\"\n[model]\ncreate = \"16 us\"\nlookup = \"6 us\"\n\
                    remove = \"12 us\"\nclient = \"9 us\"\nwake = \"30 us\"\nclient_wake = \"20 us\"\n\
                    turn = \"12 us\"\nclient_turn = \"8 us\"\nappend = \"9 us\"";
        let real = Machine::parse(text, Path::new("machine.toml")).unwrap();
        let trial = |clients, outstanding| Trial { clients, outstanding, files: 1000 };
        // What processors had is measured badly; and while they went to sleep and woke up they were busy, too.
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
        // What it was not fitted to.
        check(trial(4, 4), &measure(trial(4, 4), 0, 0), 0.1);
    }

    #[test]
    fn what_comes_over_one_connection_takes_turns_together() {
        let text = "[network]\npreset = \"free\"\n[model]\ncreate = \"1 us\"\nturn = \"10 us\"";
        let machine = Machine::parse(text, Path::new("machine.toml")).unwrap();
        let mean = |clients, outstanding| {
            let trial = Trial { clients, outstanding, files: 800 / u64::from(clients) };
            trial.simulate(&machine, 1).unwrap().operations[0].mean_us
        };
        // Eight requests each; over connections of their own each takes a turn.
        let (together, apart) = (mean(1, 8), mean(8, 1));
        assert!((15.0..25.0).contains(&together) && (85.0..95.0).contains(&apart), "{together} {apart}");
    }

    #[test]
    fn nobody_waits_for_a_node_to_turn_away() {
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
        // The next request comes before it has done so.
        let seen = mean("2 us", "10 us") - mean("2 us", "0 us");
        assert!((3.0..10.0).contains(&seen), "{seen}");
    }

    #[test]
    fn clients_send_what_the_measured_ones_send() {
        let machine = Machine::parse("[network]\npreset = \"loopback\"", Path::new("machine.toml")).unwrap();
        let report = Trial { clients: 8, outstanding: 2, files: 500 }.simulate(&machine, 1).unwrap();
        // One for each of three operations, and few to begin with.
        let operations: u64 = report.operations.iter().map(|it| it.count).sum();
        let requests = report.messages["request"];
        assert!(operations == 12_000 && (12_000..12_200).contains(&requests), "{requests} for {operations}");
        assert!(report.operations.iter().all(|it| it.mean_us > 1.0), "nothing is told early");
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
        // 16 requests, each of which takes 20 us of one of the processors.
        let (one, two) = (with(1), with(2));
        assert!((one / 320.0 - 1.0).abs() < 0.05 && (two / 160.0 - 1.0).abs() < 0.05, "{one} {two}");
    }
}
