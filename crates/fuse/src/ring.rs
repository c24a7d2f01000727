//! One entry of a kernel queue over io_uring.
//!
//! The kernel has one queue per CPU, and puts a request into the queue of the caller's CPU. An
//! entry is a [`Slot`] that waits there. Each entry has its own io_uring, served by one thread: the
//! kernel delivers a request only while the thread is in a system call of the ring, so a busy
//! thread must not have a second entry waiting. One system call commits a reply and waits for the
//! next request.

use crate::abi::{Area, UringCommand, uring};
use crate::channel::Channel;
use crate::slot::Slot;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub(crate) struct Ring {
    uring: IoUring<squeue::Entry128>,
    slot: Arc<Slot>,
    queue: u16,
    /// Read by the kernel when the entry is registered.
    areas: Box<[Area; 2]>,
    /// The result of a finished command that has not been processed.
    completed: Option<i32>,
    /// Identifies the request being served.
    commit_id: u64,
}

impl Ring {
    /// Allocates all resources. `queue`: a CPU number.
    pub(crate) fn new(device: &Channel, queue: u16, payload_max: usize) -> io::Result<Ring> {
        let slot = Arc::new(Slot::new(device.clone(), payload_max)?);
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            // The thread that enables the ring becomes its single issuer; that must be the serving
            // thread.
            .setup_r_disabled()
            .build(1)?;
        let areas = Box::new(slot.areas());
        Ok(Ring { uring, slot, queue, areas, completed: None, commit_id: 0 })
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The CPU whose requests this entry serves.
    pub(crate) fn queue(&self) -> u16 {
        self.queue
    }

    /// Registers the entry. From here on the ring belongs to this thread. Returns false if the
    /// kernel rejects it; the kernel then does without io_uring, unless all queues have an entry
    /// already.
    pub(crate) fn register(&mut self) -> io::Result<bool> {
        self.uring.submitter().register_enable_rings()?;
        self.slot.open();
        let mut command = self.command(uring::REGISTER, 0, Some(self.areas.as_ptr() as u64));
        // SAFETY: `Entry128` has the layout of the kernel's `io_uring_sqe`, whose u32 field `len`
        // is at byte 24. The crate does not name it, as most commands do not use it.
        unsafe { (&raw mut command).cast::<u32>().add(6).write(self.areas.len() as u32) };
        self.push(&command)?;
        self.uring.submit()?;
        // A rejection is reported immediately; any other completion is the first request.
        self.completed = self.uring.completion().next().map(|done| done.result());
        match self.completed {
            Some(result) if result < 0 => {
                let error = io::Error::from_raw_os_error(-result);
                tracing::debug!(queue = self.queue, %error, "the kernel rejected a queue entry");
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// Commits the last reply, if there is one, and waits for a request. `None`: no more requests
    /// follow.
    pub(crate) fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let result = loop {
            if let Some(result) = self.completed.take() {
                break result;
            }
            match self.uring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.completed = self.uring.completion().next().map(|done| done.result());
        };
        if result < 0 {
            // Unmounted or aborted, possibly during the commit of the last reply.
            let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV, Errno::CANCELED, Errno::NOENT];
            if gone.iter().any(|errno| errno.raw_os_error() == -result) {
                return Ok(None);
            }
            return Err(io::Error::from_raw_os_error(-result));
        }
        // SAFETY: the kernel has handed the slot's memory over with the completion, and gets it
        // back by the command of `answer`, which the message's borrow of the ring does not allow
        // before it is dropped.
        let (message, commit_id) = unsafe { self.slot.message() };
        self.commit_id = commit_id;
        Ok(Some(message))
    }

    /// Waits for the reply to the request. The next [`Ring::receive`] commits it. Returns false if
    /// the mount is gone.
    pub(crate) fn answer(&mut self) -> io::Result<bool> {
        // SAFETY: the memory is ours until the command is submitted, and no reference to the
        // message exists, see `receive`.
        if !unsafe { self.slot.wait_until_sent(self.commit_id) } {
            return Ok(false);
        }
        let command = self.command(uring::COMMIT_AND_FETCH, self.commit_id, None);
        self.push(&command)?;
        Ok(true)
    }

    fn command(&self, operation: u32, commit_id: u64, address: Option<u64>) -> squeue::Entry128 {
        let mut bytes = [0; 80];
        let command = UringCommand { commit_id, queue: self.queue, ..UringCommand::default() };
        bytes[..size_of::<UringCommand>()].copy_from_slice(command.as_bytes());
        let device = types::Fd(self.slot.device().as_fd().as_raw_fd());
        opcode::UringCmd80::new(device, operation).cmd(bytes).addr(address).build()
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the command points to, the areas and the slot's memory, lives as long as the
        // ring, and the kernel does not use it after that: a command ends at the latest with its
        // ring.
        unsafe { self.uring.submission().push(command) }.map_err(|_| Errno::BUSY.into())
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// The kernel's setting, off by default, that permits io_uring for new mounts.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// Permits io_uring during the INIT of a mount; dropping it restores the setting. A mount keeps
/// what it was granted.
pub(crate) struct Enabled(File);

impl Enabled {
    /// `None` if it is permitted already, or cannot be changed without root.
    pub(crate) fn for_a_mount() -> io::Result<Option<Enabled>> {
        let switch = match OpenOptions::new().read(true).write(true).open(ENABLED) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(None);
            }
            switch => switch?,
        };
        // Another mounting process must not take this temporary value for the original one.
        flock(&switch, FlockOperation::LockExclusive)?;
        let mut state = [0];
        switch.read_exact_at(&mut state, 0)?;
        if state == *b"Y" {
            return Ok(None);
        }
        switch.write_all_at(b"Y", 0)?;
        Ok(Some(Enabled(switch)))
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        if let Err(error) = self.0.write_all_at(b"N", 0) {
            tracing::warn!(%error, "cannot restore {ENABLED}");
        }
    }
}

/// Number of the kernel's queues: one per possible CPU.
pub(crate) fn queues() -> io::Result<u16> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(list.trim()).ok_or_else(|| io::Error::other(format!("malformed list of CPUs: {list}")))
}

/// Number of elements of a list such as `0-3,8,10-11`.
fn count(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for nonsense in ["", "-", "3-1", "0-65535", "a"] {
            assert_eq!(count(nonsense), None, "{nonsense}");
        }
    }
}
