//! Object engines: named objects with an ordered map and bytes, shared by processes and machines.
//!
//! An [`Engine`] is what the store needs of RADOS, and no more. [`MemoryEngine`] is its
//! counterpart for tests.

mod error;
mod memory;
mod pending;

use std::ops::Bound;
use std::time::Duration;

use espalier_proto::{Space, Time};

pub use error::{EngineError, EngineFailure};
pub use memory::{MemoryEngine, MemoryPoolKind, TimeOut, TimedOutEffect};
pub use pending::{Completion, Pending};

use crate::{Pairs, stamp};

/// Largest number of keys in one compound write or one page.
pub const KEYS_MAX: usize = 10_000;

/// Version of an object: increases with each write to it.
pub type Version = u64;

/// A step of a compound write to one object. All steps are applied, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOp {
    /// Fails with [`EngineFailure::Guard`] unless the object has this version.
    AssertVersion(Version),
    /// Fails with [`EngineFailure::Missing`] unless the object exists.
    AssertExists,
    /// Makes the object; fails with [`EngineFailure::Exists`] if it exists.
    CreateExclusive,
    /// Fails with [`EngineFailure::Guard`] unless the key has this value, which is not empty.
    Compare {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Sets keys. Values are not empty: RADOS compares an absent key as an empty value.
    SetKeys(Pairs),
    /// Removes keys; absent ones are ignored.
    RemoveKeys(Vec<Vec<u8>>),
    /// Writes bytes; a gap before them reads as zeros.
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Replaces all bytes.
    WriteFull(Vec<u8>),
    Append(Vec<u8>),
    /// Sets the number of bytes.
    Truncate(u64),
    /// Sets [`ObjectStat::mtime`].
    SetMtime(Time),
    /// Makes a range read as zeros, without extending the object.
    Zero {
        offset: u64,
        length: u64,
    },
    /// Removes the object with its keys and bytes.
    Remove,
}

/// Keys and values of one object, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    pub pairs: Pairs,
    /// True if more keys follow.
    pub more: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStat {
    /// Number of bytes, without those of the keys.
    pub size: u64,
    /// As last set; the start of the epoch if it never was.
    pub mtime: Time,
}

/// The bytes of an object, and their version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionedBytes {
    pub bytes: Vec<u8>,
    pub version: Version,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolId {
    pub name: String,
    /// No other pool of the cluster ever has this number.
    pub number: i64,
}

/// The holder of an object's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLockHolder {
    /// The engine's name of the client.
    pub client: String,
    /// The client's name of this lock.
    pub cookie: String,
    /// The client's address, for [`Engine::fence`].
    pub address: String,
}

