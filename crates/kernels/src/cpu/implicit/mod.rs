//! Implicit matrix multiplication: the convolution of any kernel, stride and padding as a product with an im2col matrix that is never built.

mod pack;
mod product;
mod view;
mod weight_grad;
mod weights;

#[cfg(test)]
mod tests;

use super::Precision;
use super::scratch::{self, Buffer};
use super::shape::{ConvShape, Epilogue};
use super::simd::{self, Level};
use product::Product;
use view::{Source, Tap, forward_taps};
pub use weight_grad::weight_grad;

/// Weights packed for the forward pass, of any batch and size of image.
pub fn prepare(level: Level, shape: &ConvShape, w: &[f32], room: fn(usize) -> Buffer) -> Buffer {
    weights::packed(level, &forward_product(shape, w, Epilogue::default()), room)
}

/// The forward pass with weights that [`prepare`] packed for this level.
pub fn forward(level: Level, shape: &ConvShape, packed: &[f32], x: &[&[f32]], epilogue: Epilogue<'_>, out: &mut [f32]) {
    product::multiply(level, &forward_product(shape, &[], epilogue), packed, x, &mut [out]);
}

/// The product of the forward pass; of weights that are packed already `w` may be empty.
fn forward_product<'a>(shape: &ConvShape, w: &'a [f32], epilogue: Epilogue<'a>) -> Product<'a> {
    Product {
        source: Source { channels: shape.in_channels, height: shape.height, width: shape.width },
        step: shape.stride,
        spread: [1, 1],
        phases: vec![forward_taps(shape)],
        w,
        transposed: false,
        outputs: shape.out_channels,
        height: shape.out_height(),
        width: shape.out_width(),
        epilogue,
    }
}

/// Input row y is read by output row oh at tap kh if y + padding = oh * stride + kh. Hence the pixels of one residue y mod stride
/// share their taps, those with kh = y + padding modulo the stride, and for the i-th of them oh = i + (residue + padding - kh) / stride.
pub fn data_grad(shape: &ConvShape, precision: Precision, dy: &[f32], w: &[f32], dx: &mut [&mut [f32]]) {
    let mut phases = Vec::new();
    for y in 0..shape.stride[0] {
        for x in 0..shape.stride[1] {
            let taps = |(kh, row)| shifts(shape, 1, x).map(move |(kw, col)| Tap { row, col, weight: kh * shape.kernel[1] + kw });
            phases.push(shifts(shape, 0, y).flat_map(taps).collect());
        }
    }
    let product = Product {
        source: Source { channels: shape.out_channels, height: shape.out_height(), width: shape.out_width() },
        step: [1, 1],
        spread: shape.stride,
        phases,
        w,
        transposed: true,
        outputs: shape.in_channels,
        height: shape.height,
        width: shape.width,
        epilogue: Epilogue::default(),
    };
    let level = simd::level().of(precision);
    product::multiply(level, &product, &weights::packed(level, &product, scratch::take), &[dy], dx);
}

/// In what the gradient of the weights is computed where `precision` is asked for: in f32 where nothing else can be faster.
///
/// The second term of a cell is the next image's: of one image half the work would be multiplying zeros. And where f32 reads the input in
/// place, packing it takes more than a few outputs to pay.
pub fn weight_grad_precision(shape: &ConvShape, precision: Precision) -> Precision {
    let in_place = shape.kernel == [1, 1] && shape.stride == [1, 1] && shape.padding == [0, 0];
    let pays = shape.batch > 1 && !(in_place && shape.out_channels < 64);
    if pays { precision } else { Precision::F32 }
}

/// The kernel cells along `axis` that pixels of `residue` modulo the stride meet, each with the output it meets for the first pixel.
fn shifts(shape: &ConvShape, axis: usize, residue: usize) -> impl Iterator<Item = (usize, isize)> {
    let (stride, first) = (shape.stride[axis], residue + shape.padding[axis]);
    (0..shape.kernel[axis]).filter(move |k| k % stride == first % stride).map(move |k| (k, (first as isize - k as isize) / stride as isize))
}
