//! Against sums in f64, over odd sizes, every instruction set, every pass.

use proptest::prelude::*;

use super::super::reference::{Case, shapes, widen};
use super::super::simd::{Level, Simd, Task, run, with_level};
use super::super::{ConvShape, Epilogue, Lowering, Precision, Prepared, data_grad, forward, weight_grad};
use super::tiling::{Layout, Tiling, applies};
use super::transform;

/// A shape with 3x3 kernels of stride 1.
fn conv(batch: usize, in_channels: usize, out_channels: usize, [height, width]: [usize; 2], padding: [usize; 2]) -> ConvShape {
    ConvShape { batch, in_channels, out_channels, height, width, kernel: [3, 3], stride: [1, 1], padding }
}

/// The three passes by Winograd's method, into outputs full of NaN.
fn passes(case: &Case, epilogue: Epilogue<'_>) -> [Vec<f32>; 3] {
    let [mut y, mut dx, mut dw] = [&case.dy, &case.x, &case.w].map(|t| vec![f32::NAN; t.len()]);
    let (lowering, precision) = (Lowering::Winograd, Precision::F32);
    forward(&case.shape, lowering, precision, &[&case.x], &case.w, epilogue, &mut y);
    data_grad(&case.shape, lowering, precision, &case.dy, &case.w, &mut [&mut dx]);
    weight_grad(&case.shape, lowering, precision, &[&case.x], &case.dy, &mut dw);
    // Prepared weights know of no image and no batch.
    let weights = Prepared::new(&ConvShape { batch: 0, height: 0, width: 0, ..case.shape }, lowering, precision, &case.w);
    let mut prepared = vec![f32::NAN; y.len()];
    weights.forward(&case.shape, &[&case.x], epilogue, &mut prepared);
    assert_eq!(prepared, y, "prepared weights of {:?}", case.shape);
    [y, dx, dw]
}

/// Fails unless all passes of `case` are right on all levels.
fn check(case: &Case) {
    let reference = case.reference();
    for level in Level::all() {
        with_level(level, || {
            let got = passes(case, Epilogue::default());
            for (pass, (got, reference)) in ["forward", "data grad", "weight grad"].iter().zip(got.iter().zip(&reference)) {
                let error = reference.error(got);
                assert!(error <= 1e-5, "{pass}, {level:?}: {error:e} of {:?}", case.shape);
            }
            assert_eq!(got, passes(case, Epilogue::default()), "a second run differs");
        });
    }
}

