//! Usage: the recursive statistics of directories equal a recount after each step and each crash,
//! and no quota is exceeded.

use crate::harness::{self, Harness, config, name};
use espalier_meta::{Config, Input};
use espalier_proto::*;

fn recorded_usage(fs: &mut Harness, dir: Ino) -> [u64; 3] {
    ["rfiles", "rsubdirs", "rbytes"].map(|name| fs.figure(dir, name).unwrap())
}

/// Waits for an answer that needs a durable journal.
fn ask(fs: &mut Harness, request: Request) -> Result<Reply, Errno> {
    let id = fs.send(&harness::ROOT_CALLER, request);
    while !fs.answers.contains_key(&id) {
        fs.run_until_idle();
    }
    fs.answers.remove(&id).unwrap()
}

/// Counts below a directory by walking, and compares at each directory on the way. Raises limits
/// that need not hold to the current usage.
fn recount(fs: &mut Harness, dir: Ino, bounded: bool, context: &str) -> [u64; 3] {
    let mut sum = [0; 3];
    for entry in fs.list(dir, true) {
        let attr = entry.entry.unwrap().attr;
        if attr.kind == FileType::Directory {
            let below = recount(fs, attr.ino, bounded, context);
            (0..3).for_each(|at| sum[at] += below[at]);
            sum[1] += 1;
        } else {
            sum[0] += 1;
            sum[2] += attr.size;
        }
        fs.send(&harness::ROOT_CALLER, Request::Forget { ino: attr.ino, lookups: 1 });
    }
    assert_eq!(recorded_usage(fs, dir), sum, "{context}: what {dir} keeps (left) is not what is below it");
    for (name, used) in [("max_files", sum[0] + sum[1]), ("max_bytes", sum[2])] {
        match fs.figure(dir, &format!("quota.{name}")).ok().filter(|max| used > *max) {
            Some(max) if bounded => {
                panic!("{context}: {sum:?} in {dir}, where {name} is {max}")
            }
            Some(_) => drop(fs.set_limit(dir, name, used).unwrap()),
            None => {}
        }
    }
    sum
}

struct Walker {
    rng: fastrand::Rng,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    /// Handles, each with whether the kernel writes its file directly.
    open: Vec<(Ino, bool)>,
    refused: usize,
}

