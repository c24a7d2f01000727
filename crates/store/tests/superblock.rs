//! The superblock and its copy: each restores the other.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use espalier_proto::Rank;
use espalier_store::{FormatOptions, LocalStore, Mended, StoreError, SuperblockError, mend, superblock};
use tempfile::TempDir;

const FOREIGN: &[u8] = b"of another program\n";

struct Fixture {
    dir: TempDir,
    /// Contents of both files as written.
    bytes: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = FormatOptions { journal_bytes: 1 << 20, ..FormatOptions::default() };
        superblock::format(dir.path(), &options).unwrap();
        let bytes = std::fs::read(dir.path().join("superblock")).unwrap();
        let fixture = Self { dir, bytes };
        fixture.assert_whole();
        fixture
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn files(&self) -> [PathBuf; 2] {
        ["superblock", "superblock.bak"].map(|name| self.path().join(name))
    }

    fn assert_whole(&self) {
        for file in self.files() {
            assert_eq!(std::fs::read(&file).unwrap(), self.bytes, "{}", file.display());
        }
        LocalStore::open(self.path(), true).unwrap();
    }

    fn mend(&self) -> Result<Mended, StoreError> {
        mend(self.path(), &self.path().join("quarantine/now"))
    }

    /// A repair makes both files intact and reports it; a second one finds nothing.
    fn assert_mended(&self) {
        let mended = self.mend().unwrap();
        assert!(mended.superblock.is_some());
        assert_eq!(Mended { superblock: None, ..mended }, Mended::default());
        assert_eq!(self.mend().unwrap(), Mended::default());
        self.assert_whole();
    }
}

/// Writes a file; `None` removes it.
fn put(path: &Path, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => std::fs::write(path, bytes).unwrap(),
        None => std::fs::remove_file(path).unwrap(),
    }
}

/// Possible damage of a file: missing, foreign, empty, truncated, a flipped bit.
fn damages(whole: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut flipped = whole.to_vec();
    flipped[whole.len() / 2] ^= 4;
    vec![
        None,
        Some(FOREIGN.to_vec()),
        Some(Vec::new()),
        Some(whole[..whole.len() - 9].to_vec()),
        Some(flipped),
    ]
}

#[test]
fn a_damaged_superblock_is_restored_from_its_copy() {
    let fixture = Fixture::new();
    let [main, _] = fixture.files();
    for damage in damages(&fixture.bytes) {
        put(&main, damage.as_deref());
        let error = superblock::read(fixture.path()).unwrap_err();
        assert!(matches!(error, SuperblockError::Restorable { .. }), "{error}");
        assert!(error.to_string().contains("espalier fsck --repair"), "{error}");
        for read_only in [false, true] {
            let outcome = LocalStore::open(fixture.path(), read_only);
            assert!(matches!(
                outcome.err(),
                Some(StoreError::Superblock(SuperblockError::Restorable { .. }))
            ));
        }
        fixture.assert_mended();
        let quarantined = fixture.path().join("quarantine/now/superblock");
        assert_eq!(std::fs::read(&quarantined).ok(), damage);
        let _absent = std::fs::remove_file(quarantined);
    }
}

#[test]
fn a_damaged_copy_is_written_anew_by_repairing_and_by_mounting() {
    let fixture = Fixture::new();
    let [_, copy] = fixture.files();
    for damage in damages(&fixture.bytes) {
        put(&copy, damage.as_deref());
        drop(LocalStore::open(fixture.path(), true).unwrap());
        assert_eq!(std::fs::read(&copy).ok(), damage, "read does not write");
        drop(LocalStore::open(fixture.path(), false).unwrap());
        fixture.assert_whole();

        put(&copy, damage.as_deref());
        match damage {
            Some(_) => fixture.assert_mended(),
            // A store made by a version without a copy.
            None => assert_eq!(fixture.mend().unwrap(), Mended::default()),
        }
        fixture.assert_whole();
    }
}

