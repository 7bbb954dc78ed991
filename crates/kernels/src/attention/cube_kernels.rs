//! The device side of attention in tiles (Dao et al. 2022): a workgroup has 32 queries of a head, or 32 keys, and meets the others 32 at a time.
//!
//! A thread has two rows of a tile. Scores are sums over the dimensions of a head, 16 at a time through shared memory; what the tile then weighs
//! goes through it 8 rows at a time. Sums are f32 in a fixed order; no subgroup operations, no atomics: the gradient of a key is made by the
//! workgroup that has it, from all queries that see it, or by one to some of the heads that see it, whose parts a launch of its own adds up.
//!
//! No index is checked by the device: places follow from the sizes and strides that the host has compared with what is there. What is read of the first keys is no place: a
//! loop begins there, at the end of all keys at most, and keys are compared with it.

#![allow(clippy::too_many_arguments, reason = "a kernel's helper has no struct of borrowed tensors to take them in")]

use cubecl::prelude::*;

use crate::cube::launch::fold;
use crate::cube::softmax::exp;

/// Lines of a tile, in both directions.
pub(super) const SIDE: u32 = 32;
/// Threads of a workgroup: 16 times 8, each of 2 rows and every eighth column.
pub(super) const UNITS: u32 = 128;
const TALL: u32 = 2;
const ACROSS: u32 = 8;
const WIDE: u32 = SIDE / ACROSS;
/// Dimensions of a head in shared memory at a time, and rows of what a tile weighs.
const CHUNK: u32 = 16;
const WEIGHED: u32 = 8;
/// From one line in shared memory to the next: odd, so that not all are in one bank.
const PITCH: u32 = SIDE + 1;
/// The score of a key that is not seen.
const UNSEEN: f32 = -1e30;

/// Bytes of shared memory for heads of so many dimensions.
pub(super) fn bytes(d: usize) -> usize {
    (2 * CHUNK * PITCH + SIDE * PITCH) as usize * size_of::<f32>() + WEIGHED as usize * d * size_of::<f32>()
}

/// Sizes of the problem.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Sizes {
    /// Query heads, and how many of them a key head serves.
    heads: u32,
    group: u32,
    queries: u32,
    keys: u32,
    scale: f32,
}

/// Shared memory of a workgroup.
#[derive(CubeType)]
struct Tiles {
    left: Shared<[f32]>,
    right: Shared<[f32]>,
    /// What the rows of the tile are weighed with: `[columns][rows]`.
    weights: Shared<[f32]>,
    weighed: Shared<[f32]>,
}

#[cube]
fn tiles(#[comptime] d: u32) -> Tiles {
    Tiles {
        left: Shared::<[f32]>::new_slice(comptime!((CHUNK * PITCH) as usize)),
        right: Shared::<[f32]>::new_slice(comptime!((CHUNK * PITCH) as usize)),
        weights: Shared::<[f32]>::new_slice(comptime!((SIDE * PITCH) as usize)),
        weighed: Shared::<[f32]>::new_slice(comptime!((WEIGHED * d) as usize)),
    }
}

#[cube]
fn zeros(#[comptime] count: u32) -> Array<f32> {
    let mut values = Array::<f32>::new(comptime!(count as usize));
    #[unroll]
    for i in 0..comptime!(count as usize) {
        values[i] = 0.0f32;
    }
    values
}

/// Where the lines of a head are: the first number, and from one line to the next.
#[derive(CubeType)]
struct Lines {
    base: usize,
    step: usize,
}

/// The lines of a head of `[batch, heads, lines, d]` in any order of all but the last axis.
#[cube]
fn lines<E: Float>(of: &Tensor<E>, batch: u32, head: u32) -> Lines {
    Lines { base: batch as usize * of.stride(0) + head as usize * of.stride(1), step: of.stride(2) }
}

/// Dimensions `start ..` of the lines `first ..` of `count`, as `[dimension][line]`; zero where there are none.
#[cube]
fn load<E: Float>(from: &Tensor<E>, to: &mut Shared<[f32]>, lines: &Lines, first: u32, count: u32, start: u32, #[comptime] d: u32) {
    #[unroll]
    for i in 0..comptime!(SIDE * CHUNK / UNITS) {
        let at = UNIT_POS + comptime!(i * UNITS);
        let line = at / CHUNK;
        let dim = at % CHUNK;
        let there = first + line < count && start + dim < d;
        let place = select(there, lines.base + (first + line) as usize * lines.step + (start + dim) as usize, lines.base);
        to[(dim * PITCH + line) as usize] = select(there, f32::cast_from(from[place]), 0.0f32);
    }
}

