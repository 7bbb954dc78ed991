//! What charts are made of: a canvas with a few strokes, framed axes, smoothing. Which charts there are is the affair of those who draw them.
//!
//! Needs no fonts on the machine: one is embedded (Latin, Greek and Cyrillic; other scripts show as empty boxes). The file extension chooses PNG
//! or JPEG.

mod axes;
mod canvas;
mod smooth;

pub use axes::{Axes, Captions, padded};
pub use canvas::{Align, BLACK, Canvas, FILL, Point, Rgb, Style, WHITE, encode};
pub use smooth::gaussian;

use std::path::PathBuf;

/// Why a picture was not written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The rasteriser refused.
    #[error("cannot draw {path}: {reason}")]
    Draw {
        /// The picture.
        path: PathBuf,
        /// What the rasteriser said.
        reason: String,
    },
    /// The picture could not be encoded.
    #[error("cannot encode {path}")]
    Encode {
        /// The picture.
        path: PathBuf,
        /// The encoder's reason.
        source: image::ImageError,
    },
    /// An image's pixels do not fit its stated size.
    #[error("cannot draw {path}: image {name} has {found} bytes, {expected} wanted for {channels}x{height}x{width}")]
    Pixels {
        /// The picture that was to be drawn.
        path: PathBuf,
        /// The offending image.
        name: String,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        expected: usize,
        /// Stated channels; 1 and 3 can be drawn.
        channels: usize,
        /// Stated height in pixels.
        height: usize,
        /// Stated width in pixels.
        width: usize,
    },
}
