//! Linearizability check: is there an order of the calls, each at an instant between call and
//! reply, that explains every reply? A call without a reply may take effect at any time after it
//! was made.
//!
//! The check runs along with the simulation. It keeps all possible trees, and applies pending calls
//! only as far as a reply requires it: independent calls are never ordered. Removals and copies of
//! trees, files without names, allocations and copies of data are not checked; a run must not apply
//! them to checked files.

mod acl;
mod action;
mod balancer;
mod bytes;
mod cached_views;
mod durable;
mod failover;
mod locks;
mod opens;
mod outcome;
mod perform;
mod permit;
mod policy;
mod privileges;
mod quota;
mod rules;
mod search;
mod splits;
mod spreading;
#[cfg(test)]
mod tests;
mod tree;
mod unanswered;
mod usage;
mod violation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use espalier_client::{Answer, Call};
use espalier_policy::{Creator, Policy};
use espalier_proto::{ClientId, Errno, Ino, Rank, Request};

use crate::Nanos;
use crate::storage::Left;
pub use acl::{ACCESS as ACCESS_LIST, DEFAULT as DEFAULT_LIST};
use action::Action;
pub use balancer::BalancerChecker;
use bytes::FileBytes;
use cached_views::CachedViews;
use durable::{Durability, Logged};
pub use failover::FailoverChecker;
pub use locks::LockChecker;
use opens::Opens;
pub use outcome::is_unknown;
use outcome::{Observed, is_refusal};
pub use permit::CallerCreds;
use policy::{Born, ServerDefaults, Vague};
pub use policy::{EFFECTIVE, LAYOUT, of_server};
pub use privileges::CAPABILITY;
use quota::Quotas;
pub use quota::{ALL as QUOTAS, LATE as QUOTAS_LATE};
pub use rules::Rules;
use search::{PartId, PendingAction, Search, World};
pub use splits::SplitChecker;
use tree::{Base, Tree};
pub use unanswered::Fate;
use unanswered::reports_number;
pub use usage::ALL as USAGES;
pub use violation::{Violation, shortened};

/// Number of ended calls in the report of a violation.
const REMEMBERED: usize = 2000;
/// Number of possible trees above which details are dropped.
const MANY_WORLDS: usize = 50;
/// Number of possible trees above which the check gives up.
const MOST_WORLDS: usize = 300;

/// Maximum number of histories per possible tree, for losses of power.
const MOST_WAYS: usize = 3;

/// A pending call.
struct OpenCall {
    number: u64,
    since: Nanos,
    text: String,
    /// The listing starts at the beginning.
    is_whole: bool,
    /// File of an `fsync`.
    synced: Option<Ino>,
    /// Ranks of the inodes that the call names.
    ranks: Vec<Rank>,
    /// The client replies before the server has executed the call (write-back).
    is_writeback: bool,
    parts: Vec<PartId>,
}

/// An ended call, for reports.
struct Past {
    client: ClientId,
    number: u64,
    from: Nanos,
    to: Option<Nanos>,
    call: String,
    answer: String,
    actions: Vec<Action>,
}

/// Checks the calls of a run. See the module description.
pub struct Checker {
    /// Strip size in bytes.
    strip: u64,
    /// Files may have no metafile.
    no_metafile: bool,
    /// The policies of directories change during the run.
    splits: bool,
    live: bool,
    /// Files may have set-id bits and capabilities.
    privileges: bool,
    /// Files that clients make while attributes inherited from the directory change.
    vague: Option<Vague>,
    base: Base,
    worlds: BTreeSet<World>,
    /// Actions that have been requested and may be executed at any time.
    pending: BTreeMap<PartId, PendingAction>,
    open_calls: BTreeMap<(ClientId, u64), OpenCall>,
    /// Calls whose callers do not get the result.
    unanswered_parts: BTreeMap<(ClientId, u64), Vec<PartId>>,
    /// Write-back calls that were answered, until their clients have received the server's reply.
    written_back: BTreeMap<(ClientId, u64), Vec<PartId>>,
    next: u64,
    bytes: FileBytes,
    opens: Opens,
    quotas: Quotas,
    cached_views: Option<CachedViews>,
    past: VecDeque<Past>,
    durability: Option<Durability>,
    /// Time until which clients may have entries cached from before a loss of power.
    distrusted_until: Nanos,
    /// Last start of each rank.
    began: BTreeMap<Rank, Nanos>,
    /// Clients whose session with a rank has ended.
    strangers: BTreeSet<(ClientId, Rank)>,
    given_up: bool,
    /// After a loss of power, some possible trees were dropped.
    is_unsure: bool,
    checked: u64,
}