/// `x yᵀ` of the lines `first_x ..` and `first_y ..`: a thread's numbers of the tile.
#[cube]
fn products<E: Float>(
    x: &Tensor<E>,
    y: &Tensor<E>,
    lines_x: &Lines,
    lines_y: &Lines,
    first_x: u32,
    first_y: u32,
    count_x: u32,
    count_y: u32,
    tiles: &mut Tiles,
    #[comptime] d: u32,
) -> Array<f32> {
    let mut sums = zeros(comptime!(TALL * WIDE));
    let row = UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    let mut start = 0u32;
    while start < d {
        load::<E>(x, &mut tiles.left, lines_x, first_x, count_x, start, d);
        load::<E>(y, &mut tiles.right, lines_y, first_y, count_y, start, d);
        sync_cube();
        for dim in 0..CHUNK {
            #[unroll]
            for i in 0..TALL {
                let of_x = tiles.left[(dim * PITCH + row + i) as usize];
                #[unroll]
                for j in 0..WIDE {
                    sums[comptime!((i * WIDE + j) as usize)] += of_x * tiles.right[(dim * PITCH + col + comptime!(j * ACROSS)) as usize];
                }
            }
        }
        sync_cube();
        start += CHUNK;
    }
    sums
}

/// Dimensions of a head to a thread.
fn own(d: u32) -> u32 {
    d.div_ceil(ACROSS)
}

/// Adds the lines `first ..` of `from`, weighed by the tile, to a thread's rows. The weights may have been put there just before.
#[cube]
fn weigh<E: Float>(sums: &mut Array<f32>, from: &Tensor<E>, lines: &Lines, first: u32, count: u32, tiles: &mut Tiles, #[comptime] d: u32) {
    let row = UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    let mut done = 0u32;
    while done < SIDE {
        #[unroll]
        for i in 0..comptime!((WEIGHED * d).div_ceil(UNITS)) {
            let at = clamp_max(UNIT_POS + comptime!(i * UNITS), comptime!(WEIGHED * d - 1));
            let line = first + done + at / d;
            let place = select(line < count, lines.base + line as usize * lines.step + (at % d) as usize, lines.base);
            tiles.weighed[at as usize] = select(line < count, f32::cast_from(from[place]), 0.0f32);
        }
        sync_cube();
        for line in 0..WEIGHED {
            let mut weights = Array::<f32>::new(comptime!(TALL as usize));
            #[unroll]
            for i in 0..TALL {
                weights[i as usize] = tiles.weights[((done + line) * PITCH + row + i) as usize];
            }
            #[unroll]
            for j in 0..comptime!(own(d)) {
                let dim = clamp_max(col + comptime!(j * ACROSS), comptime!(d - 1));
                let number = tiles.weighed[(line * d + dim) as usize];
                #[unroll]
                for i in 0..TALL {
                    sums[comptime!((i * own(d) + j) as usize)] += weights[i as usize] * number;
                }
            }
        }
        sync_cube();
        done += WEIGHED;
    }
}

/// Writes a thread's rows, times a factor each.
#[cube]
fn write<E: Float>(sums: &Array<f32>, factors: &Array<f32>, to: &mut Tensor<E>, lines: &Lines, first: u32, count: u32, #[comptime] d: u32) {
    let row = first + UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    #[unroll]
    for i in 0..TALL {
        #[unroll]
        for j in 0..comptime!(own(d)) {
            let dim = col + comptime!(j * ACROSS);
            if row + i < count && dim < d {
                let value = sums[comptime!((i * own(d) + j) as usize)] * factors[i as usize];
                to[lines.base + (row + i) as usize * lines.step + dim as usize] = E::cast_from(value);
            }
        }
    }
}

/// Whether a query sees a key.
#[cube]
fn sees<I: Int>(query: u32, key: u32, first: &Tensor<I>, batch: u32, sizes: &Sizes) -> bool {
    let of = first[(batch * sizes.queries + clamp_max(query, sizes.queries - 1)) as usize];
    query < sizes.queries && key + sizes.queries <= sizes.keys + query && key >= u32::cast_from(of)
}

