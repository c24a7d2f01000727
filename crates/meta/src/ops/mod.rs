//! The operations, one file each, named as the system calls are.

mod access;
mod allocate;
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
mod read;
mod readdir;
mod readlink;
mod remove_tree;
mod rename;
pub(crate) mod rmdir;
mod seek;
mod setattr;
mod statfs;
mod sweep;
mod tmpfile;
mod unlink;
mod usage;
mod write;
mod xattr;
