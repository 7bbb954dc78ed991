//! Copies: strips of the source into planes, weights into panels.

use super::super::machine::WAKING;
use super::super::simd::{self, Form, Level, MAX_LANES, Simd, Task};
use super::view::View;
use rayon::prelude::*;

/// Vector copy; rows here are too short for a call of memcpy to pay.
#[inline(always)]
pub fn copy<S: Simd>(s: S, src: &[f32], dst: &mut [f32]) {
    let n = src.len();
    let dst = &mut dst[..n];
    let whole = n - n % S::LANES;
    let mut i = 0;
    while i < whole {
        s.store(s.load(&src[i..]), &mut dst[i..]);
        i += S::LANES;
    }
    if i < n {
        s.store_part(s.load_part(&src[i..], n - i), &mut dst[i..], n - i);
    }
}

/// `n <= LANES` values of `src`, `step` apart, then zeros; of an empty `src` zeros.
#[inline(always)]
fn gather<S: Simd>(s: S, step: usize, src: &[f32], n: usize) -> S::V {
    match step {
        _ if src.is_empty() => s.zero(),
        1 => s.load_part(src, n),
        2 => {
            let src = &src[..2 * n - 1];
            let low = s.load_part(src, src.len().min(S::LANES));
            let high = if src.len() > S::LANES { s.load_part(&src[S::LANES..], src.len() - S::LANES) } else { s.zero() };
            s.deinterleave2(low, high).0
        }
        step => {
            let mut values = [0.0; MAX_LANES];
            values[..n].iter_mut().zip(src.iter().step_by(step)).for_each(|(v, x)| *v = *x);
            s.load(&values)
        }
    }
}

/// Every second value of `src`, beginning with the first, until `dst` is full.
#[inline(always)]
fn copy_even<S: Simd>(s: S, src: &[f32], dst: &mut [f32]) {
    let n = dst.len();
    let src = &src[..2 * n - 1];
    let mut i = 0;
    while i + S::LANES < n {
        let (even, _) = s.deinterleave2(s.load(&src[2 * i..]), s.load(&src[2 * i + S::LANES..]));
        s.store(even, &mut dst[i..]);
        i += S::LANES;
    }
    s.store_part(gather(s, 2, &src[2 * i..], n - i), &mut dst[i..], n - i);
}

/// Cells of the values of `low` and `high`, `step` apart, until `dst` is full.
#[inline(always)]
fn copy_cells<S: Simd>(s: S, step: usize, low: &[f32], high: &[f32], dst: &mut [f32]) {
    match (S::TERMS, step) {
        (1, 1) => copy(s, &low[..dst.len()], dst),
        (1, 2) => copy_even(s, low, dst),
        (1, step) => dst.iter_mut().zip(low.iter().step_by(step)).for_each(|(d, x)| *d = *x),
        _ => {
            for i in (0..dst.len()).step_by(S::LANES) {
                let n = S::LANES.min(dst.len() - i);
                let low = gather(s, step, &low[i * step..], n);
                let high = gather(s, step, high.get(i * step..).unwrap_or(&[]), n);
                s.store_part(s.cell(low, high), &mut dst[i..], n);
            }
        }
    }
}

/// The planes of `images` images whose channels are those of several tensors side by side, each of them `[images, its channels, plane]`.
pub fn planes<'a>(tensors: &[&'a [f32]], images: usize, plane: usize) -> Vec<&'a [f32]> {
    let channels = |image: usize| {
        tensors.iter().flat_map(move |tensor| {
            let len = tensor.len() / images;
            tensor[image * len..][..len].chunks_exact(plane)
        })
    };
    (0..images).flat_map(channels).collect()
}

/// What the cells of a packed source are made of: the planes of `low` and, where a cell has two terms, those of `high`, both `stride` apart.
/// `high` may lack the last plane, or all: its terms are then zero.
#[derive(Clone, Copy)]
pub struct Planes<'a> {
    low: &'a [&'a [f32]],
    high: &'a [&'a [f32]],
    stride: usize,
}

