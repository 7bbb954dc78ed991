//! Boxes, labels and detections: the small values that data, loss, metrics and plots share.
//!
//! Two conventions are in use and always named: `xywh` is centre x, centre y, width, height; `xyxy` is two corners.

use serde::{Deserialize, Serialize};

/// One ground-truth object: class index and `xywh` normalised to the image (0..1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// Class index, from 0.
    pub class: u32,
    /// Centre x, centre y, width, height over the image's size.
    pub xywh: [f32; 4],
}

/// One predicted object: `xyxy` in pixels of the network's input, confidence in 0..1, class index.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// Two corners, in pixels.
    pub xyxy: [f32; 4],
    /// Confidence.
    pub score: f32,
    /// Class index, from 0.
    pub class: u32,
}

/// One object that is really there: class index and `xyxy` in the pixels of the predictions it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroundTruth {
    /// Class index, from 0.
    pub class: u32,
    /// Two corners in pixels.
    pub xyxy: [f32; 4],
}

impl GroundTruth {
    /// From a label's normalised `xywh` and the input's size in pixels.
    pub fn new(class: u32, [x, y, w, h]: [f32; 4], [width, height]: [f32; 2]) -> Self {
        Self { class, xyxy: xywh_to_xyxy([x * width, y * height, w * width, h * height]) }
    }
}

/// `xywh` to `xyxy`, same unit.
pub fn xywh_to_xyxy([x, y, w, h]: [f32; 4]) -> [f32; 4] {
    [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
}

/// `xyxy` to `xywh`, same unit.
pub fn xyxy_to_xywh([x1, y1, x2, y2]: [f32; 4]) -> [f32; 4] {
    [(x1 + x2) / 2.0, (y1 + y2) / 2.0, x2 - x1, y2 - y1]
}
