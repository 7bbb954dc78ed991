//! A folder for files that nobody wants when the program is done.

use std::path::PathBuf;

use bellows_exit::Exit;
use bellows_runs::scratch_in;

use crate::{Context, Failure, Signals, Taken};

/// An empty folder of this process's own among the system's temporary ones. It goes with the guard, when a signal ends the process, and when another
/// process asks for one after this one was killed.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(signals: &Signals) -> Result<(PathBuf, Taken), Failure> {
    let all = std::env::temp_dir();
    signals.take(|| {
        let path = scratch_in(&all).context(Exit::Failed, format!("{}, the folder for temporary files (TMPDIR)", all.display()))?;
        let made = path.clone();
        let remove = move || {
            if let Err(error) = std::fs::remove_dir_all(&made) {
                tracing::warn!("{}: {error}", made.display());
            }
        };
        Ok((path, remove))
    })
}
