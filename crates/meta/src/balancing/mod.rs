//! Balancers inside the ranks (sevilla, chapter 4; docs/balancing.md): when a rank decides, on
//! which metrics, and what follows from its decision. The driver runs the policy
//! ([`Io::Decide`]).
//!
//! Invariants: a rank decides with the policy that the root's rank has at that time, on the recent
//! moves that the log there has; a move begins after the log has it. Whatever fails, nothing moves.

mod candidates;
mod log;
mod policy;
mod report;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_proto::{Caller, Errno, Ino, Rank, Reply};

pub use candidates::MoveCandidate;
use candidates::Parents;
pub use log::{BalancerEvent, BalancerLogEntry, LOGGED_MS, RecentMove};
pub use policy::{BalancerCommand, StoredPolicy};
pub use report::{BalancerReport, BalancerStatus};

use crate::fragment::MoveScope;
use crate::io::Purpose;
use crate::machine::{Cx, Meta};
use crate::metrics::KnownLoad;
use crate::outbox::{Io, IoDone, Now, Outbox};
use crate::rank::{PeerAnswer, PeerRequest, Question};
use crate::step::{Step, Stop};

/// Maximum number of moves that follow from a decision.
const MAX_MOVES: usize = 64;
/// Time in ms after which a decision is too old to carry out, or is taken for lost.
const DECISION_MS: u64 = 30_000;
/// Maximum lateness in ms of a tick. A decision is due at the tick nearest to its time.
const TICK_LATE_MS: u64 = 500;
/// Minimum intervals in ms between log entries about failures: different ones, and the same one.
const FAILURE_INTERVAL_MS: u64 = 60_000;
const SAME_FAILURE_INTERVAL_MS: u64 = 600_000;
/// Maximum length of a text from the driver, in bytes.
const MAX_TEXT: usize = 400;

/// Inputs of a decision of this rank. Times are in ms of the clock of [`Now::uptime_ms`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRequest {
    pub now_ms: u64,
    pub rank: Rank,
    pub policy: Arc<StoredPolicy>,
    /// All ranks.
    pub loads: Vec<KnownLoad>,
    /// The hottest directory records of this rank that may move, and subtrees of them.
    pub candidates: Vec<MoveCandidate>,
    /// Times of the last moves from this rank.
    pub recent_moves_ms: Vec<u64>,
    /// The `saved` of the last decision; empty at first.
    pub saved: Vec<u8>,
}

