//! Data servers, and the connections to them.

mod pool;
mod serve;
mod servers;
mod store;
mod striper;

pub use pool::{ClientPool, PoolError, PoolStreams, execute};
pub use serve::DataServer;
pub use servers::{DataRequester, DataServers, Pass};
pub(crate) use store::is_data_store;
pub use store::{DataStore, mkfs_data};
pub use striper::{Stale, Striper, answers};
