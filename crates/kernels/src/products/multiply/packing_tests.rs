//! What packing a frozen weight costs of its products, and what a copy of it that is packed once would save: figures for decision 13
//! (`docs/benchmarks.sh packing`), by the loop of [`share`] over the same tasks, without or with the packing of the weight.

use std::time::Instant;

use half::bf16;

use super::super::{Operand, Stored};
use super::*;
use crate::cpu::Precision;
use crate::cpu::reference::noise;
use crate::cpu::simd::{Level, Simd, Task};

/// What is done of a product.
#[derive(Clone, Copy)]
enum Work<'a> {
    /// All of it, as [`share`] does.
    All,
    /// The weight is packed, and nothing multiplied. What [`All`](Self::All) asks of memory while it multiplies is waited for here.
    Packing,
    /// All but that: the weight's tiles are these.
    Packed(&'a [f32]),
}

/// Cells of a block of the sum, and values of a tile of the weight that is as large as any.
fn sizes<S: Simd>(depth: usize) -> (usize, usize) {
    let block = BLOCK.min(depth.div_ceil(S::TERMS)).next_multiple_of(S::GROUP);
    (block, block * S::NR)
}

/// A part of a product with so many columns in all.
struct Timed<'a, 'b> {
    part: &'a mut Part<'b>,
    term: &'a Term<'a>,
    all_columns: usize,
    work: Work<'a>,
}

impl Task for Timed<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Term { left, right, depth, .. } = *self.term;
        let Part { row: top, columns, out } = self.part;
        let ((block, slot), tiles) = (sizes::<S>(depth), self.all_columns.div_ceil(S::NR));
        let multiplies = !matches!(self.work, Work::Packing);
        let mut panels = scratch::take(if multiplies { out.len().next_multiple_of(S::PANEL) * block + S::LANES } else { 0 });
        let mut tile = scratch::take(slot);
        let block_of = |start: usize| start..depth.min(start + BLOCK * S::TERMS);
        let tile_of = |at: usize| columns.start + at..columns.end.min(columns.start + at + S::NR);
        let mut unit = s.unit(S::GROUP, S::GROUP);
        for start in (0..depth).step_by(BLOCK * S::TERMS) {
            let terms = block_of(start);
            let cells = terms.len().div_ceil(S::TERMS);
            let length = cells.next_multiple_of(S::GROUP);
            if multiplies {
                for i in (0..out.len()).step_by(S::PANEL) {
                    let rows = *top + i..*top + out.len().min(i + S::PANEL);
                    left.pack_panel(s, terms.clone(), rows, length, &mut panels[i * length..]);
                }
            }
            for at in (0..columns.len()).step_by(S::NR) {
                let lines = tile_of(at);
                let (cols, width) = (lines.len(), lines.len().next_multiple_of(S::LANES));
                let (next, behind) = if at + S::NR < columns.len() { (terms.clone(), at + S::NR) } else { (block_of(terms.end), 0) };
                let place = |start: usize, at: usize| (start / (BLOCK * S::TERMS) * tiles + (columns.start + at) / S::NR) * slot;
                let packed = match self.work {
                    Work::Packed(all) => &all[place(start, at)..][..slot],
                    Work::All | Work::Packing => {
                        right.pack(s, terms.clone(), lines, width, &mut tile);
                        tile[cells * width..length * width].fill(0.0);
                        &tile[..]
                    }
                };
                let parts = out.len().div_ceil(S::PANEL);
                for (i, c) in out.chunks_mut(S::PANEL).enumerate() {
                    match self.work {
                        Work::Packed(all) if next.start < depth => {
                            let (tile, share) = (&all[place(next.start, behind)..][..slot], |i: usize| slot * i / parts);
                            s.prefetch(&tile[share(i)..share(i + 1)], false);
                        }
                        Work::Packed(_) => {}
                        Work::All | Work::Packing => right.prefetch(s, next.clone(), tile_of(behind), i, parts),
                    }
                    if multiplies {
                        let a = &panels[i * S::PANEL * length..][..S::PANEL * length];
                        let (group, starts) = (Group { size: S::GROUP, apart: width }, Starts::Dense(length / S::GROUP));
                        let (rows, accumulate, to) = (c.len(), start > 0, To::Rows(c, at));
                        let t = Tile { a, panel: S::MR * length, group, b: packed, starts, c: to, rows, cols, accumulate, prefetch: false };
                        s.tile(&mut unit, t);
                    }
                }
                std::hint::black_box(packed);
            }
        }
    }
}

/// The weight of a term with so many columns, packed tile by tile, the tiles of a block of the sum next to each other.
struct Pack<'a>(&'a Term<'a>, usize);

impl Task<Vec<f32>> for Pack<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let Self(&Term { right, depth, .. }, columns) = self;
        let ((_, slot), tiles) = (sizes::<S>(depth), columns.div_ceil(S::NR));
        let mut all = vec![0.0; depth.div_ceil(BLOCK * S::TERMS) * tiles * slot];
        for (i, out) in all.chunks_exact_mut(slot).enumerate() {
            let (start, at) = (i / tiles * BLOCK * S::TERMS, i % tiles * S::NR);
            let lines = at..columns.min(at + S::NR);
            let width = lines.len().next_multiple_of(S::LANES);
            right.pack(s, start..depth.min(start + BLOCK * S::TERMS), lines, width, out);
        }
        all
    }
}

/// Does so much of a product, in the tasks of [`multiply`].
fn work(term: &Term<'_>, columns: usize, work: Work<'_>, out: &mut [f32]) {
    let division = Division::new([out.len() / columns, columns], term.level.form(), rayon::current_num_threads());
    let tasks = division.tasks(out, columns).into_par_iter().with_max_len(1);
    tasks.for_each(|mut part| simd::run(term.level, Timed { part: &mut part, term, all_columns: columns, work }));
}

