//! What is measured, one file a group.

pub(crate) mod big;
pub(crate) mod durable;
pub(crate) mod growth;
pub(crate) mod mdtest;
pub(crate) mod paper;
pub(crate) mod programs;
pub(crate) mod small;
