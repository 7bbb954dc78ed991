//! The device side of softmax: over rows in [stripes](super::stripes), maxima and sums of each stripe, then of each row; over a few bins, by one thread.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]

use super::stripes::{Rows, row};
use cubecl::prelude::*;

/// What a row of scores is before its softmax.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Masking {
    scale: f32,
    /// Rows to an image; of the mask rows to an image, and the step to the next image's, 0 if all have one.
    rows: usize,
    queries: usize,
    step: usize,
}

/// The mask's first number for this row.
#[cube]
pub(crate) fn mask_row(row: usize, rows: &Rows, masking: &Masking) -> usize {
    (row / masking.rows * masking.step + row % masking.queries) * rows.width
}

/// One score, `scale x + mask` if there is a mask.
#[cube]
pub(crate) fn score(x: f32, mask: f32, masking: &Masking, #[comptime] masked: bool) -> f32 {
    if comptime!(masked) { x * masking.scale + mask } else { x }
}

/// `exp(x)`, and NaN of NaN, of which a driver's own may make infinity.
#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    select(x.is_nan(), x, x.exp())
}

/// `log(x)`, and NaN of NaN, of which a driver's own may make a number.
#[cube]
pub(crate) fn log(x: f32) -> f32 {
    select(x.is_nan(), x, x.ln())
}

/// Of each stripe the maximum and `Σ exp(x - maximum)`, into `sums [2, rows, parts]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn softmax_sums_kernel(
    x: &Tensor<f32>,
    mask: &Tensor<f32>,
    sums: &mut Tensor<f32>,
    rows: &Rows,
    masking: &Masking,
    #[comptime] masked: bool,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let row = row(rows);
    let (base, mask_base) = (row * rows.width, mask_row(row, rows, masking));
    let first = ABSOLUTE_POS % rows.parts;
    // Not -inf, so that a stripe of nothing but -inf sums to 0 and not to NaN.
    let mut most = f32::min_value();
    let mut j = first;
    while j < rows.width {
        let score = score(x[base + j], mask[mask_base + j], masking, masked);
        if score > most {
            most = score;
        }
        j += rows.parts;
    }
    let mut sum = 0.0f32;
    j = first;
    while j < rows.width {
        sum += exp(score(x[base + j], mask[mask_base + j], masking, masked) - most);
        j += rows.parts;
    }
    sums[ABSOLUTE_POS] = most;
    sums[rows.count * rows.parts + ABSOLUTE_POS] = sum;
}

/// Maximum and `Σ exp(x - maximum)` of a row.
#[derive(CubeType)]
pub(crate) struct Softmax {
    pub(crate) most: f32,
    pub(crate) sum: f32,
}

/// Those of this thread's row, from its stripes'.
#[cube]
pub(crate) fn softmax_of(sums: &Tensor<f32>, rows: &Rows) -> Softmax {
    let mut most = f32::min_value();
    let first = row(rows) * rows.parts;
    for part in 0..rows.parts {
        let of_part = sums[first + part];
        if of_part > most {
            most = of_part;
        }
    }
    let mut sum = 0.0f32;
    for part in 0..rows.parts {
        sum += sums[rows.count * rows.parts + first + part] * (sums[first + part] - most).exp();
    }
    Softmax { most, sum }
}

/// A softmax over a few bins: the maximum of their logits x_k, `Σ e_k` with `e_k = exp(x_k - maximum)`, and the expected bin, `Σ k e_k / Σ e_k`.
#[derive(CubeType)]
pub(crate) struct Distribution {
    pub(crate) most: f32,
    pub(crate) sum: f32,
    pub(crate) expected: f32,
}

/// That of the `bins` logits from `first` on, `step` apart.
#[cube]
pub(crate) fn distribution(x: &Tensor<f32>, first: usize, step: usize, bins: u32) -> Distribution {
    let mut most = x[first];
    for k in 1..bins {
        let value = x[first + k as usize * step];
        if value > most {
            most = value;
        }
    }
    let mut sum = 0.0f32;
    let mut weighted = 0.0f32;
    for k in 0..bins {
        let e = (x[first + k as usize * step] - most).exp();
        sum += e;
        weighted += f32::cast_from(k) * e;
    }
    Distribution { most, sum, expected: weighted / sum }
}
