//! Tests beyond single calls: data servers, deep queues, silent clients, races, tracing.
#![allow(clippy::unwrap_used)]

mod common;
mod data;
mod deep;
mod delegated_open;
mod race;
mod trace;