/// Named objects, each with an ordered map and bytes. All methods may be called concurrently.
///
/// Writes to one object from one client are applied in the order in which they are submitted, and
/// reads see all writes that were submitted before them. A write is durable when it is complete.
///
/// # Errors
/// All methods return an [`EngineError`]. After [`EngineFailure::TimedOut`] or
/// [`EngineFailure::Io`] a write may have been applied, or may be applied later.
pub trait Engine: Send + Sync + 'static {
    /// Begins a compound write. Blocks while too much is in flight. Returns the object's new
    /// version.
    fn submit(&self, object: &str, ops: Vec<ObjectOp>) -> Pending<Version>;

    /// Begins a read of at most `length` bytes: fewer at the end of the object. Blocks while too
    /// much is in flight.
    fn submit_read(&self, object: &str, offset: u64, length: usize) -> Pending<VersionedBytes>;

    /// The values of keys, ascending; absent keys are left out.
    fn values(&self, object: &str, keys: &[&[u8]]) -> Result<Pairs, EngineError>;

    /// At most `limit` keys and values, ascending.
    fn page(&self, object: &str, from: Bound<&[u8]>, limit: usize) -> Result<KeyPage, EngineError> {
        self.page_of_prefix(object, b"", from, limit)
    }

    /// As [`Self::page`], of the keys that start with `prefix`. `from` is one of them or before
    /// them.
    fn page_of_prefix(
        &self,
        object: &str,
        prefix: &[u8],
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, EngineError>;

    /// Begins to read an object's size and mtime. Blocks while too much is in flight.
    fn submit_stat(&self, object: &str) -> Pending<ObjectStat>;

    /// Names of the objects that start with `prefix`, ascending. Lists the whole namespace.
    fn list(&self, prefix: &str) -> Result<Vec<String>, EngineError>;

    /// Takes the exclusive lock of an object for `term`; the object is made if absent.
    ///
    /// # Errors
    /// [`EngineFailure::Locked`] if it is held, also by this client.
    fn lock(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError>;

    /// Extends a lock that this client holds: it ends `term` from now.
    ///
    /// # Errors
    /// [`EngineFailure::Missing`] if the lock has expired or was broken.
    fn renew(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError>;

    /// Releases a lock. No effect if it is not held.
    fn unlock(&self, object: &str, cookie: &str) -> Result<(), EngineError>;

    /// The holder of the lock, if it has not expired.
    fn lock_holder(&self, object: &str) -> Result<Option<ObjectLockHolder>, EngineError>;

    /// Releases the lock of another client.
    fn break_lock(&self, object: &str, holder: &ObjectLockHolder) -> Result<(), EngineError>;

    /// Excludes the client with this address from all pools: none of its operations on an object
    /// takes effect after an operation on that object that this client has begun after the return;
    /// they fail with [`EngineFailure::Fenced`]. A new client of the same process has a new
    /// address.
    fn fence(&self, address: &str) -> Result<(), EngineError>;

    /// Waits until no operation on the pool of a client that was fenced can take effect.
    /// After [`Self::fence`] this holds only for objects on which this client has begun an
    /// operation.
    fn settle_fences(&self) -> Result<(), EngineError>;

    /// True if a write of this client has exceeded its time limit: it may take effect until the
    /// client is fenced.
    fn has_unknown_writes(&self) -> bool;

    /// This client's address.
    fn address(&self) -> String;

    /// Size and free space of the pool.
    fn space(&self) -> Result<Space, EngineError>;

    /// The pool's name and number.
    fn pool(&self) -> PoolId;

    /// The same namespace of another pool, for the same client: with the same address.
    ///
    /// # Errors
    /// [`EngineFailure::Missing`] if there is no such pool.
    fn other_pool(&self, name: &str) -> Result<Self, EngineError>
    where
        Self: Sized;

    /// Size and free space of the pool as they were last reported, without waiting. `None`: they
    /// are unknown.
    fn known_space(&self) -> Option<Space>;

    /// The time that changes of streams get.
    fn now(&self) -> Time {
        stamp::now()
    }

    /// A compound write that is waited for.
    fn apply(&self, object: &str, ops: Vec<ObjectOp>) -> Result<Version, EngineError> {
        self.submit(object, ops).wait()
    }

    /// An object's size and mtime.
    fn stat(&self, object: &str) -> Result<ObjectStat, EngineError> {
        self.submit_stat(object).wait()
    }

    /// Reads at most `length` bytes.
    fn read(&self, object: &str, offset: u64, length: usize) -> Result<Vec<u8>, EngineError> {
        self.submit_read(object, offset, length).wait().map(|read| read.bytes)
    }

    /// All bytes of a small object, with their version for [`Self::write_if`].
    fn read_versioned(&self, object: &str) -> Result<VersionedBytes, EngineError> {
        self.submit_read(object, 0, VERSIONED_MAX).wait()
    }

    /// Compare and swap: replaces all bytes of a small object if it still has `version`; `None`: if
    /// it does not exist. Returns the new version.
    ///
    /// # Errors
    /// [`EngineFailure::Guard`], [`EngineFailure::Exists`] or [`EngineFailure::Missing`] if another
    /// client was faster.
    fn write_if(
        &self,
        object: &str,
        bytes: Vec<u8>,
        version: Option<Version>,
    ) -> Result<Version, EngineError> {
        let guard = version.map_or(ObjectOp::CreateExclusive, ObjectOp::AssertVersion);
        self.apply(object, vec![guard, ObjectOp::WriteFull(bytes)])
    }
}

/// Largest number of bytes of an object that is read with its version.
pub const VERSIONED_MAX: usize = 4 << 20;
