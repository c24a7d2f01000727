//! Fault injection: one operation on each store, in each state of memory, with each of its I/Os
//! failing in turn.

use std::collections::BTreeMap;

use espalier_meta::{Acknowledge, Config};
use espalier_proto::*;

use super::{Engine, Fault, Harness, ROOT_CALLER, config, name};

/// Runs a test on an empty file system on each store.
pub fn everywhere(test: impl Fn(&mut Harness)) {
    for engine in [Engine::Memory, Engine::Local] {
        let mut fs = Harness::on(engine, small());
        test(&mut fs);
        assert_eq!(fs.fsck(), [], "{engine:?}");
    }
}

/// Checks an operation under all faults: it happens completely or not at all; later requests are
/// answered; durable state stays; and fsck finds nothing.
///
/// `before`: prepares the file system. `act`: the operation, with the lookups that a kernel would
/// make.
pub fn under_faults(before: impl Fn(&mut Harness), act: impl Fn(&mut Harness) -> Result<Reply, Errno>) {
    let sync = Config { acknowledge: Acknowledge::Durable, ..config() };
    let written = Config { acknowledge: Acknowledge::Written, ..config() };
    let evicting = Config { cache_bytes: 0, ..config() };
    for (engine, config, memory) in [
        (Engine::Memory, config(), CacheState::Warm),
        (Engine::Memory, evicting, CacheState::Warm),
        (Engine::Memory, config(), CacheState::Replayed),
        (Engine::Memory, config(), CacheState::Cold),
        (Engine::Memory, sync, CacheState::Cold),
        (Engine::Memory, written, CacheState::Cold),
        (Engine::Local, small(), CacheState::Cold),
    ] {
        Scenario { engine, config, memory, before: &before, act: &act }.run();
    }
}

/// With a journal hardly larger than its reserve: a larger one takes longer to open.
fn small() -> Config {
    Config { journal_capacity: (1 << 20) + (256 << 10), ..config() }
}

/// The state of memory when the operation starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    /// Everything is in memory.
    Warm,
    /// The part that was replayed from the journal.
    Replayed,
    /// Nothing is in memory.
    Cold,
}

struct Scenario<'a> {
    engine: Engine,
    config: Config,
    memory: CacheState,
    before: &'a dyn Fn(&mut Harness),
    act: &'a dyn Fn(&mut Harness) -> Result<Reply, Errno>,
}

/// The visible state of a file system: names with attributes, and contents.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen(BTreeMap<String, String>, BTreeMap<String, Vec<u8>>);

fn look(fs: &mut Harness) -> Seen {
    Seen(fs.dump(), fs.contents())
}

/// The operation without faults.
struct Calm {
    before: Seen,
    reply: Result<Reply, Errno>,
    after: Seen,
}

impl Calm {
    /// Both states are complete.
    fn is_whole(&self, seen: &Seen) -> bool {
        self.is_before(seen) || (seen.0 == self.after.0 && self.has_bytes(seen))
    }

    /// Bytes of big files are not journaled: each file has those of one of the two states.
    fn has_bytes(&self, seen: &Seen) -> bool {
        let states = [&self.before, &self.after];
        seen.1.iter().all(|(path, bytes)| states.iter().any(|state| state.1.get(path) == Some(bytes)))
    }

    /// True if nothing visible has happened. A file may have been unstuffed.
    fn is_before(&self, seen: &Seen) -> bool {
        let same = |(one, other): (&String, &String)| {
            let (one, other) = (one.split_once(" | ").unwrap(), other.split_once(" | ").unwrap());
            one == other || (one.0 == other.0 && one.1 == "streamed")
        };
        seen.0.keys().eq(self.before.0.keys())
            && seen.0.values().zip(self.before.0.values()).all(same)
            && self.has_bytes(seen)
    }
}

