//! Where the kernel puts one request at a time over io_uring, and where its answer is put.
//!
//! Header and payload lie in memory that we share with the kernel. It is the kernel's from the time that an answer is
//! committed until the next request has come, and ours from then on. The kernel reads an answer's payload from where
//! it has put the request's, which the handler may still be reading: such an answer is kept aside until it is committed.

use crate::abi::{self, InHeader, OutHeader, UringEntry};
use crate::channel::Channel;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io::IoSlice;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// One request at a time. Its reply may outlive the thread that serves it, and so holds the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    device: Channel,
    memory: Memory,
    answer: Mutex<Answer>,
    changed: Condvar,
}

#[derive(Debug)]
struct Answer {
    state: State,
    /// Nothing of the request lies in the payload, so that the answer may be put there at once.
    direct: bool,
    aside: Vec<u8>,
    /// Answers until now.
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Owed,
    /// Owed, and the slot's thread sleeps until it is given.
    Awaited,
    Given {
        error: i32,
        length: usize,
    },
    /// The slot's thread tells the kernel.
    Told,
    /// The mount is gone, and nobody waits for an answer.
    Closed,
}

impl Slot {
    /// `payload_max`: the bytes of the largest request or answer without their headers.
    pub(crate) fn new(device: Channel, payload_max: usize) -> rustix::io::Result<Slot> {
        // The kernel takes no less than two pages, whatever was agreed on.
        let memory = Memory::new(abi::PAGE + payload_max.max(2 * abi::PAGE))?;
        let answer = Answer { state: State::Closed, direct: true, aside: Vec::new(), number: 0 };
        Ok(Slot { device, memory, answer: Mutex::new(answer), changed: Condvar::new() })
    }

    pub(crate) fn device(&self) -> &Channel {
        &self.device
    }

    /// The addresses and sizes of header and payload, as the kernel wants to be told of them.
    pub(crate) fn areas(&self) -> [abi::Area; 2] {
        let base = self.memory.base.as_ptr() as u64;
        let header = abi::Area { base, length: abi::URING_HEADER as u64 };
        let payload = abi::Area { base: base + abi::PAGE as u64, length: self.payload_max() as u64 };
        [header, payload]
    }

    /// The request that the kernel has put here, as it would have come from the device, and the id by which its answer
    /// is committed.
    ///
    /// # Safety
    /// The memory is ours and stays so, and this is not called again, while the message is in use.
    pub(crate) unsafe fn message(&self) -> (&[u8], u64) {
        // SAFETY: the memory is ours.
        let (header, entry) =
            unsafe { (self.memory.read::<InHeader>(0), self.memory.read::<UringEntry>(abi::URING_ENTRY_AT)) };
        let payload = entry.payload as usize;
        let arguments = (header.len as usize).wrapping_sub(size_of::<InHeader>() + payload);
        // What does not fit is refused by the decoder for its length.
        let fits =
            arguments <= abi::URING_ENTRY_AT - abi::URING_ARGUMENTS_AT && payload <= self.payload_max();
        let (arguments, payload) = if fits { (arguments, payload) } else { (0, 0) };
        let start = abi::PAGE - arguments - size_of::<InHeader>();
        let mut answer = self.lock();
        if answer.state != State::Closed {
            (answer.state, answer.direct) = (State::Owed, payload == 0);
        }
        drop(answer);
        // SAFETY: the memory is ours, and no answer is put into the part that the message covers while `direct` is not
        // set; without a payload it covers none of what an answer is put into.
        let message = unsafe {
            self.memory.copy(0, start, size_of::<InHeader>());
            self.memory.copy(abi::URING_ARGUMENTS_AT, start + size_of::<InHeader>(), arguments);
            self.memory.slice(start, abi::PAGE + payload - start)
        };
        (message, entry.commit_id)
    }

