//! Failover: decides which server serves which rank (docs/failover.md).
//!
//! - All servers share the cluster map, which changes by compare-and-swap only. A server renews its
//!   lease by raising its heartbeat there. Past [`Failover::served_until`], which counts from the
//!   start of the last successful renewal, it answers nothing.
//! - A server whose heartbeat stands still for longer than any lease lasts while others read the
//!   map, or that is known to have ended, is removed from the map. A renewal meanwhile makes the
//!   compare-and-swap fail. A server that finds itself removed stops for good.
//! - A warm standby follows the journals of ranks that others hold, without writing anything. If
//!   such a rank is free, other servers leave it to the standby for a while. What was followed is
//!   used when the rank's store is opened, which checks it.
//! - The next holder of a rank fences all earlier ones that were removed before it opens the
//!   rank's store: what they still write fails.

mod map;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::Rank;

pub use map::{ClusterMap, InstanceId, RankEntry, ServerEntry, ServerState};

/// Intervals in ms.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two renewals.
    pub heartbeat_ms: u64,
    /// Term of a server's lease, from the start of its renewal.
    pub lease_ms: u64,
    /// Silence after which a server is removed, without the time in which the map could not be
    /// read. Exceeds the lease by more than clocks drift apart
    /// in that time.
    pub takeover_ms: u64,
    /// Between two looks at the map; while a server drains, the shorter one.
    pub look_ms: u64,
    pub look_draining_ms: u64,
    /// Time for which a free rank is left to servers with fewer ranks, for each rank held.
    pub spread_ms: u64,
    /// Time for which a free rank is left to the warm standby that has followed it.
    pub follower_ms: u64,
    /// Before a rank that could not be fenced or opened is tried again.
    pub retry_ms: u64,
}

impl Timing {
    pub const DEFAULT: Self = Self {
        heartbeat_ms: 1000,
        lease_ms: 8000,
        takeover_ms: 10_000,
        look_ms: 250,
        look_draining_ms: 50,
        spread_ms: 2000,
        follower_ms: 500,
        retry_ms: 1000,
    };
}

/// The outcome of a compare-and-swap of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapped {
    Done {
        version: u64,
    },
    /// Another server has changed the map, or the outcome is unknown.
    Unknown,
}

#[derive(Clone, Debug)]
pub enum Input {
    Tick,
    /// The map was read; `None`: the store did not answer.
    Looked(Option<(u64, ClusterMap)>),
    Swapped(Swapped),
    /// The store refuses this server: another one has fenced it.
    Refused,
    /// The journal of a rank of this server has failed: what it contains is unknown until it is
    /// replayed.
    Broken,
    /// The process of this instance has ended.
    Ended(InstanceId),
    /// The earlier holders of a rank are fenced, or not all of them.
    Fenced {
        rank: Rank,
        done: bool,
    },
    /// The rank's store is open and the rank answers, or not.
    Opened {
        rank: Rank,
        done: bool,
    },
    /// Hand over all ranks and end.
    Drain,
    /// A rank has written everything out, and answers nothing.
    Closed {
        rank: Rank,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the map.
    Look,
    /// Replace the map of this version. It contains this heartbeat of the server.
    Swap { version: u64, map: ClusterMap },
    /// Fence these clients of the store.
    Fence { rank: Rank, clients: Vec<String> },
    /// Open the rank's store and serve the rank, with what was followed of it.
    Open { rank: Rank, incarnation: u64 },
    /// Follow the journal of a rank that another server holds.
    Follow { rank: Rank },
    /// Drop what was followed.
    Unfollow { rank: Rank },
    /// Write everything out and stop serving the rank.
    Close { rank: Rank },
    /// End without writing anything: other servers have taken, or may take, all ranks.
    Stop(StopReason),
    /// All ranks are handed over: end.
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Another server has removed this one from the map.
    Removed,
    /// The store refuses this server.
    Fenced,
    /// A journal has failed. The next holder fences this server, whose writes may still be on their
    /// way.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fencing,
    Opening,
    /// Open; the map does not say so yet.
    Opened,
    Serving,
    Closing,
    /// Handed over as soon as the map says so.
    Closed,
    /// Given back, since it could not be opened.
    Failed,
}

/// The last observed heartbeat of a server.
#[derive(Clone, Copy, Debug)]
struct LastHeartbeat {
    heartbeat: u64,
    since: u64,
}

/// A compare-and-swap with an unknown outcome.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    heartbeat: u64,
    began: u64,
}

