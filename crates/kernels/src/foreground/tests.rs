//! Terms and gradients against the formulas in f64 and their differences.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

use super::{BINS, Foreground, Positive, SIDES, ciou, detection_terms};
use crate::cpu::machine::POSITIVES;
use crate::cpu::reference::{noise, tasks};

const PAIRS: [[[f32; 4]; 2]; 5] = [
    [[10.0, 10.0, 30.0, 40.0], [12.0, 8.0, 33.0, 35.0]],
    [[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]],
    [[0.0, 0.0, 4.0, 4.0], [10.0, 10.0, 12.0, 18.0]],
    [[-5.0, 3.0, 60.0, 9.0], [1.0, 1.0, 9.0, 70.0]],
    [[5.0, 5.0, 5.5, 5.5], [4.0, 4.0, 8.0, 7.0]],
];

/// IoU, distance and shape terms.
fn parts64(a: [f64; 4], b: [f64; 4]) -> (f64, f64, f64) {
    let (w1, h1, w2, h2) = (a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]);
    let inter = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0) * (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let iou = inter / (w1 * h1 + w2 * h2 - inter);
    let c2 = (a[2].max(b[2]) - a[0].min(b[0])).powi(2) + (a[3].max(b[3]) - a[1].min(b[1])).powi(2);
    let d2 = ((b[0] + b[2] - a[0] - a[2]).powi(2) + (b[1] + b[3] - a[1] - a[3]).powi(2)) / 4.0;
    let v = 4.0 / std::f64::consts::PI.powi(2) * ((w2 / h2).atan() - (w1 / h1).atan()).powi(2);
    (iou, d2 / c2, v)
}

fn alpha64(a: [f64; 4], b: [f64; 4]) -> f64 {
    let (iou, _, v) = parts64(a, b);
    v / (v - iou + 1.0)
}

/// CIoU with this alpha.
fn ciou64(a: [f64; 4], b: [f64; 4], alpha: f64) -> f64 {
    let (iou, d, v) = parts64(a, b);
    iou - d - alpha * v
}

#[test]
fn known_overlaps() {
    assert!((ciou(PAIRS[1][0], PAIRS[1][1]) - 1.0).abs() < 1e-6);
    // Disjoint: IoU 0, centres (2, 2) and (11, 14), enclosing box 12 x 18, shapes 1:1 and 1:4.
    let v = 4.0 / std::f32::consts::PI.powi(2) * (0.25f32.atan() - 1.0f32.atan()).powi(2);
    let expected = -((81.0 + 144.0) / (144.0 + 324.0) + v * v / (v + 1.0));
    assert!((ciou(PAIRS[2][0], PAIRS[2][1]) - expected).abs() < 1e-6);
    // Not of equal boxes, whose alpha is 0 / 0 without what keeps f32 from it.
    for [a, b] in PAIRS.into_iter().filter(|[a, b]| a != b) {
        let (a64, b64) = (a.map(f64::from), b.map(f64::from));
        assert!((f64::from(ciou(a, b)) - ciou64(a64, b64, alpha64(a64, b64))).abs() < 1e-6);
    }
}

/// A random case: outputs, and positives at different places.
fn case(seed: u64, [b, classes, a]: [usize; 3], count: usize, spread: f32) -> (Vec<f32>, Vec<Positive>) {
    let x: Vec<f32> = noise(seed, b * (SIDES + classes) * a).into_iter().map(|v| v * spread).collect();
    let draws = noise(seed + 1, count * 8);
    let positive = |(i, d): (usize, &[f32])| {
        let at = (i * 7 + seed as usize) % (a * b);
        let centre = [8.0 + 6.0 * d[0], 9.0 + 7.0 * d[1]];
        // Some boxes end beyond the bins, some do not hold the centre.
        let [left, top, right, bottom] = [0, 1, 2, 3].map(|k| 5.0 + 6.0 * d[2 + k] + if k == 1 { 8.0 } else { 0.0 });
        Positive {
            image: (at / a) as u32,
            anchor: (at % a) as u32,
            class: (i % classes) as u32,
            centre,
            target: [centre[0] - left, centre[1] - top, centre[0] + right.max(0.5 - left), centre[1] + bottom.max(0.5 - top)],
            weight: 0.1 + d[6].abs(),
        }
    };
    let positives = draws.chunks(8).enumerate().map(positive).collect();
    (x, positives)
}

/// The distribution that a side's logits are, and what it expects.
fn softmax64(x: &[f64], first: usize, a: usize) -> (Vec<f64>, f64) {
    let e: Vec<f64> = (0..BINS).map(|k| x[first + k * a].exp()).collect();
    let sum: f64 = e.iter().sum();
    let p: Vec<f64> = e.iter().map(|e| e / sum).collect();
    let expected = p.iter().enumerate().map(|(k, p)| k as f64 * p).sum();
    (p, expected)
}