impl Walker {
    fn new(seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self { rng, dirs: vec![Ino::ROOT], files: vec![], open: vec![], refused: 0 }
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.usize(..of.len())])
    }

    fn name(&mut self) -> Name {
        name(&format!("n{}", self.rng.u8(0..8)))
    }

    fn step(&mut self, fs: &mut Harness) {
        let (dirs, files, open) = (self.dirs.clone(), self.files.clone(), self.open.clone());
        let (dir, other) = (self.any(&dirs).unwrap(), self.any(&dirs).unwrap());
        let (a, b) = (self.name(), self.name());
        let file = self.any(&files);
        let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::WHITEOUT][self.rng.usize(..3)];
        let outcome = match self.rng.u8(0..18) {
            0 | 1 => fs
                .create(dir, core::str::from_utf8(&a).unwrap(), NewNode::Regular)
                .map(|ino| self.files.push(ino)),
            2 | 3 => {
                let made = fs.create(dir, core::str::from_utf8(&a).unwrap(), NewNode::Directory);
                made.map(|ino| self.dirs.push(ino))
            }
            4 => fs
                .create(
                    dir,
                    core::str::from_utf8(&a).unwrap(),
                    NewNode::Symlink(b"over there".as_slice().into()),
                )
                .map(drop),
            5 => fs.ask(Request::Unlink { dir, name: a, time: None }).map(drop),
            6 => fs.ask(Request::RmDir { dir, name: a, time: None }).map(drop),
            7..=9 => fs
                .ask(Request::Rename { from_dir: dir, from: a, to_dir: other, to: b, flags, time: None })
                .map(drop),
            10 => file.map_or(Ok(()), |ino| fs.ask(Request::Link { ino, dir, name: a }).map(drop)),
            11 => match file {
                Some(ino) => self.write(fs, ino),
                None => Ok(()),
            },
            12 => match file {
                Some(ino) => {
                    let set = SetAttr { size: Some(self.rng.u64(0..150)), ..SetAttr::default() };
                    ask(fs, Request::SetAttr { ino, set }).map(drop)
                }
                None => Ok(()),
            },
            13 => match file {
                Some(ino) => {
                    let how = harness::open_how(Access::WRITE, false);
                    ask(fs, Request::Open { ino, how }).map(|reply| match reply {
                        Reply::Opened(opened) => self.open.push((ino, opened.streamed && !opened.limited)),
                        other => panic!("{other:?}"),
                    })
                }
                None => Ok(()),
            },
            14 => match self.any(&open) {
                Some((ino, passthrough)) => self.write_open(fs, ino, passthrough),
                None => Ok(()),
            },
            15 if self.rng.bool() => ask(fs, Request::RemoveTree { dir: other }).map(drop),
            16 => {
                let levels = vec![CopyLevel { from: dir, to: other, after: 0 }];
                let preserve = self.rng.bool();
                ask(fs, Request::CopyTree(CopyTree { levels, preserve, umask: 0 })).map(drop)
            }
            _ => {
                if let Some(handle) = self.any(&open) {
                    self.open.remove(self.open.iter().position(|one| *one == handle).unwrap());
                    ask(fs, Request::Release { ino: handle.0 }).map(drop)
                } else {
                    Ok(())
                }
            }
        };
        self.refused += usize::from(outcome == Err(Errno::EDQUOT));
    }

    /// As a client does: to the server while the file is stuffed, then to the stream.
    fn write(&mut self, fs: &mut Harness, ino: Ino) -> Result<(), Errno> {
        let (offset, data) = (self.rng.u64(0..80), vec![1; self.rng.usize(1..60)]);
        if fs.write(ino, offset, &data)? == Reply::Streamed {
            // Writes go through a handle.
            let how = harness::open_how(Access::WRITE, false);
            ask(fs, Request::Open { ino, how })?;
            let outcome = self.write_open(fs, ino, false);
            ask(fs, Request::Release { ino })?;
            outcome?;
        }
        Ok(())
    }

    fn write_open(&mut self, fs: &mut Harness, ino: Ino, passthrough: bool) -> Result<(), Errno> {
        let (offset, length) = (self.rng.u64(0..150), self.rng.u64(1..60));
        if !fs.is_streamed(ino) {
            return Ok(());
        }
        // A file that is open when a quota is set, or when it moves below one, is bounded from its
        // next open on.
        let limited = fs.figure(Ino::ROOT, "quota.max_bytes").is_ok();
        if !passthrough || limited {
            fs.ask(Request::Extend {
                ino,
                offset,
                length,
                from: None,
                discards: false,
                acknowledged: false,
            })?;
        }
        let store = fs.disk.store();
        let size = store.stream_stat(ino).unwrap().size;
        store.stream_truncate(ino, size.max(offset + length)).unwrap();
        if self.rng.u8(0..4) == 0 {
            store.stream_sync(ino).unwrap();
        }
        Ok(())
    }
}

fn walk(seed: u64, quotas: bool) -> usize {
    let cache_bytes = if seed.is_multiple_of(2) { usize::MAX } else { 0 };
    let mut fs = Harness::with(Config { cache_bytes, ..config() });
    let mut walker = Walker::new(seed);
    if quotas {
        // Quotas on the root apply to all writes.
        fs.set_limit(Ino::ROOT, "max_files", 25).unwrap();
        fs.set_limit(Ino::ROOT, "max_bytes", 1000).unwrap();
    }
    for round in 0..4 {
        fs.lazy = true;
        for step in 0..walker.rng.usize(5..80) {
            walker.step(&mut fs);
            recount(&mut fs, Ino::ROOT, true, &format!("seed {seed}, round {round}, step {step}"));
            match walker.rng.u8(0..12) {
                0 => fs.input(Input::Tick),
                1 => fs.checkpoint(),
                2 | 3 => drop(fs.run_one()),
                4 => fs.run_until_idle(),
                5 if quotas => {
                    let dir = walker.dirs[walker.rng.usize(..walker.dirs.len())];
                    if let Ok(Reply::Attr(attr)) = fs.ask(Request::GetAttr { ino: dir })
                        && attr.nlink > 0
                    {
                        let [files, dirs, bytes] = recorded_usage(&mut fs, dir);
                        fs.set_limit(dir, "max_files", files + dirs + walker.rng.u64(1..8)).unwrap();
                        fs.set_limit(dir, "max_bytes", bytes + walker.rng.u64(1..200)).unwrap();
                    }
                }
                _ => {}
            }
        }
        fs = fs.crash();
        // A crash may restore what was removed after it was moved to a stream.
        recount(&mut fs, Ino::ROOT, false, &format!("seed {seed}, after crash {round}"));
        assert_eq!(fs.fsck(), [], "seed {seed}");
        walker = Walker { rng: walker.rng, refused: walker.refused, ..Walker::new(0) };
        find(&mut fs, Ino::ROOT, &mut walker);
    }
    walker.refused
}

