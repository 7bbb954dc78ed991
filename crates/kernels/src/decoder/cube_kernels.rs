//! The device side of the decoder's operations.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]

use cubecl::prelude::*;

use crate::cube::launch::{UNITS, fold};
use crate::cube::softmax::{Masking, mask_row, score, softmax_of};
use crate::cube::stripes::{Rows, row, total};
use crate::cube::sums::sum_of_all;

/// `Σ x²` of each stripe.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_squares_kernel<E: Float>(x: &Tensor<E>, sums: &mut Tensor<f32>, rows: &Rows, #[define(E)] _type: ElemType) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    let mut squares = 0.0f32;
    while j < rows.width {
        let value = f32::cast_from(x[base + j]);
        squares += value * value;
        j += rows.parts;
    }
    sums[ABSOLUTE_POS] = squares;
}

/// ρ = 1 / sqrt(mean(x²) + ε) of this thread's row.
#[cube]
fn rho(sums: &Tensor<f32>, rows: &Rows, epsilon: f32) -> f32 {
    1.0f32 / (total(sums, rows, 0usize) / f32::cast_from(rows.width) + epsilon).sqrt()
}

/// x ρ w.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_kernel<E: Float>(
    x: &Tensor<E>,
    weight: &Tensor<f32>,
    sums: &Tensor<f32>,
    y: &mut Tensor<E>,
    rows: &Rows,
    epsilon: f32,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let rho = rho(sums, rows, epsilon);
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    while j < rows.width {
        y[base + j] = E::cast_from(f32::cast_from(x[base + j]) * rho * weight[j]);
        j += rows.parts;
    }
}

/// `Σ x²` and `Σ w dy x` of each stripe.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_grad_sums_kernel<E: Float>(
    x: &Tensor<E>,
    weight: &Tensor<f32>,
    dy: &Tensor<E>,
    sums: &mut Tensor<f32>,
    rows: &Rows,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    let mut squares = 0.0f32;
    let mut along = 0.0f32;
    while j < rows.width {
        let value = f32::cast_from(x[base + j]);
        squares += value * value;
        along += weight[j] * f32::cast_from(dy[base + j]) * value;
        j += rows.parts;
    }
    sums[ABSOLUTE_POS] = squares;
    sums[rows.count * rows.parts + ABSOLUTE_POS] = along;
}

/// dx = ρ (g - x ρ² mean(g x)), g = w dy; dx may be dy.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_data_grad_kernel<E: Float>(
    x: &Tensor<E>,
    weight: &Tensor<f32>,
    dy: &Tensor<E>,
    sums: &Tensor<f32>,
    dx: &mut Tensor<E>,
    rows: &Rows,
    epsilon: f32,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let rho = rho(sums, rows, epsilon);
    let along = total(sums, rows, 1usize) / f32::cast_from(rows.width) * rho * rho;
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    while j < rows.width {
        dx[base + j] = E::cast_from((weight[j] * f32::cast_from(dy[base + j]) - f32::cast_from(x[base + j]) * along) * rho);
        j += rows.parts;
    }
}