/// The keys that a block of queries sees begin in this block of them.
#[cube]
fn first_block<I: Int>(first: &Tensor<I>, batch: u32, queries: u32, sizes: &Sizes) -> u32 {
    let mut least = sizes.keys;
    for i in 0..SIDE {
        let query = clamp_max(queries + i, sizes.queries - 1);
        least = clamp_max(least, u32::cast_from(first[(batch * sizes.queries + query) as usize]));
    }
    least / SIDE * SIDE
}

/// Behind the last key that a block of queries sees.
#[cube]
fn end_of_keys(queries: u32, sizes: &Sizes) -> u32 {
    sizes.keys + clamp_max(queries + SIDE, sizes.queries) - sizes.queries
}

/// The result and the logarithm of the sum of each row: a running maximum and sum of each.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attend_kernel<E: Float, I: Int>(
    q: &Tensor<E>,
    k: &Tensor<E>,
    v: &Tensor<E>,
    first: &Tensor<I>,
    y: &mut Tensor<E>,
    logs: &mut Tensor<f32>,
    sizes: &Sizes,
    #[comptime] d: u32,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let queries = CUBE_POS_X * SIDE;
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    let rows_before = (batch * sizes.heads + head) * sizes.queries;
    let of_q = lines::<E>(q, batch, head);
    let of_k = lines::<E>(k, batch, head / sizes.group);
    let of_v = lines::<E>(v, batch, head / sizes.group);
    let row = UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    let mut tiles = tiles(d);
    let mut sums = zeros(comptime!(TALL * own(d)));
    let mut most = Array::<f32>::new(comptime!(TALL as usize));
    let mut total = zeros(TALL);
    #[unroll]
    for i in 0..comptime!(TALL as usize) {
        most[i] = UNSEEN;
    }
    let mut keys = first_block::<I>(first, batch, queries, sizes);
    while keys < end_of_keys(queries, sizes) {
        let mut scores = products::<E>(q, k, &of_q, &of_k, queries, keys, sizes.queries, sizes.keys, &mut tiles, d);
        #[unroll]
        for i in 0..TALL {
            #[unroll]
            for j in 0..WIDE {
                let key = col + comptime!(j * ACROSS);
                let seen = sees::<I>(queries + row + i, keys + key, first, batch, sizes);
                let score = select(seen, scores[comptime!((i * WIDE + j) as usize)] * sizes.scale, UNSEEN);
                scores[comptime!((i * WIDE + j) as usize)] = score;
                tiles.weights[(key * PITCH + row + i) as usize] = score;
            }
        }
        sync_cube();
        let mut shrink = Array::<f32>::new(comptime!(TALL as usize));
        #[unroll]
        for i in 0..TALL {
            let mut highest = most[i as usize];
            for key in 0..SIDE {
                let score = tiles.weights[(key * PITCH + row + i) as usize];
                highest = select(score > highest, score, highest);
            }
            shrink[i as usize] = (most[i as usize] - highest).exp();
            most[i as usize] = highest;
        }
        sync_cube();
        #[unroll]
        for i in 0..TALL {
            #[unroll]
            for j in 0..WIDE {
                let score = scores[comptime!((i * WIDE + j) as usize)];
                // Not of what is greater: a score that is no number is in no order, and is to be seen in the result.
                let weight = select(score == UNSEEN, 0.0f32, exp(score - most[i as usize]));
                tiles.weights[((col + comptime!(j * ACROSS)) * PITCH + row + i) as usize] = weight;
            }
        }
        sync_cube();
        #[unroll]
        for i in 0..TALL {
            let mut of_block = 0.0f32;
            for key in 0..SIDE {
                of_block += tiles.weights[(key * PITCH + row + i) as usize];
            }
            total[i as usize] = total[i as usize] * shrink[i as usize] + of_block;
            #[unroll]
            for j in 0..comptime!(own(d)) {
                sums[comptime!((i * own(d) + j) as usize)] *= shrink[i as usize];
            }
        }
        weigh::<E>(&mut sums, v, &of_v, keys, sizes.keys, &mut tiles, d);
        keys += SIDE;
    }
    let mut factors = Array::<f32>::new(comptime!(TALL as usize));
    #[unroll]
    for i in 0..TALL {
        // A query that sees nothing has a result of zeros.
        factors[i as usize] = select(total[i as usize] == 0.0f32, 0.0f32, 1.0f32 / total[i as usize]);
        let query = queries + row + i;
        if col == 0u32 && query < sizes.queries {
            logs[(rows_before + query) as usize] = most[i as usize] + total[i as usize].ln();
        }
    }
    let of_y = Lines { base: batch as usize * y.stride(0) + head as usize * y.stride(1), step: y.stride(2) };
    write::<E>(&sums, &factors, y, &of_y, queries, sizes.queries, d);
}

