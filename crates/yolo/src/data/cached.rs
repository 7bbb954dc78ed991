//! `cache=ram` and `cache=disk`: images decoded and fitted to `imgsz` once. Batches are the same bits with and without.
//!
//! On disk they stand in the user's cache folder, never in the dataset; a file's name hashes the image's path, size and time and the
//! size it was fitted to, so a changed image is decoded anew and datasets share nothing by accident. Remove the folder to free the space.
//! Files are not flushed, which would take twenty times as long as decoding; one that a power cut has torn is told by its length or its sum, and made
//! again in its place. So is that of an image which the system has changed since (on Unix): it is in the sum and not in the name, for links and
//! permissions are changes too, and the space of what is kept would be taken twice.
//!
//! An image that cannot be decoded is left out here, and fails whoever asks for it, as it does without a cache.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellows_learner::memory::free_memory;
use bellows_runs::{open_regular, sweep_dead, write_unflushed};
use burn::data::dataset::{Dataset, DatasetError};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::dataset::YoloDataset;
use super::error::DataError;
use super::frame::Frame;
use super::item::Item;
use super::letterbox::fit;
use super::record::Stamp;

/// MiB that are needed and that are free, where so many bytes are too few: rounded apart, for what needs any does not need 0.
fn lacking(need: u64, free: u64) -> Option<(u64, u64)> {
    (need > free).then_some((need.div_ceil(1 << 20), free >> 20))
}

fn load<D: Dataset<Item>>(dataset: &D, index: usize, imgsz: u32) -> Result<Item, DatasetError> {
    let item = dataset.get(index)?;
    Ok(Item { frame: fit(&item.frame, imgsz).map_err(DatasetError::new)?, ..item })
}

/// Bytes that all items take, from those of 30 that can be read, with half as much again for safety.
fn estimate(total: usize, load: impl Fn(usize) -> Result<Item, DatasetError>) -> u64 {
    let (mut sampled, mut bytes) = (0u64, 0u64);
    for item in (0..total).step_by(total.div_ceil(30).max(1)).filter_map(|index| load(index).ok()) {
        bytes += item.frame.pixels.len() as u64;
        sampled += 1;
    }
    (bytes * total as u64).checked_div(sampled).unwrap_or(0) * 3 / 2
}

fn in_parallel<T: Send, C: FromParallelIterator<T>>(
    total: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
    make: impl Fn(usize) -> T + Sync,
) -> C {
    let done = AtomicU64::new(0);
    let items = (0..total).into_par_iter().map(|index| {
        let item = make(index);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, total as u64);
        item
    });
    items.collect()
}

/// `cache=ram`: every item of a dataset, decoded and resized to `imgsz` once. Batches are the same bits with and without it.
#[derive(Debug)]
pub struct RamCache {
    /// Or why there is none.
    items: Vec<Result<Item, String>>,
}

impl RamCache {
    /// Reads all of `dataset`. The memory needed is estimated from 30 items, with half as much again for safety, and compared with what is
    /// free before anything is read (where the system tells).
    ///
    /// # Errors
    /// [`DataError::Memory`].
    pub fn new<D: Dataset<Item>>(dataset: &D, imgsz: u32, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Self, DataError> {
        let total = dataset.len();
        let load = |index| load(dataset, index, imgsz);
        let need = estimate(total, load);
        if let Some((need_mib, free_mib)) = free_memory().and_then(|free| lacking(need, free)) {
            return Err(DataError::Memory { need_mib, free_mib });
        }
        Ok(Self { items: in_parallel(total, progress, |index| load(index).map_err(|error| error.to_string())) })
    }
}

impl Dataset<Item> for RamCache {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        self.items[index].clone().map_err(|reason| DatasetError::new(DataError::Invalid(reason)))
    }

    fn len(&self) -> usize {
        self.items.len()
    }
}

/// `cache=disk`: a scanned split whose images are decoded once, into files.
#[derive(Debug)]
pub struct DiskCache {
    dataset: Arc<YoloDataset>,
    files: Vec<PathBuf>,
    /// By which the sums of the files' pixels are turned.
    changes: Vec<u64>,
    imgsz: u32,
}

