//! The transform of the filters, `G g G^T`, and back for their gradient, `G^T s G`.
//!
//! Lanes are output channels of the product. The forward pass reads `w[co][ci][9]`, so 16 filters of one output channel each are 16 long
//! rows: square transposes bring the taps of a vector of channels together. For the gradient of the input the roles of the channels are
//! exchanged and the kernel is turned by 180 degrees; the rows to transpose are then only 9 long.

use rayon::prelude::*;

use super::super::scratch::{self, Buffer};
use super::super::simd::{Level, Simd, Task};
use super::tiling::{Layout, POINTS};
use super::transform;
use crate::tasks::task;

/// The weights as `w[co][ci][9]`, and which of the two is reduced over.
#[derive(Clone, Copy)]
pub struct Filters<'a> {
    pub w: &'a [f32],
    /// Channels of the convolution's input, and of its output.
    pub reduced: usize,
    pub produced: usize,
    /// Whether to reduce over `co` (gradient of the input) instead of `ci`.
    pub transposed: bool,
}

impl Filters<'_> {
    /// Transforms the filters, for each vector of produced channels to `[point][reduced channel, padded][LANES]`: about 4 times the weights.
    pub fn transformed(self, level: Level, room: fn(usize) -> Buffer) -> Buffer {
        let lanes = level.form().lanes;
        let (blocks, vectors) = (self.reduced.div_ceil(lanes), self.produced.div_ceil(lanes));
        let (padded, channels) = (blocks * lanes, blocks_per_task(blocks, vectors, rayon::current_num_threads()) * lanes);
        let layout = Layout::new(padded, lanes);
        let mut transformed = room(vectors * layout.block());
        let mut tasks = Vec::new();
        for (vector, out) in transformed.chunks_exact_mut(layout.block()).enumerate() {
            let of_vector = tasks.len();
            let parts = (0..padded).step_by(channels);
            tasks.extend(parts.map(|start| (vector, start, Vec::with_capacity(POINTS))));
            for point in out.chunks_exact_mut(layout.point) {
                let parts = point[..padded * lanes].chunks_mut(channels * lanes);
                parts.zip(&mut tasks[of_vector..]).for_each(|(part, (.., points))| points.push(part));
            }
        }
        tasks.into_par_iter().with_max_len(1).for_each(|(vector, start, mut points)| forward(level, self, vector, start, &mut points));
        transformed
    }
}

/// How many blocks of reduced channels a task transforms the filters of: all, or fewer if the vectors of produced channels are not two for every thread.
fn blocks_per_task(blocks: usize, vectors: usize, threads: usize) -> usize {
    blocks.div_ceil((2 * threads).div_ceil(vectors))
}

task! {
    /// Transforms some filters of one vector of produced channels: those of the reduced channels from `start`, a multiple of `LANES`, on, of which
    /// `points` has each point's part.
    fn forward<S, 'b>(s, f: Filters<'a>, vector: usize, start: usize, points: &'a mut [&'b mut [f32]]) {
        let l = S::LANES;
        let end = f.reduced.min(start + points[0].len() / l);
        let first = vector * l;
        let lanes = l.min(f.produced - first);
        let mut taps = scratch::take(9 * l * l);
        for block in (start..end).step_by(l) {
            let channels = l.min(end - block);
            if f.transposed {
                for k in 0..channels {
                    let rows = &f.w[((block + k) * f.produced + first) * 9..];
                    for tap in (0..9).step_by(l) {
                        s.transpose(&rows[tap..], 9, lanes, l.min(9 - tap), &mut taps[(k * 9 + tap) * l..], l);
                    }
                }
            } else {
                let rows = &f.w[(first * f.reduced + block) * 9..];
                for tap in (0..9 * channels).step_by(l) {
                    s.transpose(&rows[tap..], f.reduced * 9, lanes, l.min(9 * channels - tap), &mut taps[tap * l..], l);
                }
            }
            for k in 0..channels {
                transform_one(s, &taps[k * 9 * l..][..9 * l], f.transposed, points, (block - start + k) * l);
            }
            // The products run over whole blocks of channels.
            for point in points.iter_mut() {
                point[(block - start) * l..][channels * l..l * l].fill(0.0);
            }
        }
    }
}

/// `G g G^T` of a vector of filters, `turned` by 180 degrees first, to `at` in each point.
#[inline(always)]
fn transform_one<S: Simd>(s: S, taps: &[f32], turned: bool, points: &mut [&mut [f32]], at: usize) {
    let l = S::LANES;
    let mut half = [[s.zero(); 6]; 3];
    for (column, h) in half.iter_mut().enumerate() {
        let mut g = [s.zero(); 3];
        for (row, v) in g.iter_mut().enumerate() {
            let tap = row * 3 + column;
            *v = s.load(&taps[if turned { 8 - tap } else { tap } * l..]);
        }
        *h = transform::filter(s, g);
    }
    for row in 0..6 {
        let u = transform::filter(s, [half[0][row], half[1][row], half[2][row]]);
        for (column, &v) in u.iter().enumerate() {
            s.store(v, &mut points[row * 6 + column][at..at + l]);
        }
    }
}

/// Adds up the sums of a vector of output channels and of one of input channels, and transforms them to the gradient of the weights.
pub struct Gradient<'a, 'b> {
    /// Sums of the tasks that shared the tiles, in the order to add them, each `[point][ci][LANES]`.
    pub sums: Vec<&'a [f32]>,
    /// Of each of `sums`, over the padded number of input channels.
    pub layout: Layout,
    /// The first input channel.
    pub first: usize,
    /// By output channel, `[ci][9]` from the first on, at most `LANES` of each.
    pub rows: Vec<&'b mut [f32]>,
}

impl Task for Gradient<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let l = S::LANES;
        let mut taps = scratch::take(9 * l * l);
        let all = self.rows[0].len();
        for k in 0..all / 9 {
            gradient_one(s, &self.sums, (self.first + k) * l, self.layout, &mut taps[k * 9 * l..][..9 * l]);
        }
        for tap in (0..all).step_by(l) {
            s.transpose_rows(&taps[tap * l..], l, l.min(all - tap), &mut self.rows, tap);
        }
    }
}

/// `G^T s G` of a vector of sums.
#[inline(always)]
fn gradient_one<S: Simd>(s: S, sums: &[&[f32]], at: usize, layout: Layout, taps: &mut [f32]) {
    let l = S::LANES;
    let mut half = [[s.zero(); 3]; 6];
    for (column, h) in half.iter_mut().enumerate() {
        let mut u = [s.zero(); 6];
        for (row, v) in u.iter_mut().enumerate() {
            let at = at + (row * 6 + column) * layout.point;
            for sum in sums {
                *v = s.add(*v, s.load(&sum[at..at + l]));
            }
        }
        *h = transform::filter_gradient(s, u);
    }
    for row in 0..3 {
        let [a, b, c, d, e, f] = &half;
        let g = transform::filter_gradient(s, [a[row], b[row], c[row], d[row], e[row], f[row]]);
        for (column, &v) in g.iter().enumerate() {
            s.store(v, &mut taps[(row * 3 + column) * l..]);
        }
    }
}

#[test]
fn every_thread_has_filters_to_transform() {
    for (blocks, vectors) in [(1, 1), (2, 2), (4, 4), (8, 8), (8, 4), (16_usize, 4)] {
        for threads in [1, 2, 16, 64] {
            let tasks = vectors * blocks.div_ceil(blocks_per_task(blocks, vectors, threads));
            assert!(tasks >= threads.min(vectors * blocks / 2), "{tasks} tasks for {threads} threads of {blocks} by {vectors}");
        }
    }
}
