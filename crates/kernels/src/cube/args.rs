//! What a launch of the matrix product is given beside its tensors, and what a thread makes of it.

use super::block::Block;
use cubecl::prelude::*;

/// Sizes and steps; what they mean is said by [`Product`](super::matmul::Product).
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Args {
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) outer: u32,
    pub(super) period: u32,
    pub(super) first_batch: u32,
    pub(super) splits: u32,
    pub(super) inner_splits: u32,
    pub(super) outer_part: u32,
    pub(super) k_part: u32,
    pub(super) a_offset: usize,
    pub(super) a_batch: usize,
    pub(super) a_outer: usize,
    pub(super) a_line: usize,
    pub(super) a_k: usize,
    pub(super) b_offset: usize,
    pub(super) b_batch: usize,
    pub(super) b_outer: usize,
    pub(super) b_line: usize,
    pub(super) b_k: usize,
    pub(super) c_offset: usize,
    pub(super) c_batch: usize,
    pub(super) c_split: usize,
    pub(super) c_line: usize,
    /// What sums are multiplied by.
    pub(super) scale: f32,
}

/// The sizes and steps of a [`Gather`], and of what goes with it.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Image {
    /// The first pixel of all maps, or the first line, of this launch.
    pub(super) first: u32,
    /// Pixels of a map, and of its rows.
    pub(super) pixels: u32,
    pub(super) map_width: u32,
    pub(super) height: i32,
    pub(super) width: i32,
    pub(super) first_y: i32,
    pub(super) first_x: i32,
    /// How far a map begins outside of its image, and how many numbers that is.
    pub(super) up: i32,
    pub(super) left: i32,
    pub(super) before: usize,
    pub(super) image: usize,
    pub(super) channel: usize,
    pub(super) row: usize,
    pub(super) pixel: usize,
    /// From one tap to the next in A.
    pub(super) a_tap_y: usize,
    pub(super) a_tap_x: usize,
    /// From one image to the next in C, and from one row or pixel of the map to the next if it is spread.
    pub(super) c_image: usize,
    pub(super) c_row: usize,
    pub(super) c_pixel: usize,
}

/// What a thread computes of C, and from what.
#[derive(CubeType)]
pub(super) struct Part {
    pub(super) first_row: u32,
    pub(super) first_col: u32,
    /// Its rows are neighbours, its columns as far apart as there are threads to a row, so that neighbouring threads write neighbours.
    pub(super) row: u32,
    pub(super) col: u32,
    /// The sums' k and outer indices.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) outer: u32,
    pub(super) outer_end: u32,
    pub(super) base_a: usize,
    pub(super) base_b: usize,
}

/// `sums += left * right^T`.
#[cube]
pub(super) fn multiply(sums: &mut Array<f32>, left: &Array<f32>, right: &Array<f32>, #[comptime] block: Block) {
    #[unroll]
    for i in 0..comptime!(block.tall as usize) {
        #[unroll]
        for j in 0..comptime!(block.wide as usize) {
            sums[comptime!(i * block.wide as usize + j)] += left[i] * right[j];
        }
    }
}
