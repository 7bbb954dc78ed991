//! What Bellows' command lines have in common: flags from a table of settings, plain lines or bars, one message for an error.

mod console;
mod flags;

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use bellows_runs::read_bounded;
use bellows_settings::Layer;
use serde_json::{Map, Value};

pub use console::{Bar, memory, say};
pub use flags::{flag, flag_values};

/// The input or the command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Logs go to stderr; `BELLOWS_LOG` says which.
pub fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BELLOWS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,bellows_learner=error,bellows_device=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).without_time().init();
}

/// Prints the chain of causes once, on one line, to stderr.
pub fn complain(error: &anyhow::Error) {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // A transparent error says the same as its source.
        if !message.contains(&cause) {
            message = if message.is_empty() { cause } else { format!("{message}: {cause}") };
        }
    }
    if writeln!(std::io::stderr(), "error: {message}").is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// Makes this thread one of the pool's `threads` (0: one per core). A step has hundreds of parallel loops; handing each to other threads
/// and sleeping until they are done costs thousands of context switches a step.
///
/// # Errors
/// When the pool exists already.
pub fn join_pool(threads: usize) -> anyhow::Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    // Alone in the pool, this thread could wait for another one that waits for the pool.
    let pool = if threads > 1 { pool.use_current_thread() } else { pool };
    pool.build_global().context("setting up the threads")
}

/// Settings from a YAML file.
///
/// # Errors
/// A file that cannot be read or is no YAML, as [`Usage`].
pub fn yaml_layer(path: &Path) -> anyhow::Result<Layer> {
    let bytes = read_bounded(path, 1 << 20).map_err(|e| Usage(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| Usage(format!("{}: {e}", path.display())))?;
    yaml_text(&path.display().to_string(), &text)
}

/// Settings from YAML text that an error calls `origin`.
///
/// # Errors
/// Text that is no YAML, as [`Usage`].
pub fn yaml_text(origin: &str, text: &str) -> anyhow::Result<Layer> {
    let values: Map<String, Value> = serde_saphyr::from_str(text).map_err(|e| Usage(format!("{origin}: {e}")))?;
    Ok(Layer { origin: origin.into(), values })
}
