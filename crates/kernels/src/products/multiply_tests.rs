//! Products at every instruction set against sums in f64.

use half::{bf16, f16};
use proptest::prelude::*;

use super::multiply::Division;
use super::{Operand, Stored, Term, multiply};
use crate::cpu::machine::PRODUCT_BLOCK as BLOCK;
use crate::cpu::reference::{greatest, noise};
use crate::cpu::simd::{Level, with_level};

/// A factor with rows and columns of its own, stored in either order.
struct Factor {
    values: Vec<f32>,
    halves: Vec<bf16>,
    /// Rounded to what is stored, and, if asked for, to what is multiplied.
    exact: Vec<f64>,
}

impl Factor {
    fn new(seed: u64, len: usize, stored_halves: bool, rounded: bool, in_f16: bool) -> Self {
        let values = noise(seed, len);
        let halves: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
        let exact = |(&v, h): (&f32, &bf16)| match if stored_halves || rounded { h.to_f32() } else { v } {
            v if in_f16 => f16::from_f32(v).to_f64(),
            v => v.into(),
        };
        let exact = values.iter().zip(&halves).map(exact).collect();
        Self { values, halves, exact }
    }
}

#[derive(Clone, Debug)]
struct Case {
    sizes: [usize; 3],
    by_columns: bool,
    transposed: bool,
    halves: bool,
    begin: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![[1usize..40, 1usize..90, 1usize..120], [1usize..4, 500usize..1100, 1usize..60]];
    (sizes, any::<bool>(), any::<bool>(), any::<bool>(), 0usize..2).prop_map(|(sizes, by_columns, transposed, halves, begin)| Case {
        sizes,
        by_columns,
        transposed,
        halves,
        begin,
    })
}

proptest! {
    #![proptest_config(crate::test_cases(60))]

    #[test]
    fn products_are_sums(case in cases(), seed in any::<u32>()) {
        let Case { sizes: [rows, depth, columns], by_columns, transposed, halves, begin } = case;
        for (level, in_f16) in Level::tested().map(|level| (level, false)).chain(Level::all().map(|level| (level, true))) {
            let rounded = level.form().terms == 2;
            let a = Factor::new(seed.into(), rows * depth, false, rounded, in_f16);
            let b = Factor::new(!u64::from(seed), depth * columns, halves, rounded, in_f16);
            let left = if by_columns { Operand::terms(Stored::F32(&a.values), rows) } else { Operand::lines(Stored::F32(&a.values), depth) };
            let stored = if halves { Stored::Bf16(&b.halves) } else { Stored::F32(&b.values) };
            let right = if transposed { Operand::lines(stored, depth) } else { Operand::terms(stored, columns) };
            let row = noise(4, columns);
            let mut out = vec![f32::NAN; rows * columns];
            let begins = [None, Some(&row[..])][begin];
            with_level(if rounded { Level::Portable } else { level }, || multiply(&[Term { left, right, depth, level, in_f16, split: false }], columns, begins, &mut out));
            let error = out.iter().enumerate().map(|(at, &got)| {
                let (i, j) = (at / columns, at % columns);
                let a = |k: usize| a.exact[if by_columns { k * rows + i } else { i * depth + k }];
                let b = |k: usize| b.exact[if transposed { j * depth + k } else { k * columns + j }];
                let begun = [0.0, f64::from(row[j])][begin];
                (f64::from(got) - begun - (0..depth).map(|k| a(k) * b(k)).sum::<f64>()).abs()
            });
            // The root mean square of such a sum is a third of the root of its length.
            let worst = greatest(error) / ((depth as f64).sqrt() / 3.0).max(1.0);
            prop_assert!(worst < 3e-6, "{level:?} in f16 {in_f16} {case:?}: {worst:e}");
        }
    }
}

