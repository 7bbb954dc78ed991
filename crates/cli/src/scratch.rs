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
    let all = std::env::temp_dir();
    signals.take(|| {
        let path = new_folder(&all).context(Exit::Failed, format!("{}, the folder for temporary files (TMPDIR)", all.display()))?;
        let made = path.clone();
        let remove = move || {
            if let Err(error) = std::fs::remove_dir_all(&made) {
                tracing::warn!("{}: {error}", made.display());
            }
        };
        Ok((path, remove))
    })
}

/// One that was not there: a process of the same number, which was killed, may have left its own.
fn new_folder(all: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let path = all.join(format!("bellows-{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_left_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| new_folder(dir.path()).unwrap());
        assert!(first.is_dir() && second.is_dir() && first != second);
        assert!(new_folder(&dir.path().join("gone")).is_err());
    }
}
