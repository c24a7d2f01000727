//! Report of the balancer (policy, ranks and log) for `espalier balancer show` and `history`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use espalier_proto::{Errno, Ino, Rank};
use serde::{Deserialize, Serialize};

use super::{BalancerLogEntry, StoredPolicy};
use crate::machine::{Cx, Meta};
use crate::metrics::KnownLoad;
use crate::rank::{PeerAnswer, Question};
use crate::record::encode;
use crate::step::{Step, Stop, Wait};

/// Maximum size in bytes of an extended attribute's value, as on Linux.
const MAX_VALUE: usize = 65536;

/// The balancer of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerStatus {
    /// The version that it has.
    pub version: u64,
    /// Age of its last decision in ms; `None`: it has not decided yet with this version.
    pub decided_ms: Option<u64>,
    /// The result of the decision.
    pub last: String,
    pub is_failure: bool,
    /// Number of moves begun since the server's start.
    pub moves: u64,
}

/// The value of the root's attribute `user.espalier.balancer`, encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerReport {
    /// `None`: there has never been one.
    pub policy: Option<StoredPolicy>,
    /// All ranks; `None`: the rank is silent.
    pub ranks: Vec<(Rank, Option<BalancerStatus>)>,
    /// The latest last.
    pub log: Vec<BalancerLogEntry>,
}

impl Meta {
    pub(crate) fn answer_balancer_status(&self, now_ms: u64) -> PeerAnswer {
        PeerAnswer::BalancerStatus { status: self.balancer_status(now_ms) }
    }

    fn balancer_status(&self, now_ms: u64) -> BalancerStatus {
        let balancing = &self.balancing;
        let (decided_ms, last, is_failure) = match &balancing.last {
            Some((at, last, is_failure)) => (Some(now_ms.saturating_sub(*at)), last.clone(), *is_failure),
            None => (None, String::new(), false),
        };
        BalancerStatus { version: balancing.version(), decided_ms, last, is_failure, moves: balancing.moves }
    }

    /// The balancer as an extended attribute of the root.
    ///
    /// # Errors
    /// As [`Self::command_balancer`].
    pub(crate) fn show_balancer(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Step<Vec<u8>> {
        if ino != Ino::ROOT {
            return Err(Errno::ENODATA.into());
        }
        if !cx.caller.is_superuser() {
            return Err(Errno::EPERM.into());
        }
        let (mut ranks, mut waits) = (Vec::new(), false);
        for known in self.known_loads() {
            match self.status_of(cx, &known) {
                Ok(status) => ranks.push((known.rank, status)),
                // The other ranks answer meanwhile.
                Err(Stop::Wait(Wait::Peers)) => waits = true,
                Err(stop) => return Err(stop),
            }
        }
        if waits {
            return Err(Stop::Wait(Wait::Peers));
        }
        let policy = self.stored_policy()?;
        Ok(BalancerReport { policy, ranks, log: self.log()? }.encoded())
    }

    fn status_of(&mut self, cx: &mut Cx<'_>, known: &KnownLoad) -> Step<Option<BalancerStatus>> {
        if known.rank == self.config.rank {
            return Ok(Some(self.balancer_status(cx.uptime_ms)));
        }
        if known.is_silent() {
            return Ok(None);
        }
        match self.query_rank(cx, known.rank, Question::BalancerStatus)? {
            PeerAnswer::BalancerStatus { status } => Ok(Some(status)),
            _ => Err(Errno::EIO.into()),
        }
    }
}

impl BalancerReport {
    /// Encoded so that it fits in an extended attribute: the text goes first, which is long and
    /// readable otherwise, then old entries of the log, then ranks.
    fn encoded(mut self) -> Vec<u8> {
        if let Some(policy) = &mut self.policy {
            policy.text = if policy.is_on() { format!("{} bytes", policy.text.len()) } else { String::new() };
        }
        loop {
            let value = encode(&self);
            if value.len() <= MAX_VALUE {
                return value;
            }
            match self.log.len() {
                0 => drop(self.ranks.pop()),
                entries => drop(self.log.drain(..entries.div_ceil(8))),
            }
        }
    }
}
