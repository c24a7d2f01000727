//! A standby follows the journal of a rank over objects in memory, while a server changes the rank,
//! writes checkpoints, or ends at any step of one.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use espalier_meta::{Acknowledge, Check, Config, Format, Input, Io, IoDone, Meta, Now, Outbox};
use espalier_proto::{
    Caller, ClientId, Errno, Ino, Name, NewNode, ObjectId, Rank, Reply, Request, RequestId, Space, Time,
};
use espalier_standby::{BegunRecovery, Follow, FollowedState, Follower, begin, load};
use espalier_store::engine::{
    KeyPage, ObjectLockHolder, ObjectOp, ObjectStat, Pending, PoolId, Version, VersionedBytes,
};
use espalier_store::{
    Engine, EngineError, FormatOptions, Journal, MemoryEngine, ObjectOptions, ObjectStore, Pairs, RankLease,
    Store, Superblock, break_lease, format_objects,
};

const TERM: Duration = Duration::from_secs(1 << 20);

fn config(superblock: &Superblock) -> Config {
    let mut config = Config::new(superblock.hash_key, 64, superblock.journal_bytes);
    (config.reserve, config.acknowledge) = (0, Acknowledge::Durable);
    config
}

fn format(engine: &Arc<MemoryEngine>) -> Superblock {
    let options = FormatOptions { journal_bytes: 4 << 20, ..FormatOptions::default() };
    let superblock = format_objects(engine, "a store", &options).unwrap();
    let lease = RankLease::acquire_for(engine, Rank(0), TERM).unwrap();
    let (store, _) = ObjectStore::open(engine, &superblock, lease, ObjectOptions::default()).unwrap();
    store.stage(Format { time: Time::new(1, 0), uid: 0, gid: 0, perm: 0o777 }.writes()).unwrap();
    store.publish().unwrap();
    superblock
}

/// A metadata server with the rank.
struct ActiveServer {
    engine: Arc<MemoryEngine>,
    meta: Meta,
    store: Arc<dyn Store>,
    journal: Journal,
    /// How the server began: number of frames that it replayed, and whether it had followed.
    replayed: usize,
    was_warm: bool,
    next: u64,
    names: BTreeSet<String>,
}

impl ActiveServer {
    /// Opens the store as a new client, with what a standby has followed.
    fn start(objects: &MemoryEngine, superblock: &Superblock, followed: Option<FollowedState>) -> Self {
        let engine = Arc::new(objects.client());
        let lease = RankLease::acquire_for(&engine, Rank(0), TERM).unwrap();
        let opened = ObjectStore::open(&engine, superblock, lease, ObjectOptions::default()).unwrap();
        let (store, journal): (Arc<dyn Store>, _) = (Arc::new(opened.0), opened.1);
        let mut journal = journal.erase();
        let first = store.get(ObjectId::SUPER, b"").unwrap().unwrap();
        let begun = begin(store.as_ref(), &journal, first, config(superblock), followed).unwrap();
        let BegunRecovery { mut recovery, rest } = begun;
        let mut fetch = |wanted: &_| load(store.as_ref(), wanted).map_err(|error| error.errno());
        let mut replayed = 0;
        rest.replay(&mut journal, |frame| {
            replayed += 1;
            recovery.frame(frame, &mut fetch).unwrap();
        })
        .unwrap();
        journal.forget_torn().unwrap();
        let (end, used) = (journal.position(), journal.used());
        let (meta, calls) = recovery.finish(end, used, &[], &[], &mut fetch).unwrap();
        assert!(calls.is_empty(), "no big files here");
        let (was_warm, next, names) = (rest.is_followed(), 0, BTreeSet::new());
        Self { engine, meta, store, journal, replayed, was_warm, next, names }
    }

    /// Ends the process, and has the next holder fence it.
    fn end(self, objects: &MemoryEngine) -> BTreeSet<String> {
        objects.fence(&self.engine.address()).unwrap();
        break_lease(objects, Rank(0), &[self.engine.address()]).unwrap();
        self.names
    }

    fn execute(&mut self, io: Io) -> Result<IoDone, Errno> {
        let failed = |_| Errno::EIO;
        Ok(match io {
            Io::Load(wanted) => load(self.store.as_ref(), &wanted).map_err(|error| error.errno())?,
            Io::Journal { frame, sync } => {
                let end = match frame.is_empty() {
                    true => self.journal.position(),
                    false => self.journal.append(&frame).map_err(failed)?,
                };
                if sync {
                    self.journal.sync().map_err(failed)?;
                }
                IoDone::Journaled { end, used: self.journal.used(), frame }
            }
            Io::Sync => self.journal.sync().map(|_| IoDone::Synced).map_err(failed)?,
            Io::Stage { writes } => {
                self.store.stage(writes.to_vec()).map_err(|error| error.errno())?;
                IoDone::Staged
            }
            Io::Publish { trim } => {
                self.store.publish().map_err(|error| error.errno())?;
                self.journal.trim(trim);
                IoDone::Published { used: self.journal.used() }
            }
            Io::Yield | Io::Rest | Io::WriteDelay => IoDone::Paused,
            other => panic!("no such I/O here: {other:?}"),
        })
    }

