//! Several threads, each with a subtree of its own, and a few shared names.
//!
//! A subtree must equal the reference of its thread. Every file with a shared name contains a
//! token. Renames of shared names never replace, so tokens are neither lost nor duplicated: the
//! remaining ones were created, their number is creations minus removals, and their files are
//! complete.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, OFlags, RenameFlags};

use super::op::ModelOp;
use super::reference::Reference;
use crate::process::Code;
use crate::{CaseResult, Failure, runner};

const SHARED_NAMES: u8 = 6;
/// Lengths such that half of the files are unstuffed while other threads move them.
const TOKEN_REPEATS: [usize; 2] = [1, 4000];

/// Operations of a thread on the shared names.
#[derive(Default)]
struct Deeds {
    created: HashSet<String>,
    removed: usize,
}

pub fn run_threads(base: &Path, seed: u64, steps: usize, threads: usize) -> CaseResult {
    let root = runner::fresh(base, "threads")?;
    let outcome = super::guarded(Duration::from_secs(600), || all(&root, seed, steps, threads));
    runner::remove(&root);
    outcome
}

fn all(root: &Path, seed: u64, steps: usize, threads: usize) -> CaseResult {
    fs::create_dir(root.join("shared"))?;
    let deeds: Vec<Deeds> = std::thread::scope(|s| {
        let running: Vec<_> = (0..threads).map(|t| s.spawn(move || one(root, seed, steps, t))).collect();
        running
            .into_iter()
            .map(|t| t.join().map_err(|_| Failure::at("a thread panicked"))?)
            .collect::<Result<_, Failure>>()
    })?;
    let created: HashSet<&String> = deeds.iter().flat_map(|d| &d.created).collect();
    let removed: usize = deeds.iter().map(|d| d.removed).sum();
    let mut left = HashSet::new();
    for name in crate::sys::names(root.join("shared"))? {
        let content = fs::read_to_string(root.join("shared").join(&name))?;
        let token = content.split('.').next().unwrap_or_default().to_owned();
        let whole = TOKEN_REPEATS.iter().any(|n| content == format!("{token}.").repeat(*n));
        if !whole || !created.contains(&token) {
            return Err(Failure::at(format!(
                "{name:?} contains unknown data: {}",
                crate::process::short(&content)
            )));
        }
        if !left.insert(token.clone()) {
            return Err(Failure::at(format!("{token} exists twice")));
        }
    }
    if left.len() != created.len() - removed {
        let (made, left) = (created.len(), left.len());
        return Err(Failure::at(format!("{made} created, {removed} removed, but {left} are left")));
    }
    Ok(())
}

fn one(root: &Path, seed: u64, steps: usize, thread: usize) -> Result<Deeds, Failure> {
    let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(thread as u64));
    let own = root.join(format!("own{thread}"));
    fs::create_dir(&own)?;
    let (mut reference, mut handles) = (Reference::new(), super::real::Handles::default());
    let mut deeds = Deeds::default();
    for step in 0..steps {
        if rng.u8(..3) == 0 {
            share(root, &mut rng, &mut deeds, format!("{thread}-{step}"))?;
        } else {
            let op = ModelOp::random(&mut rng);
            super::step_both(&own, (&mut reference, &mut handles), &op).map_err(|e| Failure {
                message: format!("thread {thread} step {step}: {}", e.message),
                ..e
            })?;
        }
    }
    super::compare_tree(&own, &reference)?;
    Ok(deeds)
}

fn share(root: &Path, rng: &mut fastrand::Rng, deeds: &mut Deeds, token: String) -> CaseResult {
    let mut name = || root.join(format!("shared/s{}", rng.u8(..SHARED_NAMES)));
    let (a, b) = (name(), name());
    match rng.u8(..5) {
        0 | 1 => {
            // Complete before it gets its shared name, so that no thread sees a partial file.
            let hidden = root.join(format!("own-{token}"));
            fs::write(&hidden, format!("{token}.").repeat(TOKEN_REPEATS[rng.usize(..2)]))?;
            let moved = rustix::fs::renameat_with(CWD, &hidden, CWD, &a, RenameFlags::NOREPLACE);
            if tolerate(moved, &[libc::EEXIST])? {
                deeds.created.insert(token);
            } else {
                fs::remove_file(&hidden)?;
            }
        }
        2 => {
            if tolerate(rustix::fs::unlink(&a), &[libc::ENOENT])? {
                deeds.removed += 1;
            }
        }
        3 => {
            let how = if rng.bool() { RenameFlags::NOREPLACE } else { RenameFlags::EXCHANGE };
            tolerate(rustix::fs::renameat_with(CWD, &a, CWD, &b, how), &[libc::ENOENT, libc::EEXIST])?;
        }
        _ => {
            if let Ok(file) = crate::dir::open(&a, OFlags::RDONLY) {
                let content = std::io::read_to_string(file)?;
                let token = content.split('.').next().unwrap_or_default();
                if !TOKEN_REPEATS.iter().any(|n| content == format!("{token}.").repeat(*n)) {
                    return Err(Failure::at(format!(
                        "{} is incomplete, {} bytes",
                        a.display(),
                        content.len()
                    )));
                }
            }
        }
    }
    Ok(())
}

fn tolerate(result: rustix::io::Result<()>, allowed: &[i32]) -> Result<bool, Failure> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if allowed.contains(&e.code()) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