impl Checker {
    /// Begins with an empty tree.
    pub fn new(rules: Rules) -> Self {
        let Rules { scattered, live, several_ranks, server, .. } = &rules;
        let (scattered, live, several_ranks) = (*scattered, *live, *several_ranks);
        let policy = server.or(&Policy::DEFAULT);
        let no_metafile = scattered && policy.no_metafile() == Some(true);
        let unstuffed = no_metafile || (scattered && policy.stuffing() == Some(false));
        let base = tree::empty(ServerDefaults::new(server, scattered));
        Self {
            strip: u64::from(rules.strip_bytes.max(1)),
            no_metafile: no_metafile || (live && scattered),
            live,
            privileges: rules.privileges,
            vague: scattered.then(Vague::default),
            durability: rules.durable.map(|within| Durability::new(within, base.clone())),
            base,
            worlds: [World::default()].into(),
            pending: BTreeMap::new(),
            open_calls: BTreeMap::new(),
            unanswered_parts: BTreeMap::new(),
            written_back: BTreeMap::new(),
            next: 1,
            bytes: FileBytes::new(scattered, unstuffed && !live),
            opens: Opens::new(live || server.create() == Some(Creator::Client)),
            splits: rules.splits,
            quotas: Quotas::new(several_ranks, rules.splits),
            cached_views: rules.cached_views.map(CachedViews::new),
            past: VecDeque::new(),
            distrusted_until: Nanos::ZERO,
            began: BTreeMap::new(),
            strangers: BTreeSet::new(),
            given_up: false,
            is_unsure: false,
            checked: 0,
        }
    }

    /// True if the check has given up, since there are too many explanations. All replies until
    /// then were right.
    pub fn has_given_up(&self) -> bool {
        self.given_up
    }

    /// Number of explained replies.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// A client makes a call. `call_id` is unique among the client's pending calls.
    pub fn invoked(
        &mut self,
        now: Nanos,
        client: ClientId,
        call_id: u64,
        creds: CallerCreds,
        call: &Call<'_>,
    ) {
        if self.given_up {
            return;
        }
        self.opens.begin(call);
        let mut actions = Action::all(call, self.strip, &mut self.bytes.extents);
        if self.no_metafile {
            self.note_spreading(&mut actions);
        }
        actions.iter().filter_map(Action::bytes_of).for_each(|ino| self.bear(ino));
        self.bytes.begin(&actions, self.pending.values().map(|part| &part.action));
        self.forget_lost();
        // Coordinator of a call that spans several ranks.
        let rank = match call {
            Call::Request(request) => request.rank(),
            call => call.stream().unwrap_or(Ino::ROOT).rank(),
        };
        let number = self.next;
        self.next += 1;
        self.quotas.begin(number, &actions);
        if self.privileges {
            actions.extend(privileges::removals(call));
        }
        let mut parts = Vec::new();
        actions.retain(|action| !self.bytes.is_of_lost(action));
        for (at, action) in actions.into_iter().enumerate() {
            let id = PartId(number, at as u32);
            self.begin_vague(number, &action);
            if let (Some(durability), false) = (&mut self.durability, action.is_read()) {
                let (action, creds) = (action.clone(), creds.clone());
                durability.calls.insert(id, Logged { action, creds, rank, since: now, until: None });
            }
            let (is_answered, is_blurred, may_be_lost) = (true, false, false);
            let creds = creds.clone();
            let part =
                PendingAction { action, creds, is_answered, is_blurred, may_be_lost, since: now, over: None };
            self.pending.insert(id, part);
            parts.push(id);
        }
        let is_whole = matches!(call, Call::Request(Request::ReadDir { after: 0, .. }));
        let mut ranks = vec![rank];

        match call {
            Call::Request(Request::Rename { to_dir, .. }) => ranks.push(to_dir.rank()),
            Call::Request(Request::Link { ino, .. }) => ranks.push(ino.rank()),
            _ => {}
        }
        let synced = match call {
            Call::Request(Request::Fsync { ino }) => Some(*ino),
            _ => None,
        };
        let (since, text, is_writeback) = (now, violation::shortened(call), false);
        let open_call = OpenCall { number, since, text, is_whole, synced, ranks, is_writeback, parts };
        self.open_calls.insert((client, call_id), open_call);
    }