/// Bytes of width, height and channels.
const SIZES: usize = 12;

/// Precedes the pixels: the sizes, and the sum of the pixels.
const HEADER: usize = SIZES + 8;

impl DiskCache {
    /// Decodes what `dir` does not hold yet, and removes what dead processes were writing there. The space needed is estimated first and compared with what is free (on Unix).
    ///
    /// # Errors
    /// [`DataError::Disk`], or a file that cannot be written.
    pub fn new(dataset: Arc<YoloDataset>, dir: &Path, imgsz: u32, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Self, DataError> {
        std::fs::create_dir_all(dir).map_err(DataError::io(dir))?;
        sweep_dead(dir);
        let total = dataset.len();
        let stamps: Vec<Stamp> = (0..total).map(|i| dataset.scan().stamp(i)).collect();
        let files: Vec<PathBuf> = stamps.iter().enumerate().map(|(i, stamp)| dir.join(file_name(&dataset, i, *stamp, imgsz))).collect();
        let changes: Vec<u64> = stamps.into_iter().map(change).collect();
        let whole: Vec<bool> = files.par_iter().map(|file| is_whole(file)).collect();
        let absent = whole.iter().filter(|whole| !**whole).count();
        let need = estimate(total, |index| load(&*dataset, index, imgsz)) * absent as u64 / total.max(1) as u64;
        if let Some((need_mib, free_mib)) = free_space(dir).and_then(|free| lacking(need, free)) {
            return Err(DataError::Disk { dir: dir.into(), need_mib, free_mib });
        }
        let keep = |index: usize| match load(&*dataset, index, imgsz) {
            Ok(item) => write(&files[index], &item.frame, changes[index]),
            Err(_) => Ok(()),
        };
        let keep = |index: usize| if whole[index] { Ok(()) } else { keep(index) };
        in_parallel::<_, Result<(), DataError>>(total, progress, keep)?;
        Ok(Self { dataset, files, changes, imgsz })
    }
}

impl Dataset<Item> for DiskCache {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        match read(&self.files[index], self.changes[index]) {
            Some(frame) => Ok(Item { original: self.dataset.size(index), ..self.dataset.item(index, frame) }),
            None => {
                let item = load(&*self.dataset, index, self.imgsz)?;
                // For the next time; where it cannot be written, that is as slow as this one.
                let _ = write(&self.files[index], &item.frame, self.changes[index]);
                Ok(item)
            }
        }
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

fn file_name(dataset: &YoloDataset, index: usize, stamp: Stamp, imgsz: u32) -> String {
    let image = dataset.scan().path(index);
    let mut hash = Sha256::new();
    hash.update(image.canonicalize().unwrap_or_else(|_| image.clone()).as_os_str().as_encoded_bytes());
    stamp.0[..2].iter().filter(|&&v| v != u64::MAX).for_each(|v| hash.update(v.to_le_bytes()));
    hash.update(imgsz.to_le_bytes());
    hash.update(dataset.channels().to_le_bytes());
    if let Some(levels) = dataset.levels(index) {
        hash.update(format!("{levels:?}"));
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect::<String>() + ".raw"
}

/// When the system changed the image last, as one number; 0 where it does not tell.
fn change(stamp: Stamp) -> u64 {
    let [.., s, ns] = stamp.0;
    if s == u64::MAX { 0 } else { s.wrapping_mul(1_000_000_000).wrapping_add(ns) }
}

fn write(file: &Path, frame: &Frame, change: u64) -> Result<(), DataError> {
    let mut bytes = Vec::with_capacity(HEADER + frame.pixels.len());
    [frame.width, frame.height, frame.channels].iter().for_each(|&v| bytes.extend((v as u32).to_le_bytes()));
    bytes.extend((sum(&frame.pixels) ^ change).to_le_bytes());
    bytes.extend_from_slice(&frame.pixels);
    Ok(write_unflushed(file, &bytes)?)
}

/// What pixels come to, eight bytes at a time: of what a power cut left the length may be right and the rest zeros.
fn sum(pixels: &[u8]) -> u64 {
    let (words, rest) = pixels.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    // Turned and multiplied, so that it matters where a word stands, and that there are zeros.
    let add = |sum: u64, word: &[u8; 8]| (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    words.iter().chain([&last]).fold(pixels.len() as u64, add)
}

/// Width, height and channels of a file with this header, if it is `length` bytes long, as such a file is.
fn sizes(header: &[u8; HEADER], length: u64) -> Option<[usize; 3]> {
    let sizes: [u32; 3] = std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|k| header[4 * i + k])));
    let pixels = sizes.iter().try_fold(1, |n: u64, &size| n.checked_mul(size.into()))?;
    (pixels > 0 && length.checked_sub(HEADER as u64) == Some(pixels)).then(|| sizes.map(|size| size as usize))
}

/// Whether a file is there and as long as it says; its sum is looked at when it is read.
fn is_whole(file: &Path) -> bool {
    let look = || {
        let mut file = open_regular(file)?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        Ok::<_, std::io::Error>(sizes(&header, file.metadata()?.len()).is_some())
    };
    look().unwrap_or(false)
}

/// What a file holds; none of one that is not there, is not whole, or is of the image before it changed.
fn read(file: &Path, change: u64) -> Option<Frame> {
    let mut bytes = Vec::new();
    open_regular(file).ok()?.read_to_end(&mut bytes).ok()?;
    let (header, pixels) = bytes.split_first_chunk()?;
    let [width, height, channels] = sizes(header, bytes.len() as u64)?;
    if header[SIZES..] != (sum(pixels) ^ change).to_le_bytes() {
        return None;
    }
    bytes.drain(..HEADER);
    Some(Frame { pixels: bytes, channels, width, height, difference: false })
}

/// Bytes an ordinary user may still write under `dir`.
#[cfg(unix)]
fn free_space(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail * stat.f_frsize)
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use image::{GrayImage, Luma};

