//! Drivers, on stores of their own.
#![allow(clippy::unwrap_used)]

mod big;
mod data;
mod dump;
mod peers;
mod repair;
