//! How long the making of batches takes, by stage, over all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use burn::data::dataset::{Dataset, DatasetError};

use super::item::Item;

/// Nanoseconds by stage; any thread may add.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    /// Reading and decoding images (or finding them in a cache).
    pub(crate) decode: AtomicU64,
    /// Resizing and augmenting.
    pub(crate) augment: AtomicU64,
    /// Stacking.
    pub(crate) collate: AtomicU64,
}

impl Stages {
    /// Seconds since the last call.
    pub(crate) fn take(&self) -> Vec<(&'static str, f64)> {
        let stages = [("decode", &self.decode), ("augment", &self.augment), ("collate", &self.collate)];
        stages.map(|(name, nanos)| (name, nanos.swap(0, Ordering::Relaxed) as f64 / 1e9)).to_vec()
    }
}

/// Runs `work` and adds its time to `to`.
pub(crate) fn timed<T>(to: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    to.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

/// A dataset that adds the time of its reads to `nanos`.
pub(crate) struct TimedReads<'a> {
    /// The dataset.
    pub(crate) data: &'a dyn Dataset<Item>,
    /// Where to.
    pub(crate) nanos: &'a AtomicU64,
}

impl Dataset<Item> for TimedReads<'_> {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        timed(self.nanos, || self.data.get(index))
    }

    fn len(&self) -> usize {
        self.data.len()
    }
}
