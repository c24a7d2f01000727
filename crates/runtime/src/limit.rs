//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the process open so many, besides a few that it needs itself, or as many as it is allowed to.
///
/// # Errors
/// It may open fewer only: how many.
pub fn may_open(files: u64) -> Result<(), u64> {
    const OTHERS: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let needed = files + OTHERS;
    let Some(before) = limit.current.filter(|current| *current < needed) else { return Ok(()) };
    let raised = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
    let current = set.map_or(before, |()| raised);
    if current < needed { Err(current.saturating_sub(OTHERS)) } else { Ok(()) }
}
