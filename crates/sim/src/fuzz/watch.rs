//! Observes a run: checks replies and records the messages during a call.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use espalier_balancer::MovePlan;
use espalier_client::{Answer, Call};
use espalier_meta::DecisionRequest;
use espalier_proto::{Caller, ClientId, Errno, FromClient, FromServer, Rank, Reply, RequestId};

use super::outcomes::{CallId, CallOutcomes};
use super::repeats::Repeats;
use super::scenario::Case;
use crate::Nanos;
use crate::check::{
    BalancerChecker, Checker, FailoverChecker, Fate, LockChecker, Rules, SplitChecker, Violation, of_server,
    shortened,
};
use crate::message::Message;
use crate::node::NodeNumbers;
use crate::observe::{FailoverEvent, Node, Observer};
use crate::scenario::Caching;
use crate::storage::{Left, Loss};
use crate::world::FIRST_CLIENT;

/// Messages during a call, as text.
#[derive(Debug, Default)]
pub struct Trace {
    /// Number of the traced call; 0: none, but the events of servers.
    pub call: Option<u64>,
    pub lines: Vec<String>,
}

/// See the module description.
pub struct Watch {
    pub checker: Checker,
    locks: LockChecker,
    pub violation: Option<Box<Violation>>,
    pub trace: Trace,
    numbers: NodeNumbers,
    /// The client of the final survey, and whether that has begun.
    surveyor: u32,
    is_surveyed: bool,
    /// Rules of servers that fail over.
    failover: Option<FailoverChecker>,
    /// A broken rule of failover.
    pub broken_rule: Option<String>,
    splits: SplitChecker,
    pub broken_split: Option<String>,
    /// Rules of balancers, and a broken one.
    balancer: Option<BalancerChecker>,
    pub broken_balance: Option<String>,
    lease: Nanos,
    /// Replies may report changes that a loss of power takes.
    uses_writeback: bool,
    /// Replies may report changes that a disk has not stored when its server ends.
    disks_fail: bool,
    /// Metadata servers that have lost power and not restarted.
    dark: BTreeSet<Node>,
    repeats: Repeats,
    call_outcomes: CallOutcomes,
    /// The call of each request.
    calls_by_request: BTreeMap<(u32, Rank, RequestId), u64>,
    calls: u64,
    /// The traced call while it is pending: client, and number at the client.
    traced: Option<(u32, u64)>,
    /// The traced call was acknowledged by write-back; it is pending until its server replies.
    traced_writeback: bool,
}

/// A shared reference to the watch.
pub struct Eyes(pub Rc<RefCell<Watch>>);

impl Watch {
    pub fn new(case: &Case, call: Option<u64>) -> Self {
        let (cluster, settings) = (&case.scenario.cluster, &case.scenario.policy.0);
        let (numbers, balancer) = (NodeNumbers::of(cluster), &case.scenario.balancer);
        let is_timed = super::failover::is_timed(&case.scenario.faults);
        let strip = u32::try_from(cluster.strip.0).unwrap_or(u32::MAX);
        Self {
            checker: Checker::new(Rules {
                strip_bytes: strip,
                several_ranks: cluster.ranks > 1,
                splits: cluster.ranks > 1 && settings.dir_split().is_some(),
                scattered: cluster.data > 0,
                server: of_server(settings, cluster.data, cluster.strip.0),
                live: case.live.is_some(),
                privileges: case.habits.privileges.is_some(),
                durable: case.durable,
                cached_views: match cluster.cache {
                    Caching::Ttl(term) => Some(term),
                    Caching::Leases | Caching::None => None,
                },
            }),
            locks: LockChecker::new(cluster.session),
            violation: None,
            trace: Trace { call, lines: Vec::new() },
            numbers,
            surveyor: cluster.clients - 1,
            is_surveyed: false,
            failover: (numbers.processes > 0).then(|| FailoverChecker::new(numbers, is_timed)),
            broken_rule: None,
            balancer: balancer.is_on().then(|| {
                let recovered = case.calm + cluster.session + cluster.lease;
                BalancerChecker::new(balancer.clone(), cluster.ranks, recovered)
            }),
            broken_balance: None,
            splits: SplitChecker::default(),
            broken_split: None,
            lease: cluster.lease,
            uses_writeback: case.durable.is_some(),
            disks_fail: case.scenario.faults.disk_failure.is_some(),
            dark: BTreeSet::new(),
            repeats: Repeats::default(),
            call_outcomes: CallOutcomes::default(),
            calls_by_request: BTreeMap::new(),
            calls: 0,
            traced: None,
            traced_writeback: false,
        }
    }

