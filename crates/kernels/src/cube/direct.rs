//! The matrix product without shared memory: every thread reads what it needs and leaves the sharing to the cache.

#![allow(clippy::too_many_arguments, reason = "a kernel's helper has no struct of borrowed tensors to take them in")]

use super::args::{Args, Image, Part, multiply};
use super::block::{Block, Gather};
use super::packing::{Packing, number_at, rounded};
use cubecl::prelude::*;

/// A part of an image's number's place: that of its pixel, or of its channel and tap. The number's is the sum of both.
#[derive(CubeType)]
struct Spot {
    offset: usize,
    y: i32,
    x: i32,
}

#[cube]
fn pixel_spot(index: u32, image: &Image, #[comptime] gather: Gather) -> Spot {
    let at = if comptime!(gather.taps_are_lines) { index } else { index + image.first };
    let pixel = at % image.pixels;
    let i = pixel / image.map_width;
    let j = pixel % image.map_width;
    Spot {
        offset: (at / image.pixels) as usize * image.image,
        y: image.first_y + i as i32 * comptime!(gather.step.0),
        x: image.first_x + j as i32 * comptime!(gather.step.1),
    }
}

#[cube]
fn tap_spot(index: u32, image: &Image, #[comptime] gather: Gather) -> Spot {
    let channel = index / comptime!(gather.count());
    let tap = index % comptime!(gather.count());
    let i = tap / comptime!(gather.taps.1);
    let j = tap % comptime!(gather.taps.1);
    Spot { offset: channel as usize * image.channel, y: i as i32 * comptime!(gather.tap.0), x: j as i32 * comptime!(gather.tap.1) }
}

/// Where a line of B is, or a term of its sums (`is_line` false).
#[cube]
fn spot(index: u32, image: &Image, #[comptime] is_line: bool, #[comptime] gather: Gather) -> Spot {
    if comptime!(is_line == gather.taps_are_lines) { tap_spot(index, image, gather) } else { pixel_spot(index, image, gather) }
}

/// The image's number at the sum of two spots.
#[cube]
fn number<E: Numeric, N: Size>(from: &Tensor<Vector<E, N>>, base: usize, offset: usize, y: i32, x: i32, image: &Image) -> f32 {
    let mut value = 0.0f32;
    if y >= 0 && y < image.height && x >= 0 && x < image.width {
        value = f32::cast_from(from[base + offset + y as usize * image.row + x as usize * image.pixel].extract(0usize));
    }
    value
}

/// How far term k of a row of A is from its first.
#[cube]
fn term_of_a(k: u32, step: usize, image: &Image, #[comptime] gather: Option<Gather>) -> usize {
    if comptime!(gather.is_some_and(|gather| !gather.taps_are_lines)) {
        let gather = comptime!(gather.unwrap_or_default());
        let channel = k / comptime!(gather.count());
        let tap = k % comptime!(gather.count());
        let i = tap / comptime!(gather.taps.1);
        let j = tap % comptime!(gather.taps.1);
        channel as usize * step + i as usize * image.a_tap_y + j as usize * image.a_tap_x
    } else {
        k as usize * step
    }
}

/// The first of a thread's numbers of one operand: row or column `first + i * step`, or the last there is, which is read and not used.
#[cube]
fn starts(base: usize, first: u32, count: u32, line_step: usize, #[comptime] step: u32, #[comptime] lines: u32) -> Array<usize> {
    let mut at = Array::<usize>::new(comptime!(lines as usize));
    #[unroll]
    for i in 0..lines {
        at[i as usize] = base + clamp_max(first + comptime!(i * step), count - 1) as usize * line_step;
    }
    at
}

/// Term k of the sums, straight from memory. `right` are B's numbers of this term.
#[cube]
fn add_term<E: Float, N: Size, F: Float>(
    a: &Tensor<Vector<E, N>>,
    at_a: &Array<usize>,
    right: &Array<f32>,
    sums: &mut Array<f32>,
    step_a: usize,
    one: f32,
    #[comptime] block: Block,
) {
    let mut left = Array::<f32>::new(comptime!(block.tall as usize));
    #[unroll]
    for i in 0..comptime!(block.tall as usize) {
        let value = f32::cast_from(a[at_a[i] + step_a].extract(0usize));
        left[i] = if comptime!(block.rounds) { rounded::<F>(value, one) } else { value };
    }
    multiply(sums, &left, right, block);
}

/// The sums straight from memory, number by number, of factors of type `F`, to which packed numbers and, if the block says so, those of A are rounded.
#[cube]
pub(crate) fn direct_sums<A: Float, AN: Size, B: Numeric, BN: Size, F: Float, S: CubePrimitive>(
    a: &Tensor<Vector<A, AN>>,
    b: &Tensor<Vector<B, BN>>,
    scales: &Tensor<S>,
    sums: &mut Array<f32>,
    args: &Args,
    image: &Image,
    part: &Part,
    #[comptime] block: Block,
) {
    let across = comptime!(block.across());
    let taps = comptime!(block.taps().0 * block.taps().1);
    let mut right = Array::<f32>::new(comptime!(block.wide as usize));
    let mut o = part.outer;
    while o < part.outer_end {
        let base_b = part.base_b + o as usize * args.b_outer;
        let at_a = starts(part.base_a + o as usize * args.a_outer, part.first_row + part.row, args.m, args.a_line, 1u32, block.tall);
        let mut term = part.start * taps;
        let end = part.end * taps;
        if comptime!(block.gather.is_some()) {
            let gather = comptime!(block.gather.unwrap_or_default());
            let mut offsets = Array::<usize>::new(comptime!(block.wide as usize));
            let mut ys = Array::<i32>::new(comptime!(block.wide as usize));
            let mut xs = Array::<i32>::new(comptime!(block.wide as usize));
            #[unroll]
            for j in 0..block.wide {
                // A line beyond the last is read as that, and not used.
                let line = spot(clamp_max(part.first_col + part.col + comptime!(j * across), args.n - 1), image, true, gather);
                offsets[j as usize] = base_b + line.offset;
                ys[j as usize] = line.y;
                xs[j as usize] = line.x;
            }
            while term < end {
                let of_term = spot(term, image, false, gather);
                #[unroll]
                for j in 0..comptime!(block.wide as usize) {
                    right[j] = number::<B, BN>(b, offsets[j], of_term.offset, ys[j] + of_term.y, xs[j] + of_term.x, image);
                }
                add_term::<A, AN, F>(a, &at_a, &right, sums, term_of_a(term, args.a_k, image, comptime!(block.gather)), args.one, block);
                term += 1u32;
            }
        } else {
            let at_b = starts(base_b, part.first_col + part.col, args.n, args.b_line, across, block.wide);
            while term < end {
                #[unroll]
                for j in 0..comptime!(block.wide as usize) {
                    let at = at_b[j] + term as usize * args.b_k;
                    let mut row = 0usize;
                    if comptime!(block.packing == Packing::Int8) {
                        row = at / args.b_columns;
                    }
                    right[j] = number_at::<B, BN, F, S>(b, at, scales, row, args.one, comptime!(block.packing));
                }
                add_term::<A, AN, F>(a, &at_a, &right, sums, term as usize * args.a_k, args.one, block);
                term += 1u32;
            }
        }
        o += 1u32;
    }
}
