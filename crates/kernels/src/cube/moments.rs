//! The moments of the rows of a product, which are the channels of a convolution: found in the launch that makes it, where batch normalisation would read all of
//! it once more.
//!
//! A workgroup finds mean and `Σ (v - mean)²` of each row of its block, of numbers as C has them. Both are sums over the threads that share the row, by way of
//! shared memory, which B has left; [`norm_statistics_kernel`](super::norm_kernels::norm_statistics_kernel) puts blocks together.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]
#![allow(clippy::needless_range_loop, reason = "a loop that is unrolled is over numbers")]

use super::args::{Args, Image, Part};
use super::block::Block;
use super::product::{Room, no_sums, part_of, room, shared_sums, write};
use cubecl::prelude::*;

/// `C = Σ A B` over the images B, each of which has some of A's columns, through shared memory, and to `parts [3, rows of C, blocks of columns]` its moments: mean,
/// `Σ (v - mean)²` and how many v there are. Grid: blocks of columns, blocks of rows.
///
/// # Safety
/// No index is checked: A, each B and C must hold all that its [`Args`] and [`Image`] reach, and [`Block::adds_rows`] be true. All blocks are of one size.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn matmul_moments_kernel<AN: Size, E: Float, BN: Size>(
    a: &Tensor<Vector<f32, AN>>,
    b: &Sequence<OwnedTensor<Vector<E, BN>>>,
    c: &mut Tensor<E>,
    parts: &mut Tensor<f32>,
    args: &Sequence<Args>,
    images: &Sequence<Image>,
    #[comptime] blocks: Vec<Block>,
    #[comptime] shared: [usize; 2],
    #[define(E)] _type: ElemType,
    #[define(AN, BN)] _sizes: [usize; 2],
) {
    let count = comptime!(blocks.len());
    let block = comptime!(blocks[0]);
    let mut sums = no_sums(block);
    let mut room = room(comptime!(shared[0]), comptime!(shared[1]));
    #[unroll]
    for i in 0..count {
        let block = comptime!(blocks[i]);
        let part = part_of(0u32, 0u32, args.index(i), block);
        shared_sums::<f32, AN, E, BN, f32, Vector<f32, AN>>(
            a,
            b.index(i),
            a,
            &mut room,
            &mut sums,
            args.index(i),
            images.index(i),
            &part,
            block,
        );
    }
    let args = args.index(0usize);
    let part = part_of(0u32, 0u32, args, block);
    write::<E, Vector<f32, AN>>(&sums, a, c, 0u32, 0u32, args, images.index(0usize), &part, block);

    // What a row's thread has is of that row; what others have is not used.
    let row = part.first_row + UNIT_POS;
    let count = clamp_max(args.n - part.first_col, block.cols);
    let values = f32::cast_from(count);
    let mean = sum_of_row::<E>(&sums, &mut room, args, &part, false, block) / values;
    if UNIT_POS < block.rows {
        room.a[UNIT_POS as usize] = mean;
    }
    sync_cube();
    let squares = sum_of_row::<E>(&sums, &mut room, args, &part, true, block);
    if UNIT_POS < block.rows && row < args.m {
        let blocks = args.n.div_ceil(block.cols);
        parts[(row * blocks + CUBE_POS_X) as usize] = mean;
        parts[((args.m + row) * blocks + CUBE_POS_X) as usize] = squares;
        parts[((2 * args.m + row) * blocks + CUBE_POS_X) as usize] = values;
    }
}

/// Of the block's row number `UNIT_POS`, if it has so many, `Σ v` over the threads that share it; or `Σ (v - mean)²`, where means are in A's place.
#[cube]
fn sum_of_row<E: Float>(
    sums: &Array<f32>,
    room: &mut Room,
    args: &Args,
    part: &Part,
    #[comptime] around_mean: bool,
    #[comptime] block: Block,
) -> f32 {
    let (across, pitch) = comptime!((block.across(), block.left().pitch()));
    #[unroll]
    for i in 0..block.tall {
        let row = part.row + i;
        let mut own = 0.0f32;
        #[unroll]
        for j in 0..block.wide {
            let mut value = f32::cast_from(E::cast_from(sums[comptime!((i * block.wide + j) as usize)] * args.scale));
            if comptime!(around_mean) {
                value -= room.a[row as usize];
                value *= value;
            }
            own += select(part.first_col + part.col + comptime!(j * across) < args.n, value, 0.0f32);
        }
        room.b[(part.col * pitch + row) as usize] = own;
    }
    sync_cube();
    let mut sum = 0.0f32;
    if UNIT_POS < block.rows {
        for column in 0..across {
            sum += room.b[(column * pitch + UNIT_POS) as usize];
        }
    }
    sum
}
