//! The device side of the matrix product: two kernels in one, with and without shared memory.
//!
//! Both give a thread a block of 4x4 to 8x8 numbers of C in registers and f32 sums, use no subgroup operations (RDNA1 drivers have got those wrong) and no
//! atomics, and differ in where the operands come from:
//!
//! - *shared*: the workgroup copies a block of terms of A and of B into shared memory, by fours where they lie so, and every number is used 16 to 128 times. The next
//!   block is on its way from memory while this one is multiplied.
//! - *direct*: every thread reads what it needs and leaves the sharing to the cache. Slower on a GPU, but nothing can go wrong in it.
//!
//! B is a matrix in memory, perhaps in words ([`Packing`](super::packing::Packing)), or an image of which the kernel reads the columns of a convolution as it goes ([`Gather`](super::block::Gather)). The pixels of all images are
//! one axis of C, so that small maps fill whole blocks.
//!
//! Which one a device gets is decided by [`shared_memory_works`](super::shared::shared_memory_works).

#![allow(clippy::too_many_arguments, reason = "a kernel's helper has no struct of borrowed tensors to take them in")]

use super::args::{Args, Image, Part, multiply};
use super::block::{AT_ONCE, Block, Kind};
use super::copies::{
    fetch_fours, fetch_map, fetch_matrix, fetch_taps, no_words, of_fours, of_line, of_map, of_matrix, of_taps, put, unpack,
};
use super::direct::direct_sums;
use super::launch::fold;
use super::packing::{Packing, rounded};
use cubecl::prelude::*;

/// A workgroup's shared memory: room for a block of terms of A and of B.
#[derive(CubeType)]
pub(crate) struct Room {
    pub(super) a: Shared<[f32]>,
    pub(super) b: Shared<[f32]>,
}

/// Room for so many numbers of A and of B.
#[cube]
pub(crate) fn room(#[comptime] a: usize, #[comptime] b: usize) -> Room {
    Room { a: Shared::<[f32]>::new_slice(a), b: Shared::<[f32]>::new_slice(b) }
}

/// What this thread computes of C's matrix `z`, part `split` of its sums, where the grid is blocks of columns and blocks of rows.
#[cube]
pub(crate) fn part_of(z: u32, split: u32, args: &Args, #[comptime] block: Block) -> Part {
    part_at(CUBE_POS_Y, CUBE_POS_X, z, split, args, block)
}

/// The same of a workgroup whose block of C is this one.
#[cube]
pub(crate) fn part_at(block_row: u32, block_col: u32, z: u32, split: u32, args: &Args, #[comptime] block: Block) -> Part {
    let across = comptime!(block.across());
    let start = split % args.inner_splits * args.k_part;
    let outer = split / args.inner_splits * args.outer_part;
    Part {
        first_row: block_row * block.rows,
        first_col: block_col * block.cols,
        row: UNIT_POS / across * block.tall,
        col: UNIT_POS % across,
        start,
        end: clamp_max(start + args.k_part, args.k),
        outer,
        outer_end: clamp_max(outer + args.outer_part, args.outer),
        base_a: args.a_offset + (z % args.period) as usize * args.a_batch,
        base_b: args.b_offset + z as usize * args.b_batch,
    }
}

/// A thread's sums, of nothing yet.
#[cube]
pub(crate) fn no_sums(#[comptime] block: Block) -> Array<f32> {
    let mut sums = Array::<f32>::new(comptime!((block.tall * block.wide) as usize));
    #[unroll]
    for i in 0..comptime!((block.tall * block.wide) as usize) {
        sums[i] = 0.0f32;
    }
    sums
}

