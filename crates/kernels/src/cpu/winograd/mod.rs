//! Winograd's method for 3x3 kernels of stride 1: F(4x4, 3x3), a quarter of the multiplications.
//!
//! The output is cut into 4x4 tiles. Each depends on a 6x6 tile of the input, which is transformed to 36 points ([`input`]), as the filters are ([`filter`]);
//! at each point the sum over channels is a matrix product over all tiles ([`product`]), and the inverse transform gives the output tile ([`output`]).
//! [`transform`] has the matrices. The gradient of the input is the same convolution of the output's gradient with turned and transposed filters
//! ([`convolve`]); the gradient of the weights multiplies transformed inputs by transformed output gradients, summing over tiles ([`weights`]).
//!
//! # Layout
//!
//! Lanes are channels in every transform and columns (output channels) in the products, so any image size uses whole vectors, and the number of tiles need not
//! be a multiple of anything. All transformed data are blocks `[point][index][LANES]` of one vector of channels, the index being the tile, or for filters the
//! channel reduced over. Both transforms and products then walk through memory in whole cache lines, and a block is one contiguous piece, which lets tasks fill
//! blocks of a shared buffer without overlap. The points of a block lie an odd number of cache lines apart ([`Layout`](tiling::Layout)): a power of two would
//! put all 36 stores of a tile in one set of the first-level cache.
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
mod tiling;
mod transform;
mod weights;

use super::scratch::{self, Buffer};
use super::shape::{ConvShape, Epilogue};
use super::simd::{self, Level};
use filter::Filters;
use tiling::Tiling;

pub use tiling::applies;
pub use weights::weight_grad;

/// Filters transformed for the forward pass, of any batch and size of image.
pub fn prepare(level: Level, shape: &ConvShape, w: &[f32], room: fn(usize) -> Buffer) -> Buffer {
    Filters { w, reduced: shape.in_channels, produced: shape.out_channels, transposed: false }.transformed(level, room)
}

/// The forward pass with filters that [`prepare`] transformed for this level.
pub fn forward(level: Level, shape: &ConvShape, transformed: &[f32], x: &[f32], epilogue: Epilogue<'_>, out: &mut [f32]) {
    convolve::convolve(level, &Tiling::new(shape), transformed, x, epilogue, out);
}

pub fn data_grad(shape: &ConvShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let filters = Filters { w, reduced: shape.out_channels, produced: shape.in_channels, transposed: true };
    // An input pixel under the first output pixel's last tap has two more outputs before it than the padding takes away.
    let turned = ConvShape {
        in_channels: shape.out_channels,
        out_channels: shape.in_channels,
        height: shape.out_height(),
        width: shape.out_width(),
        padding: shape.padding.map(|p| 2 - p),
        ..*shape
    };
    let level = simd::level();
    let transformed = filters.transformed(level, scratch::take);
    convolve::convolve(level, &Tiling::new(&turned), &transformed, dy, Epilogue::default(), dx);
}
