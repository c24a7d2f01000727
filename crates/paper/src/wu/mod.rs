//! Wu, "Scalable directories", chapter 5: 1 to 32 servers, and up to 512 clients that create
//! entries in one directory, which is divided from the start or splits as it grows; with this
//! program's costs, up to 1,024 servers.

mod beyond;
mod forwards;
mod grid;
mod growth;
mod machine;
mod scaling;
mod throughput;
mod waiting;

pub(crate) use beyond::{CAPACITIES, MIXED, NAMES};
pub(crate) use forwards::{FIG5_10, FIG5_11};
pub use grid::MeasuredGrids;
pub(crate) use growth::{FIG5_8, FIG5_9};
pub(crate) use throughput::{FIG5_2, FIG5_3, FIG5_4};
pub(crate) use waiting::{FIG5_5, FIG5_6, FIG5_7};
