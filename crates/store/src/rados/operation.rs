//! Operations in flight: a compound write as librados represents it, and what is needed when an
//! operation is complete.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use espalier_proto::Time;

use super::api::{Api, RadosHandle};
use super::budget::Share;
use super::error::failure;
use super::key;
use crate::Pairs;
use crate::engine::{
    Completion, EngineError, EngineFailure, ObjectOp, ObjectStat, Pending, Version, VersionedBytes,
};

const CREATE_EXCLUSIVE: i32 = 1;
const EQUAL: u8 = 1;
/// Fail if the pool is full, rather than wait for space.
const FULL_TRY: i32 = 64;

/// Attribute of an object with its mtime, which has nanoseconds; that of RADOS has seconds.
const MTIME: &CStr = c"mtime";

fn encode_mtime(mtime: Time) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&mtime.secs.to_le_bytes());
    bytes[8..].copy_from_slice(&mtime.nanos.to_le_bytes());
    bytes
}

fn decode_mtime(bytes: &[u8]) -> Option<Time> {
    let (secs, rest) = bytes.split_first_chunk()?;
    Some(Time::new(i64::from_le_bytes(*secs), u32::from_le_bytes(*rest.first_chunk()?)))
}

/// A compound write. librados has copied its bytes.
pub(super) struct WriteOperation {
    api: &'static Api,
    handle: RadosHandle,
}

impl Drop for WriteOperation {
    fn drop(&mut self) {
        // SAFETY: it is not used afterwards; librados holds what it still needs.
        unsafe { (self.api.release_write_op)(self.handle) };
    }
}

impl WriteOperation {
    /// Prepares a compound write; returns it with the number of its bytes.
    pub fn new(api: &'static Api, ops: &[ObjectOp]) -> Result<(Self, usize), EngineFailure> {
        // SAFETY: it is released when it is dropped.
        let write = Self { api, handle: unsafe { (api.create_write_op)() } };
        let mut bytes = 0;
        for op in ops {
            bytes += write.add(op)?;
        }
        Ok((write, bytes))
    }

    /// Adds one step; returns its number of bytes.
    fn add(&self, op: &ObjectOp) -> Result<usize, EngineFailure> {
        let (api, handle) = (self.api, self.handle);
        // SAFETY: the handle is valid; librados copies the bytes during each call.
        unsafe {
            match op {
                ObjectOp::AssertVersion(version) => (api.write_op_assert_version)(handle, *version),
                ObjectOp::AssertExists => (api.write_op_assert_exists)(handle),
                ObjectOp::CreateExclusive => (api.write_op_create)(handle, CREATE_EXCLUSIVE, null()),
                ObjectOp::Compare { key, value } => self.compare(key, value)?,
                ObjectOp::SetKeys(pairs) => return self.set_keys(pairs),
                ObjectOp::RemoveKeys(keys) => return Ok(self.remove_keys(keys)),
                ObjectOp::Write { offset, bytes } => {
                    (api.write_op_write)(handle, bytes.as_ptr().cast(), bytes.len(), *offset);
                    return Ok(bytes.len());
                }
                ObjectOp::WriteFull(bytes) => {
                    (api.write_op_write_full)(handle, bytes.as_ptr().cast(), bytes.len());
                    return Ok(bytes.len());
                }
                ObjectOp::Append(bytes) => {
                    (api.write_op_append)(handle, bytes.as_ptr().cast(), bytes.len());
                    return Ok(bytes.len());
                }
                ObjectOp::Truncate(size) => (api.write_op_truncate)(handle, *size),
                ObjectOp::SetMtime(mtime) => {
                    let value = encode_mtime(*mtime);
                    let (bytes, length) = (value.as_ptr().cast(), value.len());
                    (api.write_op_setxattr)(handle, MTIME.as_ptr(), bytes, length);
                }
                ObjectOp::Zero { offset, length } => (api.write_op_zero)(handle, *offset, *length),
                ObjectOp::Remove => (api.write_op_remove)(handle),
            }
        }
        Ok(0)
    }

    fn compare(&self, key: &[u8], value: &[u8]) -> Result<(), EngineFailure> {
        if value.is_empty() {
            return Err(EngineFailure::Invalid("a comparison with an empty value"));
        }
        let key = key::encode(key);
        // SAFETY: librados copies both during the call; a null result is allowed.
        unsafe {
            (self.api.write_op_omap_cmp2)(
                self.handle,
                key.as_ptr().cast(),
                EQUAL,
                value.as_ptr().cast(),
                key.len(),
                value.len(),
                null_mut(),
            );
        }
        Ok(())
    }

