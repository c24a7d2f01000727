//! Hosts of sequencers as processes of this machine.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use espalier_shared_log::{LogError, LogOptions, NumberSource, SharedLog};
use tempfile::TempDir;

use crate::Setting;
use crate::error::PaperError;

/// Running hosts, and logs. Dropping it ends them and removes the logs.
pub(super) struct HostProcesses {
    dir: TempDir,
    names: Vec<&'static str>,
    logs: Vec<PathBuf>,
    hosts: Vec<Child>,
}

impl Drop for HostProcesses {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            // A host that has ended already.
            let _ = host.kill();
            let _ = host.wait();
        }
    }
}

fn failed(error: LogError) -> PaperError {
    PaperError::Cluster(error.to_string())
}

impl HostProcesses {
    pub fn start(
        setting: &Setting<'_>,
        names: &[&'static str],
        logs: usize,
        balancer: Option<&str>,
    ) -> Result<Self, PaperError> {
        let dir = tempfile::Builder::new().prefix("espalier-logs-").tempdir()?;
        let logs: Vec<PathBuf> = (0..logs).map(|log| dir.path().join(format!("log{log}"))).collect();
        for log in &logs {
            SharedLog::open(log, true, LogOptions::default()).map_err(failed)?;
        }
        let mut hosts = Self { dir, names: names.to_vec(), logs, hosts: Vec::new() };
        for name in names {
            let mut command = Command::new(setting.program);
            command
                .args(["log", "host"])
                .arg(hosts.dir.path())
                .args(["--name", name, "--every", "1", "--dwell", "2"]);
            command.args(balancer.iter().flat_map(|policy| ["--balancer", policy]));
            let mut host = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let output = host.stdout.take();
            hosts.hosts.push(host);
            let mut lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            let first = lines.next().transpose()?;
            if first.is_none() {
                return Err(PaperError::Cluster(format!("host {name} does not start")));
            }
            // Plans are printed, too.
            thread::spawn(move || lines.for_each(drop));
        }
        Ok(hosts)
    }

    /// Has sequencers at hosts, by numbers: seals each log, and asks the host for the tail.
    pub fn place(&self, placement: &[usize]) -> Result<(), PaperError> {
        for (log, host) in self.logs.iter().zip(placement) {
            let source = NumberSource::Proxy(self.names[*host].into());
            let options = LogOptions { source, ..LogOptions::default() };
            let mut log = SharedLog::open(log, false, options).map_err(failed)?;
            log.seal().map_err(failed)?;
            log.tail().map_err(failed)?;
        }
        Ok(())
    }

    /// The host of each sequencer.
    pub fn holders(&self) -> Result<Vec<String>, PaperError> {
        let holder = |log: &PathBuf| {
            let log = SharedLog::open(log, false, LogOptions::default()).map_err(failed)?;
            let current = log.directory().current().map_err(failed)?;
            Ok(current.and_then(|record| record.holding_host()).unwrap_or_else(|| "none".into()))
        };
        self.logs.iter().map(holder).collect()
    }

    /// Takes numbers with several clients of each log; returns the rates of each log in each
    /// second. Fails if a number of one epoch is handed out twice.
    pub fn measure(
        &self,
        source: &NumberSource,
        clients: usize,
        lasting: Duration,
        setting: &Setting<'_>,
    ) -> Result<Vec<Vec<f64>>, PaperError> {
        let begun = Instant::now();
        let seconds = lasting.as_secs().max(1) as usize;
        let taken: Vec<Mutex<HashSet<(u64, u64)>>> = self.logs.iter().map(|_| Mutex::default()).collect();
        let run = |log: usize| -> Result<Vec<u64>, PaperError> {
            let options = LogOptions { source: source.clone(), ..LogOptions::default() };
            let mut client = SharedLog::open(&self.logs[log], false, options).map_err(failed)?;
            let (mut counts, mut numbers) = (vec![0; seconds], Vec::new());
            while begun.elapsed() < lasting {
                setting.check_stop()?;
                let number = client.take(1, 0).map_err(failed)?;
                numbers.push((number.epoch, number.first));
                let second = (begun.elapsed().as_secs() as usize).min(seconds - 1);
                counts[second] += 1;
            }
            let Ok(mut all) = taken[log].lock() else { return Ok(counts) };
            match numbers.into_iter().find(|number| !all.insert(*number)) {
                Some(number) => Err(PaperError::Cluster(format!("{number:?} was handed out twice"))),
                None => Ok(counts),
            }
        };
        let mut rates = vec![vec![0.0; seconds]; self.logs.len()];
        thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> = (0..self.logs.len() * clients)
                .map(|client| (client / clients, scope.spawn(move || run(client / clients))))
                .collect();
            for (log, thread) in threads {
                let counts = thread.join().map_err(|_| PaperError::Nothing("sequencers"))??;
                let length = lasting.as_secs_f64() / seconds as f64;
                rates[log].iter_mut().zip(counts).for_each(|(rate, count)| *rate += count as f64 / length);
            }
            Ok(rates)
        })
    }
}
