//! Against sums in f64, over odd sizes, every instruction set, every pass.

use proptest::prelude::*;

use super::super::simd::{Level, Simd, Task, run, with_level};
use super::super::{ConvShape, Epilogue};
use super::{Layout, Tiling, applies, data_grad, forward, transform, weight_grad};

/// Uniform in -1..1, from a linear congruential generator.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// A shape with 3x3 kernels of stride 1.
fn conv(batch: usize, in_channels: usize, out_channels: usize, [height, width]: [usize; 2], padding: [usize; 2]) -> ConvShape {
    ConvShape { batch, in_channels, out_channels, height, width, kernel: [3, 3], stride: [1, 1], padding }
}

struct Case {
    shape: ConvShape,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(shape: ConvShape, seed: u64) -> Case {
        let [x, w, dy, bias] = [shape.input_len(), shape.weight_len(), shape.output_len(), shape.out_channels];
        Case { shape, x: noise(x, seed), w: noise(w, seed + 1), dy: noise(dy, seed + 2), bias: noise(bias, seed + 3) }
    }

    /// Calls `f(x, w, y, value of x)` with the indices of every multiplication.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let s = &self.shape;
        let (oh, ow) = (s.out_height(), s.out_width());
        for n in 0..s.batch {
            for co in 0..s.out_channels {
                for ci in 0..s.in_channels {
                    for (kh, kw) in (0..9).map(|k| (k / 3, k % 3)) {
                        for i in 0..oh {
                            let Some(row) = (i + kh).checked_sub(s.padding[0]).filter(|&r| r < s.height) else { continue };
                            for j in 0..ow {
                                let Some(column) = (j + kw).checked_sub(s.padding[1]).filter(|&c| c < s.width) else { continue };
                                let x = ((n * s.in_channels + ci) * s.height + row) * s.width + column;
                                let w = (co * s.in_channels + ci) * 9 + kh * 3 + kw;
                                f(x, w, ((n * s.out_channels + co) * oh + i) * ow + j);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The three passes in f64: forward without epilogue, gradient of x, gradient of w.
    fn reference(&self) -> [Vec<f64>; 3] {
        let mut y = vec![0.0; self.dy.len()];
        let mut dx = vec![0.0; self.x.len()];
        let mut dw = vec![0.0; self.w.len()];
        self.each(|i, k, o| {
            let (x, w, g) = (f64::from(self.x[i]), f64::from(self.w[k]), f64::from(self.dy[o]));
            y[o] += x * w;
            dx[i] += w * g;
            dw[k] += x * g;
        });
        [y, dx, dw]
    }

    /// The three passes by Winograd's method, into outputs full of NaN.
    fn run(&self, epilogue: Epilogue<'_>) -> [Vec<f32>; 3] {
        let mut y = vec![f32::NAN; self.dy.len()];
        let mut dx = vec![f32::NAN; self.x.len()];
        let mut dw = vec![f32::NAN; self.w.len()];
        forward(&self.shape, &self.x, &self.w, epilogue, &mut y);
        data_grad(&self.shape, &self.dy, &self.w, &mut dx);
        weight_grad(&self.shape, &self.x, &self.dy, &mut dw);
        [y, dx, dw]
    }
}

/// The largest error over the root mean square of the reference.
fn error(got: &[f32], reference: &[f64]) -> f64 {
    let rms = (reference.iter().map(|r| r * r).sum::<f64>() / reference.len() as f64).sqrt();
    let worst =
        got.iter().zip(reference).map(|(&g, r)| (f64::from(g) - r).abs()).fold(0.0, |a: f64, b| if b.is_nan() { b } else { a.max(b) });
    if reference.is_empty() || worst == 0.0 { 0.0 } else { worst / rms }
}

/// Fails unless all passes of `case` are right on all levels.
fn check(case: &Case) {
    let reference = case.reference();
    for level in Level::all() {
        with_level(level, || {
            let got = case.run(Epilogue::default());
            for (pass, (got, reference)) in ["forward", "data grad", "weight grad"].iter().zip(got.iter().zip(&reference)) {
                let error = error(got, reference);
                assert!(error <= 1e-5, "{pass}, {level:?}: {error:e} of {:?}", case.shape);
            }
            assert_eq!(got, case.run(Epilogue::default()), "a second run differs");
        });
    }
}

proptest! {
    #![proptest_config(crate::test_cases(48))]

    #[test]
    fn any_shape(
        batch in 1usize..4, ci in 1usize..70, co in 1usize..70, h in 1usize..71, w in 1usize..71,
        ph in 0usize..3, pw in 0usize..3, seed in 0u64..1000,
    ) {
        // Few multiplications: the reference is slow. At least two outputs, or the root mean square may be a single small value.
        let fit = |size: usize, p: usize| size.max(4 - 2 * p.min(1));
        let (mut h, mut w) = (fit(h, ph), fit(w, pw));
        while batch * ci * co * h * w > 2_000_000 {
            if h > w { h = h / 2 + 2 } else { w = w / 2 + 2 }
        }
        check(&Case::new(conv(batch, ci, co, [h, w], [ph, pw]), seed));
    }
}

#[test]
fn deep_layers() {
    for shape in [
        conv(1, 128, 96, [5, 7], [1, 1]),
        conv(2, 200, 24, [9, 6], [1, 1]),
        conv(1, 20, 260, [8, 8], [2, 1]),
        conv(3, 3, 5, [40, 33], [1, 0]),
    ] {
        check(&Case::new(shape, 7));
    }
}

/// Inputs as after an activation: SiLU of 3 x, whose mean is far from zero.
#[test]
fn inputs_with_a_mean() {
    for shape in [conv(2, 64, 48, [20, 23], [1, 1]), conv(1, 136, 32, [12, 12], [1, 1])] {
        let mut case = Case::new(shape, 5);
        for x in &mut case.x {
            *x = silu(3.0 * f64::from(*x)) as f32;
        }
        check(&case);
    }
}

#[test]
fn epilogue() {
    let case = Case::new(conv(2, 19, 37, [13, 22], [1, 1]), 3);
    let [y, ..] = case.reference();
    let plane = case.shape.out_height() * case.shape.out_width();
    let biased: Vec<f64> = y.iter().enumerate().map(|(i, y)| y + f64::from(case.bias[i / plane % 37])).collect();
    let activated: Vec<f64> = biased.iter().map(|&y| silu(y)).collect();
    for level in Level::all() {
        with_level(level, || {
            let with = |silu| case.run(Epilogue { bias: Some(&case.bias), silu })[0].clone();
            assert!(error(&with(false), &biased) <= 1e-5);
            assert!(error(&with(true), &activated) <= 1e-5);
        });
    }
}

#[test]
fn forward_and_data_grad_do_not_depend_on_the_number_of_threads() {
    for shape in [conv(2, 33, 50, [21, 18], [1, 1]), conv(1, 16, 16, [90, 120], [1, 1])] {
        let case = Case::new(shape, 11);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let [y, dx, dw] = pool.install(|| case.run(Epilogue::default()));
            assert_eq!(dw, pool.install(|| case.run(Epilogue::default()))[2]);
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
    assert_eq!(tiling.segments((3, 11)).collect::<Vec<_>>(), [(0, 3, 5), (1, 0, 5), (2, 0, 1)]);
    assert_eq!(tiling.segments((5, 10)).collect::<Vec<_>>(), [(1, 0, 5)]);
    assert_eq!(tiling.segments((7, 7)).count(), 0);
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
        type Out = ();
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
