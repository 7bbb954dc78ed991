//! From a `data.yaml` to batches of pixels and boxes.
//!
//! The way of one image: [`yaml`] names the sources, [`listing`] finds the files, [`mod@scan`] checks them (with [`cache`] beside it), [`dataset`]
//! decodes one ([`image`]), [`mod@augment`] or [`letterbox`] brings it to the network's size, [`batch`] stacks them. [`sample`] makes a data
//! set where there is none.
//!
//! Two promises hold everywhere here. Nothing in a user's dataset is ever modified. A batch is a pure function of (seed, epoch, indices):
//! every draw is a hash ([`rng`]), so the number of threads, their timing and the order of calls cannot change a pixel.

pub mod augment;
pub mod batch;
pub mod cache;
mod cached;
pub mod cutmix;
pub mod dataset;
mod error;
mod frame;
pub mod header;
pub mod hsv;
pub mod image;
mod item;
pub mod labels;
pub mod letterbox;
pub mod listing;
pub mod mosaic;
pub mod perspective;
mod raster;
mod record;
pub mod rng;
pub mod sample;
mod sample_spec;
pub mod scan;
mod scene;
pub(crate) mod stages;
mod strength;
mod thermal;
pub mod yaml;

pub use augment::{Sample, TrainView, augment};
pub use batch::{Batch, Target, val_batch};
pub use cached::{DiskCache, RamCache};
pub use dataset::{RectBatch, Reordered, YoloDataset, rect_batches};
pub use error::DataError;
pub use frame::{Frame, Size};
pub use image::{decode, decode_file};
pub use item::Item;
pub use letterbox::{Letterbox, letterbox};
pub use record::BadFile;
pub use sample_spec::SampleSpec;
pub use scan::{Scan, ScanOptions, scan};
pub use strength::AugmentConfig;
pub use yaml::{DataConfig, Split};