    /// Begins an action whose effects the weaker check must relate to those under way.
    fn begin_vague(&mut self, number: u64, action: &Action) {
        let Some(vague) = &mut self.vague else { return };
        let others = self.pending.iter().filter(|(_, part)| part.over.is_none());
        let others = others.map(|(id, part)| (id.0, &part.action));
        let under_way: Vec<(u64, &Action)> = others.chain([(number, action)]).collect();
        let tree = |world: &World| Tree { base: &self.base, changes: world.changes.clone() };
        let is_by_client = |dir| self.worlds.iter().any(|world| tree(world).is_by_client(dir));
        self.given_up |= !vague.begin(action, &under_way, is_by_client);
    }

    /// A call is answered.
    ///
    /// # Errors
    /// No order of the calls explains the reply together with all earlier ones.
    pub fn answered(
        &mut self,
        now: Nanos,
        client: ClientId,
        call_id: u64,
        result: &Result<Answer, Errno>,
    ) -> Result<(), Box<Violation>> {
        let Some(open_call) = self.open_calls.remove(&(client, call_id)) else { return Ok(()) };
        let part = |id: &PartId| self.pending.get(id).map(|part| (*id, part.action.clone()));
        let parts: Vec<(PartId, Action)> = open_call.parts.iter().filter_map(part).collect();
        let is_over = !matches!(result, Err(errno) if is_unknown(*errno));
        self.opens.end(parts.iter().map(|(_, action)| action), result);
        if let (Some(ino), Ok(_)) = (open_call.synced, result) {
            self.bytes.synced(ino, open_call.since, self.pending.values().map(|part| &part.action));
        }
        if let Some(durability) = &mut self.durability {
            if let (Some(ino), Ok(_)) = (open_call.synced, result) {
                durability.synced(ino.rank(), open_call.since);
            }
            match self.written_back.get_mut(&(client, call_id)) {
                Some(parts) => parts.clone_from(&open_call.parts),
                None if is_over => durability.answered(&open_call.parts, now),
                None => {}
            }
        }
        if is_over {
            self.check_quotas(now, client, &open_call, &parts, result)?;
            self.explain(now, client, &open_call, &parts, result)?;
            let observed = match result {
                Ok(Answer::Created(entry, _)) => Some(entry.attr.ino),
                _ => None,
            };
            observed.into_iter().for_each(|ino| self.bear(ino));
            for (_, action) in &parts {
                let others = self.pending.values().map(|part| &part.action);
                self.bytes.end(now, open_call.since, action, observed, others);
            }
        } else {
            self.give_up((client, call_id), &open_call.parts);
        }
        self.forget_lost();
        let actions = parts.into_iter().map(|(_, action)| action).collect();
        let answer = violation::shortened(result);
        self.remember(client, open_call, is_over.then_some(now), answer, actions);
        Ok(())
    }

