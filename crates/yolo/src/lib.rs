//! YOLOv8: model, loss, data, metrics and plots.

pub mod boxes;
pub mod data;
