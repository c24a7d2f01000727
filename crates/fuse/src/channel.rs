//! An open `/dev/fuse`, which passes requests and replies.
//!
//! Over io_uring (`ring.rs`) it passes only interrupts, forgets and notifications.

use crate::abi::{self, OutHeader};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A connection to the kernel. Clones share one queue; [`Channel::clone_queue`] opens another.
#[derive(Debug, Clone)]
pub struct Channel(Arc<OwnedFd>);

/// Identifies a file that the kernel reads and writes itself ([`Channel::backing_open`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackingId(pub(crate) i32);

pub(crate) enum Received {
    Message(usize),
    /// No request: a signal, or the caller has given up.
    Nothing,
    /// Unmounted or aborted; no more requests follow.
    Closed,
}

/// Maximum number of pieces of a body without an allocation.
const PIECES: usize = 16;

impl Channel {
    pub(crate) fn open() -> rustix::io::Result<Channel> {
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(Channel::from)
    }

    /// Opens another queue of the same mount. A request is answered on its queue, so threads with
    /// different queues share no lock in the kernel.
    pub fn clone_queue(&self) -> io::Result<Channel> {
        let queue = Channel::open()?;
        let request = Argument { opcode: abi::ioctl::CLONE, value: self.0.as_raw_fd() as u32 };
        // SAFETY: CLONE reads one u32, a descriptor number, through its pointer; it writes no
        // memory of ours.
        unsafe { rustix::ioctl::ioctl(&queue.0, request) }?;
        Ok(queue)
    }

    /// Registers `file` for passthrough: the kernel serves reads and writes of each open file whose
    /// reply contains the identifier (see [`crate::Opened`]). Needs PASSTHROUGH and CAP_SYS_ADMIN.
    pub fn backing_open(&self, file: BorrowedFd<'_>) -> io::Result<BackingId> {
        let map = abi::BackingMap { fd: file.as_raw_fd(), ..Default::default() };
        // SAFETY: BACKING_OPEN reads one BackingMap through its pointer; it writes no memory of
        // ours.
        let id = unsafe {
            rustix::ioctl::ioctl(&self.0, Argument { opcode: abi::ioctl::BACKING_OPEN, value: map })
        }?;
        Ok(BackingId(id))
    }

    /// Unregisters a file. Call it at the RELEASE of the last open file that uses it: a reply to an
    /// OPEN may not have been processed yet, and would fail without it.
    pub fn backing_close(&self, id: BackingId) -> io::Result<()> {
        let request = Argument { opcode: abi::ioctl::BACKING_CLOSE, value: id.0 };
        // SAFETY: BACKING_CLOSE reads one u32 through its pointer; it writes no memory of ours.
        unsafe { rustix::ioctl::ioctl(&self.0, request) }?;
        Ok(())
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> rustix::io::Result<Received> {
        match rustix::io::read(&self.0, buffer) {
            Ok(length) => Ok(Received::Message(length)),
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Received::Nothing),
            Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Closed),
            Err(error) => Err(error),
        }
    }

    /// Sends a message: a reply, or with `unique` zero a notification with the code `error`.
    pub(crate) fn send(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        let length = size_of::<OutHeader>() + body.iter().map(|piece| piece.len()).sum::<usize>();
        let header = OutHeader { len: u32::try_from(length).map_err(|_| Errno::TOOBIG)?, error, unique };
        let mut few = [IoSlice::new(&[]); PIECES + 1];
        let mut many = Vec::new();
        let pieces = match few.get_mut(..=body.len()) {
            Some(pieces) => pieces,
            None => {
                many.resize(body.len() + 1, IoSlice::new(&[]));
                &mut many[..]
            }
        };
        pieces[0] = IoSlice::new(header.as_bytes());
        pieces[1..].copy_from_slice(body);
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, pieces)).map(drop)
    }
}

impl From<OwnedFd> for Channel {
    /// Takes the descriptor of a mounted FUSE device, such as one received from a helper.
    fn from(device: OwnedFd) -> Channel {
        Channel(Arc::new(device))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An ioctl whose argument the kernel only reads, and whose result is the return value.
struct Argument<T> {
    opcode: Opcode,
    value: T,
}

// SAFETY: `as_ptr` points to a live `T`, nothing is written through it, and the output is the plain
// return value.
unsafe impl<T> Ioctl for Argument<T> {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.value).cast()
    }

    unsafe fn output_from_ptr(result: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(result)
    }
}