/// The map as this server last read it.
#[derive(Clone, Debug)]
struct Known {
    version: u64,
    map: ClusterMap,
    since: u64,
}

/// The state machine of one server. Times are in ms of its own monotonic clock.
#[derive(Debug)]
pub struct Failover {
    timing: Timing,
    own: ServerEntry,
    known: Option<Known>,
    /// The map has had this server's entry.
    joined: bool,
    renewed: Option<u64>,
    looking: bool,
    /// The store did not answer: the map is not read before this time.
    look_at: u64,
    swapping: Option<(Attempt, ClusterMap)>,
    /// Attempts since the last look whose outcome is unknown.
    attempts: Vec<Attempt>,
    heard: BTreeMap<InstanceId, LastHeartbeat>,
    ended: BTreeSet<InstanceId>,
    ranks: BTreeMap<Rank, Phase>,
    free_since: BTreeMap<Rank, u64>,
    /// Ranks whose journals this server follows.
    follows: BTreeSet<Rank>,
    /// Followers of free ranks.
    followers: BTreeMap<Rank, InstanceId>,
    /// When fencing or opening a rank is tried again.
    retry_at: BTreeMap<Rank, u64>,
    stopped: bool,
    left: bool,
}

impl Failover {
    /// `own`: this server's entry; its state and heartbeat are ignored.
    pub fn new(timing: Timing, own: ServerEntry) -> Self {
        Self {
            timing,
            own: ServerEntry { state: ServerState::Standby, heartbeat: 0, ..own },
            known: None,
            joined: false,
            renewed: None,
            looking: false,
            look_at: 0,
            swapping: None,
            attempts: Vec::new(),
            heard: BTreeMap::new(),
            ended: BTreeSet::new(),
            ranks: BTreeMap::new(),
            free_since: BTreeMap::new(),
            follows: BTreeSet::new(),
            followers: BTreeMap::new(),
            retry_at: BTreeMap::new(),
            stopped: false,
            left: false,
        }
    }

    /// The time past which the server answers nothing; 0: it may not answer.
    pub fn served_until(&self) -> u64 {
        if self.stopped { 0 } else { self.renewed.map_or(0, |since| since + self.timing.lease_ms) }
    }

    /// The newest map that this server has seen, with its version.
    pub fn map(&self) -> Option<(u64, &ClusterMap)> {
        self.known.as_ref().map(|known| (known.version, &known.map))
    }

    pub fn on(&mut self, now: u64, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.stopped || self.left {
            return actions;
        }
        match input {
            Input::Tick => {}
            Input::Looked(looked) => {
                self.looking = false;
                match looked {
                    Some((version, map)) => self.looked(now, version, map, &mut actions),
                    None => self.look_at = now + self.timing.look_ms,
                }
            }
            Input::Swapped(swapped) => self.swapped(now, swapped, &mut actions),
            Input::Refused => self.stop(StopReason::Fenced, &mut actions),
            Input::Broken => self.stop(StopReason::Broken, &mut actions),
            Input::Ended(instance) => drop(self.ended.insert(instance)),
            Input::Fenced { rank, done } => self.fenced(now, rank, done, &mut actions),
            Input::Opened { rank, done: true } => self.enter(rank, Phase::Opening, Phase::Opened),
            Input::Opened { rank, done: false } => {
                self.enter(rank, Phase::Opening, Phase::Failed);
                self.retry_at.insert(rank, now + self.timing.retry_ms);
            }
            Input::Drain => self.own.state = ServerState::Draining,
            Input::Closed { rank } => self.enter(rank, Phase::Closing, Phase::Closed),
        }
        if !self.stopped {
            self.advance(now, &mut actions);
        }
        actions
    }

