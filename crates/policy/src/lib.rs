//! Policies: what is wanted of the files of a directory. PVFS's directory hints (kuhn 4.2) are settings of one.
//!
//! A setting that a policy does not have is the server's to decide. Each has a name, which is also that of an extended attribute
//! ([`PREFIX`]), and a text. This crate alone knows both: another setting is another variant of [`Key`] and of [`Setting`], a field of
//! [`Policy`], and what the matches on them then ask for.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod distribution;
mod policy;

pub use distribution::{DistName, DistParams, Params, Strip};
pub use policy::{Creator, Key, MAX_DFILES, PREFIX, Policy, PolicyError, Setting};
