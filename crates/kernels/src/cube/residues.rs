//! The products of a gradient of the input, one for each residue of the stride, in one launch: each is a small grid, and all have W, dy and dx in common.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]
#![allow(clippy::needless_range_loop, reason = "a loop that is unrolled is over numbers")]

use super::args::{Args, Image};
use super::block::Block;
use super::product::{no_sums, part_at, room, shared_sums, write};
use cubecl::prelude::*;

/// Products through shared memory that write into one tensor, each by its own arguments. Grid: the blocks of one product after the other, and perhaps a few more;
/// then batches.
///
/// # Safety
/// No index is checked: the tensors must hold all that each product's [`Args`] and [`Image`] reach.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn matmul_residues_kernel<E: Float>(
    a: &Tensor<f32>,
    b: &Tensor<E>,
    c: &mut Tensor<E>,
    args: &Sequence<Args>,
    images: &Sequence<Image>,
    #[comptime] blocks: Vec<Block>,
    #[comptime] shared: [usize; 2],
    #[define(E)] _type: ElemType,
) {
    let mut room = room(comptime!(shared[0]), comptime!(shared[1]));
    let count = comptime!(blocks.len());
    let number = CUBE_POS_Y * CUBE_COUNT_X + CUBE_POS_X;
    let mut end = 0u32;
    #[unroll]
    for r in 0..count {
        let block = comptime!(blocks[r]);
        let args = args.index(r);
        let image = images.index(r);
        let across = args.n.div_ceil(block.cols);
        let first = end;
        end += across * args.m.div_ceil(block.rows);
        // A whole workgroup is in this product or in none.
        if number >= first && number < end {
            let part = part_at((number - first) / across, (number - first) % across, CUBE_POS_Z, 0u32, args, block);
            let mut sums = no_sums(block);
            shared_sums::<f32, E, f32>(a, b, a, &mut room, &mut sums, args, image, &part, block);
            write::<E>(&sums, a, c, CUBE_POS_Z, 0u32, args, image, &part, block);
        }
    }
}
