//! Which counts of a 16-bit image become black and which white.
//!
//! Thermal cameras store counts (temperatures, in their unit) that use a narrow band of 65,536 levels. One range for all frames keeps what is
//! absolute in them: the same temperature is the same gray. It is given ([`Levels::range`]), or measured: percentiles of all pixels of a sample
//! of the training images, spread evenly over the list, so that it is a function of the files and one hot pixel decides nothing. Percentiles of
//! each frame instead are a camera's automatic gain.
//!
//! What was measured is remembered beside the scan, under the sampled files' sizes and times; not where one of them could not be read, as it may be at the next
//! start.

use std::path::Path;

use bellows_runs::write_atomic;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::error::DataError;
use super::image::counts_of;
use super::normalisation::{Histogram, Normalisation};
use super::scan::Scan;

/// Images that are measured.
const SAMPLED: usize = 256;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Counts that become black and white.
    pub range: Option<[f64; 2]>,
    /// Percentiles (0 to 100) of the counts that do, where no range is given.
    pub percentile: [f64; 2],
    /// Percentiles of each frame, and not of the data.
    pub per_frame: bool,
}

impl Default for Levels {
    fn default() -> Self {
        Self { range: None, percentile: [0.5, 99.5], per_frame: false }
    }
}

impl Levels {
    /// For images that belong to no data set: the range, or percentiles of each.
    pub fn alone(&self) -> Normalisation {
        let [low, high] = self.percentile;
        self.range.map_or(Normalisation::Frame { low, high }, |[low, high]| Normalisation::Range { low, high })
    }

    /// How images are normalised: measured on the 16-bit images of `scan` if need be; `cache_dir` is where that is remembered.
    ///
    /// # Errors
    /// [`DataError::Invalid`] when no sampled image can be read.
    pub fn resolve(&self, scan: &Scan, cache_dir: Option<&Path>) -> Result<Normalisation, DataError> {
        let [low, high] = self.percentile;
        if let Some([low, high]) = self.range {
            return Ok(Normalisation::Range { low, high });
        }
        let deep: Vec<usize> = (0..scan.len()).filter(|&i| scan.images[i].deep).collect();
        if self.per_frame || deep.is_empty() {
            return Ok(Normalisation::Frame { low, high });
        }
        let sampled = sample(&deep);
        let memory = cache_dir.map(|dir| dir.join(self.file_name(scan, &sampled)));
        if let Some([low, high]) = memory.as_deref().and_then(known) {
            return Ok(Normalisation::Range { low, high });
        }
        // Sums of whole numbers: the order of threads does not matter. An image that cannot be decoded is the loader's to report.
        let measured = sampled
            .par_iter()
            .filter_map(|&i| counts_of(&scan.bytes(i).ok()?, &scan.path(i).to_string_lossy()).ok())
            .fold(<(Histogram, usize)>::default, |(histogram, read), counts| (histogram.with(counts), read + 1));
        let (histogram, read) = measured.reduce(<(Histogram, usize)>::default, |a, b| (a.0.merged(b.0), a.1 + b.1));
        let Some([low, high]) = histogram.percentiles(self.percentile) else {
            return Err(DataError::Invalid(format!("none of the {} sampled 16-bit images can be read", sampled.len())));
        };
        if let Some(file) = memory.filter(|_| read == sampled.len())
            && let Err(error) = write_atomic(&file, format!("{low} {high}\n").as_bytes())
        {
            tracing::warn!("{}: {error}; the next start measures again", file.display());
        }
        Ok(Normalisation::Range { low, high })
    }

    fn file_name(&self, scan: &Scan, sampled: &[usize]) -> String {
        let mut hash = Sha256::new();
        for &i in sampled {
            hash.update(scan.path(i).as_os_str().as_encoded_bytes());
            scan.stamp(i).0.iter().for_each(|v| hash.update(v.to_le_bytes()));
        }
        self.percentile.iter().for_each(|v| hash.update(v.to_le_bytes()));
        hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect::<String>() + ".levels"
    }
}

/// As many as are measured, evenly spread; all where there are no more.
fn sample(images: &[usize]) -> Vec<usize> {
    let count = images.len().min(SAMPLED);
    (0..count).map(|i| images[i * images.len() / count]).collect()
}

