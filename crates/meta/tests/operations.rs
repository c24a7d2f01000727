//! Every operation on every store, with faults injected: one file each, named as in `src/ops`.
#![allow(clippy::unwrap_used)]

mod harness;

mod ops {
    mod access;
    mod accessed;
    mod allocate;
    mod append;
    mod copy_tree;
    mod create;
    mod delegate;
    mod extend;
    mod forget;
    mod fsync;
    mod getattr;
    mod link;
    mod lookup;
    mod open;
    mod policy;
    mod purge;
    mod read;
    mod readdir;
    mod readlink;
    mod remove_tree;
    mod rename;
    mod renew;
    mod rmdir;
    mod seek;
    mod set_layout;
    mod setattr;
    mod statfs;
    mod sweep;
    mod take_numbers;
    mod tmpfile;
    mod unlink;
    mod usage;
    mod write;
    mod xattr;
}
