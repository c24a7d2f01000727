use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_proto::{Space, Time};

use super::{
    Engine, EngineError, EngineFailure, KeyPage, ObjectLockHolder, ObjectOp, ObjectStat, Pending, PoolId,
    Version, VersionedBytes,
};
use crate::{Pairs, stamp};

const TOTAL_BYTES: u64 = 1 << 40;

/// An engine in memory, shared by several clients of one process, for tests. Each client fails as
/// the tests demand.
#[derive(Default)]
pub struct MemoryEngine {
    shared: Arc<Mutex<SharedObjects>>,
    /// Number of this client.
    client: u64,
    /// Number of the pool; the first one always exists.
    pool: i64,
}

/// Operations that a pool supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPoolKind {
    #[default]
    Replicated,
    /// No keys.
    ErasureCoded,
    /// Neither keys nor overwrites.
    AppendOnly,
}

#[derive(Clone, Default)]
struct MemoryPool {
    name: String,
    kind: MemoryPoolKind,
    objects: BTreeMap<String, MemoryObject>,
}

#[derive(Default)]
struct SharedObjects {
    /// The pools, by number.
    pools: BTreeMap<i64, MemoryPool>,
    /// Number of pools that were made.
    pools_made: i64,
    version: Version,
    clients: u64,
    fenced: BTreeSet<String>,
    /// Advances the clock of locks.
    skipped: Duration,
    is_full: bool,
    /// Number of operations so far, and the one from which on all fail.
    operations: u64,
    fails_from: Option<u64>,
    /// The only operation that fails.
    fails_once: Option<u64>,
    /// Number of operations that remain to clients which end.
    ending: BTreeMap<u64, u64>,
    /// The time of changes; `None`: the system's.
    now: Option<Time>,
    time_out: Option<TimeOut>,
    /// Clients whose writes have exceeded their time limit.
    unknown: BTreeSet<u64>,
    /// Writes that have exceeded their time limit and take effect later, in order.
    late: Vec<LateWrite>,
}

/// Whether an operation on an object exceeds its time limit, and what becomes of it.
pub type TimeOut = Box<dyn FnMut(&str) -> Option<TimedOutEffect> + Send>;

/// The effect of a write that has exceeded its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOutEffect {
    None,
    Applied,
    /// It is applied before the client's next operation on the object, or by
    /// [`MemoryEngine::apply_late`], unless the client is fenced before.
    Late,
}

struct LateWrite {
    address: String,
    pool: i64,
    object: String,
    ops: Vec<ObjectOp>,
}

#[derive(Clone, Default)]
struct MemoryObject {
    bytes: Vec<u8>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    mtime: Time,
    version: Version,
    lock: Option<MemoryLock>,
}

#[derive(Clone)]
struct MemoryLock {
    holder: ObjectLockHolder,
    until: Instant,
}

impl MemoryEngine {
    pub fn new() -> Self {
        Self::default()
    }

    /// Another client of the same objects.
    #[must_use]
    pub fn client(&self) -> Self {
        let mut shared = self.shared();
        shared.clients += 1;
        Self { shared: Arc::clone(&self.shared), client: shared.clients, pool: self.pool }
    }

    /// Makes a pool, for all clients.
    pub fn add_pool(&self, name: &str, kind: MemoryPoolKind) {
        let mut shared = self.shared();
        shared.pools_made += 1;
        let (number, name) = (shared.pools_made, name.into());
        shared.pools.insert(number, MemoryPool { name, kind, ..MemoryPool::default() });
    }

    /// Removes a pool with its objects.
    pub fn remove_pool(&self, name: &str) {
        self.shared().pools.retain(|_, pool| pool.name != name);
    }

