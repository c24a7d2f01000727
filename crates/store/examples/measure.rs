//! Measures the journal and the tables: `cargo run --release --example measure -- DIR [RECORDS]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs::File;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use espalier_proto::{Ino, ObjectId, Position, TableWrite};
use espalier_store::{FormatOptions, LocalStore, Store, superblock};

const SYNCS: usize = 2000;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = tempfile::tempdir_in(args.next().unwrap_or_else(|| "/tmp".into())).unwrap();
    let records = args.next().map_or(1_000_000, |records| records.parse().unwrap());
    let started = Instant::now();
    superblock::format(&dir.path().join("store"), &FormatOptions::default()).unwrap();
    println!("mkfs with a journal of 64 MiB: {:?}", started.elapsed());
    appends(dir.path());
    journal(&dir.path().join("store"));
    tables(&dir.path().join("store"), records);
}

fn report(operation: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{operation}: p50 {:?}, p99 {:?}", at(50), at(99));
}

fn timed(mut step: impl FnMut(usize)) -> Vec<Duration> {
    let one = |n| {
        let started = Instant::now();
        step(n);
        started.elapsed()
    };
    (0..SYNCS).map(one).collect()
}

fn appends(dir: &Path) {
    let file = File::create(dir.join("appended")).unwrap();
    let times = timed(|n| {
        file.write_all_at(&[7; 4096], n as u64 * 4096).unwrap();
        file.sync_data().unwrap();
    });
    report("4 KiB to the end of a file + fdatasync", times);
}

fn journal(dir: &Path) {
    let (_store, mut journal) = LocalStore::open(dir, false).unwrap();
    journal.replay(Position(0), |_, _| {}).unwrap();
    let times = timed(|_| {
        journal.append(&[7; 4056]).unwrap();
        journal.sync().unwrap();
    });
    report("4 KiB to the journal + sync", times);
    let started = Instant::now();
    for _ in 0..100_000 {
        journal.append(&[7; 100]).unwrap();
    }
    println!("100 bytes to the journal, no sync: {:?}", started.elapsed() / 100_000);
    drop((_store, journal));
    let started = Instant::now();
    let (_store, mut journal) = LocalStore::open(dir, false).unwrap();
    let mut frames = 0;
    let end = journal.replay(Position(0), |_, _| frames += 1).unwrap();
    println!("opening, replay of {frames} frames, {} KiB: {:?}", end.0 >> 10, started.elapsed());
}

fn record(n: u64) -> TableWrite {
    let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = [&hash.to_be_bytes()[..], format!("file-{n:011}").as_bytes()].concat();
    let mut value: Vec<u8> = (0..60).map(|at| (hash >> (at % 8 * 8)) as u8 ^ at as u8).collect();
    value[20..40].fill(0);
    TableWrite { object: ObjectId::fragment(Ino(1 + n % 100), 0), key, value: Some(value) }
}

fn tables(dir: &Path, records: u64) {
    let (store, _) = LocalStore::open(dir, false).unwrap();
    let (mut publishing, mut maintaining) = (Vec::new(), Vec::new());
    let started = Instant::now();
    for first in (0..records).step_by(20_000) {
        store.stage((first..(first + 20_000).min(records)).map(record).collect()).unwrap();
        let published = Instant::now();
        store.publish().unwrap();
        publishing.push(published.elapsed());
        let maintained = Instant::now();
        while store.maintain().unwrap() {}
        maintaining.push(maintained.elapsed());
    }
    println!("{records} records in checkpoints of 20000: {:?}", started.elapsed());
    report("  publish", publishing);
    report("  maintain", maintaining);
    println!("  {} bytes per record on disk", size(&dir.join("tables")) / records);
    drop(store);
    let started = Instant::now();
    let (store, _) = LocalStore::open(dir, false).unwrap();
    println!("opening: {:?}", started.elapsed());
    let mut random = fastrand::Rng::with_seed(1);
    for (operation, beyond) in [("get", 0), ("get of what is not there", records)] {
        let started = Instant::now();
        for _ in 0..200_000 {
            let TableWrite { object, key, .. } = record(beyond + random.u64(0..records));
            assert_eq!(store.get(object, &key).unwrap().is_some(), beyond == 0);
        }
        println!("{operation}: {:?}", started.elapsed() / 200_000);
    }
    let started = Instant::now();
    let found = store.scan(ObjectId::fragment(Ino(1), 0), Bound::Unbounded, usize::MAX).unwrap().len();
    println!("scan of {found}: {:?} each", started.elapsed() / found as u32);
    let started = Instant::now();
    let found = store.records().map(Result::unwrap).count();
    println!("all {found} records: {:?} each", started.elapsed() / found as u32);
    // Overwrites most records: invisible versions must be dropped.
    for round in 0..10 {
        store.stage((0..records / 10).map(|n| record(n * 7 + round)).collect()).unwrap();
        store.publish().unwrap();
        while store.maintain().unwrap() {}
    }
    println!("after as many writes again: {} bytes per record", size(&dir.join("tables")) / records);
}

fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(
            |entry| if entry.path().is_dir() { size(&entry.path()) } else { entry.metadata().unwrap().len() },
        )
        .sum()
}