/// A weight `[out, in]` as it is stored.
struct Frozen {
    wide: Vec<f32>,
    narrow: Vec<bf16>,
    shape: [usize; 2],
}

impl Frozen {
    fn new(shape: [usize; 2], in_bf16: bool) -> Self {
        let wide = noise(1, shape[0] * shape[1]);
        match in_bf16 {
            true => Self { narrow: wide.iter().copied().map(bf16::from_f32).collect(), wide: Vec::new(), shape },
            false => Self { wide, narrow: Vec::new(), shape },
        }
    }

    /// `x Wᵀ`, or with `back` `dy W`: the term, and its columns.
    fn term<'a>(&'a self, left: &'a [f32], back: bool, level: Level) -> (Term<'a>, usize) {
        let [out, input] = self.shape;
        let stored = if self.narrow.is_empty() { Stored::F32(&self.wide) } else { Stored::Bf16(&self.narrow) };
        let right = if back { Operand::terms(stored, input) } else { Operand::lines(stored, input) };
        let (depth, columns) = if back { (out, input) } else { (input, out) };
        (Term { left: Operand::lines(Stored::F32(left), depth), right, depth, level, in_f16: false, split: false }, columns)
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow, and nothing here is unsafe")]
fn a_weight_that_was_packed_gives_the_same_bits() {
    let rows = 9;
    for (level, back) in Level::tested().flat_map(|level| [false, true].map(|back| (level, back))) {
        // Two blocks of the sum, several tiles and a part of one, both ways.
        let weight = Frozen::new([530, 550], level.form().terms == 2);
        let left = noise(2, rows * 550);
        let (term, columns) = weight.term(&left, back, level);
        let packed = simd::run(level, Pack(&term, columns));
        let mut results = [(); 3].map(|()| vec![f32::NAN; rows * columns]);
        multiply(&[term], columns, None, &mut results[0]);
        work(&term, columns, Work::All, &mut results[1]);
        work(&term, columns, Work::Packed(&packed), &mut results[2]);
        assert!(results[0] == results[1] && results[0] == results[2] && results[0].iter().all(|v| v.is_finite()), "{level:?} {back}");
    }
}

/// Median milliseconds of all, of all with a packed weight, and of packing alone, in turn.
fn times(weight: &Frozen, rows: usize, back: bool, level: Level) -> [f64; 3] {
    let left = noise(2, rows * weight.shape[usize::from(!back)]);
    let (term, columns) = weight.term(&left, back, level);
    let packed = simd::run(level, Pack(&term, columns));
    let mut out = vec![0.0; rows * columns];
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for _ in 0..7 {
        for (seconds, what) in seconds.iter_mut().zip([Work::All, Work::Packed(&packed), Work::Packing]) {
            let started = Instant::now();
            work(&term, columns, what, &mut out);
            seconds.push(started.elapsed().as_secs_f64());
        }
    }
    seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        1e3 * seconds[seconds.len() / 2]
    })
}

/// The maps of a layer of Qwen2.5-0.5B, how often it has each, at 512 tokens; and 240 rows, as many as are held at once, of a 16th of its head.
#[test]
#[ignore = "figures"]
fn packing_figures() {
    let maps = [("q, o", [896, 896], 2.0), ("k, v", [128, 896], 2.0), ("gate, up", [4864, 896], 2.0), ("down", [896, 4864], 1.0)];
    let [wide, narrow] = [Precision::F32, Precision::Bf16].map(|precision| simd::level().of(precision));
    let kinds = [("f32", false, wide), ("bf16, widened", true, wide), ("bf16", true, narrow)];
    println!(
        "> {} threads; ms, medians of 7 in turn; what packing alone takes waits for memory that a product waits for while it multiplies",
        rayon::current_num_threads()
    );
    println!("> | weight | product | as it is | GFLOP/s | packed before | saved | packing alone | of the product |");
    println!("> | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (stored, in_bf16, level) in kinds.into_iter().take(if narrow == wide { 2 } else { 3 }) {
        let row = |name: &str, gflop: f64, [all, packed, packing]: [f64; 3]| {
            let (rate, saved, share) = (1e3 * gflop / all, 100.0 * (1.0 - packed / all), 100.0 * packing / all);
            let kind = format!("{stored} by {}", level.name());
            println!("> | {kind} | {name} | {all:.2} | {rate:.0} | {packed:.2} | {saved:.1} % | {packing:.2} | {share:.1} % |");
        };
        let gflop = |rows: usize, [out, input]: [usize; 2]| 2e-9 * (rows * out * input) as f64;
        let (mut sum, mut work) = ([0.0; 3], 0.0);
        for (name, shape, count) in maps {
            let weight = Frozen::new(shape, in_bf16);
            for (way, back) in [("forward", false), ("back", true)] {
                let times = times(&weight, 512, back, level);
                row(&format!("{name} {way}: 512 rows, {} x {}", shape[0], shape[1]), gflop(512, shape), times);
                sum.iter_mut().zip(times).for_each(|(sum, time)| *sum += count * time);
                work += count * gflop(512, shape);
            }
        }
        row("all maps of a layer, both ways", work, sum);
        let shape = [151_936 / 16, 896];
        let weight = Frozen::new(shape, in_bf16);
        for (way, back) in [("forward", false), ("back", true)] {
            row(&format!("head {way}: 240 rows, {} x {}", shape[0], shape[1]), gflop(240, shape), times(&weight, 240, back, level));
        }
    }
}
