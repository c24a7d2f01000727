//! `fsck --repair` of several ranks: whatever happens to records of partitioned directories,
//! afterwards a check finds nothing and every file whose records were not damaged is there.

use std::collections::BTreeMap;

use super::moves::move_all;
use super::*;
use crate::harness::{Harness, Ranks, TestDisk};
use crate::repair::{RecordKey, carry_out, damage, plan_all, records, speaks_of};
use espalier_meta::{Config, Repaired};
use espalier_store::Store;

/// The stores of all ranks, after everything is written.
struct Stores(Vec<(TestDisk, Config)>);

impl Stores {
    fn of(mut fs: Routed) -> Self {
        fs.fs.fsck();
        let written = |host: Harness| {
            let config = host.config.clone();
            let mut disk = host.disk.crash();
            disk.forget_journal();
            (disk, config)
        };
        Self(fs.fs.0.into_iter().map(written).collect())
    }

    fn all(&self) -> Vec<&dyn Store> {
        self.0.iter().map(|(disk, _)| disk.store()).collect()
    }

    fn check(&self) -> Vec<Finding> {
        Check::finish_all(self.0.iter().map(|(disk, config)| disk.checked(config)).collect())
    }

    fn plan(&self) -> Vec<Repaired> {
        plan_all(&self.all())
    }

    /// Repairs, and checks that nothing is left to repair.
    fn repair(&self, context: &str) -> Vec<Repaired> {
        let repaired = self.plan();
        for (store, plan) in self.all().into_iter().zip(&repaired) {
            carry_out(store, plan, true);
        }
        assert_eq!(self.check(), [], "{context}: {repaired:#?}");
        for (disk, config) in &self.0 {
            assert_eq!(disk.checked(config).finish_one(), [], "{context}: {repaired:#?}");
        }
        let is_done = |plan: &Repaired| *plan == Repaired::default();
        let again = self.plan();
        assert!(again.iter().all(is_done), "{context}: the second repair has nothing to do: {again:#?}");
        repaired
    }

    fn recover(self) -> Routed {
        let hosts = self.0.into_iter().map(|(disk, config)| Harness::recover(disk, config));
        let mut fs = Ranks(hosts.collect());
        fs.connect();
        Routed { fs, maps: BTreeMap::new() }
    }
}

/// A file that is reachable.
struct Reached {
    ino: Ino,
    /// The directories on the way to it, with their fragments.
    above: Vec<Ino>,
}

fn reach(fs: &mut Routed) -> BTreeMap<Vec<Name>, Reached> {
    let mut reached = BTreeMap::new();
    let mut ahead = vec![(Ino::ROOT, Vec::new(), Vec::new())];
    while let Some((dir, path, above)) = ahead.pop() {
        let others = fs.map(dir).others().collect::<Vec<_>>();
        let above = [above.as_slice(), &[dir], &others].concat();
        let mut after = Some(0);
        while let Some(cursor) = after {
            let (entries, next) = fs.page(dir, cursor, 100);
            for Dirent { name, .. } in entries {
                let reply = fs.ask(Request::Lookup { dir, name: name.clone() });
                let attr = fs.fs.found(reply).unwrap();
                let path = [path.as_slice(), &[name]].concat();
                if attr.kind == FileType::Directory {
                    ahead.push((attr.ino, path.clone(), above.clone()));
                }
                reached.insert(path, Reached { ino: attr.ino, above: above.clone() });
            }
            after = next;
        }
    }
    reached
}

/// A file system with partitioned directories.
fn grown(rng: &mut fastrand::Rng) -> Routed {
    let (mut fs, dir, _) = full_dir();
    let mut dirs = vec![Ino::ROOT, dir];
    for step in 0..rng.usize(10..40) {
        let (dir, text) = (dirs[rng.usize(..dirs.len())], format!("n{step}"));
        match rng.u8(0..10) {
            0 | 1 => dirs.push(fs.make(dir, &text, NewNode::Directory)),
            2 => {
                let servers = rng.u8(2..5).to_string();
                fs.ask(set_xattr(dir, "user.espalier.dir_servers", servers.as_bytes())).unwrap();
            }
            3 => {
                let capacity = rng.u8(1..9).to_string();
                fs.ask(set_xattr(dir, "user.espalier.dir_split", capacity.as_bytes())).unwrap();
            }
            4 => {
                let ino = fs.make(dir, &text, NewNode::Regular);
                let (dir, name) = (dirs[rng.usize(..dirs.len())], name(&format!("linked{step}")));
                let linked = fs.ask(Request::Link { ino, dir, name });
                fs.fs.found(linked).unwrap();
            }
            // Files follow their names, since nobody knows them after a restart.
            5 if step % 3 == 0 => {
                fs.restart();
                for ino in dirs.iter().copied() {
                    fs.fs.ask(Request::Find { ino, kind: None, open: None }).unwrap();
                }
                move_all(&mut fs, dir, rng.u16(..RANKS));
            }
            _ => drop(fs.make(dir, &text, NewNode::Regular)),
        }
    }
    fs
}

