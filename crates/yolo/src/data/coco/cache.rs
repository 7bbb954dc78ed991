//! A COCO file remembered in the user's cache folder: what was kept of it, under its path, size, time and a sample of its bytes.
//!
//! Format, little-endian: magic, stamp, categories, images, boxes, points, areas, meta, counts, then the SHA-256 of all that. One that does not match is as good as none.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use bellows_runs::{open_regular, write_atomic};
use sha2::{Digest, Sha256};

use super::file::{CocoBox, CocoFile, CocoImage, Counts};
use super::id::Id;
use crate::data::areas::Areas;
use crate::data::bytes::{Reader, Writer};
use crate::data::error::DataError;
use crate::data::frame::Size;
use crate::data::meta::{Column, MetaTable};

const MAGIC: &[u8; 12] = b"BELLOWSCOC07";
/// Pieces of the file that are hashed, evenly spread, and their length.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// By what a file is known to be unchanged: size, modification time (ns), and a hash of 64 pieces, for times can lie.
#[derive(Debug, PartialEq)]
pub(super) struct Stamp {
    size: u64,
    modified: u64,
    sample: [u8; 32],
}

impl Stamp {
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        let mut file = open_regular(path)?;
        let info = file.metadata()?;
        let size = info.len();
        let mut hash = Sha256::new();
        let mut piece = Vec::new();
        for i in 0..SAMPLES {
            piece.clear();
            file.seek(SeekFrom::Start(size.saturating_sub(SAMPLE_BYTES) / (SAMPLES - 1) * i))?;
            file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut piece)?;
            hash.update(&piece);
        }
        let modified = info.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos() as u64);
        Ok(Self { size, modified, sample: hash.finalize().into() })
    }
}

/// Where the file at `path` is remembered.
pub(super) fn file_name(path: &Path) -> String {
    let real = path.canonicalize().unwrap_or_else(|_| path.into());
    let digest = Sha256::digest(real.as_os_str().as_encoded_bytes());
    digest.iter().take(12).map(|b| format!("{b:02x}")).collect::<String>() + ".coco"
}

pub(super) fn save(file: &Path, stamp: &Stamp, coco: &CocoFile) -> Result<(), DataError> {
    let mut out = Writer(Vec::with_capacity(32 * coco.boxes.len() + 8 * coco.points.len() + 64 * coco.images.len() + 4096));
    out.0.extend(MAGIC);
    out.u64(stamp.size);
    out.u64(stamp.modified);
    out.0.extend(stamp.sample);
    out.u32(coco.categories.len() as u32);
    for (id, name) in &coco.categories {
        out.id(id);
        out.text(name);
    }
    out.u32(coco.images.len() as u32);
    for image in &coco.images {
        out.id(&image.id);
        out.text(&image.file);
        out.u32(image.size.width);
        out.u32(image.size.height);
    }
    out.u32(coco.boxes.len() as u32);
    for b in &coco.boxes {
        out.u32(b.image);
        out.u32(b.category);
        b.xywh.iter().for_each(|&v| out.f32(v));
        b.outline.iter().for_each(|&v| out.u32(v));
    }
    out.u32(coco.points.len() as u32);
    coco.points.as_flattened().iter().for_each(|&v| out.f32(v));
    out.u32(coco.areas.0.len() as u32);
    for (of, area) in &coco.areas.0 {
        of.iter().for_each(|&v| out.u32(v));
        out.f32(*area);
    }
    out.meta(&coco.meta);
    let c = &coco.counts;
    let left_out = [c.crowd, c.zero_size, c.boxless, c.masks, c.unknown_points, c.unknown_image, c.unknown_category];
    let odd = [c.repeated_images, c.repeated_annotations, c.not_numbers];
    left_out.iter().chain(&odd).for_each(|&n| out.u64(n));
    out.u32(c.examples.len() as u32);
    c.examples.iter().for_each(|text| out.text(text));
    let digest = Sha256::digest(&out.0);
    out.0.extend(digest);
    let dir = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(DataError::io(dir))?;
    Ok(write_atomic(file, &out.0)?)
}

