//! The product itself, for the forward pass and the gradient of the input: tasks of an image, a strip of rows and a range of output
//! channels, each of which packs its strip and runs the tile over it.

use super::super::machine::{BLOCK, GROUPED_BLOCK, Machine, PACKING_COST, TASK_COST, TILE_COST, UNIT_RATE, machine};
use super::super::scratch;
use super::super::shape::Epilogue;
use super::super::simd::{self, Form, Group, Level, Offsets, Simd, Starts, Task, Tile, To};
use super::pack::{Ahead, copy, pack_strip, plane, planes};
use super::view::{Source, Tap, View, largest};
use rayon::prelude::*;

/// A product: the outputs `(i * spread + residue)` gather taps of the source.
pub struct Product<'a> {
    pub source: Source,
    /// Step of the gathering.
    pub step: [usize; 2],
    /// Step of the scattering: `spread[0] * spread[1]` phases, columns innermost.
    pub spread: [usize; 2],
    /// The taps of the outputs whose row and column have the same residues modulo the spread.
    pub phases: Vec<Vec<Tap>>,
    /// Weights `[m][r][tap]`, m being the output channel and r the one summed over.
    pub w: &'a [f32],
    /// Or `[r][m][tap]`.
    pub transposed: bool,
    /// Values of m.
    pub outputs: usize,
    /// Of the output.
    pub height: usize,
    pub width: usize,
    pub epilogue: Epilogue<'a>,
}

impl Product<'_> {
    /// Taps of all phases, which are the kernel's.
    pub fn taps(&self) -> usize {
        self.phases.iter().map(Vec::len).sum()
    }

    /// Distances of m and r in the weights.
    pub fn strides(&self) -> [usize; 2] {
        let taps = self.taps();
        if self.transposed { [taps, self.outputs * taps] } else { [self.source.channels * taps, taps] }
    }

    /// Cells of the source's channels, filled up to whole groups, and the rows of a group.
    pub fn cells(&self, level: Level) -> (usize, usize) {
        let Form { terms, group, .. } = level.form();
        let cells = self.source.channels.div_ceil(terms);
        let size = Group::size_of(cells, group);
        (cells.next_multiple_of(size), size)
    }

    /// Floats of the packed weights of one tap.
    pub fn tap_len(&self, level: Level) -> usize {
        self.cells(level).0 * self.outputs.next_multiple_of(level.form().mr)
    }
}

/// A phase ready to multiply.
struct Factor<'a> {
    panels: &'a [f32],
    /// Length of the sum, in groups.
    depth: usize,
    /// The sum cut into equal blocks, at least one: where each row of the right-hand side starts.
    blocks: Vec<Offsets>,
}

struct Shared<'a> {
    product: &'a Product<'a>,
    view: &'a View,
    factors: &'a [Factor<'a>],
    group: Group,
    /// The planes of each.
    images: &'a [&'a [&'a [f32]]],
    /// The first tensor's: all, if there is no other.
    values: &'a [f32],
}

/// One image, strip and range of output channels.
struct Strip<'a, 'b> {
    shared: &'a Shared<'a>,
    image: usize,
    /// First output row (of a phase) and their number.
    row: usize,
    rows: usize,
    /// First panel of output channels.
    panel: usize,
    /// What the task after this one, most likely the same thread's, will pack.
    ahead: Ahead<'a>,
    /// The strip of each output channel's plane.
    out: Vec<&'b mut [f32]>,
}

/// Computes `out[n, m] = product(source[n])` for every image of `source`, with the product's `packed` weights. The channels of either may be
/// those of several tensors side by side.
pub fn multiply(level: Level, product: &Product<'_>, packed: &[f32], source: &[&[f32]], out: &mut [&mut [f32]]) {
    multiply_as(level, product, !collides(machine(), product.source), packed, source, out);
}

/// Whether reading a source in place would find less and less of it in the first-level cache: planes a whole number of pages apart have the same
/// columns in the same set, which holds a few of them. Copied to a strip they lie anywhere. (160 x 160 pixels: 10 to 35 % of the pass; where
/// planes spread over four sets or more, copying costs as much as it saves.)
fn collides(machine: Machine, source: Source) -> bool {
    let plane = source.height * source.width * size_of::<f32>();
    plane.is_multiple_of(machine.first.bytes / machine.first.ways) && source.channels > machine.first.ways
}

