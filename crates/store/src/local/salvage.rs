//! Copies the readable blocks of damaged tables to new tables. Each block has its own checksum.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lsm_tree::{Cache, Checksum, SeqNo, Table};

use super::check;
use super::tables::{Tables, guarded};
use crate::StoreError;
use crate::error::Context;

/// Upper bound on the blocks of a table; stops an iterator that fails without advancing.
const MOST_BLOCKS: u64 = 1 << 20;
const CACHE_BYTES: u64 = 1 << 20;

/// Result of salvaging damaged tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Number of record versions read.
    pub read: u64,
    /// Number of unreadable blocks, a few KiB each.
    pub lost_blocks: u64,
    /// Paths of tables that could not be read at all.
    pub lost_tables: Vec<String>,
    /// The list of tables was unreadable, so tables that a compaction had replaced may have been
    /// read too.
    pub unlisted: bool,
}

/// Makes new tables in `into`, which must not exist, from the damaged ones in `from`, which stay
/// unchanged. Holds all records in memory.
pub(super) fn salvage(from: &Path, into: &Path) -> Result<Salvage, StoreError> {
    let mut found = Salvage::default();
    let listed = Tables::open(from.into(), true, CACHE_BYTES).and_then(|tables| tables.ids()).ok();
    found.unlisted = listed.is_none();
    std::fs::create_dir(into).context("create", into)?;
    Tables::create(into)?;
    let new = Tables::open(into.into(), false, CACHE_BYTES)?;
    let place = from.join(check::TABLES);
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir(&place).into_iter().flatten() {
        let name = entry.context("read", &place)?.file_name();
        ids.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    if let Some(listed) = listed {
        ids = listed;
    }
    let mut last = 0;
    for id in ids {
        let path = place.join(id.to_string());
        let whole = File::open(&path).and_then(|file| check::directory_is_whole(&file));
        let table = match whole {
            Ok(Some(true)) => open(&path),
            _ => Err(StoreError::corrupt("its directory is damaged")),
        };
        match table {
            Ok(table) => read(&table, &path, &new, &mut found, &mut last),
            Err(_) => found.lost_tables.push(path.display().to_string()),
        }
    }
    new.publish_as_of(last + 1)?;
    Ok(found)
}

fn open(path: &Path) -> Result<Table, StoreError> {
    let cache = Arc::new(Cache::with_capacity_bytes(CACHE_BYTES));
    // The checksum of the whole table is wrong or unknown, so it is not checked.
    guarded(path, || Table::recover(path.into(), Checksum::from_raw(0), 0, 0, cache, None, false, false))
}

fn read(table: &Table, path: &Path, new: &Tables, found: &mut Salvage, last: &mut SeqNo) {
    let mut values = table.iter();
    for _ in 0..=MOST_BLOCKS {
        loop {
            let Ok(next) = guarded(path, || Ok(values.next())) else {
                // The tree panicked: the rest of the table is unreadable.
                found.lost_tables.push(path.display().to_string());
                return;
            };
            match next {
                None => return,
                Some(Err(_)) => break,
                Some(Ok(value)) => {
                    *last = value.key.seqno.max(*last);
                    found.read += 1;
                    new.restore(value);
                }
            }
        }
        found.lost_blocks += 1;
    }
}
