//! Loops over planes for the processor. Plain Rust: they are bound by memory, and LLVM makes vectors of them.

use rayon::prelude::*;

use crate::cpu::machine::{PIECE, worth_a_task};

/// A part of the output with what becomes it; nothing becomes zeros.
type Move<'a, 'b> = (&'a mut [f32], Option<&'b [f32]>);

/// The same moves in pieces.
fn pieces<'a, 'b>(moves: impl IntoIterator<Item = Move<'a, 'b>>) -> Vec<Move<'a, 'b>> {
    let cut = |(to, from): Move<'a, 'b>| {
        to.chunks_mut(PIECE).enumerate().map(move |(i, to)| {
            let from = from.map(|from| &from[i * PIECE..][..to.len()]);
            (to, from)
        })
    };
    moves.into_iter().flat_map(cut).collect()
}

pub(crate) fn carry_out<'a, 'b>(moves: impl IntoIterator<Item = Move<'a, 'b>>) {
    pieces(moves).into_par_iter().for_each(|(to, from)| match from {
        Some(from) => to.copy_from_slice(from),
        None => to.fill(0.0),
    });
}

/// Each image's parts, one after the other: part i holds `parts[i].1` values of every image.
pub(super) fn concat(parts: &[(&[f32], usize)], out: &mut [f32]) {
    let image: usize = parts.iter().map(|(_, len)| len).sum();
    let mut moves = Vec::new();
    for (n, mut rest) in out.chunks_exact_mut(image.max(1)).enumerate() {
        for &(part, len) in parts {
            let (head, tail) = rest.split_at_mut(len);
            moves.push((head, Some(&part[n * len..][..len])));
            rest = tail;
        }
    }
    carry_out(moves);
}

/// `out.len() / batch` values of each image, from the `start`-th on.
pub(super) fn slice(x: &[f32], batch: usize, start: usize, out: &mut [f32]) {
    let (from, to) = (x.len() / batch.max(1), out.len() / batch.max(1));
    carry_out(out.chunks_mut(to.max(1)).enumerate().map(|(n, out)| (out, Some(&x[n * from + start..][..to]))));
}

/// The inverse of [`slice`], with zeros around.
pub(super) fn pad(x: &[f32], batch: usize, start: usize, out: &mut [f32]) {
    let (from, to) = (x.len() / batch.max(1), out.len() / batch.max(1));
    let images = out.chunks_mut(to.max(1)).zip(x.chunks(from.max(1)));
    carry_out(images.flat_map(|(out, x)| {
        let (before, rest) = out.split_at_mut(start);
        let (own, behind) = rest.split_at_mut(from);
        [(before, None), (own, Some(x)), (behind, None)]
    }));
}

/// x added to the values of each image of `whole` from the `start`-th on.
pub(super) fn add_to(x: &[f32], batch: usize, start: usize, whole: &mut [f32]) {
    let (from, to) = (x.len() / batch.max(1), whole.len() / batch.max(1));
    let images = whole.chunks_mut(to.max(1)).zip(x.chunks(from.max(1)));
    let parts: Vec<_> = images.flat_map(|(whole, x)| whole[start..start + from].chunks_mut(PIECE).zip(x.chunks(PIECE))).collect();
    parts.into_par_iter().for_each(|(sum, x)| sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x));
}

/// `a += b`.
pub(crate) fn add(a: &mut [f32], b: &[f32]) {
    a.par_chunks_mut(PIECE).zip(b.par_chunks(PIECE)).for_each(|(a, b)| a.iter_mut().zip(b).for_each(|(a, b)| *a += b));
}

#[test]
fn one_image_is_work_for_many_threads() {
    let (mut out, x) = (vec![0.0; 64 * 80 * 80], vec![1.0; 32 * 80 * 80]);
    let (zeros, rest) = out.split_at_mut(10);
    let (own, behind) = rest.split_at_mut(x.len());
    let moves = pieces([(zeros, None), (own, Some(&x[..])), (behind, None)]);
    assert!(moves.len() >= 14 && moves.iter().all(|(to, from)| to.len() <= PIECE && from.is_none_or(|from| from.len() == to.len())));
    assert_eq!(moves.iter().map(|(to, _)| to.len()).sum::<usize>(), 64 * 80 * 80);
}

/// At YOLOv8n's coarsest level, four images of 640 pixels: what its pooling, doubling, residual additions and concatenations in the head are cut into.
#[test]
fn the_coarsest_level_is_work_for_many_threads() {
    use crate::cpu::reference::tasks;
    assert_eq!(tasks(4 * 128, worth_a_task(20 * 20)), 32, "planes pooled, in both directions");
    assert_eq!(tasks(4 * 256, worth_a_task(40 * 40)), 256, "planes doubled, and halved again");
    assert_eq!((4usize * 128 * 20 * 20).div_ceil(PIECE), 25, "pieces added");
    let mut out = vec![0.0; 4 * 144 * 20 * 20];
    let moves = out.chunks_mut(144 * 20 * 20).flat_map(|image| {
        let (sides, classes) = image.split_at_mut(64 * 20 * 20);
        [(sides, None), (classes, None)]
    });
    assert_eq!(pieces(moves).len(), 32, "pieces joined");
}