/// What the gradients need of each row: the logarithm of its sum, and behind all of those `Σ y dy`. (One tensor, for some devices bind no more
/// than eight.)
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn rows_kernel<E: Float>(
    y: &Tensor<E>,
    dy: &Tensor<E>,
    logs: &Tensor<f32>,
    rows: &mut Tensor<f32>,
    #[comptime] d: u32,
    #[define(E)] _type: ElemType,
) {
    if ABSOLUTE_POS >= logs.len() {
        terminate!();
    }
    let (queries, heads) = (y.shape(2), y.shape(1));
    let (batch, head, query) = (ABSOLUTE_POS / queries / heads, ABSOLUTE_POS / queries % heads, ABSOLUTE_POS % queries);
    let in_y = batch * y.stride(0) + head * y.stride(1) + query * y.stride(2);
    let in_dy = batch * dy.stride(0) + head * dy.stride(1) + query * dy.stride(2);
    let mut sum = 0.0f32;
    for dim in 0..comptime!(d as usize) {
        sum += f32::cast_from(y[in_y + dim]) * f32::cast_from(dy[in_dy + dim]);
    }
    rows[ABSOLUTE_POS] = logs[ABSOLUTE_POS];
    rows[logs.len() + ABSOLUTE_POS] = sum;
}

/// The gradient of q: `ds k` with `ds = scale p (dp - Σ y dy)`, a block of keys after the other.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn query_grad_kernel<E: Float, I: Int>(
    q: &Tensor<E>,
    k: &Tensor<E>,
    v: &Tensor<E>,
    dy: &Tensor<E>,
    first: &Tensor<I>,
    rows: &Tensor<f32>,
    dq: &mut Tensor<E>,
    sizes: &Sizes,
    #[comptime] d: u32,
    #[define(E, I)] _types: [ElemType; 2],
) {
    let queries = CUBE_POS_X * SIDE;
    let (head, batch) = (CUBE_POS_Y, CUBE_POS_Z);
    let rows_before = (batch * sizes.heads + head) * sizes.queries;
    let of_q = lines::<E>(q, batch, head);
    let of_k = lines::<E>(k, batch, head / sizes.group);
    let of_v = lines::<E>(v, batch, head / sizes.group);
    let of_dy = lines::<E>(dy, batch, head);
    let row = UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    let mut tiles = tiles(d);
    let mut sums = zeros(comptime!(TALL * own(d)));
    let mut keys = first_block::<I>(first, batch, queries, sizes);
    while keys < end_of_keys(queries, sizes) {
        let scores = products::<E>(q, k, &of_q, &of_k, queries, keys, sizes.queries, sizes.keys, &mut tiles, d);
        let dp = products::<E>(dy, v, &of_dy, &of_v, queries, keys, sizes.queries, sizes.keys, &mut tiles, d);
        #[unroll]
        for i in 0..TALL {
            let line = (rows_before + clamp_max(queries + row + i, sizes.queries - 1)) as usize;
            let (log, slope) = (rows[line], rows[rows.len() / 2 + line]);
            #[unroll]
            for j in 0..WIDE {
                let key = col + comptime!(j * ACROSS);
                let seen = sees::<I>(queries + row + i, keys + key, first, batch, sizes);
                let p = (scores[comptime!((i * WIDE + j) as usize)] * sizes.scale - log).exp();
                let ds = sizes.scale * p * (dp[comptime!((i * WIDE + j) as usize)] - slope);
                tiles.weights[(key * PITCH + row + i) as usize] = select(seen, ds, 0.0f32);
            }
        }
        weigh::<E>(&mut sums, k, &of_k, keys, sizes.keys, &mut tiles, d);
        keys += SIDE;
    }
    let mut factors = zeros(TALL);
    #[unroll]
    for i in 0..comptime!(TALL as usize) {
        factors[i] = 1.0f32;
    }
    let of_dq = Lines { base: batch as usize * dq.stride(0) + head as usize * dq.stride(1), step: dq.stride(2) };
    write::<E>(&sums, &factors, dq, &of_dq, queries, sizes.queries, d);
}

