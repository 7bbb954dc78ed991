//! The image files that a split names: folders (recursively), `.txt` lists, COCO files, and any mixture, sorted and without repeats.
//!
//! Links inside a folder are followed only where [`DataConfig::resolve`] allows; lines of a list that start with `./` are relative to the list,
//! others to the dataset root, then to the current directory. Files of other kinds are passed over in folders; in a list they are somebody's
//! mistake and are kept, to be reported by the scan. So is a link that leads nowhere.
//!
//! Label files are looked for by the names that images were given, and where there is none, by the places that links lead to.
//!
//! Where validation is held out of training, an image is in the one or the other by a hash of its path, so more images change no old one's side.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Component, MAIN_SEPARATOR, Path, PathBuf};
use std::sync::Arc;

use bellows_runs::read_bounded;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::annotated::Annotated;
use super::clips::{OfClip, assign_clips};
use super::description::{DataConfig, Source, Split};
use super::error::DataError;
use super::header::{is_image, suffix};
use super::packed::Packed;
use super::record::Stamp;

/// Images that cannot be read here: listed, so that the scan reports them instead of dropping them silently.
const UNREADABLE: [&str; 4] = ["dng", "heic", "pfm", "gif"];
const MAX_DEPTH: usize = 32;
const MAX_LIST_BYTES: u64 = 1 << 30;
/// So many images of a COCO file are looked for by one thread at a time: clips stand together there, so that few folders are looked up twice.
const PIECE: usize = 4096;
/// Stands for every image of a folder: where the label file of one is, there are those of all.
const ANY: &str = "_";

/// An image, and where its objects stand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Allowed to be read, and real but for links that are met inside a folder.
    pub(crate) image: PathBuf,
    /// Its label file, if it is there, which is real and allowed to be read, where links make it another than the one by the image's place.
    pub(crate) label: Option<Box<Path>>,
    /// Which of the COCO files, and which of its images; none for a label file of its own.
    pub(crate) coco: Option<(u32, u32)>,
    /// Which sample of the split's shards; none for a file of its own.
    pub(crate) sample: Option<u32>,
    /// Of an image of a COCO file, which was looked at to be listed: of a million on a network's drive each is asked about once.
    pub(crate) stamp: Option<Stamp>,
}

impl Entry {
    /// An image with a label file of its own, there or not.
    pub(crate) fn of_files(image: PathBuf, label: Option<PathBuf>) -> Self {
        Self { image, label: label.map(PathBuf::into_boxed_path), coco: None, sample: None, stamp: None }
    }

    /// Where a label file of its own stands, or would stand.
    pub(crate) fn label_path(&self) -> PathBuf {
        self.label.as_deref().map_or_else(|| label_path(&self.image), Path::to_path_buf)
    }

    /// The same of an image whose objects do not stand elsewhere.
    pub(crate) fn label_file(&self) -> Option<PathBuf> {
        (self.coco.is_none() && self.sample.is_none()).then(|| self.label_path())
    }

    /// Its label file is looked for by the place of the image.
    fn is_by_place(&self) -> bool {
        self.coco.is_none() && self.sample.is_none() && self.label.is_none()
    }

    /// Sizes and times of its files.
    pub(crate) fn look(&self) -> Stamp {
        self.stamp.unwrap_or_else(|| Stamp::of(&self.image, self.label_file().as_deref()))
    }
}

/// The images of a split.
#[derive(Default)]
pub(crate) struct Listing {
    /// Sorted by path.
    pub(crate) entries: Vec<Entry>,
    /// The COCO files that they come from.
    pub(crate) coco: Vec<Annotated>,
    /// Their images whose file another entry has.
    pub(crate) repeated: Vec<(u32, u32)>,
    /// The shards that hold all of them, if the split is in shards.
    pub(crate) packed: Option<Arc<Packed>>,
    /// Some come from folders that were walked, where a path may lead over a link.
    pub(crate) walked: bool,
}