/// x ρ w, a workgroup to a row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_row_kernel<E: Float>(
    x: &Tensor<E>,
    weight: &Tensor<f32>,
    y: &mut Tensor<E>,
    rows: &Rows,
    epsilon: f32,
    #[define(E)] _type: ElemType,
) {
    if CUBE_POS >= rows.count {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let base = CUBE_POS * rows.width;
    let mut squares = 0.0f32;
    let mut j = UNIT_POS as usize;
    while j < rows.width {
        let value = f32::cast_from(x[base + j]);
        squares += value * value;
        j += comptime!(UNITS as usize);
    }
    let rho = 1.0f32 / (sum_of_all(squares, &mut shared) / f32::cast_from(rows.width) + epsilon).sqrt();
    j = UNIT_POS as usize;
    while j < rows.width {
        y[base + j] = E::cast_from(f32::cast_from(x[base + j]) * rho * weight[j]);
        j += comptime!(UNITS as usize);
    }
}

/// ρ (g - x ρ² mean(g x)) (+ held), g = w dy, a workgroup to a row; dx may be dy or held.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_row_grad_kernel<E: Float, H: Float>(
    x: &Tensor<E>,
    weight: &Tensor<f32>,
    dy: &Tensor<E>,
    held: &Tensor<H>,
    dx: &mut Tensor<E>,
    rows: &Rows,
    epsilon: f32,
    #[comptime] added: bool,
    #[define(E, H)] _types: [ElemType; 2],
) {
    if CUBE_POS >= rows.count {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(comptime!(UNITS as usize));
    let base = CUBE_POS * rows.width;
    let mut squares = 0.0f32;
    let mut along = 0.0f32;
    let mut j = UNIT_POS as usize;
    while j < rows.width {
        let value = f32::cast_from(x[base + j]);
        squares += value * value;
        along += weight[j] * f32::cast_from(dy[base + j]) * value;
        j += comptime!(UNITS as usize);
    }
    let width = f32::cast_from(rows.width);
    let rho = 1.0f32 / (sum_of_all(squares, &mut shared) / width + epsilon).sqrt();
    let along = sum_of_all(along, &mut shared) / width * rho * rho;
    j = UNIT_POS as usize;
    while j < rows.width {
        let mut value = (weight[j] * f32::cast_from(dy[base + j]) - f32::cast_from(x[base + j]) * along) * rho;
        if comptime!(added) {
            value += f32::cast_from(held[base + j]);
        }
        dx[base + j] = E::cast_from(value);
        j += comptime!(UNITS as usize);
    }
}

/// ρ of each row, a thread to a row of one stripe.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rho_kernel(sums: &Tensor<f32>, rhos: &mut Tensor<f32>, rows: &Rows, epsilon: f32) {
    if ABSOLUTE_POS >= rows.count {
        terminate!();
    }
    let squares = fold(sums, ABSOLUTE_POS * rows.parts, 1usize, rows.parts as u32);
    rhos[ABSOLUTE_POS] = 1.0f32 / (squares / f32::cast_from(rows.width) + epsilon).sqrt();
}

/// `Σ dy x ρ` of each column over every `parts`-th row, into `[parts, width]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_columns_kernel<E: Float>(
    x: &Tensor<E>,
    dy: &Tensor<E>,
    rhos: &Tensor<f32>,
    columns: &mut Tensor<f32>,
    rows: &Rows,
    parts: usize,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= parts * rows.width {
        terminate!();
    }
    let column = ABSOLUTE_POS % rows.width;
    let mut r = ABSOLUTE_POS / rows.width;
    let mut sum = 0.0f32;
    while r < rows.count {
        let at = r * rows.width + column;
        sum += f32::cast_from(dy[at]) * (f32::cast_from(x[at]) * rhos[r]);
        r += parts;
    }
    columns[ABSOLUTE_POS] = sum;
}

/// The columns' totals.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rms_norm_weight_grad_kernel(columns: &Tensor<f32>, dw: &mut Tensor<f32>, parts: usize) {
    let column = ABSOLUTE_POS;
    if column >= dw.len() {
        terminate!();
    }
    dw[column] = fold(columns, column, dw.len(), parts as u32);
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (-x).exp())
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn swiglu_kernel<E: Float>(gate: &Tensor<E>, up: &Tensor<E>, y: &mut Tensor<E>, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= gate.len() {
        terminate!();
    }
    let x = f32::cast_from(gate[i]);
    y[i] = E::cast_from(x * sigmoid(x) * f32::cast_from(up[i]));
}

/// dgate may be dy.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn swiglu_grad_kernel<E: Float>(
    gate: &Tensor<E>,
    up: &Tensor<E>,
    dy: &Tensor<E>,
    dup: &mut Tensor<E>,
    dgate: &mut Tensor<E>,
    #[define(E)] _type: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= gate.len() {
        terminate!();
    }
    let (x, d) = (f32::cast_from(gate[i]), f32::cast_from(dy[i]));
    let s = sigmoid(x);
    let silu = x * s;
    dup[i] = E::cast_from(d * silu);
    dgate[i] = E::cast_from(d * f32::cast_from(up[i]) * (s + silu * (1.0f32 - s)));
}

