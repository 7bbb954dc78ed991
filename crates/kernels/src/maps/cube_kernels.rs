//! The device side of a map: a product with what belongs to it.

#![allow(clippy::too_many_arguments, reason = "a kernel has no struct of borrowed tensors to take them in")]

use cubecl::prelude::*;

use crate::cube::args::{Args, Image, Part};
use crate::cube::block::Block;
use crate::cube::direct::direct_sums;
use crate::cube::product::{no_sums, part_of, room, shared_sums};

/// What a product of [`map_kernel`] has besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct With {
    /// The branch's terms.
    pub(super) low: Option<Block>,
    /// A number to each column.
    pub(super) bias: bool,
    /// What it is added to.
    pub(super) onto: bool,
}

/// `C = A B + L M (+ bias) (+ onto)` in f32, of A and B as they lie; A, if the block says so, and a packed B are rounded to `F`. C may be `onto`. Grid: blocks of
/// columns, blocks of rows.
///
/// # Safety
/// No index is checked: the tensors must hold all that `args` and, with a branch, `low` reach, a bias a number to each column, `onto` what C has; of a B with
/// scales, `bias` or (beside a bias, of a C in f32) `onto` is a scale to each row of its matrix.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn map_kernel<A: Float, AN: Size, F: Float, B: Numeric, BN: Size, C: Float>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    left: &Tensor<Vector<f32, Const<1>>>,
    right: &Tensor<Vector<f32, Const<1>>>,
    bias: &Tensor<f32>,
    onto: &Tensor<C>,
    c: &mut Tensor<C>,
    args: &Args,
    low: &Args,
    image: &Image,
    #[comptime] block: Block,
    #[comptime] with: With,
    #[define(A, F, B, C)] _types: [ElemType; 4],
    #[define(AN, BN)] _sizes: [usize; 2],
) {
    let part = part_of(0u32, 0u32, args, block);
    // One of the two is there for scales.
    let sums = if comptime!(with.bias) {
        map_sums::<A, AN, F, B, BN, C>(a, b, onto, left, right, args, low, image, &part, block, with)
    } else {
        map_sums::<A, AN, F, B, BN, f32>(a, b, bias, left, right, args, low, image, &part, block, with)
    };
    write::<C>(&sums, bias, onto, c, args, &part, block, with);
}

/// The sums of [`map_kernel`].
#[cube]
fn map_sums<A: Float, AN: Size, F: Float, B: Numeric, BN: Size, S: CubePrimitive>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    scales: &Tensor<S>,
    left: &Tensor<Vector<f32, Const<1>>>,
    right: &Tensor<Vector<f32, Const<1>>>,
    args: &Args,
    low: &Args,
    image: &Image,
    part: &Part,
    #[comptime] block: Block,
    #[comptime] with: With,
) -> Array<f32> {
    let mut sums = no_sums(block);
    if comptime!(block.shared) {
        let mut room = room(comptime!(block.left().size()), comptime!(block.right().size()));
        shared_sums::<A, AN, B, BN, F, S>(a, b, scales, &mut room, &mut sums, args, image, part, block);
        if comptime!(with.low.is_some()) {
            let block = comptime!(with.low.unwrap_or(block));
            shared_sums::<f32, Const<1>, f32, Const<1>, f32, S>(
                left,
                right,
                scales,
                &mut room,
                &mut sums,
                low,
                image,
                &part_of(0u32, 0u32, low, block),
                block,
            );
        }
    } else {
        direct_sums::<A, AN, B, BN, F, S>(a, b, scales, &mut sums, args, image, part, block);
        if comptime!(with.low.is_some()) {
            let block = comptime!(with.low.unwrap_or(block));
            direct_sums::<f32, Const<1>, f32, Const<1>, f32, S>(
                left,
                right,
                scales,
                &mut sums,
                low,
                image,
                &part_of(0u32, 0u32, low, block),
                block,
            );
        }
    }
    sums
}

/// A thread's numbers of C, times the scale.
#[cube]
fn write<C: Float>(
    sums: &Array<f32>,
    bias: &Tensor<f32>,
    onto: &Tensor<C>,
    c: &mut Tensor<C>,
    args: &Args,
    part: &Part,
    #[comptime] block: Block,
    #[comptime] with: With,
) {
    #[unroll]
    for j in 0..block.wide {
        let column = part.first_col + part.col + comptime!(j * block.across());
        #[unroll]
        for i in 0..block.tall {
            let row = part.first_row + part.row + i;
            if row < args.m && column < args.n {
                let at = args.c_offset + row as usize * args.c_line + column as usize;
                let mut value = sums[comptime!((i * block.wide + j) as usize)] * args.scale;
                if comptime!(with.bias) {
                    value += bias[column as usize];
                }
                if comptime!(with.onto) {
                    value += f32::cast_from(onto[at]);
                }
                c[at] = C::cast_from(value);
            }
        }
    }
}