/// The result of [`Io::Decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerDecision {
    pub verdict: Verdict,
    /// The moves of the policy that the engine's limits hold back. Empty: none.
    pub held_back: String,
    /// State for the next decision, in the driver's encoding.
    pub saved: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not empty.
    Moves(Vec<DecidedMove>),
    /// Nothing moves, and why.
    Holds(String),
    /// The policy or its inputs are at fault: nothing moves.
    Fails(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedMove {
    /// One of the candidates, with its scope.
    pub ino: Ino,
    pub scope: MoveScope,
    pub to: Rank,
    /// The numbers that it was decided by.
    pub why: String,
}

/// The balancer of this rank. Everything durable is at the root's rank (`policy.rs`, `log.rs`).
#[derive(Debug, Default)]
pub(crate) struct Balancing {
    /// The last version of the policy that this rank has fetched; `None`: there has never been one.
    known: Option<Arc<StoredPolicy>>,
    /// The newest version that the root's rank has announced; at the root's rank, `None` if the
    /// stored one is to be read.
    announced: Option<u64>,
    /// Uptime in ms of the next decision.
    next_ms: u64,
    /// Uptime in ms since which the rank waits for the root's rank.
    waiting: Option<u64>,
    /// Uptime in ms at which the driver began to decide.
    deciding: Option<u64>,
    /// Records of the decision in progress.
    asked: Vec<Ino>,
    to_decide: Option<Box<DecisionRequest>>,
    /// What the decision in preparation is about.
    gathered: Option<Parents>,
    saved: Vec<u8>,
    /// The last decision: its uptime in ms, its result, and whether it is a failure.
    last: Option<(u64, String, bool)>,
    /// Number of moves begun since the start.
    moves: u64,
    /// The last failure in the log, with its uptime in ms.
    logged: Option<(u64, String)>,
    /// Uptime in ms of the last log entry about the engine's limits.
    logged_limits_ms: Option<u64>,
}

impl Balancing {
    pub(crate) fn version(&self) -> u64 {
        self.known.as_ref().map_or(0, |policy| policy.version)
    }

    /// The policy, if the balancer is on.
    fn active(&self) -> Option<&Arc<StoredPolicy>> {
        self.known.as_ref().filter(|policy| policy.is_on())
    }

    fn adopt(&mut self, policy: Option<Arc<StoredPolicy>>) {
        self.known = policy;
        (self.saved, self.logged, self.logged_limits_ms, self.last) = (Vec::new(), None, None, None);
        // Plans of an older policy are dropped.
        (self.deciding, self.next_ms) = (None, 0);
    }

    /// Notes a failure. Returns true if it is to be logged.
    fn fail(&mut self, uptime_ms: u64, error: &str) -> bool {
        self.last = Some((uptime_ms, error.into(), true));
        let is_due = self.logged.as_ref().is_none_or(|(at, logged)| {
            let is_same = logged == error;
            let interval = if is_same { SAME_FAILURE_INTERVAL_MS } else { FAILURE_INTERVAL_MS };
            uptime_ms >= at + interval
        });
        if is_due {
            self.logged = Some((uptime_ms, error.into()));
        }
        is_due
    }

    /// An entry for the log about what the engine's limits hold back, if one is due.
    fn limited(&mut self, uptime_ms: u64, held_back: &str) -> Option<BalancerEvent> {
        let is_due = self.logged_limits_ms.is_none_or(|at| uptime_ms >= at + SAME_FAILURE_INTERVAL_MS);
        (is_due && !held_back.is_empty()).then(|| {
            self.logged_limits_ms = Some(uptime_ms);
            BalancerEvent::Limited { held_back: shortened(held_back) }
        })
    }
}

impl Meta {
    fn is_root_rank(&self) -> bool {
        self.config.rank == Ino::ROOT.rank()
    }

    /// A heartbeat of another rank has this version.
    pub(crate) fn policy_announced(&mut self, from: Rank, version: u64) {
        if from == Ino::ROOT.rank() {
            self.balancing.announced = Some(version);
        }
    }

    /// Once a second: begins a decision if one is due, or if the policy has changed.
    pub(crate) fn tick_balancer(&mut self, now: Now, out: &mut Outbox) {
        if self.config.ranks == 1 || self.draining || self.config.read_only || self.sessions.in_grace() {
            return;
        }
        let (is_root_rank, balancing) = (self.is_root_rank(), &mut self.balancing);
        if let Some(since) = balancing.waiting {
            if now.uptime_ms >= since + DECISION_MS {
                let error = "another metadata server does not answer".into();
                balancing.last = Some((now.uptime_ms, error, true));
            }
            return;
        }
        let is_changed = match balancing.announced {
            Some(announced) => announced != balancing.version(),
            None => is_root_rank,
        };
        if !is_changed && let Some(since) = balancing.deciding {
            let is_lost = now.uptime_ms >= since + DECISION_MS;
            if is_lost && balancing.fail(now.uptime_ms, "the policy does not return") {
                self.log_failure(now, out);
            }
            return;
        }
        if is_changed || (balancing.active().is_some() && now.uptime_ms >= balancing.next_ms) {
            balancing.waiting = Some(now.uptime_ms);
            self.begin_peer_request(now, PeerRequest::Balance, Caller::SERVER, out);
        }
    }

    /// Fetches the policy and the recent moves, and prepares a decision if the balancer is on.
    pub(crate) fn balance(&mut self, cx: &mut Cx<'_>) -> Step<Reply> {
        let known = self.balancing.version();
        let answer = match self.is_root_rank() {
            true => self.answer_balancer(cx.now, known)?,
            false => self.query_rank(cx, Ino::ROOT.rank(), Question::Balancer { known })?,
        };
        let PeerAnswer::Balancer { version, policy, recent } = answer else {
            return Err(Errno::EIO.into());
        };
        if version != known {
            self.balancing.adopt(policy);
        }
        self.balancing.announced = Some(version);
        let Some(policy) = self.balancing.active().cloned() else { return Ok(Reply::Done) };
        let parents = self.parents(cx)?;
        let now_ms = cx.uptime_ms;
        // The time until other ranks have answered does not count.
        let begun_ms = self.balancing.waiting.unwrap_or(now_ms);
        self.balancing.next_ms = begun_ms + u64::from(policy.every_s) * 1000 - TICK_LATE_MS;
        let begun_here = recent.iter().filter(|moved| moved.from == self.config.rank);
        let request = DecisionRequest {
            now_ms,
            rank: self.config.rank,
            policy,
            loads: self.known_loads(),
            candidates: self.candidates(now_ms, &recent, &parents),
            recent_moves_ms: begun_here.map(|moved| moved.at_ms(now_ms)).collect(),
            saved: self.balancing.saved.clone(),
        };
        self.balancing.asked = request.candidates.iter().map(|candidate| candidate.ino).collect();
        self.balancing.asked.sort_unstable();
        self.balancing.asked.dedup();
        self.balancing.to_decide = Some(Box::new(request));
        Ok(Reply::Done)
    }

    /// Handles the end of [`Self::balance`].
    pub(crate) fn balanced(&mut self, now: Now, result: &Result<Reply, Errno>, out: &mut Outbox) {
        (self.balancing.waiting, self.balancing.gathered) = (None, None);
        if let Some(request) = self.balancing.to_decide.take() {
            self.balancing.deciding = Some(now.uptime_ms);
            self.ask(Purpose::Decide(request.policy.version), Io::Decide(request), out);
        } else if let Err(errno) = result {
            let error = format!("the root's metadata server does not return the policy: {errno}");
            self.balancing.last = Some((now.uptime_ms, error, true));
        }
    }

    /// Handles the driver's decision.
    pub(crate) fn decided(
        &mut self,
        now: Now,
        version: u64,
        result: Result<IoDone, Errno>,
        out: &mut Outbox,
    ) {
        if version != self.balancing.version() {
            return;
        }
        let (since, asked) = (self.balancing.deciding.take(), core::mem::take(&mut self.balancing.asked));
        let decision = match result {
            Ok(IoDone::Decided(decision)) => *decision,
            _ => BalancerDecision {
                verdict: Verdict::Fails("the server could not run the policy".into()),
                held_back: String::new(),
                saved: self.balancing.saved.clone(),
            },
        };
        let is_late = since.is_none_or(|since| now.uptime_ms >= since + DECISION_MS);
        let moves = match decision.verdict {
            Verdict::Fails(error) => Err(error),
            _ if is_late => Err("the policy did not return in time".to_string()),
            Verdict::Holds(why) => {
                self.balancing.last = Some((now.uptime_ms, shortened(&why), false));
                Ok(Vec::new())
            }
            Verdict::Moves(moves) => {
                let is_valid = |it: &DecidedMove| {
                    let is_rank = it.to.0 < self.config.ranks && it.to != self.config.rank;
                    is_rank && asked.binary_search(&it.ino).is_ok()
                };
                if moves.len() <= MAX_MOVES && moves.iter().all(is_valid) {
                    Ok(moves)
                } else {
                    Err("the policy moves too much, or to a rank that does not exist".to_string())
                }
            }
        };
        match moves {
            Ok(moves) => {
                self.balancing.saved = decision.saved;
                self.record_moves(now, &moves, &decision.held_back, out);
            }
            Err(error) => {
                if self.balancing.fail(now.uptime_ms, &shortened(&error)) {
                    self.log_failure(now, out);
                }
            }
        }
    }

    fn log_failure(&mut self, now: Now, out: &mut Outbox) {
        let (Some((_, error)), Some(policy)) = (self.balancing.logged.clone(), &self.balancing.known) else {
            return;
        };
        let name = &policy.name;
        self.warnings.push(format!("balancer {name} holds still: {error}"));
        self.log_events(now, Vec::from([BalancerEvent::Failed { error }]), out);
    }

    fn record_moves(&mut self, now: Now, moves: &[DecidedMove], held_back: &str, out: &mut Outbox) {
        let moved = |it: &DecidedMove| {
            let hashes = self.state.inodes.get(&it.ino)?.inode.hashes();
            Some(BalancerEvent::Moved {
                dir: self.state.whole_dir(it.ino).ok()?,
                fragment: it.ino,
                first: *hashes.start(),
                path: self.shown_path(it.ino),
                to: it.to,
                scope: it.scope,
                why: shortened(&it.why),
                is_undone: false,
            })
        };
        let mut events: Vec<_> = moves.iter().filter_map(moved).collect();
        if !moves.is_empty() {
            let more = if held_back.is_empty() { String::new() } else { format!("; not {held_back}") };
            let count = if events.len() == 1 { "1 move".into() } else { format!("{} moves", events.len()) };
            let last = shortened(&format!("{count}{more}"));
            self.balancing.last = Some((now.uptime_ms, last, false));
        }
        events.extend(self.balancing.limited(now.uptime_ms, held_back));
        if !events.is_empty() {
            self.log_events(now, events, out);
        }
    }

    fn log_events(&mut self, now: Now, events: Vec<BalancerEvent>, out: &mut Outbox) {
        let version = self.balancing.version();
        let request = PeerRequest::RecordBalancing { version, since_ms: now.uptime_ms, events };
        self.balancing.waiting = Some(now.uptime_ms);
        self.begin_peer_request(now, request, Caller::SERVER, out);
    }

    /// Has the log at the root's rank record events of this rank, then begins the moves among them.
    pub(crate) fn record_balancing(
        &mut self,
        cx: &mut Cx<'_>,
        version: u64,
        since_ms: u64,
        events: &[BalancerEvent],
    ) -> Step<Reply> {
        let question = Question::RecordBalancing { version, events: events.to_vec() };
        self.query_rank(cx, Ino::ROOT.rank(), question)?;
        if cx.uptime_ms >= since_ms + DECISION_MS || version != self.balancing.version() {
            return Ok(Reply::Done);
        }
        let mut begun = 0;
        for event in events {
            let BalancerEvent::Moved { fragment, to, scope, .. } = event else { continue };
            match self.answer_move(*fragment, *to, *scope) {
                Err(Stop::Wait(wait)) => return Err(Stop::Wait(wait)),
                // Removed, moved or pinned meanwhile.
                Err(_) => {}
                Ok(_) => begun += 1,
            }
        }
        self.balancing.moves += begun;
        Ok(Reply::Done)
    }

    /// Handles the end of [`Self::record_balancing`].
    pub(crate) fn balancing_recorded(&mut self, now: Now, result: &Result<Reply, Errno>) {
        self.balancing.waiting = None;
        if let Err(errno) = result {
            let error = match errno {
                Errno::EBUSY => "the log is full of moves of the last minute".to_string(),
                errno => format!("the log does not record moves: {errno}"),
            };
            self.balancing.last = Some((now.uptime_ms, error, true));
        }
    }
}

/// A text of bounded length.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}
