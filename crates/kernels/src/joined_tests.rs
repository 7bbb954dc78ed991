//! Against the same convolution of the joined tensor, to the bit, on Flex.

use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

use crate::cpu::reference;
use crate::cpu::simd::{Level, with_levels};
use crate::{ConvConfig, Lowering, NormStep, batch_norm_silu, concat, conv2d_for_norm};

fn noise<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(reference::noise(seed, shape.iter().product()), shape), &Device::flex().autodiff())
}

fn bits<const D: usize>(x: Tensor<D>) -> Vec<u32> {
    x.try_to_vec_as::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// What a convolution and its normalisation make of parts, and the gradients of the weight and of each part that has one, every second if not `all`.
/// If `twice`, the first part is its own neighbour; else two of them have another reader. Two gradients then meet, of which either may come first.
fn results(parts: &[Tensor<4>], weight: Tensor<4>, config: ConvConfig, [all, twice, join]: [bool; 3]) -> Vec<Vec<u32>> {
    let weight = weight.require_grad();
    let leaves: Vec<_> =
        parts.iter().enumerate().map(|(i, x)| if all || i % 2 == 1 { x.clone().require_grad() } else { x.clone() }).collect();
    let maps: Vec<_> = leaves.iter().map(|x| x.clone() * 2.0).collect();
    let x: Vec<_> = maps.iter().take(usize::from(twice)).chain(&maps).cloned().collect();
    let x = if join { vec![concat(x)] } else { x };
    let c = weight.dims()[0];
    let [ones, zeros] = [Tensor::<1>::ones([c], &weight.device()), Tensor::zeros([c], &weight.device())];
    let running = [zeros.clone(), ones.clone()];
    let y = conv2d_for_norm(x, weight.clone(), config);
    let y = batch_norm_silu(y, ones, zeros, running, NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 }, None).output;
    let mut loss = (y.clone() * noise(7, y.dims())).sum();
    for (i, map) in maps.into_iter().enumerate().take(if twice { 0 } else { 2 }) {
        loss = loss + (map.clone() * noise(8 + i as u64, map.dims())).sum();
    }
    let grads = loss.backward();
    let of = |x: &Tensor<4>| x.grad(&grads).map_or(Vec::new(), bits);
    [bits(y), of(&weight)].into_iter().chain(leaves.iter().map(of)).collect()
}

proptest! {
    #![proptest_config(crate::test_cases(48))]
    #[test]
    fn parts_give_the_bits_of_the_joined_tensor(
        n in 1usize..4, c in prop::collection::vec(1usize..40, 1..8), co in 1usize..70, size in (3usize..24, 3usize..24),
        one_by_one in prop::bool::weighted(0.7), swapped: bool, all: bool, twice: bool, seed in 0u64..1000,
        lowering in prop::sample::select(vec![Lowering::Auto, Lowering::Implicit, Lowering::Bf16, Lowering::Direct]),
    ) {
        let (h, w) = size;
        let part = |(i, &c): (usize, &usize)| match swapped {
            true => noise(seed + i as u64, [n, c, w, h]).swap_dims(2, 3),
            false => noise(seed + i as u64, [n, c, h, w]),
        };
        let parts: Vec<Tensor<4>> = c.iter().enumerate().map(part).collect();
        let ci = c.iter().sum::<usize>() + usize::from(twice) * c[0];
        let k = if one_by_one { 1 } else { 3 };
        let (weight, config) = (|| noise(seed + 20, [co, ci, k, k]), ConvConfig::new(1, k / 2, lowering));
        let apart = results(&parts, weight(), config, [all, twice, false]);
        let joined = results(&parts, weight(), config, [all, twice, true]);
        prop_assert!(!apart[0].is_empty() && !apart[1].is_empty());
        prop_assert_eq!(apart[2].is_empty(), !all);
        prop_assert!(apart == joined, "{:?}", apart.iter().zip(&joined).map(|(a, b)| a == b).collect::<Vec<_>>());
    }
}

/// The gradient of the weight of one image in bf16 is f32's, which is Winograd's also where a unit for matrices computes the rest. (Elsewhere all of it is.)
#[test]
fn one_image_in_bf16() {
    let parts = [noise(1, [1, 9, 12, 13]), noise(2, [1, 8, 12, 13])];
    let config = ConvConfig::new(1, 1, Lowering::Bf16);
    let compare = || {
        let [apart, joined] = [false, true].map(|join| results(&parts, noise(3, [20, 17, 3, 3]), config, [true, false, join]));
        assert!(apart == joined, "{:?}", apart.iter().zip(&joined).map(|(a, b)| a == b).collect::<Vec<_>>());
    };
    compare();
    // The unit's model, on any processor.
    with_levels([Level::Portable, Level::AmxModel], compare);
}