    /// An independent copy of all objects, without locks and faults: what remains after a crash of
    /// all clients.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let SharedObjects { pools, pools_made, version, .. } = &*self.shared();
        let mut shared =
            SharedObjects { pools: pools.clone(), pools_made: *pools_made, ..Default::default() };
        shared.version = *version;
        for object in shared.pools.values_mut().flat_map(|pool| pool.objects.values_mut()) {
            object.lock = None;
        }
        Self { shared: Arc::new(Mutex::new(shared)), client: 0, pool: self.pool }
    }

    /// Number of operations so far, of all clients.
    pub fn operations(&self) -> u64 {
        self.shared().operations
    }

    /// After `operations` more, all fail; `None`: none fails.
    pub fn fail_after(&self, operations: Option<u64>) {
        let mut shared = self.shared();
        shared.fails_from = operations.map(|operations| shared.operations + operations);
    }

    /// After `operations` more, one fails.
    pub fn fail_once_after(&self, operations: u64) {
        let mut shared = self.shared();
        shared.fails_once = Some(shared.operations + operations);
    }

    /// Makes all later writes that need space fail, or succeed again.
    pub fn set_full(&self, is_full: bool) {
        self.shared().is_full = is_full;
    }

    /// After `operations` more, all operations of this client fail: its process has ended.
    pub fn end_after(&self, operations: u64) {
        self.shared().ending.insert(self.client, operations);
    }

    /// Makes operations exceed their time limit, by their objects; `None`: none does.
    pub fn set_time_out(&self, time_out: Option<TimeOut>) {
        self.shared().time_out = time_out;
    }

    /// Applies the writes that are late.
    pub fn apply_late(&self) {
        self.shared().apply_late(|_| true);
    }

    /// Sets the time of later changes.
    pub fn set_now(&self, now: Time) {
        self.shared().now = Some(now);
    }

    /// Advances the clock of locks.
    pub fn skip(&self, time: Duration) {
        self.shared().skipped += time;
    }

    fn shared(&self) -> MutexGuard<'_, SharedObjects> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects, for one operation of this client that is no write.
    fn enter(
        &self,
        operation: &'static str,
        object: &str,
    ) -> Result<MutexGuard<'_, SharedObjects>, EngineError> {
        let (shared, effect) = self.begin(operation, object)?;
        match effect {
            None => Ok(shared),
            Some(_) => Err(EngineError::new(operation, object, EngineFailure::TimedOut)),
        }
    }

    /// As [`Self::enter`], of any operation; with what becomes of it if it exceeds its time limit.
    fn begin(
        &self,
        operation: &'static str,
        object: &str,
    ) -> Result<(MutexGuard<'_, SharedObjects>, Option<TimedOutEffect>), EngineError> {
        let mut shared = self.shared();
        let number = shared.operations;
        shared.operations += 1;
        let fails = shared.fails_once == Some(number) || shared.fails_from.is_some_and(|from| number >= from);
        let has_ended = shared.ending.get_mut(&self.client).is_some_and(|left| {
            let has_ended = *left == 0;
            *left = left.saturating_sub(1);
            has_ended
        });
        let failure = match shared.fenced.contains(&self.address()) {
            true => EngineFailure::Fenced,
            false if has_ended => EngineFailure::TimedOut,
            false if fails => EngineFailure::Io(5),
            false => {
                let address = self.address();
                shared.apply_late(|late| late.address == address && late.object == object);
                let effect = shared.time_out.as_mut().and_then(|time_out| time_out(object));
                return Ok((shared, effect));
            }
        };
        Err(EngineError::new(operation, object, failure))
    }

    fn found<T>(
        &self,
        operation: &'static str,
        object: &str,
        read: impl FnOnce(&MemoryObject) -> T,
    ) -> Result<T, EngineError> {
        let mut shared = self.enter(operation, object)?;
        let missing = || EngineError::new(operation, object, EngineFailure::Missing);
        shared.objects(self.pool).get(object).map(read).ok_or_else(missing)
    }

    fn write(&self, name: &str, ops: Vec<ObjectOp>) -> Result<Version, EngineError> {
        let (mut shared, effect) = self.begin("write", name)?;
        let timed_out = Err(EngineError::new("write", name, EngineFailure::TimedOut));
        if effect.is_some() {
            shared.unknown.insert(self.client);
        }
        match effect {
            None => shared.write(self.pool, name, ops),
            Some(TimedOutEffect::None) => timed_out,
            Some(TimedOutEffect::Applied) => shared.write(self.pool, name, ops).and(timed_out),
            Some(TimedOutEffect::Late) => {
                let (address, pool) = (self.address(), self.pool);
                shared.late.push(LateWrite { address, pool, object: name.into(), ops });
                timed_out
            }
        }
    }
}

