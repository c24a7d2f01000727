//! Reads what can still be read of damaged tables into new ones: each block has its own checksum, so the others are good.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use lsm_tree::{Cache, Checksum, SeqNo, Table};

use super::check;
use super::tables::{Tables, guarded};
use crate::StoreError;
use crate::error::Context;

/// No table has so many blocks: an iterator that fails more often does not go on.
const MOST_BLOCKS: u64 = 1 << 20;
const CACHE_BYTES: u64 = 1 << 20;

/// What became of damaged tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Versions of records that could be read.
    pub read: u64,
    /// Pieces of tables that could not be read, of some KiB each.
    pub lost_blocks: u64,
    /// Whole tables that could not be read.
    pub lost_tables: Vec<String>,
    /// The list of tables could not be read, so that those which had been replaced may have been read too.
    pub unlisted: bool,
}

/// Makes new tables in `into`, which must not exist, of the damaged ones in `from`, which are left as they are. All
/// records are in memory for a while.
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
    // The checksum of the whole is known to be wrong, or not known.
    guarded(path, || Table::recover(path.into(), Checksum::from_raw(0), 0, 0, cache, None, false, false))
}

fn read(table: &Table, path: &Path, new: &Tables, found: &mut Salvage, last: &mut SeqNo) {
    let mut values = table.iter();
    for _ in 0..=MOST_BLOCKS {
        loop {
            let Ok(next) = guarded(path, || Ok(values.next())) else {
                // It panicked: what else it holds is out of reach.
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
