//! Complete IoU of boxes (Zheng et al., 2020): overlap, less the distance of the centres and the difference in shape.
//!
//! `CIoU = IoU - (d^2 / c^2 + alpha v)` with d the distance of the centres, c the diagonal of the smallest box
//! around both, `v = 4/pi^2 (atan(w2/h2) - atan(w1/h1))^2` and `alpha = v / (v - IoU + 1)`, which passes no gradient.
//! The same formula twice: on the host for one pair (the assigner), on tensors with gradient (the loss).

use burn::tensor::Tensor;
use std::f32::consts::PI;

const EPSILON: f32 = 1e-7;

/// CIoU of two `xyxy` boxes.
pub fn ciou(a: [f32; 4], b: [f32; 4]) -> f32 {
    let size = |b: [f32; 4]| (b[2] - b[0], b[3] - b[1] + EPSILON);
    let ((w1, h1), (w2, h2)) = (size(a), size(b));
    let inter = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0) * (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let union = w1 * h1 + w2 * h2 - inter + EPSILON;
    let iou = inter / union;
    let (cw, ch) = (a[2].max(b[2]) - a[0].min(b[0]), a[3].max(b[3]) - a[1].min(b[1]));
    let diagonal = cw * cw + ch * ch + EPSILON;
    let (dx, dy) = (b[0] + b[2] - a[0] - a[2], b[1] + b[3] - a[1] - a[3]);
    let centres = (dx * dx + dy * dy) / 4.0;
    let v = 4.0 / (PI * PI) * ((w2 / h2).atan() - (w1 / h1).atan()).powi(2);
    let alpha = v / (v - iou + (1.0 + EPSILON));
    iou - (centres / diagonal + v * alpha)
}

/// CIoU of `[M, 4]` `xyxy` boxes, pair by pair: `[M, 1]`. Gradient flows into both.
pub fn ciou_tensor(a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
    let side = |t: &Tensor<2>, k: usize| t.clone().narrow(1, k, 1);
    let [ax1, ay1, ax2, ay2] = [0, 1, 2, 3].map(|k| side(&a, k));
    let [bx1, by1, bx2, by2] = [0, 1, 2, 3].map(|k| side(&b, k));
    let (w1, h1) = (ax2.clone() - ax1.clone(), (ay2.clone() - ay1.clone()).add_scalar(EPSILON));
    let (w2, h2) = (bx2.clone() - bx1.clone(), (by2.clone() - by1.clone()).add_scalar(EPSILON));
    let overlap = |a1: &Tensor<2>, a2: &Tensor<2>, b1: &Tensor<2>, b2: &Tensor<2>| {
        (a2.clone().min_pair(b2.clone()) - a1.clone().max_pair(b1.clone())).clamp_min(0.0)
    };
    let around =
        |a1: &Tensor<2>, a2: &Tensor<2>, b1: &Tensor<2>, b2: &Tensor<2>| a2.clone().max_pair(b2.clone()) - a1.clone().min_pair(b1.clone());
    let inter = overlap(&ax1, &ax2, &bx1, &bx2) * overlap(&ay1, &ay2, &by1, &by2);
    let union = (w1.clone() * h1.clone() + w2.clone() * h2.clone() - inter.clone()).add_scalar(EPSILON);
    let iou = inter / union;
    let (cw, ch) = (around(&ax1, &ax2, &bx1, &bx2), around(&ay1, &ay2, &by1, &by2));
    let diagonal = (square(cw) + square(ch)).add_scalar(EPSILON);
    let centres = (square(bx1 + bx2 - ax1 - ax2) + square(by1 + by2 - ay1 - ay2)).div_scalar(4.0);
    let v = square((w2 / h2).atan() - (w1 / h1).atan()).mul_scalar(4.0 / (PI * PI));
    let alpha = (v.clone() / (v.clone() - iou.clone()).add_scalar(1.0 + EPSILON)).detach();
    iou - (centres / diagonal + v * alpha)
}

fn square(x: Tensor<2>) -> Tensor<2> {
    x.clone() * x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::to_host;
    use burn::tensor::{Device, TensorData};

    const PAIRS: [[[f32; 4]; 2]; 5] = [
        [[10.0, 10.0, 30.0, 40.0], [12.0, 8.0, 33.0, 35.0]],
        [[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]],
        [[0.0, 0.0, 4.0, 4.0], [10.0, 10.0, 12.0, 18.0]],
        [[-5.0, 3.0, 60.0, 9.0], [1.0, 1.0, 9.0, 70.0]],
        [[5.0, 5.0, 5.5, 5.5], [4.0, 4.0, 8.0, 7.0]],
    ];

    fn boxes(k: usize, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(PAIRS.iter().flat_map(|p| p[k]).collect::<Vec<f32>>(), [PAIRS.len(), 4]), device)
    }

    #[test]
    fn known_values() {
        assert!((ciou(PAIRS[1][0], PAIRS[1][1]) - 1.0).abs() < 1e-6);
        // Disjoint: IoU 0, centres (2, 2) and (11, 14), enclosing box 12 x 18, shapes 1:1 and 1:4.
        let v = 4.0 / (PI * PI) * (0.25f32.atan() - 1.0f32.atan()).powi(2);
        let expected = -((81.0 + 144.0) / (144.0 + 324.0) + v * v / (v + 1.0));
        assert!((ciou(PAIRS[2][0], PAIRS[2][1]) - expected).abs() < 1e-6);
    }

    #[test]
    fn host_and_tensor_agree() {
        let device = Device::flex();
        let tensor = to_host(ciou_tensor(boxes(0, &device), boxes(1, &device)));
        for (t, [a, b]) in tensor.into_iter().zip(PAIRS) {
            assert!((t - ciou(a, b)).abs() < 1e-6, "{t} {}", ciou(a, b));
        }
    }

    #[test]
    fn gradient_is_that_of_the_formula_with_alpha_held() {
        let device = Device::flex().autodiff();
        let a = boxes(0, &device).require_grad();
        let grads = ciou_tensor(a.clone(), boxes(1, &device)).sum().backward();
        let grad = to_host(a.grad(&grads).unwrap());
        for (row, [a, b]) in PAIRS.into_iter().enumerate() {
            if row == 1 {
                continue; // equal boxes: the formula has a kink there
            }
            let alpha = alpha64(a.map(f64::from), b.map(f64::from));
            for k in 0..4 {
                let shifted = |h: f64| {
                    let mut a = a.map(f64::from);
                    a[k] += h;
                    ciou64(a, b.map(f64::from), alpha)
                };
                let numeric = (shifted(1e-4) - shifted(-1e-4)) / 2e-4;
                let got = f64::from(grad[row * 4 + k]);
                assert!((numeric - got).abs() < 1e-4 * (1.0 + numeric.abs()), "row {row} side {k}: {numeric} {got}");
            }
        }
    }

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

    fn ciou64(a: [f64; 4], b: [f64; 4], alpha: f64) -> f64 {
        let (iou, d, v) = parts64(a, b);
        iou - d - alpha * v
    }
}
