//! Winograd's method for 3x3 kernels of stride 1: F(4x4, 3x3), a quarter of the multiplications.
//!
//! The output is cut into 4x4 tiles. Each depends on a 6x6 tile of the input, which is transformed to 36 points ([`input`]), as the
//! filters are ([`filter`]); at each point the sum over channels is a matrix product over all tiles ([`product`]), and the inverse
//! transform gives the output tile ([`output`]). [`transform`] has the matrices. The gradient of the input is the same convolution of the
//! output's gradient with turned and transposed filters ([`convolve`]); the gradient of the weights multiplies transformed inputs by
//! transformed output gradients, summing over tiles ([`weights`]).
//!
//! # Layout
//!
//! Lanes are channels in every transform and columns (output channels) in the products, so any image size uses whole vectors, and the
//! number of tiles need not be a multiple of anything. All transformed data are blocks `[point][index][LANES]` of one vector of
//! channels, the index being the tile, or for filters the channel reduced over. Both transforms and products then walk through memory in
//! whole cache lines, and a block is one contiguous piece, which lets tasks fill blocks of a shared buffer without overlap.
//! The points of a block lie an odd number of cache lines apart ([`Layout`]): a power of two would put all 36 stores of a tile
//! in one set of the first-level cache.
//!
//! # Accuracy
//!
//! See [`transform`] and [`product`]: the largest error stays below 1e-5 of the root mean square of the result, two to three times that
//! of direct summation in f32.

mod convolve;
mod filter;
mod input;
mod output;
mod product;
#[cfg(test)]
mod tests;
mod transform;
mod weights;

use super::{ConvShape, Epilogue};
use filter::Filters;

/// Points at which a tile is evaluated.
const POINTS: usize = 36;

/// Whether the method computes such a convolution.
pub fn applies(shape: &ConvShape) -> bool {
    shape.in_channels > 0 && shape.kernel == [3, 3] && shape.stride == [1, 1] && shape.padding.iter().all(|&p| p <= 2)
}

/// See [`super::forward`].
pub fn forward(shape: &ConvShape, x: &[f32], w: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    let filters = Filters { w, out_channels: shape.out_channels, in_channels: shape.in_channels, transposed: false };
    convolve::convolve(&Tiling::new(shape), filters, x, epilogue, out);
}

/// See [`super::data_grad`].
pub fn data_grad(shape: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let filters = Filters { w, out_channels: shape.out_channels, in_channels: shape.in_channels, transposed: true };
    // An input pixel under the first output pixel's last tap has two more outputs before it than the padding takes away.
    let turned = ConvShape {
        in_channels: shape.out_channels,
        out_channels: shape.in_channels,
        height: shape.out_height(),
        width: shape.out_width(),
        padding: shape.padding.map(|p| 2 - p),
        ..*shape
    };
    if turned.height == 0 || turned.width == 0 {
        dx.fill(0.0);
        return;
    }
    convolve::convolve(&Tiling::new(&turned), filters, dy, Epilogue::default(), dx);
}

/// See [`super::weight_grad`].
pub fn weight_grad(shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    weights::weight_grad(&Tiling::new(shape), x, dy, dw);
}

/// A convolution cut into tiles.
struct Tiling {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    height: usize,
    width: usize,
    padding: [usize; 2],
    out_height: usize,
    out_width: usize,
    /// Rows of tiles in an image. Those of a batch are numbered through.
    down: usize,
    /// Tiles in a row.
    across: usize,
}

impl Tiling {
    fn new(shape: &ConvShape) -> Tiling {
        debug_assert!(applies(shape));
        let (out_height, out_width) = (shape.out_height(), shape.out_width());
        Tiling {
            batch: shape.batch,
            in_channels: shape.in_channels,
            out_channels: shape.out_channels,
            height: shape.height,
            width: shape.width,
            padding: shape.padding,
            out_height,
            out_width,
            down: out_height.div_ceil(4),
            across: out_width.div_ceil(4),
        }
    }

    /// Rows of tiles in the batch.
    fn rows(&self) -> usize {
        self.batch * self.down
    }

    /// The pieces of single images in the tile rows `first..end`: image, first row in it, end.
    fn segments(&self, (first, end): (usize, usize)) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let down = self.down;
        let images = if first < end { first / down..(end - 1) / down + 1 } else { 0..0 };
        images.map(move |image| (image, first.max(image * down) - image * down, end.min((image + 1) * down) - image * down))
    }
}

/// Where the points of a block `[point][index][LANES]` are.
#[derive(Clone, Copy)]
struct Layout {
    /// Floats from one point to the next.
    point: usize,
}

impl Layout {
    fn new(len: usize, lanes: usize) -> Layout {
        const LINE: usize = 16;
        Layout { point: ((len * lanes).div_ceil(LINE) | 1) * LINE }
    }

    /// Floats of a block.
    fn block(self) -> usize {
        POINTS * self.point
    }
}

/// Cuts `first..end` into runs of two and a last one of one: (start, length).
fn pairs(first: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    (first..end).step_by(2).map(move |start| (start, 2.min(end - start)))
}

/// Cuts `first..end` into `parts` runs, as equal as possible: (start, length).
fn split(first: usize, end: usize, parts: usize) -> impl Iterator<Item = (usize, usize)> {
    let len = end - first;
    (0..parts).map(move |i| {
        let start = first + len * i / parts;
        (start, first + len * (i + 1) / parts - start)
    })
}
