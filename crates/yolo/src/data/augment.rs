//! One training sample: tiles, mosaic, perspective, mixup, cutmix, brightness, what a thermal camera varies, flips, in the order and with the defaults detector users know.
//!
//! [`augment`] is a pure function of (dataset, seed, epoch, sample, settings). Partners of mosaic, mixup and cutmix are drawn by hash over the whole
//! set (by the sampler's weights where there is one; of images in shards over the window that is being read), so no buffer of recent images has to be kept, shared or saved. Where labels are polygons, boxes are taken from them after the warp. Copy-paste
//! is not done (`source` warns).

use bellows_shards::Order;
use burn::data::dataset::Dataset;

use super::error::DataError;
use super::frame::{Frame, Size};
use super::item::Item;
use super::letterbox::{Letterbox, fit, letterbox};
use super::outline::Outline;
use super::rng::Draw;
use super::sampler::partner;
use super::scene::Scene;
use super::strength::AugmentConfig;
use super::{cutmix, hsv, mosaic, perspective, sensor, tile};
use crate::boxes::{Label, xywh_to_xyxy, xyxy_to_xywh};

/// Partners are drawn from so many images at least, however small the window is: of one image alone, a mosaic would be that image four times.
const LEAST_PARTNERS: usize = 64;

/// One image at network size and its objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `[channels, height, width]`
    pub frame: Frame,
    /// Normalised to the frame.
    pub labels: Vec<Label>,
    /// File name of the image at `index`.
    pub name: String,
    /// Index into the dataset.
    pub index: usize,
    /// How the image came to its place; meaningful for validation, where nothing is warped.
    pub letterbox: Letterbox,
}

/// Which sample of which epoch, at which size.
#[derive(Clone, Copy, Debug)]
pub struct TrainView<'a> {
    /// The run's seed.
    pub seed: u64,
    /// 0-based.
    pub epoch: u64,
    /// Long side, pixels.
    pub imgsz: u32,
    /// Network input; a square of `imgsz`, or the rectangle of the batch in `rect` training (then mosaic must be off).
    pub shape: Size,
    /// What is drawn.
    pub config: &'a AugmentConfig,
    /// Running sums of the sampler's weights, one an image, by which images come into the samples of others; empty where all do alike.
    pub weight_sums: &'a [f64],
    /// Of images in shards the order they are read in, in whose windows partners are looked for; none for all images.
    pub order: Option<&'a Order>,
}

impl TrainView<'_> {
    /// An image of `images` to go into the sample at `index` beside its own.
    fn partner(&self, index: usize, images: usize, draw: &mut Draw) -> usize {
        match self.order {
            Some(order) => order.near(index, LEAST_PARTNERS, |n| draw.below(n)),
            None => partner(self.weight_sums, images, draw),
        }
    }
}

/// The training sample of this number: of the image `sample` where that is below the number of images. Of as many images more it is the same image taken
/// again, with draws of its own; what is drawn for the first take is what is drawn where every image is taken once.
///
/// # Errors
/// [`DataError::Item`] when an image cannot be read, [`DataError::Invalid`] for a mosaic in a rectangle.
pub fn augment(dataset: &dyn Dataset<Item>, sample: usize, view: &TrainView) -> Result<Sample, DataError> {
    let (config, index) = (view.config, sample % dataset.len().max(1));
    let draw = |stream| Draw::new(view.seed, stream, view.epoch, sample as u64);
    let other = |draw: &mut Draw| view.partner(index, dataset.len(), draw);
    let (mut scene, name, original) = compose(dataset, index, view, &mut draw("compose"))?;
    if config.mosaic_open {
        let mut chance = draw("mixup");
        if chance.chance(config.mixup) {
            let (other, ..) = compose(dataset, other(&mut chance), view, &mut draw("mixup partner"))?;
            scene = cutmix::mixup(scene, other, chance.beta(32.0, 32.0));
        }
        let mut chance = draw("cutmix");
        if chance.chance(config.cutmix) {
            let (other, ..) = compose(dataset, other(&mut chance), view, &mut draw("cutmix partner"))?;
            scene = cutmix::cutmix(scene, other, &mut chance);
        }
    }
    let mut look = draw("look");
    if !config.stack.is_on() {
        hsv::jitter(&mut scene.frame, [config.hsv_h, config.hsv_s, config.hsv_v], &mut look);
    }
    sensor::disturb(&mut scene.frame, &config.sensor, &mut draw("sensor"));
    let (upside_down, mirrored, swapped) = (look.chance(config.flipud), look.chance(config.fliplr), look.chance(config.bgr));
    flip(&mut scene, upside_down, mirrored);
    if swapped && scene.frame.channels == 3 && !config.stack.is_on() {
        let plane = scene.frame.width * scene.frame.height;
        let (red, rest) = scene.frame.pixels.split_at_mut(plane);
        red.swap_with_slice(&mut rest[plane..]);
    }
    let labels = normalised(&scene);
    Ok(Sample { frame: scene.frame, labels, name, index, letterbox: Letterbox { ratio: [1.0; 2], pad: [0.0; 2], original } })
}

