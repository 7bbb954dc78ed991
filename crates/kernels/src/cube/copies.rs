//! What a workgroup copies into shared memory, and which thread what.
//!
//! Where a thread's numbers are is found once, before the sums: from one block of terms to the next they all move by as much. Only a weight
//! gradient's pixels do not, whose row and column each thread counts on. Loads do not wait for a condition: what is not there is read from
//! elsewhere, and taken for zero where it is put into shared memory, which is when it is waited for: a driver has all of them under way while the block before is multiplied.

#![allow(clippy::too_many_arguments, reason = "a kernel's helper has no struct of borrowed tensors to take them in")]

use super::args::Image;
use super::block::{AT_ONCE, Gather, Kind, Side};
use super::packing::{Packing, bf16_of, int8_of, number_at, rounded};
use cubecl::prelude::*;

/// The places of a thread's numbers: of each, or of each of its lines.
#[derive(CubeType)]
pub(super) struct Copies {
    /// In memory, from where the block of terms begins.
    from: Array<usize>,
    /// In shared memory.
    to: Array<u32>,
    /// What decides whether it is there: its k; or, of a map's pixel, the taps that are inside, a bit to each; or, of a line that is a
    /// tap, how far down and across it reaches, 16 bits each.
    mark: Array<u32>,
    /// Of a matrix that is scaled by rows, the row in memory, from that where the block of terms begins.
    row: Array<u32>,
}

/// The place of a line among those of a term. Of lines whose numbers add up to this one without a carry, as a multiple of so many and less than that, it is the sum of theirs.
#[cube]
pub(super) fn of_line(line: u32, #[comptime] side: Side) -> u32 {
    let apart = comptime!(side.apart);
    if comptime!(apart == 1) {
        line
    } else {
        line / comptime!(AT_ONCE * apart) * comptime!(AT_ONCE * apart) + line % apart * AT_ONCE + line / apart % AT_ONCE
    }
}

/// A matrix by steps.
#[cube]
pub(super) fn of_matrix(first: u32, count: u32, line_step: usize, k_step: usize, image: &Image, #[comptime] side: Side) -> Copies {
    let each = comptime!(side.each());
    let mut from = Array::<usize>::new(comptime!(each as usize));
    let mut to = Array::<u32>::new(comptime!(each as usize));
    let mut mark = Array::<u32>::new(comptime!(each as usize));
    let scaled = comptime!(side.packing == Packing::Int8);
    let mut row = Array::<u32>::new(comptime!(if scaled { each as usize } else { 1 }));
    let (lines, taps, depth) = comptime!((side.lines, side.count(), side.depth()));
    #[unroll]
    for i in 0..each {
        // In the order of memory. The last numbers may be loaded twice.
        let at = clamp_max(UNIT_POS + comptime!(i * side.units), comptime!(lines * depth - 1));
        let line = if comptime!(side.along_k) { at / depth } else { at / taps % lines };
        let k = if comptime!(side.along_k) { at % depth / taps } else { at / comptime!(taps * lines) };
        let tap = at % taps;
        let down = tap / comptime!(side.taps.1);
        let across = tap % comptime!(side.taps.1);
        // A line beyond the last is read as that, and not used.
        from[i as usize] = clamp_max(first + line, count - 1) as usize * line_step
            + k as usize * k_step
            + down as usize * image.a_tap_y
            + across as usize * image.a_tap_x;
        to[i as usize] = (k * taps + tap) * comptime!(side.pitch()) + of_line(line, side);
        mark[i as usize] = k;
        if comptime!(scaled) {
            row[i as usize] = if comptime!(side.along_k) { clamp_max(first + line, count - 1) } else { k };
        }
    }
    Copies { from, to, mark, row }
}

