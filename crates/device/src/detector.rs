//! A detector of four convolutions, trained for two steps as the large one is: normalisation with SiLU, sums, channels cut out, concatenation, pooling,
//! upsampling, the loss of boxes and classes, parameters in an arena, the norm of all gradients, SGD with momentum, a moving average; and AdamW.

use crate::flat::{Flat, adam};
use crate::made::{numbers, tensor};
use bellows_kernels::foreground::BINS;
use bellows_kernels::{
    ConvConfig, Foreground, Lowering, NormStep, Positive, Segments, Sgd, adam_step, batch_norm_silu, blend, clip_to_norm, concat, conv2d,
    conv2d_for_norm, detection_terms, expectation, max_pool_same, predictions, sgd_step, slice_channels, sum_of_squares, upsample2, widen,
};
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;

const IMAGES: usize = 2;
const SIZE: usize = 32;
/// Channels between the layers, and classes.
const WIDTH: usize = 16;
/// Channels that are cut out of a map and mixed beside it, as the blocks of the large one do.
const CUT: usize = WIDTH / 2;
const CLASSES: usize = 2;
const OUTPUTS: usize = 4 * BINS + CLASSES;
/// Anchors of the only level.
const ANCHORS: usize = (SIZE / 2) * (SIZE / 2);

/// Weight, gamma and beta of three layers, weight and bias of the head: lengths, middles and spreads.
const PARTS: [(usize, f32, f32); 11] = [
    (WIDTH * 3 * 9, 0.0, 0.3),
    (WIDTH, 1.0, 0.2),
    (WIDTH, 0.0, 0.2),
    (WIDTH * WIDTH * 9, 0.0, 0.1),
    (WIDTH, 1.0, 0.2),
    (WIDTH, 0.0, 0.2),
    (WIDTH * WIDTH * 9, 0.0, 0.1),
    (WIDTH, 1.0, 0.2),
    (WIDTH, 0.0, 0.2),
    (OUTPUTS * (2 * WIDTH + CUT), 0.0, 0.1),
    (OUTPUTS, 0.0, 0.5),
];

/// Convolution, normalisation and SiLU, added to `onto`; what was seen of the batch goes to `seen`.
fn layer(x: Tensor<4>, onto: Option<Tensor<4>>, leaves: &[Tensor<1>], stride: usize, by: Lowering, seen: &mut Vec<Tensor<1>>) -> Tensor<4> {
    let [weight, gamma, beta] = [0, 1, 2].map(|i| leaves[i].clone());
    let channels = x.dims()[1];
    let y = conv2d_for_norm(vec![x], weight.reshape([WIDTH, channels, 3, 3]), ConvConfig::new(stride, 1, by));
    let running = [gamma.clone().without_autodiff().zeros_like(), gamma.clone().without_autodiff().ones_like()];
    let y = batch_norm_silu(y, gamma, beta, running, NormStep { epsilon: 1e-3, silu: true, momentum: 0.03 }, onto);
    seen.extend(y.running);
    y.output
}

/// Raw outputs `[images, outputs, anchors]` in f32, of images in f16 if asked.
fn outputs(x: Tensor<4>, leaves: &[Tensor<1>], by: Lowering, half: bool, seen: &mut Vec<Tensor<1>>) -> Tensor<3> {
    let x = if half { x.cast(DType::F16) } else { x };
    let stem = layer(x, None, &leaves[0..3], 2, by, seen);
    let y = layer(stem.clone(), Some(stem), &leaves[3..6], 1, by, seen);
    let deep = max_pool_same(layer(y.clone(), None, &leaves[6..9], 2, by, seen), 5);
    let cut = slice_channels(y.clone(), 3, CUT);
    let all = concat(vec![y, cut, upsample2(deep)]);
    let (weight, bias) = (leaves[9].clone().reshape([OUTPUTS, 2 * WIDTH + CUT, 1, 1]), leaves[10].clone());
    widen(conv2d(all, weight, Some(bias), ConvConfig::new(1, 0, by)).reshape([IMAGES, OUTPUTS, ANCHORS]))
}