impl SharedObjects {
    /// Applies late writes of clients that are not fenced.
    fn apply_late(&mut self, which: impl Fn(&LateWrite) -> bool) {
        if self.late.is_empty() {
            return;
        }
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|late| which(late));
        self.late = later;
        for LateWrite { address, pool, object, ops } in due {
            if !self.fenced.contains(&address) {
                // Nobody learns the outcome.
                let _ = self.write(pool, &object, ops);
            }
        }
    }

    fn write(&mut self, pool: i64, name: &str, ops: Vec<ObjectOp>) -> Result<Version, EngineError> {
        // A single step that fails changes nothing, so the object is not copied.
        let is_full = self.is_full;
        let version = self.version + 1;
        let MemoryPool { kind, objects, .. } = self.pool(pool);
        let before = match ops.len() {
            1 => objects.remove(name),
            _ => objects.get(name).cloned(),
        };
        let is_single = ops.len() == 1;
        let mut state = ObjectState { exists: before.is_some(), object: before.unwrap_or_default() };
        let mut apply = |op| {
            if kind.supports(&op, &state.object) {
                state.apply(op, is_full)
            } else {
                Err(EngineFailure::Unsupported)
            }
        };
        let applied = ops.into_iter().try_for_each(&mut apply);
        if let Err(failure) = applied {
            if is_single && state.exists {
                objects.insert(name.into(), state.object);
            }
            return Err(EngineError::new("write", name, failure));
        }
        state.object.version = version;
        match state.exists {
            true => objects.insert(name.into(), state.object),
            false => objects.remove(name),
        };
        self.version = version;
        Ok(version)
    }
}

/// An object during a compound write.
struct ObjectState {
    object: MemoryObject,
    exists: bool,
}

impl ObjectState {
    fn apply(&mut self, op: ObjectOp, is_full: bool) -> Result<(), EngineFailure> {
        let is_removal = matches!(op, ObjectOp::Remove | ObjectOp::RemoveKeys(_) | ObjectOp::Truncate(_));
        if is_full && !is_removal {
            return Err(EngineFailure::Full);
        }
        let Self { object, exists } = self;
        match op {
            ObjectOp::AssertExists | ObjectOp::AssertVersion(_) | ObjectOp::Compare { .. } if !*exists => {
                return Err(EngineFailure::Missing);
            }
            ObjectOp::AssertVersion(version) if version != object.version => {
                return Err(EngineFailure::Guard);
            }
            ObjectOp::Compare { key, value } if object.keys.get(&key) != Some(&value) => {
                return Err(EngineFailure::Guard);
            }
            ObjectOp::AssertExists | ObjectOp::AssertVersion(_) | ObjectOp::Compare { .. } => return Ok(()),
            ObjectOp::CreateExclusive if *exists => return Err(EngineFailure::Exists),
            ObjectOp::CreateExclusive => {}
            ObjectOp::SetKeys(pairs) => {
                if pairs.iter().any(|(_, value)| value.is_empty()) {
                    return Err(EngineFailure::Invalid("an empty value"));
                }
                object.keys.extend(pairs);
            }
            // As RADOS does.
            ObjectOp::RemoveKeys(_) if !*exists => return Err(EngineFailure::Missing),
            ObjectOp::Truncate(_) | ObjectOp::Zero { .. } if !*exists => return Ok(()),
            ObjectOp::SetMtime(mtime) => object.mtime = mtime,
            ObjectOp::RemoveKeys(keys) => keys.iter().for_each(|key| drop(object.keys.remove(key))),
            ObjectOp::Write { offset, bytes } => object.write(offset as usize, &bytes),
            ObjectOp::WriteFull(bytes) => object.bytes = bytes,
            ObjectOp::Append(bytes) => object.bytes.extend(bytes),
            ObjectOp::Truncate(size) => object.bytes.resize(size as usize, 0),
            ObjectOp::Zero { offset, length } => {
                let end = object.bytes.len().min((offset + length) as usize);
                let start = end.min(offset as usize);
                object.bytes[start..end].fill(0);
            }
            ObjectOp::Remove => {
                if !*exists {
                    return Err(EngineFailure::Missing);
                }
                (*object, *exists) = (MemoryObject::default(), false);
                return Ok(());
            }
        }
        *exists = true;
        Ok(())
    }
}

