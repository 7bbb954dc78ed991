//! Images that are in two splits: what is judged on was learnt, and the numbers are too good.
//!
//! By their real places, so that a link is what it leads to; copies under other names are not seen.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::description::Split;
use super::scan::Scan;

/// A line about images that are in both, if there are any.
pub fn overlap((first, a): (Split, &Scan), (second, b): (Split, &Scan)) -> Option<String> {
    let mut places = Places { told: a.has_places_of(b), folders: HashMap::new() };
    let known: HashSet<Cow<'_, Path>> = (0..a.len()).map(|i| places.of(a, i)).collect();
    let twice: Vec<usize> = (0..b.len()).filter(|&i| known.contains(&*places.of(b, i))).collect();
    let named = b.path(*twice.first()?);
    let (count, name) = (twice.len(), named.display());
    let [first, second] = [first, second].map(Split::key);
    Some(match count {
        1 => format!("warning: one image is in both {first} and {second}: {name}"),
        _ => format!("warning: {count} images are in both {first} and {second}, {name} the first of them"),
    })
}

/// Where images really are.
struct Places {
    /// Their paths within the data set tell.
    told: bool,
    /// Real folders are looked up once: a data set has many files in few folders.
    folders: HashMap<PathBuf, PathBuf>,
}

impl Places {
    /// Of image `i`. A look at every file takes longer than all else at the start of a run whose index is known.
    fn of<'a>(&mut self, scan: &'a Scan, i: usize) -> Cow<'a, Path> {
        if self.told { Cow::Borrowed(scan.within(i)) } else { Cow::Owned(self.behind_links(scan.path(i))) }
    }

    fn behind_links(&mut self, path: PathBuf) -> PathBuf {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return path };
        if path.is_symlink() {
            return path.canonicalize().unwrap_or(path);
        }
        let folder = match self.folders.get(folder) {
            Some(known) => known,
            None => self.folders.entry(folder.into()).or_insert_with(|| real(folder)),
        };
        folder.join(name)
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::data::{DataConfig, ScanOptions, scan};

    #[test]
    fn an_image_is_the_same_behind_links_of_files_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for folder in ["images/train", "images/val"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let image = crate::data::image::tests::jpeg(32, 20);
        let put = |name: &str| std::fs::write(root.join(name), &image).unwrap();
        ["images/train/a.jpg", "images/train/b.jpg", "images/train/c.jpg", "images/val/a.jpg"].into_iter().for_each(put);
        let told = |val: &str| {
            let text = format!("train: images/train\nval: {val}\nnc: 1\n");
            let config = DataConfig::parse(&text, &root.join("data.yaml")).unwrap();
            let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
            let [train, val] = [Split::Train, Split::Val].map(|split| scan(&config, split, &options, &|_, _| {}).unwrap());
            overlap((Split::Train, &train), (Split::Val, &val))
        };
        assert_eq!(told("images/val"), None, "another image of the same name");
        std::os::unix::fs::symlink("../train/b.jpg", root.join("images/val/other.jpg")).unwrap();
        let one = told("images/val").unwrap();
        assert!(one.starts_with("warning: one image is in both train and val: ") && one.ends_with("images/val/other.jpg"), "{one}");
        std::os::unix::fs::symlink("train", root.join("images/again")).unwrap();
        let all = told("images/again").unwrap();
        assert!(all.starts_with("warning: 3 images are in both train and val, ") && all.contains("a.jpg the first"), "{all}");
    }

    #[test]
    fn an_image_of_two_coco_files_is_the_same_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("frames/clip")).unwrap();
        for name in ["a.jpg", "b.jpg", "c.jpg"] {
            std::fs::write(root.join("frames/clip").join(name), crate::data::image::tests::jpeg(32, 20)).unwrap();
        }
        std::os::unix::fs::symlink("clip", root.join("frames/again")).unwrap();
        std::os::unix::fs::symlink("clip/b.jpg", root.join("frames/other.jpg")).unwrap();
        let put = |file: &str, names: &[&str]| {
            let images: Vec<String> =
                names.iter().enumerate().map(|(id, name)| format!("{{\"id\":{id},\"file_name\":\"{name}\"}}")).collect();
            std::fs::write(root.join(file), format!("{{\"images\":[{}]}}", images.join(","))).unwrap();
        };
        put("train.json", &["frames/clip/a.jpg", "frames/clip/b.jpg"]);
        let told = |val: &[&str]| {
            put("val.json", val);
            let config = DataConfig::parse("train: train.json\nval: val.json\nnames: [a]\n", &root.join("data.yaml")).unwrap();
            let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
            let [train, val] = [Split::Train, Split::Val].map(|split| scan(&config, split, &options, &|_, _| {}).unwrap());
            assert!(train.has_places_of(&val), "places are told without a look");
            overlap((Split::Train, &train), (Split::Val, &val))
        };
        assert_eq!(told(&["frames/clip/c.jpg"]), None);
        for name in ["frames/clip/b.jpg", "frames/again/b.jpg", "frames/other.jpg"] {
            let one = told(&["frames/clip/c.jpg", name]).unwrap();
            assert!(one.starts_with("warning: one image is in both train and val: ") && one.ends_with("frames/clip/b.jpg"), "{one}");
        }
    }
}
