//! One layer of a language model with low-rank branches beside frozen matrices, gate and up in blocks of 4 bits, trained for two steps as the large one
//! is; and its operations one by one. Odd sizes are here because products have been wrong at exactly those (burn issue 4355), a frozen base because
//! gradients have (burn issue 5162).

use crate::flat::{Flat, adam};
use crate::made::{numbers, pattern, tensor};
use bellows_kernels::{
    Blocks, LowRank, Map, Precision, Segments, Weight, adam_step, attention, clip_to_norm, cross_entropy, cross_entropy_loss, dropout,
    enter, lead, linear, linear_data_grad, maps, rms_norm, rotate, sum_of_squares, swiglu,
};
use burn::tensor::{Device, Int, Tensor, TensorData};

const TEXTS: usize = 2;
const TOKENS: usize = 11;
const ROWS: usize = TEXTS * TOKENS;
const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const HEAD: usize = HIDDEN / HEADS;
const INNER: usize = 130;
const WORDS: usize = 257;
const RANK: usize = 4;

/// Outputs and inputs of q, k, v, o, gate, up and down.
const MATRICES: [[usize; 2]; 7] = [
    [HIDDEN, HIDDEN],
    [KEY_HEADS * HEAD, HIDDEN],
    [KEY_HEADS * HEAD, HIDDEN],
    [HIDDEN, HIDDEN],
    [INNER, HIDDEN],
    [INNER, HIDDEN],
    [HIDDEN, INNER],
];

/// The frozen matrices.
fn base(device: &Device) -> Vec<Weight> {
    let matrix = |(i, shape): (usize, [usize; 2])| {
        let values: Vec<f32> = pattern(40 + i as u64, shape[0] * shape[1]).into_iter().map(|v| 0.2 * v).collect();
        match i {
            4 | 5 => Weight::Blocks(Blocks::nf4(&values, shape, device)),
            _ => Weight::Dense(Tensor::from_data(TensorData::new(values, shape), device)),
        }
    };
    MATRICES.into_iter().enumerate().map(matrix).collect()
}

/// A pass of the layer over made-up embeddings, `[rows, hidden]`.
fn layer(base: &[Weight], leaves: &[Tensor<1>], x: Tensor<2>, precision: Precision) -> Tensor<2> {
    let device = x.device();
    let x = enter(x);
    let map = |i: usize| {
        let [out, input] = MATRICES[i];
        let (a, b) = (leaves[2 * i].clone().reshape([RANK, input]), leaves[2 * i + 1].clone().reshape([out, RANK]));
        Map { weight: base[i].clone(), bias: None, branch: Some(LowRank { a, b, scaling: 2.0 }) }
    };
    let ones = Tensor::<1>::ones([HIDDEN], &device);
    let normed = rms_norm(x.clone(), ones.clone(), 1e-6);
    let half = precision == Precision::F16;
    let [q, k, v] = maps(normed, [map(0), map(1), map(2)], None, half, precision);
    let heads = |y: Tensor<2>, count: usize| y.reshape([TEXTS, TOKENS, count, HEAD]);
    let (cos, sin) = (tensor(51, [1, 1, TOKENS, HEAD / 2], &device), tensor::<4>(52, [1, 1, TOKENS, HEAD / 2], &device));
    let [q, k] = rotate(heads(q, HEADS), heads(k, KEY_HEADS), cos, sin);
    let v = heads(v, KEY_HEADS).swap_dims(1, 2);
    // The second text is two documents.
    let first = (0..ROWS).map(|row| if row < TOKENS + 6 { 0 } else { 6 }).collect::<Vec<i32>>();
    let first = Tensor::<2, Int>::from_data(TensorData::new(first, [TEXTS, TOKENS]), &device);
    let seen = attention(q, k, v, first, 0.25).swap_dims(1, 2).reshape([ROWS, HIDDEN]);
    let [x] = maps(seen, [map(3)], Some(x), false, precision);
    let [gate, up] = maps(rms_norm(x.clone(), ones, 1e-6), [map(4), map(5)], None, half, precision);
    let [y] = maps(swiglu(gate, up), [map(6)], Some(x), false, precision);
    y
}