    fn find(&mut self, result: Result<(), Box<Violation>>) {
        if let (Err(violation), None) = (result, &self.violation) {
            self.violation = Some(violation);
        }
    }

    /// Reports calls without a result to the checker as over.
    fn report_over(&mut self, over: impl IntoIterator<Item = (CallId, Nanos, Fate)>) {
        for ((client, call), at, fate) in over {
            self.checker.over(at, ClientId(client.into()), call, fate);
        }
    }

    /// Records a line while the traced call is pending.
    fn note(&mut self, now: Nanos, line: impl FnOnce() -> String) {
        if self.traced.is_some() || self.trace.call == Some(0) {
            self.trace.lines.push(format!("{now} {}", line()));
        }
    }

    fn name(&self, node: Node) -> String {
        let NodeNumbers { ranks, .. } = self.numbers;
        match (self.numbers.rank_of(node), self.numbers.client_of(node), self.numbers.process_of(node)) {
            (Some(rank), _, Some(process)) => format!("rank {rank} at server {process}"),
            (Some(rank), ..) => format!("rank {rank}"),
            (_, Some(client), _) => format!("client {client}"),
            (_, _, Some(process)) => format!("server {process}"),
            _ => format!("data server {}", node.0 - ranks),
        }
    }

    /// Number of ranks that another server served in time after the end of theirs.
    pub fn taken_over(&self) -> u64 {
        self.failover.as_ref().map_or(0, |failover| failover.in_time)
    }

    /// Number of moves that balancers decided, and that began.
    pub fn moves(&self) -> [u64; 2] {
        self.balancer.as_ref().map_or([0; 2], |balancer| balancer.counts)
    }

    /// The longest call of a run with balancers since faults had no effects.
    pub fn longest(&self) -> Nanos {
        self.balancer.as_ref().map_or(Nanos::ZERO, |balancer| balancer.longest)
    }

    /// Number of fragments that split off because of requests.
    pub fn splits_by_requests(&self) -> u64 {
        self.splits.by_requests
    }

    fn find_unbalanced(&mut self, result: Result<(), String>) {
        if let (Err(broken), None) = (result, &self.broken_balance) {
            self.broken_balance = Some(broken);
        }
    }

    fn find_broken(&mut self, result: Result<(), String>) {
        if let (Err(broken), None) = (result, &self.broken_rule) {
            self.broken_rule = Some(broken);
        }
    }

    /// True if a server has its rank, as far as others know.
    fn is_holder(&self, node: Node) -> bool {
        self.failover.as_ref().is_none_or(|failover| failover.is_holder(node))
    }
}

/// Additional time, after a loss of power, until leases on slow clocks have expired.
const SLACK: Nanos = Nanos(100_000_000);

impl Observer for Eyes {
    fn invoked(&mut self, now: Nanos, client: u32, call: u64, caller: &Caller, invoked_call: &Call<'_>) {
        let mut watch = self.0.borrow_mut();
        watch.calls += 1;
        watch.is_surveyed |= client == watch.surveyor;
        if watch.trace.call == Some(watch.calls) {
            watch.traced = Some((client, call));
            watch.note(now, || {
                format!("client {client} calls as {}: {}", caller.uid, shortened(invoked_call))
            });
        }
        watch.checker.invoked(now, ClientId(client.into()), call, caller.into(), invoked_call);
        watch.locks.invoked(now, ClientId(client.into()), call, invoked_call);
        watch.call_outcomes.invoked((client, call), invoked_call);
        if let Some(balancer) = &mut watch.balancer {
            balancer.invoked(now, client, call, invoked_call);
        }
    }

    fn answered(&mut self, now: Nanos, client: u32, call: u64, result: &Result<Answer, Errno>) {
        let mut watch = self.0.borrow_mut();
        if let Some(balancer) = &mut watch.balancer {
            balancer.answered(now, client, call);
        }
        if watch.traced == Some((client, call)) {
            watch.note(now, || format!("client {client} is answered {}", shortened(result)));
            if !watch.traced_writeback {
                watch.traced = None;
            }
        }
        if watch.violation.is_none() {
            let held = watch.locks.answered(now, ClientId(client.into()), call, result);
            let reported = watch.checker.answered(now, ClientId(client.into()), call, result);
            watch.find(reported);
            watch.find(held);
            let over = watch.call_outcomes.answered(now, (client, call), result.as_ref().err().copied());
            watch.report_over(over);
        }
    }

