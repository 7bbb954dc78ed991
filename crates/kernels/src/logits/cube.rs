//! The operations on CubeCL devices: f32 in one launch each (the sum in two more), everything else through Burn's own operations.

use burn::backend::ops::IntTensorOps;
use burn::backend::{DType, TensorMetadata};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{LogitOps, portable};
use crate::cube::launch::{covers, launch};
use crate::cube::pixels::empty;
use crate::cube::softmax::distribution;
use crate::cube::sums::{PARTS, total};

/// Some rows of every image: `len` rows of `columns`, from the row `start` of `all` on.
#[derive(CubeLaunch, CubeType)]
struct Extent {
    count: usize,
    start: usize,
    len: usize,
    all: usize,
    columns: usize,
}

/// Where the `i`-th number of the rows is in the whole.
#[cube]
fn place(i: usize, of: &Extent) -> usize {
    let image = i / (of.len * of.columns);
    (image * of.all + of.start) * of.columns + i % (of.len * of.columns)
}

/// Factors `1 + exp(-|x|)` that are multiplied before a logarithm is taken: at most 2 each.
const RUN: u32 = 64;

/// `log(1 + p)`, also where 1 + p has lost most of p's digits.
#[cube]
fn log_one_and(p: f32) -> f32 {
    let mut result = (1.0f32 + p).ln();
    if p < 0.01f32 {
        result = p * (1.0f32 - p * (0.5f32 - p * (0.333_333_34f32 - p * 0.25f32)));
    }
    result
}

/// `parts[t] = Σ softplus(x)` over the numbers t, t + parts, ... of the rows, and sigmoid(x) of each.
#[cube(launch_unchecked, address_type = "dynamic")]
fn softplus_kernel(x: &Tensor<f32>, slope: &mut Tensor<f32>, parts: &mut Tensor<f32>, extent: &Extent) {
    let count = parts.len();
    if ABSOLUTE_POS >= count {
        terminate!();
    }
    let mut sum = 0.0f32;
    let mut i = ABSOLUTE_POS;
    while i < extent.count {
        // softplus(x) = max(x, 0) + log(1 + exp(-|x|)); what is kept of the product is one less, see `softplus` in `mod.rs`.
        let mut product = 0.0f32;
        let mut run = 0u32;
        while run < RUN && i < extent.count {
            let value = x[place(i, extent)];
            let e = (-value.abs()).exp();
            product += e * product + e;
            let mut s = 1.0f32 / (1.0f32 + e);
            if value < 0.0f32 {
                s *= e;
            } else {
                sum += value;
            }
            slope[i] = s;
            i += count;
            run += 1u32;
        }
        sum += log_one_and(product);
    }
    parts[ABSOLUTE_POS] = sum;
}

/// dy times the slope at the rows, and zero elsewhere.
#[cube(launch_unchecked, address_type = "dynamic")]
fn softplus_grad_kernel(slope: &Tensor<f32>, dy: &Tensor<f32>, grad: &mut Tensor<f32>, extent: &Extent) {
    let i = ABSOLUTE_POS;
    if i >= grad.len() {
        terminate!();
    }
    let column = i % extent.columns;
    let row = i / extent.columns % extent.all;
    let image = i / (extent.columns * extent.all);
    let mut value = 0.0f32;
    if row >= extent.start && row < extent.start + extent.len {
        value = dy[0] * slope[(image * extent.len + row - extent.start) * extent.columns + column];
    }
    grad[i] = value;
}

/// A thread to a distribution; `len` rows of results, `all` of x.
#[cube(launch_unchecked, address_type = "dynamic")]
fn expectation_kernel(x: &Tensor<f32>, out: &mut Tensor<f32>, extent: &Extent, bins: u32) {
    let i = ABSOLUTE_POS;
    if i >= extent.count {
        terminate!();
    }
    let column = i % extent.columns;
    let side = i / extent.columns % extent.len;
    let image = i / (extent.columns * extent.len);
    let first = (image * extent.all + side * bins as usize) * extent.columns + column;
    let softmax = distribution(x, first, extent.columns, bins);
    out[i] = softmax.expected;
}

