//! The cluster's balancing policy: one versioned object, an extended attribute of the root.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use espalier_proto::{Errno, Ino, Reply, Time};
use serde::{Deserialize, Serialize};

use super::log::{BalancerEvent, BalancerLogEntry};
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::rank::{PeerAnswer, Question};
use crate::record::{decode, encode};
use crate::step::{Step, Stop};

/// Names of the attributes that are stored: a [`StoredPolicy`], and the log.
pub(super) const POLICY: &[u8] = b"trusted.espalier.balancer";
pub(super) const LOG: &[u8] = b"trusted.espalier.balancer.log";

/// Longest name, person and reason, in bytes.
const MAX_NAME: usize = 100;
const MAX_REASON: usize = 400;
/// Longest text of a policy, in bytes: with the rest it fits in an extended attribute.
const MAX_POLICY: usize = 63_000;
/// Longest interval between decisions, in seconds.
const MAX_EVERY_S: u32 = 86_400;

/// Time in ms within which a fragment moves, unless its directory is removed or its rank restarts.
const MOVE_MS: u64 = 120_000;

/// A version of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPolicy {
    /// Larger by one than that of the policy before; the first is 1.
    pub version: u64,
    /// At most 100 bytes.
    pub name: String,
    /// A Lua program of at most 63,000 bytes. Empty: the balancer is off.
    pub text: String,
    /// Interval between the decisions of a rank in seconds, from 1 to 86,400.
    pub every_s: u32,
    /// The person who has set it, of at most 100 bytes, and the reason, of at most 400.
    pub who: String,
    pub why: String,
    /// Time of the change; the server sets it.
    pub time: Time,
}

impl StoredPolicy {
    pub fn is_on(&self) -> bool {
        !self.text.is_empty()
    }

    fn is_valid(&self) -> bool {
        self.name.len() <= MAX_NAME
            && self.text.len() <= MAX_POLICY
            && (1..=MAX_EVERY_S).contains(&self.every_s)
            && self.who.len() <= MAX_NAME
            && self.why.len() <= MAX_REASON
    }
}

/// A value of the root's attribute `user.espalier.balancer`, encoded: changes the balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BalancerCommand {
    /// Replaces the policy if that has the version before this one.
    Set(StoredPolicy),
    /// Moves the fragment back that was moved last.
    Undo { who: String },
}

impl Meta {
    /// The policy, at the root's rank. An attribute that cannot be decoded counts as none.
    pub(super) fn stored_policy(&self) -> Step<Option<StoredPolicy>> {
        self.stored(POLICY)
    }

    pub(super) fn stored<T: for<'a> Deserialize<'a>>(&self, name: &[u8]) -> Step<Option<T>> {
        let list = self.state.xattr_list(Ino::ROOT)?;
        let found = list.binary_search_by(|(n, _)| n.as_ref().cmp(name)).ok();
        Ok(found.and_then(|at| decode(&list[at].1).ok()))
    }

    /// Answers a rank that has the policy with version `known`.
    pub(crate) fn answer_balancer(&self, now: Time, known: u64) -> Step<PeerAnswer> {
        let stored = self.stored_policy()?;
        let version = stored.as_ref().map_or(0, |policy| policy.version);
        let recent = self.recent_moves(now)?;
        let policy = stored.filter(|policy| policy.version != known).map(Arc::new);
        Ok(PeerAnswer::Balancer { version, policy, recent })
    }