    /// The next reply to the call precedes its execution by the server (write-back).
    pub fn acknowledged_writeback(&mut self, client: ClientId, call_id: u64) {
        self.open_calls
            .get_mut(&(client, call_id))
            .into_iter()
            .for_each(|open_call| open_call.is_writeback = true);
        self.written_back.insert((client, call_id), Vec::new());
    }

    /// The server has replied to a write-back call. If its disk fails, it may or may not have
    /// executed the call.
    pub fn carried_out(&mut self, now: Nanos, client: ClientId, call_id: u64, fails: bool) {
        let parts = self.written_back.get(&(client, call_id));
        self.given_up |= fails && parts.is_some();
        if let (Some(durability), Some(parts)) = (&mut self.durability, parts) {
            durability.answered(parts, now);
        }
    }

    /// The client has received the reply, so it does not resend the request.
    pub fn heard(&mut self, client: ClientId, call_id: u64) {
        self.written_back.remove(&(client, call_id));
    }

    /// A client has crashed. Its requests may still be executed.
    pub fn lost(&mut self, client: ClientId) {
        self.written_back.retain(|(of, _), _| *of != client);
        let calls: Vec<_> =
            self.open_calls.range((client, 0)..=(client, u64::MAX)).map(|(key, _)| *key).collect();
        for key in calls {
            let Some(open_call) = self.open_calls.remove(&key) else { continue };
            self.give_up(key, &open_call.parts);
            let actions = open_call.parts.iter().filter_map(|id| self.pending.get(id));
            let actions = actions.map(|part| part.action.clone()).collect();
            self.remember(client, open_call, None, "never answered".into(), actions);
        }
    }

    /// A client has crashed with pending write-back operations. It is unknown which of them are
    /// lost.
    pub fn forgotten(&mut self) {
        self.given_up = true;
    }

    /// A metadata server has lost power; `left` is left of its journal. See also
    /// [`Self::distrust`].
    ///
    /// # Errors
    /// No set of lost changes is consistent with the earlier replies.
    pub fn lost_power(&mut self, now: Nanos, rank: Rank, left: Left) -> Result<(), Box<Violation>> {
        // The server executes resent write-back operations at an unknown time, possibly for the
        // second time.
        self.given_up |= !self.written_back.is_empty();
        if self.given_up {
            return Ok(());
        }
        self.data_lost_power();
        let Some(durability) = self.durability.as_mut() else { return Ok(()) };
        for (id, part) in &mut self.pending {
            // The policies of directories may revert.
            part.action.spread(|_| self.no_metafile);
            part.over.iter_mut().for_each(|over| over.is_done = false);
            part.may_be_lost |=
                durability.uses_writeback() && durability.calls.get(id).is_some_and(|it| it.rank == rank);
        }
        self.is_unsure |= durability.is_blurred;
        match durability.lose_power(rank, (now, left), &self.bytes, (&self.base, &self.worlds), self.strip) {
            None => self.given_up = true,
            Some((_, worlds)) if worlds.is_empty() && self.is_unsure => self.given_up = true,
            Some((_, worlds)) if worlds.is_empty() => {
                let changes = durability.observed(&self.worlds, rank, (now, left));
                return Err(Box::new(Violation::of_power(now, rank, changes)));
            }
            Some((base, worlds)) => (self.base, self.worlds) = (base, worlds),
        }
        Ok(())
    }

    /// Reads before `until` may return cached data from before a loss of power.
    pub fn distrust(&mut self, until: Nanos) {
        self.distrusted_until = until;
    }

    /// A data server has lost power.
    pub fn data_lost_power(&mut self) {
        self.bytes.lose_power(self.pending.values().map(|part| &part.action));
        self.forget_lost();
    }

    /// An operation on the data of a big file may have been executed twice, so its contents are
    /// unknown.
    pub fn done_twice(&mut self, ino: Ino) {
        self.bytes.lose_big(ino);
        self.forget_lost();
    }