impl Listing {
    /// Keeps a part of the images, at least one, spread evenly over their list, whose names often go by camera, day or hour; whole clips where something
    /// is known of frames and there are several. With `whole_clips` a folder is one of which nothing is known, and of a single clip its beginning is kept.
    pub(crate) fn keep(&mut self, fraction: f64, whole_clips: bool) {
        let clips = if fraction < 1.0 { self.clips(whole_clips) } else { None };
        let Some(clips) = clips.filter(|clips| clips.iter().any(|&clip| clip > 0)) else {
            let all = self.entries.len();
            let kept = ((all as f64 * fraction).round_ties_even() as usize).max(1);
            if whole_clips {
                self.entries.truncate(kept);
                return;
            }
            // Of image i: whether the number of those that are due grows with it.
            let due = |images: usize| (images * kept).div_ceil(all);
            let mut at = 0..;
            self.entries.retain(|_| at.next().is_none_or(|i: usize| due(i + 1) > due(i)));
            return;
        };
        let taken = |clip: u32| (f64::from(clip + 1) * fraction).ceil() > (f64::from(clip) * fraction).ceil();
        let mut at = clips.into_iter();
        self.entries.retain(|_| at.next().is_none_or(taken));
    }

    /// The clip of each image, by number in the order of the list; `None` where nothing is known of some, unless their `folders` are clips.
    fn clips(&self, folders: bool) -> Option<Vec<u32>> {
        let tables: Vec<_> = self.coco.iter().map(|coco| coco.knows_clips().then(|| coco.meta())).collect();
        let told = |entry: &Entry| {
            let (file, row) = entry.coco?;
            Some((tables[file as usize].as_deref()?, row as usize))
        };
        if !folders && self.entries.iter().any(|entry| told(entry).is_none()) {
            return None;
        }
        let clip = |entry: &Entry| told(entry).and_then(|(table, row)| table.clip(row)).unwrap_or_else(|| OfClip::folder(&entry.image));
        Some(assign_clips(self.entries.iter().map(clip)).of)
    }
}

/// The images of `split`; `cache_dir` is where COCO files are remembered.
///
/// # Errors
/// [`DataError::Missing`] when a source does not exist, [`DataError::Outside`] when one leads out of the root, or label files do;
/// [`DataError::Invalid`] when two COCO files have unlike boxes of one image; [`DataError::NoImages`] when all are held out.
pub(crate) fn images(config: &DataConfig, split: Split, cache_dir: Option<&Path>) -> Result<Listing, DataError> {
    let mut listing = Listing::default();
    for source in config.sources(split) {
        let (named, path) = match config.find(&config.root, &source.path) {
            Err(DataError::Io { path, .. }) => return Err(missing(config, split, path)),
            other => other?,
        };
        if Packed::is(&path) {
            packed(config, split, &path, &mut listing)?;
        } else if path.is_dir() {
            listing.walked = true;
            let before = listing.entries.len();
            walk(config, &named, &path, 0, &mut listing.entries)?;
            if listing.entries.len() == before && Packed::lacks_index(&path) {
                packed(config, split, &path, &mut listing)?;
            }
        } else if source.is_coco() {
            annotated(config, source, cache_dir, &mut listing)?;
        } else {
            read_list(config, &path, &mut listing.entries)?;
        }
    }
    prefer_beside(config, &mut listing.entries);
    resolve_labels(config, &mut listing.entries)?;
    check_links(config, &listing.entries)?;
    if listing.packed.is_none() {
        sort(&mut listing)?;
    }
    if config.hold_out && split != Split::Test && !listing.entries.is_empty() {
        hold_out(config, split, &mut listing.entries);
        if listing.entries.is_empty() {
            let reason = "the images of `train` are all held out for validation: name a `val`, or add images".into();
            return Err(DataError::NoImages { path: config.root.clone(), reason });
        }
    }
    Ok(listing)
}

/// The samples of the shards in the folder at `path`, in the order they were written in.
fn packed(config: &DataConfig, split: Split, path: &Path, listing: &mut Listing) -> Result<(), DataError> {
    if config.sources(split).len() > 1 {
        let reason = format!("{}: a split in shards is one folder of them; `{}` names more", path.display(), split.key());
        return Err(DataError::Invalid(reason));
    }
    let packed = Packed::open(path)?;
    // A shard that is a link leads where images may lie, as any other file; one that leads nowhere is missing.
    for shard in packed.files().filter(|shard| shard.is_symlink() && shard.exists()) {
        config.resolve(path, &shard)?;
    }
    let entry = |(sample, image)| Entry { image, label: None, coco: None, sample: Some(sample as u32), stamp: None };
    listing.entries = packed.images().enumerate().map(entry).collect();
    listing.packed = Some(Arc::new(packed));
    Ok(())
}

