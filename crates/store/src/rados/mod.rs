//! The engine over RADOS, the object store of Ceph.
//!
//! This module is the only one of the crate with `unsafe` code: it calls librados.
#![allow(unsafe_code)]

mod api;
mod budget;
mod error;
mod key;
mod operation;
mod placement;
mod space;

use std::ffi::{CStr, CString, c_char};
use std::ops::Bound;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use espalier_proto::Space;

use api::{Api, RadosHandle, Timeval};
use budget::Budget;
pub use error::RadosError;
use error::{describe, failure};
use operation::{Submitted, SubmittedKind, WriteOperation};
use space::SpaceCache;

use crate::Pairs;
use crate::engine::{
    Engine, EngineError, EngineFailure, KeyPage, ObjectLockHolder, ObjectOp, ObjectStat, Pending, PoolId,
    Version, VersionedBytes,
};

/// Name of all our locks: an object has at most one.
const LOCK: &CStr = c"espalier";
/// Keys that an OSD returns at most for one request.
const PAGE_KEYS: u64 = 1024;
/// Seconds for which a fenced address is refused. Its process stops writing when its lease ends.
const FENCED_SECONDS: u32 = 24 * 3600;
/// Time limits, in seconds: without them a call waits until the cluster is healthy.
const LIMITS: [(&CStr, &CStr); 3] =
    [(c"rados_osd_op_timeout", c"30"), (c"rados_mon_op_timeout", c"30"), (c"client_mount_timeout", c"15")];
const RENEW_ONLY: u8 = 2;

/// Where a namespace of a cluster is, and how to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RadosAddress {
    pub pool: String,
    /// Empty: the pool's default namespace.
    pub namespace: String,
    /// The cluster's configuration; `None`: Ceph's default, or the environment's `CEPH_CONF`.
    pub conf: Option<PathBuf>,
    /// User without the prefix `client.`.
    pub user: String,
}

/// One namespace of a pool, over a connection that several pools may share.
pub struct Rados {
    api: &'static Api,
    cluster: Arc<RadosClient>,
    pool: RadosHandle,
    name: String,
    namespace: CString,
    budget: Arc<Budget>,
}

/// A connection to a cluster: a client with an address, which can be fenced.
struct RadosClient {
    api: &'static Api,
    handle: RadosHandle,
    address: String,
    space: SpaceCache,
    /// A write has exceeded its time limit.
    has_unknown_writes: Arc<AtomicBool>,
}

// SAFETY: librados locks its handles; all its functions may be called concurrently.
unsafe impl Send for Rados {}
// SAFETY: as above.
unsafe impl Sync for Rados {}
// SAFETY: as above.
unsafe impl Send for RadosClient {}
// SAFETY: as above.
unsafe impl Sync for RadosClient {}

impl Rados {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// The message of each error states the remedy.
    pub fn connect(to: &RadosAddress) -> Result<Self, RadosError> {
        let namespace = text(&to.namespace)?;
        let pool = text(&to.pool)?;
        let cluster = Arc::new(RadosClient::open(to)?);
        Self::open(&cluster, &pool, &namespace).map_err(|code| match -code {
            libc::ENOENT => RadosError::NoPool(to.pool.clone()),
            _ => RadosError::Failed { operation: "open the pool", why: describe(code) },
        })
    }

    /// Empty: the pool's default namespace.
    pub fn namespace(&self) -> String {
        self.namespace.to_string_lossy().into_owned()
    }

    fn open(cluster: &Arc<RadosClient>, pool: &CStr, namespace: &CStr) -> Result<Self, i32> {
        let mut rados = Self {
            api: cluster.api,
            cluster: Arc::clone(cluster),
            pool: null_mut(),
            name: pool.to_string_lossy().into_owned(),
            namespace: namespace.into(),
            budget: Budget::new(),
        };
        // SAFETY: the connection is open until it is dropped; the handle of the pool is written
        // once.
        check(unsafe { (rados.api.ioctx_create)(cluster.handle, pool.as_ptr(), &raw mut rados.pool) })?;
        // SAFETY: the handle is valid until `drop`; the string ends with NUL.
        unsafe { (rados.api.ioctx_set_namespace)(rados.pool, namespace.as_ptr()) };
        Ok(rados)
    }
}