impl MemoryObject {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.bytes.len() {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
    }

    /// The lock, if it has not expired.
    fn held(&self, now: Instant) -> Option<&MemoryLock> {
        self.lock.as_ref().filter(|lock| lock.until > now)
    }
}

impl MemoryPoolKind {
    /// True if an operation on an object with this state is possible.
    fn supports(self, op: &ObjectOp, object: &MemoryObject) -> bool {
        match op {
            ObjectOp::SetKeys(_) | ObjectOp::RemoveKeys(_) | ObjectOp::Compare { .. } => {
                self == Self::Replicated
            }
            ObjectOp::Write { offset, .. } => {
                self != Self::AppendOnly || *offset == object.bytes.len() as u64
            }
            ObjectOp::Truncate(_) | ObjectOp::Zero { .. } => self != Self::AppendOnly,
            ObjectOp::AssertVersion(_)
            | ObjectOp::AssertExists
            | ObjectOp::CreateExclusive
            | ObjectOp::WriteFull(_)
            | ObjectOp::Append(_)
            | ObjectOp::SetMtime(_)
            | ObjectOp::Remove => true,
        }
    }
}

impl SharedObjects {
    fn now(&self) -> Instant {
        Instant::now() + self.skipped
    }

    fn pool(&mut self, number: i64) -> &mut MemoryPool {
        self.pools.entry(number).or_default()
    }

    fn objects(&mut self, pool: i64) -> &mut BTreeMap<String, MemoryObject> {
        &mut self.pool(pool).objects
    }
}

impl Engine for MemoryEngine {
    fn submit(&self, object: &str, ops: Vec<ObjectOp>) -> Pending<Version> {
        Pending::done(self.write(object, ops))
    }

    fn submit_read(&self, object: &str, offset: u64, length: usize) -> Pending<VersionedBytes> {
        Pending::done(self.found("read", object, |found| {
            let start = found.bytes.len().min(offset as usize);
            let end = found.bytes.len().min(start.saturating_add(length));
            VersionedBytes { bytes: found.bytes[start..end].to_vec(), version: found.version }
        }))
    }

    fn values(&self, object: &str, keys: &[&[u8]]) -> Result<Pairs, EngineError> {
        self.found("read keys of", object, |found| {
            let keys: BTreeSet<&[u8]> = keys.iter().copied().collect();
            let pair = |key: &[u8]| found.keys.get_key_value(key);
            keys.into_iter().filter_map(pair).map(|(key, value)| (key.clone(), value.clone())).collect()
        })
    }

