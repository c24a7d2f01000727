//! Sevilla, "Scalable, global namespaces with programmable storage": chapters 2, 4, 5 and 6.

pub(crate) mod chapter5;
mod compile;
mod create;
mod decoupled;
mod goal;
mod interference;
mod locality;
mod machine;
mod mechanisms;
mod run;
mod sync;

pub(crate) use compile::{FIG4_8, FIG4_9};
pub(crate) use create::{FIG4_3, FIG4_4, FIG4_6, FIG4_7};
pub(crate) use decoupled::{FIG6_7, FIG6_8};
pub(crate) use goal::HOT_SUBTREE;
pub(crate) use interference::{FIG6_2, FIG6_3, FIG6_4};
pub(crate) use locality::{FIG2_1, FIG2_2, FIG4_2};
pub(crate) use mechanisms::FIG6_6;
pub(crate) use sync::FIG6_9;
