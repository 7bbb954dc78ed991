//! SIGINT and SIGTERM: the first asks the run to finish its step and save, the second ends the process at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Installs the handlers for this process; the flag turns true at the first signal.
///
/// # Errors
/// When the operating system refuses a handler.
pub fn install() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: at the first signal the flag is still false when the shutdown looks at it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