    fn input(&mut self, input: Input) -> Vec<Result<Reply, Errno>> {
        let mut out = Outbox::default();
        let now = Now { time: Time::new(1, 0), uptime_ms: 1, queued: 0 };
        self.meta.on(now, input, &mut out);
        while let Some((id, io)) = out.io.pop() {
            if let Io::WriteDelay = io {
                continue;
            }
            let result = self.execute(io);
            self.meta.on(now, Input::Done { id, result }, &mut out);
        }
        out.replies.into_iter().map(|reply| reply.result).collect()
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        self.next += 1;
        let (from, id) = (ClientId(1), RequestId(self.next));
        let caller = Caller { uid: 0, gid: 0, pid: 1, groups: None };
        let input = Input::Request { from, id, below: id, follows: Vec::new(), caller, request };
        self.input(input).pop().expect("an answer")
    }

    fn make(&mut self, name: &str) {
        let (node, perm, umask, open, exclusive) = (NewNode::Directory, 0o755, 0, None, true);
        let (dir, text, writeback) = (Ino::ROOT, name, None);
        let name = Name::new(name.as_bytes()).unwrap();
        self.ask(Request::Create { dir, name, node, perm, umask, open, exclusive, writeback }).unwrap();
        self.names.insert(text.into());
    }

    fn remove(&mut self, name: &str) {
        let (dir, text) = (Ino::ROOT, name);
        self.ask(Request::RmDir { dir, name: Name::new(name.as_bytes()).unwrap(), time: None }).unwrap();
        self.names.remove(text);
    }

    /// Makes and removes directories.
    fn work(&mut self, from: usize, to: usize) {
        for n in from..to {
            self.make(&format!("directory {n}"));
            if n % 3 == 2 {
                self.remove(&format!("directory {}", n - 2));
            }
        }
    }

    fn checkpoint(&mut self) {
        for _ in 0..3 {
            self.input(Input::Drain);
        }
        assert!(self.meta.is_idle());
    }

    /// Checks that the tree has these names, in memory and in the tables.
    fn check(mut self, superblock: &Superblock, names: &BTreeSet<String>, context: &str) {
        for name in names {
            let name = Name::new(name.as_bytes()).unwrap();
            let found = self.ask(Request::Lookup { dir: Ino::ROOT, name });
            assert!(matches!(found, Ok(Reply::Entry(_))), "{context}: {found:?}");
        }
        self.make("a last one");
        self.remove("a last one");
        self.checkpoint();
        let mut check = Check::new(superblock.hash_key, Rank(0));
        self.store.records().for_each(|record| {
            let (object, key, value) = record.unwrap();
            check.record(object, &key, &value);
        });
        assert_eq!(check.finish(), [], "{context}");
        let stored = self.store.scan(ObjectId::fragment(Ino::ROOT, 0), Bound::Unbounded, usize::MAX).unwrap();
        let stored: BTreeSet<_> =
            stored.iter().map(|(key, _)| String::from_utf8_lossy(&key[8..]).into_owned()).collect();
        assert_eq!(stored, *names, "{context}");
    }
}

fn follower<E: Engine>(engine: E, superblock: &Superblock) -> Box<Follower<E>> {
    Box::new(Follower::new(Arc::new(engine), superblock.clone(), config(superblock), 1 << 20))
}

/// Looks until nothing more is there.
fn catch_up(follower: &mut impl Follow) {
    while follower.look().unwrap() {}
    let progress = follower.progress();
    assert!(progress.is_at_end());
    assert_eq!(progress.frames_behind(), 0);
}

fn made() -> (Arc<MemoryEngine>, Superblock, ActiveServer) {
    let objects = Arc::new(MemoryEngine::new());
    let superblock = format(&objects);
    let active = ActiveServer::start(&objects, &superblock, None);
    (objects, superblock, active)
}

