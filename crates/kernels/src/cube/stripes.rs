//! Sums over the rows of a tensor, in two launches without shared memory (see [`shared`](super::shared)).
//!
//! The first cuts each row into stripes, a thread to a stripe: thread p takes every parts-th number from the p-th on, so neighbours read
//! neighbours. In the second each thread adds up the stripes of its row for itself, then writes its own stripe of the result. As many
//! stripes as numbers to a stripe make both parts of the second about equal.

use super::launch::fold;
use super::pixels::empty;
use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// The rows along the last axis of a tensor, and into how many stripes each is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    parts: usize,
}

impl Plan {
    /// Of x, which is not empty.
    pub(crate) fn new(x: &CubeTensor) -> Self {
        let shape = x.meta.shape();
        let width = shape[shape.num_dims() - 1];
        Self { rows: shape.num_elements() / width, width, parts: width.isqrt() }
    }

    /// Numbers of all rows.
    pub(crate) fn numbers(&self) -> usize {
        self.rows * self.width
    }

    /// One to a stripe.
    pub(crate) fn threads(&self) -> usize {
        self.rows * self.parts
    }

    /// Room for `count` sums of each stripe.
    pub(crate) fn sums(&self, like: &CubeTensor, count: usize) -> CubeTensor {
        empty(like, [count, self.rows, self.parts], DType::F32)
    }

    pub(crate) fn rows(&self) -> RowsLaunch {
        RowsLaunch::new(self.rows, self.width, self.parts)
    }
}

/// [`Plan`] as a kernel takes it.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Rows {
    pub(crate) count: usize,
    pub(crate) width: usize,
    pub(crate) parts: usize,
}

/// This thread's row, if it has one.
#[cube]
pub(crate) fn row(rows: &Rows) -> usize {
    ABSOLUTE_POS / rows.parts
}

/// The row's total of its stripes' sums number `which`.
#[cube]
pub(crate) fn total(sums: &Tensor<f32>, rows: &Rows, which: usize) -> f32 {
    fold(sums, (which * rows.count + row(rows)) * rows.parts, 1usize, rows.parts as u32)
}
