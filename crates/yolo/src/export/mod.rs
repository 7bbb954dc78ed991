//! A detector as files that other programs read: ONNX for runtimes, `.pt` for Ultralytics, safetensors for the rest and for us.
//!
//! Each function makes the bytes of one file; where they go is the caller's business. What is said beside the weights is an [`About`]. Which versions
//! of which programs have read these files is written in `docs/export.md`.

mod about;
mod error;
mod onnx;
mod pt;
mod safetensors;
mod state;

pub use about::{About, iso_date};
pub use error::ExportError;
pub use onnx::{OPSET, OnnxOptions, Suppression, to_onnx};
pub use pt::to_pt;
pub use safetensors::to_weights;