impl RadosClient {
    fn open(to: &RadosAddress) -> Result<Self, RadosError> {
        let api = Api::load()?;
        let user = text(&format!("client.{}", to.user))?;
        let mut cluster = Self {
            api,
            handle: null_mut(),
            address: String::new(),
            space: SpaceCache::default(),
            has_unknown_writes: Arc::default(),
        };
        let connect = |code| RadosError::Connect { user: to.user.clone(), why: describe(code) };
        // SAFETY: the strings end with NUL; the handle is written once.
        check(unsafe { (api.create2)(&raw mut cluster.handle, c"ceph".as_ptr(), user.as_ptr(), 0) })
            .map_err(connect)?;
        cluster.configure(to)?;
        // SAFETY: the handle is valid until `drop`.
        check(unsafe { (api.connect)(cluster.handle) }).map_err(connect)?;
        cluster.address = cluster.own_address()?;
        Ok(cluster)
    }

    fn configure(&self, to: &RadosAddress) -> Result<(), RadosError> {
        let conf = to.conf.as_ref().map(|conf| text(&conf.to_string_lossy())).transpose()?;
        let path = conf.as_ref().map_or(null(), |conf| conf.as_ptr());
        // SAFETY: the handle is valid; a null path means the default.
        check(unsafe { (self.api.conf_read_file)(self.handle, path) }).map_err(|code| RadosError::Conf {
            conf: to.conf.clone().unwrap_or_else(|| "/etc/ceph/ceph.conf".into()),
            why: describe(code),
        })?;
        for (option, value) in LIMITS {
            // SAFETY: the strings end with NUL.
            check(unsafe { (self.api.conf_set)(self.handle, option.as_ptr(), value.as_ptr()) })
                .map_err(|code| RadosError::Failed { operation: "set a time limit", why: describe(code) })?;
        }
        Ok(())
    }

    fn own_address(&self) -> Result<String, RadosError> {
        let mut address: *mut c_char = null_mut();
        // SAFETY: on success librados returns a string that the caller frees.
        let code = unsafe { (self.api.getaddrs)(self.handle, &raw mut address) };
        check(code)
            .map_err(|code| RadosError::Failed { operation: "get the own address", why: describe(code) })?;
        // SAFETY: as above.
        let owned = unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned();
        // SAFETY: as above; it is not used afterwards.
        unsafe { (self.api.buffer_free)(address) };
        Ok(owned)
    }

    /// The space of a pool, which may be some seconds old.
    fn space_of(&self, pool: &str) -> Result<Space, EngineError> {
        self.space.get(pool, || self.command(space::COMMAND))
    }
}

impl Rados {
    /// Executes a read operation that fills one iterator of keys and values.
    fn read_keys(
        &self,
        object: &str,
        prepare: impl FnOnce(RadosHandle, *mut RadosHandle),
    ) -> Result<Pairs, EngineError> {
        const OPERATION: &str = "read keys of";
        let name = name_of(OPERATION, object)?;
        let mut iterator: RadosHandle = null_mut();
        // SAFETY: the operation is released below, after its last use.
        let read = unsafe { (self.api.create_read_op)() };
        prepare(read, &raw mut iterator);
        // SAFETY: all handles are valid; what `prepare` has passed outlives the call.
        let code = unsafe { (self.api.read_op_operate)(read, self.pool, name.as_ptr(), 0) };
        let pairs = if code == 0 { self.pairs(object, iterator) } else { Ok(Vec::new()) };
        // SAFETY: neither is used afterwards.
        unsafe {
            if !iterator.is_null() {
                (self.api.omap_get_end)(iterator);
            }
            (self.api.release_read_op)(read);
        }
        check(code).map_err(|code| EngineError::new(OPERATION, object, failure(code)))?;
        pairs
    }

    /// The keys and values of an iterator.
    fn pairs(&self, object: &str, iterator: RadosHandle) -> Result<Pairs, EngineError> {
        let mut pairs = Vec::new();
        loop {
            let (mut key, mut value) = (null_mut(), null_mut());
            let (mut key_length, mut value_length) = (0, 0);
            // SAFETY: the iterator is valid.
            let code = unsafe {
                (self.api.omap_get_next2)(
                    iterator,
                    &raw mut key,
                    &raw mut value,
                    &raw mut key_length,
                    &raw mut value_length,
                )
            };
            if code != 0 || key.is_null() {
                return Ok(pairs);
            }
            // SAFETY: both are valid until the iterator is advanced; an empty value may be null.
            let (key, value) = unsafe {
                let value = if value.is_null() { &[] } else { bytes_of(value, value_length) };
                (bytes_of(key, key_length), value)
            };
            let foreign = EngineFailure::Invalid("a key that Espalier did not write");
            let key = key::decode(key).ok_or_else(|| EngineError::new("read keys of", object, foreign))?;
            pairs.push((key, value.to_vec()));
        }
    }

