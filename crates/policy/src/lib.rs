//! Policies of directories: settings for the files that are created in them. PVFS's directory hints
//! (kuhn 4.2) are among them.
//!
//! `settings.rs` is the table of all settings. A row defines a setting's name, extended attribute
//! ([`PREFIX`]), texts, default, inheritance, encoding, command line and documentation. A test
//! compares the table in `docs/policies.md` with it.
//!
//! Policies are Malacology's *service metadata* (docs/malacology.md).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod distribution;
mod level;
mod mechanism;
mod policy;
mod relax;
mod settings;
mod value;

pub use distribution::{DistParams, Params, Strip};
pub use level::{Consistency, Durability, Guarantee, Interference, Level};
pub use mechanism::{Composition, CompositionError, Mechanism};
pub use policy::{PREFIX, PolicyError};
pub use relax::{Bound, Relax};
pub use settings::{Key, Policy, Setting};
pub use value::{Creator, DistName, Interval, MAX_DFILES, Pin, Values};