/// `low high`.
fn known(file: &Path) -> Option<[f64; 2]> {
    let text = std::fs::read_to_string(file).ok()?;
    let (low, high) = text.strip_suffix('\n')?.split_once(' ')?;
    let range = [low.parse().ok()?, high.parse().ok()?];
    (range[0] >= 0.0 && range[1] > range[0] && range[1] <= 65_535.0).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataConfig, ScanOptions, Split, YoloDataset, scan};
    use burn::data::dataset::Dataset;
    use image::{ImageBuffer, Luma};

    #[test]
    fn as_many_are_measured_as_is_said() {
        for (images, count) in [(0, 0), (1, 1), (256, 256), (257, 256), (511, 256), (512, 256), (10_000, 256)] {
            let sampled = sample(&(0..images).collect::<Vec<_>>());
            let steps: Vec<usize> = sampled.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert_eq!(sampled.len(), count, "{images}");
            assert!(steps.iter().all(|step| [images / 256, images.div_ceil(256)].contains(step)), "{images}: {steps:?}");
        }
    }

    /// Eight frames of counts around 3000 + 100 i, each with one hot pixel.
    fn thermal(dir: &Path) -> DataConfig {
        std::fs::create_dir_all(dir.join("images")).unwrap();
        for i in 0..8u16 {
            let frame =
                ImageBuffer::from_fn(40, 40, |x, y| Luma([if (x, y) == (3, 3) { 60_000 } else { 3000 + 100 * i + (x + y) as u16 % 4 }]));
            frame.save(dir.join(format!("images/{i}.tiff"))).unwrap();
        }
        DataConfig::parse("train: images\nval: images\nnames: [a]\n", &dir.join("data.yaml")).unwrap()
    }

    #[test]
    fn one_range_for_all_frames_keeps_what_is_absolute() {
        let dir = tempfile::tempdir().unwrap();
        let config = thermal(dir.path());
        let cache = dir.path().join("cache");
        let options = ScanOptions { cache_dir: Some(cache.clone()), ..ScanOptions::default() };
        let scanned = scan(&config, Split::Train, &options, &|_, _| {}).unwrap();
        assert!(scanned.images.iter().all(|i| i.deep && i.gray));
        let measured = Levels::default().resolve(&scanned, Some(&cache)).unwrap();
        assert_eq!(measured, Normalisation::Range { low: 3000.0, high: 3703.0 }, "the hot pixels are beyond the percentile");
        let gray = |normalisation, i: usize| YoloDataset::new(scanned.clone(), 3, normalisation).get(i).unwrap().frame.pixels[0];
        let grays: Vec<u8> = (0..8).map(|i| gray(measured, i)).collect();
        assert!(grays.windows(2).all(|w| w[0] + 30 < w[1]), "{grays:?}");
        let own = Levels { per_frame: true, percentile: [0.0, 100.0], ..Levels::default() }.resolve(&scanned, None).unwrap();
        assert!((0..8).all(|i| gray(own, i) == 0), "each frame by itself: the temperature is lost");
        let given = Levels { range: Some([0.0, 65_535.0]), ..Levels::default() }.resolve(&scanned, None).unwrap();
        assert_eq!(gray(given, 0), 12);

        // Remembered while the sampled files are the same, and never believed blindly.
        let file = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension().unwrap() == "levels").unwrap();
        std::fs::write(&file, "1 2\n").unwrap();
        assert_eq!(Levels::default().resolve(&scanned, Some(&cache)).unwrap(), Normalisation::Range { low: 1.0, high: 2.0 });
        std::fs::write(&file, "1 x\n").unwrap();
        assert_eq!(Levels::default().resolve(&scanned, Some(&cache)).unwrap(), measured);
        ImageBuffer::from_pixel(40, 41, Luma([9000u16])).save(dir.path().join("images/0.tiff")).unwrap();
        assert_ne!(Levels::default().resolve(&scanned, Some(&cache)).unwrap(), measured);
    }

    /// At the next start they may be readable, with the sizes and times that they had.
    #[test]
    fn a_range_without_some_of_the_frames_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let config = thermal(dir.path());
        let scanned = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        let cache = dir.path().join("cache");
        std::fs::create_dir(&cache).unwrap();
        let measured = || Levels::default().resolve(&scanned, Some(&cache)).unwrap();
        let remembered = || std::fs::read_dir(&cache).unwrap().count();
        let frame = dir.path().join("images/7.tiff");
        let whole = std::fs::read(&frame).unwrap();
        std::fs::write(&frame, "torn since it was scanned").unwrap();
        assert_eq!((measured(), remembered()), (Normalisation::Range { low: 3000.0, high: 3603.0 }, 0));
        std::fs::write(&frame, whole).unwrap();
        assert_eq!((measured(), remembered()), (Normalisation::Range { low: 3000.0, high: 3703.0 }, 1));
    }

    #[cfg(unix)]
    #[test]
    fn frames_that_changed_under_unchanged_sizes_and_times_are_measured_again() {
        let dir = tempfile::tempdir().unwrap();
        let config = thermal(dir.path());
        let cache = dir.path().join("cache");
        let options = ScanOptions { cache_dir: Some(cache.clone()), ..ScanOptions::default() };
        let scanned = scan(&config, Split::Train, &options, &|_, _| {}).unwrap();
        let measured = || Levels::default().resolve(&scanned, Some(&cache)).unwrap();
        assert_eq!(measured(), Normalisation::Range { low: 3000.0, high: 3703.0 });
        let brightest = std::fs::read(dir.path().join("images/7.tiff")).unwrap();
        crate::data::record::tests::replace_unseen(&dir.path().join("images/0.tiff"), &brightest);
        assert_eq!(measured(), Normalisation::Range { low: 3100.0, high: 3703.0 });
    }
}
