//! A run of a trace against a managed cache, with a database behind it.

use espalier_balancer::ScriptError;

use crate::ManagedCache;
use crate::trace::{TraceAccess, TraceShape};

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayReport {
    pub reads: u64,
    /// Reads that the database answers.
    pub misses: u64,
    /// Entries at the end, at most, and on average over the seconds of the run.
    pub entries: usize,
    pub entries_max: usize,
    pub entries_mean: f64,
}

/// Runs a policy once a second of the trace, as the thesis does.
///
/// # Errors
/// The policy fails.
pub fn replay(name: &str, policy: &str, shape: &TraceShape) -> Result<ReplayReport, ScriptError> {
    replay_observed(name, policy, shape, |_, _, _| {})
}

/// Replays as [`replay`] does, and calls `observe` each second with the second, the entries after
/// the policy ran, and the number of entries that it evicted.
///
/// # Errors
/// The policy fails.
pub fn replay_observed(
    name: &str,
    policy: &str,
    shape: &TraceShape,
    mut observe: impl FnMut(u64, usize, usize),
) -> Result<ReplayReport, ScriptError> {
    let mut cache = ManagedCache::new(name, policy);
    let mut report = ReplayReport::default();
    let (mut second, mut sum, mut failure) = (0, 0.0, None);
    shape.run(|now_ms, access| {
        if now_ms / 1000 > second {
            second = now_ms / 1000;
            match cache.manage(now_ms, || false) {
                Ok(evicted) => observe(second, cache.len(), evicted),
                Err(error) => failure = failure.take().or(Some(error)),
            }
            sum += cache.len() as f64;
        }
        match access {
            TraceAccess::Write(key) => cache.insert(now_ms, key, ()),
            TraceAccess::Read(key) => {
                report.reads += 1;
                if cache.get(now_ms, key).is_none() {
                    report.misses += 1;
                    cache.insert(now_ms, key, ());
                }
            }
        }
        report.entries_max = report.entries_max.max(cache.len());
    });
    report.entries = cache.len();
    report.entries_mean = sum / second.max(1) as f64;
    failure.map_or(Ok(report), Err)
}
