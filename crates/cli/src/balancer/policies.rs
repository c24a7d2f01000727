//! `espalier balancer list|check|dry-run`: policies without a cluster.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use espalier_balancer::{BalancerEngine, BalancerPolicy, MetricsSnapshot, MovePlan, check_policy};
use serde_json::Value;

use super::cluster::MetricsRecorder;
use crate::usage::print_text;

/// Time for a decision, and for all decisions of a check.
const TIME_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn list(json: bool) -> Result<ExitCode> {
    let shipped = BalancerPolicy::all_shipped();
    if json {
        let row = |policy: BalancerPolicy| serde_json::json!({ "name": policy.name(), "summary": policy.summary(), "text": policy.text() });
        return print_text(&Value::from_iter(shipped.map(row)));
    }
    let mut text = String::new();
    for policy in shipped {
        writeln!(text, "{:<26}{}", policy.name(), policy.summary())?;
    }
    print_text(&text.trim_end())
}

pub(super) fn check(policy: &Path) -> Result<ExitCode> {
    let engine = BalancerEngine::new(load(policy)?);
    let faults = check_policy(&engine, &[1, 2, 4], clock());
    if faults.is_empty() {
        return print_text(&format!("{}: no faults", policy.display()));
    }
    for fault in &faults {
        print_text(&fault)?;
    }
    Ok(ExitCode::FAILURE)
}

pub(super) fn dry_run(policy: &Path, source: &Path, json: bool) -> Result<ExitCode> {
    let engine = BalancerEngine::new(load(policy)?);
    let (snapshots, is_list) = match source.is_dir() {
        true => (MetricsRecorder::of(source)?.snapshots()?, true),
        false => read(source)?,
    };
    let plans = replay(&engine, snapshots);
    let is_failure = plans.iter().any(MovePlan::is_failure);
    match plans.as_slice() {
        [plan] if json && !is_list => print_text(&serde_json::to_value(plan)?)?,
        plans if json => print_text(&serde_json::to_value(plans)?)?,
        plans => print_text(&plans.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?,
    };
    Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Decides on snapshots in a row. The first of each rank has the saved state that the policy starts
/// with.
fn replay(engine: &BalancerEngine, snapshots: Vec<MetricsSnapshot>) -> Vec<MovePlan> {
    let mut states = HashMap::new();
    let decide = |mut snapshot: MetricsSnapshot| {
        snapshot.state = states.get(&snapshot.whoami).copied().unwrap_or(snapshot.state);
        let plan = engine.decide(&snapshot, clock());
        states.insert(snapshot.whoami, plan.state);
        plan
    };
    snapshots.into_iter().map(decide).collect()
}

/// A shipped policy, or a file.
pub(crate) fn load(policy: &Path) -> Result<BalancerPolicy> {
    if let Some(shipped) = policy.to_str().and_then(BalancerPolicy::shipped) {
        return Ok(shipped);
    }
    let text = std::fs::read_to_string(policy).with_context(|| {
        format!("{} is not in `espalier balancer list`, and cannot be read as a file", policy.display())
    })?;
    let name = policy.file_name().unwrap_or(policy.as_os_str()).to_string_lossy();
    Ok(BalancerPolicy::new(name, &text))
}

/// Snapshots, and whether they are one or more lists, one after the other.
fn read(file: &Path) -> Result<(Vec<MetricsSnapshot>, bool)> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let is_list = text.trim_ascii_start().starts_with(b"[");
    let snapshots = if is_list {
        let lists = serde_json::Deserializer::from_slice(&text).into_iter::<Vec<MetricsSnapshot>>();
        lists.collect::<Result<Vec<_>, _>>().map(|lists| lists.into_iter().flatten().collect())
    } else {
        serde_json::from_slice(&text).map(|snapshot| vec![snapshot])
    };
    let snapshots = snapshots.with_context(|| format!("{} is no snapshot of metrics", file.display()))?;
    Ok((snapshots, is_list))
}

/// True when the time is up.
pub(super) fn clock() -> impl Fn() -> bool + Clone {
    let begin = Instant::now();
    move || begin.elapsed() > TIME_LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(now_ms: u64) -> String {
        let busy = r#"{"IWR": 200}"#;
        format!(
            r#"{{"now_ms": {now_ms}, "whoami": 0, "fragments": [
                {{"name": "/a", "counters": {{"IWR": 50}}}}, {{"name": "/b", "counters": {{"IWR": 150}}}}],
              "ranks": [{{"rank": 0, "at_ms": {now_ms}, "cpu": 90, "req": 500, "auth": {busy}, "all": {busy}}},
                {{"rank": 1, "at_ms": {now_ms}}}]}}"#
        )
    }

    #[test]
    fn replay_continues_with_the_saved_state() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("snapshots.json");
        let list = [0, 10_000].map(snapshot).join(",");
        std::fs::write(&file, format!("\n[{list}]\n[{}]\n", snapshot(20_000))).expect("written");
        let (snapshots, is_list) = read(&file).expect("snapshots");
        assert!(is_list);
        let engine = BalancerEngine::new(load(Path::new("fill-and-spill")).expect("shipped"));
        let moves: Vec<usize> = replay(&engine, snapshots).iter().map(|plan| plan.moves.len()).collect();
        assert_eq!(moves, [0, 0, 1]);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("snapshot.json");
        std::fs::write(&file, "{\"now_ms\": 1,\n \"who\": 2}").expect("written");
        let error = format!("{:#}", read(&file).expect_err("no snapshot"));
        assert!(error.contains("snapshot.json is no snapshot of metrics: unknown field `who`"), "{error}");
        assert!(error.contains("line 2"), "{error}");
        let error = format!("{:#}", load(Path::new("/nowhere.lua")).expect_err("no file"));
        assert!(error.contains("/nowhere.lua is not in `espalier balancer list`"), "{error}");
    }
}
