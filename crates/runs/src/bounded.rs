//! Opening files that a user's file names: inside their root, regular, and no larger than their budget.
//!
//! A dataset's YAML or list file is data from somewhere else. What it names is opened only through here. Refused: absolute paths
//! and `..` (unless the caller passes allowed directories), links that lead out, pipes, devices, directories, and anything longer
//! than its budget. Relies on nobody swapping files between check and opening; the budget holds even then.

use std::fs::{self, File};
use std::io::{self, Read, Take};
use std::path::{Component, Path, PathBuf};

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It is, or leads, outside of where it may be.
    #[error("{} is refused: {reason} {}", path.display(), root.display())]
    Outside {
        /// The path as given.
        path: PathBuf,
        /// The directory it has to be in.
        root: PathBuf,
        /// How it leaves.
        reason: &'static str,
    },
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path in question.
        path: PathBuf,
    },
    /// It is longer than its budget.
    #[error("{} has {found} bytes, at most {limit} are allowed", path.display())]
    TooLarge {
        /// The path in question.
        path: PathBuf,
        /// Its size in bytes (at least).
        found: u64,
        /// The budget in bytes.
        limit: u64,
    },
    /// The system refused.
    #[error("cannot open {}: {error}", path.display())]
    Io {
        /// The path in question.
        path: PathBuf,
        /// What the operating system answered.
        error: io::Error,
    },
}

/// `root/path` in canonical form, if it exists and is inside `root` after all links are followed. `..` and absolute paths are
/// refused even where they would lead back inside.
pub fn join_inside(root: &Path, path: &Path) -> Result<PathBuf, PathError> {
    let outside = |reason| PathError::Outside { path: path.into(), root: root.into(), reason };
    if path.is_absolute() || path.components().any(|c| matches!(c, Component::RootDir | Component::Prefix(_))) {
        return Err(outside("it is absolute and has to be relative to"));
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(outside("it contains '..' and has to stay inside"));
    }
    join_allowed(root, path, &[])
}

