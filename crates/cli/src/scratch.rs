//! A folder for files that nobody wants when the program is done.

use std::path::PathBuf;

use bellows_exit::Exit;

use crate::{Context, Failure, Signals, Taken};

/// An empty folder of this process's own among the system's temporary ones. It goes with the guard, and when a signal ends the process.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(signals: &Signals) -> Result<(PathBuf, Taken), Failure> {
    let path = std::env::temp_dir().join(format!("bellows-{}", std::process::id()));
    signals.take(|| {
        std::fs::create_dir(&path).context(Exit::Failed, path.display())?;
        let made = path.clone();
        let remove = move || {
            if let Err(error) = std::fs::remove_dir_all(&made) {
                tracing::warn!("{}: {error}", made.display());
            }
        };
        Ok((path.clone(), remove))
    })
}