impl Scenario<'_> {
    fn run(&self) {
        let before = look(&mut self.prepare());
        let mut fs = self.prepare();
        let reply = self.act(&mut fs);
        assert!(write_out(&mut fs));
        let count = fs.count;
        let calm = Calm { before, reply, after: look(&mut fs) };
        assert_eq!(fs.fsck(), []);
        assert!(count > 0, "nothing could go wrong");
        for at in 0..count {
            self.crash(&calm, at);
            for fault in self.faults() {
                self.fail(&calm, at, *fault);
            }
        }
        for seed in 0..if self.engine == Engine::Memory { 8 } else { 2 } {
            self.among_others(&calm, seed);
        }
    }

    /// The ways in which an I/O fails. They are equivalent for the store in a directory, which is
    /// slower.
    fn faults(&self) -> &'static [Fault] {
        match self.engine {
            Engine::Memory => &[
                Fault::Fails(Errno::EIO),
                Fault::Fails(Errno::ENOSPC),
                Fault::SeemsToFail(Errno::EIO),
                Fault::SeemsToFail(Errno::ENOSPC),
                Fault::Interrupts,
            ],
            Engine::Local => &[Fault::Fails(Errno::EIO)],
        }
    }

    /// A file system without faults so far.
    fn prepare(&self) -> Harness {
        let mut fs = Harness::on(self.engine, self.config.clone());
        (self.before)(&mut fs);
        assert_eq!(fs.ask(Request::Fsync { ino: Ino::ROOT }), Ok(Reply::Done));
        if self.memory == CacheState::Cold {
            fs.checkpoint();
        }
        if self.memory != CacheState::Warm {
            fs = fs.crash();
        }
        fs.count = 0;
        fs
    }

    /// The operation, always at the same time.
    fn act(&self, fs: &mut Harness) -> Result<Reply, Errno> {
        fs.now = Time::new(2000, 0);
        (self.act)(fs)
    }

    fn crash(&self, calm: &Calm, at: u64) {
        let context = format!("{:?}, {:?}, crash at I/O {at}", self.engine, self.memory);
        let mut fs = self.prepare();
        fs.fault = Some((at, Fault::Crash));
        let reply = self.act(&mut fs);
        let done = fs.count <= at && self.config.acknowledge == Acknowledge::Durable && reply.is_ok();
        let durable = write_out(&mut fs) || done;
        self.after_crash(calm, fs, durable, &context);
    }

    fn after_crash(&self, calm: &Calm, fs: Harness, durable: bool, context: &str) -> Seen {
        let mut fs = fs.crash();
        let seen = look(&mut fs);
        let fits = calm.is_whole(&seen) && (!durable || seen.0 == calm.after.0);
        assert!(
            fits,
            "{context}, durable: {durable}: {seen:#?}\nbefore: {:#?}\nafter: {:#?}",
            calm.before, calm.after
        );
        assert_eq!(fs.fsck(), [], "{context}");
        seen
    }

    fn fail(&self, calm: &Calm, at: u64, fault: Fault) {
        let context = format!("{:?}, {:?}, {fault:?} at I/O {at}", self.engine, self.memory);
        let mut fs = self.prepare();
        fs.fault = Some((at, fault));
        let reply = self.act(&mut fs);
        if reply != calm.reply && fs.meta.broken().is_none() {
            assert!(reply.is_err(), "{context}: {reply:?}");
            let seen = look(&mut fs);
            if calm.is_before(&seen) {
                assert_eq!(self.act(&mut fs), calm.reply, "{context}: it works the next time");
            } else {
                // Only the report of the outcome is missing.
                assert_eq!(seen.0, calm.after.0, "{context}: {reply:?}");
            }
        }
        let durable = write_out(&mut fs);
        let broken = fs.meta.broken().is_some();
        // With sync, no reply exposes what was lost: what it reports still holds after a restart.
        let mut reported = Vec::new();
        if broken && self.config.acknowledge == Acknowledge::Durable {
            for path in calm.before.0.keys().chain(calm.after.0.keys()) {
                match fs.walk(path) {
                    Err(Errno::EIO) => {}
                    found => reported.push((path, found.is_ok())),
                }
            }
        } else {
            let seen = look(&mut fs);
            assert_eq!(seen.0, calm.after.0, "{context}");
            assert!(calm.has_bytes(&seen), "{context}: {:?}", seen.1);
        }
        // Other requests are served; with a broken journal they change nothing.
        let probe = fs.create(Ino::ROOT, "probe", NewNode::Directory);
        assert_eq!(probe.err(), broken.then_some(Errno::EIO), "{context}");
        if !broken {
            fs.ask(Request::RmDir { dir: Ino::ROOT, name: name("probe"), time: None }).unwrap();
            assert_eq!(fs.fsck(), [], "{context}");
        }
        fs.drain();
        let seen = self.after_crash(calm, fs, durable || !broken, &context);
        for (path, is_there) in reported {
            assert_eq!(seen.0.contains_key(path), is_there, "{context}: {path} was reported");
        }
    }

    /// Other clients use the same files, and I/O completes in any order.
    fn among_others(&self, calm: &Calm, seed: u64) {
        let context = format!("{:?}, {:?}, seed {seed}", self.engine, self.memory);
        let mut fs = self.prepare();
        fs.shuffle = Some(fastrand::Rng::with_seed(seed));
        let names = calm.before.0.keys().chain(calm.after.0.keys());
        let mut others: Vec<Request> = names
            .filter(|path| path.matches('/').count() == 1)
            .map(|path| Request::Lookup { dir: Ino::ROOT, name: name(&path[1..]) })
            .collect();
        others.push(Request::ReadDir { dir: Ino::ROOT, after: 0, limit: 100, plus: false });
        others.push(Request::Fsync { ino: Ino::ROOT });
        let others: Vec<u64> = others.into_iter().map(|request| fs.send(&ROOT_CALLER, request)).collect();
        assert_eq!(self.act(&mut fs), calm.reply, "{context}");
        while fs.run_one() {}
        fs.shuffle = None;
        for id in others {
            assert!(matches!(fs.answers.remove(&id), Some(Ok(_))), "{context}: another got no answer");
        }
        assert_eq!(look(&mut fs), calm.after, "{context}");
        assert_eq!(fs.fsck(), [], "{context}");
    }
}

/// Makes the state durable, then writes a checkpoint. Returns true if the first was acknowledged.
fn write_out(fs: &mut Harness) -> bool {
    let durable = fs.ask(Request::Fsync { ino: Ino::ROOT }).is_ok();
    fs.checkpoint();
    durable
}
