//! What the system lets a process have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process have so many files open: few are allowed by default, and more may be asked for. Else it is told how many it may.
pub fn allow_files(needed: u64) -> Result<(), u64> {
    let limit = getrlimit(Resource::Nofile);
    let Some(before) = limit.current.filter(|current| *current < needed) else { return Ok(()) };
    let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum }) {
        Ok(()) if current == needed => Ok(()),
        Ok(()) => Err(current),
        Err(_) => Err(before),
    }
}
