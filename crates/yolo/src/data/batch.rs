//! Samples stacked to what a training step takes. Pure functions of their arguments: workers may call them in any order, on any thread.

use burn::data::dataset::Dataset;

use super::augment::{Sample, plain};
use super::error::DataError;
use super::frame::Size;
use super::item::Item;
use super::letterbox::Letterbox;
use super::rng::Draw;
use crate::boxes::Label;

/// One object of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Which image of the batch.
    pub image: u32,
    /// Class and normalised box.
    pub label: Label,
}

/// Images and objects of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// `[B, C, H, W]`, 0..255; C is 1 if all images are gray, else 3.
    pub images: Vec<u8>,
    /// B, C, H, W.
    pub shape: [usize; 4],
    /// Sorted by image.
    pub targets: Vec<Target>,
    /// File names, one an image.
    pub names: Vec<String>,
    /// Indices into the dataset.
    pub indices: Vec<usize>,
    /// How each image came to its place (meaningful for validation).
    pub letterboxes: Vec<Letterbox>,
}

/// Stacks samples of one shape.
///
/// # Errors
/// [`DataError::Invalid`] for no samples or different shapes.
pub fn collate(samples: Vec<Sample>) -> Result<Batch, DataError> {
    let first = samples.first().ok_or_else(|| DataError::Invalid("a batch needs at least one sample".into()))?;
    let (width, height) = (first.frame.width, first.frame.height);
    let channels = samples.iter().map(|s| s.frame.channels).max().unwrap_or(1);
    let shape = [samples.len(), channels, height, width];
    let mut batch = Batch {
        images: Vec::with_capacity(shape.iter().product()),
        shape,
        targets: Vec::new(),
        names: Vec::new(),
        indices: Vec::new(),
        letterboxes: Vec::new(),
    };
    for (image, sample) in samples.into_iter().enumerate() {
        if (sample.frame.width, sample.frame.height) != (width, height) {
            let reason = format!("{}: {}x{} in a batch of {width}x{height}", sample.name, sample.frame.width, sample.frame.height);
            return Err(DataError::Invalid(reason));
        }
        batch.images.extend(sample.frame.with_channels(channels).pixels);
        batch.targets.extend(sample.labels.into_iter().map(|label| Target { image: image as u32, label }));
        batch.names.push(sample.name);
        batch.indices.push(sample.index);
        batch.letterboxes.push(sample.letterbox);
    }
    Ok(batch)
}

/// The samples that can be read, and why the others cannot.
pub(crate) fn readable(indices: &[usize], read: impl Fn(usize) -> Result<Sample, DataError>) -> (Vec<Sample>, Vec<DataError>) {
    let (mut samples, mut errors) = (Vec::with_capacity(indices.len()), Vec::new());
    for &index in indices {
        match read(index) {
            Ok(sample) => samples.push(sample),
            Err(error) => errors.push(error),
        }
    }
    (samples, errors)
}

/// The validation batch of `indices`, letterboxed to `shape` (a [`RectBatch`](super::RectBatch)'s, or a square), without the images that cannot be read:
/// why not. No batch if none can.
///
/// # Errors
/// As [`collate`].
pub fn val_batch(
    dataset: &dyn Dataset<Item>,
    indices: &[usize],
    imgsz: u32,
    shape: Size,
) -> Result<(Option<Batch>, Vec<DataError>), DataError> {
    let (samples, errors) = readable(indices, |i| plain(dataset, i, imgsz, shape));
    let batch = if samples.is_empty() { None } else { Some(collate(samples)?) };
    Ok((batch, errors))
}

/// The image size of batch number `batch` under `multi_scale`: uniform between half and one and a half of `imgsz`, a multiple of `stride`.
pub fn multi_scale(seed: u64, epoch: u64, batch: u64, imgsz: u32, stride: u32) -> u32 {
    let span = imgsz + stride;
    let size = imgsz / 2 + Draw::new(seed, "multi_scale", epoch, batch).below(span as usize) as u32;
    (size / stride).max(1) * stride
}
