//! `mend` makes damaged stores openable and keeps all readable records.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use espalier_proto::{Ino, ObjectId, TableWrite};
use espalier_store::{FormatOptions, LocalStore, Mended, Store, StoreError, mend, superblock};
use tempfile::TempDir;

const RECORDS_A_TABLE: u64 = 400;

fn record(n: u64) -> TableWrite {
    let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let value = Some(vec![n as u8; 20 + n as usize % 80]);
    TableWrite { object: ObjectId::fragment(Ino(n % 50), 0), key, value }
}

fn filled() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
    superblock::format(dir.path(), &options).unwrap();
    let store = open(dir.path());
    for round in 0..3 {
        let writes = (round * RECORDS_A_TABLE..(round + 1) * RECORDS_A_TABLE).map(record);
        store.stage(writes.collect()).unwrap();
        store.publish().unwrap();
    }
    dir
}

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, false).unwrap().0
}

/// The regular files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Mends a store and checks its records. Returns their number.
fn mended(dir: &Path) -> (Mended, u64) {
    let quarantine = dir.join("quarantine/now");
    let mended = mend(dir, &quarantine).unwrap();
    assert_eq!(mend(dir, &dir.join("quarantine/again")).unwrap(), Mended::default(), "after {mended:?}");
    assert_eq!(mended.tables.is_some(), quarantine.join("tables").exists());
    let all: BTreeMap<_, _> = (0..3 * RECORDS_A_TABLE)
        .map(record)
        .map(|TableWrite { object, key, value }| ((object, key), value.unwrap()))
        .collect();
    let store = open(dir);
    let mut count = 0;
    for found in store.records() {
        let (object, key, value) = found.unwrap();
        assert_eq!(store.get(object, &key).unwrap().as_ref(), Some(&value));
        assert_eq!(all.get(&(object, key)), Some(&value));
        count += 1;
    }
    // The store is writable.
    store.stage(vec![record(1_000_000)]).unwrap();
    store.publish().unwrap();
    assert_eq!(store.records().count() as u64, count + 1);
    (mended, count)
}

#[test]
fn undamaged_store_is_unchanged() {
    let dir = filled();
    assert_eq!(mended(dir.path()), (Mended::default(), 3 * RECORDS_A_TABLE));
    assert!(!dir.path().join("quarantine").exists());
}

#[test]
fn readable_records_of_damaged_tables_survive() {
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..30 {
        let dir = filled();
        let files = files(&dir.path().join("tables"));
        let path = &files[round % files.len()];
        let mut bytes = std::fs::read(path).unwrap();
        match random.u8(0..4) {
            0 => bytes.truncate(random.usize(..bytes.len())),
            _ => {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }
        }
        std::fs::write(path, bytes).unwrap();
        let (mended, count) = mended(dir.path());
        let is_table = path.parent().unwrap().file_name().unwrap() == "tables"
            && path.parent().unwrap().parent().unwrap() != dir.path();
        let lost = 3 * RECORDS_A_TABLE - count;
        assert!(lost <= if is_table { RECORDS_A_TABLE } else { 0 }, "{}: {lost}, {mended:?}", path.display());
    }
}

#[test]
fn one_damaged_block_costs_no_other() {
    let dir = tempfile::tempdir().unwrap();
    superblock::format(dir.path(), &FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() })
        .unwrap();
    let store = open(dir.path());
    store.stage((0..3 * RECORDS_A_TABLE).map(record).collect()).unwrap();
    store.publish().unwrap();
    drop(store);
    let table = files(&dir.path().join("tables/tables")).pop().unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let (mended, count) = mended(dir.path());
    let (_, salvage) = mended.tables.unwrap();
    assert_eq!((salvage.lost_blocks, salvage.lost_tables.len()), (1, 0));
    assert!(count > 3 * RECORDS_A_TABLE * 9 / 10 && count < 3 * RECORDS_A_TABLE, "{count}");
}

#[test]
fn an_interrupted_exchange_of_tables_is_finished() {
    let dir = filled();
    let tables = dir.path().join("tables");
    std::fs::rename(&tables, dir.path().join("tables.new")).unwrap();
    assert_eq!(mended(dir.path()).1, 3 * RECORDS_A_TABLE);
    // An interrupted, incomplete salvage is restarted.
    std::fs::create_dir(dir.path().join("tables.new")).unwrap();
    assert_eq!(mend(dir.path(), &dir.path().join("quarantine/now")).unwrap(), Mended::default());
    assert!(!dir.path().join("tables.new").exists());
}

#[test]
fn foreign_journal_is_replaced_and_quarantined() {
    for bytes in [None, Some(b"none".to_vec()), Some(vec![0; (1 << 20) + 8192])] {
        let dir = filled();
        let (journal, quarantine) = (dir.path().join("journal"), dir.path().join("quarantine/now"));
        std::fs::remove_file(&journal).unwrap();
        if let Some(bytes) = &bytes {
            std::fs::write(&journal, bytes).unwrap();
        }
        let mended = mend(dir.path(), &quarantine).unwrap();
        assert!(mended.journal.is_some() && mended.tables.is_none(), "{mended:?}");
        assert_eq!(std::fs::read(quarantine.join("journal")).ok(), bytes);
        assert_eq!(open(dir.path()).records().count() as u64, 3 * RECORDS_A_TABLE);
    }
}

#[test]
fn store_in_use_or_foreign_is_refused() {
    let dir = filled();
    let _store = open(dir.path());
    let outcome = mend(dir.path(), &dir.path().join("quarantine/now"));
    assert!(matches!(outcome, Err(StoreError::InUse { .. })), "{outcome:?}");
    let empty = tempfile::tempdir().unwrap();
    let outcome = mend(empty.path(), &empty.path().join("quarantine/now"));
    assert!(matches!(outcome, Err(StoreError::Superblock(_))), "{outcome:?}");
}