#[test]
fn standby_replays_only_what_it_has_not_followed() {
    let (objects, superblock, mut active) = made();
    let mut follower = follower(objects.client(), &superblock);
    active.work(0, 200);
    catch_up(follower.as_mut());
    assert!(follower.progress().replayed() >= 200);
    active.work(200, 210);
    let names = active.end(&objects);
    let next = ActiveServer::start(&objects, &superblock, follower.end());
    assert!(next.was_warm);
    assert!((10..30).contains(&next.replayed), "{} frames", next.replayed);
    next.check(&superblock, &names, "warm");
}

#[test]
fn follower_writes_nothing_and_needs_no_lease() {
    let (objects, superblock, mut active) = made();
    let before = objects.lock_holder("0.lock").unwrap();
    let mut follower = follower(objects.client(), &superblock);
    active.work(0, 20);
    let versions = || {
        objects
            .list("")
            .unwrap()
            .into_iter()
            .map(|name| (objects.read_versioned(&name).unwrap().version, name))
            .collect::<Vec<_>>()
    };
    let all = versions();
    catch_up(follower.as_mut());
    assert_eq!(versions(), all);
    assert_eq!(objects.lock_holder("0.lock").unwrap(), before);
}

#[test]
fn checkpoint_outdates_what_was_followed() {
    for looks_again in [false, true] {
        let (objects, superblock, mut active) = made();
        let mut follower = follower(objects.client(), &superblock);
        active.work(0, 50);
        catch_up(follower.as_mut());
        active.checkpoint();
        active.work(50, 60);
        if looks_again {
            catch_up(follower.as_mut());
        }
        let names = active.end(&objects);
        let next = ActiveServer::start(&objects, &superblock, follower.end());
        assert_eq!(next.was_warm, looks_again);
        next.check(&superblock, &names, "after a checkpoint");
    }
}

#[test]
fn another_server_outdates_what_was_followed() {
    for looks_again in [false, true] {
        let (objects, superblock, mut active) = made();
        let mut follower = follower(objects.client(), &superblock);
        active.work(0, 50);
        catch_up(follower.as_mut());
        let names = active.end(&objects);
        let mut second = ActiveServer::start(&objects, &superblock, None);
        second.names = names;
        second.work(50, 60);
        if looks_again {
            catch_up(follower.as_mut());
        }
        let names = second.end(&objects);
        let third = ActiveServer::start(&objects, &superblock, follower.end());
        assert_eq!(third.was_warm, looks_again);
        third.check(&superblock, &names, "after another server");
    }
}

#[test]
fn ring_is_reused_many_times_while_it_is_followed() {
    let (objects, superblock, mut active) = made();
    let mut follower = follower(objects.client(), &superblock);
    let mut random = fastrand::Rng::with_seed(1);
    let mut from = 0;
    for round in 0..60 {
        let to = from + random.usize(1..600);
        active.work(from, to);
        from = to;
        if random.bool() {
            active.checkpoint();
        }
        if round % 4 != 3 {
            catch_up(follower.as_mut());
        }
    }
    active.work(from, from + 5);
    catch_up(follower.as_mut());
    active.work(from + 5, from + 10);
    let names = active.end(&objects);
    let next = ActiveServer::start(&objects, &superblock, follower.end());
    assert!(next.was_warm && next.replayed < 30, "{} frames", next.replayed);
    next.check(&superblock, &names, "after many laps");
}

#[test]
fn server_that_ends_in_a_checkpoint_is_taken_over() {
    let mut warm = 0;
    for steps in 0..40 {
        let (objects, superblock, mut active) = made();
        active.work(0, 40);
        active.checkpoint();
        let mut follower = follower(objects.client(), &superblock);
        active.work(40, 70);
        catch_up(follower.as_mut());
        active.work(70, 75);
        active.engine.end_after(steps);
        for _ in 0..3 {
            active.input(Input::Drain);
        }
        if steps % 2 == 0 {
            let _ = follower.look();
            let _ = follower.look();
        }
        let names = active.end(&objects);
        let next = ActiveServer::start(&objects, &superblock, follower.end());
        warm += u32::from(next.was_warm);
        next.check(&superblock, &names, &format!("{steps} steps"));
    }
    assert!(warm > 5, "{warm} were warm");
}

/// The engine of a follower, which calls a function before one of its reads.
struct HookedEngine {
    engine: MemoryEngine,
    hook: Mutex<Option<Hook>>,
}

struct Hook {
    /// Number of reads before the call.
    after: usize,
    call: Box<dyn FnOnce() + Send>,
}

impl HookedEngine {
    fn reads(&self) {
        let mut hook = self.hook.lock().unwrap();
        match hook.as_mut() {
            Some(Hook { after: 0, .. }) => {
                let due = hook.take().unwrap();
                drop(hook);
                (due.call)();
            }
            Some(Hook { after, .. }) => *after -= 1,
            None => {}
        }
    }
}

