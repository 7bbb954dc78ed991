//! From a `data.yaml` to batches of pixels and boxes.
//!
//! The way of one image: `load` finds out what a data set is (a [`DataConfig`], from a YAML or from the `layouts` that tools export), `listing`
//! finds the files (`coco` reads COCO's), [`mod@scan`] checks them (with `cache` beside it), [`levels`] measures 16-bit ones, [`dataset`] decodes
//! one ([`image`]), [`mod@augment`] or [`mod@letterbox`] brings it to the network's size, [`batch`] stacks them. [`sample`] makes a data set where there
//! is none.
//!
//! Two promises hold everywhere here. Nothing in a user's dataset is ever modified. A batch is a pure function of (seed, epoch, indices):
//! every draw is a hash ([`rng`]), so the number of threads, their timing and the order of calls cannot change a pixel.

mod annotated;
mod areas;
pub mod augment;
pub mod batch;
mod box_faults;
mod bytes;
mod cache;
mod cached;
mod clips;
mod coco;
pub mod convert;
pub mod cutmix;
pub mod dataset;
mod description;
mod error;
mod film;
mod frame;
mod frame_interval;
mod grouping;
mod hard;
pub mod header;
pub mod hsv;
mod ids;
pub mod image;
mod item;
pub mod labels;
mod layouts;
mod leak;
pub mod letterbox;
pub mod levels;
pub(crate) mod listing;
mod load;
pub mod meta;
mod moment;
pub mod mosaic;
mod natural;
mod normalisation;
pub mod outline;
mod overlap;
mod packed;
pub mod perspective;
mod raster;
mod record;
mod report;
pub mod rng;
pub mod sample;
mod sample_spec;
pub(crate) mod sampler;
pub mod scan;
mod scene;
mod sensor;
pub mod shard;
mod stack;
pub(crate) mod stages;
pub mod stats;
mod strength;
mod succession;
mod thermal;
mod tile;
mod yaml;

pub(crate) use areas::Areas;
pub use augment::{Sample, TrainView, augment};
pub use batch::{Batch, Target, val_batch};
pub use cached::{DiskCache, RamCache};
#[cfg(test)]
pub(crate) use coco::Id;
pub use dataset::{RectBatch, YoloDataset, rect_batches};
pub use description::{DataConfig, Source, Split};
pub use error::DataError;
pub use frame::{FILL, Frame, NO_DIFFERENCE, Size};
pub use grouping::Grouping;
pub(crate) use ids::CocoIds;
pub use image::{decode, decode_file};
pub use item::Item;
pub use leak::leaks;
pub use letterbox::{Letterbox, letterbox};
pub use levels::Levels;
pub use meta::FrameMeta;
pub(crate) use natural::natural;
pub use normalisation::Normalisation;
pub use outline::Outline;
pub use overlap::overlap;
pub use packed::index_shards;
pub use record::BadFile;
pub use report::report;
pub use sample_spec::{ClipLength, ClipSpec, SampleSpec};
pub use scan::{Scan, ScanOptions, scan};
pub use sensor::SensorConfig;
pub use stack::{Ring, Stack, Stacked};
pub use strength::AugmentConfig;
pub(crate) use succession::{before, gaps};
pub use tile::TileConfig;
