//! Against the formulas in f64, on every instruction set, with sizes that are no multiple of anything.

use super::*;
use crate::cpu::simd::with_level;
use proptest::prelude::*;

/// Numbers in [-1, 1] from a counter: splitmix64.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|i| {
            let mut x = (seed << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

struct Reference {
    mean: Vec<f64>,
    variance: Vec<f64>,
    output: Vec<f64>,
    dgamma: Vec<f64>,
    dbeta: Vec<f64>,
    dx: Vec<f64>,
}

fn reference(e: Extent, x: &[f32], gamma: &[f32], beta: &[f32], dy: &[f32], silu: bool) -> Reference {
    let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let indices = |c: usize| (0..e.batch).flat_map(move |n| (0..e.plane).map(move |p| (n * e.channels + c) * e.plane + p));
    let mut r = Reference {
        mean: vec![],
        variance: vec![],
        output: vec![f64::NAN; x.len()],
        dgamma: vec![],
        dbeta: vec![],
        dx: vec![f64::NAN; x.len()],
    };
    for c in 0..e.channels {
        let m = e.samples();
        let mean = indices(c).map(|i| x[i]).sum::<f64>() / m;
        let variance = indices(c).map(|i| (x[i] - mean).powi(2)).sum::<f64>() / m;
        let (rstd, gamma, beta) = (1.0 / (variance + 1e-3).sqrt(), f64::from(gamma[c]), f64::from(beta[c]));
        let hat = |i: usize| (x[i] - mean) * rstd;
        let z = |i: usize| gamma * hat(i) + beta;
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let dz = |i: usize| {
            let s = sigmoid(z(i));
            f64::from(dy[i]) * if silu { s * (1.0 + z(i) * (1.0 - s)) } else { 1.0 }
        };
        let dbeta: f64 = indices(c).map(dz).sum();
        let dgamma: f64 = indices(c).map(|i| dz(i) * hat(i)).sum();
        for i in indices(c) {
            r.output[i] = if silu { z(i) * sigmoid(z(i)) } else { z(i) };
            r.dx[i] = gamma * rstd * (dz(i) - dbeta / m - hat(i) * dgamma / m);
        }
        r.mean.push(mean);
        r.variance.push(variance);
        r.dgamma.push(dgamma);
        r.dbeta.push(dbeta);
    }
    r
}

fn assert_close(what: &str, ours: &[f32], reference: &[f64], scale: f64) {
    assert_eq!(ours.len(), reference.len());
    let rms = (reference.iter().map(|r| r * r).sum::<f64>() / reference.len() as f64).sqrt().max(scale);
    for (o, r) in ours.iter().zip(reference) {
        assert!((f64::from(*o) - r).abs() <= 2e-6 * rms + 2e-6 * r.abs(), "{what}: {o} for {r}, rms {rms}");
    }
}

/// Everything the four passes return, in one vector: for comparing bits.
fn all(e: Extent, x: &[f32], gamma: &[f32], beta: &[f32], dy: &[f32], silu: bool) -> [Vec<f32>; 6] {
    let (mean, variance) = statistics(e, x);
    let constants = channels(&mean, &variance, gamma, beta, 1e-3);
    let mut out = vec![f32::NAN; x.len()];
    output(e, x, &constants, silu, &mut out);
    let (dgamma, dbeta) = grad_sums(e, x, dy, &constants, silu);
    let mut dx = dy.to_vec();
    input_grad(e, x, &constants, &dgamma, &dbeta, silu, &mut dx);
    [mean, variance, out, dgamma, dbeta, dx]
}

fn check(e: Extent, offset: f32, spread: f32, silu: bool, seed: u64) {
    let x: Vec<f32> = noise(seed, e.len()).into_iter().map(|v| offset + spread * v).collect();
    let (gamma, beta, dy) = (noise(seed + 1, e.channels), noise(seed + 2, e.channels), noise(seed + 3, e.len()));
    let r = reference(e, &x, &gamma, &beta, &dy, silu);
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
    #![proptest_config(crate::test_cases(64))]
    #[test]
    fn agrees_with_f64(
        batch in 1usize..4, channels in 1usize..40, height in 1usize..40, width in 1usize..40,
        offset in prop_oneof![Just(0.0f32), -20.0f32..20.0], silu: bool, seed in 0u64..1000,
    ) {
        check(Extent { batch, channels, plane: height * width }, offset, 2.0, silu, seed);
    }
}

#[test]
fn one_value_per_channel_and_large_planes() {
    check(Extent { batch: 1, channels: 5, plane: 1 }, 3.0, 1.0, true, 1);
    check(Extent { batch: 2, channels: 3, plane: 160 * 160 + 3 }, -1.0, 1.0, true, 2);
    check(Extent { batch: 1, channels: 1, plane: 70_001 }, 100.0, 1.0, true, 3);
}

#[test]
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

#[test]
fn extreme_inputs_stay_finite() {
    let e = Extent { batch: 1, channels: 2, plane: 40 };
    let x: Vec<f32> = (0..80).map(|i| if i % 7 == 0 { 3e4 } else { 0.0 }).collect();
    let results = all(e, &x, &[50.0, -50.0], &[-100.0, 100.0], &vec![1.0; 80], true);
    assert!(results.iter().flatten().all(|v| v.is_finite()));
}
