//! Ends a command in an orderly way on an interrupt or a request to terminate.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// A flag that becomes true when the command should clean up and end. A second interrupt ends it at
/// once; a second SIGTERM does not, since `timeout` and others signal a process and then its whole
/// group.
pub(crate) fn on_signal() -> Result<Arc<AtomicBool>> {
    let requested = Arc::new(AtomicBool::new(false));
    register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&requested))
        .and_then(|_| register(SIGINT, Arc::clone(&requested)))
        .and_then(|_| register(SIGTERM, Arc::clone(&requested)))
        .context("cannot handle signals")?;
    Ok(requested)
}
