//! What a launch of the matrix product is given beside its tensors, and what a thread makes of it.

use super::block::Block;
use cubecl::prelude::*;

/// Sizes and steps; what they mean is said by [`Product`](super::matmul::Product).
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Args {
    pub(crate) m: u32,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) outer: u32,
    pub(crate) period: u32,
    pub(crate) first_batch: u32,
    pub(crate) splits: u32,
    pub(crate) inner_splits: u32,
    pub(crate) outer_part: u32,
    pub(crate) k_part: u32,
    pub(crate) a_offset: usize,
    pub(crate) a_batch: usize,
    pub(crate) a_outer: usize,
    pub(crate) a_line: usize,
    pub(crate) a_k: usize,
    pub(crate) b_offset: usize,
    pub(crate) b_batch: usize,
    pub(crate) b_outer: usize,
    pub(crate) b_line: usize,
    pub(crate) b_k: usize,
    /// Of the matrix that B lies in, if it is packed.
    pub(crate) b_columns: usize,
    pub(crate) c_offset: usize,
    pub(crate) c_batch: usize,
    pub(crate) c_split: usize,
    pub(crate) c_line: usize,
    /// What sums are multiplied by.
    pub(crate) scale: f32,
    /// 1, which no compiler knows: see `packing::rounded`.
    pub(crate) one: f32,
}

/// The sizes and steps of a [`Gather`], and of what goes with it.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Image {
    /// The first pixel of all maps, or the first line, of this launch.
    pub(crate) first: u32,
    /// Pixels of a map, and of its rows.
    pub(crate) pixels: u32,
    pub(crate) map_width: u32,
    pub(crate) height: i32,
    pub(crate) width: i32,
    pub(crate) first_y: i32,
    pub(crate) first_x: i32,
    /// How far a map begins outside of its image, and how many numbers that is.
    pub(crate) up: i32,
    pub(crate) left: i32,
    pub(crate) before: usize,
    pub(crate) image: usize,
    pub(crate) channel: usize,
    pub(crate) row: usize,
    pub(crate) pixel: usize,
    /// From one tap to the next in A.
    pub(crate) a_tap_y: usize,
    pub(crate) a_tap_x: usize,
    /// From one image to the next in C, and from one row or pixel of the map to the next if it is spread.
    pub(crate) c_image: usize,
    pub(crate) c_row: usize,
    pub(crate) c_pixel: usize,
}

/// What a thread computes of C, and from what.
#[derive(CubeType)]
pub(crate) struct Part {
    pub(crate) first_row: u32,
    pub(crate) first_col: u32,
    /// Its rows are neighbours, its columns as far apart as there are threads to a row, so that neighbouring threads write neighbours.
    pub(crate) row: u32,
    pub(crate) col: u32,
    /// The sums' k and outer indices.
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) outer: u32,
    pub(crate) outer_end: u32,
    pub(crate) base_a: usize,
    pub(crate) base_b: usize,
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
