//! Checks every image and label of a split once, in parallel, and keeps what training needs to know: paths, sizes, labels.
//!
//! Memory grows with paths and labels, never with pixels: paths stand in one string, labels in one list. A file that cannot be used is
//! reported with line and reason and skipped; more than 1 % of such files stops, unless `allow_bad`, because then the data is not what its
//! owner thinks. What was found is remembered by `cache`, so the next start only asks for sizes and times.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellows_runs::{PathError, cache_dir, read_bounded};
use rayon::prelude::*;

use super::annotated::{Annotated, Marked};
use super::areas::Areas;
use super::box_faults::BoxFaults;
use super::cache::{self, Cache};
use super::description::{DataConfig, Split};
use super::error::DataError;
use super::frame::Size;
use super::header::{self, Header};
use super::ids::CocoIds;
use super::listing::{Entry, Listing};
use super::meta::FrameMeta;
use super::outline::Outline;
use super::packed::Packed;
use super::record::{BadFile, Content, Record, Stamp};
use super::{labels, listing};
use crate::boxes::Label;

const MAX_LABEL_BYTES: u64 = 16 << 20;
/// Images whose objects are put together at a time, in parallel: all of them at once would be held twice.
const BLOCK: usize = 8192;

/// How to scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Use only round(N * fraction) images, at least one, spread evenly over the sorted list; where a COCO file tells when frames were taken, that
    /// part of its clips, spread so. In (0, 1].
    pub fraction: f64,
    /// That part is always one of clips, be it of folders, and of a single clip its beginning: frames that follow each other stay together.
    pub whole_clips: bool,
    /// All classes become class 0.
    pub single_cls: bool,
    /// Keep only the labels of these classes; `None` keeps all. Images without any stay as background.
    pub classes: Option<Vec<u32>>,
    /// Go on with more than 1 % of unusable files.
    pub allow_bad: bool,
    /// Where the result is remembered, outside the dataset; `None` for nowhere.
    pub cache_dir: Option<PathBuf>,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { fraction: 1.0, whole_clips: false, single_cls: false, classes: None, allow_bad: false, cache_dir: cache_dir() }
    }
}

/// One usable image.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEntry {
    path: Range<u32>,
    /// As decoded (after EXIF rotation).
    pub size: Size,
    /// One channel.
    pub gray: bool,
    /// 16 bits a pixel, of one channel: counts of a sensor.
    pub deep: bool,
    labels: Range<u32>,
}

/// The usable images of a split and what was wrong with the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    root: PathBuf,
    paths: String,
    outlines: Outlines,
    ids: CocoIds,
    packed: Option<Arc<Packed>>,
    /// Where there are shards, which sample of them each image is.
    samples: Vec<u32>,
    /// Every path is where its image really is: none leads over a link.
    real: bool,
    /// What is known of images beside their pixels.
    pub meta: FrameMeta,
    /// Sorted by path.
    pub images: Vec<ImageEntry>,
    labels: Vec<Label>,
    areas: Areas,
    /// Images with a label file that holds objects.
    pub found: usize,
    /// Images without a label file: background.
    pub missing: usize,
    /// Images whose label file holds no object: background.
    pub empty: usize,
    /// Files that cannot be used; their images are left out.
    pub bad: Vec<BadFile>,
    /// Repeated label rows that were removed.
    pub duplicates: u64,
    /// Boxes without width or height that were removed.
    pub zero_size: u64,
    /// What a person should know about COCO files among the sources.
    pub notes: Vec<String>,
}

/// The points of all polygons, in one list.
#[derive(Clone, Debug, Default)]
struct Outlines {
    points: Vec<[f32; 2]>,
    /// Where those of each label end; empty while no label has any.
    ends: Vec<u32>,
}

impl PartialEq for Outlines {
    /// By their bits: a break between two rings is none of the numbers that equal themselves.
    fn eq(&self, other: &Self) -> bool {
        let bits = |all: &Self| all.points.as_flattened().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        self.ends == other.ends && bits(self) == bits(other)
    }
}

impl Outlines {
    /// Adds the outline of the label after `labels` others.
    fn push(&mut self, outline: &[[f32; 2]], labels: usize) {
        if !outline.is_empty() || !self.ends.is_empty() {
            self.ends.resize(labels, self.points.len() as u32);
            self.points.extend(outline);
            self.ends.push(self.points.len() as u32);
        }
    }

    fn of(&self, label: usize) -> &[[f32; 2]] {
        let end = |i: usize| self.ends.get(i).map_or(self.points.len(), |&end| end as usize);
        &self.points[label.checked_sub(1).map_or(0, end)..end(label)]
    }
}

impl Scan {
    /// The file of image `i`.
    pub fn path(&self, i: usize) -> PathBuf {
        self.root.join(self.within(i))
    }

