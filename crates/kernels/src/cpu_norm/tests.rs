//! Against the formulas in f64, on every instruction set, with sizes that are no multiple of anything.

use super::*;
use crate::cpu::reference::{noise, size, slope, spread, tasks, widen};
use crate::cpu::simd::{Level, with_level};
use proptest::prelude::*;

struct Reference {
    mean: Vec<f64>,
    variance: Vec<f64>,
    output: Vec<f64>,
    dgamma: Vec<f64>,
    dbeta: Vec<f64>,
    dx: Vec<f64>,
}

fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// The positions of a channel's values.
fn indices(e: Extent, c: usize) -> impl Iterator<Item = usize> {
    (0..e.batch).flat_map(move |n| (0..e.plane).map(move |p| (n * e.channels + c) * e.plane + p))
}

/// Mean and biased variance of channel `c`.
fn moments(e: Extent, x: &[f64], c: usize) -> (f64, f64) {
    let mean = indices(e, c).map(|i| x[i]).sum::<f64>() / e.samples();
    (mean, indices(e, c).map(|i| (x[i] - mean).powi(2)).sum::<f64>() / e.samples())
}

/// The definition, epsilon 1e-3.
fn forward(e: Extent, [x, gamma, beta]: [&[f64]; 3], silu: bool) -> Vec<f64> {
    let mut output = vec![f64::NAN; x.len()];
    for c in 0..e.channels {
        let (mean, variance) = moments(e, x, c);
        for i in indices(e, c) {
            let z = gamma[c] * (x[i] - mean) / (variance + 1e-3).sqrt() + beta[c];
            output[i] = if silu { z * sigmoid(z) } else { z };
        }
    }
    output
}

fn reference(e: Extent, [x, gamma, beta]: [&[f64]; 3], dy: &[f64], silu: bool) -> Reference {
    let (mean, variance) = (0..e.channels).map(|c| moments(e, x, c)).unzip();
    let output = forward(e, [x, gamma, beta], silu);
    let mut r = Reference { mean, variance, output, dgamma: vec![], dbeta: vec![], dx: vec![f64::NAN; x.len()] };
    for c in 0..e.channels {
        let rstd = 1.0 / (r.variance[c] + 1e-3).sqrt();
        let hat = |i: usize| (x[i] - r.mean[c]) * rstd;
        let dz = |i: usize| {
            let z = gamma[c] * hat(i) + beta[c];
            let s = sigmoid(z);
            dy[i] * if silu { s * (1.0 + z * (1.0 - s)) } else { 1.0 }
        };
        let dbeta: f64 = indices(e, c).map(dz).sum();
        let dgamma: f64 = indices(e, c).map(|i| dz(i) * hat(i)).sum();
        for i in indices(e, c) {
            r.dx[i] = gamma[c] * rstd * (dz(i) - dbeta / e.samples() - hat(i) * dgamma / e.samples());
        }
        r.dgamma.push(dgamma);
        r.dbeta.push(dbeta);
    }
    r
}

proptest! {
    #![proptest_config(crate::test_cases(100))]
    #[test]
    fn gradients_are_the_slopes_of_the_definition(
        batch in 1usize..4, channels in 1usize..5, plane in 1usize..50, offset in -20.0f64..20.0, silu: bool, seed in 0u64..1000,
    ) {
        let e = Extent { batch, channels, plane };
        let x: Vec<f64> = noise(seed, e.len()).into_iter().map(|v| offset + 2.0 * f64::from(v)).collect();
        let [gamma, beta, dy] = [(1, channels), (2, channels), (3, e.len())].map(|(i, len)| widen(&noise(seed + i, len)));
        let loss = |parameters: [&[f64]; 3]| forward(e, parameters, silu).iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>();
        let at = [&x[..], &gamma, &beta];
        let r = reference(e, at, &dy, silu);
        for (k, gradient) in [&r.dx, &r.dgamma, &r.dbeta].into_iter().enumerate() {
            // A channel of one or two values has a large curvature, and a small slope that is the difference of large ones.
            let steep = gradient.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
            for i in spread(gradient.len(), 20) {
                let moved = |v: &[f64]| loss(std::array::from_fn(|j| if j == k { v } else { at[j] }));
                let slope = slope(moved, at[k], i, 1e-5);
                prop_assert!((slope - gradient[i]).abs() <= 1e-7 * steep, "argument {k}, {i}: {} for {slope}, {e:?}", gradient[i]);
            }
        }
    }
}

fn assert_close(what: &str, ours: &[f32], reference: &[f64], scale: f64) {
    assert_eq!(ours.len(), reference.len());
    let rms = (reference.iter().map(|r| r * r).sum::<f64>() / reference.len() as f64).sqrt().max(scale);
    for (o, r) in ours.iter().zip(reference) {
        assert!((f64::from(*o) - r).abs() <= 2e-6 * rms + 2e-6 * r.abs(), "{what}: {o} for {r}, rms {rms}");
    }
}