/// The matrix's numbers of `left` more k from `base` on, packed ones as of type `F`, or others in their places; `one` is 1.
#[cube]
pub(super) fn fetch_matrix<E: Numeric, N: Size, F: Float, S: CubePrimitive>(
    from: &Tensor<Vector<E, N>>,
    scales: &Tensor<S>,
    columns: usize,
    one: f32,
    base: usize,
    left: u32,
    copies: &Copies,
    values: &mut Array<f32>,
    #[comptime] side: Side,
) {
    let scaled = comptime!(side.packing == Packing::Int8);
    // A division to a block of terms, and none to a number.
    let mut first_row = 0usize;
    if comptime!(scaled) {
        first_row = base / columns;
    }
    #[unroll]
    for i in 0..comptime!(side.each() as usize) {
        let mut at = base + copies.from[i];
        let mut row = first_row;
        if comptime!(scaled) {
            row += copies.row[i] as usize;
        }
        if comptime!(side.exact) {
            values[i] = number_at::<E, N, F, S>(from, at, scales, row, one, comptime!(side.packing));
        } else {
            let there = copies.mark[i] < left;
            at = select(there, at, base);
            row = select(there, row, first_row);
            values[i] = number_at::<E, N, F, S>(from, at, scales, row, one, comptime!(side.packing));
        }
    }
}

/// Four neighbours at a time: of a matrix by steps, or of maps each of whose pixels is the image's in the same place.
#[cube]
pub(super) fn of_fours(
    first: u32,
    count: u32,
    line_step: usize,
    k_step: usize,
    image: &Image,
    #[comptime] maps: bool,
    #[comptime] side: Side,
) -> Copies {
    let each = comptime!(side.each() / AT_ONCE);
    let mut from = Array::<usize>::new(comptime!(each as usize));
    let mut to = Array::<u32>::new(comptime!(each as usize));
    let mut mark = Array::<u32>::new(comptime!(each as usize));
    let scaled = comptime!(side.packing == Packing::Int8);
    let mut row = Array::<u32>::new(comptime!(if scaled { each as usize } else { 1 }));
    // A four is a line's, of four k, or a k's, of four lines.
    let (along_lines, along_k) = comptime!(if side.along_k { (1, AT_ONCE) } else { (AT_ONCE, 1) });
    let (lines, terms) = comptime!((side.lines / along_lines, side.deep / along_k));
    #[unroll]
    for i in 0..each {
        let at = UNIT_POS + comptime!(i * side.units);
        let line = if comptime!(side.along_k) { at / terms } else { at % lines * along_lines };
        let k = if comptime!(side.along_k) { at % terms * along_k } else { at / lines };
        let reached = clamp_max(first + line, count - along_lines);
        let place = if comptime!(maps) {
            let pixel = reached + image.first;
            (pixel / image.pixels) as usize * image.image + (pixel % image.pixels) as usize
        } else {
            reached as usize * line_step
        };
        from[i as usize] = (place + k as usize * k_step) / comptime!(AT_ONCE as usize);
        to[i as usize] = k * comptime!(side.pitch()) + of_line(line, side);
        mark[i as usize] = k;
        if comptime!(scaled) {
            row[i as usize] = if comptime!(side.along_k) { reached } else { k };
        }
    }
    Copies { from, to, mark, row }
}

/// Packed fours as they lie, and what each is scaled by.
#[derive(CubeType)]
pub(super) struct Words {
    words: Array<u32>,
    scales: Array<f32>,
}

/// Room for those of an operand, if it has any.
#[cube]
pub(super) fn no_words(#[comptime] side: Side) -> Words {
    let packed = comptime!(side.fours && side.packing != Packing::Plain);
    let fours = comptime!(if packed { (side.each() / AT_ONCE) as usize } else { 1usize });
    Words { words: Array::<u32>::new(comptime!(fours * side.packing.of_four())), scales: Array::<f32>::new(fours) }
}

