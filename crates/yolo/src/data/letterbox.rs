//! Bringing a frame to the network's size without distorting it: long side to `imgsz` (also upwards), the rest filled with 114 (a difference with 128).
//!
//! Scaling is bilinear with half-pixel centres and no low-pass filter, the rule of OpenCV's INTER_LINEAR, which pretrained weights have
//! seen. Training pads to a square; validation pads to the rectangle of its batch (`scale_up` false there: an image is never enlarged
//! beyond `imgsz`).

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::frame::{Frame, Size};

/// How a frame came to its place: `network = original * ratio + pad`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Letterbox {
    /// Network pixels per original pixel, x and y (they differ by rounding).
    pub ratio: [f32; 2],
    /// Left and top padding, network pixels.
    pub pad: [f32; 2],
    /// Size of the image file.
    pub original: Size,
}

impl Letterbox {
    /// Of an image that stays as it is.
    pub fn none(original: Size) -> Self {
        Self { ratio: [1.0, 1.0], pad: [0.0, 0.0], original }
    }

    /// A box in network pixels (`xyxy`) as a box in the original image, clipped to it.
    pub fn to_original(&self, [x1, y1, x2, y2]: [f32; 4]) -> [f32; 4] {
        let x = |v: f32| ((v - self.pad[0]) / self.ratio[0]).clamp(0.0, self.original.width as f32);
        let y = |v: f32| ((v - self.pad[1]) / self.ratio[1]).clamp(0.0, self.original.height as f32);
        [x(x1), y(y1), x(x2), y(y2)]
    }
}

/// `frame` resized to exactly `width` x `height`, bilinear.
///
/// # Errors
/// [`DataError::Invalid`] for a size of 0 or pixels that do not fill the frame.
pub fn resize(frame: &Frame, width: usize, height: usize) -> Result<Frame, DataError> {
    if (frame.width, frame.height) == (width, height) {
        return Ok(frame.clone());
    }
    let fault =
        |e: &dyn std::fmt::Display| DataError::Invalid(format!("resizing {}x{} to {width}x{height}: {e}", frame.width, frame.height));
    if width == 0 || height == 0 || frame.pixels.len() != frame.channels * frame.width * frame.height {
        return Err(fault(&"a size is 0 or the pixels do not fill the frame"));
    }
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Interpolation(FilterType::Bilinear));
    let mut resizer = Resizer::new();
    let mut pixels = Vec::with_capacity(frame.channels * width * height);
    // With types of pixels, and not images that carry theirs: the latter would compile every filter for all thirteen.
    let mut target = TypedImage::<U8>::new(width as u32, height as u32);
    for c in 0..frame.channels {
        let source = TypedImageRef::<U8>::from_buffer(frame.width as u32, frame.height as u32, frame.plane(c)).map_err(|e| fault(&e))?;
        resizer.resize_typed(&source, &mut target, &options).map_err(|e| fault(&e))?;
        pixels.extend(target.pixels().iter().map(|p| p.0));
    }
    Ok(Frame { pixels, channels: frame.channels, width, height, difference: frame.difference })
}

/// The size of an image whose long side has become `imgsz`: each side times `imgsz / max(w, h)`, rounded up.
pub fn fitted(size: Size, imgsz: u32) -> Size {
    let ratio = f64::from(imgsz) / f64::from(size.width.max(size.height).max(1));
    let side = |v: u32| ((f64::from(v) * ratio).ceil() as u32).clamp(1, imgsz);
    Size { width: side(size.width), height: side(size.height) }
}

/// `frame` with its long side at `imgsz`.
///
/// # Errors
/// As [`resize`].
pub fn fit(frame: &Frame, imgsz: u32) -> Result<Frame, DataError> {
    let size = fitted(Size { width: frame.width as u32, height: frame.height as u32 }, imgsz);
    resize(frame, size.width as usize, size.height as usize)
}