    fn acknowledged_writeback(&mut self, client: u32, call: u64) {
        let mut watch = self.0.borrow_mut();
        watch.traced_writeback |= watch.traced == Some((client, call));
        watch.checker.acknowledged_writeback(ClientId(client.into()), call);
    }

    fn write_behind_completed(&mut self, now: Nanos, client: u32, call: u64, fails: bool) {
        let checker = &mut self.0.borrow_mut().checker;
        checker.carried_out(now, ClientId(client.into()), call, fails);
        checker.heard(ClientId(client.into()), call);
    }

    fn requested(&mut self, client: u32, call: u64, rank: Rank, message: &FromClient) {
        let mut watch = self.0.borrow_mut();
        watch.call_outcomes.requested((client, call), rank, message);
        if let FromClient::Request { id, .. } = message {
            watch.calls_by_request.insert((client, rank, *id), call);
        }
    }

    fn replied(
        &mut self,
        now: Nanos,
        rank: Rank,
        client: ClientId,
        id: RequestId,
        result: &Result<Reply, Errno>,
    ) {
        let mut watch = self.0.borrow_mut();
        let client = client.0.checked_sub(FIRST_CLIENT).and_then(|index| u32::try_from(index).ok());
        let Some(client) = client else { return };
        let call = watch.calls_by_request.get(&(client, rank, id)).copied();
        if let (Some(call), Ok(Reply::Forwarded { to, .. })) = (call, result) {
            watch.calls_by_request.insert((client, to.rank(), id.forwarded_by(rank)), call);
        } else if let Some(call) = call {
            let fails = watch.disks_fail && *result == Err(Errno::EIO);
            watch.checker.carried_out(now, ClientId(client.into()), call, fails);
            if watch.traced_writeback && watch.traced == Some((client, call)) {
                watch.note(now, || format!("rank {} has answered {}", rank.0, shortened(result)));
                watch.traced = None;
            }
        }
        let over = watch.call_outcomes.replied(now, (client, rank, id), result);
        watch.report_over(over);
    }

    fn arrived(&mut self, now: Nanos, from: Node, to: Node, message: &Message) {
        let mut watch = self.0.borrow_mut();
        let numbers = watch.numbers;
        if let (Some(client), Some(rank)) = (numbers.client_of(from), numbers.rank_of(to))
            && watch.is_holder(to)
        {
            watch.locks.heard(now, ClientId(client.into()), rank);
            if let Message::FromClient(message) = message {
                watch.call_outcomes.arrived(client, rank, message);
            }
        }
        if let (Err(broken), None) = (watch.splits.arrives(message), &watch.broken_split) {
            watch.broken_split = Some(broken);
        }
        let checked = watch.balancer.as_mut().map_or(Ok(()), |checker| checker.arrives(now, message));
        watch.find_unbalanced(checked);
        if let (Some(client), Some(rank)) = (numbers.client_of(to), numbers.rank_of(from))
            && let Message::FromServer(FromServer::Reply { id, result, .. }) = message
            && let Some(call) = watch.calls_by_request.remove(&(client, rank, *id))
            && !matches!(result, Ok(Reply::Forwarded { .. }))
        {
            watch.checker.heard(ClientId(client.into()), call);
        }
    }

    fn crashed(&mut self, now: Nanos, node: Node, loss: Loss, left: Option<Left>) {
        let mut watch = self.0.borrow_mut();
        let name = watch.name(node);
        watch.note(now, || format!("{name} ends: {loss:?}"));
        watch.repeats.ended(node);
        let may_be_lost = watch.uses_writeback && (loss != Loss::Process || watch.disks_fail);
        let rank = watch.numbers.rank_of(node);
        if let Some(index) = watch.numbers.client_of(node) {
            let client = ClientId(index.into());
            watch.checker.lost(client);
            watch.balancer.iter_mut().for_each(|balancer| balancer.lost(index));
            watch.locks.lost(client);
            let over = watch.call_outcomes.lost(now, index);
            watch.report_over(over);
        } else if let (true, Some(left)) = (may_be_lost, left) {
            watch.dark.insert(node);
            watch.checker.distrust(Nanos::NEVER);
            let result = watch.checker.lost_power(now, rank.unwrap_or_default(), left);
            watch.find(result);
        } else if loss != Loss::Process {
            watch.checker.data_lost_power();
        }
        if let Some(rank) = rank {
            let over = watch.call_outcomes.ended(now, rank);
            watch.report_over(over);
        }
    }