impl<'a> Planes<'a> {
    /// Cells of neighbouring planes of one image.
    pub fn neighbours<S: Simd>(_: S, image: &'a [&'a [f32]]) -> Self {
        Self { low: image, high: if S::TERMS == 2 { &image[1..] } else { &[] }, stride: S::TERMS }
    }

    /// Cells of the same plane of neighbouring images.
    pub fn images(low: &'a [&'a [f32]], high: &'a [&'a [f32]]) -> Self {
        Self { low, high, stride: 1 }
    }

    /// The planes of channel `c`; those that do not exist are empty: they fill up a group.
    #[inline(always)]
    fn channel(&self, c: usize) -> [&'a [f32]; 2] {
        [self.low, self.high].map(|image| image.get(c * self.stride).copied().unwrap_or(&[]))
    }
}

/// Packs the strip of `rows` output rows that begins at `row` into `dst` (see [`View`]).
#[inline(always)]
pub fn pack_strip<S: Simd>(s: S, view: &View, image: Planes<'_>, row: usize, rows: usize, dst: &mut [f32]) {
    let source = view.source;
    let mut planes = dst.chunks_exact_mut(view.plane);
    for c in 0..source.channels {
        let ([low, high], next) = (image.channel(c), image.channel(c + 1));
        if view.pointwise {
            let Some(plane) = planes.next() else { return };
            if low.is_empty() {
                plane.fill(0.0);
                continue;
            }
            let run = row..row + rows;
            for next in next {
                s.prefetch(next.get(run.clone()).unwrap_or(&[]), false);
            }
            let (cells, behind) = plane.split_at_mut(rows);
            copy_cells(s, 1, &low[run.clone()], high.get(run).unwrap_or(&[]), cells);
            if S::GROUP > 1 {
                // A unit's last pixels are read here, and multiplied by zeros.
                behind.fill(0.0);
            }
            continue;
        }
        for (a, reach) in view.reach.iter().enumerate() {
            let top = view.source_row(row, a);
            for (p, column) in view.columns.iter().enumerate() {
                let Some(plane) = planes.next() else { return };
                if low.is_empty() {
                    plane.fill(0.0);
                    continue;
                }
                let (cells, behind) = plane.split_at_mut((rows + reach) * view.pitch);
                for (r, cells) in cells.chunks_exact_mut(view.pitch).enumerate() {
                    let y = top + (r * view.step[0]) as isize;
                    if y < 0 || y >= source.height as isize || column.first == column.end {
                        cells.fill(0.0);
                        continue;
                    }
                    let line = y as usize * source.width..(y as usize + 1) * source.width;
                    // A strip has too few rows of a channel for the processor to foresee the next channel's.
                    if p == 0 {
                        for next in next {
                            s.prefetch(next.get(line.clone()).unwrap_or(&[]), false);
                        }
                    }
                    let from = (column.start + (column.first * view.step[1]) as isize) as usize;
                    let part = line.start + from..line.end;
                    cells[..column.first].fill(0.0);
                    let body = &mut cells[column.first..column.end];
                    copy_cells(s, view.step[1], &low[part.clone()], high.get(part).unwrap_or(&[]), body);
                    cells[column.end..].fill(0.0);
                }
                // The run's last row reads its right padding here.
                behind.fill(0.0);
            }
        }
    }
}

/// Source memory that will be packed later, to be brought to the second-level cache meanwhile: packing only moves memory and
/// multiplying hardly any, so that alternating between them without looking ahead leaves half of the machine idle at each moment. Nothing by default.
#[derive(Default)]
pub struct Ahead<'a> {
    planes: &'a [&'a [f32]],
    /// The part of each plane.
    part: std::ops::Range<usize>,
    channel: usize,
    at: usize,
}

