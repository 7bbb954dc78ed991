//! A data set written anew, as a YOLO or a COCO tree or in shards, from any form that can be opened.
//!
//! The target is a folder that is new or empty and not inside the source, which stays as it is. It is made beside itself under another name and
//! renamed when it is complete, so a folder with its `data.yaml` is whole; a link or a mount point, which cannot be replaced so, is refused.
//! Images are hard links (files with two names, which take no space; copies where the target is on another disk), copies, or left where they are.
//!
//! Images of several folders stay in folders of their own: a folder may be a clip, in which frames follow each other. Two folders of one name get different
//! ones, and so do two images in a folder: the second is called by the folders above it too. An image's name counts without its suffix and without case, for
//! `a.jpg` and `a.png` share a label file, and `A.jpg` and `a.jpg` share a place on some systems.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::description::{DataConfig, Split};
use super::error::DataError;
use super::ids::CocoIds;
use super::listing::label_path;
use super::meta::FrameMeta;
use super::report::report;
use super::scan::{Scan, ScanOptions, scan};
use super::shard::{self, Packing, box_text, label_text};
use super::succession::before;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `images/SPLIT`, `labels/SPLIT`, `data.yaml`.
    Yolo,
    /// `images/SPLIT`, `annotations/SPLIT.json`, `data.yaml`.
    Coco,
    /// `SPLIT/SPLIT-000000.tar` and so on, `SPLIT/index.jsonl`, `data.yaml`.
    Shards(Packing),
}

/// What becomes of the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// A second name for the same file; a copy where that cannot be.
    Link,
    /// A file of its own.
    Copy,
    /// Nothing: labels are written for images that are elsewhere.
    None,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Images of all splits.
    pub images: usize,
    /// Objects.
    pub objects: usize,
    /// Of the images, those that got another name.
    pub renamed: usize,
    /// Of the images, those that were to be links and are copies.
    pub copied: usize,
    /// What the scans have to say, which settings were left out, and where ids are counted anew.
    pub lines: Vec<String>,
}

/// The folder in which `out` is made before it is complete.
pub fn partial(out: &Path) -> PathBuf {
    let name = out.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    out.with_file_name(format!(".{name}.partial-{}", std::process::id()))
}

/// Writes `config` into the folder `out`. `progress(what, done, total)` is called from many threads.
///
/// # Errors
/// [`DataError::Invalid`] for a target that is not empty, lies in the source or cannot be replaced; more than 1 % of unusable files; whatever cannot be read or written.
pub fn convert(
    config: &DataConfig,
    form: Form,
    images: Images,
    out: &Path,
    options: &ScanOptions,
    progress: &(dyn Fn(&str, u64, u64) + Sync),
) -> Result<Converted, DataError> {
    let out = std::path::absolute(out).map_err(DataError::io(out))?;
    check_target(config, &out)?;
    let partial = partial(&out);
    let made = write(config, form, images, &partial, options, progress).and_then(|made| {
        if out.is_dir() {
            std::fs::remove_dir(&out).map_err(DataError::io(&out))?;
        }
        std::fs::rename(&partial, &out).map_err(DataError::io(&out))?;
        Ok(made)
    });
    if made.is_err() && partial.is_dir() {
        std::fs::remove_dir_all(&partial).map_err(DataError::io(&partial))?;
    }
    made
}

fn check_target(config: &DataConfig, out: &Path) -> Result<(), DataError> {
    let invalid = |reason: &str| Err(DataError::Invalid(format!("{}: {reason}", out.display())));
    if out.file_name().is_none() {
        return invalid("not a folder that can be made");
    }
    if out.is_symlink() {
        return invalid("a link, which the finished data set cannot replace; name the folder that it leads to, or a new one");
    }
    if out.exists() {
        match std::fs::read_dir(out).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return invalid("not empty; a data set is written into a new or an empty folder"),
            Ok(false) => {}
            Err(_) => return invalid("not a folder"),
        }
    }
    let there = out.ancestors().find_map(|folder| Some((folder, folder.canonicalize().ok()?)));
    let real = there.map(|(folder, real)| real.join(out.strip_prefix(folder).unwrap_or(Path::new(""))));
    if config.root.canonicalize().is_ok_and(|root| real.is_some_and(|real| real.starts_with(root))) {
        return invalid("inside the data set that is converted, which stays as it is; name a folder beside it");
    }
    if out.is_dir() {
        // Moved and moved back, for a mount point would say no only when everything is written.
        let aside = partial(out);
        let moved = std::fs::rename(out, &aside).and_then(|()| std::fs::rename(&aside, out));
        // A folder of a container's image cannot be moved, and can be replaced.
        let moved = moved.or_else(|error| if error.kind() == ErrorKind::CrossesDevices { Ok(()) } else { Err(error) });
        moved.or_else(|error| invalid(&format!("cannot be replaced by the finished data set ({error}); name a new folder in it")))?;
    }
    Ok(())
}