/// Three objects.
fn objects() -> Foreground {
    let positive = |image, anchor: u32, class, target| {
        let side = (SIZE / 2) as u32;
        let centre = [(anchor % side) as f32 + 0.5, (anchor / side) as f32 + 0.5];
        Positive { image, anchor, class, centre, target, weight: 0.25 }
    };
    let positives = vec![
        positive(0, 37, 1, [2.0, 0.5, 7.5, 6.0]),
        positive(0, 38, 1, [3.0, 0.5, 8.5, 5.0]),
        positive(1, 200, 0, [4.0, 10.0, 12.0, 15.5]),
    ];
    Foreground { positives: Arc::new(positives), gains: [7.5, 0.5, 1.5], norm: 3.0 }
}

/// The terms of both steps, what an assigner asks of the outputs, the statistics of the batches, all parameters by AdamW, their moving average by SGD.
pub(crate) fn two_steps(device: &Device, by: Lowering, half: bool) -> Vec<Vec<f32>> {
    let graph = &device.clone().autodiff();
    let x = tensor::<4>(9, [IMAGES, 3, SIZE, SIZE], graph);
    let mut all = Flat::new(&PARTS, device);
    let (mut average, mut buffer) = (all.values.clone(), None);
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let leaves = all.leaves();
        let gradients = all.in_place(|| {
            let y = outputs(x.clone(), &leaves, by, half, &mut seen);
            let terms = detection_terms(y.clone(), objects());
            out.push(numbers(terms.clone()));
            out.extend(asked(y.without_autodiff()));
            all.gradients(&leaves, &terms.sum().backward())
        });
        drop(leaves);
        let squares = sum_of_squares(vec![gradients.clone()], Segments(vec![(0, 0..gradients.dims()[0])]));
        let gradients = clip_to_norm(gradients, squares, 10.0);
        let steps = all.groups(Sgd { lr: 0.01, momentum: 0.9, decay: 5e-4 });
        let (values, momentum) = sgd_step(all.values, gradients, buffer, steps);
        all.values = values;
        buffer = Some(momentum);
        average = blend(average, all.values.clone(), 0.9, 0.1);
    }
    out.extend(seen.into_iter().map(numbers));
    out.extend(by_adam(device));
    all.values = average;
    out.extend(all.parts());
    out
}

/// The parameters after two updates by AdamW. Of made-up gradients: it divides one by its own size, and of a small one of images in f16 that is mostly rounding.
fn by_adam(device: &Device) -> Vec<Vec<f32>> {
    let mut all = Flat::new(&PARTS, device);
    let (mut first, mut second) = (None, None);
    for step in 1..=2 {
        let gradients = tensor(12 + step as u64, all.values.dims(), device);
        let steps = all.groups(adam(step, 1e-8));
        let [values, m, v] = adam_step(all.values, gradients, first, second, steps);
        all.values = values;
        (first, second) = (Some(m), Some(v));
    }
    all.parts()
}

/// The boxes of all anchors and the scores of one class, as the assigner gets them; the boxes once more, as validation does.
fn asked(y: Tensor<3>) -> [Vec<f32>; 2] {
    let device = y.device();
    let (centres, strides) = (tensor(11, [1, 2, ANCHORS], &device), tensor::<3>(12, [1, 1, ANCHORS], &device));
    let rows = (0..IMAGES).map(|image| (image * OUTPUTS + 4 * BINS) as i32).collect();
    [numbers(predictions(y.clone(), centres, strides, rows, BINS)), numbers(expectation(y, 4, BINS))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_lower_the_loss_and_move_every_parameter() {
        let out = two_steps(&Device::flex(), Lowering::Auto, false);
        let [first, second] = [0, 3].map(|at| out[at].iter().sum::<f32>());
        assert!(second < first, "{:?} {:?}", out[0], out[3]);
        let before = Flat::new(&PARTS, &Device::flex()).parts();
        // Two steps of three lists, statistics of three layers, and the parameters by AdamW and by SGD.
        assert_eq!(out.len(), 2 * 3 + 2 * 3 * 2 + 2 * before.len());
        for (i, (before, after)) in before.iter().cycle().zip(&out[2 * 3 + 2 * 3 * 2..]).enumerate() {
            assert!(before.iter().zip(after).filter(|(a, b)| a != b).count() * 10 > before.len() * 9, "parameter {i} stays");
        }
    }
}