    /// A rank has started. After a restart it repeats replies with current attributes.
    pub fn began(&mut self, now: Nanos, rank: Rank) {
        self.began.insert(rank, now);
        self.quotas.began();
    }

    /// A rank has ended a client's session: inodes that the client knows by number may be gone.
    pub fn session_lost(&mut self, client: ClientId, rank: Rank) {
        self.strangers.insert((client, rank));
    }

    /// Removes the contents of files that are not checked from the worlds.
    fn forget_lost(&mut self) {
        for ino in self.bytes.take_newly_lost() {
            let worlds = std::mem::take(&mut self.worlds).into_iter();
            let forgetting = |world: World| world.forgetting(&self.base, ino, &self.pending);
            self.worlds = worlds.map(forgetting).collect();
            self.pending.retain(|_, part| !self.bytes.is_of_lost(&part.action));
            if let Some(durability) = &mut self.durability {
                durability.forget(ino);
            }
        }
    }

    /// Checks that no quota is exceeded, and that refusals are justified.
    fn check_quotas(
        &mut self,
        now: Nanos,
        client: ClientId,
        open_call: &OpenCall,
        parts: &[(PartId, Action)],
        result: &Result<Answer, Errno>,
    ) -> Result<(), Box<Violation>> {
        let is_refused = matches!(result, Err(Errno::EDQUOT));
        let may_be_lost = |id: &PartId| self.pending.get(id).is_some_and(|part| part.may_be_lost);
        let is_before = |world: &&World| parts.iter().all(|(id, _)| !world.is_done(*id));
        let trees = self.worlds.iter().filter(is_before).map(|world| self.tree(world));
        let call = (open_call.number, open_call.since);
        let is_right = self.given_up
            || (result.is_err() && !is_refused)
            || parts.iter().any(|(id, _)| may_be_lost(id))
            || self.quotas.allow(call, is_refused, self.strip, &self.bytes, trees);
        let oldest = self.open_calls.values().map(|open_call| open_call.since).min().unwrap_or(now);
        let observed = result.as_ref().map(drop).map_err(|errno| *errno);
        self.quotas.end(open_call.number, now, observed, oldest);
        if is_right {
            return Ok(());
        }
        if self.is_unsure {
            self.given_up = true;
            return Ok(());
        }
        let observed =
            if is_refused { "No quota would have been exceeded" } else { "A quota would have been exceeded" };
        let action = parts.first().map_or(Action::Attr { ino: Ino::ROOT }, |(_, action)| action.clone());
        Err(Box::new(self.violation(now, client, open_call, &action, result, [observed.into()].into())))
    }

