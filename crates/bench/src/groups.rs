//! The groups of phases, one file each.

pub(crate) mod big;
pub(crate) mod durable;
pub(crate) mod growth;
pub(crate) mod mdtest;
pub(crate) mod paper;
pub(crate) mod programs;
pub(crate) mod small;
pub(crate) mod synced;
