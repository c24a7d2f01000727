//! What is fought over is not leased for a while: every lease on it would only be revoked again, and a change that must
//! wait for a revocation takes longer than several that ask.

use espalier_proto::Ino;

use crate::state::Map;

/// Inodes on which, or on whose names, leases have been revoked lately.
#[derive(Debug)]
pub(super) struct Contention {
    /// So many revocations within a second are a fight.
    bearable: u32,
    /// For how long nothing is leased then, and at most when it goes on and on, in milliseconds.
    first_ms: u64,
    longest_ms: u64,
    hot: Map<Ino, Heat>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heat {
    /// Revocations since that time.
    count: u32,
    since: u64,
    /// Nothing is leased until then, and for how long that is.
    until: u64,
    span: u64,
}

impl Contention {
    /// Further ones are not noticed.
    const MOST: usize = 4096;

    pub(super) fn of_names() -> Self {
        Self { bearable: 1, first_ms: 5_000, longest_ms: 60_000, hot: Map::default() }
    }

    pub(super) fn of_inodes() -> Self {
        Self { bearable: 3, first_ms: 1_000, longest_ms: 8_000, hot: Map::default() }
    }

    /// Nothing is leased there now.
    pub(super) fn is_hot(&self, ino: Ino, now: u64) -> bool {
        !self.hot.is_empty() && self.hot.get(&ino).is_some_and(|heat| now < heat.until)
    }

    /// A lease is revoked there.
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
        if heat.count >= self.bearable {
            let is_soon = heat.span > 0 && now < heat.until + heat.span;
            heat.span = if is_soon { (2 * heat.span).min(self.longest_ms) } else { self.first_ms };
            heat.until = now + heat.span;
            heat.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);

    #[test]
    fn names_of_a_directory_rest_after_one_revocation_and_longer_if_it_goes_on() {
        let mut names = Contention::of_names();
        assert!(!names.is_hot(INO, 1_000));
        names.note(INO, 1_000);
        assert!(names.is_hot(INO, 5_999) && !names.is_hot(INO, 6_000) && !names.is_hot(Ino(8), 1_000));
        names.note(INO, 2_000);
        assert!(!names.is_hot(INO, 6_000), "leases given before do not count");
        names.note(INO, 7_000);
        assert!(names.is_hot(INO, 16_999) && !names.is_hot(INO, 17_000));
        let mut now = 17_000;
        for _ in 0..10 {
            names.note(INO, now);
            now += 60_000;
        }
        assert!(!names.is_hot(INO, now), "a minute is the longest");
        names.note(INO, now + 100_000);
        assert!(!names.is_hot(INO, now + 105_000), "it begins anew after a while");
    }

    #[test]
    fn an_inode_rests_after_three_revocations_within_a_second() {
        let mut inodes = Contention::of_inodes();
        for now in [0, 900, 1_800, 2_700, 3_600] {
            inodes.note(INO, now);
            assert!(!inodes.is_hot(INO, now), "{now}");
        }
        inodes.note(INO, 3_700);
        inodes.note(INO, 3_800);
        assert!(inodes.is_hot(INO, 4_799) && !inodes.is_hot(INO, 4_800));
    }

    #[test]
    fn what_is_noticed_is_bounded() {
        let mut names = Contention::of_names();
        for ino in 0..2 * Contention::MOST as u64 {
            names.note(Ino(ino), 0);
        }
        assert_eq!(names.hot.len(), Contention::MOST);
        names.note(Ino(u64::MAX), 20_000);
        assert!(names.is_hot(Ino(u64::MAX), 20_001), "what has cooled down made room");
    }
}
