//! Memory for one request at a time over io_uring, and for its reply.
//!
//! Header and payload are shared with the kernel. It owns them from the commit of a reply until the
//! next request arrives; this process owns them otherwise. The kernel reads a reply's payload from
//! the place of the request's, which the handler may still be reading: such a reply is buffered
//! until it is committed.

use crate::abi::{self, InHeader, OutHeader, UringEntry};
use crate::channel::Channel;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io::IoSlice;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// One request at a time. Its reply may outlive the serving thread, and so holds the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    device: Channel,
    memory: SlotMemory,
    answer: Mutex<SlotReply>,
    changed: Condvar,
}

#[derive(Debug)]
struct SlotReply {
    state: ReplyState,
    /// The request has no data in the payload, so the reply can be stored there immediately.
    direct: bool,
    aside: Vec<u8>,
    /// Number of replies so far.
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyState {
    Owed,
    /// A reply is owed, and the slot's thread sleeps until it is given.
    Awaited,
    Given {
        error: i32,
        length: usize,
    },
    /// The slot's thread commits the reply.
    Delivered,
    /// The mount is gone, and no caller waits for a reply.
    Closed,
}

impl Slot {
    /// `payload_max`: size of the largest request or reply without headers.
    pub(crate) fn new(device: Channel, payload_max: usize) -> rustix::io::Result<Slot> {
        // The kernel requires two pages at least.
        let memory = SlotMemory::new(abi::PAGE + payload_max.max(2 * abi::PAGE))?;
        let answer = SlotReply { state: ReplyState::Closed, direct: true, aside: Vec::new(), number: 0 };
        Ok(Slot { device, memory, answer: Mutex::new(answer), changed: Condvar::new() })
    }

    pub(crate) fn device(&self) -> &Channel {
        &self.device
    }

    /// Addresses and sizes of header and payload, for registration.
    pub(crate) fn areas(&self) -> [abi::Area; 2] {
        let base = self.memory.base.as_ptr() as u64;
        let header = abi::Area { base, length: abi::URING_HEADER as u64 };
        let payload = abi::Area { base: base + abi::PAGE as u64, length: self.payload_max() as u64 };
        [header, payload]
    }

    /// The present request, in the format of the device, and the identifier for its commit.
    ///
    /// # Safety
    /// This process owns the memory, and continues to own it while the message is in use. The
    /// function is not called again while the message is in use.
    pub(crate) unsafe fn message(&self) -> (&[u8], u64) {
        // SAFETY: the memory is ours.
        let (header, entry) =
            unsafe { (self.memory.read::<InHeader>(0), self.memory.read::<UringEntry>(abi::URING_ENTRY_AT)) };
        let payload = entry.payload as usize;
        let arguments = (header.len as usize).wrapping_sub(size_of::<InHeader>() + payload);
        // The decoder rejects an excessive length.
        let fits =
            arguments <= abi::URING_ENTRY_AT - abi::URING_ARGUMENTS_AT && payload <= self.payload_max();
        let (arguments, payload) = if fits { (arguments, payload) } else { (0, 0) };
        let start = abi::PAGE - arguments - size_of::<InHeader>();
        let mut answer = self.lock();
        if answer.state != ReplyState::Closed {
            (answer.state, answer.direct) = (ReplyState::Owed, payload == 0);
        }
        drop(answer);
        // SAFETY: the memory is ours, and no answer is put into the part that the message covers
        // while `direct` is not set; without a payload it covers none of what an answer is put
        // into.
        let message = unsafe {
            self.memory.copy(0, start, size_of::<InHeader>());
            self.memory.copy(abi::URING_ARGUMENTS_AT, start + size_of::<InHeader>(), arguments);
            self.memory.slice(start, abi::PAGE + payload - start)
        };
        (message, entry.commit_id)
    }

