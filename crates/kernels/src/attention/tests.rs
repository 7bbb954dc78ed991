//! Attention in tiles at every instruction set against the composed one in f64, gradients included.

use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_flex::FlexTensor;
use proptest::prelude::*;

use super::blocks::{by_queries, rows_of_task};
use super::sizes::Sizes;
use super::{AttentionOps, attention};
use crate::cpu::machine::{KEYS, worth_a_task};
use crate::cpu::reference::{greatest, noise, tasks};
use crate::cpu::simd::{Level, with_level};

#[derive(Clone, Debug)]
struct Case {
    b: usize,
    g: usize,
    group: usize,
    s: usize,
    past: usize,
    d: usize,
    /// About how many documents a row has.
    documents: usize,
    spread: f32,
}

impl Case {
    /// The first keys: documents of unequal lengths.
    fn first(&self) -> Vec<i32> {
        let total = self.past + self.s;
        let cut = |t: usize, b: usize| t / (total.div_ceil(self.documents) + b).max(1) * (total.div_ceil(self.documents) + b).max(1);
        (0..self.b).flat_map(|b| (self.past..total).map(move |t| cut(t, b) as i32)).collect()
    }

    /// The result and the gradients of q, k and v.
    fn run(&self, device: &Device, dtype: DType) -> Vec<Vec<f64>> {
        let &Self { b, g, group, s, past, d, spread, .. } = self;
        let leaf = |seed: u64, shape: [usize; 4], spread: f32| {
            let values: Vec<f32> = noise(seed, shape.iter().product()).into_iter().map(|v| v * spread).collect();
            Tensor::<4>::from_data(TensorData::new(values, shape), (device, dtype)).require_grad()
        };
        let leaves = [leaf(1, [b, g * group, s, d], spread), leaf(2, [b, g, past + s, d], spread), leaf(3, [b, g, past + s, d], 1.0)];
        let first = Tensor::<2, Int>::from_data(TensorData::new(self.first(), [b, s]), device);
        let [q, k, v] = leaves.clone();
        let y = attention(q, k, v, first, 0.3);
        let dy = leaf(4, [b, g * group, s, d], 1.0).inner();
        let mut graph = (y.clone() * Tensor::from_inner(dy)).sum().backward();
        let host = |t: Tensor<4>| t.cast(DType::F64).try_into_vec_as::<f64>().unwrap();
        let mut all = vec![host(y)];
        all.extend(leaves.into_iter().map(|leaf| host(leaf.grad_remove(&mut graph).unwrap())));
        all
    }
}

fn cases() -> impl Strategy<Value = Case> {
    (1usize..3, 1usize..3, 1usize..4, 1usize..260, 0usize..40, 1usize..40, 1usize..4, 0.5f32..6.0)
        .prop_map(|(b, g, group, s, past, d, documents, spread)| Case { b, g, group, s, past, d, documents, spread })
}

proptest! {
    #![proptest_config(crate::test_cases(16))]

    #[test]
    fn tiles_give_what_the_whole_gives(case in cases()) {
        let device = Device::flex().autodiff();
        let expected = case.run(&device, DType::F64);
        for level in Level::all() {
            let got = with_level(level, || case.run(&device, DType::F32));
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let scale = expected.iter().fold(1e-3, |m: f64, v| m.max(v.abs()));
                let worst = greatest(got.iter().zip(expected).map(|(a, b)| (a - b).abs())) / scale;
                prop_assert!(worst < 2e-5, "{level:?} {case:?}, tensor {i}: {worst:e}");
            }
        }
    }
}

/// Tasks have fewer rows where there are more threads, and begin their sums where the largest would: documents begin within one.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let case = Case { b: 1, g: 2, group: 3, s: 200, past: 0, d: 16, documents: 3, spread: 2.0 };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run(&Device::flex().autodiff(), DType::F32))
    };
    let one = on(1);
    for threads in [2, 8, 16] {
        assert_eq!(on(threads), one, "{threads}");
    }
}

/// In both directions, of a 0.5B model's layer with 512 tokens; two threads have as large ones as before.
#[test]
fn there_is_work_for_every_thread() {
    let sizes = Sizes { b: 1, g: 2, group: 7, s: 512, t: 512, d: 1 };
    let mut out = vec![0.0; 14 * 512];
    for (threads, tasks) in [(2, 16), (16, 32), (64, 64)] {
        assert_eq!(by_queries(sizes, threads, &mut out).len(), tasks, "{threads} threads");
        assert_eq!(2 * 512 / rows_of_task(KEYS, 2 * 512, threads), tasks, "{threads} threads");
    }
    // Heads that are put in the order of tokens, 64 values each.
    assert_eq!(tasks(14 * 512, worth_a_task(64)), 64);
}

#[test]
#[should_panic(expected = "queries [1, 3, 2, 4], keys [1, 2, 2, 4]")]
fn heads_that_do_not_divide_are_named() {
    let device = Device::flex();
    let zeros = |heads: usize| Tensor::<4>::zeros([1, heads, 2, 4], &device);
    drop(attention(zeros(3), zeros(2), zeros(2), Tensor::zeros([1, 2], &device), 1.0));
}

/// f16 has no number for a key that is not seen: where attention is composed it is so in f32.
#[test]
fn what_lies_in_f16_is_composed_in_f32() {
    let device = Device::flex();
    let [q, k, v] =
        [1, 2, 3].map(|seed| Tensor::<4>::from_data(TensorData::new(noise(seed, 2 * 5 * 8), [1, 2, 5, 8]), &device).cast(DType::F16));
    let of = |dtype: DType| {
        let [q, k, v] = [&q, &k, &v].map(|x| x.clone().cast(dtype));
        attention(q, k, v, Tensor::zeros([1, 5], &device), 0.3).try_into_vec_as::<f32>().unwrap()
    };
    let apart = greatest(of(DType::F16).into_iter().zip(of(DType::F32)).map(|(a, b)| f64::from((a - b).abs())));
    assert!(apart < 2e-5, "{apart:e}");
}

#[test]
fn of_no_queries_the_result_is_empty() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        let [q, keys] = [0usize, 3].map(|n| Tensor::<4>::zeros([1, 2, n, 8], &device));
        assert_eq!(attention(q, keys.clone(), keys, Tensor::zeros([1, 0], &device), 1.0).dims(), [1, 2, 0, 8]);
    }
}

/// The map that comes next keeps its input, and it is the same block.
#[test]
fn the_result_lies_token_by_token() {
    let tensor = |shape: [usize; 4]| crate::buffers::tensor(noise(1, shape.iter().product()), shape);
    let first = FlexTensor::from_data(TensorData::new(vec![0i32; 2 * 5], [2, 5]));
    let (y, _) = Flex::attend(tensor([2, 6, 5, 8]), tensor([2, 3, 5, 8]), tensor([2, 3, 5, 8]), first, 0.3);
    assert!(y.shape().dims() == [2, 6, 5, 8] && y.transpose(1, 2).is_contiguous());
}