    /// Whether an image of both has one path [`within`](Self::within) the data set.
    pub(crate) fn has_places_of(&self, other: &Self) -> bool {
        self.real && other.real && self.root == other.root
    }

    /// The path of image `i` within the data set; the whole path of one that lies outside.
    pub(crate) fn within(&self, i: usize) -> &Path {
        let range = &self.images[i].path;
        Path::new(&self.paths[range.start as usize..range.end as usize])
    }

    /// What the file of image `i` is called wherever the data set lies: its path within it, with its clip's folder; of one outside of it the file's name alone.
    pub(crate) fn name(&self, i: usize) -> String {
        let path = self.within(i);
        let name = if path.is_relative() { path } else { path.file_name().map_or(path, Path::new) };
        name.to_string_lossy().replace('\\', "/")
    }

    /// The file of image `i`, wherever it lies.
    ///
    /// # Errors
    /// One that cannot be read; in shards also one that is damaged.
    pub(crate) fn bytes(&self, i: usize) -> Result<Vec<u8>, DataError> {
        match &self.packed {
            Some(packed) => packed.image(self.samples[i]),
            None => {
                let path = self.path(i);
                std::fs::read(&path).map_err(DataError::io(path))
            }
        }
    }

    /// The shards, if the images are in shards.
    pub(crate) fn packed(&self) -> Option<&Packed> {
        self.packed.as_deref()
    }

    /// How many images each shard has; empty where there are none.
    pub(crate) fn shards(&self) -> Vec<usize> {
        self.packed.as_ref().map(|packed| packed.sizes(&self.samples)).unwrap_or_default()
    }

    /// Changes when the pixels of image `i` do.
    pub(crate) fn stamp(&self, i: usize) -> Stamp {
        self.packed.as_ref().map_or_else(|| Stamp::of_pixels(&self.path(i)), |packed| packed.stamp(self.samples[i]))
    }

    /// The objects of image `i`.
    pub fn labels(&self, i: usize) -> &[Label] {
        let range = &self.images[i].labels;
        &self.labels[range.start as usize..range.end as usize]
    }

    /// The outlines of the objects of image `i`, one each; empty where the data set has boxes only.
    pub fn outlines(&self, i: usize) -> Vec<Outline> {
        if self.outlines.ends.is_empty() {
            return Vec::new();
        }
        let range = &self.images[i].labels;
        (range.start..range.end).map(|label| self.outlines.of(label as usize).to_vec()).collect()
    }

    /// Areas of objects that are not those of their boxes.
    pub(crate) fn areas(&self) -> &Areas {
        &self.areas
    }

    /// What the COCO files among the sources call the images and the classes.
    pub(crate) fn ids(&self) -> &CocoIds {
        &self.ids
    }

    /// Without what is known of images beside their pixels and labels, which of a year of frames is tens of megabytes: once nobody will ask for it.
    pub(crate) fn bare(self) -> Self {
        Self { ids: CocoIds::default(), meta: FrameMeta::default(), areas: Areas::default(), ..self }
    }

    /// The objects of all images.
    pub fn all_labels(&self) -> &[Label] {
        &self.labels
    }

    /// Number of usable images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// The error that more than 1 % of unusable files are.
    pub fn too_many_bad(&self) -> Option<DataError> {
        DataError::too_many_bad(&self.bad, self.len() + self.bad.len())
    }

    /// No usable image.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Objects per class.
    pub fn class_counts(&self, nc: usize) -> Vec<u64> {
        let mut counts = vec![0; nc];
        for label in &self.labels {
            if let Some(count) = counts.get_mut(label.class as usize) {
                *count += 1;
            }
        }
        counts
    }
}

