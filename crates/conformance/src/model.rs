//! Random operations on a mounted file system and on an in-memory reference, compared after each
//! one.

mod op;
mod real;
mod reference;
mod threads;

use std::collections::HashMap;
use std::path::Path;

use crate::process::Child;
use crate::{CaseResult, Failure, runner};
use op::ModelOp;
use reference::Reference;

pub use threads::run_threads;

/// Most reruns for shrinking a failure.
const SHRINK_RUNS: usize = 300;
/// Operations between two comparisons of the whole tree.
const TREE_EVERY: usize = 40;

/// Executes `steps` operations. A failure is shrunk and reported as a list of operations.
pub fn run(base: &Path, seed: u64, steps: usize) -> CaseResult {
    let mut rng = fastrand::Rng::with_seed(seed);
    let ops: Vec<ModelOp> = std::iter::repeat_with(|| ModelOp::random(&mut rng)).take(steps).collect();
    match attempt(base, &ops) {
        Ok(()) => Ok(()),
        Err((_, failure)) if failure.skip => Err(failure),
        Err((at, failure)) => {
            let (ops, failure) = shrink(base, ops[..=at.min(steps - 1)].to_vec(), failure);
            let listed: Vec<String> = ops.iter().map(|op| format!("    {op:?}")).collect();
            Err(Failure {
                message: format!(
                    "{}\n  after {} operations:\n{}",
                    failure.message,
                    ops.len(),
                    listed.join("\n")
                ),
                skip: false,
            })
        }
    }
}

/// Removes ever smaller parts while the rest still fails.
fn shrink(base: &Path, mut ops: Vec<ModelOp>, mut failure: Failure) -> (Vec<ModelOp>, Failure) {
    let mut runs = 0;
    let mut piece = ops.len().div_ceil(2);
    while piece > 0 {
        let mut start = 0;
        while start < ops.len() && runs < SHRINK_RUNS {
            let end = (start + piece).min(ops.len());
            let rest: Vec<ModelOp> = ops[..start].iter().chain(&ops[end..]).cloned().collect();
            runs += 1;
            match attempt(base, &rest) {
                Err((at, found)) if !found.skip => {
                    ops = rest[..=at.min(rest.len().saturating_sub(1))].to_vec();
                    failure = found;
                }
                _ => start = end,
            }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
    (ops, failure)
}

/// Executes operations in a fresh directory; an error contains the index of the operation.
fn attempt(base: &Path, ops: &[ModelOp]) -> Result<(), (usize, Failure)> {
    let root = runner::fresh(base, "model").map_err(|e| (0, e))?;
    let mut at = 0;
    let outcome = replay(&root, ops, &mut at);
    runner::remove(&root);
    outcome.map_err(|failure| (at, failure))
}

fn replay(root: &Path, ops: &[ModelOp], at: &mut usize) -> CaseResult {
    let (mut reference, mut handles) = (Reference::new(), real::Handles::default());
    let mut times = HashMap::new();
    for (step, op) in ops.iter().enumerate() {
        *at = step;
        step_both(root, (&mut reference, &mut handles), op)
            .map_err(|e| Failure { message: format!("step {step}: {}", e.message), skip: e.skip })?;
        if step % TREE_EVERY == TREE_EVERY - 1 {
            compare_tree(root, &reference)?;
            compare_times(root, &reference, &mut times)?;
        }
    }
    compare_tree(root, &reference)?;
    compare_times(root, &reference, &mut times)
}

/// Executes `op` on both sides and compares the results.
fn step_both(
    root: &Path,
    (reference, handles): (&mut Reference, &mut real::Handles),
    op: &ModelOp,
) -> CaseResult {
    if matches!(op, ModelOp::KeepHandle { .. } | ModelOp::StatHandle { .. }) && !real::has_handles(root) {
        return Ok(());
    }
    let want = reference.apply(op);
    let found = real::apply(root, handles, op);
    if want != found {
        let (want, found) = (crate::process::short(&want), crate::process::short(&found));
        return Err(Failure { message: format!("{op:?} gave {found}, not {want}"), skip: false });
    }
    Ok(())
}

/// Compares all names, attributes, data and extended attributes.
fn compare_tree(root: &Path, reference: &Reference) -> CaseResult {
    let (want, found) = (reference.tree(), real::tree(root)?);
    for (path, node) in &want {
        match found.get(path) {
            None => return Err(Failure { message: format!("{path} is missing"), skip: false }),
            Some(other) if other != node => {
                let (want, found) = (crate::process::short(node), crate::process::short(other));
                return Err(Failure { message: format!("{path} is {found}, not {want}"), skip: false });
            }
            Some(_) => {}
        }
    }
    match found.keys().find(|path| !want.contains_key(*path)) {
        Some(path) => Err(Failure { message: format!("{path} exists but should not"), skip: false }),
        None => Ok(()),
    }
}

/// Compares explicitly set times, and checks that unchanged inodes keep their times.
fn compare_times(
    root: &Path,
    reference: &Reference,
    seen: &mut HashMap<(u64, u64), [i128; 2]>,
) -> CaseResult {
    for (path, want) in reference.times() {
        let (mtime, times) = real::times(root, &path)?;
        if let Some(set) = want.mtime.filter(|set| *set != mtime) {
            return Err(Failure { message: format!("{path} has mtime {mtime}, not {set}"), skip: false });
        }
        let first = *seen.entry(want.state).or_insert(times);
        if first != times {
            let message = format!("{path} has mtime and ctime {times:?}, and had {first:?} before");
            return Err(Failure { message, skip: false });
        }
    }
    Ok(())
}

/// Runs in a child process, so that a hang of the file system does not block the test program.
pub(crate) fn guarded(limit: std::time::Duration, body: impl FnOnce() -> CaseResult) -> CaseResult {
    Child::start(body)?.wait_for(limit)
}
