//! The library, where three servers share the tree.
#![allow(clippy::unwrap_used)]

const RANKS: u16 = 3;

mod calls;
mod common;