    fn set_keys(&self, pairs: &Pairs) -> Result<usize, EngineFailure> {
        if pairs.iter().any(|(_, value)| value.is_empty()) {
            return Err(EngineFailure::Invalid("an empty value"));
        }
        let keys: Vec<Vec<u8>> = pairs.iter().map(|(key, _)| key::encode(key)).collect();
        let (names, name_lengths) = strings(keys.iter());
        let (values, value_lengths) = strings(pairs.iter().map(|(_, value)| value));
        // SAFETY: all four lists have the same length; librados copies them during the call.
        unsafe {
            (self.api.write_op_omap_set2)(
                self.handle,
                names.as_ptr(),
                values.as_ptr(),
                name_lengths.as_ptr(),
                value_lengths.as_ptr(),
                names.len(),
            );
        }
        Ok(name_lengths.iter().chain(&value_lengths).sum())
    }

    fn remove_keys(&self, keys: &[Vec<u8>]) -> usize {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key::encode(key)).collect();
        let (names, lengths) = strings(keys.iter());
        // SAFETY: both lists have the same length; librados copies them during the call.
        unsafe {
            (self.api.write_op_omap_rm_keys2)(self.handle, names.as_ptr(), lengths.as_ptr(), names.len());
        }
        lengths.iter().sum()
    }

    /// Submits the write. Returns a negative error number if the callback will not be called.
    pub fn start(&self, pool: RadosHandle, object: &CStr, completion: RadosHandle) -> i32 {
        let start = self.api.aio_write_op_operate;
        // SAFETY: the handles and the name are valid; the server sets the time.
        unsafe { start(self.handle, pool, completion, object.as_ptr(), null_mut(), FULL_TRY) }
    }
}

fn strings<'a>(strings: impl Iterator<Item = &'a Vec<u8>>) -> (Vec<*const c_char>, Vec<usize>) {
    strings.map(|string| (string.as_ptr().cast(), string.len())).unzip()
}

/// An operation in flight: owned by librados until the callback.
pub(super) struct Submitted {
    object: String,
    kind: SubmittedKind,
    /// Returned when the operation is complete.
    _share: Share,
}

pub(super) enum SubmittedKind {
    /// With the record that a write of the client has exceeded its time limit.
    Write(Completion<Version>, Arc<AtomicBool>),
    Read {
        buffer: Vec<u8>,
        reply: Completion<VersionedBytes>,
    },
    Stat {
        query: StatQuery,
        reply: Completion<ObjectStat>,
    },
}

/// A read of an object's size and attributes. librados writes the results until it is complete.
pub(super) struct StatQuery {
    api: &'static Api,
    operation: RadosHandle,
    size: u64,
    seconds: libc::time_t,
    attributes: RadosHandle,
}

impl StatQuery {
    fn new(api: &'static Api) -> Self {
        // SAFETY: it is released when it is dropped.
        let operation = unsafe { (api.create_read_op)() };
        Self { api, operation, size: 0, seconds: 0, attributes: null_mut() }
    }

    /// Submits it. The query must not move until it is complete.
    pub fn start(&mut self, pool: RadosHandle, object: &CStr, completion: RadosHandle) -> i32 {
        let (size, seconds, attributes) =
            (&raw mut self.size, &raw mut self.seconds, &raw mut self.attributes);
        // SAFETY: the handles and the name are valid, and the results outlive the operation.
        unsafe {
            (self.api.read_op_stat)(self.operation, size, seconds, null_mut());
            (self.api.read_op_getxattrs)(self.operation, attributes, null_mut());
            (self.api.aio_read_op_operate)(self.operation, pool, completion, object.as_ptr(), 0)
        }
    }

    fn mtime(&self) -> Option<Time> {
        loop {
            let (mut name, mut value, mut length) = (null(), null(), 0);
            // SAFETY: the iterator is valid; all results are written.
            let code = unsafe {
                (self.api.getxattrs_next)(self.attributes, &raw mut name, &raw mut value, &raw mut length)
            };
            if code < 0 || name.is_null() {
                return None;
            }
            // SAFETY: the name ends with NUL, and is valid until the iterator is advanced.
            if unsafe { CStr::from_ptr(name) } == MTIME && !value.is_null() {
                // SAFETY: the value has this length, and is valid as long as the name.
                return decode_mtime(unsafe { super::bytes_of(value, length) });
            }
        }
    }
}