    fn enter(&mut self, rank: Rank, from: Phase, to: Phase) {
        if let Some(phase) = self.ranks.get_mut(&rank).filter(|phase| **phase == from) {
            *phase = to;
        }
    }

    fn stop(&mut self, reason: StopReason, actions: &mut Vec<Action>) {
        self.stopped = true;
        actions.push(Action::Stop(reason));
    }

    fn looked(&mut self, now: u64, version: u64, map: ClusterMap, actions: &mut Vec<Action>) {
        if self.known.as_ref().is_some_and(|known| known.version > version) {
            return;
        }
        let own = map.server(self.own.instance).map(|server| server.heartbeat);
        if let Some(renewal) = self.attempts.iter().find(|attempt| Some(attempt.heartbeat) == own) {
            (self.joined, self.renewed) = (true, Some(renewal.began));
        }
        self.attempts.clear();
        if self.joined && own.is_none() {
            return self.stop(StopReason::Removed, actions);
        }
        self.learn(now, version, map, actions);
    }

    fn swapped(&mut self, now: u64, swapped: Swapped, actions: &mut Vec<Action>) {
        let Some((attempt, map)) = self.swapping.take() else { return };
        match swapped {
            Swapped::Done { version } => {
                (self.joined, self.renewed) = (true, Some(attempt.began));
                self.attempts.clear();
                if map.server(self.own.instance).is_none() {
                    self.left = true;
                    actions.push(Action::Leave);
                } else {
                    self.learn(now, version, map, actions);
                }
            }
            Swapped::Unknown => self.attempts.push(attempt),
        }
    }

    /// Takes over a version of the map.
    fn learn(&mut self, now: u64, version: u64, map: ClusterMap, actions: &mut Vec<Action>) {
        // While this server could not read the map, others may not have reached the store either.
        let unread = self.known.as_ref().map_or(0, |known| now - known.since);
        let unread = unread.saturating_sub(self.timing.heartbeat_ms);
        self.heard.values_mut().for_each(|heard| heard.since += unread);
        for server in &map.servers {
            let heard = LastHeartbeat { heartbeat: server.heartbeat, since: now };
            let before = self.heard.entry(server.instance).or_insert(heard);
            if before.heartbeat != server.heartbeat {
                *before = heard;
            }
        }
        self.note_followers(&map);
        self.heard.retain(|instance, _| map.server(*instance).is_some());
        self.ended.retain(|instance| map.server(*instance).is_some());
        for (rank, entry) in (0..).map(Rank).zip(&map.ranks) {
            if entry.holder.is_none() {
                self.free_since.entry(rank).or_insert(now);
            } else {
                self.free_since.remove(&rank);
            }
            match (entry.holder == Some(self.own.instance), self.ranks.get(&rank).copied()) {
                (true, None) => self.taken(rank, entry, actions),
                (true, Some(Phase::Opened)) if entry.serving => drop(self.ranks.insert(rank, Phase::Serving)),
                (false, Some(_)) => {
                    self.ranks.remove(&rank);
                    actions.push(Action::Unfollow { rank });
                }
                _ => {}
            }
        }
        self.known = Some(Known { version, map, since: now });
    }

    /// Remembers who followed the ranks that are free in the new map.
    fn note_followers(&mut self, map: &ClusterMap) {
        self.followers.retain(|rank, _| map.rank(*rank).is_some_and(|entry| entry.holder.is_none()));
        for (rank, _) in (0..).map(Rank).zip(&map.ranks).filter(|(_, entry)| entry.holder.is_none()) {
            if let Some(follower) = self.follower(rank) {
                self.followers.insert(rank, follower);
            }
        }
    }

