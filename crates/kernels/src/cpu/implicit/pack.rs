//! Copies: strips of the source into planes, weights into panels.

use super::super::simd::{self, Level, Simd, Task};
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
    let rest = &src[2 * i..];
    let low = s.load_part(rest, rest.len().min(S::LANES));
    let high = if rest.len() > S::LANES { s.load_part(&rest[S::LANES..], rest.len() - S::LANES) } else { s.zero() };
    let (even, _) = s.deinterleave2(low, high);
    s.store_part(even, &mut dst[i..], n - i);
}

/// Packs the strip of `rows` output rows that begins at `row` of one image into `dst` (see [`View`]).
#[inline(always)]
pub fn pack_strip<S: Simd>(s: S, view: &View, image: &[f32], row: usize, rows: usize, dst: &mut [f32]) {
    let source = view.source;
    let mut planes = dst.chunks_exact_mut(view.plane);
    let plane_len = source.height * source.width;
    for c in 0..source.channels {
        let (channel, next) = image[c * plane_len..].split_at(plane_len);
        for (a, reach) in view.reach.iter().enumerate() {
            let top = view.source_row(row, a);
            for (p, column) in view.columns.iter().enumerate() {
                let Some(plane) = planes.next() else { return };
                let (cells, behind) = plane.split_at_mut((rows + reach) * view.pitch);
                for (r, cells) in cells.chunks_exact_mut(view.pitch).enumerate() {
                    let y = top + (r * view.step[0]) as isize;
                    if y < 0 || y >= source.height as isize || column.first == column.end {
                        cells.fill(0.0);
                        continue;
                    }
                    let line = y as usize * source.width..(y as usize + 1) * source.width;
                    // A strip has too few rows of a channel for the processor to foresee the next channel's.
                    if p == 0 && !next.is_empty() {
                        s.prefetch_read(&next[line.clone()]);
                    }
                    let line = &channel[line];
                    let from = (column.start + (column.first * view.step[1]) as isize) as usize;
                    cells[..column.first].fill(0.0);
                    let body = &mut cells[column.first..column.end];
                    match view.step[1] {
                        1 => copy(s, &line[from..from + body.len()], body),
                        2 => copy_even(s, &line[from..], body),
                        step => body.iter_mut().zip(line[from..].iter().step_by(step)).for_each(|(d, x)| *d = *x),
                    }
                    cells[column.end..].fill(0.0);
                }
                // The run's last row reads its right padding here.
                behind.fill(0.0);
            }
        }
    }
}

/// Source memory that will be packed later, to be brought to the second-level cache meanwhile: packing only moves memory and
/// multiplying hardly any, so that alternating between them without looking ahead leaves half of the machine idle at each moment.
pub struct Ahead<'a> {
    image: &'a [f32],
    plane: usize,
    /// The part of each plane.
    part: std::ops::Range<usize>,
    channel: usize,
    at: usize,
}

impl<'a> Ahead<'a> {
    /// The values `part` of each plane of `image`.
    pub fn new(image: &'a [f32], plane: usize, part: std::ops::Range<usize>) -> Self {
        Self { image, plane, at: part.start, part, channel: 0 }
    }

    /// Nothing to look forward to.
    pub fn nothing() -> Self {
        Self::new(&[], 1, 0..0)
    }

    /// All there is, in floats.
    pub fn len(&self) -> usize {
        self.image.len() / self.plane * self.part.len()
    }

    /// Asks for the next `n` floats.
    #[inline(always)]
    pub fn advance<S: Simd>(&mut self, s: S, mut n: usize) {
        while n > 0 && self.channel * self.plane < self.image.len() {
            let step = n.min(self.part.end - self.at);
            s.prefetch_read(&self.image[self.channel * self.plane + self.at..][..step]);
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

/// Packs weights into panels `[m / MR][r][tap of the phase][MR]` for each phase, a list of taps; missing rows are zero.
pub fn pack_weights(level: Level, weights: Weights<'_>, phases: &[&[usize]], panels: &mut [&mut [f32]]) {
    let lanes = simd::run(level, Lanes);
    let groups = weights.outputs.div_ceil(lanes);
    let mut tasks: Vec<WeightTask<'_>> =
        (0..groups).map(|g| WeightTask { weights, phases, first: g * lanes, panels: Vec::new() }).collect();
    for (phase, panels) in phases.iter().zip(panels) {
        let size = weights.inputs * phase.len() * lanes;
        if size > 0 {
            panels.chunks_mut(size).zip(&mut tasks).for_each(|(panel, task)| task.panels.push(panel));
        } else {
            tasks.iter_mut().for_each(|task| task.panels.push(&mut []));
        }
    }
    // Below some 100 KB waking another thread costs more than it saves.
    if weights.values.len() < 1 << 15 {
        tasks.into_iter().for_each(|task| simd::run(level, task));
    } else {
        tasks.into_par_iter().for_each(|task| simd::run(level, task));
    }
}

/// Asks an instruction set for its width.
struct Lanes;

impl Task for Lanes {
    type Out = usize;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::LANES
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

/// Largest number of lanes of any instruction set.
const MAX_LANES: usize = 16;

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
                    scatter(s, &block[c * S::LANES..], &mut *self.panels[0], depth, k + c);
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
                            scatter(s, &block[(tap - t) * S::LANES..], panels, w.inputs * phase.len(), r * phase.len() + i);
                        }
                    }
                }
            }
        }
    }
}

/// Writes `LANES` rows' values of column `k` into their panels of `MR` rows and `depth` columns.
#[inline(always)]
fn scatter<S: Simd>(_: S, column: &[f32], panels: &mut [f32], depth: usize, k: usize) {
    let mut at = k * S::MR;
    for part in column[..S::LANES].chunks_exact(S::MR) {
        if at < panels.len() {
            panels[at..at + S::MR].copy_from_slice(part);
        }
        at += depth * S::MR;
    }
}
