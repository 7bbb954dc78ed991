//! What a data set is made of: objects by class and size, images without any, brightness, image sizes.
//!
//! Sizes are COCO's, in the pixels of the file: small is below 32² px, large above 96². Everything but brightness is known from the scan; that is
//! the mean gray (0 to 255) of images spread evenly over the list, decoded as training does.

use std::collections::BTreeMap;

use burn::data::dataset::Dataset;
use rayon::prelude::*;

use super::dataset::YoloDataset;
use super::description::Split;
use super::frame::Size;

/// Images that are decoded for their brightness.
const SAMPLED: usize = 1000;

/// The objects of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Small, medium, large.
    pub objects: [u64; 3],
    /// Images with at least one.
    pub images: u64,
}

/// One split.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitStats {
    /// Which.
    pub split: Split,
    /// Usable images.
    pub images: usize,
    /// Of them without an object.
    pub empty: usize,
    /// By class index.
    pub classes: Vec<ClassStats>,
    /// Objects in each image.
    pub per_image: Vec<usize>,
    /// Mean gray of each sampled image, 0 to 255.
    pub brightness: Vec<f32>,
    /// How many images have which size; most frequent first, then by size.
    pub sizes: Vec<(Size, usize)>,
}

impl SplitStats {
    /// Of a scanned split with `nc` classes. `progress(done, total)` is called from many threads while images are decoded; one that cannot be
    /// decoded has no brightness.
    pub fn of(split: Split, set: &YoloDataset, nc: usize, progress: &(dyn Fn(u64, u64) + Sync)) -> Self {
        let scan = set.scan();
        let mut classes = vec![ClassStats::default(); nc];
        let mut sizes = BTreeMap::new();
        for (i, image) in scan.images.iter().enumerate() {
            *sizes.entry((image.size.width, image.size.height)).or_insert(0usize) += 1;
            let mut seen = vec![false; nc];
            for label in scan.labels(i) {
                let class = label.class as usize;
                let area = f64::from(label.xywh[2] * image.size.width as f32) * f64::from(label.xywh[3] * image.size.height as f32);
                classes[class].objects[size_of(area)] += 1;
                classes[class].images += u64::from(!std::mem::replace(&mut seen[class], true));
            }
        }
        let mut sizes: Vec<(Size, usize)> = sizes.into_iter().map(|((width, height), n)| (Size { width, height }, n)).collect();
        sizes.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        let per_image: Vec<usize> = (0..scan.len()).map(|i| scan.labels(i).len()).collect();
        let sampled: Vec<usize> = (0..scan.len()).step_by(scan.len().div_ceil(SAMPLED).max(1)).collect();
        let done = std::sync::atomic::AtomicU64::new(0);
        let mean = |&i: &usize| {
            let frame = set.get(i).ok().map(|item| item.frame.to_gray());
            progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, sampled.len() as u64);
            frame.map(|frame| (frame.pixels.iter().map(|&p| u64::from(p)).sum::<u64>() as f64 / frame.pixels.len().max(1) as f64) as f32)
        };
        let brightness = sampled.par_iter().filter_map(mean).collect();
        let empty = per_image.iter().filter(|&&n| n == 0).count();
        Self { split, images: scan.len(), empty, classes, per_image, brightness, sizes }
    }

    /// All objects.
    pub fn objects(&self) -> u64 {
        self.classes.iter().flat_map(|c| c.objects).sum()
    }

    /// A row a class, without a header: split, class, name, objects, small, medium, large, images with it.
    pub fn class_rows(&self, names: &[String]) -> Vec<[String; 8]> {
        let row = |(class, stats): (usize, &ClassStats)| {
            let [small, medium, large] = stats.objects;
            let name = names.get(class).cloned().unwrap_or_default();
            let numbers = [small + medium + large, small, medium, large, stats.images].map(|n| n.to_string());
            let [objects, small, medium, large, images] = numbers;
            [self.split.key().into(), class.to_string(), name, objects, small, medium, large, images]
        };
        self.classes.iter().enumerate().map(row).collect()
    }
}

/// 0, 1 or 2: small, medium, large.
fn size_of(area: f64) -> usize {
    usize::from(area >= 32.0 * 32.0) + usize::from(area > 96.0 * 96.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::image::tests::jpeg;
    use crate::data::{DataConfig, Normalisation, ScanOptions, scan};

    #[test]
    fn counts_by_class_and_size() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("images")).unwrap();
        std::fs::create_dir_all(dir.path().join("labels")).unwrap();
        for (name, width, label) in
            [("a", 400, "0 .5 .5 .05 .1\n1 .5 .5 .1 .5\n1 .5 .5 .5 1\n"), ("b", 200, ""), ("c", 400, "1 .5 .5 .1 .4")]
        {
            std::fs::write(dir.path().join(format!("images/{name}.jpg")), jpeg(width, 200)).unwrap();
            std::fs::write(dir.path().join(format!("labels/{name}.txt")), label).unwrap();
        }
        let config = DataConfig::parse("train: images\nval: images\nnames: [x, \"y,z\"]\n", &dir.path().join("d.yaml")).unwrap();
        let found = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        let set = YoloDataset::new(found, 3, Normalisation::Frame { low: 0.0, high: 100.0 });
        let stats = SplitStats::of(Split::Train, &set, 2, &|_, _| {});
        assert_eq!((stats.images, stats.empty, stats.objects(), stats.per_image.clone()), (3, 1, 4, vec![3, 0, 1]));
        assert_eq!(stats.classes, [ClassStats { objects: [1, 0, 0], images: 1 }, ClassStats { objects: [0, 2, 1], images: 2 }]);
        assert_eq!(stats.sizes, [(Size { width: 400, height: 200 }, 2), (Size { width: 200, height: 200 }, 1)]);
        assert!(stats.brightness.len() == 3 && stats.brightness.iter().all(|b| (100.0..150.0).contains(b)), "{:?}", stats.brightness);
        assert_eq!(stats.class_rows(&config.names)[1], ["train", "1", "y,z", "3", "0", "2", "1", "2"]);
    }
}