/// The sums through shared memory, of factors of type `F`, to which packed numbers and, if the block says so, those of A are rounded. Where B has no scales, anything
/// is bound in their place.
#[cube]
pub(crate) fn shared_sums<A: Float, AN: Size, B: Numeric, BN: Size, F: Float, S: CubePrimitive>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    scales: &Tensor<S>,
    room: &mut Room,
    sums: &mut Array<f32>,
    args: &Args,
    image: &Image,
    part: &Part,
    #[comptime] block: Block,
) {
    let (left, right, kind) = comptime!((block.left(), block.right(), block.kind()));
    let gather = comptime!(block.gather.unwrap_or_default());
    let a_copies = if comptime!(left.fours) {
        of_fours(part.first_row, args.m, args.a_line, args.a_k, image, false, left)
    } else {
        of_matrix(part.first_row, args.m, args.a_line, args.a_k, image, left)
    };
    let b_copies = if comptime!(right.fours && kind == Kind::Map) {
        of_fours(part.first_col, args.n, 1usize, image.channel, image, true, right)
    } else if comptime!(right.fours) {
        of_fours(part.first_col, args.n, args.b_line, args.b_k, image, false, right)
    } else if comptime!(kind == Kind::Matrix) {
        of_matrix(part.first_col, args.n, args.b_line, args.b_k, image, right)
    } else if comptime!(kind == Kind::Map) {
        of_map(part.first_col, args.n, image, gather, right)
    } else {
        of_taps(part.first_col, args.n, image, gather, right)
    };
    let mut a_values = Array::<f32>::new(comptime!(left.each() as usize));
    let mut b_values = Array::<f32>::new(comptime!(right.each() as usize));
    let (mut a_words, mut b_words) = (no_words(left), no_words(right));
    let col = part.col * comptime!(if right.apart == 1 { 1 } else { AT_ONCE });

    // A part without terms reads nothing.
    let outer_end = select(part.start < part.end, part.outer_end, part.outer);
    let last = part.start + (part.end - part.start - 1u32) / comptime!(block.deep) * comptime!(block.deep);
    let mut o = part.outer;
    while o < outer_end {
        let base_a = part.base_a + o as usize * args.a_outer;
        let base_b = part.base_b + o as usize * args.b_outer;
        // The pixel of the map that is a thread's, in a weight gradient.
        let mine = part.start + UNIT_POS % comptime!(right.deep);
        let mut i = mine / image.map_width;
        let mut j = mine % image.map_width;
        let mut there = 0u32;
        // A block of terms is on its way from memory while the one before it is multiplied. Behind the last it is that one again, which is not used: what is loaded
        // under a condition is waited for where that ends.
        let mut k = part.start;
        while k < part.end + comptime!(block.deep) {
            let next = clamp_max(k, last);
            let left_over = part.end - next;
            let at_a = base_a + next as usize * args.a_k;
            if comptime!(left.fours) {
                fetch_fours::<A, AN, S>(a, scales, args.b_columns, at_a, left_over, &a_copies, &mut a_values, &mut a_words, left);
            } else {
                fetch_matrix::<A, AN, F, S>(a, scales, args.b_columns, args.one, at_a, left_over, &a_copies, &mut a_values, left);
            }
            if comptime!(right.fours) {
                let step = if comptime!(kind == Kind::Map) { image.channel } else { args.b_k };
                let at_b = base_b + next as usize * step;
                fetch_fours::<B, BN, S>(b, scales, args.b_columns, at_b, left_over, &b_copies, &mut b_values, &mut b_words, right);
            } else if comptime!(kind == Kind::Matrix) {
                let at_b = base_b + next as usize * args.b_k;
                fetch_matrix::<B, BN, F, S>(b, scales, args.b_columns, args.one, at_b, left_over, &b_copies, &mut b_values, right);
            } else if comptime!(kind == Kind::Map) {
                let at_b = base_b + next as usize * image.channel;
                fetch_map::<B, BN>(b, at_b, left_over, &b_copies, image, &mut b_values, gather, right);
            } else {
                let has_pixel = UNIT_POS % comptime!(right.deep) < left_over;
                there = fetch_taps::<B, BN>(b, base_b, i, j, has_pixel, &b_copies, image, &mut b_values, gather, right);
                j += comptime!(right.deep);
                while j >= image.map_width {
                    j -= image.map_width;
                    i += 1u32;
                }
            }
            if k > part.start {
                let mut of_a = Array::<f32>::new(comptime!(block.tall as usize));
                let mut of_b = Array::<f32>::new(comptime!(block.wide as usize));
                for term in 0..comptime!(left.depth()) {
                    // Products and no running sums: a compiler sees by their factors where four numbers lie in one piece, and reads them at once.
                    let at_a = term * comptime!(left.pitch()) + part.row;
                    let at_b = term * comptime!(right.pitch()) + col;
                    #[unroll]
                    for n in 0..block.tall {
                        of_a[n as usize] = room.a[(at_a + n) as usize];
                    }
                    #[unroll]
                    for n in 0..block.wide {
                        of_b[n as usize] = room.b[(at_b + comptime!(of_line(n * block.across(), right))) as usize];
                    }
                    multiply(sums, &of_a, &of_b, block);
                }
            }
            sync_cube();
            if k < part.end {
                if comptime!(block.rounds) {
                    // Here and not where they are fetched, which would wait for them.
                    #[unroll]
                    for i in 0..comptime!(left.each() as usize) {
                        a_values[i] = rounded::<F>(a_values[i], args.one);
                    }
                }
                if comptime!(right.fours && right.packing != Packing::Plain) {
                    unpack::<F>(&b_words, &mut b_values, args.one, right);
                }
                put(&a_values, &mut room.a, &a_copies, left_over, there, Kind::Matrix, left);
                put(&b_values, &mut room.b, &b_copies, left_over, there, comptime!(if right.fours { Kind::Matrix } else { kind }), right);
            }
            sync_cube();
            k += comptime!(block.deep);
        }
        o += 1u32;
    }
}