/// The validation sample at `index`: long side to `imgsz`, centred in `shape`, nothing drawn.
///
/// # Errors
/// [`DataError::Item`] when the image cannot be read.
pub fn plain(dataset: &dyn Dataset<Item>, index: usize, imgsz: u32, shape: Size) -> Result<Sample, DataError> {
    let item = get(dataset, index)?;
    let (frame, letterbox) = letterbox(&fit(&item.frame, imgsz)?, item.original, shape, false)?;
    let boxes = place(&item.labels, &letterbox);
    let scene = Scene { frame, boxes, outlines: Vec::new() };
    Ok(Sample { labels: normalised(&scene), frame: scene.frame, name: item.name, index, letterbox })
}

pub(crate) fn get(dataset: &dyn Dataset<Item>, index: usize) -> Result<Item, DataError> {
    dataset.get(index).map_err(|source| DataError::Item { index, source })
}

/// Mosaic (or letterbox) and perspective: everything that happens before two samples are mixed.
fn compose(dataset: &dyn Dataset<Item>, index: usize, view: &TrainView, draw: &mut Draw) -> Result<(Scene, String, Size), DataError> {
    let item = tile::cut(get(dataset, index)?, view.config.tile, draw);
    let (name, original) = (item.name.clone(), item.original);
    if view.config.mosaic_open && draw.chance(view.config.mosaic) {
        if view.shape != Size::square(view.imgsz) {
            return Err(DataError::Invalid("mosaic needs square training images: set mosaic to 0 for rect training".into()));
        }
        let partners: [usize; 3] = std::array::from_fn(|_| view.partner(index, dataset.len(), draw));
        let mut items = vec![item];
        for partner in partners {
            items.push(tile::cut(get(dataset, partner)?, view.config.tile, draw));
        }
        let canvas = mosaic::mosaic4(&items, view.imgsz, draw)?;
        return Ok((perspective::random_perspective(canvas, view.shape, view.config, draw), name, original));
    }
    let (frame, letterbox) = letterbox(&fit(&item.frame, view.imgsz)?, item.original, view.shape, true)?;
    let scene = Scene { frame, boxes: place(&item.labels, &letterbox), outlines: place_outlines(&item.outlines, &letterbox) };
    Ok((perspective::random_perspective(scene, view.shape, view.config, draw), name, original))
}

/// Normalised labels to pixels after a letterbox.
fn place(labels: &[Label], lb: &Letterbox) -> Vec<(u32, [f32; 4])> {
    let (w, h) = (lb.original.width as f32 * lb.ratio[0], lb.original.height as f32 * lb.ratio[1]);
    let pixels = |[x1, y1, x2, y2]: [f32; 4]| [x1 * w + lb.pad[0], y1 * h + lb.pad[1], x2 * w + lb.pad[0], y2 * h + lb.pad[1]];
    labels.iter().map(|l| (l.class, pixels(xywh_to_xyxy(l.xywh)))).collect()
}

/// The same for outlines.
fn place_outlines(outlines: &[Outline], lb: &Letterbox) -> Vec<Outline> {
    let (w, h) = (lb.original.width as f32 * lb.ratio[0], lb.original.height as f32 * lb.ratio[1]);
    let pixels = |&[x, y]: &[f32; 2]| [x * w + lb.pad[0], y * h + lb.pad[1]];
    outlines.iter().map(|outline| outline.iter().map(pixels).collect()).collect()
}

fn normalised(scene: &Scene) -> Vec<Label> {
    let (w, h) = (scene.frame.width as f32, scene.frame.height as f32);
    let label = |&(class, [x1, y1, x2, y2]): &(u32, [f32; 4])| Label { class, xywh: xyxy_to_xywh([x1 / w, y1 / h, x2 / w, y2 / h]) };
    scene.boxes.iter().map(label).collect()
}

fn flip(scene: &mut Scene, upside_down: bool, mirrored: bool) {
    let (w, h) = (scene.frame.width, scene.frame.height);
    for plane in scene.frame.pixels.chunks_exact_mut(w * h) {
        if upside_down {
            let (top, bottom) = plane.split_at_mut(h / 2 * w);
            let below = bottom.len() / w;
            for (row, a) in top.chunks_exact_mut(w).enumerate() {
                a.swap_with_slice(&mut bottom[(below - 1 - row) * w..][..w]);
            }
        }
        if mirrored {
            plane.chunks_exact_mut(w).for_each(<[u8]>::reverse);
        }
    }
    for (_, b) in &mut scene.boxes {
        let [x1, y1, x2, y2] = *b;
        let (y1, y2) = if upside_down { (h as f32 - y2, h as f32 - y1) } else { (y1, y2) };
        let (x1, x2) = if mirrored { (w as f32 - x2, w as f32 - x1) } else { (x1, x2) };
        *b = [x1, y1, x2, y2];
    }
}

#[cfg(test)]
mod tests;
