//! Distribution focal loss (Li et al., 2020): a box side is a distribution over 16 bins.
//!
//! A target distance t lies between the bins `floor(t)` and `floor(t) + 1`; the loss is the cross entropy of
//! both, weighted by how near t is to each: cross entropy against a two-spiked distribution.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};

use crate::model::head::REG_MAX;

/// The largest target distance in grid units: just below the last bin, so that `floor(t) + 1` exists.
const FAR: f32 = REG_MAX as f32 - 1.0 - 0.01;

/// The target distribution of one anchor, `4 x 16` values, each side scaled by `weight / 4` (the loss averages
/// over the sides). `anchor` is the cell's centre, `xyxy` the target box, both in grid units.
pub fn target(anchor: [f32; 2], xyxy: [f32; 4], weight: f32) -> [f32; 4 * REG_MAX] {
    let [x, y] = anchor;
    let mut spikes = [0.0; 4 * REG_MAX];
    for (side, distance) in [x - xyxy[0], y - xyxy[1], xyxy[2] - x, xyxy[3] - y].into_iter().enumerate() {
        let t = distance.clamp(0.0, FAR);
        let left = t.floor();
        let bin = side * REG_MAX + left as usize;
        spikes[bin] = (left + 1.0 - t) * weight / 4.0;
        spikes[bin + 1] = (t - left) * weight / 4.0;
    }
    spikes
}

/// Sum of the cross entropies of logits `[M, 64]` against the targets of M anchors (see [`target`]): `[1]`.
pub fn loss(logits: Tensor<2>, targets: Vec<f32>, device: &Device) -> Tensor<1> {
    let [m, _] = logits.dims();
    let targets = Tensor::<3>::from_data(TensorData::new(targets, [m, 4, REG_MAX]), device);
    let log_p = log_softmax(logits.reshape([m, 4, REG_MAX]), 2);
    (log_p * targets).sum().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::to_host;

    #[test]
    fn spikes_sum_to_the_weight_and_average_to_the_distance() {
        let t = target([10.5, 10.5], [7.25, 10.5, 11.0, 90.0], 2.0);
        assert!((t.iter().sum::<f32>() - 2.0).abs() < 1e-6);
        let distance = |side: usize| (0..REG_MAX).map(|k| k as f32 * t[side * REG_MAX + k]).sum::<f32>() / 0.5;
        for (side, expected) in [3.25, 0.0, 0.5, 14.99].into_iter().enumerate() {
            assert!((distance(side) - expected).abs() < 1e-5, "side {side}: {}", distance(side));
        }
    }

    #[test]
    fn gradient_matches_finite_differences() {
        let device = Device::flex().autodiff();
        let logits: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
        let targets: Vec<f32> = [target([3.5, 4.5], [1.2, 2.0, 6.6, 19.9], 0.7), target([9.5, 0.5], [9.0, -3.0, 9.9, 2.0], 0.3)].concat();
        let x = Tensor::<2>::from_data(TensorData::new(logits.clone(), [2, 64]), &device).require_grad();
        let grads = loss(x.clone(), targets.clone(), &device).backward();
        let grad = to_host(x.grad(&grads).unwrap());
        let exact = |logits: &[f64]| -> f64 {
            let rows = logits.chunks(REG_MAX).zip(targets.chunks(REG_MAX));
            rows.map(|(z, t)| {
                let lse = z.iter().map(|z| z.exp()).sum::<f64>().ln();
                z.iter().zip(t).map(|(z, &t)| (lse - z) * f64::from(t)).sum::<f64>()
            })
            .sum()
        };
        let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
        for i in 0..logits.len() {
            let shifted = |h: f64| {
                let mut z = logits.clone();
                z[i] += h;
                exact(&z)
            };
            let numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!((numeric - f64::from(grad[i])).abs() < 1e-5, "{i}: {numeric} {}", grad[i]);
        }
    }
}
