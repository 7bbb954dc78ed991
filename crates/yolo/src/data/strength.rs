//! Which changes of an image are drawn, and how strongly.

use super::sensor::SensorConfig;
use super::stack::Stack;
use super::tile::TileConfig;

/// What is drawn, and how strongly. Names and ranges are the usual ones; defaults are the settings' own.
#[derive(Clone, Debug, PartialEq)]
pub struct AugmentConfig {
    /// Hue shift, fraction of the circle (colour images only).
    pub hsv_h: f64,
    /// Saturation gain, fraction (colour images only).
    pub hsv_s: f64,
    /// Brightness gain, fraction.
    pub hsv_v: f64,
    /// Rotation, +/- degrees.
    pub degrees: f64,
    /// Translation, +/- fraction of the image.
    pub translate: f64,
    /// Scale, 1 +/- this.
    pub scale: f64,
    /// Shear, +/- degrees.
    pub shear: f64,
    /// Perspective, +/- per pixel (0..0.001).
    pub perspective: f64,
    /// Probability of a flip upside down.
    pub flipud: f64,
    /// Probability of a flip left to right.
    pub fliplr: f64,
    /// Probability of swapping red and blue.
    pub bgr: f64,
    /// Probability of a mosaic of four images.
    pub mosaic: f64,
    /// Probability of blending with another sample.
    pub mixup: f64,
    /// Probability of pasting a rectangle of another sample.
    pub cutmix: f64,
    /// What a thermal camera varies.
    pub sensor: SensorConfig,
    /// Which part of the images are cut to tiles.
    pub tile: TileConfig,
    /// Which frames make an image. Where they are several, channels are moments and not colours: nothing is done to colours.
    pub stack: Stack,
    /// False in the last epochs (`close_mosaic`): no mosaic, mixup or cutmix.
    pub mosaic_open: bool,
}