#[test]
fn sums_of_products_are_one_product() {
    let (rows, depths, columns) = (13, [300, 16, 0], 50);
    let (a, b) = (depths.map(|d| noise(d as u64, rows * d)), depths.map(|d| noise(7 + d as u64, d * columns)));
    for level in Level::all() {
        let term = |i: usize| Term {
            left: Operand::lines(Stored::F32(&a[i]), depths[i]),
            right: Operand::terms(Stored::F32(&b[i]), columns),
            depth: depths[i],
            level,
            in_f16: false,
            split: false,
        };
        let run =
            |terms: &[Term<'_>], begin: Option<&[f32]>, out: &mut Vec<f32>| with_level(level, || multiply(terms, columns, begin, out));
        let [mut at_once, mut first, mut second] = [(); 3].map(|()| vec![f32::NAN; rows * columns]);
        run(&[term(0), term(1), term(2)], None, &mut at_once);
        run(&[term(0)], None, &mut first);
        run(&[term(1)], None, &mut second);
        assert_eq!(at_once, first.iter().zip(&second).map(|(a, b)| a + b).collect::<Vec<_>>());
        run(&[term(2)], None, &mut at_once);
        assert!(at_once.iter().all(|&v| v == 0.0), "a sum of nothing");
    }
}

/// A long sum is no worse than its blocks.
#[test]
fn long_sums_are_accurate() {
    let depth = 40 * BLOCK;
    let (a, b): (Vec<f32>, Vec<f32>) = (noise(1, depth), noise(2, depth));
    // A mean of 0.3 makes the sum grow with its length: what a single chain rounds worst.
    let (a, b): (Vec<f32>, Vec<f32>) = (a.iter().map(|v| v + 0.3).collect(), b.iter().map(|v| v + 0.3).collect());
    let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    for level in Level::all() {
        let mut out = [0.0];
        let term = Term {
            left: Operand::lines(Stored::F32(&a), depth),
            right: Operand::terms(Stored::F32(&b), 1),
            depth,
            level,
            in_f16: false,
            split: false,
        };
        with_level(level, || multiply(&[term], 1, None, &mut out));
        assert!((f64::from(out[0]) / exact - 1.0).abs() < 2e-6, "{level:?}: {} {exact}", out[0]);
    }
}

/// The bits of a result depend neither on the number of threads nor on how it was divided.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let (rows, depth, columns) = (150, 300, 200);
    let (a, b) = (noise(1, rows * depth), noise(2, depth * columns));
    let on = |threads: usize| {
        let mut out = vec![0.0; rows * columns];
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let level = crate::cpu::simd::level();
        let term = Term {
            left: Operand::lines(Stored::F32(&a), depth),
            right: Operand::terms(Stored::F32(&b), columns),
            depth,
            level,
            in_f16: false,
            split: false,
        };
        pool.install(|| multiply(&[term], columns, None, &mut out));
        out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    let one = on(1);
    for threads in [2, 3, 8] {
        assert_eq!(on(threads), one, "{threads}");
    }
}

/// The level is that of the term, whichever thread multiplies: a test's choice is not known to the others.
#[test]
fn few_rows_are_multiplied_at_their_level() {
    let (rows, depth, columns) = (2, 300, 200);
    let (a, b) = (noise(1, rows * depth), noise(2, depth * columns));
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for level in Level::all() {
        let run = || {
            let mut out = vec![f32::NAN; rows * columns];
            let [left, right] = [&a, &b].map(|values| Operand::lines(Stored::F32(values), depth));
            let term = Term { left, right, depth, level, in_f16: false, split: false };
            with_level(level, || multiply(&[term], columns, None, &mut out));
            out
        };
        assert_eq!(run(), alone.install(run), "{level:?}");
    }
}

/// Sixteen and sixty-four threads have something to do in the products of a 0.5B model, at 512 tokens and at 64.
#[test]
fn there_is_work_for_every_thread() {
    for form in Level::tested().map(Level::form) {
        for threads in [1, 2, 16, 64] {
            for rows in [64, 512] {
                for columns in [16, 128, 896, 4864] {
                    let division = Division::new([rows, columns], form, threads);
                    let tasks = division.count([rows, columns]);
                    let most = (columns.div_ceil(form.nr) * rows.div_ceil(64)).min(threads);
                    assert!(2 * tasks >= most, "{form:?}, {threads} threads, {rows} x {columns}: {tasks} tasks");
                }
            }
        }
    }
}