#[test]
fn superblock_cannot_be_restored_without_copies() {
    let fixture = Fixture::new();
    let [main, copy] = fixture.files();
    for of_main in damages(&fixture.bytes) {
        for of_copy in damages(&fixture.bytes) {
            put(&main, Some(b"")); // so that there is one to remove
            put(&copy, Some(b""));
            put(&main, of_main.as_deref());
            put(&copy, of_copy.as_deref());
            let error = fixture.mend().unwrap_err();
            let expected = matches!(
                error,
                StoreError::Superblock(SuperblockError::Damaged { .. } | SuperblockError::NoStore(_))
            );
            assert!(expected, "{error}");
            assert_eq!(std::fs::read(&main).ok(), of_main, "the file is unchanged");
            assert_eq!(std::fs::read(&copy).ok(), of_copy, "the file is unchanged");
        }
    }
}

#[test]
fn the_journal_says_which_of_two_is_the_stores_own() {
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let [main, copy] = fixture.files();
    put(&main, Some(&other.bytes));
    assert!(LocalStore::open(fixture.path(), false).is_err());
    assert_eq!(std::fs::read(&copy).unwrap(), fixture.bytes, "a foreign superblock is not copied");
    fixture.assert_mended();

    put(&copy, Some(&other.bytes));
    fixture.assert_mended();

    // The copy of another store must not replace a damaged superblock: its hash key differs, so no
    // name would be found.
    put(&main, Some(b"damaged"));
    put(&copy, Some(&other.bytes));
    let error = fixture.mend().unwrap_err();
    assert!(error.to_string().contains("its copy is that of another store"), "{error}");
    put(&main, Some(&fixture.bytes));
    fixture.assert_mended();
}

#[test]
fn a_crash_at_any_moment_of_writing_leaves_one_that_is_whole() {
    let fixture = Fixture::new();
    let [main, copy] = fixture.files();
    let new = fixture.path().join("superblock.new");
    let old = superblock::read(fixture.path()).unwrap();
    let renamed = espalier_store::Superblock { label: "new".into(), ..old.clone() };
    superblock::write(fixture.path(), &renamed).unwrap();
    let renamed_bytes = std::fs::read(&main).unwrap();
    // Before the first rename, between the two, and with the second missing.
    let half = &renamed_bytes[..renamed_bytes.len() / 2];
    for (of_main, of_new, expected) in [
        (&fixture.bytes, Some(half), &old),
        (&renamed_bytes, None, &renamed),
        (&renamed_bytes, Some(half), &renamed),
    ] {
        put(&main, Some(of_main));
        put(&copy, Some(&fixture.bytes));
        put(&new, Some(b""));
        put(&new, of_new);
        assert_eq!(superblock::read(fixture.path()).unwrap(), *expected);
        drop(LocalStore::open(fixture.path(), false).unwrap());
        assert_eq!(std::fs::read(&copy).unwrap(), *of_main, "the copy is updated");
    }
    // Interrupted `mkfs`, with and without a leftover temporary copy.
    put(&copy, None);
    put(&new, Some(half));
    drop(LocalStore::open(fixture.path(), false).unwrap());
    assert_eq!(std::fs::read(&copy).unwrap(), renamed_bytes);
}

#[test]
fn a_store_of_several_ranks_says_which_it_is_of() {
    let fixture = Fixture::new();
    let read = |body: &str| {
        let checksum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
        for file in fixture.files() {
            std::fs::write(file, format!("{body}checksum = \"{checksum:016x}\"\n")).unwrap();
        }
        superblock::read(fixture.path()).map(|superblock| (superblock.rank, superblock.ranks))
    };
    let text = String::from_utf8(fixture.bytes.clone()).unwrap();
    let (body, _) = text.rsplit_once("checksum").unwrap();
    let with = |rank, ranks| {
        body.replace("rank = 0\n", &format!("rank = {rank}\n"))
            .replace("ranks = 1\n", &format!("ranks = {ranks}\n"))
    };
    assert_eq!(read(&with(0, 1)).unwrap(), (Rank(0), 1));
    assert_eq!(read(&with(2, 3)).unwrap(), (Rank(2), 3));
    assert!(matches!(read(&with(3, 3)), Err(SuperblockError::Damaged { .. })));
    // A superblock of a version without ranks.
    let without_ranks = body.replace("rank = 0\n", "").replace("ranks = 1\n", "");
    assert!(!without_ranks.contains("rank"));
    assert_eq!(read(&without_ranks).unwrap(), (Rank(0), 1));
}