/// The losses of all tokens, the gradient of the last hidden states and the clipped one of the factors in both steps, and then the low-rank factors.
pub(crate) fn two_steps(device: &Device, precision: Precision) -> Vec<Vec<f32>> {
    let graph = &device.clone().autodiff();
    let (base, words) = (base(graph), tensor::<2>(50, [WORDS, HIDDEN], device));
    let parts: Vec<_> = MATRICES.iter().flat_map(|&[out, input]| [(RANK * input, 0.0, 0.2), (out * RANK, 0.0, 0.2)]).collect();
    let mut all = Flat::new(&parts, device);
    let (mut first, mut second) = (None, None);
    let targets = (0..ROWS).map(|row| (row * 37 % WORDS) as i32).collect::<Vec<i32>>();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [ROWS]), device);
    let mut out = Vec::new();
    for step in 1..=2 {
        let leaves = all.leaves();
        let gradients = all.in_place(|| {
            let hidden = layer(&base, &leaves, tensor(53, [ROWS, HIDDEN], graph), precision);
            let logits = linear(hidden.clone().without_autodiff(), words.clone(), None, precision);
            let (losses, slopes) = cross_entropy(logits, targets.clone());
            let slopes = linear_data_grad(slopes, words.clone(), precision) / ROWS as f32;
            out.extend([numbers(losses), numbers(slopes.clone())]);
            all.gradients(&leaves, &lead(hidden, slopes.autodiff()).backward())
        });
        drop(leaves);
        let squares = sum_of_squares(vec![gradients.clone()], Segments(vec![(0, 0..gradients.dims()[0])]));
        let gradients = clip_to_norm(gradients, squares, 1.0);
        // Adam would hide a wrong factor.
        out.push(numbers(gradients.clone()));
        // A large epsilon, so that a gradient of nearly zero is no step of its own.
        let steps = all.groups(adam(step, 1e-3));
        let [values, m, v] = adam_step(all.values, gradients, first, second, steps);
        all.values = values;
        (first, second) = (Some(m), Some(v));
    }
    out.extend(all.parts());
    out
}

/// `x Wᵀ` and its gradient for x.
pub(crate) fn products(device: &Device) -> Vec<Vec<f32>> {
    let (x, w) = (tensor::<2>(54, [96, 257], device), tensor::<2>(55, [130, 257], device));
    let dx = linear_data_grad(tensor(56, [96, 130], device), w.clone(), Precision::F32);
    vec![numbers(linear(x, w, Some(tensor(57, [130], device)), Precision::F32)), numbers(dx)]
}

/// A product so large that ours takes its largest blocks.
pub(crate) fn large_product(device: &Device) -> Vec<f32> {
    numbers(linear(tensor::<2>(63, [1024, 64], device), tensor::<2>(64, [1536, 64], device), None, Precision::F32))
}

/// Normalisation, rotation, the gate, the loss of words with its gradient and, as an evaluation has it, alone, dropout.
pub(crate) fn rows(device: &Device) -> Vec<Vec<f32>> {
    let x = || tensor::<2>(58, [ROWS, WORDS], device);
    let (cos, sin) = (tensor(51, [1, 1, TOKENS, HEAD / 2], device), tensor::<4>(52, [1, 1, TOKENS, HEAD / 2], device));
    let targets = Tensor::<1, Int>::from_data(TensorData::new((0..ROWS as i32).collect::<Vec<_>>(), [ROWS]), device);
    let (losses, slopes) = cross_entropy(x(), targets.clone());
    let [q, k] = rotate(tensor(61, [TEXTS, TOKENS, HEADS, HEAD], device), tensor(62, [TEXTS, TOKENS, KEY_HEADS, HEAD], device), cos, sin);
    vec![
        numbers(rms_norm(x(), tensor(59, [WORDS], device), 1e-6)),
        numbers(swiglu(x(), tensor(60, [ROWS, WORDS], device))),
        numbers(q),
        numbers(k),
        numbers(losses),
        numbers(slopes),
        numbers(cross_entropy_loss(x(), targets)),
        numbers(dropout(x(), 0x1234_5678_9abc_def0, 0.1)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_lower_the_loss_and_move_every_factor() {
        let out = two_steps(&Device::flex(), Precision::F32);
        let [first, second] = [0, 3].map(|at| out[at].iter().sum::<f32>());
        assert!(second < first, "{first} {second}");
        let parts: Vec<_> = MATRICES.iter().flat_map(|&[out, input]| [(RANK * input, 0.0, 0.2), (out * RANK, 0.0, 0.2)]).collect();
        let before = Flat::new(&parts, &Device::flex()).parts();
        for (i, (before, after)) in before.iter().zip(&out[6..]).enumerate() {
            assert!(before.iter().zip(after).filter(|(a, b)| (*a - *b).abs() > 1e-3).count() * 4 > before.len(), "factor {i} stays");
        }
        for clipped in [&out[2], &out[5]] {
            let norm = clipped.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            assert!((norm - 1.0).abs() < 1e-4, "{norm}");
        }
    }

    #[test]
    fn an_evaluations_loss_and_dropout_are_among_the_rows() {
        let out = rows(&Device::flex());
        let [losses, alone, dropped] = [4, 6, 7].map(|at| &out[at]);
        assert!(losses.iter().zip(alone).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs()), "{losses:?} {alone:?}");
        let zeros = dropped.iter().filter(|v| **v == 0.0).count();
        assert!((ROWS * WORDS / 20..ROWS * WORDS / 5).contains(&zeros), "{zeros}");
    }
}
