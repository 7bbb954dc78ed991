//! YOLOv8 for detection: model, loss, data, metrics, plots, and the training run that puts them together.
//!
//! [`Training`] is the whole of it: give it [`TrainingData`] (a `data.yaml`, or any Burn `Dataset` of [`data::Item`]), settings
//! ([`config::TrainConfig`]), a device and a run directory.

pub mod bench;
pub mod boxes;
mod checkpoint;
pub mod config;
pub mod data;
pub mod export;
pub mod fit;
mod group_verdict;
mod in_code;
pub mod loss;
pub mod memory;
pub mod metrics;
pub mod model;
mod page;
mod pictures;
pub mod plots;
pub mod predict;
mod predictions;
mod preprocessing;
mod readback;
mod recognise;
mod rect;
mod source;
mod stem;
mod submission;
mod task;
mod template;
mod train;
mod validate;
mod verdict;

pub use checkpoint::{Chosen, Detector, Misfit, WeightFile, weight_file};
pub use page::Page;
pub use predictions::Predictions;
pub use preprocessing::Preprocessing;
pub use rect::Rect;
pub use source::{Progress, SplitData, TrainingData, known_classes, network};
pub use submission::{Submitted, can_submit, write_submission};
pub use task::{DetectionTask, METRICS};
pub use template::Template;
pub use train::{Report, TrainError, Training};
pub use validate::{Case, Kept, Shown, ValSet, Validation, validate, validate_tiled};
pub use verdict::Verdict;
