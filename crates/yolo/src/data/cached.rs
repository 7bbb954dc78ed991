//! `cache=ram` and `cache=disk`: images decoded and fitted to `imgsz` once. Batches are the same bits with and without.
//!
//! On disk they stand in the user's cache folder, never in the dataset; a file's name hashes the image's path, size and time and the
//! size it was fitted to, so a changed image is decoded anew and datasets share nothing by accident. Remove the folder to free the space.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bellows_learner::memory::free_memory;
use bellows_runs::write_atomic;
use burn::data::dataset::{Dataset, DatasetError};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::dataset::YoloDataset;
use super::error::DataError;
use super::frame::Frame;
use super::item::Item;
use super::letterbox::fit;

fn load<D: Dataset<Item>>(dataset: &D, index: usize, imgsz: u32) -> Result<Item, DataError> {
    let item = dataset.get(index).map_err(|source| DataError::Item { index, source })?;
    Ok(Item { frame: fit(&item.frame, imgsz)?, ..item })
}

/// Bytes that all items take, from 30 of them, with half as much again for safety.
fn estimate(total: usize, load: impl Fn(usize) -> Result<Item, DataError>) -> Result<u64, DataError> {
    let (mut sampled, mut bytes) = (0u64, 0u64);
    for index in (0..total).step_by(total.div_ceil(30).max(1)) {
        bytes += load(index)?.frame.pixels.len() as u64;
        sampled += 1;
    }
    Ok((bytes * total as u64).checked_div(sampled).unwrap_or(0) * 3 / 2)
}

fn in_parallel<T: Send>(
    total: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
    make: impl Fn(usize) -> Result<T, DataError> + Sync,
) -> Result<Vec<T>, DataError> {
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
        let load = |index| load(dataset, index, imgsz);
        let need = estimate(total, load)?;
        if let Some(free) = free_memory().filter(|&free| need > free) {
            return Err(DataError::Memory { need_mib: need >> 20, free_mib: free >> 20 });
        }
        Ok(Self { items: in_parallel(total, progress, load)? })
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

/// `cache=disk`: a scanned split whose images are decoded once, into files.
#[derive(Debug)]
pub struct DiskCache {
    dataset: Arc<YoloDataset>,
    files: Vec<PathBuf>,
}

/// Precedes the pixels: width, height, channels.
const HEADER: usize = 12;

impl DiskCache {
    /// Decodes what `dir` does not hold yet. The space needed is estimated first and compared with what is free (on Unix).
    ///
    /// # Errors
    /// [`DataError::Disk`], the first image that cannot be read, or a file that cannot be written.
    pub fn new(dataset: Arc<YoloDataset>, dir: &Path, imgsz: u32, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Self, DataError> {
        std::fs::create_dir_all(dir).map_err(DataError::io(dir))?;
        let total = dataset.len();
        let files: Vec<PathBuf> = (0..total).map(|i| dir.join(file_name(&dataset, i, imgsz))).collect();
        let absent = files.par_iter().filter(|file| !file.exists()).count();
        let need = estimate(total, |index| load(&*dataset, index, imgsz))? * absent as u64 / total.max(1) as u64;
        if let Some(free) = free_space(dir).filter(|&free| need > free) {
            return Err(DataError::Disk { dir: dir.into(), need_mib: need >> 20, free_mib: free >> 20 });
        }
        in_parallel(total, progress, |index| {
            if files[index].exists() { Ok(()) } else { write(&files[index], &load(&*dataset, index, imgsz)?.frame) }
        })?;
        Ok(Self { dataset, files })
    }
}

impl Dataset<Item> for DiskCache {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let frame = read(&self.files[index]).map_err(DatasetError::new)?;
        Ok(Item { original: self.dataset.size(index), ..self.dataset.item(index, frame) })
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

fn file_name(dataset: &YoloDataset, index: usize, imgsz: u32) -> String {
    let image = dataset.scan().path(index);
    let mut hash = Sha256::new();
    hash.update(image.canonicalize().unwrap_or_else(|_| image.clone()).as_os_str().as_encoded_bytes());
    let stamp = dataset.scan().stamp(index);
    stamp.0.iter().filter(|&&v| v != u64::MAX).for_each(|v| hash.update(v.to_le_bytes()));
    hash.update(imgsz.to_le_bytes());
    hash.update(dataset.channels().to_le_bytes());
    if let Some(levels) = dataset.levels(index) {
        hash.update(format!("{levels:?}"));
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect::<String>() + ".raw"
}

/// Whole or not at all: a name that exists holds what it should.
fn write(file: &Path, frame: &Frame) -> Result<(), DataError> {
    let mut bytes = Vec::with_capacity(HEADER + frame.pixels.len());
    [frame.width, frame.height, frame.channels].iter().for_each(|&v| bytes.extend((v as u32).to_le_bytes()));
    bytes.extend_from_slice(&frame.pixels);
    Ok(write_atomic(file, &bytes)?)
}

fn read(file: &Path) -> Result<Frame, DataError> {
    let mut bytes = std::fs::read(file).map_err(DataError::io(file))?;
    let damaged = || DataError::Invalid(format!("{}: damaged; remove it to have it made again", file.display()));
    let header = bytes.get(..HEADER).ok_or_else(damaged)?;
    let mut numbers = header.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let mut next = || numbers.next().unwrap_or(0);
    let (width, height, channels) = (next(), next(), next());
    if width.checked_mul(height).and_then(|n| n.checked_mul(channels)) != Some(bytes.len() - HEADER) {
        return Err(damaged());
    }
    bytes.drain(..HEADER);
    Ok(Frame { pixels: bytes, channels, width, height, difference: false })
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
