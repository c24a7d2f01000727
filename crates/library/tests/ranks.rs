//! The library with three metadata servers.
#![allow(clippy::unwrap_used)]

const RANKS: u16 = 3;

mod calls;
mod common;
