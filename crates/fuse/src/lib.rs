//! The Linux FUSE protocol, spoken to `/dev/fuse` directly.
//!
//! Bytes from the kernel become a [`Request`] that borrows from the worker's buffer; a [`Filesystem`] gets it together
//! with a [`Reply`] to be used up once, now or later, on any thread. What the requests mean is not this crate's affair.
//!
//! ```no_run
//! use espalier_fuse::{Attr, Filesystem, MountOptions, Op, Reply, Request, Session, Wanted};
//! use std::{path::Path, sync::Arc, time::Duration};
//!
//! /// A mount with an empty directory and nothing else.
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
//! let session = Session::mount("empty", Path::new("/mnt"), &MountOptions::default(), &Wanted::default())?;
//! session.run(2, Arc::new(Empty))?; // until somebody unmounts
//! # Ok(())
//! # }
//! ```
//!
//! Three things to know when implementing [`Filesystem`]:
//!
//! - ENOSYS is remembered: the kernel stops sending that operation for as long as the mount lives.
//! - Each entry that is answered counts a lookup of its node, until a `Forget` takes it back.
//! - The kernel may hold locks while it waits for an answer, so a handler must not use its own mount, and cached
//!   data is dropped through a [`Notifier`], never in the handler itself.

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