    use super::*;
    use crate::data::{DataConfig, Normalisation, ScanOptions, Split, scan};

    /// Four gray images of 40x30 pixels.
    fn images(dir: &Path) -> Arc<YoloDataset> {
        std::fs::create_dir(dir.join("images")).unwrap();
        for i in 0..4 {
            GrayImage::from_pixel(40, 30, Luma([20 * i])).save(dir.join(format!("images/{i}.bmp"))).unwrap();
        }
        let config = DataConfig::parse("train: images\nval: images\nnames: [a]\n", &dir.join("data.yaml")).unwrap();
        let scanned = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        Arc::new(YoloDataset::new(scanned, 1, Normalisation::Frame { low: 0.5, high: 99.5 }))
    }

    fn on_disk(set: &Arc<YoloDataset>, dir: &Path) -> DiskCache {
        DiskCache::new(set.clone(), &dir.join("cache"), 64, &|_, _| {}).unwrap()
    }

    #[test]
    fn what_needs_anything_does_not_need_nothing() {
        assert_eq!([lacking(1000, 10), lacking((5 << 20) + 1, 5 << 20), lacking(7, 7)], [Some((1, 0)), Some((6, 5)), None]);
    }

    #[test]
    fn an_image_that_cannot_be_decoded_fails_nobody_but_who_asks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        std::fs::write(dir.path().join("images/2.bmp"), "torn since it was scanned").unwrap();
        let (ram, disk) = (RamCache::new(&*set, 64, &|_, _| {}).unwrap(), on_disk(&set, dir.path()));
        let reason = load(&*set, 2, 64).unwrap_err().to_string();
        for cached in [&ram as &dyn Dataset<Item>, &disk] {
            for i in [0, 1, 3] {
                assert_eq!(cached.get(i).unwrap(), load(&*set, i, 64).unwrap());
            }
            assert_eq!(cached.get(2).unwrap_err().to_string(), reason);
            assert_eq!(cached.len(), 4);
        }
        assert_eq!(std::fs::read_dir(dir.path().join("cache")).unwrap().count(), 3);
    }

    #[test]
    fn a_file_of_the_cache_that_is_torn_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        let file = on_disk(&set, dir.path()).files[1].clone();
        let whole = std::fs::read(&file).unwrap();
        let nothing = vec![0; whole.len()];
        for torn in [&b""[..], &whole[..HEADER], &whole[..whole.len() / 2], &nothing[..], &nothing[..HEADER]] {
            std::fs::write(&file, torn).unwrap();
            let cache = on_disk(&set, dir.path());
            assert!(std::fs::read(&file).unwrap() == whole, "{} bytes were taken for whole", torn.len());
            // One that is damaged later is not believed either, and is no reason to end.
            std::fs::write(&file, torn).unwrap();
            assert_eq!(cache.get(1).unwrap(), load(&*set, 1, 64).unwrap());
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("cache")).unwrap().count(), 3, "nothing else is left there");
    }

    /// Whoever opens a pipe for reading waits for one who writes.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_in_place_of_a_file_of_the_cache_is_replaced() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        let file = on_disk(&set, dir.path()).files[1].clone();
        let (told, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let pipe = || {
                std::fs::remove_file(&file).unwrap();
                mkfifoat(CWD, &file, Mode::RUSR | Mode::WUSR).unwrap();
            };
            pipe();
            let cache = on_disk(&set, dir.path());
            let before = file.is_file();
            pipe();
            let same = cache.get(1).unwrap() == load(&*set, 1, 64).unwrap();
            told.send([before, same, file.is_file()])
        });
        assert_eq!(answers.recv_timeout(std::time::Duration::from_secs(20)), Ok([true; 3]));
    }

    #[cfg(unix)]
    #[test]
    fn what_a_dead_process_was_writing_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        std::fs::create_dir(dir.path().join("cache")).unwrap();
        let ours = bellows_runs::part_of(&dir.path().join("cache/a.raw")).unwrap();
        // No process has the highest number.
        let of_the_dead = ours.to_str().unwrap().replace(&format!("-{}-", std::process::id()), "-2147483646-");
        std::fs::write(&ours, "half").unwrap();
        std::fs::write(&of_the_dead, "half").unwrap();
        on_disk(&set, dir.path());
        assert!(ours.exists() && !Path::new(&of_the_dead).exists());
    }

    #[cfg(unix)]
    #[test]
    fn an_image_that_changed_under_an_unchanged_size_and_time_is_decoded_anew() {
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        let before = on_disk(&set, dir.path()).get(1).unwrap();
        let other = std::fs::read(dir.path().join("images/3.bmp")).unwrap();
        crate::data::record::tests::replace_unseen(&dir.path().join("images/1.bmp"), &other);
        let cache = on_disk(&set, dir.path());
        let now = cache.get(1).unwrap();
        assert!(now == load(&*set, 1, 64).unwrap() && now != before);
        assert_eq!(read(&cache.files[1], cache.changes[1]).as_ref(), Some(&now.frame), "it is kept in the other's place");
        assert_eq!(std::fs::read_dir(dir.path().join("cache")).unwrap().count(), 4);
    }

    #[test]
    fn a_file_of_the_right_length_with_other_pixels_is_made_again_when_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let set = images(dir.path());
        let file = on_disk(&set, dir.path()).files[3].clone();
        let whole = std::fs::read(&file).unwrap();
        for from in [HEADER, whole.len() / 2, whole.len() - 1] {
            let mut torn = whole.clone();
            torn[from..].fill(0);
            std::fs::write(&file, &torn).unwrap();
            assert_eq!(on_disk(&set, dir.path()).get(3).unwrap(), load(&*set, 3, 64).unwrap());
            assert!(std::fs::read(&file).unwrap() == whole, "the next run finds it whole");
        }
        let pixels: Vec<u8> = (1..12).collect();
        for at in 0..pixels.len() {
            let mut other = pixels.clone();
            other[at] = 0;
            assert_ne!(sum(&other), sum(&pixels), "byte {at}");
        }
    }
}