/// [`multiply`], reading the source in place where it can if `in_place`. Both ways form the same sums.
pub(super) fn multiply_as(level: Level, product: &Product<'_>, in_place: bool, packed: &[f32], source: &[&[f32]], out: &mut [&mut [f32]]) {
    let form = level.form();
    let extent = [product.height.div_ceil(product.spread[0]), product.width.div_ceil(product.spread[1])];
    let taps = product.phases.concat();
    let (channels, size) = product.cells(level);
    let source_cells = Source { channels, ..product.source };
    // Starts are counted from one place, which several tensors do not have.
    let in_place = in_place && form.terms == 1 && source.len() == 1;
    let mut view = View::new(source_cells, [product.step, product.spread], extent, &taps, product.outputs, in_place);
    let images = out.iter().map(|out| out.len()).sum::<usize>() / (product.outputs * product.height * product.width);
    let panels = product.outputs.div_ceil(form.mr);
    let [strip, panels_per_task] = Division { view: &view, images, panels, taps: taps.len(), form }.best(rayon::current_num_threads());
    view.set_strip(strip);

    let most = if form.group > 1 { GROUPED_BLOCK } else { BLOCK };
    let mut rest = packed;
    let factor = |taps: &Vec<Tap>| {
        let (panels, behind) = rest.split_at(taps.len() * product.tap_len(level));
        rest = behind;
        let table = view.offset_table(taps, size);
        let blocks = (table.len() * size).div_ceil(most).max(1);
        // A phase without taps is a sum of nothing, which must still write zeros.
        let none = table.is_empty().then_some(&table[..]);
        let blocks = table.chunks(table.len().div_ceil(blocks).max(1)).chain(none).map(|block| Offsets::new(block.to_vec()));
        Factor { panels, depth: table.len(), blocks: blocks.collect() }
    };
    let factors: Vec<Factor<'_>> = product.phases.iter().map(factor).collect();

    let group = Group { size, apart: view.channel() };
    let planes = planes(source, images, product.source.height * product.source.width);
    let images: Vec<&[&[f32]]> = planes.chunks_exact(product.source.channels).collect();
    let shared = Shared { product, view: &view, factors: &factors, group, images: &images, values: source[0] };
    tasks(&shared, [panels_per_task, form.mr], out).into_par_iter().with_max_len(1).for_each(|task| simd::run(level, task));
}

/// Cuts the output into the parts of tasks of so many panels of so many rows.
fn tasks<'a, 'b>(shared: &'a Shared<'a>, [panels, mr]: [usize; 2], out: &'b mut [&mut [f32]]) -> Vec<Strip<'a, 'b>> {
    let Shared { product, view, images, .. } = *shared;
    let channels = panels * mr;
    let (strips, parts) = (view.strips(), product.outputs.div_ceil(channels));
    // A pointwise view counts pixels as rows.
    let row_len = if view.pointwise { 1 } else { product.spread[0] * product.width };
    let task = |index| {
        let (strip, part) = (index / parts, index % parts);
        let (image, row, rows) = view.strip_at(strip);
        let ahead = if part + 1 == parts && strip + 1 < images.len() * strips && !view.direct {
            let (image, row, rows) = view.strip_at(strip + 1);
            Ahead::new(images[image], view.source_part(row, rows))
        } else {
            Ahead::default()
        };
        Strip { shared, image, row, rows, panel: part * panels, ahead, out: Vec::with_capacity(channels) }
    };
    let mut tasks: Vec<Strip<'a, 'b>> = (0..images.len() * strips * parts).map(task).collect();
    let (plane, mut first) = (product.height * product.width, 0);
    for out in out {
        // Channels of this tensor.
        let own = out.len() / (images.len() * plane);
        for (index, plane) in out.chunks_exact_mut(plane).enumerate() {
            let (image, channel) = (index / own, first + index % own);
            for (s, strip) in plane.chunks_mut(view.strip * row_len).enumerate() {
                tasks[(image * strips + s) * parts + channel / channels].out.push(strip);
            }
        }
        first += own;
    }
    tasks
}

/// What is to be divided: rows of `images` and panels of output channels.
struct Division<'a> {
    view: &'a View,
    images: usize,
    panels: usize,
    taps: usize,
    form: Form,
}

