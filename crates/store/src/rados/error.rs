use std::io;
use std::path::PathBuf;

use crate::engine::EngineFailure;

/// Why a cluster cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RadosError {
    #[error(
        "librados cannot be loaded: install it with `apt-get install librados2`, or your distribution's package \
         of Ceph's client library ({0})"
    )]
    NoLibrary(String),
    #[error("cannot read {}: {why}; name the cluster's ceph.conf with --conf, or with CEPH_CONF", conf.display())]
    Conf { conf: PathBuf, why: String },
    #[error("the name {0:?} contains a NUL byte")]
    Nul(String),
    #[error(
        "cannot connect to the cluster as client.{user}: {why}; check that its monitors run, and that the user's \
         keyring is where ceph.conf says"
    )]
    Connect { user: String, why: String },
    #[error("there is no pool {0}: make one with `ceph osd pool create {0}`")]
    NoPool(String),
    #[error("cannot {operation}: {why}")]
    Failed { operation: &'static str, why: String },
}

/// Describes a negative error number of librados.
pub(super) fn describe(code: i32) -> String {
    io::Error::from_raw_os_error(-code).to_string()
}

/// The meaning of a negative error number of librados.
pub(super) fn failure(code: i32) -> EngineFailure {
    match -code {
        libc::ENOENT => EngineFailure::Missing,
        libc::EEXIST => EngineFailure::Exists,
        libc::ECANCELED | libc::ERANGE | libc::EOVERFLOW => EngineFailure::Guard,
        libc::EBUSY => EngineFailure::Locked,
        libc::ESHUTDOWN => EngineFailure::Fenced,
        libc::ENOSPC | libc::EDQUOT => EngineFailure::Full,
        libc::ETIMEDOUT => EngineFailure::TimedOut,
        libc::EPERM | libc::EACCES => EngineFailure::Denied,
        libc::EOPNOTSUPP => EngineFailure::Unsupported,
        errno => EngineFailure::Io(errno),
    }
}
