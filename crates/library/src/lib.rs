//! Access to an Espalier file system from a program, without a mount. The interface is that of
//! [`std::fs`].
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
//! The crate needs a [tokio](https://docs.rs/tokio) runtime; [`blocking`] starts one itself. Calls
//! run concurrently over one connection. Dropping a future abandons the result; the server may
//! still execute the call.
//!
//! Names and attributes are cached under leases: a change by another client is visible immediately,
//! and an access to unchanged files needs no message. Errors are [`std::io::Error`]s with the error
//! number of the corresponding system call ([`raw_os_error`](std::io::Error::raw_os_error)).
#![forbid(unsafe_code)]

pub mod blocking;
mod client;
mod file;
mod file_system;
mod frontend;
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