/// Scans `split`. `progress(done, total)` is called from many threads, in no order.
///
/// # Errors
/// [`DataError::Missing`], [`DataError::Outside`], [`DataError::TooManyBad`], [`DataError::NoImages`].
pub fn scan(config: &DataConfig, split: Split, options: &ScanOptions, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Scan, DataError> {
    if !(options.fraction > 0.0 && options.fraction <= 1.0) {
        return Err(DataError::Invalid(format!("fraction is {}; it must lie in (0, 1]", options.fraction)));
    }
    let cache_file = options.cache_dir.as_ref().map(|dir| dir.join(cache::file_name(config, split, options.fraction)));
    let (listing, known) = rayon::join(
        || listing::images(config, split, options.cache_dir.as_deref()),
        || cache_file.as_deref().map(Cache::load).unwrap_or_default(),
    );
    let mut listing = listing?;
    let total = listing.entries.len();
    if total == 0 {
        return Err(DataError::NoImages { path: config.root.clone(), reason: format!("`{}` names no image file", split.key()) });
    }
    listing.keep(options.fraction, options.whole_clips);
    let entries = &listing.entries;
    let known = known.checked(entries);
    let (done, fresh) = (AtomicU64::new(0), AtomicU64::new(0));
    let records: Vec<Record> = entries
        .par_iter()
        .map(|entry| {
            let packed = listing.packed.as_deref().zip(entry.sample);
            let stamp = packed.map_or_else(|| entry.look(), |(packed, sample)| packed.stamp(sample));
            let record = known.get(&entry.image).filter(|r| r.stamp == stamp).cloned().unwrap_or_else(|| {
                fresh.fetch_add(1, Ordering::Relaxed);
                let of_files = || {
                    let content = check(&entry.image, entry.label_file().as_deref());
                    // What may not be read today may be tomorrow, and what stands in its way may be gone, under the same size and time.
                    Record { stamp: if content.is_err() { Stamp::NEVER } else { stamp }, content }
                };
                packed.map_or_else(of_files, |(packed, sample)| packed.record(sample, &entry.image))
            });
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, entries.len() as u64);
            record
        })
        .collect();
    if let Some(file) = cache_file
        && (fresh.into_inner() > 0 || known.len() != entries.len())
        && let Err(error) = Cache::save(&file, entries, &records)
    {
        tracing::warn!("the scan could not be remembered ({error}); the next start scans again");
    }
    drop(known);
    assemble(config, split, options, &listing, records)
}

/// Looks at one image and its labels, if they are in a file of their own.
fn check(image: &Path, label: Option<&Path>) -> Result<Content, BadFile> {
    let header = std::panic::catch_unwind(|| header::read(image)).unwrap_or_else(|_| Err("the decoder panicked on its header".into()));
    let header = header.map_err(|reason| {
        let more = if image.exists() { "" } else { listing::of_another_system(image) };
        BadFile { path: image.to_path_buf(), line: None, reason: reason + more }
    })?;
    Ok(Content { header, labels: label.map_or(Ok(None), |label| read_labels(label, u32::MAX))? })
}

fn read_labels(path: &Path, nc: u32) -> Result<Option<labels::ParsedLabels>, BadFile> {
    let bad = |line, reason| BadFile { path: path.to_path_buf(), line, reason };
    let bytes = match read_bounded(path, MAX_LABEL_BYTES) {
        Ok(bytes) => bytes,
        Err(PathError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
            let loud = path.with_extension("TXT");
            let reason = "labels are read from files that end in `.txt`: rename it".into();
            return if loud.is_file() { Err(BadFile { path: loud, line: None, reason }) } else { Ok(None) };
        }
        Err(PathError::Io { error, .. }) => return Err(bad(None, error.to_string())),
        Err(PathError::NotAFile { .. }) => return Err(bad(None, "not a regular file".into())),
        Err(PathError::TooLarge { found, limit, .. }) => {
            return Err(bad(None, format!("{found} bytes of labels; at most {limit} are read")));
        }
    };
    labels::parse(&bytes, nc).map(Some).map_err(|e| bad(Some(e.line), e.problem.to_string()))
}

fn assemble(config: &DataConfig, split: Split, options: &ScanOptions, listing: &Listing, records: Vec<Record>) -> Result<Scan, DataError> {
    let root = config.root.canonicalize().unwrap_or_else(|_| config.root.clone());
    let nc = if options.single_cls { u32::MAX } else { config.nc() };
    // Of one class for all there is no category.
    let categories = |file: &Annotated| match (options.single_cls, file.has_categories()) {
        (true, _) => Vec::new(),
        (false, true) => file.category_ids(nc),
        (false, false) => Annotated::categories_elsewhere(config, nc, options.cache_dir.as_deref()),
    };
    let ids = CocoIds::new(listing.coco.iter().map(categories).collect());
    let meta = FrameMeta::new(listing.coco.iter().map(Annotated::meta).collect());
    let real = !listing.walked && listing.packed.is_none();
    let mut scan = Scan { root, ids, meta, real, packed: listing.packed.clone(), ..Scan::default() };
    let id = |(file, image): (u32, u32)| listing.coco[file as usize].image_id(image);
    listing.repeated.iter().for_each(|&of| scan.ids.leave_out(id(of)));
    let mut faults = BoxFaults::default();
    let mut records = records.into_iter();
    for entries in listing.entries.chunks(BLOCK) {
        let block: Vec<(&Entry, Record)> = entries.iter().zip(records.by_ref()).collect();
        let block: Vec<_> = block.into_par_iter().map(|(entry, record)| (entry, marked(listing, entry, record, nc))).collect();
        for (Entry { image, coco, sample, .. }, (content, marked)) in block {
            if let Some((file, image)) = *coco {
                faults.add(&marked, listing.coco[file as usize].image_name(image));
            }
            let index = scan.len();
            match content {
                Ok(content) => scan.push(image, content, &marked.areas, options),
                Err(bad) => scan.bad.push(bad),
            }
            if scan.len() > index {
                scan.ids.push(index, coco.map(|of| (of.0, id(of))));
                scan.meta.push(index, *coco);
                scan.samples.extend(*sample);
            } else if let Some(of) = *coco {
                scan.ids.leave_out(id(of));
            }
        }
    }
    scan.zero_size += listing.coco.iter().map(Annotated::zero_size).sum::<u64>();
    scan.notes = listing.coco.iter().flat_map(Annotated::notes).collect();
    scan.notes.extend(scan.packed.iter().flat_map(|packed| packed.faults().to_vec()));
    if !listing.repeated.is_empty() {
        scan.notes.push(format!("{} images have the file of another, which is used once and as that one", listing.repeated.len()));
    }
    scan.notes.extend(faults.notes());
    if let Some(error) = scan.too_many_bad().filter(|_| !options.allow_bad) {
        return Err(error);
    }
    let bad = scan.bad.len();
    if scan.is_empty() {
        return Err(DataError::NoImages { path: scan.root, reason: format!("all {bad} files of `{}` are unusable", split.key()) });
    }
    let mut meta = std::mem::take(&mut scan.meta);
    meta.find_clips(scan.images.iter().map(|image| &scan.paths[image.path.start as usize..image.path.end as usize]));
    scan.meta = meta;
    scan.images.shrink_to_fit();
    scan.labels.shrink_to_fit();
    scan.areas.0.shrink_to_fit();
    scan.paths.shrink_to_fit();
    scan.outlines.points.shrink_to_fit();
    Ok(scan)
}