    /// One request of a listing: the pairs, and whether more follow.
    fn request_page(
        &self,
        object: &str,
        prefix: &CStr,
        after: &CStr,
        limit: u64,
    ) -> Result<KeyPage, EngineError> {
        let mut more = 0;
        let pairs = self.read_keys(object, |read, iterator| {
            // SAFETY: `after`, `prefix` and `more` outlive the operation.
            unsafe {
                (self.api.read_op_omap_get_vals2)(
                    read,
                    after.as_ptr(),
                    prefix.as_ptr(),
                    limit,
                    iterator,
                    &raw mut more,
                    null_mut(),
                );
            }
        })?;
        Ok(KeyPage { pairs, more: more != 0 })
    }

    fn take_lock(
        &self,
        operation: &'static str,
        (object, cookie): (&str, &str),
        term: Duration,
        flags: u8,
    ) -> Result<(), EngineError> {
        let (name, cookie) = (name_of(operation, object)?, name_of(operation, cookie)?);
        let mut term = Timeval {
            seconds: term.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            microseconds: term.subsec_micros().into(),
        };
        // SAFETY: the strings end with NUL and outlive the call, as does the term.
        let code = unsafe {
            (self.api.lock_exclusive)(
                self.pool,
                name.as_ptr(),
                LOCK.as_ptr(),
                cookie.as_ptr(),
                c"".as_ptr(),
                &raw mut term,
                flags,
            )
        };
        check(code).map_err(|code| EngineError::new(operation, object, failure(code)))
    }
}

impl Drop for Rados {
    fn drop(&mut self) {
        // Callbacks refer to the completions, and every operation has a time limit.
        self.budget.drain();
        if !self.pool.is_null() {
            // SAFETY: the handle is not used afterwards.
            unsafe { (self.api.ioctx_destroy)(self.pool) };
        }
    }
}

impl Drop for RadosClient {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is not used afterwards, and no pool is open.
            unsafe { (self.api.shutdown)(self.handle) };
        }
    }
}

impl Engine for Rados {
    fn submit(&self, object: &str, ops: Vec<ObjectOp>) -> Pending<Version> {
        let name = match name_of("write", object) {
            Ok(name) => name,
            Err(error) => return Pending::done(Err(error)),
        };
        let (write, bytes) = match WriteOperation::new(self.api, &ops) {
            Ok(prepared) => prepared,
            Err(refused) => return Pending::done(Err(EngineError::new("write", object, refused))),
        };
        let (submitted, pending) =
            Submitted::write(object, &self.cluster.has_unknown_writes, self.budget.take(bytes));
        submitted.start(self.api, |completion, _| write.start(self.pool, &name, completion));
        pending
    }

    fn submit_read(&self, object: &str, offset: u64, length: usize) -> Pending<VersionedBytes> {
        let name = match name_of("read", object) {
            Ok(name) => name,
            Err(error) => return Pending::done(Err(error)),
        };
        let (submitted, pending) = Submitted::read(object, length, self.budget.take(length));
        submitted.start(self.api, |completion, kind| {
            let SubmittedKind::Read { buffer, .. } = kind else { return -libc::EINVAL };
            let into = buffer.as_mut_ptr().cast();
            // SAFETY: the buffer belongs to the submitted operation, which lives until it is
            // complete.
            unsafe { (self.api.aio_read)(self.pool, name.as_ptr(), completion, into, buffer.len(), offset) }
        });
        pending
    }