/// Corners of every image, then chosen rows through sigmoid; a thread to a number. `count` numbers are corners.
#[cube(launch_unchecked, address_type = "dynamic")]
fn predictions_kernel(
    x: &Tensor<f32>,
    centres: &Tensor<f32>,
    strides: &Tensor<f32>,
    chosen: &Tensor<i32>,
    out: &mut Tensor<f32>,
    extent: &Extent,
    bins: u32,
) {
    let i = ABSOLUTE_POS;
    if i >= out.len() {
        terminate!();
    }
    let column = i % extent.columns;
    if i < extent.count {
        let side = i / extent.columns % 4;
        let image = i / (extent.columns * 4);
        let first = (image * extent.all + side * bins as usize) * extent.columns + column;
        let softmax = distribution(x, first, extent.columns, bins);
        let mut length = softmax.expected;
        if side < 2 {
            length = -length;
        }
        out[i] = (centres[side % 2 * extent.columns + column] + length) * strides[column];
    } else {
        let row = chosen[(i - extent.count) / extent.columns] as usize;
        out[i] = 1.0f32 / (1.0f32 + (-x[row * extent.columns + column]).exp());
    }
}

impl LogitOps for CubeBackend {
    fn softplus_sum(x: CubeTensor, start: usize, len: usize) -> (CubeTensor, CubeTensor) {
        let [b, c, a] = x.shape().dims();
        if !covers([&x]) || len == 0 {
            return portable::softplus_sum::<Self>(x, start, len);
        }
        let x = into_contiguous(x);
        let (slope, parts) = (empty(&x, [b, len, a], DType::F32), empty(&x, [PARTS], DType::F32));
        launch!(
            softplus_kernel,
            PARTS,
            [(x, ((b - 1) * c + start + len) * a), (slope, b * len * a), (parts, PARTS)],
            ExtentLaunch::new(b * len * a, start, len, c, a)
        );
        (total(&parts), slope)
    }

    fn softplus_sum_grad(slope: CubeTensor, dy: CubeTensor, start: usize, all: usize) -> CubeTensor {
        if !covers([&slope, &dy]) {
            return portable::softplus_sum_grad::<Self>(slope, dy, start, all);
        }
        let [b, len, a] = slope.shape().dims();
        let (slope, dy) = (into_contiguous(slope), into_contiguous(dy));
        let grad = empty(&slope, [b, all, a], DType::F32);
        launch!(
            softplus_grad_kernel,
            b * all * a,
            [(slope, b * len * a), (dy, 1), (grad, b * all * a)],
            ExtentLaunch::new(b * len * a, start, len, all, a)
        );
        grad
    }

    fn predictions(x: CubeTensor, centres: CubeTensor, strides: CubeTensor, chosen: Vec<i32>, bins: usize) -> CubeTensor {
        if !covers([&x, &centres, &strides]) {
            let sides = Self::expectation(x.clone(), 4, bins);
            return portable::predictions::<Self>(x, sides, centres, strides, chosen);
        }
        let [b, c, a] = x.shape().dims();
        let [x, centres, strides] = [x, centres, strides].map(into_contiguous);
        let out = empty(&x, [4 * b + chosen.len(), a], DType::F32);
        // Something must be bound; it is not read.
        let rows = if chosen.is_empty() { vec![0] } else { chosen };
        let (n, len) = (rows.len(), out.meta.shape().num_elements());
        // The kernel reads in memory which rows to read. A negative one is too large.
        let last = rows.iter().map(|&row| row as usize).fold((b - 1) * c + 4 * bins.max(1) - 1, usize::max);
        let rows = Self::int_from_data(TensorData::new(rows, [n]), &x.device);
        let extent = ExtentLaunch::new(4 * b * a, 0, 4, c, a);
        launch!(
            predictions_kernel,
            len,
            [(x, last.saturating_add(1).saturating_mul(a)), (centres, 2 * a), (strides, a), (rows, n), (out, len)],
            extent,
            bins as u32
        );
        out
    }

    fn expectation(x: CubeTensor, sides: usize, bins: usize) -> CubeTensor {
        let [b, c, a] = x.shape().dims();
        if !covers([&x]) || sides == 0 {
            return portable::expectation::<Self>(x, sides, bins);
        }
        let (x, out) = (into_contiguous(x.clone()), empty(&x, [b, sides, a], DType::F32));
        launch!(
            expectation_kernel,
            b * sides * a,
            [(x, ((b - 1) * c + sides * bins.max(1)) * a), (out, b * sides * a)],
            ExtentLaunch::new(b * sides * a, 0, sides, c, a),
            bins as u32
        );
        out
    }
}