/// Everything the passes return, in one vector: for comparing bits.
fn all(e: Extent, x: &[f32], gamma: &[f32], beta: &[f32], dy: &[f32], silu: bool) -> [Vec<f32>; 6] {
    let [mut out, mut again] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
    let (mean, variance) = super::forward(e, x, [gamma, beta], 1e-3, silu, &mut out);
    let constants = channels(&mean, &variance, gamma, beta, 1e-3);
    forward_again(e, x, &constants, silu, &mut again);
    assert!(out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{e:?}: another output again");
    let mut dx = dy.to_vec();
    let (dgamma, dbeta) = backward(e, x, &constants, silu, &mut dx);
    [mean, variance, out, dgamma, dbeta, dx]
}

fn check(e: Extent, offset: f32, spread: f32, silu: bool, seed: u64) {
    let x: Vec<f32> = noise(seed, e.len()).into_iter().map(|v| offset + spread * v).collect();
    let (gamma, beta, dy) = (noise(seed + 1, e.channels), noise(seed + 2, e.channels), noise(seed + 3, e.len()));
    let r = reference(e, [&widen(&x), &widen(&gamma), &widen(&beta)], &widen(&dy), silu);
    for level in Level::all() {
        let [mean, variance, out, dgamma, dbeta, dx] = with_level(level, || all(e, &x, &gamma, &beta, &dy, silu));
        // Half the spread is the standard deviation, near enough.
        assert_close("mean", &mean, &r.mean, f64::from(spread) / 2.0);
        assert_close("variance", &variance, &r.variance, 0.0);
        // What rounding x - mean and the mean itself to f32 costs, relative to the spread.
        let lost = 1.0 + f64::from(offset.abs() / spread);
        assert_close("output", &out, &r.output, lost);
        assert_close("dbeta", &dbeta, &r.dbeta, lost * e.samples().sqrt());
        assert_close("dgamma", &dgamma, &r.dgamma, lost * e.samples().sqrt());
        let steep = r.dx.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
        assert_close("dx", &dx, &r.dx, lost * steep);
    }
}

proptest! {
    #![proptest_config(crate::test_cases(100))]
    #[test]
    fn agrees_with_f64(
        batch in 1usize..4, channels in size(130), height in size(70), width in size(70),
        offset in prop_oneof![Just(0.0f32), -20.0f32..20.0], silu: bool, seed in 0u64..1000,
    ) {
        check(Extent { batch, channels, plane: height * width }, offset, 2.0, silu, seed);
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and agrees_with_f64 runs the same code")]
fn one_value_per_channel_and_large_planes() {
    check(Extent { batch: 1, channels: 5, plane: 1 }, 3.0, 1.0, true, 1);
    check(Extent { batch: 2, channels: 3, plane: 160 * 160 + 3 }, -1.0, 1.0, true, 2);
    check(Extent { batch: 1, channels: 1, plane: 70_001 }, 100.0, 1.0, true, 3);
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and agrees_with_f64 runs the same code")]
fn the_number_of_threads_changes_no_bit() {
    let e = Extent { batch: 3, channels: 17, plane: 53 * 29 };
    let (x, dy, gamma, beta) = (noise(1, e.len()), noise(2, e.len()), noise(3, e.channels), noise(4, e.channels));
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| all(e, &x, &gamma, &beta, &dy, true)).map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let one = with(1);
    assert_eq!(one, with(1));
    assert_eq!(one, with(2));
    assert_eq!(one, with(5));
}

/// The layers of YOLOv8n, four images of 640 pixels; the last two are its smallest, of a head's coarsest level.
#[test]
fn there_is_work_for_every_thread() {
    let layers = [(16, 320), (32, 160), (64, 80), (128, 40), (256, 20), (128, 20), (64, 20), (80, 20)];
    let expected = [[64, 64], [128, 128], [64, 256], [128, 128], [64, 64], [32, 32], [16, 16], [16, 16]];
    for ((channels, side), expected) in layers.into_iter().zip(expected) {
        let e = Extent { batch: 4, channels, plane: side * side };
        let count = |threads| {
            let planes = if e.cuts_channels(threads) { tasks(e.batch, worth_a_task(e.plane)) } else { 1 };
            tasks(channels, worth_a_task(e.batch * e.plane)) * planes
        };
        assert_eq!([16, 64].map(count), expected, "{e:?}");
        assert!(tasks(e.batch * channels, worth_a_task(e.plane)) >= 16, "the output made again, {e:?}");
    }
}

#[test]
fn extreme_inputs_stay_finite() {
    let e = Extent { batch: 1, channels: 2, plane: 40 };
    let x: Vec<f32> = (0..80).map(|i| if i % 7 == 0 { 3e4 } else { 0.0 }).collect();
    let results = all(e, &x, &[50.0, -50.0], &[-100.0, 100.0], &vec![1.0; 80], true);
    assert!(results.iter().flatten().all(|v| v.is_finite()));
}

/// What is no number, or infinite, is in both moments of its channel and in no other's.
#[test]
fn no_number_is_in_its_moments() {
    let e = Extent { batch: 2, channels: 2, plane: 5 };
    for (odd, place) in [f32::NAN, f32::INFINITY].into_iter().flat_map(|odd| [5, 7, 19].map(|place| (odd, place))) {
        let mut x = noise(1, e.len());
        x[place] = odd;
        let (mean, variance) = super::forward(e, &x, [&[1.0; 2], &[0.0; 2]], 1e-3, true, &mut vec![f32::NAN; e.len()]);
        assert!(mean[0].is_finite() && variance[0].is_finite(), "{odd} at {place}: {mean:?}, {variance:?}");
        assert!(!mean[1].is_finite() && !variance[1].is_finite(), "{odd} at {place}: {mean:?}, {variance:?}");
    }
}