/// The gradients of k and v, `dsᵀ q` and behind it `pᵀ dy`, both `[batch, keys, heads, d]`: of each query head that a key head serves, a block of the queries that see a key after the other.
/// A workgroup has `members` of those heads, and what the first ones make is followed by the same of the next: `[parts, 2, batch, keys, heads, d]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn key_grad_kernel<E: Float, I: Int, O: Float>(
    q: &Tensor<E>,
    k: &Tensor<E>,
    v: &Tensor<E>,
    dy: &Tensor<E>,
    first: &Tensor<I>,
    rows: &Tensor<f32>,
    dkv: &mut Tensor<O>,
    sizes: &Sizes,
    members: u32,
    #[comptime] d: u32,
    #[define(E, I, O)] _types: [ElemType; 3],
) {
    let keys = CUBE_POS_X * SIDE;
    let key_heads = sizes.heads / sizes.group;
    let (of_keys, part, batch) = (CUBE_POS_Y % key_heads, CUBE_POS_Y / key_heads, CUBE_POS_Z);
    let of_k = lines::<E>(k, batch, of_keys);
    let of_v = lines::<E>(v, batch, of_keys);
    let row = UNIT_POS / ACROSS * TALL;
    let col = UNIT_POS % ACROSS;
    let mut tiles = tiles(d);
    let mut sums_k = zeros(comptime!(TALL * own(d)));
    let mut sums_v = zeros(comptime!(TALL * own(d)));
    let mut member = part * members;
    let end = clamp_max(member + members, sizes.group);
    while member < end {
        let head = of_keys * sizes.group + member;
        let rows_before = (batch * sizes.heads + head) * sizes.queries;
        let of_q = lines::<E>(q, batch, head);
        let of_dy = lines::<E>(dy, batch, head);
        // The queries before see none of these keys.
        let past = sizes.keys - sizes.queries;
        let mut queries = (clamp_min(keys, past) - past) / SIDE * SIDE;
        while queries < sizes.queries {
            let scores = products::<E>(k, q, &of_k, &of_q, keys, queries, sizes.keys, sizes.queries, &mut tiles, d);
            let mut ds = products::<E>(v, dy, &of_v, &of_dy, keys, queries, sizes.keys, sizes.queries, &mut tiles, d);
            #[unroll]
            for j in 0..WIDE {
                let query = col + comptime!(j * ACROSS);
                let line = (rows_before + clamp_max(queries + query, sizes.queries - 1)) as usize;
                let (log, slope) = (rows[line], rows[rows.len() / 2 + line]);
                #[unroll]
                for i in 0..TALL {
                    let seen = sees::<I>(queries + query, keys + row + i, first, batch, sizes);
                    let p = select(seen, (scores[comptime!((i * WIDE + j) as usize)] * sizes.scale - log).exp(), 0.0f32);
                    ds[comptime!((i * WIDE + j) as usize)] = sizes.scale * p * (ds[comptime!((i * WIDE + j) as usize)] - slope);
                    tiles.weights[(query * PITCH + row + i) as usize] = p;
                }
            }
            weigh::<E>(&mut sums_v, dy, &of_dy, queries, sizes.queries, &mut tiles, d);
            #[unroll]
            for j in 0..WIDE {
                #[unroll]
                for i in 0..TALL {
                    tiles.weights[((col + comptime!(j * ACROSS)) * PITCH + row + i) as usize] = ds[comptime!((i * WIDE + j) as usize)];
                }
            }
            weigh::<E>(&mut sums_k, q, &of_q, queries, sizes.queries, &mut tiles, d);
            queries += SIDE;
        }
        member += 1u32;
    }
    let mut factors = zeros(TALL);
    #[unroll]
    for i in 0..comptime!(TALL as usize) {
        factors[i] = 1.0f32;
    }
    let step = key_heads as usize * comptime!(d as usize);
    let all = CUBE_COUNT_Z as usize * sizes.keys as usize * step;
    let base = (2u32 * part) as usize * all + batch as usize * sizes.keys as usize * step + of_keys as usize * comptime!(d as usize);
    write::<O>(&sums_k, &factors, dkv, &Lines { base, step }, keys, sizes.keys, d);
    write::<O>(&sums_v, &factors, dkv, &Lines { base: all + base, step }, keys, sizes.keys, d);
}

/// The sum of `count` parts of the gradients of k and v, in their order.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn key_grad_sum_kernel<E: Float>(parts: &Tensor<f32>, dkv: &mut Tensor<E>, count: u32, #[define(E)] _type: ElemType) {
    if ABSOLUTE_POS >= dkv.len() {
        terminate!();
    }
    dkv[ABSOLUTE_POS] = E::cast_from(fold(parts, ABSOLUTE_POS, dkv.len(), count));
}
