//! A COCO file as a source of a split: which class a category is, where the images lie, which boxes of a decoded image count.
//!
//! Categories become classes by their names: those of the data set, which are the categories of its first COCO file in that file's order where the
//! data.yaml gives none; where only the case of letters differs, that is told. File names are looked for in `images:`, or in the folders where tools
//! put them. Boxes are clipped to the picture and divided by its size as decoded; where the file says another size, that is counted.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::coco::{self, CocoFile, Id};
use super::description::{DataConfig, Source};
use super::error::DataError;
use super::frame::Size;
use super::labels::ParsedLabels;
use super::meta::{CLIP, MetaTable};
use crate::boxes::{Label, xyxy_to_xywh};

/// Images that are looked for to find their folder.
const PROBES: usize = 64;
/// Categories whose classes are shown.
const SHOWN: usize = 20;
/// A box may exceed the image by this share of it without being counted.
const TOLERANCE: f32 = 0.01;

/// A COCO file of a data set.
pub(crate) struct Annotated {
    /// By the name that the description has for it, where that is a link.
    json: PathBuf,
    file: CocoFile,
    /// Of each category.
    classes: Vec<Option<u32>>,
    /// Categories whose class is called so but for the case of letters.
    case_insensitive_matches: Vec<String>,
}

/// The objects of one image, and what became of the others.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Marked {
    pub(crate) parsed: ParsedLabels,
    /// Areas of these labels in px², as the file has them.
    pub(crate) areas: Vec<f32>,
    /// Clipped by more than a hundredth of the image, as the file has them.
    pub(crate) cut: Vec<[f32; 4]>,
    /// Wholly outside the image: dropped.
    pub(crate) outside: Vec<[f32; 4]>,
    /// Of categories that are no class: dropped.
    pub(crate) foreign: u32,
    /// The file says another size.
    pub(crate) resized: bool,
}

impl Annotated {
    /// Opens `source` of `config`, which has class names.
    ///
    /// # Errors
    /// As [`coco::open`] and [`DataConfig::resolve`]; [`DataError::Coco`] when no category is a class.
    pub(crate) fn open(config: &DataConfig, source: &Source, cache_dir: Option<&Path>) -> Result<Self, DataError> {
        let (json, file) = read(config, source, cache_dir)?;
        let (classes, case_insensitive_matches) = classes(&file, &config.names);
        if !file.boxes.is_empty() && classes.iter().all(Option::is_none) {
            let reason = format!("none of its categories ({}) is one of the classes ({})", few(&file.names()), few(&config.names));
            return Err(DataError::Coco { path: json, reason });
        }
        Ok(Self { json, file, classes, case_insensitive_matches })
    }

