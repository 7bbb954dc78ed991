//! What a CubeCL device is asked to find anchors for: the objects of a batch, and the anchors of its images.

use burn::backend::DispatchDevice;
use burn::tensor::Device;

use crate::parts::has_others;

/// An object of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Its image in the batch.
    pub image: u32,
    /// Its class.
    pub class: u32,
    /// Two corners in pixels. One whose corners sum to zero or less is padding, which no anchor learns.
    pub xyxy: [f32; 4],
}

/// The objects of a batch, the anchors of each of its images, and what terms are multiplied by.
#[derive(Clone, Debug)]
pub struct Objects {
    /// In the order of their images.
    pub all: Vec<Object>,
    /// Centre of every anchor's cell, x and y in cells of its level.
    pub centres: Vec<[f32; 2]>,
    /// Pixels to a cell of its level.
    pub strides: Vec<f32>,
    /// Factors of the box, class and distribution terms.
    pub gains: [f32; 3],
}

/// Whether [`assigned_terms`](super::assigned_terms) takes outputs of this device: those of a CubeCL device, unless others hold parts of their batch, for what
/// its terms are divided by is then known on the host alone.
pub fn assigns(device: &Device) -> bool {
    matches!(device.clone().without_autodiff().as_dispatch(), DispatchDevice::Cube(_)) && !has_others()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_assigns_nothing() {
        assert!(!assigns(&Device::flex()) && !assigns(&Device::flex().autodiff()));
    }
}