proptest! {
    #![proptest_config(crate::test_cases(150))]

    #[test]
    fn any_shape(
        shape in shapes(2_000_000, [0usize..3, 0..3].prop_map(|padding| [[3; 2], [1; 2], padding])), seed in 0u64..1000,
    ) {
        check(&Case::new(shape, seed));
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and any_shape runs the same code")]
fn deep_layers() {
    for shape in [
        conv(1, 128, 96, [5, 7], [1, 1]),
        conv(2, 200, 24, [9, 6], [1, 1]),
        conv(1, 20, 260, [8, 8], [2, 1]),
        conv(3, 3, 5, [40, 33], [1, 0]),
        conv(1, 130, 130, [35, 70], [1, 1]),
    ] {
        check(&Case::new(shape, 7));
    }
}

/// Inputs as after an activation: SiLU of 3 x, whose mean is far from zero.
#[test]
#[cfg_attr(miri, ignore = "slow there, and any_shape runs the same code")]
fn inputs_with_a_mean() {
    for shape in [conv(2, 64, 48, [20, 23], [1, 1]), conv(1, 136, 32, [12, 12], [1, 1])] {
        let mut case = Case::new(shape, 5);
        for x in &mut case.x {
            *x = 3.0 * *x / (1.0 + (-3.0 * *x).exp());
        }
        check(&case);
    }
}

#[test]
fn epilogue() {
    // Miri has no time for more.
    let shape = if cfg!(miri) { conv(1, 3, 5, [5, 6], [1, 1]) } else { conv(2, 19, 37, [13, 22], [1, 1]) };
    let case = Case::new(shape, 3);
    let [y, ..] = case.reference();
    for level in Level::all() {
        with_level(level, || {
            for silu in [false, true] {
                let [got, ..] = passes(&case, Epilogue { bias: Some(&case.bias), silu });
                assert!(y.finish(&case.shape, &widen(&case.bias), silu).error(&got) <= 1e-5);
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and any_shape runs the same code")]
fn forward_and_data_grad_do_not_depend_on_the_number_of_threads() {
    for shape in [conv(2, 33, 50, [21, 18], [1, 1]), conv(1, 16, 16, [90, 120], [1, 1])] {
        let case = Case::new(shape, 11);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let [y, dx, dw] = pool.install(|| passes(&case, Epilogue::default()));
            assert_eq!(dw, pool.install(|| passes(&case, Epilogue::default()))[2]);
            (y, dx)
        };
        let one = on(1);
        for threads in [2, 3, 7] {
            assert_eq!(one, on(threads), "{threads} threads");
        }
    }
}

#[test]
fn empty_shapes() {
    for shape in
        [conv(0, 4, 4, [8, 8], [1, 1]), conv(1, 4, 4, [1, 8], [0, 0]), conv(1, 4, 4, [2, 2], [0, 0]), conv(2, 3, 5, [1, 1], [1, 1])]
    {
        check(&Case::new(shape, 1));
    }
}

#[test]
fn only_three_by_three_of_stride_one() {
    let shape = conv(1, 8, 8, [8, 8], [1, 1]);
    assert!(applies(&shape));
    assert!(!applies(&ConvShape { stride: [1, 2], ..shape }));
    assert!(!applies(&ConvShape { kernel: [3, 1], ..shape }));
    assert!(!applies(&ConvShape { padding: [3, 1], ..shape }));
}

#[test]
fn segments_cover_the_rows() {
    let tiling = Tiling::new(&conv(3, 1, 1, [17, 8], [1, 1]));
    assert_eq!((tiling.down, tiling.across, tiling.rows()), (5, 2, 15));
    assert_eq!(tiling.segments(3..11).collect::<Vec<_>>(), [(0, 3, 5), (1, 0, 5), (2, 0, 1)]);
    assert_eq!(tiling.segments(5..10).collect::<Vec<_>>(), [(1, 0, 5)]);
    assert_eq!(tiling.segments(7..7).count(), 0);
}

#[test]
fn points_are_odd_numbers_of_cache_lines_apart() {
    for len in 0..200 {
        for lanes in [4, 8, 16] {
            let layout = Layout::new(len, lanes);
            assert!(layout.point >= len * lanes && layout.point % 32 == 16 && layout.block() == 36 * layout.point);
        }
    }
}

/// The transforms of unit vectors give the identity that Winograd's algorithm is: `A^T (G e_b . B^T e_a)` is 1 at output a - b, else 0.
#[test]
fn matrices_multiply_polynomials() {
    struct Identity;
    impl Task for Identity {
        fn run<S: Simd>(self, s: S) {
            let first = |v: S::V| {
                let mut lanes = vec![0.0; S::LANES];
                s.store(v, &mut lanes);
                lanes[0]
            };
            let unit = |i: usize, k: usize| s.splat(if i == k { 1.0 } else { 0.0 });
            for a in 0..6 {
                for b in 0..3 {
                    let d = transform::input(s, std::array::from_fn(|i| unit(i, a)));
                    let g = transform::filter(s, std::array::from_fn(|i| unit(i, b)));
                    let y = transform::output(s, std::array::from_fn(|i| s.mul(d[i], g[i])));
                    for (k, y) in y.into_iter().enumerate() {
                        let expected = if a == k + b { 1.0 } else { 0.0 };
                        assert!((first(y) - expected).abs() < 1e-6, "input {a}, tap {b}, output {k}");
                        // The transposes: gradient of y[k] = e_k with respect to tap b, on input e_a.
                        let up = transform::gradient(s, std::array::from_fn(|i| unit(i, k)));
                        let dw = transform::filter_gradient(s, std::array::from_fn(|i| s.mul(d[i], up[i])));
                        assert!((first(dw[b]) - expected).abs() < 1e-6);
                    }
                }
            }
        }
    }
    for level in Level::all() {
        run(level, Identity);
    }
}
