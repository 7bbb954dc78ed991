//! A scanned split as a Burn [`Dataset`], optionally held in memory, and the order in which validation batches are rectangular.

use burn::data::dataset::{Dataset, DatasetError};
use rayon::prelude::*;

use super::augment::Item;
use super::image::decode_file;
use super::letterbox::{Size, fit, fitted};
use super::{DataError, Scan};

/// The images of a scan, decoded when asked for, at their own size.
#[derive(Clone, Debug)]
pub struct YoloDataset {
    scan: Scan,
    channels: u32,
}

impl YoloDataset {
    /// `channels` is the network's: with 1, colour images become gray.
    pub fn new(scan: Scan, channels: u32) -> Self {
        Self { scan, channels }
    }

    /// What the scan found.
    pub fn scan(&self) -> &Scan {
        &self.scan
    }

    /// The sizes of all images, for [`rect_batches`].
    pub fn sizes(&self) -> Vec<Size> {
        self.scan.images.iter().map(|i| i.size).collect()
    }
}

impl Dataset<Item> for YoloDataset {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let path = self.scan.path(index);
        let frame = decode_file(&path).map_err(DatasetError::new)?;
        let frame = if self.channels == 1 { frame.to_gray() } else { frame };
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Item::new(frame, self.scan.labels(index).to_vec(), name))
    }

    fn len(&self) -> usize {
        self.scan.len()
    }
}

/// `cache=ram`: every item of a dataset, decoded and resized to `imgsz` once. Batches are the same bits with and without it.
#[derive(Debug)]
pub struct RamCache {
    items: Vec<Item>,
}

impl RamCache {
    /// Reads all of `dataset`. The memory needed is estimated from 30 items, with half as much again for safety, and compared with what is
    /// free before anything is read (where the system tells).
    ///
    /// # Errors
    /// [`DataError::Memory`], or the first item that cannot be read.
    pub fn new<D: Dataset<Item>>(dataset: &D, imgsz: u32, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Self, DataError> {
        let total = dataset.len();
        let load = |index: usize| -> Result<Item, DataError> {
            let item = dataset.get(index).map_err(|source| DataError::Item { index, source })?;
            Ok(Item { frame: fit(&item.frame, imgsz)?, ..item })
        };
        let step = total.div_ceil(30).max(1);
        let (mut sampled, mut bytes) = (0u64, 0u64);
        for index in (0..total).step_by(step) {
            bytes += load(index)?.frame.pixels.len() as u64;
            sampled += 1;
        }
        let need = (bytes * total as u64).checked_div(sampled).unwrap_or(0) * 3 / 2;
        if let Some(free) = free_memory().filter(|&free| need > free) {
            return Err(DataError::Memory { need_mib: need >> 20, free_mib: free >> 20 });
        }
        let done = std::sync::atomic::AtomicU64::new(0);
        let items = (0..total).into_par_iter().map(|index| {
            let item = load(index);
            progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, total as u64);
            item
        });
        Ok(Self { items: items.collect::<Result<_, _>>()? })
    }
}

impl Dataset<Item> for RamCache {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        Ok(self.items[index].clone())
    }

    fn len(&self) -> usize {
        self.items.len()
    }
}

/// Bytes that can be allocated without swapping, as Linux tells; elsewhere unknown.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(kib << 10)
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
