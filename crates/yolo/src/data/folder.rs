//! Where this user's caches are: never in a dataset.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/bellows`, else `~/.cache/bellows`, else (Windows) `%LOCALAPPDATA%\bellows`.
pub fn default_dir() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|h| h.join(".cache"))).or_else(|| var("LOCALAPPDATA")).map(|p| p.join("bellows"))
}
