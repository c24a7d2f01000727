//! Loss of power, tested below the whole program: a disk that records its writes, the disks that a
//! loss of power could leave at any point of the record, and workloads that check the recovered
//! files.

pub mod crash;
pub mod disk;
mod history;
pub mod marks;
pub mod record;
pub mod workload;

pub use history::HistoryOp;
