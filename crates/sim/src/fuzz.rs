//! Random runs with checks: some order of the calls must explain all replies, and at the end
//! everything must become idle and consistent. A run is a function of its seed.

mod acls;
pub mod balancers;
mod exclusive;
pub mod failover;
mod handles;
mod locks;
mod looks;
mod migrations;
mod outcomes;
mod policies;
mod privileges;
mod quotas;
mod random_calls;
mod reads;
mod repeats;
mod scenario;
mod steady;
mod streaks;
mod survey;
mod walks;
mod watch;

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use espalier_meta::Finding;

use crate::check::Violation;
use crate::mutant::Mutation;
use crate::observe::Mutator;
use crate::process::Program;
use crate::scenario::{Caching, Cluster, Scenario, ScenarioError};
use crate::time::Nanos;
use crate::world::{PoolCounts, RunError, World};
use handles::Exported;
use random_calls::{Habits, RandomCaller};
use scenario::Case;
use steady::SteadyProcess;
use survey::Surveyor;
use watch::{Eyes, Watch};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunFailure {
    #[error(transparent)]
    Violation(Box<Violation>),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("fsck finds: {0:?}")]
    Unclean(Vec<Finding>),
    #[error("clients and servers do not agree: {}", .0.join("; "))]
    Disagree(Vec<String>),
    #[error("failover: {0}")]
    Failover(String),
    #[error("balancers: {0}")]
    Balancer(String),
    #[error("splits: {0}")]
    Split(String),
    #[error("a panic: {0}")]
    Panic(String),
}

/// Result of a run without a failure.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passed {
    /// Number of explained replies.
    pub answers: u64,
    /// The check gave up, since there were too many explanations.
    pub given_up: bool,
    /// Number of ranks that another server served in time after the end of theirs.
    pub taken_over: u64,
    /// Number of moves that balancers decided, and that began.
    pub moves: [u64; 2],
    /// The longest call of a run with balancers since faults had no effects.
    pub longest: Nanos,
    /// Number of fragments that split off because of requests.
    pub splits_by_requests: u64,
    /// Number of first pages of directories that were fetched ahead and read.
    pub pages_read_ahead: u64,
    /// Operations of clients on the data pool.
    pub pool_counts: PoolCounts,
    /// Number of migrations of stores.
    pub migrations: u64,
}

/// The scenario of a seed, in the format of [`crate::Scenario`].
///
/// # Errors
/// None is expected.
pub fn scenario_text(seed: u64) -> Result<String, ScenarioError> {
    Ok(Case::new(seed)?.text)
}

/// True if the run of a seed has what a mutant breaks.
pub fn can_show(seed: u64, what: Mutation) -> bool {
    let has = |condition: fn(&Case) -> bool| Case::new(seed).is_ok_and(|case| condition(&case));
    match what {
        _ if what.is_of_balancers() => balancers::are_in(seed),
        Mutation::UnsetAttributes => exclusive::are_in(seed),
        // Requests often wait for records that the server has evicted.
        Mutation::OvertakingRequest => has(|case| {
            let Cluster { cache, memory, .. } = &case.scenario.cluster;
            case.habits.exclusive && *cache == Caching::Leases && memory.0 == 0
        }),
        // Processes with exclusive directories share few others.
        Mutation::KeptPermissions => has(|case| {
            let Habits { looks, users, exclusive, .. } = case.habits;
            looks && users && !exclusive && case.scenario.cluster.cache == Caching::Leases
        }),
        // Messages between ranks take long.
        Mutation::ForgottenFreeze => has(|case| {
            let Scenario { cluster, network, policy, .. } = &case.scenario;
            cluster.ranks > 1 && policy.0.dir_split().is_some() && network.loss > 0.0
        }),
        Mutation::KeptListing => {
            has(|case| case.habits.walks && case.scenario.cluster.cache == Caching::Leases)
        }
        Mutation::RenumberedFragments => has(|case| !case.scenario.cluster.joins.is_empty()),
        Mutation::CopiedStore => has(|case| !case.scenario.cluster.leaves.is_empty()),
        Mutation::RepeatedForward => has(|case| case.scenario.policy.0.dir_forward() == Some(true)),
        _ if what.is_of_migrations() => has(|case| !case.scenario.cluster.migrations.is_empty()),
        _ if what.is_of_data_pool() => has(|case| case.scenario.cluster.direct),
        Mutation::TrustedStandby => has(|case| case.scenario.cluster.standby_replay),
        Mutation::UninheritedSetting => has(|case| case.live.is_some()),
        _ => what.skipped().is_none() || failover::is_in(seed),
    }
}

/// Executes the run of a seed.
///
/// # Errors
/// [`RunFailure`]
pub fn run(seed: u64) -> Result<Passed, RunFailure> {
    mutated(seed, &mut ())
}

/// Executes the run of a seed with a mutant.
///
/// # Errors
/// [`RunFailure`]
pub fn mutated(seed: u64, mutator: &mut dyn Mutator) -> Result<Passed, RunFailure> {
    run_observed(seed, None, mutator).0
}