impl Drop for StatQuery {
    fn drop(&mut self) {
        // SAFETY: neither is used afterwards, and the operation is complete or was not submitted.
        unsafe {
            if !self.attributes.is_null() {
                (self.api.getxattrs_end)(self.attributes);
            }
            (self.api.release_read_op)(self.operation);
        }
    }
}

impl Submitted {
    pub fn write(object: &str, unknown: &Arc<AtomicBool>, share: Share) -> (Box<Self>, Pending<Version>) {
        let (reply, pending) = Pending::begin();
        (Self::of(object, SubmittedKind::Write(reply, Arc::clone(unknown)), share), pending)
    }

    pub fn read(object: &str, length: usize, share: Share) -> (Box<Self>, Pending<VersionedBytes>) {
        let (reply, pending) = Pending::begin();
        (Self::of(object, SubmittedKind::Read { buffer: vec![0; length], reply }, share), pending)
    }

    pub fn stat(api: &'static Api, object: &str, share: Share) -> (Box<Self>, Pending<ObjectStat>) {
        let (reply, pending) = Pending::begin();
        (Self::of(object, SubmittedKind::Stat { query: StatQuery::new(api), reply }, share), pending)
    }

    fn of(object: &str, kind: SubmittedKind, share: Share) -> Box<Self> {
        Box::new(Self { object: object.into(), kind, _share: share })
    }

    /// Starts the operation with a completion.
    pub fn start(
        self: Box<Self>,
        api: &'static Api,
        start: impl FnOnce(RadosHandle, &mut SubmittedKind) -> i32,
    ) {
        let submitted = Box::into_raw(self);
        let mut completion: RadosHandle = null_mut();
        // SAFETY: the callback takes the box, once.
        let created = unsafe {
            (api.aio_create_completion2)(submitted.cast::<c_void>(), completed, &raw mut completion)
        };
        let code = match created {
            // SAFETY: the callback runs after the operation has started, and only then.
            0 => start(completion, unsafe { &mut (*submitted).kind }),
            code => code,
        };
        if code < 0 {
            // SAFETY: the callback is not called for an operation that has not started.
            let submitted = unsafe { Box::from_raw(submitted) };
            if !completion.is_null() {
                // SAFETY: it is not used afterwards.
                unsafe { (api.aio_release)(completion) };
            }
            submitted.finish(code, 0);
        }
    }

    fn finish(self, code: i32, version: Version) {
        let Self { object, kind, _share } = self;
        let failed = |operation| EngineError::new(operation, &object, failure(code));
        match kind {
            SubmittedKind::Write(reply, unknown) if code < 0 => {
                let error = failed("write");
                if error.is(&EngineFailure::TimedOut) {
                    unknown.store(true, Ordering::Release);
                }
                reply.send(Err(error));
            }
            SubmittedKind::Read { reply, .. } if code < 0 => reply.send(Err(failed("read"))),
            SubmittedKind::Stat { reply, .. } if code < 0 => reply.send(Err(failed("examine"))),
            SubmittedKind::Write(reply, _) => reply.send(Ok(version)),
            SubmittedKind::Read { mut buffer, reply } => {
                buffer.truncate(code as usize);
                reply.send(Ok(VersionedBytes { bytes: buffer, version }));
            }
            SubmittedKind::Stat { query, reply } => {
                let mtime = query.mtime().unwrap_or_default();
                reply.send(Ok(ObjectStat { size: query.size, mtime }));
            }
        }
    }
}

/// Called by a thread of librados when an operation is complete.
extern "C" fn completed(completion: RadosHandle, argument: *mut c_void) {
    // SAFETY: the argument is the box of `Submitted::start`, and this is called once.
    let submitted = unsafe { Box::from_raw(argument.cast::<Submitted>()) };
    let Ok(api) = Api::load() else { return };
    // SAFETY: the completion is valid until it is released.
    let (code, version) = unsafe {
        let outcome = ((api.aio_get_return_value)(completion), (api.aio_get_version)(completion));
        (api.aio_release)(completion);
        outcome
    };
    submitted.finish(code, version);
}
