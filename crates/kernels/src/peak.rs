//! What the processor could do at best (the micro-kernel of our convolutions on operands that stay in the first-level cache), and how the
//! kernels cut their work for it.

use std::time::Instant;

use half::bf16;

use crate::cpu::machine::machine;
use crate::cpu::simd::{Form, Group, Offsets, Simd, Starts, Task, Tile, To, level, run};
use crate::policy::Precision;
use crate::products::{Operand, Stored, Term, multiply};

/// Cells of the sums, over the panels that are multiplied together: the left-hand side of any instruction set has at most 32 KiB.
const DEPTH: usize = 512;
const TILES: usize = 500;

/// The seconds that the fastest of some rounds takes.
fn fastest(rounds: usize, mut round: impl FnMut()) -> f64 {
    let times = (0..rounds).map(|_| {
        let started = Instant::now();
        round();
        started.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Multiplications and additions in this precision a second, each counted (in two parts once), with all threads of the pool: the best of some short bursts.
pub fn processor_peak(precision: Precision) -> f64 {
    let level = level().of(precision);
    let form = level.form();
    let terms = if precision == Precision::Bf16x2 { 1 } else { form.terms };
    let flops = 2 * DEPTH * terms * form.mr * form.nr * TILES * rayon::current_num_threads();
    flops as f64 / fastest(100, || _ = rayon::broadcast(|_| run(level, Tiles(TILES))))
}

/// The same of whole products as a language model's layers have them, packing and memory included: 512 rows with a weight of 4096 x 1024, the best
/// of some. It takes a fraction of a second.
pub fn product_rate(precision: Precision) -> f64 {
    const ROWS: usize = 512;
    const OUT: usize = 4096;
    const DEEP: usize = 1024;
    let (x, mut y) = (vec![0.5; ROWS * DEEP], vec![0.0; ROWS * OUT]);
    let (wide, narrow) = (vec![0.5; OUT * DEEP], vec![bf16::from_f32(0.5); OUT * DEEP]);
    let weight = if matches!(precision, Precision::Bf16 | Precision::Bf16x2) { Stored::Bf16(&narrow) } else { Stored::F32(&wide) };
    let term = Term::new(Operand::lines(Stored::F32(&x), DEEP), Operand::lines(weight, DEEP), DEEP, precision);
    (2 * ROWS * OUT * DEEP) as f64 / fastest(5, || multiply(&[term], OUT, None, &mut y))
}

/// Whether [`Lowering::Bf16`](crate::Lowering::Bf16) is anything but f32 on this processor.
pub fn processor_has_bf16() -> bool {
    level().in_bf16() != level()
}

/// The instruction set of products of this precision.
pub fn processor_level(precision: Precision) -> &'static str {
    level().of(precision).name()
}

/// How the kernels of this processor cut their work: from the processor's facts by formula, the same in every run.
pub fn processor_choices() -> String {
    let (machine, name, Form { mr, nr, .. }) = (machine(), level().name(), level().form());
    let sizes =
        [machine.first.bytes, machine.second.bytes, machine.strip_cells() * size_of::<f32>(), machine.group_bytes(), machine.sum_bytes()];
    let [first, second, strips, groups, sums] = sizes.map(|bytes| bytes >> 10);
    format!(
        "{name}, tiles of {mr} x {nr}, caches of {first} and {second} KB a core: \
        strips of {strips} KB, Winograd groups of {groups} KB and sums of {sums} KB"
    )
}

struct Tiles(usize);

impl Task<f32> for Tiles {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (rows, cols, depth, group) = (S::PANEL, S::NR, DEPTH / S::TOGETHER, Group { size: S::GROUP, apart: 0 });
        let (a, b, mut c) = (vec![0.5; depth * rows], vec![0.5; cols], vec![0.0; rows * cols]);
        // Every row of the right-hand matrix is the same one.
        let offsets = Offsets::new(vec![0; depth / S::GROUP]);
        let mut unit = simd.unit(S::GROUP, S::GROUP);
        for _ in 0..self.0 {
            let (panel, starts, to) = (S::MR * depth, Starts::Table(&offsets), To::Block(&mut c, cols));
            simd.tile(&mut unit, Tile { a: &a, panel, group, b: &b, starts, c: to, rows, cols, accumulate: false, prefetch: false });
        }
        std::hint::black_box(&c)[0]
    }
}

#[test]
fn the_peak_is_that_of_whole_sums() {
    // Halves, or cells whose upper term is a half and whose lower is nothing.
    for level in crate::cpu::simd::Level::tested() {
        let form = level.form();
        assert_eq!(run(level, Tiles(1)), (DEPTH * form.mr / form.panel) as f32 / 4.0, "{level:?}");
    }
}
