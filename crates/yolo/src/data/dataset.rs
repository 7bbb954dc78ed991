//! A scanned split as a Burn [`Dataset`], and batches that are rectangular.

use burn::data::dataset::{Dataset, DatasetError};

use super::frame::{Frame, Size};
use super::image::decode;
use super::item::Item;
use super::letterbox::fitted;
use super::normalisation::Normalisation;
use super::scan::Scan;

/// The images of a scan, decoded when asked for, at their own size.
#[derive(Clone, Debug)]
pub struct YoloDataset {
    scan: Scan,
    channels: u32,
    normalisation: Normalisation,
}

impl YoloDataset {
    /// `channels` is the network's: with 1, colour images become gray. `normalisation` is that of 16-bit images.
    pub fn new(scan: Scan, channels: u32, normalisation: Normalisation) -> Self {
        Self { scan, channels, normalisation }
    }

    /// What the pixels of item `index` depend on besides its file, where they depend on anything: the levels of a 16-bit image.
    pub(crate) fn levels(&self, index: usize) -> Option<Normalisation> {
        self.scan.images[index].deep.then_some(self.normalisation)
    }

    /// What the scan found.
    pub fn scan(&self) -> &Scan {
        &self.scan
    }

    /// Channels of the network.
    pub(crate) fn channels(&self) -> u32 {
        self.channels
    }

    /// Channels of each item: a gray file has one, whatever the network's.
    pub(crate) fn item_channels(&self) -> impl Iterator<Item = u8> {
        self.scan.images.iter().map(move |image| if image.gray { 1 } else { self.channels as u8 })
    }

    /// Size of the file of item `index`.
    pub(crate) fn size(&self, index: usize) -> Size {
        self.scan.images[index].size
    }

    /// Item `index` with its pixels.
    pub(crate) fn item(&self, index: usize, frame: Frame) -> Item {
        let name = self.scan.path(index).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Item { outlines: self.scan.outlines(index), ..Item::new(frame, self.scan.labels(index).to_vec(), name) }
    }

    /// The sizes of all images, for [`rect_batches`].
    pub fn sizes(&self) -> Vec<Size> {
        self.scan.images.iter().map(|i| i.size).collect()
    }
}

impl Dataset<Item> for YoloDataset {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let bytes = self.scan.bytes(index).map_err(DatasetError::new)?;
        let frame = decode(&bytes, &self.scan.path(index).to_string_lossy(), &self.normalisation).map_err(DatasetError::new)?;
        let frame = if self.channels == 1 { frame.to_gray() } else { frame };
        Ok(self.item(index, frame))
    }

    fn len(&self) -> usize {
        self.scan.len()
    }
}

/// A batch of images of similar shape and the rectangle they are padded to.
#[derive(Clone, Debug, PartialEq)]
pub struct RectBatch {
    /// Indices into the dataset.
    pub indices: Vec<usize>,
    /// Network input, multiples of the stride.
    pub shape: Size,
}

/// Sorts images by aspect ratio h/w and gives each batch the smallest rectangle that holds it with the long side at `imgsz`: each side is
/// ceil(side / stride + margin) * stride. `margin` is 0.5 for validation (384x288 at 640 becomes 672x512) and 0 for `rect` training.
pub fn rect_batches(sizes: &[Size], batch: usize, imgsz: u32, stride: u32, margin: f64) -> Vec<RectBatch> {
    let aspect = |i: usize| f64::from(sizes[i].height) / f64::from(sizes[i].width.max(1));
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&a, &b| aspect(a).total_cmp(&aspect(b)));
    let side = |part: f64| (part * f64::from(imgsz) / f64::from(stride) + margin).ceil() as u32 * stride;
    let rectangle = |indices: &[usize]| {
        let (flattest, tallest) = (aspect(indices[0]), aspect(indices[indices.len() - 1]));
        let (w, h) = if tallest < 1.0 {
            (1.0, tallest)
        } else if flattest > 1.0 {
            (1.0 / flattest, 1.0)
        } else {
            (1.0, 1.0)
        };
        // Rounding up of the fitted sides must not overflow the rectangle by a pixel when there is no margin.
        let room = indices
            .iter()
            .map(|&i| fitted(sizes[i], imgsz))
            .fold(Size::default(), |m, s| Size { width: m.width.max(s.width), height: m.height.max(s.height) });
        Size { width: side(w).max(room.width.next_multiple_of(stride)), height: side(h).max(room.height.next_multiple_of(stride)) }
    };
    order.chunks(batch.max(1)).map(|indices| RectBatch { shape: rectangle(indices), indices: indices.to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_rectangles() {
        let size = |width, height| Size { width, height };
        let shapes = |sizes: &[Size], imgsz, margin| {
            rect_batches(sizes, 2, imgsz, 32, margin).into_iter().map(|b| (b.indices, b.shape)).collect::<Vec<_>>()
        };
        assert_eq!(shapes(&[size(384, 288)], 640, 0.5), [(vec![0], size(672, 512))]);
        assert_eq!(shapes(&[size(384, 288)], 640, 0.0), [(vec![0], size(640, 480))]);
        assert_eq!(shapes(&[size(384, 307)], 320, 0.5), [(vec![0], size(352, 288))]);
        let mixed = [size(100, 200), size(200, 100), size(100, 100), size(100, 150)];
        assert_eq!(shapes(&mixed, 320, 0.5), [(vec![1, 2], size(352, 352)), (vec![3, 0], size(256, 352))]);
    }

    #[test]
    fn equal_shapes_keep_their_order() {
        let batches = rect_batches(&[Size::square(64); 5], 2, 64, 32, 0.5);
        assert_eq!(batches.iter().map(|b| b.indices.clone()).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
    }
}
