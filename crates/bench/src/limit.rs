//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the process open so many, besides a few that it needs itself.
///
/// # Errors
/// It may open fewer only: how many.
pub(crate) fn may_open(files: u64) -> Result<(), u64> {
    const OTHERS: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let needed = files + OTHERS;
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| limit.maximum.unwrap_or(u64::MAX).saturating_sub(OTHERS))
}