fn repair_of_random_damage(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fs = grown(&mut rng);
    let expected = reach(&mut fs);
    let stores = Stores::of(fs);
    let before: Vec<BTreeMap<RecordKey, Vec<u8>>> = stores.all().into_iter().map(records).collect();
    let clean = stores.plan();
    assert!(
        clean.iter().all(|plan| *plan == Repaired::default()),
        "seed {seed}: nothing is wrong: {clean:#?}"
    );

    let (mut changed, mut in_doubt) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..rng.usize(1..4) {
        let rank = rng.usize(..stores.0.len());
        let store = stores.0[rank].0.store();
        let (touched, streams) = damage(&mut rng, store);
        changed.extend(streams);
        let damaged = records(store);
        for key in &touched {
            let of_inodes = key.0.kind == ObjectKind::Inodes;
            changed.extend(InoRecord::from_key(&key.1).map(|(_, ino)| ino).filter(|_| of_inodes));
            changed.extend(before[rank].get(key).and_then(|value| speaks_of(key, value).1));
            let now = damaged.get(key).map_or((None, None), |value| speaks_of(key, value));
            in_doubt.extend([now.0, now.1].into_iter().flatten());
        }
    }
    let repaired = stores.repair(&format!("seed {seed}"));
    let mut fs = stores.recover();
    let left = reach(&mut fs);
    for (path, Reached { ino, above }) in
        expected.iter().filter(|(_, reached)| !changed.contains(&reached.ino))
    {
        let is_hit = |ino: &Ino| changed.contains(ino) || in_doubt.contains(ino);
        let found = match above.iter().any(is_hit) || in_doubt.contains(ino) {
            true => left.values().any(|reached| reached.ino == *ino),
            false => left.get(path).is_some_and(|reached| reached.ino == *ino),
        };
        assert!(found, "seed {seed}: {path:?} ({ino}): {repaired:#?}");
    }
    // The repaired file system works.
    let dirs: BTreeSet<Ino> = left.values().flat_map(|reached| reached.above.last().copied()).collect();
    for dir in dirs.into_iter().take(3) {
        let whole = if fs.fs.attr(dir).map_version == Attr::FRAGMENT { fs.parent(dir) } else { dir };
        fs.make_files(whole, &names("afterwards", 8));
    }
    fs.fs.fsck();
}

#[test]
fn random_damage_to_all_ranks_is_repaired() {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse().ok());
    let (first, seeds) = (number("SEED").unwrap_or(0), number("SEEDS").unwrap_or(150));
    (first..first + seeds).for_each(repair_of_random_damage);
}

/// A directory with fragments at all ranks after damage to records and its repair.
fn repaired_after(
    damage: impl Fn(Ino, &FragmentMap, ObjectId, &[u8], &[u8]) -> Vec<TableWrite>,
) -> (Routed, Ino, Vec<String>) {
    let (mut fs, dir) = Routed::with_fragments();
    let files = names("file", 20);
    fs.make_files(dir, &files);
    let map = fs.map(dir);
    let stores = Stores::of(fs);
    let mut is_damaged = false;
    for store in stores.all() {
        for ((object, key), value) in records(store) {
            let writes = damage(dir, &map, object, &key, &value);
            is_damaged |= !writes.is_empty();
            for write in writes {
                // The record's own rank; a fragment's object lies at the fragment's.
                let rank =
                    if write.object.kind == ObjectKind::Fragment { Ino(write.object.id).rank().0 } else { 0 };
                let to = if write.object.kind == ObjectKind::Fragment {
                    stores.all()[usize::from(rank)]
                } else {
                    store
                };
                to.stage(vec![write]).unwrap();
                to.publish().unwrap();
            }
        }
    }
    assert!(is_damaged && !stores.check().is_empty());
    stores.repair("directed damage");
    (stores.recover(), dir, files)
}

#[test]
fn missing_fragment_is_recreated_with_its_names() {
    let (mut fs, dir, files) = repaired_after(|_, map, object, key, _| {
        map.others().skip(1).take(1).flat_map(|ino| without_inode(ino, object, key)).collect()
    });
    assert_eq!(fs.map(dir).fragments().count(), 4);
    fs.assert_names(dir, &files);
}

#[test]
fn directory_whose_record_is_lost_is_recreated_from_its_fragments() {
    let (mut fs, dir, files) = repaired_after(|dir, _, object, key, _| without_inode(dir, object, key));
    assert_eq!(fs.map(dir).fragments().count(), 4);
    assert_eq!(fs.lookup(Ino::ROOT, "dir").unwrap().ino, dir);
    fs.assert_names(dir, &files);
}

