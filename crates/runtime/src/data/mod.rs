//! Data servers: what one does, and how it is asked.

mod serve;
mod servers;
mod store;
mod striper;

pub use serve::DataServer;
pub use servers::{Asker, DataServers, Pass};
pub use store::{DataStore, mkfs_data};
pub use striper::{Stale, Striper, answers};
