//! Random numbers that are identical on every machine.

use std::hash::Hasher as _;

use rand::SeedableRng;

/// A random generator with a fixed algorithm: a seed gives the same numbers in every version.
pub type Random = rand_pcg::Pcg64;

/// The seed of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// A generator for one purpose of one node. Draws for one purpose do not affect others.
    pub fn random(self, purpose: &str, number: u64) -> Random {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(self.0, number);
        hasher.write(purpose.as_bytes());
        Random::seed_from_u64(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    #[test]
    fn random_numbers_are_stable() {
        let first = |seed: u64, number| Seed(seed).random("network", number).random::<u64>();
        assert_eq!(first(7, 3), 8_181_295_787_461_096_440);
        assert_ne!(first(7, 3), first(7, 4));
        assert_ne!(first(7, 3), first(8, 3));
    }
}