    fn explain(
        &mut self,
        now: Nanos,
        client: ClientId,
        open_call: &OpenCall,
        parts: &[(PartId, Action)],
        result: &Result<Answer, Errno>,
    ) -> Result<(), Box<Violation>> {
        // Names of a partitioned directory may be at any rank.
        let ranks: Vec<Rank> = match self.splits {
            true => self.began.keys().copied().chain(self.strangers.iter().map(|(_, rank)| *rank)).collect(),
            false => open_call.ranks.clone(),
        };
        let is_stranger = |rank: &Rank| self.strangers.contains(&(client, *rank));
        let is_stale = matches!(result, Err(Errno::ESTALE | Errno::ENOENT)) && ranks.iter().any(is_stranger);
        let has_begun = |rank: &Rank| self.began.get(rank).is_some_and(|at| *at > open_call.since);
        let is_late = ranks.iter().any(has_begun);
        let mut read = 0;
        for (id, action) in parts {
            // Strips are changed one after the other. The explanation of an earlier strip may have
            // dropped further files.
            let loose = self.bytes.loose(open_call.since, self.pending.values().map(|part| &part.action));
            let skip = match action {
                Action::Read { from, to, .. } => {
                    read += to - from;
                    read - (to - from)
                }
                Action::List { .. } => usize::from(!open_call.is_whole),
                _ => 0,
            };
            let is_late = is_late && !action.is_read();
            let scattered = self.bytes.scattered;
            let mut others = self.pending.values().map(|part| &part.action);
            let may_be_open =
                matches!(action, Action::Find { ino } if self.opens.may_have(*ino, &mut others));
            let splits = self.splits;
            let observed =
                Observed { splits, action, result, skip, loose: &loose, is_late, scattered, may_be_open };
            let may_be_old = action.is_read() && open_call.since < self.distrusted_until;
            let under_way = self.pending.values().map(|part| &part.action);
            let is_unchecked =
                self.bytes.is_unchecked(action, open_call.since, &loose, under_way) || self.is_vague(action);
            // A reply at the time of the call comes from the client's cache.
            let is_believed = open_call.since == now
                && self
                    .cached_views
                    .as_ref()
                    .is_some_and(|cached_views| cached_views.explains(now, client, action, result));
            let is_lost = self.bytes.is_of_lost(action);
            if result.is_ok() && !self.knows(&action.changed_inodes()) {
                self.given_up = true;
                return Ok(());
            }
            if may_be_old && !self.given_up && reports_number(result, |ino| !self.is_known(ino)) {
                self.learn(*id, &observed);
            }
            if self.given_up || may_be_old || is_unchecked || is_believed || is_lost {
                self.pending.remove(id);
                continue;
            }
            let logged = self.durability.as_ref().map(|durability| &durability.calls);
            let mut search = Search::new(&self.base, &self.pending, logged, self.strip, *id, &observed);
            let mut found: BTreeSet<World> =
                self.worlds.iter().flat_map(|world| search.explained(world)).collect();
            // Handles last longer than sessions.
            let is_stale = is_stale && !matches!(action, Action::Find { .. });
            let is_removal = matches!(action, Action::RemovePrivileges { .. });
            let is_refused = |errno| is_refusal(errno) || is_removal && errno == Errno::EACCES;
            if is_stale || matches!(result, Err(errno) if is_refused(*errno)) {
                found.extend(self.worlds.iter().filter(|world| !world.is_done(*id)).cloned());
            }
            let part = self.pending.get(id);
            let is_blurred =
                (action.only_reports() || result.is_err()) && part.is_some_and(|part| part.is_blurred);
            if is_blurred || part.is_some_and(|part| part.may_be_lost) {
                found.extend(self.worlds.iter().filter(|world| !world.is_done(*id)).cloned());
            }
            let (is_bounded, possible) = (search.is_bounded(), std::mem::take(&mut search.possible));
            if !search.is_exact {
                self.pending.values_mut().for_each(|part| part.is_blurred = true);
            }
            found = self.narrowed(found);
            if !is_bounded || found.len() > MOST_WORLDS {
                self.given_up = true;
                return Ok(());
            }
            // The client may not know yet that its directory is lost.
            let is_distrusted = open_call.is_writeback && now < self.distrusted_until;
            if found.is_empty() && (self.is_unsure || is_distrusted) {
                self.given_up = true;
                return Ok(());
            }
            if found.is_empty() {
                return Err(Box::new(self.violation(now, client, open_call, action, result, possible)));
            }
            self.pending.remove(id);
            self.worlds = found.into_iter().map(|world| world.without(*id)).collect();
            self.fold_into_base(now);
        }
        if let Some(cached_views) = &mut self.cached_views {
            parts.iter().for_each(|(_, action)| cached_views.learn(now, client, action, result));
        }
        self.checked += 1;
        Ok(())
    }

    /// Records that a file may be unstuffed since its creation.
    fn bear(&mut self, ino: Ino) {
        let may_be_born =
            |inode: Option<&tree::ModelInode>| inode.is_none_or(|inode| inode.born != Born::Stuffed);
        let may_be = |world: &World| {
            let tree = self.tree(world);
            let node = tree.numbered(ino);
            node.is_none_or(|node| may_be_born(tree.inode(node)) || self.makes_vague(node))
        };
        if self.live && self.bytes.scattered && self.worlds.iter().any(may_be) {
            self.bytes.bear(ino);
        }
    }

