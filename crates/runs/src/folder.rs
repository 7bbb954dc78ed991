//! Where this user's caches are: never in a dataset, never in a run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Once;

use crate::atomic::sweep_dead;

/// `$XDG_CACHE_HOME/bellows`, else `~/.cache/bellows`, else (Windows) `%LOCALAPPDATA%\bellows`; none where no variable names an absolute path.
/// Who asks first in a process removes what dead ones were writing there: nobody may ever write a file of the same name again.
pub fn cache_dir() -> Option<PathBuf> {
    static SWEPT: Once = Once::new();
    let dir = cache_dir_of(|name| std::env::var_os(name));
    SWEPT.call_once(|| dir.iter().for_each(|dir| sweep_dead(dir)));
    dir
}

fn cache_dir_of(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.or_else(|| absolute("LOCALAPPDATA")).map(|base| base.join("bellows"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_first_absolute_variable_counts() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> = set.iter().map(|(name, value)| (name.to_string(), value.into())).collect();
            cache_dir_of(|name| set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]).as_deref(), Some(Path::new("/c/bellows")));
        assert_eq!(of(&[("XDG_CACHE_HOME", "c"), ("HOME", "/h")]).as_deref(), Some(Path::new("/h/.cache/bellows")));
        assert_eq!(of(&[("HOME", ""), ("LOCALAPPDATA", "/l")]).as_deref(), Some(Path::new("/l/bellows")));
        assert_eq!(of(&[("HOME", "h")]), None);
    }
}
