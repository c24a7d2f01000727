//! What ends a command early, but in order: an interrupt, or being asked to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// Becomes true when the command is to end: it then cleans up. A second interrupt ends it at once; asking twice does not, since
/// `timeout` and others send the signal to a process and then to its whole group.
pub(crate) fn when_asked() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&asked))
        .and_then(|_| register(SIGINT, Arc::clone(&asked)))
        .and_then(|_| register(SIGTERM, Arc::clone(&asked)))
        .context("cannot handle signals")?;
    Ok(asked)
}