fn write(
    config: &DataConfig,
    form: Form,
    images: Images,
    root: &Path,
    options: &ScanOptions,
    progress: &(dyn Fn(&str, u64, u64) + Sync),
) -> Result<Converted, DataError> {
    // What is held out of training is not a split of the source.
    let config = DataConfig { hold_out: false, ..config.clone() };
    let single = config.train.is_empty();
    let mut made = Converted::default();
    let (mut written, mut in_coco) = (Vec::new(), Vec::new());
    // Shards do not even have folders.
    let mut has_clips = !matches!(form, Form::Shards(_));
    for split in config.splits() {
        let scanning = |done, total| progress(&format!("{}: scanning", split.key()), done, total);
        let found = scan(&config, split, options, &scanning)?;
        made.lines.extend(report(split, &found));
        // A single COCO file is whatever its owner makes of it; a data.yaml needs `train`.
        let name = if single { Split::Train.key() } else { split.key() };
        let writing = |done, total| progress(&format!("{name}: writing"), done, total);
        made.images += found.len();
        made.objects += found.all_labels().len();
        match form {
            Form::Yolo | Form::Coco => {
                let placed = place(&found, images, root, name, &mut made, &writing)?;
                has_clips &= keeps_clips(&found, &placed);
                if form == Form::Yolo {
                    yolo_labels(&found, &placed, root, name)?;
                } else {
                    in_coco.push((name, found, placed));
                }
            }
            Form::Shards(packing) => {
                let folder = root.join(name);
                std::fs::create_dir_all(&folder).map_err(DataError::io(&folder))?;
                shard::write(&found, packing, &folder, name, &writing)?;
            }
        }
        written.push((name, name));
    }
    made.lines.extend(coco_files(&in_coco, &config.names, root)?);
    // Splits of the same images, such as a `val` that is `train`, stay so.
    let own = config.splits();
    for split in Split::ALL.into_iter().filter(|split| !single && !own.contains(split)) {
        let same = own.iter().find(|other| !config.sources(split).is_empty() && config.sources(**other) == config.sources(split));
        written.extend(same.map(|other| (split.key(), other.key())));
    }
    let (settings, left_out) = suitable(&config, has_clips);
    let told = || format!("left out of `settings`, for nothing in the copy says what they go by: {}", left_out.join(", "));
    made.lines.extend((!left_out.is_empty()).then(told));
    describe(&DataConfig { settings, ..config }, form, images, root, &written)?;
    Ok(made)
}

/// Whether the images, `placed` so, are of the clips that they are of in the source, each of them behind the same one.
fn keeps_clips(found: &Scan, placed: &[String]) -> bool {
    let mut copy = FrameMeta::default();
    copy.find_clips(placed.iter());
    let of_source = || before(&found.meta, (0..found.len()).map(|i| found.path(i)));
    copy.clip_of() == found.meta.clip_of() && before(&copy, placed.iter()) == of_source()
}