fn box64(x: &[f64], p: &Positive, first: usize, a: usize) -> [f64; 4] {
    let [cx, cy] = p.centre.map(f64::from);
    let [l, t, r, b] = [0, 1, 2, 3].map(|side| softmax64(x, first + side * BINS * a, a).1);
    [cx - l, cy - t, cx + r, cy + b]
}

/// The three terms of these logits in f64, alphas as they are at the logits `held`.
fn terms64(x: &[f64], held: &[f64], [b, classes, a]: [usize; 3], positives: &[Positive], gains: [f32; 3], norm: f32) -> [f64; 3] {
    let c = SIDES + classes;
    let mut sums = [0.0; 3];
    for (i, &v) in x.iter().enumerate() {
        sums[1] += if i / a % c >= SIDES { (1.0 + v.exp()).ln() / f64::from(norm) } else { 0.0 };
    }
    assert_eq!(x.len(), b * c * a);
    for p in positives {
        let first = p.image as usize * c * a + p.anchor as usize;
        let (w, target) = (f64::from(p.weight), p.target.map(f64::from));
        let alpha = alpha64(box64(held, p, first, a), target);
        sums[0] += w * (1.0 - ciou64(box64(x, p, first, a), target, alpha));
        sums[1] -= w * x[first + (SIDES + p.class as usize) * a];
        let [cx, cy] = p.centre.map(f64::from);
        for (side, distance) in [cx - target[0], cy - target[1], target[2] - cx, target[3] - cy].into_iter().enumerate() {
            let (q, _) = softmax64(x, first + side * BINS * a, a);
            let t = distance.clamp(0.0, 14.99);
            let low = t.floor();
            sums[2] -= w / 4.0 * ((low + 1.0 - t) * q[low as usize].ln() + (t - low) * q[low as usize + 1].ln());
        }
    }
    [0, 1, 2].map(|i| sums[i] * f64::from(gains[i]))
}

proptest! {
    #![proptest_config(crate::test_cases(12))]

    #[test]
    fn terms_and_gradient(
        shape in [1usize..3, 1usize..5, 30usize..60].prop_map(|s| s),
        count in 0usize..9,
        (seed, spread) in (0u64..1000, 0.3f32..6.0),
        grows in [0.2f32..3.0, 0.2f32..3.0, 0.2f32..3.0],
    ) {
        let (gains, norm) = ([7.5, 0.5, 1.5], 3.5);
        let (values, positives) = case(seed, shape, count, spread);
        let [b, classes, a] = shape;
        let foreground = Foreground { positives: Arc::new(positives.clone()), gains, norm };
        let x = Tensor::<3>::from_data(TensorData::new(values.clone(), [b, SIDES + classes, a]), &Device::flex().autodiff()).require_grad();
        let terms = detection_terms(x.clone(), foreground);
        let weights = Tensor::<1>::from_floats(grows, &x.device());
        let grads = (terms.clone() * weights).sum().backward();
        let (terms, grad): (Vec<f32>, Vec<f32>) = (terms.try_into_vec_as().unwrap(), x.grad(&grads).unwrap().try_into_vec_as().unwrap());

        let exact: Vec<f64> = values.iter().map(|&v| v.into()).collect();
        let of = |x: &[f64]| terms64(x, &exact, shape, &positives, gains, norm);
        for (i, (got, want)) in terms.iter().zip(of(&exact)).enumerate() {
            prop_assert!((f64::from(*got) - want).abs() < 1e-5 * want.abs().max(1.0), "term {i}: {got} for {want}");
        }
        let loss = |x: &[f64]| of(x).iter().zip(grows).map(|(t, g)| t * f64::from(g)).sum::<f64>();
        // Every logit of the positives, and some of the others.
        let touched: Vec<usize> = positives.iter().map(|p| p.image as usize * (SIDES + classes) * a + p.anchor as usize).collect();
        let checked = touched.iter().flat_map(|&first| (0..SIDES + classes).map(move |c| first + c * a)).chain((0..values.len()).step_by(97));
        for i in checked {
            let shifted = |h: f64| {
                let mut x = exact.clone();
                x[i] += h;
                loss(&x)
            };
            let numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            let got = f64::from(grad[i]);
            prop_assert!((numeric - got).abs() < 2e-4 * numeric.abs().max(0.1), "logit {i}: {got}, by differences {numeric}");
        }
    }
}

/// Two hundred positives are what four images of a few objects have, at up to ten anchors each. The gradient is one thread's: 65 additions for each of them.
#[test]
fn there_is_work_for_every_thread() {
    assert_eq!([200, 800].map(|positives| tasks(positives, POSITIVES)), [16, 64]);
}

#[test]
#[should_panic(expected = "two positives at one anchor")]
fn two_at_one_place_are_refused() {
    let p = Positive { image: 0, anchor: 3, class: 0, centre: [1.0; 2], target: [0.0, 0.0, 2.0, 2.0], weight: 1.0 };
    let foreground = Foreground { positives: Arc::new(vec![p, p]), gains: [1.0; 3], norm: 1.0 };
    detection_terms(Tensor::zeros([1, SIDES + 1, 4], &Device::flex()), foreground);
}