/// exp(score - maximum) / sum; p may be x.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn masked_softmax_kernel(
    x: &Tensor<f32>,
    mask: &Tensor<f32>,
    sums: &Tensor<f32>,
    p: &mut Tensor<f32>,
    rows: &Rows,
    masking: &Masking,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let softmax = softmax_of(sums, rows);
    let row = row(rows);
    let (base, mask_base) = (row * rows.width, mask_row(row, rows, masking));
    let mut j = ABSOLUTE_POS % rows.parts;
    while j < rows.width {
        let score = score(x[base + j], mask[mask_base + j], masking, true);
        p[base + j] = (score - softmax.most).exp() / softmax.sum;
        j += rows.parts;
    }
}

/// `Σ p dp` of each stripe.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn products_kernel(p: &Tensor<f32>, dp: &Tensor<f32>, sums: &mut Tensor<f32>, rows: &Rows) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    let mut sum = 0.0f32;
    while j < rows.width {
        sum += p[base + j] * dp[base + j];
        j += rows.parts;
    }
    sums[ABSOLUTE_POS] = sum;
}

/// scale p (dp - Σ p dp); the result may be dp.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn masked_softmax_grad_kernel(
    p: &Tensor<f32>,
    dp: &Tensor<f32>,
    sums: &Tensor<f32>,
    dx: &mut Tensor<f32>,
    rows: &Rows,
    scale: f32,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let along = total(sums, rows, 0usize);
    let base = row(rows) * rows.width;
    let mut j = ABSOLUTE_POS % rows.parts;
    while j < rows.width {
        dx[base + j] = p[base + j] * (dp[base + j] - along) * scale;
        j += rows.parts;
    }
}

/// `[x1 cos - x2 sin, x2 cos + x1 sin]` of each row of q and of k, both `[B, M, N, d]` in any strides, positions being M (`back`, and
/// sin turned round) or N. `step` leads from one image's angles to the next's, 0 if all have the same. A thread to a pair of numbers.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rotate_kernel<E: Float>(
    q: &Tensor<E>,
    k: &Tensor<E>,
    cos: &Tensor<f32>,
    sin: &Tensor<f32>,
    of_q: &mut Tensor<E>,
    of_k: &mut Tensor<E>,
    step: usize,
    #[comptime] back: bool,
    #[define(E)] _type: ElemType,
) {
    let pairs = q.shape(0) * q.shape(1) * q.shape(2) * q.shape(3) / 2;
    if ABSOLUTE_POS < pairs {
        turn::<E>(q, cos, sin, of_q, ABSOLUTE_POS, step, back);
    } else if ABSOLUTE_POS < pairs + k.shape(0) * k.shape(1) * k.shape(2) * k.shape(3) / 2 {
        turn::<E>(k, cos, sin, of_k, ABSOLUTE_POS - pairs, step, back);
    }
}

#[cube]
fn turn<E: Float>(
    x: &Tensor<E>,
    cos: &Tensor<f32>,
    sin: &Tensor<f32>,
    y: &mut Tensor<E>,
    pair: usize,
    step: usize,
    #[comptime] back: bool,
) {
    let half = x.shape(3) / 2;
    let (row, j) = (pair / half, pair % half);
    let (b, m, n) = (row / x.shape(2) / x.shape(1), row / x.shape(2) % x.shape(1), row % x.shape(2));
    let from = b * x.stride(0) + m * x.stride(1) + n * x.stride(2) + j * x.stride(3);
    let position = if comptime!(back) { m } else { n };
    let angle = b * step + position * half + j;
    let (x1, x2) = (f32::cast_from(x[from]), f32::cast_from(x[from + half * x.stride(3)]));
    let c = cos[angle];
    let s = if comptime!(back) { -sin[angle] } else { sin[angle] };
    let to = row * x.shape(3) + j;
    y[to] = E::cast_from(x1 * c - x2 * s);
    y[to + half] = E::cast_from(x2 * c + x1 * s);
}
