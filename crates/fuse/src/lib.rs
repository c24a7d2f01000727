//! The Linux FUSE protocol over `/dev/fuse` and io_uring, without libfuse.
//!
//! A message of the kernel becomes a [`Request`] that borrows from the thread's buffer. A
//! [`Filesystem`] receives it with a [`Reply`], which it uses once, immediately or later, on any
//! thread. The crate knows no particular file system.
//!
//! ```no_run
//! use espalier_fuse::{Attr, Filesystem, MountOptions, Op, Reply, Request, Session, Wanted};
//! use std::{path::Path, sync::Arc, time::Duration};
//!
//! /// A file system with an empty root directory.
//! struct Empty;
//!
//! impl Filesystem for Empty {
//!     fn request(&self, request: Request<'_>, reply: Reply) {
//!         const ENOENT: i32 = 2;
//!         const ENOSYS: i32 = 38;
//!         match request.op {
//!             Op::GetAttr { .. } => {
//!                 let attr = Attr { ino: 1, mode: 0o040755, nlink: 2, ..Attr::default() };
//!                 reply.attr(&attr, Duration::from_secs(1));
//!             }
//!             Op::Lookup { .. } => reply.error(ENOENT),
//!             Op::ReadDir { .. } => reply.data(&[]),
//!             Op::Forget { .. } | Op::BatchForget(_) => reply.none(),
//!             _ => reply.error(ENOSYS),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (options, wanted) = (MountOptions::default(), Wanted::default());
//! let session = Session::mount("empty", Path::new("/mnt"), &options, &wanted)?;
//! session.run(2, Arc::new(Empty))?; // until it is unmounted
//! # Ok(())
//! # }
//! ```
//!
//! Rules for implementations of [`Filesystem`]:
//!
//! - After ENOSYS the kernel does not send that operation again during the life of the mount.
//! - Each entry in a reply counts a lookup of its node, until a `Forget` cancels it.
//! - The kernel may hold locks while it waits for a reply, so a handler must not access its own
//!   mount, and invalidates cached data only through a [`Notifier`].

mod abi;
mod channel;
mod dirent;
mod mount;
mod notify;
mod reply;
mod request;
mod ring;
mod serve;
mod session;
mod slot;

pub use abi::{InitFlags, OpenedFlags, ROOT_NODE};
pub use channel::{BackingId, Channel};
pub use dirent::DirBuffer;
pub use mount::{MountError, MountOptions, detach_dead, force_unmount, is_dead, mounted_device, unmount};
pub use notify::Notifier;
pub use reply::{Attr, Entry, Opened, Reply, StatFs, StatXExtra};
pub use request::{Flaw, Forgets, Init, Lock, Malformed, Op, Request, SetAttr, SetTime};
pub use session::{Filesystem, Granted, RunError, Session, Threads, Transport, Wanted};