/// What `file` remembers, if it is whole and of a file with this stamp.
pub(super) fn load(file: &Path, stamp: &Stamp) -> Option<CocoFile> {
    let mut bytes = Vec::new();
    open_regular(file).ok()?.read_to_end(&mut bytes).ok()?;
    let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    let mut input = Reader(body.strip_prefix(MAGIC)?);
    let known = Stamp { size: input.u64()?, modified: input.u64()?, sample: input.take()? };
    if known != *stamp || Sha256::digest(body)[..] != *digest {
        return None;
    }
    let (count, mut categories) = input.list(8)?;
    for _ in 0..count {
        categories.push((input.id()?, input.text()?));
    }
    let (count, mut images) = input.list(17)?;
    for _ in 0..count {
        let (id, file) = (input.id()?, input.text()?);
        images.push(CocoImage { id, file, size: Size { width: input.u32()?, height: input.u32()? } });
    }
    let (count, mut boxes) = input.list(32)?;
    for _ in 0..count {
        let (image, category) = (input.u32().filter(|&image| (image as usize) < images.len())?, input.u32()?);
        let xywh = [input.f32()?, input.f32()?, input.f32()?, input.f32()?];
        boxes.push(CocoBox { image, category, xywh, outline: [input.u32()?, input.u32()?] });
    }
    let (count, mut points) = input.list(8)?;
    for _ in 0..count {
        points.push([input.f32()?, input.f32()?]);
    }
    let (count, mut areas) = input.list(12)?;
    for _ in 0..count {
        areas.push(([input.u32()?, input.u32()?], input.f32()?));
    }
    let meta = Arc::new(input.meta()?);
    let mut counts = Counts {
        crowd: input.u64()?,
        zero_size: input.u64()?,
        boxless: input.u64()?,
        masks: input.u64()?,
        unknown_points: input.u64()?,
        unknown_image: input.u64()?,
        unknown_category: input.u64()?,
        repeated_images: input.u64()?,
        repeated_annotations: input.u64()?,
        not_numbers: input.u64()?,
        examples: Vec::new(),
    };
    for _ in 0..input.u32()? {
        counts.examples.push(input.text()?);
    }
    Some(CocoFile { categories, images, boxes, points, areas: Areas(areas), meta, counts, ..CocoFile::default() }.complete())
}

impl Writer {
    fn meta(&mut self, meta: &MetaTable) {
        self.u32(meta.columns.len() as u32);
        for column in &meta.columns {
            self.text(&column.key);
            self.u32(column.texts.len() as u32);
            column.texts.iter().for_each(|text| self.text(text));
            self.u32(column.codes.len() as u32);
            column.codes.iter().for_each(|&code| self.u32(code));
        }
    }

    fn id(&mut self, id: &Id) {
        match id {
            Id::Number(n) => {
                self.0.push(0);
                self.u64(*n as u64);
            }
            Id::Text(text) => {
                self.0.push(1);
                self.text(text);
            }
        }
    }
}

impl Reader<'_> {
    fn meta(&mut self) -> Option<MetaTable> {
        let (count, mut columns) = self.list(12)?;
        for _ in 0..count {
            let key = self.text()?;
            let (count, mut texts) = self.list(4)?;
            for _ in 0..count {
                texts.push(self.text()?);
            }
            let (count, mut codes) = self.list(4)?;
            for _ in 0..count {
                codes.push(self.u32().filter(|&code| code as usize <= texts.len())?);
            }
            columns.push(Column { key, texts, codes });
        }
        Some(MetaTable { columns })
    }

    fn id(&mut self) -> Option<Id> {
        match self.take()? {
            [0] => self.u64().map(|n| Id::Number(n as i64)),
            [1] => self.text().map(|text| Id::Text(text.into())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_was_read_and_counts_while_the_file_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (json, memory) = (dir.path().join("a.json"), dir.path().join("cache"));
        let text = r#"{"annotations":[{"image_id":"t","category_id":1,"bbox":[1,2,3,4],"area":6,"segmentation":[[1,2,null,4,5,6]]},{"image_id":8,"category_id":1,"bbox":[1,2,3,4]}],
            "images":[{"id":9,"file_name":"a","meta":{"k":1,"l":"x","n":NaN}},{"id":"t","meta":{"l":"y"},"file_name":"b","width":4,"height":5}],"categories":[{"id":1,"name":"c"}]}"#;
        std::fs::write(&json, text).unwrap();
        let fresh = crate::data::coco::open(&json, Some(&memory)).unwrap();
        let stamp = Stamp::of(&json).unwrap();
        let file = memory.join(file_name(&json));
        assert_eq!(load(&file, &stamp).as_ref(), Some(&fresh));
        assert_eq!((fresh.counts.unknown_image, fresh.counts.not_numbers, fresh.boxes_of(1).len()), (1, 1, 1));
        assert_eq!((fresh.counts.unknown_points, fresh.areas.get(1, 0)), (1, Some(6.0)));
        assert!(load(&file, &Stamp { size: 1, ..Stamp::of(&json).unwrap() }).is_none());
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[80] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert!(load(&file, &stamp).is_none());
        std::fs::write(&json, text.replace("[1,2,3,4]", "[1,2,3,5]")).unwrap();
        assert_eq!(crate::data::coco::open(&json, Some(&memory)).unwrap().boxes[0].xywh[3], 5.0);
    }
}
