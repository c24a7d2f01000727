//! The limit on open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to `files` plus a reserve for the process, as far as permitted.
///
/// # Errors
/// The number of files, if it is lower.
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
