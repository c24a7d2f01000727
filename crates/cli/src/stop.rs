//! What ends a command early, but in order: an interrupt, or being asked to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

/// Becomes true when the command is to end: it then cleans up. Asked a second time, it ends at once.
pub(crate) fn when_asked() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))
            .and_then(|_| register(signal, Arc::clone(&asked)))
            .context("cannot handle signals")?;
    }
    Ok(asked)
}
