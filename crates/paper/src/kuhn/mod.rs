//! Kuhn, "Directory-Based Metadata Optimizations for Small Files in PVFS" (2007).

mod fig5;
mod fig6;
mod list;

pub(crate) use fig5::{FIG5_1, FIG5_3, FIG5_4, FIG5_6, FIG5_7, FIG5_8};
pub(crate) use fig6::FIG6;
pub(crate) use list::{FIG5_2, FIG5_5};