/// The numbers of `left` more k from `base` on, or others in their places, by fours: `values`, or `words` of a packed operand, whose matrix in memory has so many `columns`.
#[cube]
pub(super) fn fetch_fours<E: Numeric, N: Size, S: CubePrimitive>(
    from: &Tensor<Vector<E, N>>,
    scales: &Tensor<S>,
    columns: usize,
    base: usize,
    left: u32,
    copies: &Copies,
    values: &mut Array<f32>,
    words: &mut Words,
    #[comptime] side: Side,
) {
    let first = base / comptime!(AT_ONCE as usize);
    let of_four = comptime!(side.packing.of_four());
    #[unroll]
    for i in 0..comptime!((side.each() / AT_ONCE) as usize) {
        let mut at = first + copies.from[i];
        if comptime!(!side.exact) {
            at = select(copies.mark[i] < left, at, first);
        }
        let four = from[at];
        #[unroll]
        for j in 0..of_four {
            if comptime!(side.packing == Packing::Plain) {
                values[comptime!(i * of_four + j)] = f32::cast_from(four.extract(comptime!(j)));
            } else {
                words.words[comptime!(i * of_four + j)] = u32::cast_from(four.extract(comptime!(j)));
            }
        }
        if comptime!(side.packing == Packing::Int8) {
            let mut row = base / columns;
            if comptime!(side.exact) {
                row += copies.row[i] as usize;
            } else {
                row += select(copies.mark[i] < left, copies.row[i] as usize, 0usize);
            }
            words.scales[i] = f32::cast_from(scales[row]);
        }
    }
}

/// The numbers of packed fours, rounded to `F`. Not where they are fetched, which would wait for them.
#[cube]
pub(super) fn unpack<F: Float>(words: &Words, values: &mut Array<f32>, one: f32, #[comptime] side: Side) {
    #[unroll]
    for n in 0..comptime!(side.each()) {
        let number = if comptime!(side.packing == Packing::Bf16) {
            bf16_of(words.words[comptime!((n / 2) as usize)], comptime!(n % 2))
        } else {
            words.scales[comptime!((n / 4) as usize)] * int8_of(words.words[comptime!((n / 4) as usize)], comptime!(n % 4))
        };
        values[n as usize] = rounded::<F>(number, one);
    }
}

/// The pixels of a map, of which a thread has one or a few, and shares them with others, who have other channels of them.
#[cube]
pub(super) fn of_map(first: u32, count: u32, image: &Image, #[comptime] gather: Gather, #[comptime] side: Side) -> Copies {
    let own = comptime!(side.own_lines());
    let mut from = Array::<usize>::new(comptime!(own as usize));
    let mut to = Array::<u32>::new(comptime!(own as usize));
    let mut mark = Array::<u32>::new(comptime!(own as usize));
    let channel = UNIT_POS / comptime!(side.lines) * comptime!(side.deep / side.sharing());
    #[unroll]
    for i in 0..own {
        let line = UNIT_POS % comptime!(side.lines) + comptime!(i * side.units);
        let at = clamp_max(first + line, count - 1) + image.first;
        let pixel = at % image.pixels;
        let y = image.first_y + (pixel / image.map_width) as i32 * comptime!(gather.step.0);
        let x = image.first_x + (pixel % image.map_width) as i32 * comptime!(gather.step.1);
        let mut inside = 0u32;
        #[unroll]
        for down in 0..comptime!(gather.taps.0 as i32) {
            #[unroll]
            for across in 0..comptime!(gather.taps.1 as i32) {
                let there = is_inside(y + comptime!(down * gather.tap.0), x + comptime!(across * gather.tap.1), image);
                inside += select(there, comptime!(1u32 << (down * gather.taps.1 as i32 + across)), 0u32);
            }
        }
        from[i as usize] = (at / image.pixels) as usize * image.image + place(y, x, image) + channel as usize * image.channel;
        to[i as usize] = channel * comptime!(gather.count() * side.pitch()) + of_line(line, side);
        mark[i as usize] = inside;
    }
    Copies { from, to, mark, row: Array::<u32>::new(1usize) }
}

#[cube]
fn is_inside(y: i32, x: i32, image: &Image) -> bool {
    y >= 0 && y < image.height && x >= 0 && x < image.width
}

/// Where a pixel is behind [`Image::before`], which is there so that this is never negative.
#[cube]
fn place(y: i32, x: i32, image: &Image) -> usize {
    (y + image.up) as usize * image.row + (x + image.left) as usize * image.pixel
}

