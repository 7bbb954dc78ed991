//! Pixels on the host: an 8-bit image and its size.

use image::{Rgb, RgbImage};
use serde::{Deserialize, Serialize};

/// The gray of padding.
pub const FILL: u8 = 114;
/// What a difference to a background is where there is none.
pub const NO_DIFFERENCE: u8 = 128;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

impl Size {
    /// A square.
    pub fn square(side: u32) -> Self {
        Self { width: side, height: side }
    }
}

/// An 8-bit image, planar: `pixels` is `[channels, height, width]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Row-major planes, one after the other.
    pub pixels: Vec<u8>,
    /// 1 (gray) or 3 (red, green, blue); of a stack of frames as many as it has.
    pub channels: usize,
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// The first plane is a difference to a background, about [`NO_DIFFERENCE`].
    pub difference: bool,
}

impl Frame {
    /// A frame of one value.
    pub fn filled(channels: usize, width: usize, height: usize, value: u8) -> Self {
        Self { pixels: vec![value; channels * width * height], channels, width, height, difference: false }
    }

    /// What stands outside the picture in plane `c`.
    pub(crate) fn fill(&self, c: usize) -> u8 {
        if self.difference && c == 0 { NO_DIFFERENCE } else { FILL }
    }

    /// Padding alone, with `channels` planes as this frame has them.
    pub(crate) fn blank(&self, channels: usize, width: usize, height: usize) -> Self {
        let mut blank = Self { difference: self.difference, ..Self::filled(channels, width, height, FILL) };
        if self.difference {
            blank.plane_mut(0).fill(NO_DIFFERENCE);
        }
        blank
    }

    /// Width and height.
    pub fn size(&self) -> Size {
        Size { width: self.width as u32, height: self.height as u32 }
    }

    /// As the image crates have it; gray becomes three equal channels.
    pub fn to_rgb(&self) -> RgbImage {
        let [r, g, b] = [0, 1, 2].map(|c: usize| self.plane(c.min(self.channels - 1)));
        let at = |x: u32, y: u32| y as usize * self.width + x as usize;
        RgbImage::from_fn(self.width as u32, self.height as u32, |x, y| Rgb([r, g, b].map(|p| p[at(x, y)])))
    }

    /// Channel `c` as rows.
    pub fn plane(&self, c: usize) -> &[u8] {
        let size = self.width * self.height;
        &self.pixels[c * size..(c + 1) * size]
    }

    /// Channel `c` as rows, to write.
    pub fn plane_mut(&mut self, c: usize) -> &mut [u8] {
        let size = self.width * self.height;
        &mut self.pixels[c * size..(c + 1) * size]
    }

    /// The same picture with `channels` channels: gray repeated three times, or as it is when it has them already. Colour is never made gray here.
    pub fn with_channels(self, channels: usize) -> Self {
        if self.channels == 1 && channels == 3 { Self { pixels: self.pixels.repeat(3), channels: 3, ..self } } else { self }
    }

    /// The luminance of a colour frame (ITU-R BT.601), for networks with one input channel.
    pub fn to_gray(self) -> Self {
        if self.channels == 1 {
            return self;
        }
        let rgb = self.plane(0).iter().zip(self.plane(1)).zip(self.plane(2));
        let luma = |((&r, &g), &b): ((&u8, &u8), &u8)| {
            ((19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b) + 32_768) >> 16) as u8
        };
        Self { pixels: rgb.map(luma).collect(), channels: 1, ..self }
    }

    /// Copies the `width` x `height` rectangle at `from` of `source` (same channels) to `to`. Both rectangles must lie inside.
    pub(crate) fn paste(&mut self, source: &Frame, from: (usize, usize), to: (usize, usize), width: usize, height: usize) {
        let stride = self.width;
        for c in 0..self.channels {
            let plane = self.plane_mut(c);
            for row in 0..height {
                let src = &source.plane(c)[(from.1 + row) * source.width + from.0..][..width];
                plane[(to.1 + row) * stride + to.0..][..width].copy_from_slice(src);
            }
        }
    }
}
