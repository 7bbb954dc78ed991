//! Against Burn's own operations on Flex, values and gradients, to the bit.

use super::*;
use crate::cpu::reference;
use burn::tensor::module::{interpolate, max_pool2d};
use burn::tensor::ops::{InterpolateMode, InterpolateOptions, MaxPoolOptions};
use burn::tensor::{Device, TensorData};
use proptest::prelude::*;

/// Few distinct values, so that windows have ties.
fn noise(seed: u64, shape: [usize; 4]) -> Tensor<4> {
    let values: Vec<f32> = reference::noise(seed, shape.iter().product()).into_iter().map(|v| (v * 8.0).floor() + 0.5).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
}

/// The value and the gradients of `Σ y weights`.
fn all<const N: usize>(inputs: [Tensor<4>; N], f: impl Fn([Tensor<4>; N]) -> Tensor<4>) -> Vec<Vec<f32>> {
    let inputs = inputs.map(Tensor::require_grad);
    let y = f(inputs.clone());
    let grads = (y.clone() * noise(99, y.dims())).sum().backward();
    let host = |t: Tensor<4>| t.try_to_vec_as::<f32>().unwrap();
    std::iter::once(host(y)).chain(inputs.map(|t| host(t.grad(&grads).unwrap()))).collect()
}

proptest! {
    #![proptest_config(crate::test_cases(64))]
    #[test]
    fn planes_are_burns(n in 1usize..4, c in 1usize..=130, h in 1usize..=70, w in 1usize..=70, k in 0usize..4, strided: bool, seed in 0u64..1000) {
        let (kernel, c) = (2 * k + 1, c.min(1 + 30_000 / (n * h * w)));
        let x = || if strided { noise(seed, [n, c, w, h]).swap_dims(2, 3) } else { noise(seed, [n, c, h, w]) };
        prop_assert_eq!(
            all([x()], |[x]| max_pool_same(x, kernel)),
            all([x()], |[x]| max_pool2d(x, MaxPoolOptions::new([kernel; 2]).with_stride([1; 2]).with_padding([k; 2])))
        );
        prop_assert_eq!(
            all([x()], |[x]| upsample2(x)),
            all([x()], |[x]| interpolate(x, InterpolateOptions::new(InterpolateMode::Nearest).with_output_size([2 * h, 2 * w])))
        );
        let start = seed as usize % c;
        prop_assert_eq!(all([x()], |[x]| slice_channels(x, start, c - start)), all([x()], |[x]| x.narrow(1, start, c - start)));
    }

    #[test]
    fn concat_is_burns(n in 1usize..4, c in prop::collection::vec(1usize..=130, 1..10), h in 1usize..=70, w in 1usize..=70) {
        let c: Vec<usize> = c.into_iter().map(|c| c.min(1 + 10_000 / (n * h * w))).collect();
        let parts = |x: Tensor<4>| {
            let mut start = 0;
            c.iter().map(|&len| { start += len; x.clone().narrow(1, start - len, len) }).collect::<Vec<_>>()
        };
        let x = || noise(5, [n, c.iter().sum(), h, w]);
        let twice = |x: Vec<Tensor<4>>| x.into_iter().map(|t| t * 2.0).collect::<Vec<_>>();
        prop_assert_eq!(all([x()], |[x]| concat(twice(parts(x)))), all([x()], |[x]| Tensor::cat(twice(parts(x)), 1)));
    }

    /// Every reader of `both` is ours, and they are three: sums of three gradients, in the order of Burn's.
    #[test]
    fn gradients_that_meet_are_burns(n in 1usize..4, c in 1usize..9, h in 1usize..=70, w in 1usize..=70, seed in 0u64..1000) {
        let x = || noise(seed, [n, 2 * c, h, w]);
        let ours = all([x()], |[x]| {
            let both = x * 2.0;
            let part = slice_channels(both.clone(), c, c);
            let last = add(part.clone(), max_pool_same(part, 3));
            concat(vec![both.clone(), last, both])
        });
        let theirs = all([x()], |[x]| {
            let both = x * 2.0;
            let part = both.clone().narrow(1, c, c);
            let pooled = max_pool2d(part.clone(), MaxPoolOptions::new([3; 2]).with_stride([1; 2]).with_padding([1; 2]));
            Tensor::cat(vec![both.clone(), part + pooled, both], 1)
        });
        prop_assert_eq!(ours, theirs);
    }
}

#[test]
fn gray_bytes_fill_every_channel_and_colour_stays() {
    let made = |own: usize, bytes: &[u8]| {
        let images = images(bytes, [2, own, 1, 3], 3, &Device::flex().autodiff());
        images.try_into_vec_as::<f32>().unwrap().iter().map(|v| v * 255.0).collect::<Vec<_>>()
    };
    assert_eq!(made(1, &[0, 255, 51, 102, 1, 2]), [[0., 255., 51.], [102., 1., 2.]].map(|plane| [plane; 3].concat()).concat());
    let colour: Vec<u8> = (0..18).map(|v| v * 5).collect();
    assert_eq!(made(3, &colour), colour.iter().map(|&v| f32::from(v)).collect::<Vec<_>>());
    assert_eq!(made(2, &colour[..12])[6..9], made(2, &colour[..12])[3..6], "the last stands for what is lacking");
}