/// `C = A B (+ bias) (SiLU)`; `beside` is the bias, or the scales of a B that has such, or anything. Grid: blocks of columns, blocks of rows, batches times splits.
///
/// # Safety
/// No index is checked: A, B and C must hold all that [`Args`] and [`Image`] reach, a bias a number to each row of every batch of the period, scales one to each row of the matrix that B lies in.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn matmul_kernel<A: Float, AN: Size, B: Numeric, BN: Size, C: Float>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    beside: &Tensor<f32>,
    c: &mut Tensor<C>,
    args: &Args,
    image: &Image,
    #[comptime] block: Block,
    #[define(A, B, C)] _types: [ElemType; 3],
    #[define(AN, BN)] _sizes: [usize; 2],
) {
    let z = CUBE_POS_Z / args.splits + args.first_batch;
    let split = CUBE_POS_Z % args.splits;
    let part = part_of(z, split, args, block);
    let mut sums = no_sums(block);
    if comptime!(block.shared) {
        let mut room = room(comptime!(block.left().size()), comptime!(block.right().size()));
        shared_sums::<A, AN, B, BN, A, f32>(a, b, beside, &mut room, &mut sums, args, image, &part, block);
    } else {
        direct_sums::<A, AN, B, BN, A, f32>(a, b, beside, &mut sums, args, image, &part, block);
    }
    write::<C, f32>(&sums, beside, c, z, split, args, image, &part, block);
}

/// A thread's numbers of C's matrix `z`, part `split`, behind what is done to each.
#[cube]
pub(super) fn write<C: Float, S: CubePrimitive>(
    sums: &Array<f32>,
    beside: &Tensor<S>,
    c: &mut Tensor<C>,
    z: u32,
    split: u32,
    args: &Args,
    image: &Image,
    part: &Part,
    #[comptime] block: Block,
) {
    let across = comptime!(block.across());
    let base_c = args.c_offset + z as usize * args.c_batch + split as usize * args.c_split;
    #[unroll]
    for j in 0..block.wide {
        let x = part.first_col + part.col + comptime!(j * across);
        let mut column = base_c;
        if comptime!(block.kind() == Kind::Map) {
            let at = x + image.first;
            let pixel = at % image.pixels;
            column += (at / image.pixels) as usize * image.c_image;
            if comptime!(block.spread) {
                column += (pixel / image.map_width) as usize * image.c_row + (pixel % image.map_width) as usize * image.c_pixel;
            } else {
                column += pixel as usize;
            }
        } else {
            column += x as usize;
        }
        #[unroll]
        for i in 0..block.tall {
            let y = part.first_row + part.row + i;
            if y < args.m && x < args.n {
                let mut value = sums[comptime!((i * block.wide + j) as usize)] * args.scale;
                if comptime!(block.bias) {
                    // The rows of C are the output channels of one group.
                    value += f32::cast_from(beside[(z % args.period * args.m + y) as usize]);
                }
                if comptime!(block.silu) {
                    value /= 1.0f32 + (-value).exp();
                }
                let at = column + y as usize * args.c_line;
                if comptime!(block.onto) {
                    value += f32::cast_from(c[at]);
                }
                c[at] = C::cast_from(value);
            }
        }
    }
}

/// `out[i] = sum over p of parts[p, i]`, in that order, by eights.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn add_parts_kernel<E: Float>(parts: &Tensor<f32>, out: &mut Tensor<E>, count: u32, #[define(E)] _type: ElemType) {
    let at = ABSOLUTE_POS;
    if at >= out.len() {
        terminate!();
    }
    out[at] = E::cast_from(fold(parts, at, out.len(), count));
}