    /// Changes the balancer.
    ///
    /// # Errors
    /// - `ENODATA`: not the root.
    /// - `EPERM`: the caller is not the superuser.
    /// - `EOPNOTSUPP`: there is one rank.
    /// - `EINVAL`: not an encoded [`BalancerCommand`], or a text is too long.
    /// - `EBUSY`: the policy has another version, or what was moved has changed since.
    /// - `ENOENT`: there is no move to undo.
    pub(crate) fn command_balancer(&mut self, cx: &mut Cx<'_>, ino: Ino, value: &[u8]) -> Step<Final<'_>> {
        if ino != Ino::ROOT {
            return Err(Errno::ENODATA.into());
        }
        if !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        if self.config.ranks == 1 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        match decode(value).map_err(|_| Errno::EINVAL)? {
            BalancerCommand::Set(policy) => self.set_balancer(cx, policy),
            BalancerCommand::Undo { who } => self.undo_move(cx, who).map(|()| Final::of(Reply::Done)),
        }
    }

    fn set_balancer(&mut self, cx: &mut Cx<'_>, policy: StoredPolicy) -> Step<Final<'_>> {
        let before = self.stored_policy()?.map_or(0, |policy| policy.version);
        if policy.version != before.wrapping_add(1) {
            return Err(Errno::EBUSY.into());
        }
        if !policy.is_valid() {
            return Err(Errno::EINVAL.into());
        }
        let policy = StoredPolicy { time: cx.now, ..policy };
        let StoredPolicy { version, name, who, why, every_s, .. } = policy.clone();
        let action = if policy.is_on() { "is set" } else { "is off" };
        let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
        let warning = format!("balancer {name} {action}: version {version}, by {who}{reason}");
        let event = BalancerEvent::Set { is_on: policy.is_on(), every_s, who, why };
        let entry = BalancerLogEntry { time: cx.now, rank: self.config.rank, version, balancer: name, event };
        let log = log_event(&self.log_with([entry])?, cx.now, cx.now);
        let value = encode(&policy).into();
        let set = Event::SetXattr { ino: Ino::ROOT, name: POLICY.into(), value: Some(value), time: cx.now };
        self.commit(cx, &set, |meta, _| {
            meta.append_loaded(&log);
            meta.warnings.push(warning);
            meta.balancing.announced = None;
            Reply::Done
        })
    }

    /// Moves the fragment back that was moved last, has not been moved back, and is where it was
    /// moved to.
    fn undo_move(&mut self, cx: &mut Cx<'_>, who: String) -> Step<()> {
        if who.len() > MAX_NAME {
            return Err(Errno::EINVAL.into());
        }
        let mut log = self.log()?;
        for at in (0..log.len()).rev() {
            let BalancerLogEntry { version, rank: home, .. } = log[at];
            let may_be_moving = log[at].age_ms(cx.now) < MOVE_MS;
            let BalancerEvent::Moved { dir, first, to, scope, is_undone: false, .. } = log[at].event else {
                continue;
            };
            let fragment = match self.query_map(cx, dir) {
                Ok(map) => map.fragment(first),
                // The directory has been removed.
                Err(Stop::Fail(_)) => continue,
                Err(stop) => return Err(stop),
            };
            match fragment.rank() {
                rank if rank == home && may_be_moving => return Err(Errno::EBUSY.into()),
                rank if rank != to => continue,
                rank if rank == self.config.rank => self.answer_move(fragment, home, scope)?,
                rank => self.query_rank(cx, rank, Question::MoveFragment { fragment, to: home, scope })?,
            };
            let BalancerEvent::Moved { path, is_undone, .. } = &mut log[at].event else { continue };
            *is_undone = true;
            let event = BalancerEvent::Undone { dir, first, path: path.clone(), to: home, who };
            let balancer = log[at].balancer.clone();
            log.push(BalancerLogEntry { time: cx.now, rank: to, version, balancer, event });
            return self.write_log(cx, &log);
        }
        Err(Errno::ENOENT.into())
    }

    /// Replaces the log, which no client caches; the root's times stay.
    pub(super) fn write_log(&mut self, cx: &mut Cx<'_>, log: &[BalancerLogEntry]) -> Step<()> {
        self.writable()?;
        let event = log_event(log, cx.now, self.state.inode(Ino::ROOT)?.ctime);
        self.append(&event)?;
        cx.changed = Some(self.state.sequence);
        Ok(())
    }

    /// True if only the balancer may change an attribute.
    pub(crate) fn is_of_balancer(ino: Ino, name: &[u8]) -> bool {
        ino == Ino::ROOT && (name == POLICY || name == LOG)
    }
}

/// The event that stores the log; `time`: the root's `ctime`.
fn log_event(log: &[BalancerLogEntry], now: Time, time: Time) -> Event {
    let value = Some(super::log::encoded(log, now).into());
    Event::SetXattr { ino: Ino::ROOT, name: LOG.into(), value, time }
}