/// The greater, or the second if it is no number, as Burn's pooling has it.
#[inline(always)]
fn greater(old: f32, new: f32) -> bool {
    new > old || new.is_nan()
}

/// The maximum of each value and of those up to `reach` steps of `step` on either side.
#[inline(always)]
fn window_max(x: &[f32], step: usize, reach: usize, out: &mut [f32]) {
    out.copy_from_slice(x);
    for shift in (1..=reach).map(|d| d * step).take_while(|&shift| shift < x.len()) {
        for (best, &v) in out[shift..].iter_mut().zip(x) {
            *best = if greater(*best, v) { v } else { *best };
        }
        for (best, &v) in out.iter_mut().zip(&x[shift..]) {
            *best = if greater(*best, v) { v } else { *best };
        }
    }
}

/// Separable: the maximum of each row's window, then of those along the columns.
pub(crate) fn max_pool(x: &[f32], [height, width]: [usize; 2], kernel: usize, out: &mut [f32]) {
    let (plane, reach) = (height * width, kernel / 2);
    let planes = out.par_chunks_mut(plane.max(1)).zip(x.par_chunks(plane.max(1))).with_min_len(worth_a_task(plane));
    let room = || vec![0.0; plane];
    planes.for_each_init(room, |rows, (out, x)| {
        for (row, x) in rows.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            window_max(x, 1, reach, row);
        }
        window_max(rows, width, reach, out);
    });
}

/// Sends each dy to the first maximum of its window: the first row that holds the maximum, in it the first column.
pub(super) fn max_pool_grad(x: &[f32], dy: &[f32], [height, width]: [usize; 2], kernel: usize, dx: &mut [f32]) {
    let (plane, reach) = (height * width, kernel / 2);
    let window = |at: usize, size: usize| at.saturating_sub(reach)..(at + reach + 1).min(size);
    let planes = dx.par_chunks_mut(plane.max(1)).zip(x.par_chunks(plane.max(1))).zip(dy.par_chunks(plane.max(1)));
    let room = || vec![0; plane];
    planes.with_min_len(worth_a_task(plane)).for_each_init(room, |firsts, ((dx, x), dy)| {
        // For each pixel the place of the first maximum of its row's window.
        for (i, first) in firsts.iter_mut().enumerate() {
            let row = i - i % width;
            let mut columns = window(i - row, width).map(|c| row + c);
            let start = columns.next().unwrap_or(i);
            *first = columns.fold(start, |best, c| if greater(x[best], x[c]) { c } else { best });
        }
        dx.fill(0.0);
        for (i, &dy) in dy.iter().enumerate() {
            let column = i % width;
            let mut rows = window(i / width, height).map(|r| firsts[r * width + column]);
            let start = rows.next().unwrap_or(i);
            dx[rows.fold(start, |best, c| if greater(x[best], x[c]) { c } else { best })] += dy;
        }
    });
}

/// Each pixel becomes 2 x 2.
pub(crate) fn double(x: &[f32], [height, width]: [usize; 2], out: &mut [f32]) {
    let plane = height * width;
    let planes = out.par_chunks_mut((4 * plane).max(1)).zip(x.par_chunks(plane.max(1)));
    planes.with_min_len(worth_a_task(4 * plane)).for_each(|(out, x)| {
        for (rows, x) in out.chunks_exact_mut(4 * width).zip(x.chunks_exact(width)) {
            let (first, second) = rows.split_at_mut(2 * width);
            for (pair, &v) in first.chunks_exact_mut(2).zip(x) {
                pair.fill(v);
            }
            second.copy_from_slice(first);
        }
    });
}

/// Each pixel is the sum of its four.
pub(super) fn double_grad(dy: &[f32], [height, width]: [usize; 2], dx: &mut [f32]) {
    let plane = height * width;
    let planes = dx.par_chunks_mut(plane.max(1)).zip(dy.par_chunks((4 * plane).max(1)));
    planes.with_min_len(worth_a_task(4 * plane)).for_each(|(dx, dy)| {
        for (dx, rows) in dx.chunks_exact_mut(width).zip(dy.chunks_exact(4 * width)) {
            let (first, second) = rows.split_at(2 * width);
            for ((dx, a), b) in dx.iter_mut().zip(first.chunks_exact(2)).zip(second.chunks_exact(2)) {
                *dx = a[0] + a[1] + b[0] + b[1];
            }
        }
    });
}