/// `frame` centred in `shape`, scaled down to fit (and up if `scale_up`), padded. `original` is the size of the image file.
///
/// # Errors
/// As [`resize`].
pub fn letterbox(frame: &Frame, original: Size, shape: Size, scale_up: bool) -> Result<(Frame, Letterbox), DataError> {
    let mut ratio = (f64::from(shape.width) / frame.width as f64).min(f64::from(shape.height) / frame.height as f64);
    if !scale_up {
        ratio = ratio.min(1.0);
    }
    let scaled = |v: usize| ((v as f64 * ratio).round_ties_even() as usize).max(1);
    let (width, height) = (scaled(frame.width), scaled(frame.height));
    // An odd remainder goes to the right and the bottom.
    let before = |room: u32, used: usize| ((f64::from(room) - used as f64) / 2.0 - 0.1).round().max(0.0) as usize;
    let (left, top) = (before(shape.width, width), before(shape.height, height));
    let mut out = frame.blank(frame.channels, shape.width as usize, shape.height as usize);
    out.paste(&resize(frame, width, height)?, (0, 0), (left, top), width, height);
    let ratio = [width as f32 / original.width as f32, height as f32 / original.height as f32];
    Ok((out, Letterbox { ratio, pad: [left as f32, top as f32], original }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::frame::FILL;

    fn pattern(width: usize, height: usize) -> Frame {
        let pixels = (0..width * height).map(|i| ((i % width) * 37 + (i / width) * 91 + (i * i) % 53) as u8).collect();
        Frame { pixels, channels: 1, width, height, difference: false }
    }

    /// INTER_LINEAR by its definition: clamped taps at half-pixel centres.
    fn reference(f: &Frame, width: usize, height: usize) -> Vec<f64> {
        let tap = |v: f64, n: usize| {
            let v = v.clamp(0.0, n as f64 - 1.0);
            (v.floor() as usize, (v.floor() as usize + 1).min(n - 1), v - v.floor())
        };
        let mut out = Vec::new();
        for y in 0..height {
            let (y0, y1, fy) = tap((y as f64 + 0.5) * f.height as f64 / height as f64 - 0.5, f.height);
            for x in 0..width {
                let (x0, x1, fx) = tap((x as f64 + 0.5) * f.width as f64 / width as f64 - 0.5, f.width);
                let p = |x: usize, y: usize| f64::from(f.pixels[y * f.width + x]);
                out.push((p(x0, y0) * (1.0 - fx) + p(x1, y0) * fx) * (1.0 - fy) + (p(x0, y1) * (1.0 - fx) + p(x1, y1) * fx) * fy);
            }
        }
        out
    }

    #[test]
    fn resizing_is_inter_linear() {
        let frame = pattern(48, 36);
        for (w, h) in [(96, 72), (80, 60), (40, 30), (20, 15), (7, 50)] {
            let got = resize(&frame, w, h).unwrap();
            assert_eq!(got.pixels.len(), w * h);
            for (&got, expected) in got.pixels.iter().zip(reference(&frame, w, h)) {
                assert!((f64::from(got) - expected).abs() <= 1.5, "{w}x{h}: {got} for {expected}");
            }
        }
    }

    #[test]
    fn known_sizes() {
        let size = |width, height| Size { width, height };
        assert_eq!(fitted(size(384, 288), 640), size(640, 480));
        assert_eq!(fitted(size(384, 307), 320), size(320, 256));
        assert_eq!(fitted(size(1000, 3), 64), size(64, 1));
        let frame = fit(&pattern(384, 288), 640).unwrap();
        let (out, lb) = letterbox(&frame, size(384, 288), size(672, 512), false).unwrap();
        assert_eq!((out.width, out.height), (672, 512));
        assert_eq!((lb.pad, lb.ratio), ([16.0, 16.0], [640.0 / 384.0, 480.0 / 288.0]));
        assert_eq!(lb.to_original([16.0, 16.0, 656.0, 496.0]), [0.0, 0.0, 384.0, 288.0]);
        let (out, lb) = letterbox(&frame, size(384, 288), Size::square(640), true).unwrap();
        assert_eq!(
            (lb.pad, out.pixels[79 * 640], out.pixels[80 * 640] != FILL || out.pixels[80 * 640 + 1] != FILL),
            ([0.0, 80.0], FILL, true)
        );
    }

    #[test]
    fn odd_padding_and_scale_up() {
        let frame = pattern(20, 13);
        let (_, lb) = letterbox(&frame, Size { width: 20, height: 13 }, Size::square(20), true).unwrap();
        assert_eq!(lb.pad, [0.0, 3.0], "3 above, 4 below");
        let (_, lb) = letterbox(&frame, Size { width: 20, height: 13 }, Size::square(40), false).unwrap();
        assert_eq!((lb.pad, lb.ratio), ([10.0, 13.0], [1.0, 1.0]));
        let (_, lb) = letterbox(&frame, Size { width: 20, height: 13 }, Size::square(40), true).unwrap();
        assert_eq!((lb.pad, lb.ratio), ([0.0, 7.0], [2.0, 2.0]));
    }
}
