//! A cache of stored records, with read-ahead: a lookup fetches a run of adjacent records, among
//! them the small files and inodes that were made together.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::store::Pairs;

/// Memory of a record besides its key and value, in bytes.
const OVERHEAD: usize = 80;

/// Disjoint runs of records. All stored records of a run's range are in it.
pub(super) struct ReadCache {
    /// By first key of the range.
    runs: BTreeMap<Vec<u8>, Run>,
    /// First keys of the runs, by last use.
    used: BTreeMap<u64, Vec<u8>>,
    uses: u64,
    bytes: usize,
    limit: usize,
}

struct Run {
    end: Bound<Vec<u8>>,
    pairs: Pairs,
    bytes: usize,
    used: u64,
}

impl Run {
    fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            Bound::Included(last) => key <= last.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        }
    }
}

impl ReadCache {
    pub fn new(limit: usize) -> Self {
        Self { runs: BTreeMap::new(), used: BTreeMap::new(), uses: 0, bytes: 0, limit }
    }

    /// The value of a key, if it is known; `Some(None)`: the key is known to be absent.
    pub fn get(&mut self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let first = self.first_of(key)?;
        self.uses += 1;
        let run = self.runs.get_mut(&first)?;
        self.used.remove(&run.used);
        run.used = self.uses;
        self.used.insert(self.uses, first);
        let found = run.pairs.binary_search_by(|(found, _)| found.as_slice().cmp(key));
        Some(found.ok().and_then(|at| run.pairs.get(at)).map(|(_, value)| value.clone()))
    }

    /// Adds all stored records from `first` to `end`.
    pub fn insert(&mut self, first: Vec<u8>, end: Bound<Vec<u8>>, pairs: Pairs) {
        let bytes = pairs.iter().map(|(key, value)| key.len() + value.len() + OVERHEAD).sum::<usize>();
        let bytes = bytes + first.len() + OVERHEAD;
        if bytes > self.limit {
            return;
        }
        let run = Run { end, pairs, bytes, used: self.uses + 1 };
        let overlaps = |(first, _): &(&Vec<u8>, &Run)| run.contains(first);
        let after = self.runs.range(first.clone()..).take_while(overlaps);
        let overlapping: Vec<Vec<u8>> = after.map(|(first, _)| first.clone()).collect();
        overlapping.iter().for_each(|first| self.remove(first));
        self.invalidate(&first);
        self.uses += 1;
        self.bytes += bytes;
        self.used.insert(run.used, first.clone());
        self.runs.insert(first, run);
        while self.bytes > self.limit {
            let Some((_, oldest)) = self.used.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    /// Forgets the run that has a key in its range.
    pub fn invalidate(&mut self, key: &[u8]) {
        if let Some(first) = self.first_of(key) {
            self.remove(&first);
        }
    }

    fn remove(&mut self, first: &[u8]) {
        if let Some(run) = self.runs.remove(first) {
            self.used.remove(&run.used);
            self.bytes -= run.bytes;
        }
    }

    /// First key of the run whose range has a key.
    fn first_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut before = self.runs.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (first, run) = before.next_back()?;
        run.contains(key).then(|| first.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &mut ReadCache, from: u8, to: u8) {
        let pairs = (from..to).filter(|n| n % 2 == 0).map(|n| (vec![n], vec![n; 10])).collect();
        cache.insert(vec![from], Bound::Excluded(vec![to]), pairs);
    }

    #[test]
    fn a_run_knows_present_and_absent_keys() {
        let mut cache = ReadCache::new(10_000);
        run(&mut cache, 10, 20);
        assert_eq!(cache.get(&[12]), Some(Some(vec![12; 10])));
        assert_eq!(cache.get(&[13]), Some(None));
        assert_eq!((cache.get(&[9]), cache.get(&[20])), (None, None));
        cache.invalidate(&[19]);
        assert_eq!((cache.get(&[12]), cache.bytes), (None, 0));
        cache.insert(vec![30], Bound::Unbounded, Vec::new());
        assert_eq!(cache.get(&[255, 1]), Some(None));
        cache.insert(vec![40], Bound::Included(vec![50]), vec![(vec![50], vec![1])]);
        assert_eq!(
            (cache.get(&[50]), cache.get(&[50, 0]), cache.get(&[35])),
            (Some(Some(vec![1])), None, None)
        );
    }

    #[test]
    fn overlapping_runs_replace_each_other_within_the_limit() {
        let mut cache = ReadCache::new(10_000);
        for (from, to) in [(0, 10), (20, 30), (5, 25), (8, 9)] {
            run(&mut cache, from, to);
        }
        assert_eq!(cache.runs.len(), 1);
        let mut random = fastrand::Rng::with_seed(1);
        let mut cache = ReadCache::new(2_000);
        for _ in 0..10_000 {
            let from = random.u8(0..200);
            run(&mut cache, from, from + random.u8(1..30));
            let key = random.u8(..);
            if let Some(found) = cache.get(&[key]) {
                assert_eq!(found, (key.is_multiple_of(2)).then(|| vec![key; 10]));
            }
            assert!(cache.bytes <= 2_000 && cache.used.len() == cache.runs.len());
            assert_eq!(cache.bytes, cache.runs.values().map(|run| run.bytes).sum::<usize>());
        }
        assert!(cache.runs.len() > 1);
    }
}
