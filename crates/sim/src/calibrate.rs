//! Makes a model of servers and clients from what was measured of real ones on one machine (wu 4.3), and compares it with what was
//! measured.
//!
//! What is measured is one client that waits for each answer, and one with many requests under way. With many under way nobody
//! sleeps, and what processors do for each operation is its cost; what they do more for each when there is one at a time is the cost of
//! waking. The rest of a round trip is the network, which is where all that differs from one to the next is put: the scheduler's
//! moods take time and not processors. That is where the fit begins: times are then changed, as long as that helps, until simulations
//! of both have the means that were measured.

use std::path::Path;

use serde::Serialize;

use crate::model::Work;
use crate::report::KindReport;
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

/// The times of a model that are fitted, beside those of the operations.
const COMMON: usize = 2;
/// By so much they are changed at first, and in the end.
const COARSE: Nanos = Nanos(8_000);
const FINE: Nanos = Nanos(250);
/// Files of a simulation that is one of very many.
const FILES: u64 = 640;
/// All means are right within some percent: see [`Fitted::error`].
const ENOUGH: f64 = 0.001;

impl Fitted {
    /// `one`: with one request at a time; `many`: with many under way, of the same operations in the same order; each with how it was
    /// measured.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn new(
        one: (Trial, &[Measured]),
        many: (Trial, &[Measured]),
        processors: usize,
    ) -> Result<Self, RunError> {
        let mut best = Self::guess(one.1, many.1, processors);
        let mut least = best.error(&[one, many])?;
        let mut step = COARSE;
        while step >= FINE && least > ENOUGH {
            let before = least;
            for (knob, up) in (0..best.works.len() + COMMON).flat_map(|knob| [(knob, true), (knob, false)]) {
                let turned = best.turned(knob, up, step);
                let error = turned.error(&[one, many])?;
                if error < least {
                    (best, least) = (turned, error);
                }
            }
            if least == before {
                step = Nanos(step.0 / 2);
            }
        }
        Ok(best)
    }

    /// With one of its times changed.
    fn turned(&self, knob: usize, up: bool, step: Nanos) -> Self {
        let mut turned = self.clone();
        let turn = |time: &mut Nanos| *time = if up { *time + step } else { *time - step };
        let operations = turned.works.len();
        match turned.works.get_mut(knob) {
            Some((_, cost)) => turn(cost),
            None if knob == operations => turn(&mut turned.client),
            None => [&mut turned.wake, &mut turned.client_wake].into_iter().for_each(turn),
        }
        turned
    }

    /// How far simulated means are from those that were measured: the sum of squares of logarithms.
    fn error(&self, trials: &[(Trial, &[Measured])]) -> Result<f64, RunError> {
        let machine = Machine::parse(&self.to_toml(), Path::new("fitted"))?;
        let mut error = 0.0;
        for (trial, measured) in trials {
            let simulated = Trial { files: FILES, ..*trial }.simulate(&machine, 1)?;
            let ratios = simulated
                .iter()
                .zip(*measured)
                .map(|(it, measured)| it.mean_us * 1e3 / measured.mean.0 as f64);
            error += ratios.map(|ratio| ratio.ln().powi(2)).sum::<f64>();
        }
        Ok(error)
    }

    fn guess(one: &[Measured], many: &[Measured], processors: usize) -> Self {
        let mean = |of: &dyn Fn(&Measured, &Measured) -> Nanos| {
            let sum: u64 = one.iter().zip(many).map(|(one, many)| of(one, many).0).sum();
            Nanos(sum / one.len().max(1) as u64)
        };
        let wake = mean(&|one, many| one.server - many.server);
        let client_wake = mean(&|one, many| one.client - many.client);
        let client = mean(&|_, many| many.client);
        let steps = one.iter().map(|measured| measured.quantiles.len()).min().unwrap_or(0);
        let there_and_back: Vec<_> =
            (0..steps).map(|step| mean(&|one, _| one.quantiles[step] - (one.server + one.client))).collect();
        // Some operations cost more than others when there is one at a time, too.
        let server = mean(&|one, _| one.server);
        let work = |(one, many): (&Measured, &Measured)| {
            (one.work, many.server + (one.server - server) - (server - one.server))
        };
        let works = one.iter().zip(many).map(work).collect();
        Self { works, client, wake, client_wake, latency: halves(&there_and_back), processors }
    }

    /// As scenarios name it by `machine`.
    pub fn to_toml(&self) -> String {
        let time = |time: &Nanos| format!("\"{:.3} us\"", time.0 as f64 / 1e3);
        let times = self.latency.iter().map(time).collect::<Vec<_>>().join(", ");
        let costs = [("client", self.client), ("client_wake", self.client_wake), ("wake", self.wake)];
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
    /// What comes of it on a machine: the operations that are measured, in their order.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn simulate(&self, machine: &Machine, seed: u64) -> Result<Vec<KindReport>, RunError> {
        let Self { clients, outstanding, files } = *self;
        let (processes, files) = (clients * outstanding, files.div_ceil(outstanding.into()).max(1));
        let text = format!(
            "seed = {seed}\n[cluster]\nclients = {clients}\ncores = {}\n[[workload]]\nkind = \"create\"\ndoor = \"library\"\n\
             processes = {processes}\nfiles = {files}\nopen = false\nshared = false\nstat = true\nfresh = true\nremove = true\n",
            machine.processors.unwrap_or(1)
        );
        let scenario =
            Scenario { on: Some(machine.clone()), ..Scenario::parse(&text, Path::new("calibration"))? };
        let (mut observer, mut saboteur) = ((), ());
        let mut report = World::new(&scenario, &mut observer, &mut saboteur)?.run()?;
        let of = |kind: OpKind| report.operations.extract_if(.., |found| found.kind == kind.name()).next();
        Ok([OpKind::Create, OpKind::Stat, OpKind::Unlink].into_iter().filter_map(of).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
        let guess = Fitted::guess(&measured(98, 25, 20), &measured(500, 15, 13), 2);
        assert_eq!(
            (guess.wake, guess.client_wake, guess.client),
            (Nanos(10_000), Nanos(7_000), Nanos(13_000))
        );
        // 100 us in the mean, of which processors had 45.
        assert_eq!(guess.latency[1], Nanos(27_500));
        assert_eq!(guess.works, [(Work::Create, Nanos(15_000)), (Work::Remove, Nanos(15_000))]);
    }

    #[test]
    fn what_is_fitted_simulates_what_was_measured() {
        let text = "processors = 2\n[network]\nlatency = \"5 us\"\n[model]\ncreate = \"16 us\"\nlookup = \"6 us\"\n\
                    remove = \"12 us\"\nclient = \"9 us\"\nwake = \"40 us\"\nclient_wake = \"30 us\"";
        let real = Machine::parse(text, Path::new("machine.toml")).unwrap();
        let trial = |outstanding| Trial { clients: 1, outstanding, files: 1000 };
        // What processors had is measured badly.
        let measure = |trial: Trial, server, client| -> Vec<Measured> {
            let of = |(work, report): (Work, KindReport)| Measured {
                work,
                mean: Nanos((report.mean_us * 1e3) as u64),
                quantiles: vec![Nanos((report.mean_us * 1e3) as u64); 3],
                client: Nanos(client),
                server: Nanos(server),
            };
            let works = [Work::Create, Work::Lookup, Work::Remove];
            works.into_iter().zip(trial.simulate(&real, 2).unwrap()).map(of).collect()
        };
        let (one, many) = (measure(trial(1), 60_000, 50_000), measure(trial(32), 20_000, 15_000));
        let fitted = Fitted::new((trial(1), &one), (trial(32), &many), 2).unwrap();
        let machine = Machine::parse(&fitted.to_toml(), Path::new("machine.toml")).unwrap();
        for (trial, measured) in [(trial(1), one), (trial(32), many)] {
            for (simulated, measured) in trial.simulate(&machine, 3).unwrap().iter().zip(measured) {
                let ratio = simulated.mean_us * 1e3 / measured.mean.0 as f64;
                assert!((0.95..1.05).contains(&ratio), "{} of {trial:?}: {ratio}", simulated.kind);
            }
        }
    }

    #[test]
    fn nodes_share_the_processors_of_a_machine() {
        let with = |processors| {
            let text = format!(
                "processors = {processors}\n[network]\npreset = \"free\"\n[model]\nclient = \"10 us\"\ncreate = \"10 us\""
            );
            let machine = Machine::parse(&text, Path::new("machine.toml")).unwrap();
            let simulated = Trial { clients: 1, outstanding: 16, files: 2000 }.simulate(&machine, 1).unwrap();
            simulated[0].mean_us
        };
        // 16 requests, each of which takes 20 us of one of the processors.
        let (one, two) = (with(1), with(2));
        assert!((one / 320.0 - 1.0).abs() < 0.05 && (two / 160.0 - 1.0).abs() < 0.05, "{one} {two}");
    }
}
