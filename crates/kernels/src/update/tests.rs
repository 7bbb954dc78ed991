//! The fused loops against Burn's operations, to the bit.

use super::*;
use crate::arena::{Places, arena};
use crate::cpu::machine::TASK;
use crate::cpu::reference;
use burn::backend::Flex;
use burn::tensor::{DType, Device, TensorData};

fn noise(seed: u64, len: usize) -> Tensor<1> {
    Tensor::from_data(TensorData::new(reference::noise(seed, len), [len]), &Device::flex())
}

fn host(t: Tensor<1>) -> Vec<f32> {
    t.try_to_vec_as().unwrap()
}

fn primitive(t: Tensor<1>) -> Float<Flex> {
    burn_flex::FlexTensor::from_data(t.into_data())
}

fn values(t: &Float<Flex>) -> Vec<f32> {
    t.as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn fused_updates_have_the_bits_of_the_operations() {
    // Around a vector, around what one thread takes, and any other.
    let around = [1usize, 8, 16, 16 * 1024, 32 * 1024].into_iter().flat_map(|len| [len - 1, len, len + 1]);
    for len in around.filter(|&len| len > 0).chain([1000, 40_000, 100_003]) {
        let [w, g, a] = [1, 2, 3].map(|seed| noise(seed, len));
        let b = noise(4, len).powi_scalar(2);
        let sgd = Sgd { lr: 0.01, momentum: 0.937, decay: 5e-4 };
        // Two groups of parameters, of which one may be empty.
        let sgd = vec![(len / 3, sgd), (len, Sgd { lr: 0.1, decay: 0.0, ..sgd })];
        let (ours, moved) = sgd_step(w.clone(), g.clone(), Some(a.clone()), sgd.clone());
        let p = |t: &Tensor<1>| primitive(t.clone());
        let theirs = portable::sgd_step::<Flex>(p(&w), p(&g), p(&a), &sgd);
        assert_eq!((host(ours), host(moved)), (values(&theirs.0), values(&theirs.1)));

        let adam = Adam { rate: 0.002, beta1: 0.9, beta2: 0.999, root: 0.1, epsilon: 1e-8, decay: 5e-4, keep: 0.9995 };
        let adam = vec![(len / 3, adam), (len, Adam { rate: 0.02, decay: 0.0, keep: 1.0, ..adam })];
        let [ours, first, second] = adam_step(w.clone(), g.clone(), Some(a.clone()), Some(b.clone()), adam.clone());
        let theirs = portable::adam_step::<Flex>(p(&w), p(&g), p(&a), p(&b), &adam);
        assert_eq!((host(ours), host(first), host(second)), (values(&theirs.0), values(&theirs.1), values(&theirs.2)));

        assert_eq!(host(blend(w.clone(), g.clone(), 0.99, 0.01)), values(&portable::blend::<Flex>(p(&w), p(&g), 0.99, 0.01)));
        let exact: f64 = host(w.clone()).iter().map(|&v| f64::from(v).powi(2)).sum();
        let squares = sum_of_squares(vec![w.clone()], Segments(vec![(0, 0..len)]));
        assert!((f64::from(host(squares.clone())[0]) - exact).abs() <= 1e-7 * exact);
        let norm = f64::from(host(squares.clone())[0]).sqrt();
        assert_eq!(host(clip_to_norm(w.clone(), squares.clone(), norm * 2.0)), host(w.clone()), "short enough");
        let clipped = clip_to_norm(w.clone(), squares.clone(), 0.1 * norm);
        assert_eq!(host(clipped), host(w.clone().mul_scalar(0.1 * norm / (norm + 1e-6))));
    }
}

/// The weights of YOLOv8n, and adapters of rank 8 on q and v of a 0.5B model (24 layers, 896 to 896 and to 128).
#[test]
fn there_is_work_for_every_thread() {
    let adapters: usize = 24 * 8 * ((896 + 896) + (896 + 128));
    assert_eq!([3_157_200, adapters].map(|values| values.div_ceil(TASK)), [193, 33]);
}

#[test]
fn what_is_still_held_is_not_changed() {
    let (w, g) = (noise(1, 100), noise(2, 100));
    let before = host(w.clone());
    blend(w.clone(), g.clone(), 0.5, 0.5);
    sgd_step(w.clone(), g, None, vec![(100, Sgd { lr: 0.1, momentum: 0.9, decay: 0.0 })]);
    assert_eq!(host(w), before);
}

#[test]
fn what_is_not_finite_shows_in_the_sum() {
    for bad in [f32::NAN, f32::INFINITY] {
        let x = Tensor::<1>::from_floats([1.0, bad, 2.0], &Device::flex());
        assert!(!host(sum_of_squares(vec![x], Segments(vec![(0, 0..3)])))[0].is_finite());
    }
}

/// Neither NaN nor zeros everywhere, in our loop and in Burn's operations (of other types): the Learner reads the sum, and drops the update.
#[test]
fn what_is_not_finite_clips_nothing() {
    for bad in [f32::NAN, f32::INFINITY] {
        let squares = || Tensor::<1>::from_floats([bad], &Device::flex());
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let x = Tensor::<1>::from_floats([1.0, -3.0, 2.0], &Device::flex()).cast(dtype);
            let clipped = clip_to_norm(x, squares(), 0.5);
            assert_eq!(clipped.try_to_vec_as::<f32>().unwrap(), [1.0, -3.0, 2.0], "{bad} {dtype:?}");
        }
    }
}

/// The sum of one arena is that of its tensors apart, in the order of the segments.
#[test]
fn sums_do_not_depend_on_the_arena() {
    let parts = [noise(1, 100_000), noise(2, 77), noise(3, 40_000)];
    let places = Places::of([100_000, 77, 40_000]);
    let whole = arena(parts.to_vec(), &places);
    let order = [2, 0, 1];
    let of = |i: usize| (0, places.all[i].0..places.all[i].0 + places.all[i].1);
    let together = sum_of_squares(vec![whole], Segments(order.map(of).to_vec()));
    let apart = order.map(|i| (i, 0..places.all[i].1)).to_vec();
    assert_eq!(host(together), host(sum_of_squares(parts.to_vec(), Segments(apart))));
}