    /// The standby that follows a rank, or has followed it until it was free.
    fn follower(&self, rank: Rank) -> Option<InstanceId> {
        let follows = |map: &ClusterMap| {
            let follows = |server: &&ServerEntry| map.followed_by(server.instance).any(|it| it == rank);
            map.servers.iter().find(follows).map(|server| server.instance)
        };
        self.followers
            .get(&rank)
            .copied()
            .or_else(|| self.known.as_ref().and_then(|known| follows(&known.map)))
    }

    /// Follows the ranks that are this server's to follow, and those that are free since.
    fn follow(&mut self, actions: &mut Vec<Action>) {
        let Some(Known { map, .. }) = &self.known else { return };
        let instance = self.own.instance;
        let drains = self.own.state == ServerState::Draining;
        let wanted: BTreeSet<_> = map.followed_by(instance).filter(|_| !drains).collect();
        self.follows.retain(|rank| {
            let entry = map.rank(*rank);
            if entry.is_some_and(|entry| entry.holder == Some(instance)) {
                // The driver uses it when it opens the rank.
                return false;
            }
            let is_free = !drains && entry.is_some_and(|entry| entry.holder.is_none());
            let stays = is_free || wanted.contains(rank);
            if !stays {
                actions.push(Action::Unfollow { rank: *rank });
            }
            stays
        });
        for rank in wanted {
            if self.follows.insert(rank) {
                actions.push(Action::Follow { rank });
            }
        }
    }

    /// The map names this server as the rank's holder.
    fn taken(&mut self, rank: Rank, entry: &RankEntry, actions: &mut Vec<Action>) {
        if entry.unfenced.is_empty() {
            self.ranks.insert(rank, Phase::Opening);
            actions.push(Action::Open { rank, incarnation: entry.incarnation });
        } else {
            self.ranks.insert(rank, Phase::Fencing);
            actions.push(Action::Fence { rank, clients: entry.unfenced.clone() });
        }
    }

    fn fenced(&mut self, now: u64, rank: Rank, done: bool, actions: &mut Vec<Action>) {
        if self.ranks.get(&rank) != Some(&Phase::Fencing) {
            return;
        }
        if !done {
            self.retry_at.insert(rank, now + self.timing.retry_ms);
            return;
        }
        let entry = self.known.as_ref().and_then(|known| known.map.rank(rank));
        let Some(incarnation) = entry.map(|entry| entry.incarnation) else { return };
        self.ranks.insert(rank, Phase::Opening);
        actions.push(Action::Open { rank, incarnation });
    }

    /// Requests what is due.
    fn advance(&mut self, now: u64, actions: &mut Vec<Action>) {
        self.fence_again(now, actions);
        self.follow(actions);
        if self.own.state == ServerState::Draining {
            for (rank, phase) in &mut self.ranks {
                if matches!(phase, Phase::Opened | Phase::Serving) {
                    *phase = Phase::Closing;
                    actions.push(Action::Close { rank: *rank });
                }
            }
        }
        if self.looking || self.swapping.is_some() {
            return;
        }
        let Some(Known { version, map, since }) = &self.known else {
            return self.look(now, actions);
        };
        let interval = match map.is_draining() {
            true => self.timing.look_draining_ms,
            false => self.timing.look_ms,
        };
        let (version, is_old) = (*version, now >= *since + interval);
        if !self.attempts.is_empty() || is_old {
            self.look(now, actions);
        } else if let Some(map) = self.next_map(now) {
            let attempt = Attempt { heartbeat: self.own.heartbeat, began: now };
            self.swapping = Some((attempt, map.clone()));
            actions.push(Action::Swap { version, map });
        }
    }

    fn look(&mut self, now: u64, actions: &mut Vec<Action>) {
        if now >= self.look_at {
            self.looking = true;
            actions.push(Action::Look);
        }
    }