/// Images by their paths, each file once.
fn sort(listing: &mut Listing) -> Result<(), DataError> {
    // Of several names the one that leads to labels goes first.
    listing.entries.par_sort_unstable_by(|a, b| (&a.image, a.coco, Reverse(&a.label)).cmp(&(&b.image, b.coco, Reverse(&b.label))));
    let id = |(file, image): (u32, u32)| listing.coco[file as usize].image_id(image);
    let mut lost = None;
    listing.entries.dedup_by(|b, a| {
        let same = a.image == b.image;
        if same
            && lost.is_none()
            && let (Some((kept, here)), Some((other, there))) = (a.coco, b.coco)
            && kept != other
        {
            let (kept, other) = (&listing.coco[kept as usize], &listing.coco[other as usize]);
            lost = other.has_more(there, kept, here).then(|| (a.image.clone(), kept.path(), other.path()));
        }
        // Two files may list one image under one id.
        listing.repeated.extend(b.coco.filter(|&of| same && a.coco.map(id) != Some(id(of))));
        same
    });
    let Some((image, kept, other)) = lost else { return Ok(()) };
    let reason = "has boxes of it that the other has not; those of one image are taken from one file: join the two";
    Err(DataError::Invalid(format!("{}: {} and {} list it, and the second {reason}", image.display(), kept.display(), other.display())))
}

/// Keeps the side of `split`: one image in ten is for validation, and at least one of all.
fn hold_out(config: &DataConfig, split: Split, entries: &mut Vec<Entry>) {
    let root = config.root.canonicalize().unwrap_or_else(|_| config.root.clone());
    let number = |entry: &Entry| {
        let path = entry.image.strip_prefix(&root).unwrap_or(&entry.image);
        // The same on every system.
        let text = path.components().map(|c| c.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/");
        let digest = Sha256::digest(text.as_bytes());
        u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
    };
    let least = entries.iter().map(number).min().unwrap_or(0);
    entries.retain(|entry| {
        let number = number(entry);
        let held_out = number < u32::MAX / 10 || number == least;
        held_out == (split == Split::Val)
    });
}

fn annotated(config: &DataConfig, source: &Source, cache_dir: Option<&Path>, listing: &mut Listing) -> Result<(), DataError> {
    let coco = Annotated::open(config, source, cache_dir)?;
    let which = listing.coco.len() as u32;
    let paths = coco.images(config, source)?;
    let pieces: Vec<_> = paths.par_chunks(PIECE).map(|piece| places(config, piece)).collect();
    listing.entries.reserve(paths.len());
    let mut index = 0;
    // The first path that is refused is told, whichever thread was first.
    for piece in pieces {
        for (image, stamp) in piece? {
            listing.entries.push(Entry { image, label: None, coco: Some((which, index)), sample: None, stamp });
            index += 1;
        }
    }
    listing.coco.push(coco);
    Ok(())
}

/// The real place of a file, and what was seen there, unless a link led to it.
type Placed = (PathBuf, Option<Stamp>);

/// Folders by their letters: as they were found, and where they really are.
type Folders = HashMap<OsString, (PathBuf, PathBuf)>;

fn places(config: &DataConfig, paths: &[PathBuf]) -> Result<Vec<Placed>, DataError> {
    let mut folders = Folders::new();
    let placed = paths.iter().map(|path| match place(config, path, &mut folders) {
        // A folder that is not there: the scan names the image.
        Err(DataError::Io { .. }) => Ok((path.clone(), None)),
        other => other,
    });
    placed.collect()
}

/// The real place of the file at `path`. Real folders are looked up once, by their letters: a list has many files in few folders.
fn place(config: &DataConfig, path: &Path, folders: &mut Folders) -> Result<Placed, DataError> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(DataError::Invalid(format!("`{}` is not a file name", path.display())));
    };
    let (_, real) = match folders.get(folder.as_os_str()) {
        Some(known) => known,
        None => {
            let relative = folder.strip_prefix(&config.root).unwrap_or(folder);
            let found = config.find(&config.root, relative)?;
            &*folders.entry(folder.into()).or_insert(found)
        }
    };
    let file = real.join(name);
    match file.symlink_metadata() {
        Ok(info) if info.is_symlink() => match config.resolve(real, &file) {
            // It leads nowhere: the scan names it.
            Err(DataError::Io { .. }) => Ok((file, None)),
            other => Ok((other?, None)),
        },
        info => Ok((file, info.ok().map(|info| Stamp::seen(&info)))),
    }
}

