//! The library with one server.
#![allow(clippy::unwrap_used)]

const RANKS: u16 = 1;

mod calls;
mod common;