    fn fence_again(&mut self, now: u64, actions: &mut Vec<Action>) {
        let Some(known) = &self.known else { return };
        let due = |(rank, at): (&Rank, &u64)| {
            (now >= *at && self.ranks.get(rank) == Some(&Phase::Fencing)).then_some(*rank)
        };
        let due: Vec<_> = self.retry_at.iter().filter_map(due).collect();
        for rank in due {
            self.retry_at.remove(&rank);
            let clients = known.map.rank(rank).map(|entry| entry.unfenced.clone()).unwrap_or_default();
            actions.push(Action::Fence { rank, clients });
        }
    }

    /// The next version of the map; `None`: nothing is due.
    fn next_map(&mut self, now: u64) -> Option<ClusterMap> {
        let mut map = self.known.as_ref()?.map.clone();
        let before = map.clone();
        let dead: Vec<_> = before.servers.iter().filter(|server| self.is_dead(now, server)).collect();
        dead.iter().for_each(|server| map.remove(server.instance));
        for (rank, phase) in &self.ranks {
            let Some(entry) = map.ranks.get_mut(usize::from(rank.0)) else { continue };
            match phase {
                Phase::Opened => (entry.serving, entry.unfenced) = (true, Vec::new()),
                Phase::Closed => (entry.holder, entry.serving) = (None, false),
                Phase::Failed => entry.holder = None,
                _ => {}
            }
        }
        self.claim(now, &mut map);
        let is_active = map.held_by(self.own.instance).next().is_some();
        let state = match (self.own.state, is_active) {
            (ServerState::Draining, _) => ServerState::Draining,
            (_, true) => ServerState::Active,
            (_, false) => ServerState::Standby,
        };
        self.own.state = state;
        let is_due = self.renewed.is_none_or(|since| now >= since + self.timing.heartbeat_ms);
        let has_changed = before.server(self.own.instance).is_none_or(|own| own.state != state);
        if map == before && !is_due && !has_changed {
            return None;
        }
        self.own.heartbeat += 1;
        map.servers.retain(|server| server.instance != self.own.instance);
        if state != ServerState::Draining || is_active {
            map.servers.push(self.own.clone());
            map.servers.sort_by_key(|server| server.number);
        }
        Some(map)
    }

    /// True if a server may be removed: it is silent, its process has ended, or this one was
    /// started in its place and listens at its address.
    fn is_dead(&self, now: u64, server: &ServerEntry) -> bool {
        if server.instance == self.own.instance {
            return false;
        }
        let is_silent = |heard: &LastHeartbeat| now >= heard.since + self.timing.takeover_ms;
        let is_earlier_start = server.number == self.own.number && server.address == self.own.address;
        is_earlier_start
            || self.ended.contains(&server.instance)
            || self.heard.get(&server.instance).is_some_and(is_silent)
    }

    /// Takes a free rank. Several servers may do so at once: one compare-and-swap succeeds.
    fn claim(&mut self, now: u64, map: &mut ClusterMap) {
        if self.own.state == ServerState::Draining || !self.joined {
            return;
        }
        let held = map.held_by(self.own.instance).count() as u64;
        let is_standby = |server: &ServerEntry| {
            server.instance != self.own.instance && server.state == ServerState::Standby
        };
        let has_others = map.servers.iter().any(is_standby);
        let may_take = |rank: Rank| {
            let since = self.free_since.get(&rank).copied().unwrap_or(now);
            let waits = self.retry_at.get(&rank).is_some_and(|at| now < *at);
            let follower = self.follower(rank);
            let is_followed = follower.is_some_and(|by| by != self.own.instance);
            // What was followed is worth more than an even share, unless a standby can take it.
            let is_own = follower == Some(self.own.instance) && !has_others;
            let spread = if is_own { 0 } else { held * self.timing.spread_ms };
            let left = spread + u64::from(is_followed) * self.timing.follower_ms;
            !waits && !self.ranks.contains_key(&rank) && now >= since + left
        };
        let numbered = (0..).map(Rank).zip(&mut map.ranks);
        let mut free = numbered.filter(|(rank, entry)| entry.holder.is_none() && may_take(*rank));
        if let Some((_, entry)) = free.next() {
            entry.holder = Some(self.own.instance);
            entry.incarnation += 1;
        }
    }
}
