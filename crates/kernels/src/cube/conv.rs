//! The three passes of a convolution as one matrix product each.
//!
//! With W seen as `[co/g, depth]` (depth = ci/g * kh*kw), X^ the columns of x and P the output pixels, for each image and group:
//!
//! ```text
//! forward          Y  [co/g, P]     = W X^                       (+ bias) (SiLU)
//! data gradient    dX [ci/g, P']    = W^T dY^,   by the residues of the stride
//! weight gradient  dW [co/g, depth] = sum over images of  dY X^^T
//! ```
//!
//! No columns are written: the product reads the image in their places ([`Gather`]). The gradient of the input gathers too: the pixels of x
//! with the same residue modulo the stride are reached by the same taps, so that for each residue dX is an ordinary convolution of dY
//! with those taps turned round; those of stride 2 are one launch. The weight gradient of a 1x1 convolution of stride 1 is a product of x itself. Groups are batches of the product. Tensors of any
//! strides are read in place where rows and columns of an image step evenly (which covers NCHW and NHWC); results are contiguous NCHW. The pixels of
//! all images are one axis of the product.
//! The parts of a weight gradient are the only extra memory.

use super::block::Gather;
use super::geometry::{Geometry, dims4};
use super::launch::true_gradients;
use super::matmul::{Layout, Product, Splits, Window};
use super::pixels::{Pixels, empty, zeros};
use super::sizes::Class;
use super::workspace::workspace_bytes;
use crate::operands::ConvConfig;
use crate::shapes::expect;
use burn::backend::DType;
use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// A pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Its result.
    Forward,
    /// The gradient of its input.
    Input,
    /// The gradient of its weight.
    Weight,
}

/// In which class of blocks our product computes a pass of the convolution of x `[n, ci, h, w]` with w `[co, ci/g, kh, kw]`.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn class_of(pass: Pass, x: [usize; 4], w: [usize; 4], config: &ConvConfig) -> Class {
    let g = Geometry::new(x, w, &config.to_burn());
    match pass {
        Pass::Forward => Class::of(g.group_out(), g.images * g.pixels_out(), g.groups),
        // All residues have the size of block of the first.
        Pass::Input => {
            let pixels: usize = [0, 1].into_iter().filter_map(|axis| g.residues(axis).next()).map(|residue| residue.count).product();
            Class::of(g.channels_in / g.groups, g.images * pixels, g.groups)
        }
        Pass::Weight => {
            let product = weight_product(&g);
            let splits = if g.empty() { Splits::ONE } else { product.cut(workspace_bytes() / size_of::<f32>()) };
            Class::of(product.m, product.n, product.batches * splits.count())
        }
    }
}

impl Pixels {
    /// Images, channels, rows, pixels.
    fn steps(&self) -> [usize; 4] {
        [self.image, self.channel, self.row, self.pixel]
    }

    /// As an operand whose lines are channels and whose k are pixels, in groups of `channels`.
    fn channels(&self, channels: usize) -> Layout {
        Layout { batch: channels * self.channel, outer: self.image, line: self.channel, k: self.pixel, ..Layout::default() }
    }
}

/// The window of the output pixels of a convolution over `x`.
fn window(g: &Geometry, x: &Pixels, taps_are_lines: bool) -> Window {
    let pair = |of: [usize; 2]| (of[0] as i32, of[1] as i32);
    let taps = (g.kernel[0] as u32, g.kernel[1] as u32);
    Window {
        gather: Gather { taps, step: pair(g.stride), tap: pair(g.dilation), taps_are_lines },
        map: g.output,
        size: g.input,
        first: g.pad.map(|pad| -(pad as i32)),
        steps: x.steps(),
        a_taps: [g.kernel[1], 1],
        c_image: g.channels_out * g.pixels_out(),
        spread: None,
    }
}

/// `y [n, co, oh, ow]` of `x [n, ci, h, w]` and `w [co, ci/g, kh, kw]`, plus `bias [co]`, through SiLU if asked.
pub(crate) fn forward(x: CubeTensor, w: CubeTensor, bias: Option<CubeTensor>, silu: bool, options: &ConvOptions<2>) -> CubeTensor {
    let g = Geometry::new(dims4(&x), dims4(&w), options);
    let shape = g.result();
    if let Some(bias) = &bias {
        expect("bias", bias.shape().dims(), [g.channels_out]);
    }
    if g.empty() {
        return zeros(&x, shape, x.dtype);
    }
    let y = empty(&x, shape, x.dtype);
    let (x, w, bias) = (Pixels::new(x), into_contiguous(w), bias.map(into_contiguous));
    Product { silu, ..forward_product(&g, &x) }.run(&w, &x.tensor, bias.as_ref(), &y);
    y
}

/// [`forward`] without bias and SiLU, and the moments of y where the product tells them.
pub(crate) fn forward_moments(x: CubeTensor, w: CubeTensor, options: &ConvOptions<2>) -> (CubeTensor, Option<CubeTensor>) {
    let g = Geometry::new(dims4(&x), dims4(&w), options);
    if g.empty() {
        return (zeros(&x, g.result(), x.dtype), None);
    }
    let y = empty(&x, g.result(), x.dtype);
    let (x, w) = (Pixels::new(x), into_contiguous(w));
    let moments = forward_product(&g, &x).run_moments(&w, &x.tensor, &y);
    (y, moments)
}