/// `at` with `steps` more, or less.
#[cube]
fn moved(at: usize, #[comptime] steps: i32, step: usize) -> usize {
    if comptime!(steps < 0) {
        at - comptime!(steps.unsigned_abs() as usize) * step
    } else {
        at + comptime!(steps.unsigned_abs() as usize) * step
    }
}

/// The map's numbers of `left` more channels from `base` on, or others in their places.
#[cube]
pub(super) fn fetch_map<E: Numeric, N: Size>(
    from: &Tensor<Vector<E, N>>,
    base: usize,
    left: u32,
    copies: &Copies,
    image: &Image,
    values: &mut Array<f32>,
    #[comptime] gather: Gather,
    #[comptime] side: Side,
) {
    let (count, share) = comptime!((gather.count(), side.deep / side.sharing()));
    let first = UNIT_POS / comptime!(side.lines) * share;
    #[unroll]
    for i in 0..comptime!(side.own_lines()) {
        let inside = copies.mark[i as usize];
        #[unroll]
        for channel in 0..share {
            let of_channel = base + copies.from[i as usize] + comptime!(channel as usize) * image.channel;
            #[unroll]
            for tap in 0..count {
                let there = is_there(inside, tap, first + channel, left, comptime!(side.exact));
                let row = moved(of_channel, comptime!((tap / gather.taps.1) as i32 * gather.tap.0), image.row);
                let number = moved(row, comptime!((tap % gather.taps.1) as i32 * gather.tap.1), image.pixel);
                let at = select(there, number - image.before, base);
                values[comptime!(((i * share + channel) * count + tap) as usize)] = f32::cast_from(from[at].extract(0usize));
            }
        }
    }
}

/// Whether a tap of those that are `inside` is there, of a channel among `left` more.
#[cube]
fn is_there(inside: u32, #[comptime] tap: u32, channel: u32, left: u32, #[comptime] exact: bool) -> bool {
    let mut there = inside & comptime!(1u32 << tap) != 0u32;
    if comptime!(!exact) {
        let near = channel < left;
        there = there && near;
    }
    there
}

/// The lines of a weight gradient, which are channels and taps. A thread has one pixel of [`Side::deep`].
#[cube]
pub(super) fn of_taps(first: u32, count: u32, image: &Image, #[comptime] gather: Gather, #[comptime] side: Side) -> Copies {
    let each = comptime!(side.each());
    let mut from = Array::<usize>::new(comptime!(each as usize));
    let mut to = Array::<u32>::new(1usize);
    let mut mark = Array::<u32>::new(comptime!(each as usize));
    #[unroll]
    for i in 0..each {
        let line = clamp_max(first + UNIT_POS / comptime!(side.deep) + comptime!(i * side.units / side.deep), count - 1);
        let tap = line % comptime!(gather.count());
        let down = tap / comptime!(gather.taps.1) * comptime!(gather.tap.0.unsigned_abs());
        let across = tap % comptime!(gather.taps.1) * comptime!(gather.tap.1.unsigned_abs());
        from[i as usize] =
            (line / comptime!(gather.count())) as usize * image.channel + down as usize * image.row + across as usize * image.pixel;
        mark[i as usize] = down * 65536u32 + across;
    }
    to[0] = UNIT_POS % comptime!(side.deep) * comptime!(side.pitch()) + of_line(UNIT_POS / comptime!(side.deep), side);
    Copies { from, to, mark, row: Array::<u32>::new(1usize) }
}

