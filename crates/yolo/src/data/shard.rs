//! A split written into shards: images as they are, labels as label files.

use std::path::Path;

use bellows_learner::epoch_order;
use bellows_shards::Writer;

use super::error::DataError;
use super::labels;
use super::packed::LABELS;
use super::scan::Scan;

/// How samples are put into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Samples of a shard.
    pub samples: usize,
    /// In a random order (always the same), and not in that of the list: frames of a film then do not lie beside each other.
    pub shuffle: bool,
}

/// Writes the images of a split and their labels into `folder`, which must be there, as shards that are called `name`.
///
/// # Errors
/// An image that cannot be read, a disk that is full.
pub(crate) fn write(found: &Scan, packing: Packing, folder: &Path, name: &str, progress: &dyn Fn(u64, u64)) -> Result<(), DataError> {
    let mut writer = Writer::new(folder, name, packing.samples);
    for (number, i) in epoch_order(found.len(), 0, 0, packing.shuffle).into_iter().enumerate() {
        let path = found.path(i);
        let kind = path.extension().map(|kind| kind.to_string_lossy().to_lowercase()).unwrap_or_else(|| "image".into());
        let (image, labels) = (found.bytes(i)?, label_text(found, i));
        writer.push(&format!("{number:08}"), &[(&kind, &image), (LABELS, labels.as_bytes())])?;
        progress(number as u64 + 1, found.len() as u64);
    }
    writer.finish()?;
    Ok(())
}

/// The label file of image `i`. A polygon is written where its box follows from it; of others, as COCO has them, the box is.
pub(super) fn label_text(found: &Scan, i: usize) -> String {
    let outlines = found.outlines(i);
    let line = |(k, label): (usize, &crate::boxes::Label)| {
        let points = outlines.get(k).map(Vec::as_slice).unwrap_or_default();
        let polygon: String =
            std::iter::once(label.class.to_string()).chain(points.as_flattened().iter().map(|v| format!(" {v}"))).collect();
        match labels::parse(polygon.as_bytes(), u32::MAX) {
            Ok(parsed) if parsed.labels == [*label] => polygon + "\n",
            _ => box_text(label),
        }
    };
    found.labels(i).iter().enumerate().map(line).collect()
}

/// A line of a label file; numbers are written so that they are read as the same.
pub(super) fn box_text(label: &crate::boxes::Label) -> String {
    let [x, y, w, h] = label.xywh;
    format!("{} {x} {y} {w} {h}\n", label.class)
}

#[cfg(test)]
mod tests;
