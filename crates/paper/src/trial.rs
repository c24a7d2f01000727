//! A scenario, run where the experiment runs.

use std::path::Path;
use std::sync::atomic::Ordering;

use espalier_sim::process::Program;
use espalier_sim::source::Started;
use espalier_sim::{Distribution, Durability, Nanos, Observer, Report, Scenario, World};

use crate::cluster::{LocalCluster, Wanted};
use crate::error::PaperError;
use crate::play::{Called, ProcessGroup, play};
use crate::summary::Summary;
use crate::{Setting, Testbed};

/// Measures several configurations, by number: the median of each figure over the trials.
/// Configurations take turns, in reverse order every other time, so that a slow phase of the
/// machine affects all.
///
/// # Errors
///
/// Those of the measurement.
pub(crate) fn medians(
    trials: usize,
    ways: usize,
    measure: impl Fn(usize) -> Result<Vec<f64>, PaperError>,
) -> Result<Vec<Vec<f64>>, PaperError> {
    let mut measured: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways];
    for trial in 0..trials {
        for index in 0..ways {
            let way = if trial.is_multiple_of(2) { index } else { ways - 1 - index };
            let figures = measure(way)?;
            measured[way].resize(figures.len(), Vec::new());
            measured[way].iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
        }
    }
    Ok(measured.into_iter().map(|way| way.into_iter().map(median).collect()).collect())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Events between two checks for a stop.
const STEP: u64 = 100_000;

/// A cluster and its workload.
pub(crate) struct Trial {
    pub scenario: Scenario,
    /// Processes besides the scenario's workloads.
    pub crews: Box<dyn Fn() -> Vec<ProcessGroup>>,
    /// A simulated run ends with its processes, and servers need not become idle.
    pub stops_at_once: bool,
}

impl Trial {
    /// # Errors
    /// The text is no valid scenario.
    pub fn new(text: &str) -> Result<Self, PaperError> {
        let scenario = Scenario::parse(text, Path::new("an experiment"))?;
        Ok(Self { scenario, crews: Box::new(Vec::new), stops_at_once: false })
    }

    /// # Errors
    /// [`PaperError`]
    pub fn run(&self, setting: &Setting<'_>) -> Result<Summary, PaperError> {
        match setting.place {
            Testbed::Simulator => self.simulate(setting),
            Testbed::Machine => self.play(setting),
        }
    }

    fn simulate(&self, setting: &Setting<'_>) -> Result<Summary, PaperError> {
        let mut summary = Summary::default();
        self.observed(setting, &mut summary)?;
        Ok(summary)
    }

    /// Runs in the simulator.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn observed(&self, setting: &Setting<'_>, observer: &mut dyn Observer) -> Result<Report, PaperError> {
        self.sampled(setting, observer, STEP, &mut |_, _| ())
    }

    /// Runs in the simulator, and calls `sample` after this many events each.
    ///
    /// # Errors
    /// [`PaperError`]
    pub fn sampled(
        &self,
        setting: &Setting<'_>,
        observer: &mut dyn Observer,
        events: u64,
        sample: &mut dyn FnMut(Nanos, &World<'_>),
    ) -> Result<Report, PaperError> {
        let mutator = &mut ();
        let mut world = World::new(&self.scenario, observer, mutator)?;
        (self.crews)().into_iter().for_each(|crew| world.add_processes(crew));
        loop {
            if setting.stop.load(Ordering::Relaxed) {
                return Err(PaperError::Stopped);
            }
            let progress = world.advance(events)?;
            if progress.ended < progress.processes {
                sample(progress.now, &world);
            }
            if progress.is_over || self.stops_at_once && progress.ended == progress.processes {
                return Ok(world.report());
            }
        }
    }

    /// On real metadata and data servers. Models of networks and disks are ignored, and so are the
    /// limits of a balancer, which servers do not change.
    fn play(&self, setting: &Setting<'_>) -> Result<Summary, PaperError> {
        let cluster = &self.scenario.cluster;
        let eager = self.scenario.network.eager.map(|bytes| ("eager_bytes", bytes.0));
        let watermarks =
            [("low_watermark", cluster.low_watermark), ("high_watermark", cluster.high_watermark)];
        let numbers = watermarks.map(|(key, value)| (key, value as u64)).into_iter().chain(eager);
        let number = |(key, value): (&str, u64)| {
            (key.to_string(), toml::Value::Integer(i64::try_from(value).unwrap_or(i64::MAX)))
        };
        let sync = toml::Value::Boolean(cluster.durability == Durability::Durable);
        let policy: Result<toml::Table, _> = self.scenario.policy.0.to_toml().parse();
        let policy = policy.map_err(|error| PaperError::Cluster(error.to_string()))?;
        let others = [("sync".to_string(), sync), ("policy".to_string(), policy.into())];
        let wanted = Wanted {
            servers: cluster.ranks.max(cluster.data),
            ranks: cluster.ranks,
            insecure: true,
            settings: numbers.map(number).chain(others).collect(),
            in_memory: self.scenario.disk.sync == Distribution::ZERO,
        };
        let running = LocalCluster::start(setting.program, &wanted)?;
        let balancer = &self.scenario.balancer;
        let policy = balancer.policy(Path::new(""))?;
        if let Some(policy) = &policy {
            let every = balancer.every.as_secs_f64();
            running.balance(policy, every as u32)?;
        }
        let (mut crews, mut first) = ((self.crews)(), 0);
        for (number, workload) in (0..).zip(&self.scenario.workload) {
            let started = workload.start(number, first, cluster.clients, Path::new(""));
            let Started { crews: more, .. } = started.map_err(espalier_sim::RunError::from)?;
            for crew in more {
                first += crew.len() as u32;
                let program = |(client, process)| (client, Box::new(process) as Box<dyn Program>);
                crews.push(crew.into_iter().map(program).collect());
            }
        }
        let credentials = &running.credentials();
        let (clients, caching) = (cluster.clients, cluster.cache);
        let called = Called { url: running.url(), credentials, clients, caching };
        let mut summary = play(crews, &called, self.scenario.seed, setting.stop)?;
        if policy.is_some() {
            summary.moves = running.balancer_moves()?;
        }
        Ok(summary)
    }
}