/// The lines' numbers of pixel (`i`, `j`) of the map, if it is `there`, or others in their places; and which of them are, a bit to each.
#[cube]
pub(super) fn fetch_taps<E: Numeric, N: Size>(
    from: &Tensor<Vector<E, N>>,
    base: usize,
    i: u32,
    j: u32,
    there: bool,
    copies: &Copies,
    image: &Image,
    values: &mut Array<f32>,
    #[comptime] gather: Gather,
    #[comptime] side: Side,
) -> u32 {
    let mut all = 0u32;
    let y = image.first_y + i as i32 * comptime!(gather.step.0);
    let x = image.first_x + j as i32 * comptime!(gather.step.1);
    let pixel = base + place(y, x, image);
    #[unroll]
    for n in 0..comptime!(side.each() as usize) {
        let mark = copies.mark[n];
        // By itself: behind `&&` it would be a branch, and each load be waited for.
        let inside = is_inside(y + (mark / 65536u32) as i32, x + (mark % 65536u32) as i32, image);
        let there = there && inside;
        let at = select(there, pixel + copies.from[n] - image.before, base);
        values[n] = f32::cast_from(from[at].extract(0usize));
        all += select(there, comptime!(1u32 << n as u32), 0u32);
    }
    all
}

/// How many of a thread's numbers have their place in shared memory by one: a four, a line's terms, or the lines of a pixel.
fn run(kind: Kind, side: Side) -> u32 {
    match kind {
        Kind::Matrix if side.fours => AT_ONCE,
        Kind::Matrix => 1,
        Kind::Map => side.each() / side.own_lines(),
        Kind::Taps => side.each(),
    }
}

/// How far behind it the `i`th of them is.
fn behind(i: u32, kind: Kind, side: Side) -> u32 {
    match kind {
        Kind::Taps => of_line(i * side.units / side.deep, side),
        Kind::Matrix if side.fours && !side.along_k => of_line(i, side),
        Kind::Matrix | Kind::Map => i * side.pitch(),
    }
}

/// Puts a thread's numbers of `left` more k or channels where they belong, and zero for those that are not there: of a weight gradient's lines the ones without a
/// bit of `lines`.
#[cube]
pub(super) fn put(
    values: &Array<f32>,
    to: &mut Shared<[f32]>,
    copies: &Copies,
    left: u32,
    lines: u32,
    #[comptime] kind: Kind,
    #[comptime] side: Side,
) {
    let run = comptime!(run(kind, side));
    #[unroll]
    for i in 0..comptime!(side.each()) {
        let place = comptime!((i / run) as usize);
        let mut value = values[i as usize];
        if comptime!(kind == Kind::Map) {
            let first = UNIT_POS / comptime!(side.lines) * comptime!(side.deep / side.sharing());
            let channel = first + comptime!(i % run / side.count());
            value = select(
                is_there(copies.mark[place], comptime!(i % run % side.count()), channel, left, comptime!(side.exact)),
                value,
                0.0f32,
            );
        } else if comptime!(kind == Kind::Taps) {
            value = select(lines & comptime!(1u32 << i) != 0u32, value, 0.0f32);
        } else if comptime!(!side.exact) {
            value = select(copies.mark[place] < left, value, 0.0f32);
        }
        to[(copies.to[place] + comptime!(behind(i % run, kind, side))) as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Block;
    use super::*;

    /// Every line has a place of its own, four of a thread's columns are neighbours, and places add up where the kernel takes that for granted.
    #[test]
    fn a_threads_columns_lie_by_fours() {
        for (m, n) in [(16, 40), (16, 102_400), (32, 400), (32, 102_400), (64, 400), (64, 102_400)] {
            let block = Block::new(m, n, 1, 128);
            let side = block.right();
            let mut places: Vec<u32> = (0..side.lines).map(|line| of_line(line, side)).collect();
            let step = side.units / side.deep;
            for col in 0..block.across() {
                for i in 0..block.wide {
                    let first = if block.wide == 8 { of_line(i * block.across(), side) + 4 * col } else { i * block.across() + col };
                    assert_eq!(places[(i * block.across() + col) as usize], first, "{block:?}");
                    assert!(block.wide < 8 || first % 4 == i % 4, "{block:?}");
                }
            }
            for line in 0..side.lines {
                assert_eq!(places[line as usize], of_line(line % step, side) + of_line(line / step * step, side), "{block:?}");
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..side.lines), "{block:?}");
        }
    }
}
