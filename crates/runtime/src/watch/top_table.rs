//! Heavy hitters in bounded memory: the space-saving algorithm (Metwally, Agrawal and El Abbadi
//! 2005).

use std::collections::HashMap;
use std::hash::Hash;

/// Number of rows: a key with a larger share of all operations than 1 in this number has a row.
const ROWS: usize = 512;

#[derive(Debug)]
pub(crate) struct TopTable<K, L> {
    rows: HashMap<K, Row<L>>,
}

/// The counts of a key since it got its row.
#[derive(Clone, Debug)]
pub(crate) struct Row<L> {
    pub label: L,
    pub count: u64,
    pub errors: u64,
    pub nanos: u64,
    /// Upper bound of the count before that.
    missed: u64,
}

impl<K, L> Default for TopTable<K, L> {
    fn default() -> Self {
        Self { rows: HashMap::new() }
    }
}

impl<K: Hash + Eq + Copy, L> TopTable<K, L> {
    /// `label` is called when the key gets a row.
    pub(crate) fn add(&mut self, key: K, nanos: u64, failed: bool, label: impl FnOnce() -> L) {
        if !self.rows.contains_key(&key) {
            let missed = if self.rows.len() < ROWS { 0 } else { self.make_room() };
            self.rows.insert(key, Row { label: label(), count: 0, errors: 0, nanos: 0, missed });
        }
        if let Some(row) = self.rows.get_mut(&key) {
            row.count += 1;
            row.errors += u64::from(failed);
            row.nanos += nanos;
        }
    }

    /// Evicts the key with the lowest count; returns that count.
    fn make_room(&mut self) -> u64 {
        let least = self.rows.iter().min_by_key(|(_, row)| row.count + row.missed).map(|(key, _)| *key);
        least.and_then(|key| self.rows.remove(&key)).map_or(0, |row| row.count + row.missed)
    }

    /// All rows in no particular order.
    pub(crate) fn into_rows(self) -> impl Iterator<Item = (K, Row<L>)> {
        self.rows.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busiest_process_is_found_among_many() {
        let mut top_table = TopTable::default();
        for number in 0..100_000u64 {
            top_table.add(number + 10, 1, false, || ());
            if number % 100 == 0 {
                top_table.add(number % 3, 5, true, || ());
            }
        }
        let mut rows: Vec<_> = top_table.into_rows().collect();
        assert_eq!(rows.len(), ROWS);
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.count));
        let mut first: Vec<_> = rows[..3].iter().map(|(key, _)| *key).collect();
        first.sort();
        assert_eq!(first, [0, 1, 2]);
        assert!(rows[..3].iter().all(|(_, row)| row.errors == row.count && row.nanos == 5 * row.count));
    }
}