    /// Takes the answer to the request that is here.
    pub(crate) fn send(&self, error: i32, body: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        let length = body.iter().map(|piece| piece.len()).sum();
        if length > self.payload_max() {
            return Err(Errno::TOOBIG);
        }
        let mut answer = self.lock();
        let awaited = match answer.state {
            State::Owed => false,
            State::Awaited => true,
            State::Given { .. } | State::Told | State::Closed => return Err(Errno::NODEV),
        };
        if answer.direct {
            let mut at = abi::PAGE;
            for piece in body {
                // SAFETY: the memory is ours until the answer is committed, which waits for the lock, and a direct
                // answer's request does not reach into the payload.
                unsafe { self.memory.write(at, piece) };
                at += piece.len();
            }
        } else {
            answer.aside.clear();
            body.iter().for_each(|piece| answer.aside.extend_from_slice(piece));
        }
        answer.state = State::Given { error, length };
        answer.number += 1;
        drop(answer);
        if awaited {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Waits for the answer and puts it where the kernel will look for it. False if the mount is gone.
    ///
    /// # Safety
    /// The memory is ours, and the message is not in use any more.
    pub(crate) unsafe fn settle(&self, unique: u64) -> bool {
        let mut answer = self.lock();
        let (error, length) = loop {
            match answer.state {
                State::Given { error, length } => break (error, length),
                State::Closed | State::Told => return false,
                State::Owed | State::Awaited => answer.state = State::Awaited,
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
        answer.state = State::Told;
        true
    }

    /// The number of the answer that was given and that the kernel has not been told of, if there is one.
    fn untold(&self) -> Option<u64> {
        let answer = self.lock();
        matches!(answer.state, State::Given { .. }).then_some(answer.number)
    }

    /// A thread serves this slot from now on.
    pub(crate) fn open(&self) {
        self.lock().state = State::Owed;
    }

    /// The mount is gone: wakes the thread that waits for an answer.
    pub(crate) fn close(&self) {
        self.lock().state = State::Closed;
        self.changed.notify_one();
    }

    fn payload_max(&self) -> usize {
        self.memory.length - abi::PAGE
    }

    fn lock(&self) -> MutexGuard<'_, Answer> {
        // Nothing under the lock leaves it half done.
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

    /// Waits until the kernel is told all answers that were given until now: their threads have them, and need but run.
    pub(crate) fn settle(&self) {
        const PAUSE: Duration = Duration::from_micros(20);
        let untold: Vec<_> =
            self.lock().iter().filter_map(|slot| Some((Arc::clone(slot), slot.untold()?))).collect();
        for (slot, number) in untold {
            while slot.untold() == Some(number) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The mount is gone: nobody shall wait for answers to what it has asked.
    pub(crate) fn close(&self) {
        self.lock().iter().for_each(|slot| slot.close());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Zeroed pages of our own, taken from the system as they are first used.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to no thread; who may touch them when is for the callers of its methods to say.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(length: usize) -> rustix::io::Result<Memory> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, which takes no other's place.
        let base = unsafe { mmap_anonymous(null_mut(), length, protection, flags) }?;
        Ok(Memory { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, length })
    }

    /// The address of `length` bytes from `at` on.
    fn at(&self, at: usize, length: usize) -> NonNull<u8> {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length), "within the pages");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.base.add(at) }
    }

    /// # Safety
    /// For this and the next three: nobody else writes what is read, or reads or writes what is written.
    unsafe fn read<T: FromBytes>(&self, at: usize) -> T {
        // SAFETY: any bytes make a T; the rest is the caller's promise.
        unsafe { self.at(at, size_of::<T>()).cast::<T>().read_unaligned() }
    }

    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the caller's promise; a slice from elsewhere does not overlap.
        unsafe { self.at(at, bytes.len()).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
    }

    unsafe fn copy(&self, from: usize, to: usize, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.at(to, length).copy_from(self.at(from, length), length) };
    }

    unsafe fn slice(&self, at: usize, length: usize) -> &[u8] {
        // SAFETY: the pages are initialised; nobody writes them while the slice is in use, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.at(at, length).as_ptr(), length) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more. The kernel has given it back: it uses the memory
        // only in calls of the thread that serves the slot.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
