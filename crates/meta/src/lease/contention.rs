//! Contention control: suspends leases on contended inodes and names. Each lease on them would be
//! revoked again at once, and a change that waits for a revocation takes longer than several
//! requests without a lease.

use espalier_proto::Ino;

use crate::state::FxMap;

/// Inodes on which, or on whose names, leases were revoked recently.
#[derive(Debug, Default)]
pub(super) struct Contention {
    hot: FxMap<Ino, Heat>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heat {
    /// Revocations since `since` (milliseconds of uptime).
    count: u32,
    since: u64,
    /// End of the suspension (milliseconds of uptime), and its length in milliseconds.
    until: u64,
    span: u64,
}

impl Contention {
    /// Changes within a second that had to revoke leases before leases are suspended. The number of
    /// holders does not count: a directory that many clients cache and one changes now and then is
    /// cached again at once.
    const FIGHT: u32 = 4;
    /// Length of the first suspension and upper bound of repeated ones, in milliseconds.
    const FIRST_MS: u64 = 1_000;
    const LONGEST_MS: u64 = 8_000;
    /// Bound on the tracked inodes; contention on further ones goes unnoticed.
    const MOST: usize = 4096;

    /// True while leases are suspended on `ino`.
    pub(super) fn is_hot(&self, ino: Ino, now: u64) -> bool {
        !self.hot.is_empty() && self.hot.get(&ino).is_some_and(|heat| now < heat.until)
    }

    /// Records that one change has revoked leases.
    pub(super) fn note(&mut self, ino: Ino, now: u64) {
        if self.hot.len() >= Self::MOST && !self.hot.contains_key(&ino) {
            self.hot.retain(|_, heat| now < heat.until + heat.span || now < heat.since + 1_000);
            if self.hot.len() >= Self::MOST {
                return;
            }
        }
        let heat = self.hot.entry(ino).or_insert(Heat { since: now, ..Heat::default() });
        if now < heat.until {
            return;
        }
        if now >= heat.since + 1_000 {
            (heat.count, heat.since) = (0, now);
        }
        heat.count += 1;
        if heat.count >= Self::FIGHT {
            let is_soon = heat.span > 0 && now < heat.until + heat.span;
            heat.span = if is_soon { (2 * heat.span).min(Self::LONGEST_MS) } else { Self::FIRST_MS };
            heat.until = now + heat.span;
            heat.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    /// Asserts that four changes at `now` suspend leases for `span` milliseconds.
    fn rests(fights: &mut Contention, now: u64, span: u64) {
        for change in 0..4 {
            assert!(!fights.is_hot(INO, now), "{now}");
            fights.note(INO, now + change);
        }
        assert!(fights.is_hot(INO, now + 3) && fights.is_hot(INO, now + span + 2), "{now}");
        assert!(!fights.is_hot(INO, now + span + 3) && !fights.is_hot(Ino(8), now), "{now}");
    }

    #[test]
    fn rare_change_keeps_leases() {
        let mut fights = Contention::default();
        for now in (0..10_000).step_by(334) {
            fights.note(INO, now);
            assert!(!fights.is_hot(INO, now), "{now}");
        }
    }

    #[test]
    fn contention_suspends_leases_for_growing_time() {
        let mut fights = Contention::default();
        let mut now = 1_000;
        for span in [1_000, 2_000, 4_000, 8_000, 8_000] {
            rests(&mut fights, now, span);
            fights.note(INO, now + span - 1);
            now += span + 3;
        }
        rests(&mut fights, now + 20_000, 1_000);
    }

    #[test]
    fn contention_table_is_bounded() {
        let mut fights = Contention::default();
        for ino in 0..2 * Contention::MOST as u64 {
            fights.note(Ino(ino), 0);
        }
        assert_eq!(fights.hot.len(), Contention::MOST);
        rests(&mut fights, 20_000, 1_000);
    }
}