    fn page_of_prefix(
        &self,
        object: &str,
        prefix: &[u8],
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, EngineError> {
        self.found("list keys of", object, |found| {
            let range = found.keys.range::<[u8], _>((from, Bound::Unbounded));
            let range = range.skip_while(|(key, _)| key.as_slice() < prefix);
            let mut range = range.take_while(|(key, _)| key.starts_with(prefix));
            let pairs = range.by_ref().take(limit).map(|(key, value)| (key.clone(), value.clone()));
            KeyPage { pairs: pairs.collect(), more: range.next().is_some() }
        })
    }

    fn submit_stat(&self, object: &str) -> Pending<ObjectStat> {
        let stat = |found: &MemoryObject| ObjectStat { size: found.bytes.len() as u64, mtime: found.mtime };
        Pending::done(self.found("examine", object, stat))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let mut shared = self.enter("list", prefix)?;
        Ok(shared.objects(self.pool).keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    }

    fn lock(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError> {
        let mut shared = self.enter("lock", object)?;
        let now = shared.now();
        let found = shared.objects(self.pool).entry(object.into()).or_default();
        if found.held(now).is_some() {
            return Err(EngineError::new("lock", object, EngineFailure::Locked));
        }
        let client = format!("client.{}", self.client);
        let holder = ObjectLockHolder { client, cookie: cookie.into(), address: self.address() };
        found.lock = Some(MemoryLock { holder, until: now + term });
        Ok(())
    }

    fn renew(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError> {
        let mut shared = self.enter("renew the lock of", object)?;
        let (now, address) = (shared.now(), self.address());
        let found = shared.objects(self.pool).get_mut(object).and_then(|found| found.lock.as_mut());
        let held = found.filter(|lock| lock.until > now && lock.holder.address == address);
        let Some(lock) = held.filter(|lock| lock.holder.cookie == cookie) else {
            return Err(EngineError::new("renew the lock of", object, EngineFailure::Missing));
        };
        lock.until = now + term;
        Ok(())
    }

    fn unlock(&self, object: &str, cookie: &str) -> Result<(), EngineError> {
        let mut shared = self.enter("unlock", object)?;
        let address = self.address();
        if let Some(found) = shared.objects(self.pool).get_mut(object) {
            let is_ours =
                |lock: &mut MemoryLock| lock.holder.address == address && lock.holder.cookie == cookie;
            found.lock.take_if(is_ours);
        }
        Ok(())
    }

    fn lock_holder(&self, object: &str) -> Result<Option<ObjectLockHolder>, EngineError> {
        let mut shared = self.enter("examine the lock of", object)?;
        let now = shared.now();
        let held = shared.objects(self.pool).get(object).and_then(|found| found.held(now));
        Ok(held.map(|lock| lock.holder.clone()))
    }

    fn break_lock(&self, object: &str, holder: &ObjectLockHolder) -> Result<(), EngineError> {
        let mut shared = self.enter("break the lock of", object)?;
        if let Some(found) = shared.objects(self.pool).get_mut(object) {
            found.lock.take_if(|lock| lock.holder == *holder);
        }
        Ok(())
    }

    fn fence(&self, address: &str) -> Result<(), EngineError> {
        self.enter("fence", address)?.fenced.insert(address.into());
        Ok(())
    }

    fn settle_fences(&self) -> Result<(), EngineError> {
        self.enter("settle", "fences").map(drop)
    }

    fn has_unknown_writes(&self) -> bool {
        self.shared().unknown.contains(&self.client)
    }

    fn address(&self) -> String {
        format!("memory:{}", self.client)
    }

    fn now(&self) -> Time {
        self.shared().now.unwrap_or_else(stamp::now)
    }

    fn space(&self) -> Result<Space, EngineError> {
        let shared = self.enter("measure", "the pool")?;
        Ok(self.measured(&shared))
    }

    fn pool(&self) -> PoolId {
        let name = self.shared().pool(self.pool).name.clone();
        PoolId { name, number: self.pool }
    }

    fn other_pool(&self, name: &str) -> Result<Self, EngineError> {
        let shared = self.enter("open the pool", name)?;
        let found = shared.pools.iter().find(|(number, pool)| **number > 0 && pool.name == name);
        let missing = || EngineError::new("open the pool", name, EngineFailure::Missing);
        let pool = found.map(|(number, _)| *number).ok_or_else(missing)?;
        Ok(Self { shared: Arc::clone(&self.shared), client: self.client, pool })
    }

    fn known_space(&self) -> Option<Space> {
        Some(self.measured(&self.shared()))
    }
}

impl MemoryEngine {
    fn measured(&self, shared: &SharedObjects) -> Space {
        let of = |object: &MemoryObject| {
            let keys: usize = object.keys.iter().map(|(key, value)| key.len() + value.len()).sum();
            (object.bytes.len() + keys) as u64
        };
        let objects = shared.pools.get(&self.pool).map(|pool| pool.objects.values());
        let used: u64 = objects.into_iter().flatten().map(of).sum();
        let free = if shared.is_full { 0 } else { TOTAL_BYTES.saturating_sub(used) };
        Space { total: TOTAL_BYTES, free, available: free, files: 0, files_free: 0 }
    }
}
