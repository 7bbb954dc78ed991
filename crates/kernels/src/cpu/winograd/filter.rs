//! The transform of the filters, `G g G^T`, and back for their gradient, `G^T s G`.
//!
//! Lanes are output channels of the product. The forward pass reads `w[co][ci][9]`, so 16 filters of one output channel each are 16 long
//! rows: square transposes bring the taps of a vector of channels together. For the gradient of the input the roles of the channels are
//! exchanged and the kernel is turned by 180 degrees; the rows to transpose are then only 9 long.

use rayon::prelude::*;

use super::super::scratch;
use super::super::simd::{self, Level, Simd, Task};
use super::tiling::{Layout, POINTS};
use super::transform;

/// The weights as `w[co][ci][9]`, and which of the two is reduced over.
#[derive(Clone, Copy)]
pub struct Filters<'a> {
    pub w: &'a [f32],
    pub out_channels: usize,
    pub in_channels: usize,
    /// Whether to reduce over `co` (gradient of the input) instead of `ci`.
    pub transposed: bool,
}

impl Filters<'_> {
    /// Channels of the convolution's input: those reduced over.
    pub fn reduced(&self) -> usize {
        if self.transposed { self.out_channels } else { self.in_channels }
    }

    /// Channels of the convolution's output.
    pub fn produced(&self) -> usize {
        if self.transposed { self.in_channels } else { self.out_channels }
    }
}

/// Transforms filters of one vector of produced channels to `[point][reduced channel, padded][LANES]`.
pub struct Forward<'a, 'b> {
    pub filters: Filters<'a>,
    /// Which vector of produced channels.
    pub vector: usize,
    /// The first of the reduced channels, a multiple of `LANES`.
    pub first: usize,
    /// For each point the channels from there on.
    pub points: Vec<&'b mut [f32]>,
}

/// Floats of the transformed filters, about 4 times the weights.
pub fn transformed_len(level: Level, filters: Filters<'_>) -> usize {
    let lanes = level.form().lanes;
    filters.produced().div_ceil(lanes) * layout(filters, lanes).block()
}

/// Transforms the filters, for each vector of produced channels to `[point][reduced channel, padded][LANES]`.
pub fn transform_all(level: Level, filters: Filters<'_>, transformed: &mut [f32]) {
    let lanes = level.form().lanes;
    let (blocks, vectors) = (filters.reduced().div_ceil(lanes), filters.produced().div_ceil(lanes));
    let channels = blocks_per_task(blocks, vectors, rayon::current_num_threads()) * lanes;
    let tasks = forward_tasks(filters, layout(filters, lanes), channels, lanes, transformed);
    tasks.into_par_iter().with_max_len(1).for_each(|task| simd::run(level, task));
}

/// Of the transformed filters of one vector of produced channels.
fn layout(filters: Filters<'_>, lanes: usize) -> Layout {
    Layout::new(filters.reduced().next_multiple_of(lanes), lanes)
}

/// How many blocks of reduced channels a task transforms the filters of: all, or fewer if the vectors of produced channels are not two for every
/// thread.
fn blocks_per_task(blocks: usize, vectors: usize, threads: usize) -> usize {
    blocks.div_ceil((2 * threads).div_ceil(vectors))
}

/// Cuts `transformed`, for each vector `[point][reduced channel, padded][LANES]`, into tasks of up to `channels` reduced channels.
fn forward_tasks<'a, 'b>(
    filters: Filters<'a>,
    layout: Layout,
    channels: usize,
    lanes: usize,
    transformed: &'b mut [f32],
) -> Vec<Forward<'a, 'b>> {
    let padded = filters.reduced().next_multiple_of(lanes);
    let mut tasks = Vec::new();
    for (vector, out) in transformed.chunks_exact_mut(layout.block()).enumerate() {
        let of_vector = tasks.len();
        let parts = (0..padded).step_by(channels);
        tasks.extend(parts.map(|first| Forward { filters, vector, first, points: Vec::with_capacity(POINTS) }));
        for point in out.chunks_exact_mut(layout.point) {
            let parts = point[..padded * lanes].chunks_mut(channels * lanes);
            parts.zip(&mut tasks[of_vector..]).for_each(|(part, task)| task.points.push(part));
        }
    }
    tasks
}

impl Task for Forward<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let l = S::LANES;
        let f = self.filters;
        let end = f.reduced().min(self.first + self.points[0].len() / l);
        let first = self.vector * l;
        let lanes = l.min(f.produced() - first);
        let mut taps = scratch::take(9 * l * l);
        for block in (self.first..end).step_by(l) {
            let channels = l.min(end - block);
            if f.transposed {
                for k in 0..channels {
                    let rows = &f.w[((block + k) * f.in_channels + first) * 9..];
                    for tap in (0..9).step_by(l) {
                        s.transpose(&rows[tap..], 9, lanes, l.min(9 - tap), &mut taps[(k * 9 + tap) * l..], l);
                    }
                }
            } else {
                let rows = &f.w[(first * f.in_channels + block) * 9..];
                for tap in (0..9 * channels).step_by(l) {
                    s.transpose(&rows[tap..], f.in_channels * 9, lanes, l.min(9 * channels - tap), &mut taps[tap * l..], l);
                }
            }
            for k in 0..channels {
                transform_one(s, &taps[k * 9 * l..][..9 * l], f.transposed, &mut self.points, (block - self.first + k) * l);
            }
            // The products run over whole blocks of channels.
            for k in channels..l {
                for point in &mut self.points {
                    point[(block - self.first + k) * l..][..l].fill(0.0);
                }
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

/// Adds up the sums of a vector of output channels and transforms them to the gradient of the weights.
pub struct Gradient<'a, 'b> {
    /// Sums of the tasks that shared the tiles, in the order to add them, each `[point][ci][LANES]`.
    pub sums: Vec<&'a [f32]>,
    /// Of each of `sums`, over the padded number of input channels.
    pub layout: Layout,
    /// The first input channel.
    pub first: usize,
    /// By output channel, `[ci][9]` from the first on.
    pub rows: Vec<&'b mut [f32]>,
}

impl Task for Gradient<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let l = S::LANES;
        let mut taps = scratch::take(9 * l * l);
        let in_channels = self.rows[0].len() / 9;
        for block in (0..in_channels).step_by(l) {
            let channels = l.min(in_channels - block);
            for k in 0..channels {
                gradient_one(s, &self.sums, (self.first + block + k) * l, self.layout, &mut taps[k * 9 * l..][..9 * l]);
            }
            for tap in (0..9 * channels).step_by(l) {
                s.transpose_rows(&taps[tap * l..], l, l.min(9 * channels - tap), &mut self.rows, block * 9 + tap);
            }
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
        let mut u = [s.zero(); 6];
        for (v, h) in u.iter_mut().zip(&half) {
            *v = h[row];
        }
        let g = transform::filter_gradient(s, u);
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