impl Engine for HookedEngine {
    fn submit(&self, object: &str, ops: Vec<ObjectOp>) -> Pending<Version> {
        panic!("a follower writes to {object}: {ops:?}")
    }

    fn submit_read(&self, object: &str, offset: u64, length: usize) -> Pending<VersionedBytes> {
        self.reads();
        self.engine.submit_read(object, offset, length)
    }

    fn values(&self, object: &str, keys: &[&[u8]]) -> Result<Pairs, EngineError> {
        self.reads();
        self.engine.values(object, keys)
    }

    fn page(&self, object: &str, from: Bound<&[u8]>, limit: usize) -> Result<KeyPage, EngineError> {
        self.reads();
        self.engine.page(object, from, limit)
    }

    fn page_of_prefix(
        &self,
        object: &str,
        prefix: &[u8],
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, EngineError> {
        self.reads();
        self.engine.page_of_prefix(object, prefix, from, limit)
    }

    fn submit_stat(&self, object: &str) -> Pending<ObjectStat> {
        self.reads();
        self.engine.submit_stat(object)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        self.engine.list(prefix)
    }

    fn lock(&self, object: &str, _: &str, _: Duration) -> Result<(), EngineError> {
        panic!("a follower locks {object}")
    }

    fn renew(&self, object: &str, _: &str, _: Duration) -> Result<(), EngineError> {
        panic!("a follower locks {object}")
    }

    fn unlock(&self, object: &str, _: &str) -> Result<(), EngineError> {
        panic!("a follower unlocks {object}")
    }

    fn lock_holder(&self, object: &str) -> Result<Option<ObjectLockHolder>, EngineError> {
        self.engine.lock_holder(object)
    }

    fn settle_fences(&self) -> Result<(), EngineError> {
        self.engine.settle_fences()
    }

    fn break_lock(&self, object: &str, _: &ObjectLockHolder) -> Result<(), EngineError> {
        panic!("a follower breaks the lock of {object}")
    }

    fn fence(&self, address: &str) -> Result<(), EngineError> {
        panic!("a follower fences {address}")
    }

    fn has_unknown_writes(&self) -> bool {
        self.engine.has_unknown_writes()
    }

    fn address(&self) -> String {
        self.engine.address()
    }

    fn space(&self) -> Result<Space, EngineError> {
        self.engine.space()
    }

    fn pool(&self) -> PoolId {
        self.engine.pool()
    }

    fn other_pool(&self, name: &str) -> Result<Self, EngineError> {
        panic!("a follower needs the pool {name}")
    }

    fn known_space(&self) -> Option<Space> {
        self.engine.known_space()
    }
}

/// A checkpoint, whole or in part, and changes at any moment of a follower's look.
#[test]
fn store_changes_at_any_read_of_the_follower() {
    let mut warm = 0;
    for (after, steps) in (0..40).flat_map(|after| [(after, None), (after, Some(2)), (after, Some(4))]) {
        let (objects, superblock, mut active) = made();
        active.work(0, 90);
        active.checkpoint();
        // A new server loads what it changes, and so does the follower.
        let mut names = active.end(&objects);
        let mut active = ActiveServer::start(&objects, &superblock, None);
        active.names = std::mem::take(&mut names);
        active.remove("directory 88");
        active.make("directory 88");
        let active = Arc::new(Mutex::new(active));
        let engine = HookedEngine { engine: objects.client(), hook: Mutex::new(None) };
        let changing = Arc::clone(&active);
        let call = move || {
            let mut active = changing.lock().unwrap();
            active.remove("directory 85");
            active.make("a new one");
            if let Some(steps) = steps {
                active.engine.end_after(steps);
            }
            for _ in 0..3 {
                active.input(Input::Drain);
            }
            if steps.is_none() {
                active.remove("directory 86");
            }
        };
        *engine.hook.lock().unwrap() = Some(Hook { after, call: Box::new(call) });
        let mut follower = follower(engine, &superblock);
        let _ = follower.look();
        let _ = follower.look();
        if after % 2 == 0 {
            let _ = follower.look();
        }
        let followed = follower.end();
        let Ok(active) = Arc::try_unwrap(active) else { panic!("the follower is gone") };
        let names = active.into_inner().unwrap().end(&objects);
        let next = ActiveServer::start(&objects, &superblock, followed);
        warm += u32::from(next.was_warm);
        next.check(&superblock, &names, &format!("after {after} reads, {steps:?} steps"));
    }
    assert!(warm > 20, "{warm} were warm");
}
