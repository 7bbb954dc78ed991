//! Where the file of this program is, to be started again or to be told from another one.

use std::io;
use std::path::PathBuf;

/// The file that this process runs. One that was replaced meanwhile (built again, upgraded) has no name any more; on Linux it is still led to, so
/// that what a process starts is the program that it is itself.
///
/// # Errors
/// When the operating system does not know.
pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe().map(still_there)
}

fn still_there(path: PathBuf) -> PathBuf {
    if cfg!(target_os = "linux") && !path.exists() { "/proc/self/exe".into() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outlives_its_name() {
        let own = this_program().unwrap();
        assert_eq!(own, std::env::current_exe().unwrap());
        let gone = still_there("/nowhere/program (deleted)".into());
        if cfg!(target_os = "linux") {
            assert_eq!(gone.canonicalize().unwrap(), own.canonicalize().unwrap());
        }
    }
}