/// What an image holds with its objects, wherever they stand; and of a COCO file what became of the others.
fn marked(listing: &Listing, entry: &Entry, record: Record, nc: u32) -> (Result<Content, BadFile>, Marked) {
    let mut marked = Marked::default();
    let content = record.content.and_then(|content| match entry.coco {
        None => with_known_classes(content, entry, nc, listing.packed.as_deref().zip(entry.sample)),
        Some((which, index)) => {
            marked = listing.coco[which as usize].labels(index, content.header.size);
            Ok(Content { labels: Some(std::mem::take(&mut marked.parsed)), ..content })
        }
    });
    (content, marked)
}

/// Refuses classes that the dataset does not have. The file is read again only to name the line.
fn with_known_classes(content: Content, entry: &Entry, nc: u32, packed: Option<(&Packed, u32)>) -> Result<Content, BadFile> {
    let labels = content.labels.as_ref().map(|l| l.labels.as_slice()).unwrap_or_default();
    if let Some(label) = labels.iter().find(|l| l.class >= nc) {
        let path = entry.label_path();
        match packed {
            Some((packed, sample)) => packed.name_class(sample, &entry.image, nc)?,
            None if path.is_file() => drop(read_labels(&path, nc)?),
            None => {}
        }
        return Err(BadFile { path, line: None, reason: format!("class {} is not one of the {nc} classes", label.class) });
    }
    Ok(content)
}

impl Scan {
    /// `areas` are those of the labels, where they are known.
    fn push(&mut self, file: &Path, content: Content, areas: &[f32], options: &ScanOptions) {
        let relative = file.strip_prefix(&self.root).unwrap_or(file);
        let Some(text) = relative.to_str().filter(|t| self.paths.len() + t.len() < u32::MAX as usize) else {
            self.bad.push(BadFile { path: file.to_path_buf(), line: None, reason: "its path is not UTF-8 text".into() });
            return;
        };
        let path = self.paths.len() as u32..(self.paths.len() + text.len()) as u32;
        self.paths.push_str(text);
        let first = self.labels.len() as u32;
        let Header { size, gray, deep } = content.header;
        match content.labels {
            None => self.missing += 1,
            Some(parsed) => {
                if parsed.labels.is_empty() {
                    self.empty += 1
                } else {
                    self.found += 1
                }
                self.duplicates += u64::from(parsed.duplicates);
                self.zero_size += u64::from(parsed.zero_size);
                for (k, label) in parsed.labels.into_iter().enumerate() {
                    if options.classes.as_ref().is_none_or(|c| c.contains(&label.class)) {
                        let outline = parsed.outlines.get(k).map(Vec::as_slice).unwrap_or_default();
                        self.outlines.push(outline, self.labels.len());
                        let [.., width, height] = label.xywh;
                        let own = Areas::own(areas.get(k).copied(), [width * size.width as f32, height * size.height as f32]);
                        let place = [self.images.len() as u32, self.labels.len() as u32 - first];
                        self.areas.0.extend(own.map(|area| (place, area)));
                        self.labels.push(if options.single_cls { Label { class: 0, ..label } } else { label });
                    }
                }
            }
        }
        self.images.push(ImageEntry { path, size, gray, deep, labels: first..self.labels.len() as u32 });
    }
}

#[cfg(test)]
mod tests;
