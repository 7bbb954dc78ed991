//! YOLOv8: model, loss, data, metrics and plots.

pub mod boxes;
pub mod loss;
pub mod model;
pub mod metrics;
pub mod plots;
pub mod data;
