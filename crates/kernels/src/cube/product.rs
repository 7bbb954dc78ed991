//! The device side of the matrix product: two kernels in one, with and without shared memory.
//!
//! Both give a thread a block of 4x4 or 8x4 numbers of C in registers and f32 sums, use no subgroup operations (RDNA1 drivers have got those wrong), no
//! vector loads and no atomics, and differ in where the operands come from:
//!
//! - *shared*: the workgroup copies a block of 16 terms of A and of B into shared memory, and every number is used 16 to 64 times.
//! - *direct*: every thread reads what it needs and leaves the sharing to the cache. Slower on a GPU, but nothing can go wrong in it.
//!
//! B is a matrix in memory, or an image of which the kernel reads the columns of a convolution as it goes ([`Gather`]).
//!
//! Which one a device gets is decided by [`shared_memory_works`](super::shared::shared_memory_works).

#![allow(clippy::too_many_arguments, reason = "a kernel's helper has no struct of borrowed tensors to take them in")]

use cubecl::prelude::*;

/// What is compiled into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    /// Rows and columns of C in one workgroup, and rows in one thread, whose columns are [`COLS`].
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) tall: u32,
    /// Through shared memory.
    pub(crate) shared: bool,
    /// Whether neighbouring k are neighbours in memory, for A and for B: shared blocks are then loaded along k.
    pub(crate) a_along_k: bool,
    pub(crate) b_along_k: bool,
    /// Add a number to each row.
    pub(crate) bias: bool,
    /// Apply `y * sigmoid(y)` at the end.
    pub(crate) silu: bool,
    /// B is read from an image.
    pub(crate) gather: Option<Gather>,
    /// C's columns are pixels that are not neighbours.
    pub(crate) spread: bool,
}

/// B as the columns of a convolution, which nobody writes down: pixel (i, j) of a map and tap (s, t) of channel c is the image's number
/// `(c, first_y + i step_y + s tap_y, first_x + j step_x + t tap_x)`, zero outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    /// Taps, (vertical, horizontal), as are all pairs.
    pub(crate) taps: (u32, u32),
    pub(crate) step: (i32, i32),
    pub(crate) tap: (i32, i32),
    /// Whether B's lines are channels and taps and its k pixels, as in a weight gradient; else its k are channels and taps, and so are A's.
    pub(crate) taps_are_lines: bool,
}

impl Gather {
    fn count(&self) -> u32 {
        self.taps.0 * self.taps.1
    }
}

/// The sizes and steps of a [`Gather`], and of what goes with it.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Image {
    /// The first pixel of the map, or the first line, of this launch.
    first: u32,
    map_width: u32,
    height: i32,
    width: i32,
    first_y: i32,
    first_x: i32,
    channel: usize,
    row: usize,
    pixel: usize,
    /// From one tap to the next in A.
    a_tap_y: usize,
    a_tap_x: usize,
    /// From one pixel of the map to the next in C, if it is spread.
    c_row: usize,
    c_pixel: usize,
}

/// A part of an image's number's place: that of its pixel, or of its channel and tap. The number's is the sum of both.
#[derive(CubeType)]
struct Spot {
    offset: usize,
    y: i32,
    x: i32,
}