    fn values(&self, object: &str, keys: &[&[u8]]) -> Result<Pairs, EngineError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key::encode(key)).collect();
        let pointers: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        let lengths: Vec<usize> = keys.iter().map(Vec::len).collect();
        self.read_keys(object, |read, iterator| {
            // SAFETY: the keys outlive the operation.
            unsafe {
                (self.api.read_op_omap_get_vals_by_keys2)(
                    read,
                    pointers.as_ptr(),
                    pointers.len(),
                    lengths.as_ptr(),
                    iterator,
                    null_mut(),
                );
            }
        })
    }

    fn page_of_prefix(
        &self,
        object: &str,
        prefix: &[u8],
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<KeyPage, EngineError> {
        let text = |key| {
            CString::new(key)
                .map_err(|_| EngineError::new("list", object, EngineFailure::Invalid("a key with NUL")))
        };
        let prefix = text(key::start(prefix))?;
        let mut after = match from {
            Bound::Included(key) => key::start(key),
            Bound::Excluded(key) => key::encode(key),
            Bound::Unbounded => Vec::new(),
        };
        let mut page = KeyPage::default();
        loop {
            let wanted = PAGE_KEYS.min((limit - page.pairs.len()) as u64);
            let next = self.request_page(object, &prefix, &text(after)?, wanted)?;
            let last = next.pairs.last().map(|(key, _)| key::encode(key));
            page.pairs.extend(next.pairs);
            page.more = next.more;
            match last {
                Some(last) if page.more && page.pairs.len() < limit => after = last,
                _ => return Ok(page),
            }
        }
    }

    fn submit_stat(&self, object: &str) -> Pending<ObjectStat> {
        let name = match name_of("examine", object) {
            Ok(name) => name,
            Err(error) => return Pending::done(Err(error)),
        };
        let (submitted, pending) = Submitted::stat(self.api, object, self.budget.take(0));
        submitted.start(self.api, |completion, kind| {
            let SubmittedKind::Stat { query, .. } = kind else { return -libc::EINVAL };
            query.start(self.pool, &name, completion)
        });
        pending
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, EngineError> {
        let failed = |code| EngineError::new("list", prefix, failure(code));
        let mut listing: RadosHandle = null_mut();
        // SAFETY: the listing is closed below, after its last use.
        check(unsafe { (self.api.nobjects_list_open)(self.pool, &raw mut listing) }).map_err(failed)?;
        let mut names = Vec::new();
        let code = loop {
            let (mut name, mut locator, mut namespace) = (null(), null(), null());
            let mut lengths = [0; 3];
            let [length, locator_length, namespace_length] = &mut lengths;
            // SAFETY: all results are written; the name is valid until the next call.
            let code = unsafe {
                (self.api.nobjects_list_next2)(
                    listing,
                    &raw mut name,
                    &raw mut locator,
                    &raw mut namespace,
                    length,
                    locator_length,
                    namespace_length,
                )
            };
            if code != 0 {
                break code;
            }
            // SAFETY: as above.
            let name = String::from_utf8_lossy(unsafe { bytes_of(name, lengths[0]) });
            if name.starts_with(prefix) {
                names.push(name.into_owned());
            }
        };
        // SAFETY: it is not used afterwards.
        unsafe { (self.api.nobjects_list_close)(listing) };
        if code != -libc::ENOENT {
            return Err(failed(code));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError> {
        let taken = self.take_lock("lock", (object, cookie), term, 0);
        // librados distinguishes another client's lock from this client's.
        taken.map_err(|error| match error.failure {
            EngineFailure::Exists => EngineError { failure: EngineFailure::Locked, ..error },
            _ => error,
        })
    }

    fn renew(&self, object: &str, cookie: &str, term: Duration) -> Result<(), EngineError> {
        let renewed = self.take_lock("renew the lock of", (object, cookie), term, RENEW_ONLY);
        renewed.map_err(|error| match error.failure {
            EngineFailure::Locked => EngineError { failure: EngineFailure::Missing, ..error },
            _ => error,
        })
    }

    fn unlock(&self, object: &str, cookie: &str) -> Result<(), EngineError> {
        let (name, cookie) = (name_of("unlock", object)?, name_of("unlock", cookie)?);
        // SAFETY: the strings end with NUL.
        let code = unsafe { (self.api.unlock)(self.pool, name.as_ptr(), LOCK.as_ptr(), cookie.as_ptr()) };
        check(code)
            .or_else(|code| if code == -libc::ENOENT { Ok(()) } else { Err(code) })
            .map_err(|code| EngineError::new("unlock", object, failure(code)))
    }

    fn lock_holder(&self, object: &str) -> Result<Option<ObjectLockHolder>, EngineError> {
        let name = name_of("examine the lock of", object)?;
        let mut exclusive = 0;
        // An exclusive lock has one holder, whose strings are short.
        let mut texts = [[0_u8; 1024]; 4];
        let mut lengths = [1024_usize; 4];
        let [tag, clients, cookies, addresses] = texts.each_mut().map(|text| text.as_mut_ptr().cast());
        let [tag_length, clients_length, cookies_length, addresses_length] = lengths.each_mut();
        // SAFETY: each buffer has the length that is passed with it.
        let count = unsafe {
            (self.api.list_lockers)(
                self.pool,
                name.as_ptr(),
                LOCK.as_ptr(),
                &raw mut exclusive,
                tag,
                tag_length,
                clients,
                clients_length,
                cookies,
                cookies_length,
                addresses,
                addresses_length,
            )
        };
        if count == 0 || count == -(libc::ENOENT as isize) {
            return Ok(None);
        }
        if count < 0 {
            return Err(EngineError::new("examine the lock of", object, failure(count as i32)));
        }
        let [_, client, cookie, address] = texts.map(|text| {
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            text.to_string_lossy().into_owned()
        });
        Ok(Some(ObjectLockHolder { client, cookie, address }))
    }

    fn break_lock(&self, object: &str, holder: &ObjectLockHolder) -> Result<(), EngineError> {
        const OPERATION: &str = "break the lock of";
        let (name, cookie) = (name_of(OPERATION, object)?, name_of(OPERATION, &holder.cookie)?);
        let client = name_of(OPERATION, &holder.client)?;
        // SAFETY: the strings end with NUL.
        let code = unsafe {
            (self.api.break_lock)(self.pool, name.as_ptr(), LOCK.as_ptr(), client.as_ptr(), cookie.as_ptr())
        };
        check(code)
            .or_else(|code| if code == -libc::ENOENT { Ok(()) } else { Err(code) })
            .map_err(|code| EngineError::new(OPERATION, object, failure(code)))
    }

    fn fence(&self, address: &str) -> Result<(), EngineError> {
        let text = name_of("fence", address)?;
        // SAFETY: librados does not change the string.
        let code = unsafe {
            (self.api.blocklist_add)(self.cluster.handle, text.as_ptr().cast_mut(), FENCED_SECONDS)
        };
        check(code).map_err(|code| EngineError::new("fence", address, failure(code)))
    }

    /// An OSD learns of a fence from the first request of a client that knows of it. So one object
    /// of each placement group is examined.
    fn settle_fences(&self) -> Result<(), EngineError> {
        // SAFETY: the handle is valid.
        let code = unsafe { (self.api.wait_for_latest_osdmap)(self.cluster.handle) };
        check(code).map_err(|code| EngineError::new("settle", "fences", failure(code)))?;
        let namespace = self.namespace.to_string_lossy();
        let objects = placement::objects(&self.name, &namespace, |command| self.cluster.command(command))?;
        let examined: Vec<_> = objects.iter().map(|object| self.submit_stat(object)).collect();
        for stat in examined {
            match stat.wait() {
                Err(error) if !error.is(&EngineFailure::Missing) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn has_unknown_writes(&self) -> bool {
        self.cluster.has_unknown_writes.load(Ordering::Acquire)
    }

    fn address(&self) -> String {
        self.cluster.address.clone()
    }

    fn space(&self) -> Result<Space, EngineError> {
        self.cluster.space_of(&self.name)
    }

    fn pool(&self) -> PoolId {
        // SAFETY: the handle is valid.
        PoolId { name: self.name.clone(), number: unsafe { (self.api.ioctx_get_id)(self.pool) } }
    }

    fn other_pool(&self, name: &str) -> Result<Self, EngineError> {
        const OPERATION: &str = "open the pool";
        Self::open(&self.cluster, &name_of(OPERATION, name)?, &self.namespace)
            .map_err(|code| EngineError::new(OPERATION, name, failure(code)))
    }

    fn known_space(&self) -> Option<Space> {
        self.cluster.space.known(&self.name)
    }
}

impl RadosClient {
    /// The monitors' reply to a command in JSON.
    fn command(&self, command: &CStr) -> Result<Vec<u8>, EngineError> {
        let (mut reply, mut status) = (null_mut(), null_mut());
        let (mut reply_length, mut status_length) = (0, 0);
        let commands = [command.as_ptr()];
        // SAFETY: the command outlives the call; both results are freed below.
        let code = unsafe {
            (self.api.mon_command)(
                self.handle,
                commands.as_ptr(),
                1,
                c"".as_ptr(),
                0,
                &raw mut reply,
                &raw mut reply_length,
                &raw mut status,
                &raw mut status_length,
            )
        };
        // SAFETY: the reply has this length; neither result is used after it is freed.
        let bytes = unsafe {
            let bytes = if reply.is_null() { Vec::new() } else { bytes_of(reply, reply_length).to_vec() };
            for buffer in [reply, status] {
                if !buffer.is_null() {
                    (self.api.buffer_free)(buffer);
                }
            }
            bytes
        };
        check(code).map_err(|code| EngineError::new("query", "the monitors", failure(code)))?;
        Ok(bytes)
    }
}

/// # Safety
/// `start` points to `length` bytes that outlive the result.
unsafe fn bytes_of<'a>(start: *const c_char, length: usize) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(start.cast(), length) }
}

fn check(code: i32) -> Result<(), i32> {
    if code < 0 { Err(code) } else { Ok(()) }
}

fn text(text: &str) -> Result<CString, RadosError> {
    CString::new(text).map_err(|_| RadosError::Nul(text.into()))
}

fn name_of(operation: &'static str, name: &str) -> Result<CString, EngineError> {
    let invalid = |_| EngineError::new(operation, name, EngineFailure::Invalid("a name with a NUL byte"));
    CString::new(name).map_err(invalid)
}