impl<'a> Ahead<'a> {
    /// The values `part` of each plane.
    pub fn new(planes: &'a [&'a [f32]], part: std::ops::Range<usize>) -> Self {
        Self { planes, at: part.start, part, channel: 0 }
    }

    /// All there is, in floats.
    pub fn len(&self) -> usize {
        self.planes.len() * self.part.len()
    }

    /// Asks for the next `n` floats.
    #[inline(always)]
    pub fn advance<S: Simd>(&mut self, s: S, mut n: usize) {
        while n > 0 && self.channel < self.planes.len() {
            let step = n.min(self.part.end - self.at);
            s.prefetch(&self.planes[self.channel][self.at..][..step], false);
            n -= step;
            self.at += step;
            if self.at == self.part.end {
                (self.channel, self.at) = (self.channel + 1, self.part.start);
            }
        }
    }
}

/// The weights as `matrix(m, r, t)`: `m` is the output channel of the product, `r` the channel summed over, `t` the tap.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub values: &'a [f32],
    /// Values of `m`.
    pub outputs: usize,
    /// Values of `r`.
    pub inputs: usize,
    /// Values of `t`.
    pub taps: usize,
    /// Stored `[m][r][t]`, or transposed: `[r][m][t]`.
    pub transposed: bool,
}

/// Packs weights into panels `[m / MR][r / TERMS / group][tap of the phase][MR][group]` of cells for each phase, a list of taps; missing rows
/// are zero.
pub fn pack_weights(level: Level, weights: Weights<'_>, group: usize, phases: &[&[usize]], panels: &mut [&mut [f32]]) {
    let Form { lanes, terms, mr, .. } = level.form();
    if level.form().group > 1 {
        return pack_groups(level, weights, group, mr, phases, panels);
    }
    let groups = weights.outputs.div_ceil(lanes);
    let mut tasks: Vec<WeightTask<'_>> =
        (0..groups).map(|g| WeightTask { weights, phases, first: g * lanes, panels: Vec::new() }).collect();
    for (phase, panels) in phases.iter().zip(panels) {
        let size = weights.inputs.div_ceil(terms) * phase.len() * lanes;
        if size > 0 {
            panels.chunks_mut(size).zip(&mut tasks).for_each(|(panel, task)| task.panels.push(panel));
        } else {
            tasks.iter_mut().for_each(|task| task.panels.push(&mut []));
        }
    }
    share(tasks, weights.values.len(), |task| simd::run(level, task));
}

/// Does `work` for each task, on this thread alone where all of them have few values.
pub fn share<T: Send>(tasks: Vec<T>, values: usize, work: impl Fn(T) + Send + Sync) {
    if values < WAKING {
        tasks.into_iter().for_each(work);
    } else {
        tasks.into_par_iter().with_max_len(1).for_each(work);
    }
}

/// [`pack_weights`] of a set of instructions that reads groups of rows.
fn pack_groups(level: Level, weights: Weights<'_>, group: usize, mr: usize, phases: &[&[usize]], panels: &mut [&mut [f32]]) {
    let cells = weights.inputs.div_ceil(level.form().terms).next_multiple_of(group);
    for (taps, panels) in phases.iter().zip(panels) {
        let task = |(i, panel)| simd::run(level, GroupTask { weights, group, taps, first: i * mr, panel });
        let panels: Vec<_> = panels.chunks_mut((cells * taps.len() * mr).max(1)).enumerate().collect();
        share(panels, weights.values.len(), task);
    }
}

/// A panel of one phase.
struct GroupTask<'a, 'b> {
    weights: Weights<'a>,
    group: usize,
    taps: &'a [usize],
    first: usize,
    panel: &'b mut [f32],
}

