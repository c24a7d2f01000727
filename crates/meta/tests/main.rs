//! Tests of the machine with a driver for tests. One program for all: it builds in a fraction of
//! the time that one per file takes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod balancing;
mod checkpoint;
mod coherence;
mod commits;
mod crash;
mod eager;
mod encoding;
mod evict;
mod exclusive;
mod failover;
mod figures;
mod fragments;
mod harness;
mod interrupt;
mod lease;
mod lock;
mod metrics;
mod no_metafile;
mod numbers;
mod ops;
mod rank_ops;
mod ranks;
mod repair;
mod session;
mod session_layer;
mod small_files;
mod striped;
mod subtree;
mod subtree_ranks;
mod unstuff;
mod usage;
