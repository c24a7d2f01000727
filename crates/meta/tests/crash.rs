//! After a crash at any instant, the state is the one after some operation, and nothing durable is
//! missing.

use std::collections::BTreeMap;

use crate::harness::{self, Harness, name};
use espalier_proto::*;

type Dump = BTreeMap<String, String>;

struct Walker {
    rng: fastrand::Rng,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
}

impl Walker {
    fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), dirs: vec![Ino::ROOT], files: vec![] }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.u8(0..12))
    }

    fn step(&mut self, fs: &mut Harness) {
        let dir = self.dirs[self.rng.usize(..self.dirs.len())];
        let other = self.dirs[self.rng.usize(..self.dirs.len())];
        let (a, b) = (self.name(), self.name());
        let file = (!self.files.is_empty()).then(|| self.files[self.rng.usize(..self.files.len())]);
        let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE, RenameFlags::WHITEOUT][self.rng.usize(..3)];
        match self.rng.u8(0..12) {
            0 | 1 => {
                if let Ok(ino) = fs.create(dir, &a, NewNode::Regular) {
                    self.files.push(ino);
                }
            }
            2 => {
                if let Ok(ino) = fs.create(dir, &a, NewNode::Directory) {
                    self.dirs.push(ino);
                }
            }
            3 => drop(fs.create(dir, &a, NewNode::Symlink(b"target".as_slice().into()))),
            4 => drop(fs.ask(Request::Unlink { dir, name: name(&a), time: None })),
            5 => drop(fs.ask(Request::RmDir { dir, name: name(&a), time: None })),
            6 | 7 => {
                let request = Request::Rename {
                    from_dir: dir,
                    from: name(&a),
                    to_dir: other,
                    to: name(&b),
                    flags,
                    time: None,
                };
                drop(fs.ask(request));
            }
            8 => {
                if let Some(ino) = file {
                    drop(fs.ask(Request::Link { ino, dir, name: name(&a) }));
                }
            }
            9 => {
                if let Some(ino) = file {
                    let data = vec![self.rng.u8(1..); self.rng.usize(1..50)];
                    drop(fs.write(ino, self.rng.u64(0..40), &data));
                }
            }
            10 => {
                if let Some(ino) = file {
                    let set = SetAttr { size: Some(self.rng.u64(0..80)), ..SetAttr::default() };
                    let id = fs.send(&harness::ROOT_CALLER, Request::SetAttr { ino, set });
                    // A change of a stream waits until a crash cannot undo its mark.
                    while !fs.answers.contains_key(&id) {
                        fs.run_until_idle();
                    }
                }
            }
            _ => {
                if let Some(ino) = file {
                    let (name, value) = (b"user.a".as_slice().into(), vec![self.rng.u8(..); 9].into());
                    let mode = XattrMode::Any;
                    drop(fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }));
                }
            }
        }
        for _ in 0..self.rng.usize(0..2) {
            if let Some(ino) = file {
                fs.send(&harness::ROOT_CALLER, Request::Forget { ino, lookups: 1 });
            }
        }
    }
}

#[test]
fn every_state_after_a_crash_was_once_the_state() {
    for seed in 0..150 {
        // Half of the runs keep nothing in memory that can be loaded again.
        let cache_bytes = if seed % 2 == 0 { usize::MAX } else { 0 };
        let mut fs = Harness::with(espalier_meta::Config { cache_bytes, ..harness::config() });
        let mut walker = Walker::new(seed);
        for _round in 0..4 {
            fs.lazy = true;
            let mut states: Vec<Dump> = vec![fs.dump()];
            let mut durable = 0;
            for _ in 0..walker.rng.usize(5..60) {
                walker.step(&mut fs);
                // Reading may load, but must change nothing.
                states.push(fs.dump());
                match walker.rng.u8(0..10) {
                    0 => fs.input(espalier_meta::Input::Tick),
                    1 => fs.checkpoint(),
                    2 | 3 => drop(fs.run_one()),
                    4 if walker.rng.bool() => {
                        fs.run_until_idle();
                        let reply = fs.send(&harness::ROOT_CALLER, Request::Fsync { ino: Ino::ROOT });
                        fs.run_until_idle();
                        fs.run_until_idle();
                        assert_eq!(fs.answers.remove(&reply), Some(Ok(Reply::Done)), "seed {seed}");
                        durable = states.len() - 1;
                    }
                    _ => {}
                }
            }
            fs = fs.crash();
            let found = fs.dump();
            let at = states.iter().rposition(|state| *state == found);
            assert!(
                at.is_some_and(|at| at >= durable),
                "seed {seed}: {at:?} of {}, durable {durable}",
                states.len()
            );
            assert_eq!(fs.fsck(), [], "seed {seed}");
            walker.dirs.truncate(1);
            walker.files.clear();
        }
    }
}
