//! Loss of power, tested below the whole program: a disk that records what it is told, the disks that a loss of power
//! could leave behind at any point of a record, and workloads that say what must then be found.

pub mod crash;
pub mod disk;
mod history;
pub mod marks;
pub mod record;
pub mod workload;

pub use history::Op;