impl Task for GroupTask<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Weights { values, outputs, inputs, taps, transposed } = self.weights;
        let (stride_m, stride_r) = if transposed { (taps, outputs * taps) } else { (inputs * taps, taps) };
        let rows = S::MR.min(outputs - self.first);
        let (mut first, groups) = (0, self.panel.chunks_exact_mut(self.taps.len() * S::MR * self.group));
        for panel in groups {
            // Terms of this group, two to a cell.
            let terms = first..inputs.min(first + S::TERMS * self.group);
            for (&tap, block) in self.taps.iter().zip(panel.chunks_exact_mut(S::MR * self.group)) {
                for (i, cells) in block.chunks_exact_mut(self.group).enumerate() {
                    let mut halves = [[0.0; MAX_LANES]; 2];
                    if i < rows {
                        let row = &values[(self.first + i) * stride_m + tap..];
                        for (k, r) in terms.clone().enumerate() {
                            halves[k % S::TERMS][k / S::TERMS] = row[r * stride_r];
                        }
                    }
                    s.store_part(s.cell(s.load(&halves[0]), s.load(&halves[1])), cells, self.group);
                }
            }
            first = terms.end.max(first + S::TERMS * self.group);
        }
    }
}

/// One group of `LANES` output channels, for all phases.
struct WeightTask<'a> {
    weights: Weights<'a>,
    phases: &'a [&'a [usize]],
    first: usize,
    /// For each phase the group's panels, the last group's cut to whole panels that exist.
    panels: Vec<&'a mut [f32]>,
}

impl Task for WeightTask<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let w = self.weights;
        let rows = S::LANES.min(w.outputs - self.first);
        let mut block = [0.0; MAX_LANES * MAX_LANES];
        let all_taps = self.phases.len() == 1 && self.phases[0].len() == w.taps;
        if !w.transposed && all_taps {
            // (r, t) is contiguous and already in the order of the panel.
            let depth = w.inputs * w.taps;
            let values = &w.values[self.first * depth..];
            for k in (0..depth).step_by(S::LANES) {
                let cols = S::LANES.min(depth - k);
                s.transpose(&values[k..], depth, rows, cols, &mut block, S::LANES);
                for c in 0..cols {
                    scatter(s, &block[c * S::LANES..], &mut *self.panels[0], [w.inputs, w.taps], [(k + c) / w.taps, (k + c) % w.taps]);
                }
            }
            return;
        }
        let (stride_m, stride_r) = if w.transposed { (w.taps, w.outputs * w.taps) } else { (w.inputs * w.taps, w.taps) };
        for r in 0..w.inputs {
            let values = &w.values[self.first * stride_m + r * stride_r..];
            for t in (0..w.taps).step_by(S::LANES) {
                let cols = S::LANES.min(w.taps - t);
                if stride_m == 1 {
                    block[..rows].copy_from_slice(&values[..rows]);
                } else {
                    s.transpose(&values[t..], stride_m, rows, cols, &mut block, S::LANES);
                }
                for (phase, panels) in self.phases.iter().zip(&mut self.panels) {
                    for (i, &tap) in phase.iter().enumerate() {
                        if (t..t + cols).contains(&tap) {
                            scatter(s, &block[(tap - t) * S::LANES..], panels, [w.inputs, phase.len()], [r, i]);
                        }
                    }
                }
            }
        }
    }
}

/// Writes `LANES` rows' weights of input `r` and tap `t` into their panels of `MR` rows, for all inputs and taps.
#[inline(always)]
fn scatter<S: Simd>(s: S, column: &[f32], panels: &mut [f32], [inputs, taps]: [usize; 2], [r, t]: [usize; 2]) {
    let depth = inputs.div_ceil(S::TERMS) * taps;
    let mut at = (r / S::TERMS * taps + t) * S::MR;
    for part in column[..S::LANES].chunks_exact(S::MR) {
        if at < panels.len() {
            let cells = &mut panels[at..at + S::MR];
            if S::TERMS == 1 {
                cells.copy_from_slice(part);
            } else {
                // The first term waits in its cell, as it is, for the second.
                let term = s.load_part(part, S::MR);
                let complete = match r % 2 {
                    0 if r + 1 < inputs => term,
                    0 => s.cell(term, s.zero()),
                    _ => s.cell(s.load_part(cells, S::MR), term),
                };
                s.store_part(complete, cells, S::MR);
            }
        }
        at += depth * S::MR;
    }
}
