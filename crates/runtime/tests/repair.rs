//! Repairs of whole stores: the cases of `crates/meta/tests/repair.rs` that need a journal and a
//! quarantine.

use std::path::Path;

use espalier_meta::{Dentry, InoRecord, Referent, Slot, Super, encode};
use espalier_proto::{FileType, Ino, Name, ObjectId, Rank, TableWrite, name_key};
use espalier_runtime::{
    Error, MkfsOptions, RepairReport, fsck, fsck_cluster, mkfs, mkfs_ranks, repair, repair_cluster,
};
use espalier_store::{LocalStore, Store};
use tempfile::TempDir;

fn made() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    mkfs(dir.path(), &options()).unwrap();
    dir
}

fn options() -> MkfsOptions {
    MkfsOptions { journal_bytes: Some(4 << 20), ..MkfsOptions::default() }
}

fn open(dir: &Path) -> LocalStore {
    LocalStore::open(dir, false).unwrap().0
}

fn write(store: &LocalStore, object: ObjectId, key: Vec<u8>, value: Option<Vec<u8>>) {
    store.stage(vec![TableWrite { object, key, value }]).unwrap();
    store.publish().unwrap();
}

/// Damages and repairs a store; the result is clean and stays so.
fn repaired(damage: impl Fn(&LocalStore)) -> (TempDir, RepairReport) {
    let dir = made();
    damage(&open(dir.path()));
    let found = fsck(dir.path(), |_| ());
    assert!(found.is_err() || !found.unwrap().findings.is_empty(), "the damage is found");
    let report = repair(dir.path(), |_| ()).unwrap();
    assert!(!report.done.is_empty());
    assert_eq!(report.after.findings, []);
    assert_eq!(fsck(dir.path(), |_| ()).unwrap().findings, []);
    let again = repair(dir.path(), |_| ()).unwrap();
    assert_eq!((again.done, again.quarantines), (vec![], vec![]));
    (dir, report)
}

#[test]
fn repair_leaves_clean_file_system_unchanged() {
    let dir = made();
    let report = repair(dir.path(), |_| ()).unwrap();
    assert_eq!((report.done, report.quarantines, report.after.findings), (vec![], vec![], vec![]));
    assert!(!dir.path().join("quarantine").exists());
}

#[test]
fn without_the_first_record_the_journal_is_put_aside() {
    let (_dir, report) = repaired(|store| write(store, ObjectId::SUPER, vec![], None));
    assert!(report.quarantines[0].join("journal").exists());
    let (_dir, report) = repaired(|store| write(store, ObjectId::SUPER, vec![], Some(vec![0xff; 30])));
    let retained = std::fs::read_to_string(report.quarantines[0].join("records")).unwrap();
    assert!(retained.contains(&"ff".repeat(30)), "{retained}");
}

#[test]
fn a_root_directory_is_made() {
    let (object, key) = InoRecord::Inode.place(Ino::ROOT);
    repaired(|store| write(store, object, key.clone(), None));
    let (_dir, report) = repaired(|store| write(store, object, key.clone(), Some(b"no inode".to_vec())));
    let retained = std::fs::read_to_string(report.quarantines[0].join("records")).unwrap();
    assert!(retained.contains("6e6f20696e6f6465"), "{retained}");
}

#[test]
fn a_position_where_no_journal_goes_on_is_mended() {
    let (_dir, report) = repaired(|store| {
        let mut first = Super::parse(&store.get(ObjectId::SUPER, b"").unwrap().unwrap()).unwrap();
        first.journal = 12345;
        write(store, ObjectId::SUPER, vec![], Some(encode(&first)));
    });
    assert!(report.quarantines[0].join("journal").exists());
}

#[test]
fn journal_with_invalid_position_is_quarantined() {
    let (_dir, report) = repaired(|store| {
        let mut first = Super::parse(&store.get(ObjectId::SUPER, b"").unwrap().unwrap()).unwrap();
        first.journal = u64::MAX - 7;
        write(store, ObjectId::SUPER, vec![], Some(encode(&first)));
    });
    assert!(report.quarantines[0].join("journal").exists());
}

#[test]
fn malformed_orphan_record_is_removed() {
    repaired(|store| write(store, ObjectId::ORPHANS, vec![0, 0, 0, 0, 0, 0, 0, 9], Some(vec![1; 3])));
}

#[test]
fn unowned_stream_is_moved_to_lost_found() {
    let (dir, _) = repaired(|store| {
        store.stream_write(Ino(77), 0, b"precious").unwrap();
        // A directory cannot have a stream, so its bytes are copied to a new file.
        store.stream_write(Ino::ROOT, 0, b"more").unwrap();
    });
    let store = open(dir.path());
    let held = |ino: &Ino| {
        let mut bytes = vec![0; store.stream_stat(*ino).unwrap().size as usize];
        store.stream_read(*ino, 0, &mut bytes).unwrap();
        bytes
    };
    let streams: Vec<_> = store.streams().unwrap().iter().map(held).collect();
    assert_eq!(streams, [b"precious".as_slice(), b"more"]);
}

#[test]
fn repair_refuses_unfinished_store() {
    let dir = made();
    let (object, key) = InoRecord::Inode.place(Ino::ROOT);
    write(&open(dir.path()), object, key, None);
    write(&open(dir.path()), ObjectId::SUPER, vec![], None);
    assert!(matches!(repair(dir.path(), |_| ()), Err(Error::Unfinished(_))));
}

#[test]
fn stores_of_all_ranks_are_repaired_together() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = [0, 1, 2].map(|rank| dir.path().join(format!("store-{rank}")));
    mkfs_ranks(&ranks, &options()).unwrap();
    let clean = repair_cluster(&ranks, &[], |_| ()).unwrap();
    assert_eq!((clean.done, clean.quarantines, clean.after.findings), (vec![], vec![], vec![]));
    let store = open(&ranks[0]);
    let hash_key = store.superblock().hash_key;
    let slot = Slot::new(&name_key(&hash_key), Name::new(b"gone").unwrap());
    let (at, kind) = (Rank(2), FileType::Regular);
    let dentry = Dentry::Remote(Referent { ino: Ino(Ino::none_of(at).0 + 7), kind, at });
    write(&store, ObjectId::fragment(Ino::ROOT, 0), slot.key(), Some(encode(&dentry)));
    drop(store);
    // Another rank has lost the start of its journal.
    write(&open(&ranks[1]), ObjectId::SUPER, vec![], Some(b"damaged".to_vec()));
    assert!(
        fsck_cluster(&ranks, &[], |_| ()).is_err()
            || !fsck_cluster(&ranks, &[], |_| ()).unwrap().findings.is_empty()
    );
    assert!(matches!(repair(&ranks[0], |_| ()), Err(Error::OneRank { .. })));
    assert!(matches!(repair_cluster(&ranks[..2], &[], |_| ()), Err(Error::OtherRanks)));
    let report = repair_cluster(&ranks, &[], |_| ()).unwrap();
    assert_eq!(report.after.findings, []);
    assert_eq!(report.quarantines.len(), 2, "{report:?}");
    let again = repair_cluster(&ranks, &[], |_| ()).unwrap();
    assert_eq!((again.done, again.quarantines), (vec![], vec![]));
}
