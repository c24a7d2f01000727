//! Espalier without mounting it: programs use a file system that servers have, by paths, as [`std::fs`] has them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use espalier_library::{Credentials, FileSystem};
//!
//! let credentials = Credentials::Directory("cluster/clients/admin".into());
//! let fs = FileSystem::connect("espalier://127.0.0.1:7440/", &credentials).await?;
//! fs.create_dir("/results").await?;
//! fs.write("/results/first", b"42").await?;
//! assert_eq!(fs.metadata("/results/first").await?.len(), 2);
//! fs.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! It needs a runtime of [tokio](https://docs.rs/tokio); [`blocking`] brings one with it. Many calls may be under way at once,
//! and are sent over one connection. A future that is dropped stops waiting; the call itself may still be done.
//!
//! Names and attributes are cached under leases, so that what others change is seen at once, and what nobody changes costs no
//! message. An error is an [`std::io::Error`] with the number that a system call would have set
//! ([`raw_os_error`](std::io::Error::raw_os_error)).
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod door;
mod file;
mod file_system;
mod list;
mod metadata;
mod options;
mod session;
mod walk;

pub use client::Client;
pub use espalier_proto::{Capacity, FileType, Limit, Space};
pub use espalier_runtime::{Messages, Traced};
pub use file::{File, OpenOptions};
pub use file_system::{FileSystem, ReadDir};
pub use metadata::{DirEntry, Listed, Metadata};
pub use options::ConnectOptions;
pub use session::{ConnectError, Credentials, User};