#[test]
fn names_in_the_wrong_fragment_are_moved() {
    let (mut fs, dir, files) = repaired_after(|dir, map, object, key, value| {
        if object.kind != ObjectKind::Fragment || object.id != map.fragment(1 << 62).0 {
            return Vec::new();
        }
        let moved = ObjectId { id: dir.0, ..object };
        vec![
            TableWrite { object, key: key.into(), value: None },
            TableWrite { object: moved, key: key.into(), value: Some(value.into()) },
        ]
    });
    fs.assert_names(dir, &files);
}

/// The stores of a file system whose directory `dir` has moved to rank 2 with its files.
fn with_relocated_files() -> (Stores, Ino, BTreeMap<String, Ino>) {
    let (mut fs, dir) = Routed::with_dir();
    let files =
        names("file", 6).into_iter().map(|file| (file.clone(), fs.make(dir, &file, NewNode::Regular)));
    let files: BTreeMap<String, Ino> = files.collect();
    for ino in files.values() {
        fs.fs.write(*ino, 7);
    }
    fs.fs.ask(Request::SyncFs { rank: Rank(HOME) }).unwrap();
    fs.restart();
    move_all(&mut fs, dir, 2);
    assert_eq!(fs.fs.0[2].meta.figures().pull_counts.pulled, 6);
    (Stores::of(fs), dir, files)
}

fn assert_relocated(stores: Stores, dir: Ino, files: &BTreeMap<String, Ino>) {
    let mut fs = stores.recover();
    for (file, ino) in files {
        let attr = fs.lookup(dir, file).unwrap();
        assert_eq!((attr.ino, attr.size, attr.nlink), (*ino, 7, 1));
        // By the number, through the home.
        let found = fs.fs.ask(Request::Find { ino: *ino, kind: None, open: None });
        assert_eq!(fs.fs.found(found).unwrap().ino, *ino);
        assert_eq!(fs.ask(unlink(dir, file)), Ok(Reply::Done));
    }
    fs.fs.fsck();
}

fn write(store: &dyn Store, (object, key): RecordKey, value: Option<Vec<u8>>) {
    store.stage(vec![TableWrite { object, key, value }]).unwrap();
    store.publish().unwrap();
}

#[test]
fn home_that_has_lost_its_records_of_relocated_files_gets_them_again() {
    let (stores, dir, files) = with_relocated_files();
    for ino in files.values() {
        write(stores.all()[usize::from(HOME)], InoRecord::Relocation.place(*ino), None);
    }
    assert_eq!(stores.check().len(), files.len());
    stores.repair("lost relocations");
    assert_relocated(stores, dir, &files);
}

#[test]
fn home_that_names_the_wrong_rank_of_a_relocated_file_is_corrected() {
    let (stores, dir, files) = with_relocated_files();
    let home = usize::from(HOME);
    let ino = files["file1"];
    let wrong = espalier_meta::encode(&espalier_meta::Relocation { at: Rank(3) });
    write(stores.all()[home], InoRecord::Relocation.place(ino), Some(wrong.clone()));
    // One of a file that does not exist.
    write(stores.all()[home], InoRecord::Relocation.place(Ino(ino.0 + 100)), Some(wrong));
    assert_eq!(stores.check().len(), 2);
    stores.repair("wrong relocations");
    assert_relocated(stores, dir, &files);
}

#[test]
fn file_that_two_ranks_have_stays_where_its_home_says() {
    let (stores, dir, files) = with_relocated_files();
    let (home, ino) = (usize::from(HOME), files["file1"]);
    let inodes = records(stores.all()[2]);
    let inode = inodes.iter().find_map(|((object, _), value)| {
        match espalier_meta::decode::<espalier_meta::Dentry>(value) {
            Ok(espalier_meta::Dentry::Primary(inode)) if object.kind == ObjectKind::Fragment => Some(inode),
            _ => None,
        }
        .filter(|inode| inode.ino == ino)
    });
    let copy = espalier_meta::Inode { perm: 0, ..inode.unwrap() };
    write(stores.all()[home], InoRecord::Inode.place(ino), Some(espalier_meta::encode(&copy)));
    assert!(!stores.check().is_empty());
    stores.repair("two ranks");
    assert_relocated(stores, dir, &files);
}

#[test]
fn all_stray_fragments_of_a_number_are_dissolved() {
    let (mut fs, dir) = Routed::with_fragments();
    let files = names("file", 20);
    fs.make_files(dir, &files);
    let fragment = fs.map(dir).ino(2).unwrap();
    let stores = Stores::of(fs);
    let store = stores.all()[usize::from(fragment.rank().0)];
    let record = &records(store)[&InoRecord::Inode.place(fragment)];
    let inode: espalier_meta::Inode = espalier_meta::decode(record).unwrap();
    for number in 500..503 {
        let ino = Ino(fragment.0 + number);
        let copy = espalier_meta::encode(&espalier_meta::Inode { ino, ..inode.clone() });
        write(store, InoRecord::Inode.place(ino), Some(copy));
    }
    assert!(!stores.check().is_empty());
    stores.repair("stray fragments");
    let mut fs = stores.recover();
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}