impl Division<'_> {
    /// The rows of a strip and the panels of a task with the least estimated time to the end of the last task.
    fn best(&self, threads: usize) -> [usize; 2] {
        let timed = self.splits(threads).into_iter().map(|split| (self.time(split, threads), split));
        let best = timed.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or([self.view.rows, self.panels], |(_, split)| split)
    }

    /// The divisions into up to `8 threads` strips more than the cache asks for, and up to `4 threads` ranges of panels. Most numbers of
    /// parts give the parts the size that the number before gave them, so that of n rows at most 2 √n sizes are left.
    fn splits(&self, threads: usize) -> Vec<[usize; 2]> {
        let view = self.view;
        let most = largest(view.rows, |rows| view.direct || view.strip_len(rows) <= machine().strip_cells());
        let fewest = view.rows.div_ceil(most);
        let mut strips: Vec<usize> = (fewest..=view.rows.min(fewest + 8 * threads)).map(|strips| view.rows.div_ceil(strips)).collect();
        if view.pointwise {
            strips.iter_mut().for_each(|strip| *strip = strip.next_multiple_of(self.form.nr).min(view.rows));
        }
        strips.dedup();
        let mut panels: Vec<usize> = (1..=self.panels.min(4 * threads)).map(|parts| self.panels.div_ceil(parts)).collect();
        panels.dedup();
        strips.iter().flat_map(|&strip| panels.iter().map(move |&panels| [strip, panels])).collect()
    }

    /// The estimated time, in multiply-adds of a vector.
    ///
    /// Strips cost the rows they share and the unfilled end of their run, ranges of output channels cost packing the same strip again;
    /// both serve to have something for every thread and a balanced end.
    fn time(&self, [strip, panels]: [usize; 2], threads: usize) -> f64 {
        let (view, lanes) = (self.view, self.form.nr / 3);
        let vectors = view.run(strip).div_ceil(lanes);
        let packing = if view.direct { 0.0 } else { view.strip_len(strip) as f64 / lanes as f64 * PACKING_COST };
        let depth = (view.source.channels * self.taps) as f64;
        let rate = if self.form.group > 1 { UNIT_RATE } else { 1.0 };
        let work = panels as f64 * vectors as f64 * self.form.mr as f64 * (depth / rate + TILE_COST);
        let task = work + packing + TASK_COST;
        let tasks = (self.images * view.rows.div_ceil(strip) * self.panels.div_ceil(panels)) as f64;
        // The last term: smaller tasks suffer less from a thread that is interrupted.
        (tasks / threads as f64).ceil() * task + 0.1 * task
    }
}

impl Task for Strip<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Shared { product, view, factors, group, images, values } = *self.shared;
        // A unit reads whole registers: the last of a run reaches behind it.
        let reach = if S::GROUP > 1 { S::LANES } else { 0 };
        let mut buffer = scratch::take(if view.direct { 0 } else { view.strip_len(view.strip) + reach });
        let source = if view.direct {
            let len = view.source.channels * view.source.height;
            &values[self.image * len..][self.row..len]
        } else {
            // Cells of neighbouring planes.
            let channel = |c| [0, 1].map(|term| if term < S::TERMS { plane(images[self.image], c * S::TERMS + term) } else { &[] });
            pack_strip(s, view, channel, self.row, self.rows, &mut buffer);
            &buffer[..]
        };
        let run = view.run(self.rows);
        let panels = self.out.len().div_ceil(S::MR);
        // For each phase and panel a tile.
        let tile_len = S::MR * S::NR;
        // A tile that is finished when it is multiplied, and whose columns are neighbours in the output, is stored there.
        let Epilogue { bias, silu } = product.epilogue;
        let plain = bias.is_none() && !silu && product.spread == [1, 1] && view.pitch == view.cols;
        let straight = plain && factors.iter().all(|factor| factor.blocks.len() == 1);
        let mut results = scratch::take(if straight { 0 } else { product.spread[1] * panels * tile_len });
        let first = self.panel;
        let mut unit = s.unit(S::GROUP, group.size);
        let share = self.ahead.len().div_ceil(product.spread[0] * run.div_ceil(S::NR)).next_multiple_of(16);
        for (residue, factors) in factors.chunks_exact(product.spread[1]).enumerate() {
            // All panels pass over a tile before the next: the weights (32 bytes per step of the sum, in order) are easier to bring
            // from the second-level cache again and again than the three scattered cache lines of the right-hand side.
            for from in (0..run).step_by(S::NR) {
                let cols = S::NR.min(run - from);
                self.ahead.advance(s, share);
                let b = &source[from.min(source.len())..];
                let place = Place { product, view, from, cols, residue };
                let target = place.extent(self.out[0].len());
                for (phase, factor) in factors.iter().enumerate() {
                    // Cells of a panel for one group, and the panels' distance.
                    let step = S::MR * group.size;
                    let (apart, mut start) = (factor.depth * step, 0);
                    for offsets in &factor.blocks {
                        let last = phase + 1 == factors.len() && start + offsets.depth() == factor.depth;
                        for panel in (0..panels).step_by(S::TOGETHER) {
                            let count = S::TOGETHER.min(panels - panel);
                            let a = &factor.panels[(first + panel) * apart + start * step..];
                            let a = &a[..(count - 1) * apart + offsets.depth() * step];
                            let out = &mut self.out[panel * S::MR..];
                            let rows = (count * S::MR).min(out.len());
                            if last {
                                for out in &out[..rows] {
                                    s.prefetch(&out[target.clone()], true);
                                }
                            }
                            let at = (phase * panels + panel) * tile_len;
                            // A packed strip is near already.
                            let prefetch = view.direct && panel == 0;
                            let (accumulate, starts) = (start > 0, Starts::Table(offsets));
                            let block = at..at + count * tile_len;
                            let c = if straight { To::Rows(out, from) } else { To::Block(&mut results[block], S::NR) };
                            s.tile(&mut unit, Tile { a, panel: apart, group, b, starts, c, rows, cols, accumulate, prefetch });
                            if last && !straight {
                                for (row, out) in out[..rows].iter_mut().enumerate() {
                                    let channel = panel * S::MR + row;
                                    let bias = bias.map_or(0.0, |b| b[first * S::MR + channel]);
                                    place.finish(s, &mut results[channel * S::NR..], panels * tile_len, bias, out);
                                }
                            }
                        }
                        start += offsets.depth();
                    }
                }
            }
        }
    }
}

