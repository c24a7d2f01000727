//! Drivers with their own stores.
#![allow(clippy::unwrap_used)]

mod big;
mod common;
mod data;
mod dump;
mod failover;
mod peers;
mod repair;