/// A new client knows files by looking them up.
fn find(fs: &mut Harness, dir: Ino, walker: &mut Walker) {
    for entry in fs.list(dir, true) {
        match entry.kind {
            FileType::Directory => {
                walker.dirs.push(entry.ino);
                find(fs, entry.ino, walker);
            }
            FileType::Regular => walker.files.push(entry.ino),
            _ => {}
        }
    }
}

#[test]
fn usage_equals_recount_after_every_step_and_crash() {
    for seed in 0..60 {
        walk(seed, false);
    }
}

#[test]
fn no_quota_is_ever_exceeded() {
    let refused: usize = (0..60).map(|seed| walk(seed, true)).sum();
    assert!(refused > 100, "only {refused} steps met a limit: this tested nothing");
}

/// `fsck` findings after a change of the disk.
fn found_after(change: impl Fn(&mut Harness)) -> String {
    let mut fs = Harness::new();
    fs.mkdir("dir");
    fs.file("dir/small", b"bytes");
    fs.file("dir/big", &[7; 100]);
    assert_eq!(fs.fsck(), []);
    change(&mut fs);
    fs.disk.store().publish().unwrap();
    format!("{:?}", fs.disk.check(&fs.config))
}

/// Removes a record of an object.
fn remove(fs: &mut Harness, object: ObjectId, wanted: impl Fn(&[u8]) -> bool) {
    let records = fs.disk.store().scan(object, std::ops::Bound::Unbounded, usize::MAX).unwrap();
    let (key, _) = records.into_iter().find(|(key, _)| wanted(key)).unwrap();
    fs.disk.store().stage(vec![TableWrite { object, key, value: None }]).unwrap();
}

#[test]
fn fsck_finds_figures_that_are_wrong() {
    let lost_name = found_after(|fs| {
        let dir = fs.walk("dir").unwrap();
        remove(fs, ObjectId::fragment(dir, 0), |key| key.ends_with(b"small"));
    });
    assert!(lost_name.contains("bytes: 105 } below it, and there is Usage"), "{lost_name}");
    let other_size = found_after(|fs| {
        let big = fs.walk("dir/big").unwrap();
        fs.disk.store().stream_truncate(big, 90).unwrap();
    });
    assert!(other_size.contains("keeps 100 bytes, has 90"), "{other_size}");
    let no_place = found_after(|fs| {
        let dir = fs.walk("dir").unwrap();
        remove(fs, ObjectId::inodes(dir), |key| key.first() == Some(&b'd'));
    });
    assert!(no_place.contains("its recorded place"), "{no_place}");
}

#[test]
fn name_counts_in_its_directory_for_every_quota() {
    let mut fs = Harness::new();
    let (one, two) = (fs.mkdir("one"), fs.mkdir("two"));
    let file = fs.file("one/file", b"bytes");
    fs.ask(Request::Link { ino: file, dir: two, name: name("link") }).unwrap();
    assert_eq!((recorded_usage(&mut fs, one), recorded_usage(&mut fs, two)), ([1, 0, 5], [1, 0, 5]));
    assert_eq!(recorded_usage(&mut fs, Ino::ROOT), [2, 2, 10]);
    fs.set_limit(two, "max_bytes", 8).unwrap();
    assert_eq!(fs.write(file, 5, b"more"), Err(Errno::EDQUOT));
    assert_eq!(fs.read(file), b"bytes");
    fs.ask(Request::Unlink { dir: two, name: name("link"), time: None }).unwrap();
    assert_eq!(fs.write(file, 5, b"more"), Ok(Reply::Done));
    assert_eq!((recorded_usage(&mut fs, one), recorded_usage(&mut fs, two)), ([1, 0, 9], [0, 0, 0]));
    assert_eq!(fs.ask(Request::Link { ino: file, dir: two, name: name("link") }), Err(Errno::EDQUOT));
    // Usage may exceed a new limit; a decrease is always allowed.
    fs.set_limit(one, "max_bytes", 1).unwrap();
    let set = SetAttr { size: Some(8), ..SetAttr::default() };
    assert!(fs.ask(Request::SetAttr { ino: file, set }).is_ok());
    assert_eq!(fs.write(file, 8, b"x"), Err(Errno::EDQUOT));
    assert_eq!(fs.fsck(), []);
}
