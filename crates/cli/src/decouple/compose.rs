//! `espalier decouple --compose`: runs a composition of mechanisms step by step, and prints the
//! time of each mechanism (sevilla 6.2.1).
//!
//! A journal that is persisted in the step that makes it is on the disk, or at the servers, while
//! it grows. One that is persisted in a later step is in memory until then, and exported.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use espalier_policy::{Composition, Consistency, Durability, Level, Mechanism};
use espalier_runtime::{ClientJournal, export_journal};

use super::{DecoupleArgs, DecoupledPath, exit_code, failed, place, run as run_command};
use crate::journal::show_time;
use crate::merge::{self, open_journal};
use crate::sync::sync_one;

/// The durability of the namespace while the command runs.
pub(super) fn place(composition: &Composition) -> Durability {
    let persists = |mechanism| matches!(mechanism, &Mechanism::LocalPersist | &Mechanism::GlobalPersist);
    let is_parallel = composition.steps().first().is_some_and(|step| step.iter().any(persists));
    if is_parallel { Level::of(composition).durability } else { Durability::None }
}

/// Runs the command of `args` in a directory. `begin` decouples it.
pub(super) fn run(
    args: &DecoupleArgs,
    composition: &Composition,
    path: &Path,
    begin: impl FnOnce() -> Result<DecoupledPath>,
) -> Result<ExitCode> {
    if composition.has(Mechanism::NonvolatileApply) {
        bail!(
            "nonvolatile apply needs the servers stopped: leave it out, stop them when the command has ended, and \
             run `espalier journal apply --nonvolatile`"
        );
    }
    if Level::of(composition).consistency == Consistency::Strong {
        return run_strong(args, composition, path);
    }
    let decoupled = begin()?;
    let (status, took) = timed(|| run_command(args))?;
    show_time(Mechanism::AppendClientJournal, took);
    if !status.success() {
        return Ok(failed(path, status));
    }
    if place(composition) != Durability::None {
        let persist = match Level::of(composition).durability {
            Durability::Global => Mechanism::GlobalPersist,
            _ => Mechanism::LocalPersist,
        };
        let ((), took) = timed(|| sync(path))?;
        show_time(persist, took);
    }
    later_steps(composition, &decoupled)
}

/// Each change is a request to the server, which journals it.
fn run_strong(args: &DecoupleArgs, composition: &Composition, path: &Path) -> Result<ExitCode> {
    if composition.has(Mechanism::LocalPersist) {
        bail!("`RPCs+local persist` is not offered, since a server journals every change: use `RPCs+stream`");
    }
    let (status, took) = timed(|| run_command(args))?;
    show_time(Mechanism::Rpcs, took);
    if status.success() && composition.has(Mechanism::Stream) {
        let ((), took) = timed(|| sync(path))?;
        show_time(Mechanism::Stream, took);
    }
    Ok(exit_code(status))
}

/// The steps after the one that makes the journal.
fn later_steps(composition: &Composition, decoupled: &DecoupledPath) -> Result<ExitCode> {
    let DecoupledPath { path, store, id } = decoupled;
    let steps = composition.steps().get(1..).unwrap_or_default();
    if steps.is_empty() {
        eprintln!("espalier: {0} stays decoupled until `espalier merge {0}`", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    merge::unmount(path)?;
    let durability = Level::of(composition).durability;
    let exported = place::journal(durability, path, *id)?;
    let journal = open_journal(store)?;
    for step in steps {
        // All mechanisms of a step run at once.
        std::thread::scope(|scope| {
            let running: Vec<_> = step
                .iter()
                .map(|mechanism| scope.spawn(|| mechanism_step(*mechanism, &*journal, decoupled, &exported)))
                .collect();
            running.into_iter().try_for_each(|thread| {
                let (mechanism, took) = thread.join().unwrap_or_else(|_| bail!("a mechanism failed"))?;
                show_time(mechanism, took);
                anyhow::Ok(())
            })
        })?;
    }
    drop(journal);
    let is_applied = composition.has(Mechanism::VolatileApply);
    let left: Vec<&PathBuf> = [store, &exported].into_iter().filter(|place| place.exists()).collect();
    if is_applied {
        left.iter()
            .try_for_each(|place| place::remove(place))
            .context("merged, but cannot remove the journal")?;
    } else {
        stays(path, &exported);
    }
    Ok(ExitCode::SUCCESS)
}

/// Unmounts a namespace and persists its journal, since the level has become more durable.
pub(super) fn persist_mounted(decoupled: &DecoupledPath, durability: Durability) -> Result<ExitCode> {
    let DecoupledPath { path, store, id } = decoupled;
    merge::unmount(path)?;
    let exported = place::journal(durability, path, *id)?;
    persist(&*open_journal(store)?, &exported)?;
    stays(path, &exported);
    Ok(ExitCode::SUCCESS)
}

fn stays(path: &Path, exported: &Path) {
    eprintln!(
        "espalier: {0} stays decoupled until `espalier merge {0}`; its journal is in {1}",
        path.display(),
        exported.display()
    );
}

fn mechanism_step(
    mechanism: Mechanism,
    journal: &dyn ClientJournal,
    decoupled: &DecoupledPath,
    exported: &Path,
) -> Result<(Mechanism, Duration)> {
    let DecoupledPath { path, store, .. } = decoupled;
    let ((), took) = timed(|| match mechanism {
        Mechanism::LocalPersist | Mechanism::GlobalPersist => persist(journal, exported),
        Mechanism::VolatileApply => merge::apply(path, journal, store),
        // The composition's rules exclude these.
        _ => bail!("`{mechanism}` cannot follow `{}`", Mechanism::AppendClientJournal),
    })?;
    Ok((mechanism, took))
}

/// Writes a journal to a file, durably.
pub(crate) fn persist(journal: &dyn ClientJournal, to: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", to.display());
    let file = File::create(to).with_context(cannot)?;
    export_journal(journal, &mut BufWriter::new(&file), |_| ())?;
    file.sync_all().with_context(cannot)?;
    let dir = to.canonicalize().with_context(cannot)?;
    let dir = dir.parent().map(File::open).transpose().with_context(cannot)?;
    dir.map_or(Ok(()), |dir| dir.sync_all()).with_context(cannot)
}

fn sync(path: &Path) -> Result<()> {
    sync_one(path).map_err(|why| anyhow::anyhow!("cannot sync {}: {why}", path.display()))
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let began = Instant::now();
    let done = work()?;
    Ok((done, began.elapsed()))
}