/// Executes the run of a seed; returns the messages of the client of call number `call`, counted
/// from 1, and those between servers, during that call.
pub fn replay(seed: u64, call: Option<u64>) -> (Result<Passed, RunFailure>, Vec<String>) {
    run_observed(seed, call, &mut ())
}

fn run_observed(
    seed: u64,
    call: Option<u64>,
    mutator: &mut dyn Mutator,
) -> (Result<Passed, RunFailure>, Vec<String>) {
    match Case::new(seed) {
        Ok(case) => run_case(&case, call, mutator),
        Err(error) => (Err(RunError::from(error).into()), Vec::new()),
    }
}

/// Executes a scenario with processes that make random calls; returns the events of failover, too.
/// Faults end with `until`, and the last client is for the final survey.
///
/// # Errors
/// [`RunFailure`]
pub fn run_scenario(text: &str, mutator: &mut dyn Mutator) -> (Result<Passed, RunFailure>, Vec<String>) {
    match Case::of_text(text) {
        Ok(case) => run_case(&case, Some(0), mutator),
        Err(error) => (Err(RunError::from(error).into()), Vec::new()),
    }
}

fn run_case(
    case: &Case,
    call: Option<u64>,
    mutator: &mut dyn Mutator,
) -> (Result<Passed, RunFailure>, Vec<String>) {
    let watch = Rc::new(RefCell::new(Watch::new(case, call)));
    let eyes = Eyes(Rc::clone(&watch));
    let result = catch_unwind(AssertUnwindSafe(|| run_with_observer(case, eyes, mutator)));
    let result = result.unwrap_or_else(|panic| Err(RunFailure::Panic(text_of(panic))));
    // The borrow fails only if its holder has panicked.
    let lines = watch.try_borrow_mut().map_or(Vec::new(), |mut watch| std::mem::take(&mut watch.trace.lines));
    (result, lines)
}

fn text_of(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or("without a text".into(), |text| (*text).into()),
    }
}

/// Time after the end of faults within which a run must end: sessions last half a minute, processes
/// rest for seconds.
const PATIENCE: Nanos = Nanos(3_600_000_000_000);
/// Number of events between two checks for failures.
const EVENTS: u64 = 200;

fn run_with_observer(case: &Case, mut eyes: Eyes, mutator: &mut dyn Mutator) -> Result<Passed, RunFailure> {
    let watch = Rc::clone(&eyes.0);
    let mut world = World::empty(&case.scenario, &mut eyes, mutator)?;
    world.keep_lookups();
    let mut programs: Vec<(u32, Box<dyn Program>)> = Vec::new();
    let exported = Exported::default();
    for number in 0..case.wanderers {
        // The last client stays fresh for the final survey.
        let client = number % (case.scenario.cluster.clients - 1);
        let wanderer = RandomCaller::new(number, case.habits, case.live.clone(), &exported);
        programs.push((client, Box::new(wanderer)));
    }
    let cluster = &case.scenario.cluster;
    if cluster.direct {
        let steady = SteadyProcess::all(cluster.clients, case.wanderers, case.habits.strip);
        programs.extend(steady.into_iter().map(|(client, process)| (client, Box::new(process) as _)));
    }
    let surveyor = Surveyor::new(case.calm, case.live.is_some(), &case.habits, exported);
    programs.push((case.scenario.cluster.clients - 1, Box::new(surveyor)));
    world.add_processes(programs);
    loop {
        let progress = world.advance(EVENTS)?;
        let mut watch = watch.borrow_mut();
        if let Some(violation) = watch.violation.take() {
            return Err(RunFailure::Violation(violation));
        }
        if let Some(broken) = watch.broken_rule.take() {
            return Err(RunFailure::Failover(broken));
        }
        if let Some(broken) = watch.broken_split.take() {
            return Err(RunFailure::Split(broken));
        }
        if let Some(broken) = watch.broken_balance.take() {
            return Err(RunFailure::Balancer(broken));
        }
        if progress.is_over {
            break;
        }
        if progress.now > case.calm + PATIENCE {
            return Err(world.endless().into());
        }
    }
    if !world.differences().is_empty() {
        return Err(RunFailure::Disagree(world.differences().to_vec()));
    }
    let findings = world.fsck()?;
    if !findings.is_empty() {
        return Err(RunFailure::Unclean(findings));
    }
    let (pages_read_ahead, pool_counts) = (world.pages_read_ahead(), world.pool_counts());
    let migrations = world.migrations();
    let watch = watch.borrow();
    Ok(Passed {
        pages_read_ahead,
        pool_counts,
        migrations,
        answers: watch.checker.checked(),
        given_up: watch.checker.has_given_up(),
        taken_over: watch.taken_over(),
        moves: watch.moves(),
        longest: watch.longest(),
        splits_by_requests: watch.splits_by_requests(),
    })
}