    /// Stores the reply to the present request.
    pub(crate) fn send(&self, error: i32, body: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        let length = body.iter().map(|piece| piece.len()).sum();
        if length > self.payload_max() {
            return Err(Errno::TOOBIG);
        }
        let mut answer = self.lock();
        let awaited = match answer.state {
            ReplyState::Owed => false,
            ReplyState::Awaited => true,
            ReplyState::Given { .. } | ReplyState::Delivered | ReplyState::Closed => {
                return Err(Errno::NODEV);
            }
        };
        if answer.direct {
            let mut at = abi::PAGE;
            for piece in body {
                // SAFETY: the memory is ours until the answer is committed, which waits for the
                // lock, and a direct answer's request does not reach into the payload.
                unsafe { self.memory.write(at, piece) };
                at += piece.len();
            }
        } else {
            answer.aside.clear();
            body.iter().for_each(|piece| answer.aside.extend_from_slice(piece));
        }
        answer.state = ReplyState::Given { error, length };
        answer.number += 1;
        drop(answer);
        if awaited {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits for the reply and places it for the kernel. Returns false if the mount is gone.
    ///
    /// # Safety
    /// This process owns the memory, and the message is not in use.
    pub(crate) unsafe fn wait_until_sent(&self, unique: u64) -> bool {
        let mut answer = self.lock();
        let (error, length) = loop {
            match answer.state {
                ReplyState::Given { error, length } => break (error, length),
                ReplyState::Closed | ReplyState::Delivered => return false,
                ReplyState::Owed | ReplyState::Awaited => answer.state = ReplyState::Awaited,
            }
            answer = self.changed.wait(answer).unwrap_or_else(PoisonError::into_inner);
        };
        let out = OutHeader { len: (size_of::<OutHeader>() + length) as u32, error, unique };
        let entry = UringEntry { payload: length as u32, ..UringEntry::default() };
        // SAFETY: the memory is ours, the message is not in use, and the one answer has been given.
        unsafe {
            if !answer.direct {
                self.memory.write(abi::PAGE, &answer.aside);
            }
            self.memory.write(0, out.as_bytes());
            self.memory.write(abi::URING_ENTRY_AT, entry.as_bytes());
        }
        answer.state = ReplyState::Delivered;
        true
    }

    /// The number of a reply that was given and not committed, if there is one.
    fn unsent(&self) -> Option<u64> {
        let answer = self.lock();
        matches!(answer.state, ReplyState::Given { .. }).then_some(answer.number)
    }

    /// A thread serves this slot from here on.
    pub(crate) fn open(&self) {
        self.lock().state = ReplyState::Owed;
    }

    /// The mount is gone: wakes the thread that waits for a reply.
    pub(crate) fn close(&self) {
        self.lock().state = ReplyState::Closed;
        self.changed.notify_one();
    }

    fn payload_max(&self) -> usize {
        self.memory.length - abi::PAGE
    }

    fn lock(&self) -> MutexGuard<'_, SlotReply> {
        // No code under the lock can leave an inconsistent state.
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All slots of a mount.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Vec<Arc<Slot>>>);

impl Slots {
    pub(crate) fn add(&self, slot: &Arc<Slot>) {
        self.lock().push(Arc::clone(slot));
    }

    /// Waits until all replies given so far are committed; their threads have them and only need to
    /// run.
    pub(crate) fn wait_until_sent(&self) {
        const PAUSE: Duration = Duration::from_micros(20);
        let unsent: Vec<_> =
            self.lock().iter().filter_map(|slot| Some((Arc::clone(slot), slot.unsent()?))).collect();
        for (slot, number) in unsent {
            while slot.unsent() == Some(number) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The mount is gone: releases all threads that wait for replies.
    pub(crate) fn close(&self) {
        self.lock().iter().for_each(|slot| slot.close());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Zeroed pages, allocated on first use.
#[derive(Debug)]
struct SlotMemory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to no thread; the callers of the methods guarantee exclusive access.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    fn new(length: usize) -> rustix::io::Result<SlotMemory> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, which takes no other's place.
        let base = unsafe { mmap_anonymous(null_mut(), length, protection, flags) }?;
        Ok(SlotMemory { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, length })
    }

    /// The address of `length` bytes from `at` on.
    fn at(&self, at: usize, length: usize) -> NonNull<u8> {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length), "within the pages");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.base.add(at) }
    }

    /// # Safety
    /// For this and the next three methods: no other thread writes the read bytes or accesses the
    /// written ones.
    unsafe fn read<T: FromBytes>(&self, at: usize) -> T {
        // SAFETY: any bytes are a valid T; the caller guarantees the rest.
        unsafe { self.at(at, size_of::<T>()).cast::<T>().read_unaligned() }
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: guaranteed by the caller; `bytes` is not part of the slot, so it does not
        // overlap.
        unsafe { self.at(at, bytes.len()).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
    }

    unsafe fn copy(&self, from: usize, to: usize, length: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.at(to, length).copy_from(self.at(from, length), length) };
    }

    unsafe fn slice(&self, at: usize, length: usize) -> &[u8] {
        // SAFETY: the pages are initialised; the caller guarantees that they are not written while
        // the slice is in use.
        unsafe { std::slice::from_raw_parts(self.at(at, length).as_ptr(), length) }
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, without references. The kernel does not use it: it accesses the
        // memory only in calls of the thread that serves the slot.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