    fn forgot(&mut self) {
        self.0.borrow_mut().checker.forgotten();
    }

    fn began(&mut self, now: Nanos, node: Node, incarnation: u64) {
        let mut watch = self.0.borrow_mut();
        let (name, rank) = (watch.name(node), watch.numbers.rank_of(node));
        watch.note(now, || format!("{name} begins"));
        if let (Some(failover), Some(rank)) = (&mut watch.failover, rank) {
            failover.began(node, incarnation);
            // All earlier servers of the rank have ended, or are fenced.
            let over = watch.call_outcomes.ended(now, rank);
            watch.report_over(over);
            let nodes = (0..watch.numbers.services()).map(Node);
            let earlier = nodes.filter(|other| watch.numbers.rank_of(*other) == Some(rank));
            earlier.collect::<Vec<_>>().into_iter().for_each(|node| watch.repeats.ended(node));
        }
        if let Some(rank) = rank {
            watch.checker.began(now, rank);
        }
        if watch.dark.remove(&node) && watch.dark.is_empty() {
            let until = now + watch.lease + SLACK;
            watch.checker.distrust(until);
        }
    }

    fn failover(&mut self, now: Nanos, event: &FailoverEvent<'_>) {
        let mut watch = self.0.borrow_mut();
        match event {
            FailoverEvent::Wrote { .. } => {}
            FailoverEvent::Swapped { before, after } if before.ranks == after.ranks => {}
            FailoverEvent::Swapped { after, .. } => watch.note(now, || format!("{:?}", after.ranks)),
            _ => watch.note(now, || format!("{event:?}")),
        }
        let result = watch.failover.as_mut().map_or(Ok(()), |failover| failover.event(now, event));
        watch.find_broken(result);
    }

    fn lets_balance(&self) -> bool {
        !self.0.borrow().is_surveyed
    }

    fn balanced(&mut self, now: Nanos, request: &DecisionRequest, plan: &MovePlan) {
        let mut watch = self.0.borrow_mut();
        for planned in &plan.moves {
            watch.note(now, || format!("rank {}: {planned}", plan.rank));
        }
        let checked = watch.balancer.as_mut().map_or(Ok(()), |checker| checker.balanced(now, request, plan));
        watch.find_unbalanced(checked);
    }

    fn sent(&mut self, now: Nanos, from: Node, to: Node, message: &Message) {
        let mut watch = self.0.borrow_mut();
        let numbers = watch.numbers;
        if let Some(failover) = &mut watch.failover {
            let is_answer =
                matches!(message, Message::FromServer(_) | Message::Peer(_) | Message::Welcome(_));
            let result = if is_answer { failover.answers(from) } else { Ok(()) };
            let result = result.and_then(|()| failover.check_time(now));
            watch.find_broken(result);
        }
        let served = watch.balancer.as_ref().map_or(Ok(()), |balancer| balancer.check_time(now));
        watch.find_unbalanced(served);
        if let (Message::Ended, Some(client), Some(rank)) =
            (message, numbers.client_of(to), numbers.rank_of(from))
        {
            let client = ClientId(client.into());
            watch.checker.session_lost(client, rank);
            watch.locks.session_lost(client, rank);
        }
        if let Some(ino) = watch.repeats.sent(from, to, message) {
            watch.checker.done_twice(ino);
        }
        let Some((client, _)) = watch.traced else { return };
        let client = Node(numbers.first_client().0 + client);
        let is_about = from == client || to == client;
        let is_of_servers = matches!(
            message,
            Message::Peer(_)
                | Message::ToData(_)
                | Message::FromData(_)
                | Message::FromClient(FromClient::Revoked { .. } | FromClient::Blocked { .. })
                | Message::FromServer(FromServer::Revoke { .. })
        );
        if is_about || is_of_servers {
            let names = format!("{} to {}", watch.name(from), watch.name(to));
            watch.note(now, || format!("{names}: {}", shortened(message)));
        }
    }
}