/// Where the columns of a tile belong.
struct Place<'a> {
    product: &'a Product<'a>,
    view: &'a View,
    /// Position in the run and number of columns.
    from: usize,
    cols: usize,
    /// Residue of the output rows.
    residue: usize,
}

impl Place<'_> {
    /// The part of a channel's strip, `len` long, that the tile's columns (nearly) cover.
    #[inline(always)]
    fn extent(&self, len: usize) -> std::ops::Range<usize> {
        let Place { product, view, .. } = self;
        let start = if view.pointwise {
            self.from
        } else {
            (self.from / view.pitch * product.spread[0] + self.residue) * product.width + self.from % view.pitch * product.spread[1]
        };
        start.min(len)..(start + self.cols * product.spread[1]).min(len)
    }

    /// Drops the junk between the run's rows, interleaves the phases, applies the epilogue, stores. `values` holds a row of the first
    /// phase's tile, those of the others are `apart`.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, values: &mut [f32], apart: usize, bias: f32, out: &mut [f32]) {
        let Place { product, view, .. } = self;
        if product.epilogue.bias.is_some() || product.epilogue.silu {
            let bias = s.splat(bias);
            for at in (0..self.cols).step_by(S::LANES) {
                let v = s.add(s.load(&values[at..]), bias);
                s.store(if product.epilogue.silu { s.silu(v) } else { v }, &mut values[at..]);
            }
        }
        let spread = product.spread;
        if spread == [1, 1] && view.pitch == view.cols {
            return copy(s, &values[..self.cols], &mut out[self.from..]);
        }
        let (mut at, end) = (0, self.cols);
        let (mut i, mut j) = (self.from / view.pitch, self.from % view.pitch);
        while at < end {
            let step = (view.pitch - j).min(end - at);
            let line = (i * spread[0] + self.residue) * product.width;
            // The last row of an odd height has no odd rows below it.
            if j < view.cols && line < out.len() {
                let line = &mut out[line..][..product.width];
                let n = step.min(view.cols - j);
                match spread[1] {
                    1 => copy(s, &values[at..at + n], &mut line[j..]),
                    2 => interleave(s, &values[at..], &values[apart + at..], n, &mut line[2 * j..]),
                    spread => {
                        for (phase, values) in values.chunks(apart).enumerate().take(spread) {
                            let targets = line.iter_mut().skip(j * spread + phase).step_by(spread);
                            targets.zip(&values[at..at + n]).for_each(|(d, v)| *d = *v);
                        }
                    }
                }
            }
            at += step;
            (i, j) = (i + 1, 0);
        }
    }
}