/// Like [`join_inside`], but only the canonical result counts, and it may also be inside one of the `allowed` directories (what
/// the user named with `--allow-outside`).
pub fn join_allowed(root: &Path, path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, PathError> {
    let real = canonicalize(&root.join(path))?;
    for dir in std::iter::once(root).chain(allowed.iter().map(PathBuf::as_path)) {
        if real.starts_with(canonicalize(dir)?) {
            return Ok(real);
        }
    }
    Err(PathError::Outside { path: path.into(), root: root.into(), reason: "it leads outside of" })
}

/// Opens `root/path` (see [`join_inside`]); the reader ends after `max_bytes` even if the file grows meanwhile.
pub fn open_bounded(root: &Path, path: &Path, max_bytes: u64) -> Result<Take<File>, PathError> {
    open_checked(&join_inside(root, path)?, max_bytes)
}

/// The contents of a file the user named directly, of at most `max_bytes`.
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PathError> {
    let mut bytes = Vec::new();
    // One byte more than allowed, to notice files whose size is not known beforehand.
    let mut reader = open_checked(path, max_bytes)?.into_inner().take(max_bytes.saturating_add(1));
    reader.read_to_end(&mut bytes).map_err(|error| PathError::Io { path: path.into(), error })?;
    match bytes.len() as u64 {
        found if found > max_bytes => Err(PathError::TooLarge { path: path.into(), found, limit: max_bytes }),
        _ => Ok(bytes),
    }
}

fn open_checked(path: &Path, limit: u64) -> Result<Take<File>, PathError> {
    let io = |error| PathError::Io { path: path.into(), error };
    // Looked at before opening: opening a pipe would block for ever.
    let info = fs::metadata(path).map_err(io)?;
    if !info.is_file() {
        return Err(PathError::NotAFile { path: path.into() });
    }
    if info.len() > limit {
        return Err(PathError::TooLarge { path: path.into(), found: info.len(), limit });
    }
    Ok(File::open(path).map_err(io)?.take(limit))
}

fn canonicalize(path: &Path) -> Result<PathBuf, PathError> {
    fs::canonicalize(path).map_err(|error| PathError::Io { path: path.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `root/images/a.bin`, `outside/b.bin`
    fn tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("images")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(root.join("images/a.bin"), b"12345").unwrap();
        fs::write(outside.join("b.bin"), b"secret").unwrap();
        (dir, root, outside)
    }

    fn is_outside(result: Result<PathBuf, PathError>) -> bool {
        matches!(result, Err(PathError::Outside { .. }))
    }

    #[test]
    fn inside_is_inside() {
        let (_dir, root, outside) = tree();
        assert!(join_inside(&root, Path::new("images/a.bin")).unwrap().ends_with("root/images/a.bin"));
        assert!(join_inside(&root, Path::new("./images")).is_ok());
        assert!(is_outside(join_inside(&root, Path::new("../outside/b.bin"))));
        assert!(is_outside(join_inside(&root, Path::new("images/../images/a.bin"))));
        assert!(is_outside(join_inside(&root, &root.join("images/a.bin"))));
        assert!(is_outside(join_inside(&root, &outside.join("b.bin"))));
        let missing = join_inside(&root, Path::new("images/none.bin")).unwrap_err();
        assert!(missing.to_string().contains("none.bin"), "{missing}");
    }

    #[test]
    fn a_sibling_with_the_same_beginning_is_outside() {
        let (dir, root, _) = tree();
        fs::create_dir(dir.path().join("root2")).unwrap();
        assert!(is_outside(join_allowed(&root, Path::new("../root2"), &[])));
    }

    #[cfg(unix)]
    #[test]
    fn links_count_by_where_they_lead() {
        use std::os::unix::fs::symlink;
        let (_dir, root, outside) = tree();
        symlink(outside.join("b.bin"), root.join("file")).unwrap();
        symlink(&outside, root.join("dir")).unwrap();
        symlink(root.join("images"), root.join("within")).unwrap();
        assert!(is_outside(join_inside(&root, Path::new("file"))));
        assert!(is_outside(join_inside(&root, Path::new("dir/b.bin"))));
        assert!(join_inside(&root, Path::new("within/a.bin")).is_ok());
        assert!(matches!(open_bounded(&root, Path::new("file"), 100), Err(PathError::Outside { .. })));

        let allowed = [outside.clone()];
        assert!(join_allowed(&root, Path::new("dir/b.bin"), &allowed).is_ok());
        assert!(join_allowed(&root, &outside.join("b.bin"), &allowed).is_ok());
        assert!(is_outside(join_allowed(&root, Path::new("/etc"), &allowed)));
    }

    #[test]
    fn the_budget_is_kept_and_both_sizes_named() {
        let (_dir, root, _) = tree();
        let file = root.join("images/a.bin");
        assert_eq!(read_bounded(&file, 5).unwrap(), b"12345");
        let text = read_bounded(&file, 4).unwrap_err().to_string();
        assert!(text.contains("a.bin") && text.contains("5 bytes") && text.contains("at most 4"), "{text}");
        assert!(matches!(open_bounded(&root, Path::new("images/a.bin"), 4), Err(PathError::TooLarge { found: 5, limit: 4, .. })));
        let mut all = String::new();
        open_bounded(&root, Path::new("images/a.bin"), 5).unwrap().read_to_string(&mut all).unwrap();
        assert_eq!(all, "12345");
        assert!(matches!(read_bounded(&root, 5), Err(PathError::NotAFile { .. })));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn devices_pipes_and_files_of_unknown_size() {
        assert!(matches!(read_bounded(Path::new("/dev/zero"), 5), Err(PathError::NotAFile { .. })));
        // Says it has 0 bytes, and has more.
        assert!(matches!(read_bounded(Path::new("/proc/self/status"), 5), Err(PathError::TooLarge { found: 6, .. })));
    }
}