    fn makes_vague(&self, node: tree::ModelNode) -> bool {
        self.vague.as_ref().is_some_and(|vague| vague.is(node))
    }

    /// True if the action reports the policy of a file for which it is unknown.
    fn is_vague(&self, action: &Action) -> bool {
        let Action::GetXattr { ino, name, .. } = action else { return false };
        let numbered = |world: &World| self.tree(world).numbered(*ino);
        policy::is_known(name) && self.worlds.iter().filter_map(numbered).any(|node| self.makes_vague(node))
    }

    fn tree<'a>(&'a self, world: &World) -> Tree<'a> {
        Tree { base: &self.base, changes: world.changes.clone() }
    }

    /// Drops details if there are too many worlds.
    fn narrowed(&mut self, mut worlds: BTreeSet<World>) -> BTreeSet<World> {
        if worlds.len() > MANY_WORLDS {
            worlds = search::blurred(worlds);
            self.durability.iter_mut().for_each(|durability| durability.is_blurred = true);
        }
        while worlds.len() > MANY_WORLDS
            && let Some(ino) = search::most_uncertain(&worlds)
        {
            self.bytes.lose(ino);
            let forgetting = |world: World| world.forgetting(&self.base, ino, &self.pending);
            worlds = worlds.into_iter().map(forgetting).collect();
        }
        worlds
    }

    /// The calls' requests may have been executed or may still be; the callers get no result.
    fn give_up(&mut self, call: (ClientId, u64), parts: &[PartId]) {
        self.unanswered_parts.insert(call, parts.to_vec());
        for id in parts {
            self.pending.get(id).into_iter().for_each(|part| self.opens.give_up(&part.action));
            match self.pending.get_mut(id) {
                Some(part) if !part.action.is_read() => part.is_answered = false,
                _ => drop(self.pending.remove(id)),
            }
        }
        let worlds = std::mem::take(&mut self.worlds);
        self.worlds = worlds.into_iter().map(|world| world.unanswered(parts)).collect();
    }

    /// Moves the state that is equal in all worlds to the base.
    fn fold_into_base(&mut self, now: Nanos) {
        let mut worlds: Vec<World> = std::mem::take(&mut self.worlds).into_iter().collect();
        let is_past = |(id, part): &(&PartId, &PendingAction)| {
            part.over.is_some() && worlds.iter().all(|world| world.is_done(**id))
        };
        let past: Vec<PartId> = self.pending.iter().filter(is_past).map(|(id, _)| *id).collect();
        for id in past {
            self.pending.remove(&id);
            worlds.iter_mut().for_each(|world| world.forget(id));
        }
        if let Some(durability) = &mut self.durability {
            durability.fold_into_base(&self.base, &mut worlds, self.strip, now);
        }
        tree::fold_into_base(&mut self.base, worlds.iter_mut().map(|world| &mut world.changes));
        let worlds: BTreeSet<World> = worlds.into_iter().collect();
        let mut retained: Vec<World> = Vec::new();
        for world in worlds {
            if retained.iter().rev().take_while(|other| other.is_as(&world)).count() < MOST_WAYS {
                retained.push(world);
            } else if let Some(durability) = &mut self.durability {
                durability.is_blurred = true;
            }
        }
        self.worlds = retained.into_iter().collect();
    }

    fn remember(
        &mut self,
        client: ClientId,
        open_call: OpenCall,
        to: Option<Nanos>,
        answer: String,
        actions: Vec<Action>,
    ) {
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
        }
        let OpenCall { number, since: from, text: call, .. } = open_call;
        self.past.push_back(Past { client, number, from, to, call, answer, actions });
    }
}
