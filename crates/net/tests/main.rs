//! Connections, on loopback.
#![allow(clippy::unwrap_used)]

mod bounds;
mod common;
mod messages;
mod security;