/// `n` values of each of two phases to alternate columns of `line` as far as it goes.
#[inline(always)]
fn interleave<S: Simd>(s: S, even: &[f32], odd: &[f32], n: usize, line: &mut [f32]) {
    for at in (0..n).step_by(S::LANES) {
        let m = S::LANES.min(n - at);
        let (low, high) = s.interleave2(s.load_part(&even[at..], m), s.load_part(&odd[at..], m));
        let line = &mut line[2 * at..];
        let cells = line.len().min(2 * m);
        s.store_part(low, line, cells.min(S::LANES));
        if cells > S::LANES {
            s.store_part(high, &mut line[S::LANES..], cells - S::LANES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ConvShape;
    use super::super::super::machine::Cache;
    use super::super::super::reference::{any_geometry, shapes};
    use super::super::view::forward_taps;
    use super::*;
    use proptest::prelude::*;

    impl Division<'_> {
        /// Of every number of strips and of ranges of panels the best.
        fn exhaustive(&self, threads: usize) -> [usize; 2] {
            let view = self.view;
            let most = largest(view.rows, |rows| view.direct || view.strip_len(rows) <= machine().strip_cells());
            let fewest = view.rows.div_ceil(most);
            let mut best = (f64::INFINITY, [most, self.panels]);
            for strips in fewest..=view.rows.min(fewest + 8 * threads) {
                let strip = view.rows.div_ceil(strips);
                let strip = if view.pointwise { strip.next_multiple_of(self.form.nr).min(view.rows) } else { strip };
                for parts in 1..=self.panels.min(4 * threads) {
                    let split = [strip, self.panels.div_ceil(parts)];
                    let time = self.time(split, threads);
                    if time < best.0 {
                        best = (time, split);
                    }
                }
            }
            best.1
        }
    }

    fn check(s: &ConvShape, form: Form) {
        let taps = forward_taps(s);
        let source = Source { channels: s.in_channels, height: s.height, width: s.width };
        let view = View::new(source, [s.stride, [1, 1]], [s.out_height(), s.out_width()], &taps, s.out_channels, true);
        let panels = s.out_channels.div_ceil(form.mr);
        let division = Division { view: &view, images: s.batch, panels, taps: taps.len(), form };
        let units = if view.pointwise { view.rows.div_ceil(form.nr) } else { view.rows };
        for threads in [1, 2, 4, 7, 16, 64] {
            let best = division.best(threads);
            assert_eq!(best, division.exhaustive(threads), "{threads} threads, {s:?}");
            let tasks = s.batch * view.rows.div_ceil(best[0]) * panels.div_ceil(best[1]);
            // Rows narrower than a vector share one, so that cutting between them gains nothing.
            let cuts = view.pointwise || view.cols >= form.nr / 3;
            assert!(!cuts || 2 * tasks >= threads.min(s.batch * units * panels), "{tasks} tasks for {threads} threads, {s:?}");
        }
        let count = division.splits(64).len();
        assert!(count as f64 <= 4.0 * ((units * panels) as f64).sqrt(), "{count} divisions at 64 threads of {units} by {panels}");
    }

    proptest! {
        #![proptest_config(crate::test_cases(100))]
        #[test]
        fn the_best_division_is_found_among_few(s in shapes(10_000_000, any_geometry())) {
            prop_assume!(s.output_len() > 0);
            check(&s, Level::Portable.form());
            check(&s, simd::level().form());
        }
    }

    #[test]
    fn planes_of_whole_pages_are_copied() {
        let machine = Machine { first: Cache { bytes: 48 << 10, ways: 12 }, second: Cache { bytes: 1 << 20, ways: 16 } };
        let of = |channels, size| collides(machine, Source { channels, height: size, width: size });
        assert!([of(32, 160), of(64, 64), of(13, 32)].iter().all(|&c| c));
        assert!(![of(12, 160), of(64, 80), of(192, 80), of(512, 20)].iter().any(|&c| c));
    }

    #[test]
    fn large_layers_have_few_divisions() {
        let shape = |[in_channels, out_channels]: [usize; 2], size, k, stride| ConvShape {
            batch: 1,
            in_channels,
            out_channels,
            height: size,
            width: size,
            kernel: [k; 2],
            stride: [stride; 2],
            padding: [k / 2; 2],
        };
        for s in [
            shape([64, 512], 160, 1, 1),
            shape([64, 64], 160, 3, 1),
            shape([512, 512], 20, 3, 1),
            shape([16, 512], 640, 3, 1),
            shape([128, 256], 40, 3, 2),
        ] {
            check(&s, Level::Portable.form());
            check(&s, simd::level().form());
        }
    }
}
