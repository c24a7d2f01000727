//! The driver for virtual time: runs the machines of clients, metadata servers and data servers in one thread, under models of
//! networks, processors, disks and clocks, and with faults. A run is a function of its scenario and its seed.
#![forbid(unsafe_code)]

mod random;
mod time;

pub use random::{Random, Seed};
pub use time::Nanos;