/// The source's settings that a run on the copy can have, and the names of the others: what a COCO file tells of an image beside its boxes is in no copy, and
/// not each copy `has_clips`, which a file may tell of, and times between frames.
fn suitable(config: &DataConfig, has_clips: bool) -> (BTreeMap<String, Value>, Vec<&'static str>) {
    let (mut settings, mut left_out): (_, Vec<&'static str>) = (config.settings.clone(), Vec::new());
    let names: &[&'static str] = if has_clips { &["group_by"] } else { &["group_by", "frames", "frame_stride", "background"] };
    left_out.extend(names.iter().copied().filter(|name| settings.remove(*name).is_some()));
    if !has_clips
        && let Some(Value::Object(sampler)) = settings.get_mut("sampler")
        && sampler.remove("clips").is_some()
    {
        left_out.push("sampler: clips");
        if sampler.is_empty() {
            settings.remove("sampler");
        }
    }
    (settings, left_out)
}

/// Brings the images of a split to `root/images/NAME` and gives their paths there, with `/` (the same if they stay in the source).
fn place(
    found: &Scan,
    images: Images,
    root: &Path,
    name: &str,
    made: &mut Converted,
    progress: &dyn Fn(u64, u64),
) -> Result<Vec<String>, DataError> {
    let folder = root.join("images").join(name);
    let parent = |i: usize| found.path(i).parent().map(Path::to_path_buf).unwrap_or_default();
    // The file that a shard is is no folder.
    let several = found.packed().is_none() && (1..found.len()).any(|i| parent(i) != parent(0));
    // Of each folder what it is called here, and the names in it. In one called `images` labels would be looked for beside it.
    let (mut folders, mut taken_folders) = (HashMap::new(), HashSet::from(["images".to_string()]));
    let mut placed = Vec::with_capacity(found.len());
    for i in 0..found.len() {
        let source = found.path(i);
        let own = source.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let of_one = if several { parent(i) } else { PathBuf::new() };
        let (within, taken) =
            folders.entry(of_one).or_insert_with_key(|path: &PathBuf| (free(path, path.file_name(), &mut taken_folders), HashSet::new()));
        let file = free_name(&source, taken);
        made.renamed += usize::from(file != own);
        let target = if within.is_empty() { file } else { format!("{within}/{file}") };
        let to = folder.join(&target);
        if images != Images::None {
            make_room(&to)?;
        }
        let linked = images == Images::Link && found.packed().is_none() && link(&source, &to).is_ok();
        if images != Images::None && !linked {
            match found.packed() {
                Some(_) => std::fs::write(&to, found.bytes(i)?).map_err(DataError::writing(&to))?,
                None => copy(&source, &to)?,
            }
            made.copied += usize::from(images == Images::Link);
        }
        placed.push(target);
        progress(i as u64 + 1, found.len() as u64);
    }
    Ok(placed)
}

/// Makes the folder that `file` is to lie in.
fn make_room(file: &Path) -> Result<(), DataError> {
    let folder = file.parent().unwrap_or(file);
    std::fs::create_dir_all(folder).map_err(DataError::io(folder))
}

/// A second name for the file that `source` leads to: where it is a symbolic link, Linux would give that one a second name.
fn link(source: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(source.canonicalize()?, to)
}

/// A file of its own; what can be opened and is not copied could not be written.
fn copy(source: &Path, to: &Path) -> Result<(), DataError> {
    match std::fs::copy(source, to) {
        Ok(_) => Ok(()),
        Err(error) if File::open(source).is_ok() => Err(DataError::writing(to)(error)),
        Err(error) => Err(DataError::io(source)(error)),
    }
}

/// The name of `source`, made the only one but for its suffix.
fn free_name(source: &Path, taken: &mut HashSet<String>) -> String {
    let suffix = source.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    free(source, source.file_stem(), taken) + &suffix
}

/// `own`, with as many of the folders above `path` before it as it takes to be the only one, or else a number behind it.
fn free(path: &Path, own: Option<&OsStr>, taken: &mut HashSet<String>) -> String {
    let text = |name: &OsStr| name.to_string_lossy().into_owned();
    let mut stem = own.map(text).unwrap_or_default();
    let mut folders = path.ancestors().skip(1).filter_map(Path::file_name).map(text);
    let mut number = 1;
    let mut name = stem.clone();
    while !taken.insert(name.to_lowercase()) {
        // Names beyond 200 bytes are near the limit of file systems.
        if let Some(folder) = folders.next().filter(|folder| folder.len() + stem.len() < 200) {
            stem = format!("{folder}_{stem}");
            name.clone_from(&stem);
        } else {
            number += 1;
            name = format!("{stem}_{number}");
        }
    }
    name
}

/// A label file for every image; numbers are written so that they are read as the same, polygons as far as label files had them.
fn yolo_labels(found: &Scan, placed: &[String], root: &Path, name: &str) -> Result<(), DataError> {
    for (i, target) in placed.iter().enumerate() {
        // Of COCO few boxes are those of their polygons, and there are programs that read a file with one polygon as polygons only.
        let coco = found.ids().image(i).is_some();
        let text: String = if coco { found.labels(i).iter().map(box_text).collect() } else { label_text(found, i) };
        let file = label_path(&Path::new("images").join(name).join(target));
        let file = root.join(file);
        make_room(&file)?;
        std::fs::write(&file, text).map_err(DataError::writing(&file))?;
    }
    Ok(())
}

/// The JSON of each split, its images placed so. Categories are classes in their order, and the same in all splits. Ids are those of the source, for results are
/// handed in by them; where it has none for each image of a split, or each class of an object, they are counted from 1, which is to be said (and returned) if it has any.
fn coco_files(splits: &[(&str, Scan, Vec<String>)], names: &[String], root: &Path) -> Result<Vec<String>, DataError> {
    let ids: Vec<&CocoIds> = splits.iter().map(|(_, found, _)| found.ids()).collect();
    let mut labels = splits.iter().flat_map(|(_, found, _)| found.all_labels());
    let own = CocoIds::of_classes(&ids, names.len());
    let own = own.filter(|ids| labels.all(|label| ids.get(label.class as usize).is_some_and(Option::is_some)));
    let mut told = Vec::new();
    if own.is_none() && ids.iter().any(|ids| ids.has_categories()) {
        told.push("ids of categories are counted anew, for the source has not one for each class that all its files agree on".into());
    }
    let categories = own.unwrap_or_else(|| (1..=names.len()).map(|id| Some(id.into())).collect());
    for (name, found, placed) in splits {
        told.extend(coco_labels(found, placed, (names, &categories), root, name)?);
    }
    Ok(told)
}

/// Class names, and what they are called in a COCO file; a class without an id is no category.
type Categories<'a> = (&'a [String], &'a [Option<Value>]);

/// One JSON, element after element.
fn coco_labels(found: &Scan, placed: &[String], classes: Categories<'_>, root: &Path, name: &str) -> Result<Option<String>, DataError> {
    let own = found.ids().of_images(placed.len());
    let lost = own.is_none() && (0..placed.len()).any(|i| found.ids().image(i).is_some());
    let ids = own.unwrap_or_else(|| (1..=placed.len()).map(Value::from).collect());
    let folder = root.join("annotations");
    std::fs::create_dir_all(&folder).map_err(DataError::io(&folder))?;
    let path = folder.join(format!("{name}.json"));
    let file = File::create(&path).map_err(DataError::writing(&path))?;
    let mut out = BufWriter::new(file);
    let text = coco_text(found, placed, classes, &ids, &mut out);
    text.and_then(|()| out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()).map_err(DataError::writing(&path))?;
    let told = || format!("{name}: ids of images are counted anew, for not every image of the source has one of its own");
    Ok(lost.then(told))
}

fn coco_text(found: &Scan, placed: &[String], classes: Categories<'_>, images: &[Value], out: &mut impl Write) -> std::io::Result<()> {
    let (names, categories) = classes;
    let list = |out: &mut dyn Write, items: &mut dyn Iterator<Item = Value>| -> std::io::Result<()> {
        for (i, item) in items.enumerate() {
            write!(out, "{}{item}", if i == 0 { "\n" } else { ",\n" })?;
        }
        Ok(())
    };
    write!(out, "{{\"info\": {{}}, \"licenses\": [], \"categories\": [")?;
    let category = |(id, name): (&Option<Value>, &String)| id.as_ref().map(|id| json!({"id": id, "name": name, "supercategory": ""}));
    list(out, &mut categories.iter().zip(names).filter_map(category))?;
    write!(out, "],\n\"images\": [")?;
    let listed = placed
        .iter()
        .zip(&found.images)
        .zip(images)
        .map(|((name, image), id)| json!({"id": id, "file_name": name, "width": image.size.width, "height": image.size.height}));
    list(out, &mut { listed })?;
    write!(out, "],\n\"annotations\": [")?;
    let of = |i: usize| found.labels(i).iter().enumerate().map(move |(n, label)| (i, n, label));
    let annotations = (0..placed.len()).flat_map(of).enumerate().map(|(k, (i, n, label))| {
        let size = found.images[i].size;
        let [width, height] = [f64::from(size.width), f64::from(size.height)];
        let [x, y, w, h] = label.xywh.map(f64::from);
        // To a thousandth of a pixel: what went in with up to three places comes out.
        let round = |v: f64| (v * 1e3).round() / 1e3;
        let bbox = [(x - w / 2.0) * width, (y - h / 2.0) * height, w * width, h * height].map(round);
        let area = found.areas().get(i, n).map_or_else(|| round(bbox[2] * bbox[3]), f64::from);
        let (image, category) = (&images[i], &categories[label.class as usize]);
        json!({"id": k + 1, "image_id": image, "category_id": category, "bbox": bbox, "area": area, "iscrowd": 0})
    });
    list(out, &mut { annotations })?;
    writeln!(out, "]}}")
}

/// `data.yaml`, last: what has one is complete. JSON is YAML. It says no `path`: the folder it stands in is what both programs take then, and
/// a `.` is the current directory to Ultralytics. `splits` are their keys and the names of their folders.
fn describe(config: &DataConfig, form: Form, images: Images, root: &Path, splits: &[(&str, &str)]) -> Result<(), DataError> {
    let mut text = String::new();
    if images == Images::None {
        text.push_str("# The images are not here: they stayed where they were, and were given these names.\n");
    }
    for (split, name) in splits {
        text.push_str(&match form {
            Form::Yolo => format!("{split}: images/{name}\n"),
            Form::Shards(_) => format!("{split}: {name}\n"),
            Form::Coco => format!("{split}: {{annotations: annotations/{name}.json, images: images/{name}}}\n"),
        });
    }
    if config.channels != 3 {
        text.push_str(&format!("channels: {}\n", config.channels));
    }
    text.push_str("names:\n");
    config.names.iter().enumerate().for_each(|(i, name)| text.push_str(&format!("  {i}: {}\n", json!(name))));
    if !config.settings.is_empty() {
        text.push_str("settings:\n");
        config.settings.iter().for_each(|(key, value)| text.push_str(&format!("  {}: {value}\n", json!(key))));
    }
    let path = root.join("data.yaml");
    std::fs::write(&path, text).map_err(DataError::writing(&path))
}

#[cfg(test)]
mod tests;
