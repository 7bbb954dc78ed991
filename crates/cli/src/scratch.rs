//! A folder for files that nobody wants when the program is done.

use std::io;
use std::path::{Path, PathBuf};

use bellows_exit::Exit;

use crate::{Context, Failure, Signals, Taken};

/// An empty folder of this process's own among the system's temporary ones. It goes with the guard, and when a signal ends the process.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(signals: &Signals) -> Result<(PathBuf, Taken), Failure> {
    let among = std::env::temp_dir();
    signals.take(|| {
        let path = fresh(&among).context(Exit::Failed, among.display())?;
        let made = path.clone();
        let remove = move || {
            if let Err(error) = std::fs::remove_dir_all(&made) {
                tracing::warn!("{}: {error}", made.display());
            }
        };
        Ok((path, remove))
    })
}

/// A new folder. One of this process's number may be there: a process that was killed leaves its own behind, and numbers come again.
fn fresh(among: &Path) -> io::Result<PathBuf> {
    let mut attempt = 0;
    loop {
        let path = among.join(format!("bellows-{}-{attempt}", std::process::id()));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
            made => return made.map(|()| path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = [fresh(dir.path()).unwrap(), fresh(dir.path()).unwrap()];
        assert!(first != second && first.is_dir() && second.is_dir());
        assert!(fresh(&dir.path().join("nowhere")).is_err());
    }
}