    /// The paths of its images, in its order, and the folder they were found in.
    ///
    /// # Errors
    /// [`DataError::NoImages`] when none of the usual folders has them.
    pub(crate) fn images(&self, config: &DataConfig, source: &Source) -> Result<Vec<PathBuf>, DataError> {
        let names: Vec<&str> = self.file.images.iter().map(|image| image.file.as_str()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let folders = match &source.images {
            Some(folder) => vec![config.resolve(&config.root, folder)?],
            None => self.usual_folders(config),
        };
        let probes: Vec<&str> = names.iter().step_by(names.len().div_ceil(PROBES)).copied().collect();
        let deepest = probes.iter().map(|name| name.matches(['/', '\\']).count()).max().unwrap_or(0);
        for dropped in 0..=deepest {
            let mut best: Option<(usize, &PathBuf)> = None;
            for folder in &folders {
                let hits = probes.iter().filter(|name| folder.join(without_folders(name, dropped)).is_file()).count();
                if hits > best.map_or(0, |(most, _)| most) {
                    best = Some((hits, folder));
                }
            }
            // Folders in names are given up only where they lead nowhere, the outermost first.
            if let Some((_, folder)) = best {
                return Ok(names.par_iter().map(|name| folder.join(without_folders(name, dropped))).collect());
            }
        }
        let tried = folders.iter().map(|f| format!("\n  {}", f.display())).collect::<String>();
        let reason = format!("`{}` is in none of these folders; say which with `images:` in a data.yaml:{tried}", names[0]);
        Err(DataError::NoImages { path: self.json.clone(), reason })
    }

    /// Where tools put the images of a COCO file, those that exist and may be read.
    fn usual_folders(&self, config: &DataConfig) -> Vec<PathBuf> {
        let real = self.json.canonicalize().unwrap_or_else(|_| self.json.clone());
        let beside = real.parent().unwrap_or(Path::new("."));
        let above = beside.parent().unwrap_or(beside);
        let beside_the_link = self.json.parent().unwrap_or(beside);
        let stem = self.json.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let split =
            ["instances_", "person_keypoints_", "annotations_"].iter().find_map(|p| stem.strip_prefix(p)).unwrap_or(&stem).to_string();
        let mut folders = Vec::new();
        for base in [beside, above, &config.root, beside_the_link] {
            for inner in ["", "images", "data", "frames", "images/SPLIT", "SPLIT", "data/SPLIT"] {
                folders.push(base.join(inner.replace("SPLIT", &split)));
            }
        }
        let mut seen = HashSet::new();
        let real = folders.into_iter().filter_map(|folder| config.resolve(&folder, Path::new("")).ok());
        real.filter(|folder| folder.is_dir() && seen.insert(folder.clone())).collect()
    }

    /// Whether the file names the clips of its images; or has them in folders, and tells when they were taken or anything else beside their pixels.
    pub(crate) fn knows_clips(&self) -> bool {
        let meta = &self.file.meta;
        let in_folders = || self.file.images.first().is_some_and(|image| image.file.contains(['/', '\\']));
        meta.columns.iter().any(|column| column.key == CLIP) || (meta.tells() && in_folders())
    }

    /// What the file knows of its images beside their pixels.
    pub(crate) fn meta(&self) -> Arc<MetaTable> {
        self.file.meta.clone()
    }

    /// The file, by the name that messages have for it.
    pub(crate) fn path(&self) -> &Path {
        &self.json
    }

    /// Whether it has objects of its image `index` that `other` has not of its own image `there`.
    pub(crate) fn has_more(&self, index: u32, other: &Self, there: u32) -> bool {
        let known: HashSet<_> = other.objects(there).collect();
        self.objects(index).any(|object| !known.contains(&object))
    }

    /// Class and box of the objects of image `index`, bit by bit.
    fn objects(&self, index: u32) -> impl Iterator<Item = (u32, [u32; 4])> {
        let boxes = self.file.boxes_of(index as usize).iter();
        boxes.filter_map(move |b| Some((self.classes[b.category as usize]?, b.xywh.map(f32::to_bits))))
    }

    /// What the file calls image `index`.
    pub(crate) fn image_name(&self, index: u32) -> &str {
        &self.file.images[index as usize].file
    }

    /// The id of image `index` of the file.
    pub(crate) fn image_id(&self, index: u32) -> Id {
        self.file.images[index as usize].id.clone()
    }

    /// The id of each of the first `nc` classes: that of the first category that became it.
    pub(crate) fn category_ids(&self, nc: u32) -> Vec<Option<Id>> {
        let category = |class: u32| self.classes.iter().position(|of| *of == Some(class));
        (0..nc).map(|class| category(class).map(|at| self.file.categories[at].0.clone())).collect()
    }

    /// What the data set's other files call its first `nc` classes: for one that lists images and no categories. Validation's goes first, for it is
    /// the smaller; empty where none can be opened that lists any.
    pub(crate) fn categories_elsewhere(config: &DataConfig, nc: u32, cache_dir: Option<&Path>) -> Vec<Option<Id>> {
        let sources = config.val.iter().chain(&config.train).filter(|source| source.is_coco());
        let mut files = sources.filter_map(|source| Self::open(config, source, cache_dir).ok());
        files.find(Self::has_categories).map(|file| file.category_ids(nc)).unwrap_or_default()
    }

    /// Whether it lists any.
    pub(crate) fn has_categories(&self) -> bool {
        !self.classes.is_empty()
    }

    /// The objects of image `index` of the file, of an image that is decoded to `size`.
    pub(crate) fn labels(&self, index: u32, size: Size) -> Marked {
        let said = self.file.images[index as usize].size;
        let known = said.width > 0 && said.height > 0;
        let mut marked = Marked { resized: known && said != size, ..Marked::default() };
        let mut seen = HashSet::new();
        let [width, height] = [size.width as f32, size.height as f32];
        for (place, b) in self.file.boxes_of(index as usize).iter().enumerate() {
            let Some(class) = self.classes[b.category as usize] else {
                marked.foreign += 1;
                continue;
            };
            let [x, y, w, h] = b.xywh;
            let corners = [x, y, x + w, y + h];
            let inside = [0, 1, 2, 3].map(|i| corners[i].clamp(0.0, if i % 2 == 0 { width } else { height }));
            if inside[2] <= inside[0] || inside[3] <= inside[1] {
                marked.outside.push(b.xywh);
                continue;
            }
            let over = (0..4).any(|i| (corners[i] - inside[i]).abs() > TOLERANCE * if i % 2 == 0 { width } else { height });
            if over {
                marked.cut.push(b.xywh);
            }
            let [x1, y1, x2, y2] = inside;
            let label = Label { class, xywh: xyxy_to_xywh([x1 / width, y1 / height, x2 / width, y2 / height]) };
            if seen.insert((class, label.xywh.map(f32::to_bits))) {
                let point = |&[x, y]: &[f32; 2]| [(x / width).clamp(0.0, 1.0), (y / height).clamp(0.0, 1.0)];
                marked.parsed.push(label, self.file.outline(b).iter().map(point).collect());
                marked.areas.push(self.file.areas.get(index as usize, place).unwrap_or(w * h));
            } else {
                marked.parsed.duplicates += 1;
            }
        }
        marked
    }

    /// Boxes without size, which have been dropped.
    pub(crate) fn zero_size(&self) -> u64 {
        self.file.counts.zero_size
    }

    /// What a person should know: which id became which class, what was left out.
    pub(crate) fn notes(&self) -> Vec<String> {
        let name = self.json.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mapped = self.file.categories.iter().zip(&self.classes).take(SHOWN).map(|((id, category), class)| match class {
            Some(class) => format!("{class} {category} (id {id})"),
            None => format!("none for {category} (id {id})"),
        });
        let mut line = match self.classes.len() {
            0 => format!("{name}: no categories, so these are images without labels"),
            _ => format!("{name}: classes {}", mapped.collect::<Vec<_>>().join(", ")),
        };
        if self.classes.len() > SHOWN {
            line.push_str(&format!(" and {} more", self.classes.len() - SHOWN));
        }
        let c = &self.file.counts;
        let left_out: Vec<String> = [
            (c.crowd, "crowds left out"),
            (c.boxless, "annotations without a box left out"),
            (c.unknown_image, "annotations of unknown images left out"),
            (c.unknown_category, "annotations of unknown categories left out"),
            (c.masks, "masks not used, only their boxes"),
            (c.unknown_points, "polygons with an unknown point left out"),
            (c.repeated_images, "images listed twice"),
            (c.repeated_annotations, "annotations with the id of another, used all the same"),
            (c.not_numbers, "values that are NaN or Infinity, taken as not known"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        let mut notes = vec![line];
        if !self.case_insensitive_matches.is_empty() {
            notes.push(format!("{name}: {}", few(&self.case_insensitive_matches)));
        }
        if !left_out.is_empty() {
            notes.push(format!("{name}: {}", left_out.join(", ")));
        }
        notes.extend(c.examples.iter().map(|example| format!("{name}: {example}")));
        notes
    }
}

/// The COCO file that `source` names, and its path: by that name where it is a link, for a hub's download calls files by their hashes.
///
/// # Errors
/// As [`coco::open`] and [`DataConfig::resolve`].
pub(crate) fn read(config: &DataConfig, source: &Source, cache_dir: Option<&Path>) -> Result<(PathBuf, CocoFile), DataError> {
    let (named, real) = config.find(&config.root, &source.path)?;
    let json = if named.is_symlink() { named } else { real.clone() };
    match coco::open(&real, cache_dir) {
        Ok(file) => Ok((json, file)),
        Err(DataError::Coco { reason, .. }) => Err(DataError::Coco { path: json, reason }),
        Err(other) => Err(other),
    }
}

/// The class of each category, and which of them has its name in another case.
fn classes(file: &CocoFile, names: &[String]) -> (Vec<Option<u32>>, Vec<String>) {
    let class = |name: &str| names.iter().position(|n| n == name).map(|i| i as u32);
    let (theirs, ours) = (by_letters(file.categories.iter().map(|(_, name)| name)), by_letters(names));
    let mut case_insensitive_matches = Vec::new();
    let mut class_of = |name: &String| {
        class(name).or_else(|| {
            // `Person` is taken for `person` where neither side has both.
            let letters = name.to_lowercase();
            let (_, same) = (theirs.get(&letters).copied().flatten()?, ours.get(&letters).copied().flatten()?);
            case_insensitive_matches.push(format!("category {name} is taken for class {same}"));
            class(same)
        })
    };
    let classes = file.categories.iter().map(|(_, name)| class_of(name)).collect();
    (classes, case_insensitive_matches)
}

/// Names by their letters in lower case; none where several names are that.
fn by_letters<'a>(names: impl IntoIterator<Item = &'a String>) -> HashMap<String, Option<&'a str>> {
    let mut known: HashMap<String, Option<&str>> = HashMap::new();
    for name in names.into_iter().map(String::as_str) {
        let same = known.entry(name.to_lowercase()).or_insert(Some(name));
        *same = same.filter(|other| *other == name);
    }
    known
}

/// A file name of the JSON without so many of its outer folders: they are of another machine, or were left out when images were unpacked.
fn without_folders(name: &str, dropped: usize) -> String {
    // Written on Windows.
    let name = name.replace('\\', "/");
    if dropped == 0 {
        return name;
    }
    let parts: Vec<&str> = name.split('/').collect();
    parts[dropped.min(parts.len() - 1)..].join("/")
}

fn few(names: &[String]) -> String {
    let more = if names.len() > 5 { ", .." } else { "" };
    names.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ") + more
}
