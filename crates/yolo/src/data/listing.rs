//! The image files that a split of a data.yaml names: folders (recursively), `.txt` lists, and any mixture, sorted and without repeats.
//!
//! Links inside a folder are followed only where [`DataConfig::resolve`] allows; lines of a list that start with `./` are relative to the list,
//! others to the dataset root. Files of other kinds are passed over in folders; in a list they are somebody's mistake and are kept, to be
//! reported by the scan.

use std::path::{Component, Path, PathBuf};

use super::error::DataError;
use super::yaml::{DataConfig, Split};

/// What can be read. Which of these a file really is, its first bytes say.
const SUFFIXES: [&str; 8] = ["bmp", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp"];
/// Images that cannot be read here: listed, so that the scan reports them instead of dropping them silently.
const UNREADABLE: [&str; 4] = ["dng", "heic", "pfm", "gif"];
const MAX_DEPTH: usize = 32;
const MAX_LIST_BYTES: u64 = 1 << 30;

/// The images of `split`, sorted by path.
///
/// # Errors
/// [`DataError::Missing`] when a source does not exist, [`DataError::Outside`] when one leads out of the root.
pub fn images(config: &DataConfig, split: Split) -> Result<Vec<PathBuf>, DataError> {
    let mut found = Vec::new();
    for source in config.sources(split) {
        let path = match config.resolve(&config.root, source) {
            Err(DataError::Io { path, .. }) => return Err(missing(config, split, path)),
            other => other?,
        };
        if path.is_dir() {
            walk(config, &path, 0, &mut found)?;
        } else {
            read_list(config, &path, &mut found)?;
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn missing(config: &DataConfig, split: Split, path: PathBuf) -> DataError {
    let hint = config.download.as_ref().map(|text| format!("\nHow to obtain the data:\n{}", text.trim_end())).unwrap_or_default();
    DataError::Missing { path, yaml_key: split.key().into(), yaml: config.yaml.clone(), hint }
}

/// The suffix of a file's name, in small letters.
pub(crate) fn suffix(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Whether a file is called like an image that can be read.
pub(crate) fn is_image(path: &Path) -> bool {
    SUFFIXES.contains(&suffix(path).as_str())
}

fn walk(config: &DataConfig, folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        return Err(DataError::Invalid(format!("{}: folders nested deeper than {MAX_DEPTH} (a link to itself?)", folder.display())));
    }
    for entry in std::fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        let path = entry.path();
        let mut kind = entry.file_type().map_err(DataError::io(&path))?;
        if kind.is_symlink() {
            let real = config.resolve(folder, &path)?;
            kind = std::fs::metadata(&real).map_err(DataError::io(&path))?.file_type();
        }
        if kind.is_dir() {
            walk(config, &path, depth + 1, found)?;
        } else if is_image(&path) || UNREADABLE.contains(&suffix(&path).as_str()) {
            found.push(path);
        }
    }
    Ok(())
}

fn read_list(config: &DataConfig, list: &Path, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let length = std::fs::metadata(list).map_err(DataError::io(list))?.len();
    if length > MAX_LIST_BYTES {
        return Err(DataError::Invalid(format!("{}: {length} bytes; a list of images has at most {MAX_LIST_BYTES}", list.display())));
    }
    let text = std::fs::read_to_string(list).map_err(DataError::io(list))?;
    let beside = list.parent().unwrap_or(Path::new("."));
    // Real folders are looked up once: a list has many files in few folders.
    let mut folders = std::collections::HashMap::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let path = match line.strip_prefix("./") {
            Some(rest) => beside.join(rest),
            None => config.root.join(line),
        };
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(DataError::Invalid(format!("{}: `{line}` is not a file name", list.display())));
        };
        if !folders.contains_key(folder) {
            let real = config.resolve(folder, Path::new(""))?;
            folders.insert(folder.to_path_buf(), real);
        }
        let file = folders[folder].join(name);
        found.push(if file.is_symlink() { config.resolve(&folders[folder], Path::new(name))? } else { file });
    }
    Ok(())
}

/// Where the labels of `image` stand: the last folder `images` of its path becomes `labels`, the suffix `txt`.
pub fn label_path(image: &Path) -> PathBuf {
    let parts: Vec<Component> = image.components().collect();
    let folders = &parts[..parts.len().saturating_sub(1)];
    let last = folders.iter().rposition(|c| c.as_os_str() == "images");
    let mapped = parts.iter().enumerate().map(|(i, c)| if Some(i) == last { std::ffi::OsStr::new("labels") } else { c.as_os_str() });
    mapped.collect::<PathBuf>().with_extension("txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_beside_images() {
        for (image, label) in [
            ("/d/images/train/a.jpg", "/d/labels/train/a.txt"),
            ("/images/d/images/a.b.png", "/images/d/labels/a.b.txt"),
            ("/d/frames/a.jpg", "/d/frames/a.txt"),
            ("images/a.jpg", "labels/a.txt"),
            ("/d/myimages/images.jpg", "/d/myimages/images.txt"),
        ] {
            assert_eq!(label_path(Path::new(image)), Path::new(label), "{image}");
        }
    }

    #[test]
    fn folders_and_lists_mix() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("images/sub")).unwrap();
        for name in ["images/b.JPG", "images/sub/a.png", "images/notes.md", "images/c.dng", "x.jpg"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        std::fs::write(root.join("list.txt"), "./x.jpg\n\nimages/b.JPG\nimages/gone.jpg\n").unwrap();
        let list = |yaml: &str| {
            let config = DataConfig::parse(yaml, &root.join("data.yaml")).unwrap();
            images(&config, Split::Train)
                .map(|v| v.iter().map(|p| p.strip_prefix(&root).unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>())
        };
        assert_eq!(list("train: images\nval: v\nnc: 1\n").unwrap(), ["images/b.JPG", "images/c.dng", "images/sub/a.png"]);
        assert_eq!(
            list("train: [list.txt, images/sub]\nval: v\nnc: 1\n").unwrap(),
            ["images/b.JPG", "images/gone.jpg", "images/sub/a.png", "x.jpg"]
        );
        std::fs::write(root.join("list.txt"), "/etc/passwd\n").unwrap();
        assert!(matches!(list("train: list.txt\nval: v\nnc: 1\n"), Err(DataError::Outside { .. })));
        let error = list("train: gone\nval: v\nnc: 1\ndownload: |\n  touch pwned\n").unwrap_err().to_string();
        assert!(error.contains("touch pwned") && error.contains("gone"), "{error}");
        assert!(!root.join("pwned").exists() && !Path::new("pwned").exists());
    }
}
