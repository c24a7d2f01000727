//! Storage policies of directories. PVFS's directory hints (kuhn 4.2) are policy attributes.
//!
//! The server decides an attribute that a policy does not set. Each attribute has a name, which is
//! also the name of an extended attribute ([`PREFIX`]), and a text form. Only this crate knows
//! both: a new attribute is a new variant of [`Key`] and of [`Setting`], a field of [`Policy`], and
//! an arm in each match on them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod distribution;
mod policy;

pub use distribution::{DistName, DistParams, Params, Strip};
pub use policy::{Creator, Key, MAX_DFILES, PREFIX, Policy, PolicyError, Setting};