fn forward_product(g: &Geometry, x: &Pixels) -> Product {
    Product {
        name: "convolution, forward",
        m: g.group_out(),
        n: g.images * g.pixels_out(),
        k: g.channels_in / g.groups,
        outer: 1,
        batches: g.groups,
        period: g.groups,
        a: Layout { batch: g.group_out() * g.depth(), line: g.depth(), k: g.taps(), ..Layout::default() },
        b: x.channels(g.channels_in / g.groups),
        c: Layout { batch: g.group_out() * g.pixels_out(), line: g.pixels_out(), ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        window: Some(window(g, x, false)),
    }
}

/// `dx [n, ci, h, w]` from `dy [n, co, oh, ow]` and `w [co, ci/g, kh, kw]`; `input` is (h, w).
pub(crate) fn data_grad(dy: CubeTensor, w: CubeTensor, input: [usize; 2], options: &ConvOptions<2>) -> CubeTensor {
    let ([images, ..], w_dims) = (dims4(&dy), dims4(&w));
    let shape = [images, w_dims[1] * options.groups, input[0], input[1]];
    let g = Geometry::new(shape, w_dims, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        return zeros(&dy, shape, dy.dtype);
    }
    let dx = empty(&dy, shape, dy.dtype);
    let (w, dy) = (into_contiguous(w), Pixels::new(dy));
    let (group_in, [height, width]) = (g.channels_in / g.groups, g.input);
    let product = Product {
        name: "convolution, gradient of the input",
        m: group_in,
        n: 0,
        k: g.group_out(),
        outer: 1,
        batches: g.groups,
        period: g.groups,
        a: Layout { batch: g.group_out() * g.depth(), line: g.taps(), k: g.depth(), ..Layout::default() },
        b: dy.channels(g.group_out()),
        c: Layout { batch: group_in * height * width, line: height * width, ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        window: None,
    };
    let residues = g.residues(0).flat_map(|down| g.residues(1).map(move |across| (down, across)));
    let products = residues.map(|(down, across)| {
        // A residue that no tap reaches has sums of nothing.
        let taps = (down.taps.max(1) as u32, across.taps.max(1) as u32);
        let window = Window {
            gather: Gather { taps, step: (1, 1), tap: (down.tap, across.tap), taps_are_lines: false },
            map: [down.count, across.count],
            size: g.output,
            first: [down.first, across.first],
            steps: dy.steps(),
            a_taps: [down.tap_step * g.kernel[1], across.tap_step],
            c_image: g.channels_in * height * width,
            spread: (g.stride != [1, 1]).then_some([g.stride[0] * width, g.stride[1]]),
        };
        Product {
            n: images * down.count * across.count,
            k: if down.taps * across.taps == 0 { 0 } else { product.k },
            a: Layout { offset: down.first_tap * g.kernel[1] + across.first_tap, ..product.a },
            c: Layout { offset: down.residue * width + across.residue, ..product.c },
            window: Some(window),
            ..product
        }
    });
    // The residues of stride 2 are one launch; more make a kernel that takes a driver long to compile.
    for products in products.collect::<Vec<_>>().chunks(4) {
        Product::run_all(products, &w, &dy.tensor, &dx);
    }
    dx
}

/// `dw [co, ci/g, kh, kw]` from `x [n, ci, h, w]` and `dy [n, co, oh, ow]`; `kernel` is (kh, kw). `workspace` bounds the bytes of parts of it.
/// A weight and its gradient are f32, whatever images are.
pub(crate) fn weight_grad(x: CubeTensor, dy: CubeTensor, kernel: [usize; 2], options: &ConvOptions<2>, workspace: usize) -> CubeTensor {
    let (x_dims, [_, channels_out, ..]) = (dims4(&x), dims4(&dy));
    let shape = [channels_out, x_dims[1] / options.groups, kernel[0], kernel[1]];
    let g = Geometry::new(x_dims, shape, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        return zeros(&dy, shape, DType::F32);
    }
    let (x, dy) = (Pixels::new(x), Pixels::new(dy));
    let mut product = Product {
        a: dy.channels(g.group_out()),
        b: x.channels(g.channels_in / g.groups),
        scale: true_gradients(dy.tensor.dtype),
        window: (!g.pointwise()).then(|| window(&g, &x, true)),
        ..weight_product(&g)
    };
    product.splits = product.cut(workspace / size_of::<f32>());
    let dw = empty(&dy.tensor, shape, DType::F32);
    product.run_in_parts(&dy.tensor, &x.tensor, None, &dw);
    dw
}

/// The sums of a weight gradient, in one part, whatever they are of.
fn weight_product(g: &Geometry) -> Product {
    Product {
        name: "convolution, gradient of the weight",
        m: g.group_out(),
        n: g.depth(),
        k: g.pixels_out(),
        outer: g.images,
        batches: g.groups,
        period: g.groups,
        a: Layout::default(),
        b: Layout::default(),
        c: Layout { batch: g.group_out() * g.depth(), outer: g.channels_out * g.depth(), line: g.depth(), ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        window: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Lowering;

    #[test]
    fn the_class_of_a_pass_follows_from_its_shape_and_its_images() {
        let of = |pass, images, [c_in, c_out]: [usize; 2], [kernel, stride]: [usize; 2], side| {
            let config = ConvConfig::new(stride, kernel / 2, Lowering::Gemm);
            class_of(pass, [images, c_in, side, side], [c_out, c_in, kernel, kernel], &config)
        };
        // 50 blocks of 64 x 128 an image,
        assert_eq!([2, 3].map(|images| of(Pass::Forward, images, [64, 64], [3, 1], 80)), [Class::Tall, Class::TallMany]);
        // of a quarter of the pixels 12.5,
        assert_eq!([11, 12].map(|images| of(Pass::Input, images, [64, 64], [3, 2], 80)), [Class::Tall, Class::TallMany]);
        // and sums of 25,600 pixels in 100 parts of 256.
        assert_eq!([1, 2].map(|images| of(Pass::Weight, images, [32, 32], [1, 1], 160)), [Class::Medium, Class::MediumMany]);
    }
}