fn missing(config: &DataConfig, split: Split, path: PathBuf) -> DataError {
    let download = config.download.as_ref().map(|text| format!("\nHow to obtain the data:\n{}", text.trim_end()));
    let hint = format!("{}{}", of_another_system(&path), download.unwrap_or_default());
    DataError::Missing { path, yaml_key: split.key().into(), yaml: config.yaml.clone(), hint }
}

/// What to say of a path that is not there and may have been written on Windows.
pub(crate) fn of_another_system(path: &Path) -> &'static str {
    let is_one = MAIN_SEPARATOR == '/' && path.to_string_lossy().contains('\\');
    if is_one { "; here `/` divides folders, and not `\\`" } else { "" }
}

/// `named` is what `folder` is called, which may lead there over links.
fn walk(config: &DataConfig, named: &Path, folder: &Path, depth: usize, found: &mut Vec<Entry>) -> Result<(), DataError> {
    if depth > MAX_DEPTH {
        return Err(DataError::Invalid(format!("{}: folders nested deeper than {MAX_DEPTH} (a link to itself?)", folder.display())));
    }
    let labels = label_as_named(&named.join(ANY), &folder.join(ANY));
    for entry in std::fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        let path = entry.path();
        let mut kind = entry.file_type().map_err(DataError::io(&path))?;
        if kind.is_symlink() {
            let target = config.resolve(folder, &path).and_then(|real| std::fs::metadata(&real).map_err(DataError::io(&path)));
            kind = match target {
                Ok(target) => target.file_type(),
                // It leads nowhere: the scan names it if it is called like an image.
                Err(DataError::Io { .. }) => kind,
                Err(other) => return Err(other),
            };
        }
        if kind.is_dir() {
            walk(config, &named.join(entry.file_name()), &path, depth + 1, found)?;
        } else if is_image(&path) || UNREADABLE.contains(&suffix(&path).as_str()) {
            let label = labels.as_ref().map(|labels| labels.with_file_name(entry.file_name()).with_extension("txt"));
            found.push(Entry::of_files(path, label));
        }
    }
    Ok(())
}

fn read_list(config: &DataConfig, list: &Path, found: &mut Vec<Entry>) -> Result<(), DataError> {
    let text = String::from_utf8(read_bounded(list, MAX_LIST_BYTES)?).map_err(|_| {
        let kinds = "a split is a folder, a list of images as UTF-8 text, or a COCO .json, and this is none of them";
        DataError::Invalid(format!("{}: {kinds}", list.display()))
    })?;
    let beside = list.parent().unwrap_or(Path::new("."));
    let (mut folders, mut labels) = (Folders::new(), HashMap::new());
    for line in text.trim_start_matches('\u{feff}').lines().map(str::trim).filter(|l| !l.is_empty()) {
        let path = match line.strip_prefix("./") {
            Some(rest) => beside.join(rest),
            None => config.root.join(line),
        };
        let (image, _) = place(config, &path, &mut folders).map_err(|error| match error {
            DataError::Invalid(reason) => DataError::Invalid(format!("{}: {reason}", list.display())),
            other => other,
        })?;
        let label = label_of_line(&path, &image, &folders, &mut labels);
        found.push(Entry::of_files(image, label));
    }
    Ok(())
}

/// [`label_as_named`] of a line of a list, whose folder is one of `folders`; `labels` is what is known of those.
fn label_of_line(path: &Path, image: &Path, folders: &Folders, labels: &mut HashMap<OsString, Option<PathBuf>>) -> Option<PathBuf> {
    let (folder, name) = (path.parent()?, path.file_name()?);
    let (named, real) = folders.get(folder.as_os_str())?;
    if image != real.join(name) {
        // A link by itself.
        return label_as_named(&named.join(name), image);
    }
    let labels = labels.entry(folder.into()).or_insert_with(|| label_as_named(&named.join(ANY), &real.join(ANY)));
    labels.as_ref().map(|labels| labels.with_file_name(name).with_extension("txt"))
}

/// Where the label file of the image `named` is or would be, if links make that another place than by `real`, where they lead to.
fn label_as_named(named: &Path, real: &Path) -> Option<PathBuf> {
    let label = label_path(&std::path::absolute(named).ok()?);
    let by_name = label.parent()?.canonicalize().ok()?.join(label.file_name()?);
    (by_name != label_path(real)).then_some(by_name)
}