#[cube]
fn pixel_spot(index: u32, image: &Image, #[comptime] gather: Gather) -> Spot {
    let at = index + image.first;
    let i = at / image.map_width;
    let j = at % image.map_width;
    Spot { offset: 0usize, y: image.first_y + i as i32 * comptime!(gather.step.0), x: image.first_x + j as i32 * comptime!(gather.step.1) }
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
fn number<E: Float>(from: &Tensor<E>, base: usize, offset: usize, y: i32, x: i32, image: &Image) -> f32 {
    let mut value = 0.0f32;
    if y >= 0 && y < image.height && x >= 0 && x < image.width {
        value = f32::cast_from(from[base + offset + y as usize * image.row + x as usize * image.pixel]);
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

impl Block {
    /// Threads of a workgroup.
    pub(crate) fn units(&self) -> u32 {
        self.rows * self.cols / (self.tall * COLS)
    }
}

/// Columns of C to a thread. With 8 rows it loads 12 numbers for 32 multiply-adds, in about 60 registers.
pub(crate) const COLS: u32 = 4;

/// Terms of the sum in shared memory at a time.
const DEPTH: u32 = 16;

/// Extra floats to a row of shared memory, so that threads loading along k do not all write to one bank.
const PAD: u32 = 4;

/// Sizes and steps; what they mean is said by [`Product`](super::matmul::Product).
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Args {
    m: u32,
    n: u32,
    k: u32,
    outer: u32,
    period: u32,
    first_batch: u32,
    splits: u32,
    inner_splits: u32,
    outer_part: u32,
    k_part: u32,
    a_offset: usize,
    a_batch: usize,
    a_outer: usize,
    a_line: usize,
    a_k: usize,
    b_offset: usize,
    b_batch: usize,
    b_outer: usize,
    b_line: usize,
    b_k: usize,
    c_offset: usize,
    c_batch: usize,
    c_split: usize,
    c_line: usize,
    /// What sums are multiplied by.
    scale: f32,
}

/// One block of one operand into shared memory as `[DEPTH][lines + PAD]`, zero outside `count` lines and before `end`.
#[cube]
fn load<E: Float>(
    from: &Tensor<E>,
    to: &mut Shared<[f32]>,
    base: usize,
    line_step: usize,
    k_step: usize,
    image: &Image,
    first: u32,
    count: u32,
    start: u32,
    end: u32,
    #[comptime] lines: u32,
    #[comptime] units: u32,
    #[comptime] along_k: bool,
    #[comptime] gather: Option<Gather>,
) {
    #[unroll]
    for i in 0..comptime!(lines * DEPTH / units) {
        let at = UNIT_POS + comptime!(i * units);
        let line = if comptime!(along_k) { at / DEPTH } else { at % lines };
        let k = if comptime!(along_k) { at % DEPTH } else { at / lines };
        let mut value = 0.0f32;
        if first + line < count && start + k < end {
            value = f32::cast_from(from[base + (first + line) as usize * line_step + term_of_a(start + k, k_step, image, gather)]);
        }
        to[(k * comptime!(lines + PAD) + line) as usize] = value;
    }
}

/// The same of an image. A thread has one line, or one k (`along_k`): there are a multiple of either as many threads.
#[cube]
fn load_image<E: Float>(
    from: &Tensor<E>,
    to: &mut Shared<[f32]>,
    base: usize,
    image: &Image,
    first: u32,
    count: u32,
    start: u32,
    end: u32,
    #[comptime] lines: u32,
    #[comptime] units: u32,
    #[comptime] along_k: bool,
    #[comptime] gather: Gather,
) {
    let width = comptime!(if along_k { DEPTH } else { lines });
    let mine = UNIT_POS % width;
    let first_of_others = UNIT_POS / width;
    let fixed = if comptime!(along_k) { spot(start + mine, image, false, gather) } else { spot(first + mine, image, true, gather) };
    let inside = if comptime!(along_k) { start + mine < end } else { first + mine < count };
    #[unroll]
    for i in 0..comptime!(lines * DEPTH / units) {
        let other = first_of_others + comptime!(i * (units / width));
        let moving = if comptime!(along_k) { spot(first + other, image, true, gather) } else { spot(start + other, image, false, gather) };
        let also = if comptime!(along_k) { first + other < count } else { start + other < end };
        let mut value = 0.0f32;
        if inside && also {
            value = number::<E>(from, base, fixed.offset + moving.offset, fixed.y + moving.y, fixed.x + moving.x, image);
        }
        let k = if comptime!(along_k) { mine } else { other };
        let line = if comptime!(along_k) { other } else { mine };
        to[(k * comptime!(lines + PAD) + line) as usize] = value;
    }
}

/// `sums += left * right^T`.
#[cube]
fn multiply(sums: &mut Array<f32>, left: &Array<f32>, right: &Array<f32>, #[comptime] tall: u32) {
    #[unroll]
    for i in 0..comptime!(tall as usize) {
        #[unroll]
        for j in 0..comptime!(COLS as usize) {
            sums[comptime!(i * COLS as usize + j)] += left[i] * right[j];
        }
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
fn term<E: Float>(a: &Tensor<E>, at_a: &Array<usize>, right: &Array<f32>, sums: &mut Array<f32>, step_a: usize, #[comptime] tall: u32) {
    let mut left = Array::<f32>::new(comptime!(tall as usize));
    #[unroll]
    for i in 0..comptime!(tall as usize) {
        left[i] = f32::cast_from(a[at_a[i] + step_a]);
    }
    multiply(sums, &left, right, tall);
}

/// `C = A B (+ bias) (SiLU)`. Grid: blocks of columns, blocks of rows, batches times splits. A thread's rows are neighbours, its
/// columns as far apart as there are threads to a row, so that neighbouring threads write neighbours.
#[cube(launch, address_type = "dynamic")]
pub(crate) fn matmul_kernel<A: Float, B: Float, C: Float>(
    a: &Tensor<A>,
    b: &Tensor<B>,
    bias: &Tensor<A>,
    c: &mut Tensor<C>,
    args: &Args,
    image: &Image,
    #[comptime] block: Block,
    #[define(A, B, C)] _types: [ElemType; 3],
) {
    let across = comptime!(block.cols / COLS);
    let row = UNIT_POS / across * block.tall;
    let col = UNIT_POS % across;
    let first_row = CUBE_POS_Y * block.rows;
    let first_col = CUBE_POS_X * block.cols;

    let z = CUBE_POS_Z / args.splits + args.first_batch;
    let split = CUBE_POS_Z % args.splits;
    let start = split % args.inner_splits * args.k_part;
    let end = clamp_max(start + args.k_part, args.k);
    let mut o = split / args.inner_splits * args.outer_part;
    let o_end = clamp_max(o + args.outer_part, args.outer);

    let mut sums = Array::<f32>::new(comptime!((block.tall * COLS) as usize));
    #[unroll]
    for i in 0..comptime!((block.tall * COLS) as usize) {
        sums[i] = 0.0f32;
    }
    while o < o_end {
        let base_a = args.a_offset + (z % args.period) as usize * args.a_batch + o as usize * args.a_outer;
        let base_b = args.b_offset + z as usize * args.b_batch + o as usize * args.b_outer;
        let mut k = start;
        if comptime!(block.shared) {
            let mut block_a = Shared::<[f32]>::new_slice(comptime!((DEPTH * (block.rows + PAD)) as usize));
            let mut block_b = Shared::<[f32]>::new_slice(comptime!((DEPTH * (block.cols + PAD)) as usize));
            let units = comptime!(block.units());
            let (rows, cols) = comptime!((block.rows, block.cols));
            let (along_a, along_b) = comptime!((block.a_along_k, block.b_along_k));
            while k < end {
                let gather = comptime!(block.gather);
                load::<A>(a, &mut block_a, base_a, args.a_line, args.a_k, image, first_row, args.m, k, end, rows, units, along_a, gather);
                if comptime!(gather.is_some()) {
                    let gather = comptime!(gather.unwrap_or_default());
                    load_image::<B>(b, &mut block_b, base_b, image, first_col, args.n, k, end, cols, units, along_b, gather);
                } else {
                    let plain = comptime!(None);
                    load::<B>(
                        b,
                        &mut block_b,
                        base_b,
                        args.b_line,
                        args.b_k,
                        image,
                        first_col,
                        args.n,
                        k,
                        end,
                        cols,
                        units,
                        along_b,
                        plain,
                    );
                }
                sync_cube();
                #[unroll]
                for step in 0..DEPTH {
                    let mut left = Array::<f32>::new(comptime!(block.tall as usize));
                    let mut right = Array::<f32>::new(comptime!(COLS as usize));
                    #[unroll]
                    for i in 0..block.tall {
                        left[i as usize] = block_a[(row + comptime!(step * (block.rows + PAD) + i)) as usize];
                    }
                    #[unroll]
                    for j in 0..COLS {
                        right[j as usize] = block_b[(col + comptime!(step * (block.cols + PAD) + j * across)) as usize];
                    }
                    multiply(&mut sums, &left, &right, block.tall);
                }
                sync_cube();
                k += DEPTH;
            }
        } else {
            let at_a = starts(base_a, first_row + row, args.m, args.a_line, 1u32, block.tall);
            if comptime!(block.gather.is_some()) {
                let gather = comptime!(block.gather.unwrap_or_default());
                let mut offsets = Array::<usize>::new(comptime!(COLS as usize));
                let mut ys = Array::<i32>::new(comptime!(COLS as usize));
                let mut xs = Array::<i32>::new(comptime!(COLS as usize));
                #[unroll]
                for j in 0..COLS {
                    // A line beyond the last is read as that, and not used.
                    let line = spot(clamp_max(first_col + col + comptime!(j * across), args.n - 1), image, true, gather);
                    offsets[j as usize] = base_b + line.offset;
                    ys[j as usize] = line.y;
                    xs[j as usize] = line.x;
                }
                while k < end {
                    let of_k = spot(k, image, false, gather);
                    let mut right = Array::<f32>::new(comptime!(COLS as usize));
                    #[unroll]
                    for j in 0..comptime!(COLS as usize) {
                        right[j] = number::<B>(b, offsets[j], of_k.offset, ys[j] + of_k.y, xs[j] + of_k.x, image);
                    }
                    term::<A>(a, &at_a, &right, &mut sums, term_of_a(k, args.a_k, image, comptime!(block.gather)), block.tall);
                    k += 1u32;
                }
            } else {
                let at_b = starts(base_b, first_col + col, args.n, args.b_line, across, COLS);
                while k < end {
                    let mut right = Array::<f32>::new(comptime!(COLS as usize));
                    #[unroll]
                    for j in 0..comptime!(COLS as usize) {
                        right[j] = f32::cast_from(b[at_b[j] + k as usize * args.b_k]);
                    }
                    term::<A>(a, &at_a, &right, &mut sums, k as usize * args.a_k, block.tall);
                    k += 1u32;
                }
            }
        }
        o += 1u32;
    }

    let base_c = args.c_offset + z as usize * args.c_batch + split as usize * args.c_split;
    #[unroll]
    for i in 0..block.tall {
        let y = first_row + row + i;
        #[unroll]
        for j in 0..COLS {
            let x = first_col + col + comptime!(j * across);
            if y < args.m && x < args.n {
                let mut at = base_c + y as usize * args.c_line;
                if comptime!(block.spread) {
                    let pixel = x + image.first;
                    at += (pixel / image.map_width) as usize * image.c_row + (pixel % image.map_width) as usize * image.c_pixel;
                } else {
                    at += x as usize;
                }
                let mut value = sums[comptime!((i * COLS + j) as usize)] * args.scale;
                if comptime!(block.bias) {
                    // The rows of C are the output channels of one group.
                    value += f32::cast_from(bias[(z % args.period * args.m + y) as usize]);
                }
                if comptime!(block.silu) {
                    value /= 1.0f32 + (-value).exp();
                }
                c[at] = C::cast_from(value);
            }
        }
    }
}

/// `out[i] = sum over p of parts[p, i]`, in that order.
#[cube(launch, address_type = "dynamic")]
pub(crate) fn add_parts_kernel(parts: &Tensor<f32>, out: &mut Tensor<f32>, count: u32) {
    let at = ABSOLUTE_POS;
    if at >= out.len() {
        terminate!();
    }
    let mut sum = 0.0f32;
    for part in 0..count {
        sum += parts[part as usize * out.len() + at];
    }
    out[at] = sum;
}
