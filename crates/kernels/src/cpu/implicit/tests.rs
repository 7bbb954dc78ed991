//! All three passes against sums in f64, for shapes of every kind, on every instruction set.

use super::super::simd::{self, Level};
use super::super::{Algorithm, ConvShape, Epilogue, data_grad, forward, weight_grad};
use proptest::prelude::*;

/// Reproducible values in [-1, 1).
fn values(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    };
    (0..n).map(step).collect()
}

/// Calls `f(input index, weight index, output index)` for every product in the convolution.
fn each(s: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let (oh, ow) = (s.out_height(), s.out_width());
    for n in 0..s.batch {
        for co in 0..s.out_channels {
            for i in 0..oh {
                for j in 0..ow {
                    let y = ((n * s.out_channels + co) * oh + i) * ow + j;
                    for ci in 0..s.in_channels {
                        for kh in 0..s.kernel[0] {
                            for kw in 0..s.kernel[1] {
                                let (r, c) = (i * s.stride[0] + kh, j * s.stride[1] + kw);
                                let (Some(r), Some(c)) = (r.checked_sub(s.padding[0]), c.checked_sub(s.padding[1])) else { continue };
                                if r < s.height && c < s.width {
                                    let x = ((n * s.in_channels + ci) * s.height + r) * s.width + c;
                                    f(x, ((co * s.in_channels + ci) * s.kernel[0] + kh) * s.kernel[1] + kw, y);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Greatest error over the rms of the reference; infinite if anything is not finite.
fn error(result: &[f32], reference: &[f64]) -> f64 {
    let rms = (reference.iter().map(|r| r * r).sum::<f64>() / reference.len().max(1) as f64).sqrt().max(1e-30);
    result
        .iter()
        .zip(reference)
        .map(|(a, b)| if a.is_finite() { (f64::from(*a) - b).abs() / rms } else { f64::INFINITY })
        .fold(0.0, f64::max)
}

/// Checks the three passes on all levels; every result is computed twice and must repeat to the bit.
fn check(s: &ConvShape, silu: bool) -> Result<(), TestCaseError> {
    let y_len = s.batch * s.out_channels * s.out_height() * s.out_width();
    let x = values(1, s.batch * s.in_channels * s.height * s.width);
    let w = values(2, s.out_channels * s.in_channels * s.kernel[0] * s.kernel[1]);
    let dy = values(3, y_len);
    let bias = values(4, s.out_channels);
    let (mut y, mut dx, mut dw) = (vec![0.0; y_len], vec![0.0; x.len()], vec![0.0; w.len()]);
    each(s, |xi, wi, yi| {
        y[yi] += f64::from(x[xi]) * f64::from(w[wi]);
        dx[xi] += f64::from(dy[yi]) * f64::from(w[wi]);
        dw[wi] += f64::from(dy[yi]) * f64::from(x[xi]);
    });
    let mut finished = y.clone();
    for (i, v) in finished.iter_mut().enumerate() {
        *v += f64::from(bias[i / (s.out_height() * s.out_width()) % s.out_channels]);
        if silu {
            *v /= 1.0 + (-*v).exp();
        }
    }
    // The error of a chain of K additions grows as sqrt(K) relative to the rms of the sums.
    let limit = |k: usize| 6e-6 * (k as f64 / 300.0).sqrt().max(1.0);
    for level in Level::all() {
        let run = |f: &dyn Fn(&mut [f32]), len: usize| {
            let (mut a, mut b) = (vec![f32::NAN; len], vec![f32::NAN; len]);
            simd::with_level(level, || {
                f(&mut a);
                f(&mut b);
            });
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?} {s:?}: not repeatable");
            a
        };
        let k = s.kernel[0] * s.kernel[1];
        let plain = run(&|out| forward(s, Algorithm::Implicit, &x, &w, Epilogue::default(), out), y_len);
        let e = error(&plain, &y);
        prop_assert!(e <= limit(k * s.in_channels), "forward {level:?} {s:?}: {e}");
        let full = run(&|out| forward(s, Algorithm::Implicit, &x, &w, Epilogue { bias: Some(&bias), silu }, out), y_len);
        let e = error(&full, &finished);
        prop_assert!(e <= 2.0 * limit(k * s.in_channels), "epilogue {level:?} {s:?}: {e}");
        let e = error(&run(&|out| data_grad(s, Algorithm::Implicit, &dy, &w, out), x.len()), &dx);
        prop_assert!(e <= limit(k * s.out_channels), "data_grad {level:?} {s:?}: {e}");
        let e = error(&run(&|out| weight_grad(s, Algorithm::Implicit, &x, &dy, out), w.len()), &dw);
        prop_assert!(e <= limit(s.batch * s.out_height() * s.out_width()), "weight_grad {level:?} {s:?}: {e}");
    }
    Ok(())
}

fn shape(
    batch: usize,
    [ci, co]: [usize; 2],
    [height, width]: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> ConvShape {
    ConvShape { batch, in_channels: ci, out_channels: co, height, width, kernel, stride, padding }
}

#[test]
fn layers_of_a_detector() {
    let shapes = [
        shape(2, [3, 16], [64, 64], [3, 3], [2, 2], [1, 1]),
        shape(1, [16, 32], [40, 40], [3, 3], [2, 2], [1, 1]),
        shape(1, [64, 5], [20, 20], [1, 1], [1, 1], [0, 0]),
        shape(1, [48, 32], [40, 40], [1, 1], [1, 1], [0, 0]),
        shape(1, [130, 33], [20, 20], [1, 1], [1, 1], [0, 0]),
        shape(1, [64, 128], [20, 20], [3, 3], [2, 2], [1, 1]),
        shape(4, [16, 16], [40, 40], [3, 3], [1, 1], [1, 1]),
        shape(1, [32, 64], [20, 20], [3, 3], [1, 1], [1, 1]),
    ];
    for s in shapes {
        check(&s, true).unwrap();
    }
}

#[test]
fn edges() {
    let shapes = [
        shape(1, [1, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
        shape(1, [1, 1], [1, 1], [3, 3], [1, 1], [1, 1]),
        // Rows and columns that no output reads, phases without taps.
        shape(2, [3, 4], [9, 10], [1, 1], [2, 2], [0, 0]),
        shape(2, [3, 4], [9, 10], [1, 1], [2, 3], [1, 1]),
        shape(1, [2, 3], [11, 13], [2, 3], [4, 5], [0, 2]),
        // More padding than image.
        shape(1, [2, 3], [2, 1], [3, 3], [1, 1], [3, 4]),
        shape(1, [2, 3], [1, 2], [5, 5], [3, 3], [4, 4]),
        shape(1, [2, 3], [4, 4], [1, 1], [1, 1], [2, 2]),
        // No output at all, then exactly one.
        shape(1, [2, 3], [2, 2], [3, 3], [1, 1], [0, 0]),
        shape(1, [2, 3], [3, 3], [3, 3], [2, 2], [0, 0]),
        shape(0, [2, 3], [3, 3], [3, 3], [1, 1], [0, 0]),
        shape(1, [3, 2], [8, 8], [6, 6], [2, 2], [2, 2]),
        shape(1, [1, 40], [70, 3], [7, 1], [1, 1], [3, 0]),
        shape(1, [40, 1], [3, 70], [1, 17], [1, 2], [0, 8]),
    ];
    for s in shapes {
        check(&s, false).unwrap();
    }
}

#[test]
fn any_number_of_threads() {
    let s = shape(3, [12, 50], [17, 23], [3, 3], [2, 2], [1, 1]);
    for threads in [1, 2, 3, 7, 16] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| check(&s, true)).unwrap();
    }
}

fn any_shape() -> impl Strategy<Value = ConvShape> {
    let sizes = (1usize..4, 1usize..131, 1usize..131, 1usize..70, 1usize..70);
    let geometry = (1usize..5, 1usize..5, 1usize..4, 1usize..4, 0usize..4, 0usize..4);
    (sizes, geometry).prop_map(|((n, ci, co, h, w), (kh, kw, sh, sw, ph, pw))| {
        let mut s = shape(n, [ci, co], [h, w], [kh, kw], [sh, sw], [ph, pw]);
        // The reference is slow: shrink whatever is largest.
        while s.macs() > 1_000_000 {
            let largest = s.in_channels.max(s.out_channels).max(s.height).max(s.width);
            for size in [&mut s.in_channels, &mut s.out_channels, &mut s.height, &mut s.width] {
                if *size == largest {
                    *size = size.div_ceil(2);
                }
            }
        }
        s
    })
}

proptest! {
    #![proptest_config(crate::test_cases(200))]
    #[test]
    fn random_shapes(s in any_shape(), silu: bool) {
        check(&s, silu)?;
    }
}