/// Of images that no folder `images` of the data set holds, but one above its root does, label files beside them go before those that this one leads to: the
/// data set may have been put below a folder of that name.
fn prefer_beside(config: &DataConfig, entries: &mut [Entry]) {
    let root = config.root.canonicalize().unwrap_or_else(|_| config.root.clone());
    let in_images = |path: &Path| path.components().any(|c| c.as_os_str() == "images");
    if !in_images(&root) {
        return;
    }
    let by_place = entries.par_iter_mut().filter(|entry| entry.is_by_place());
    by_place.for_each(|entry| {
        let folder = entry.image.strip_prefix(&root).ok().and_then(Path::parent);
        let beside = entry.image.with_extension("txt");
        if folder.is_some_and(|folder| !in_images(folder)) && beside.is_file() {
            entry.label = Some(beside.into_boxed_path());
        }
    });
}

/// Label files by the names of their images become real ones that may be read; those that are not there are forgotten.
fn resolve_labels(config: &DataConfig, entries: &mut [Entry]) -> Result<(), DataError> {
    let resolve = |piece: &mut [Entry]| -> Result<(), DataError> {
        let mut folders = Folders::new();
        for entry in piece {
            let Some(label) = entry.label.take() else { continue };
            let (label, seen) = place(config, &label, &mut folders)?;
            let is_there = seen.is_some() || label.exists() || label.with_extension("TXT").is_file();
            entry.label = is_there.then(|| label.into_boxed_path());
        }
        Ok(())
    };
    let pieces: Vec<Result<(), DataError>> = entries.par_chunks_mut(PIECE).map(resolve).collect();
    // The first path that is refused is told, whichever thread was first.
    pieces.into_iter().collect()
}

/// Label files by the places of their images lead where images may, too. Each of their folders is read once, and only the links in it are followed: to ask of
/// every label file would cost as much as the scan.
fn check_links(config: &DataConfig, entries: &[Entry]) -> Result<(), DataError> {
    let folders: HashSet<&OsStr> = entries.iter().filter_map(folder_of).collect();
    let links = folders.into_par_iter().map(|folder| (folder, links_beside(&label_path(&Path::new(folder).join(ANY)))));
    let links: HashMap<&OsStr, Option<HashSet<OsString>>> =
        links.filter(|(_, links)| links.as_ref().is_none_or(|links| !links.is_empty())).collect();
    // The first path that is refused is told, whichever thread was first.
    let refused = entries.par_iter().find_map_first(|entry| {
        let links = links.get(&folder_of(entry)?)?;
        let label = label_path(&entry.image);
        let name = label.file_name()?;
        if links.as_ref().is_some_and(|links| !links.contains(name)) {
            return None;
        }
        match config.resolve(label.parent()?, &label) {
            // One that leads nowhere, or none at all: the scan finds no labels there.
            Ok(_) | Err(DataError::Io { .. }) => None,
            Err(refused) => Some(refused),
        }
    });
    refused.map_or(Ok(()), Err)
}

/// Where the image lies, if its label file is looked for by that.
fn folder_of(entry: &Entry) -> Option<&OsStr> {
    entry.image.parent().filter(|_| entry.is_by_place()).map(Path::as_os_str)
}

/// The names of the links in the folder of `label`; `None` where files may be opened and not listed.
fn links_beside(label: &Path) -> Option<HashSet<OsString>> {
    let entries = match std::fs::read_dir(label.parent()?) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(HashSet::new()),
        entries => entries.ok()?,
    };
    let links = entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    Some(links.map(|entry| entry.file_name()).collect())
}

/// Where the labels of `image` stand: the last folder `images` of its path becomes `labels`, the suffix `txt`.
pub(crate) fn label_path(image: &Path) -> PathBuf {
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
            let relative = |e: &Entry| e.image.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            images(&config, Split::Train, None).map(|listing| listing.entries.iter().map(relative).collect::<Vec<_>>())
        };
        assert_eq!(list("train: images\nval: v\nnc: 1\n").unwrap(), ["images/b.JPG", "images/c.dng", "images/sub/a.png"]);
        assert_eq!(
            list("train: [list.txt, images/sub]\nval: v\nnc: 1\n").unwrap(),
            ["images/b.JPG", "images/gone.jpg", "images/sub/a.png", "x.jpg"]
        );
        for (name, bytes) in [("list.txt", &b"\xff\xfei\0m\0"[..]), ("images/b.JPG", b"\xff\xd8\xff")] {
            std::fs::write(root.join(name), bytes).unwrap();
            let error = list(&format!("train: {name}\nval: v\nnc: 1\n")).unwrap_err().to_string();
            assert!(error.contains("a list of images as UTF-8 text"), "{error}");
        }
        std::fs::write(root.join("list.txt"), "/etc/passwd\n").unwrap();
        assert!(matches!(list("train: list.txt\nval: v\nnc: 1\n"), Err(DataError::Outside { .. })));
        let error = list("train: gone\nval: v\nnc: 1\ndownload: |\n  touch pwned\n").unwrap_err().to_string();
        assert!(error.contains("touch pwned") && error.contains("gone"), "{error}");
        assert!(!root.join("pwned").exists() && !Path::new("pwned").exists());
    }

    #[test]
    fn a_part_of_the_images_is_of_whole_clips() {
        let dir = tempfile::tempdir().unwrap();
        let part = |of: &dyn Fn(usize) -> (&'static str, &'static str), fraction: f64| {
            let image = |i: usize| {
                let (folder, meta) = of(i);
                std::fs::create_dir_all(dir.path().join(folder)).unwrap();
                std::fs::write(dir.path().join(format!("{folder}{i}.jpg")), "").unwrap();
                let day = if meta.contains("Camera") { 14 + i / 4 } else { 14 };
                let taken = if meta.is_empty() { "0".to_string() } else { format!("\"2020-05-{day}\"") };
                format!("{{\"id\":{i},\"file_name\":\"{folder}{i}.jpg\",\"date_captured\":{taken},\"meta\":{{{meta}}}}}")
            };
            let all: Vec<String> = (0..8).map(image).collect();
            std::fs::write(dir.path().join("a.json"), format!("{{\"images\":[{}]}}", all.join(","))).unwrap();
            let config = DataConfig::parse("train: a.json\nval: a.json\nnames: [a]\n", &dir.path().join("data.yaml")).unwrap();
            let mut listing = images(&config, Split::Train, None).unwrap();
            listing.keep(fraction, false);
            listing.entries.iter().map(|e| e.image.file_stem().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let clip = |i: usize| ["\"clip\":\"north\"", "\"clip\":\"south\""][i % 2];
        assert_eq!(part(&|i| ("", clip(i)), 0.5), "0 2 4 6", "by what the file tells");
        assert_eq!(part(&|i| (["f/", "g/"][i / 4], "\"n\":1"), 0.5), "0 1 2 3", "by folder");
        assert_eq!(part(&|_| ("f/", "\"n\":1"), 0.25), "0 4", "there is one clip");
        assert_eq!(part(&|i| (["f/", "g/"][i / 4], ""), 0.25), "0 4", "nothing is told");
        assert_eq!(part(&|i| ("f/", clip(i)), 1.0), "0 1 2 3 4 5 6 7");
        // One name on two days and of two cameras is four clips.
        let again = |i: usize| ["\"clip\":\"c0\",\"Camera\":1", "\"clip\":\"c0\",\"Camera\":2"][i / 2 % 2];
        assert_eq!(part(&|i| ("", again(i)), 0.25), "0 1");
        assert_eq!(part(&|i| ("", again(i)), 0.5), "0 1 4 5");
    }

    #[test]
    fn a_part_of_what_frames_are_stacked_from_has_their_step() {
        let dir = tempfile::tempdir().unwrap();
        let part = |folder_of: &dyn Fn(usize) -> &'static str, fraction: f64, whole_clips: bool| {
            let image = |i: usize| Entry::of_files(dir.path().join(folder_of(i)).join(format!("{i}.jpg")), None);
            let mut listing = Listing { entries: (0..8).map(image).collect(), ..Listing::default() };
            listing.keep(fraction, whole_clips);
            listing.entries.iter().map(|e| e.image.file_stem().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let several = |i: usize| ["f", "g", "h", "k"][i / 2];
        assert_eq!(part(&several, 0.5, true), "0 1 4 5", "whole folders");
        assert_eq!(part(&|_| "f", 0.25, true), "0 1", "of one the beginning");
        assert_eq!(part(&|_| "f", 1.0, true), "0 1 2 3 4 5 6 7");
        assert_eq!(part(&several, 0.25, false), "0 4", "single images are spread over all");
    }
}
