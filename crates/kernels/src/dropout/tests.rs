//! Dropout against its definition, with draws as numbers in [0, 1).

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::{add_noise, dropout};
use crate::cpu::reference::noise;
use crate::draws::unit_at;

fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(DType::F32).try_into_vec_as().unwrap()
}

fn defined(x: &[f32], key: u64, p: f64) -> Vec<f32> {
    let scale = (1.0 / (1.0 - p)) as f32;
    x.iter().enumerate().map(|(i, x)| x * if unit_at(key, i as u64) < p { 0.0 } else { scale }).collect()
}

#[test]
fn values_are_dropped_by_their_draws() {
    let device = Device::flex();
    for (shape, key, p) in [([1, 1], 3, 0.5), ([7, 11], 0, 0.0), ([130, 257], u64::MAX, 0.05), ([3, 40_000], 1 << 40, 0.9)] {
        let x = noise(key, shape[0] * shape[1]);
        let tensor = Tensor::<2>::from_data(TensorData::new(x.clone(), shape), &device);
        let got = host(dropout(tensor.clone(), key, p));
        assert_eq!(got, defined(&x, key, p));
        let share = got.iter().filter(|v| **v == 0.0).count() as f64 / got.len() as f64;
        assert!(got.len() < 1000 || (share - p).abs() < 0.01, "{share} of {p}");
        // A view is dropped by the places of the view.
        let turned = host(tensor.clone().transpose());
        assert_eq!(host(dropout(tensor.clone().transpose(), key, p)), defined(&turned, key, p));
        // Another type by Burn's operations.
        let halves = host(dropout(tensor.cast(DType::F64), key, p).cast(DType::F32));
        assert!(halves.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()), "{shape:?}");
    }
}

#[test]
fn a_gradient_passes_where_a_value_did() {
    let (shape, key, p) = ([33, 70], 5, 0.3);
    let (x, dy) = (noise(1, 33 * 70), noise(2, 33 * 70));
    let leaf = Tensor::<2>::from_data(TensorData::new(x, shape), &Device::flex().autodiff()).require_grad();
    let weights = Tensor::from_data(TensorData::new(dy.clone(), shape), &Device::flex().autodiff());
    let mut graph = (dropout(leaf.clone(), key, p) * weights).sum().backward();
    assert_eq!(host(leaf.grad_remove(&mut graph).unwrap()), defined(&dy, key, p));
}

#[test]
fn noise_is_added_by_its_draws() {
    let (x, key, scale) = (noise(1, 7 * 11), 5, 0.3);
    let tensor = Tensor::<2>::from_data(TensorData::new(x.clone(), [7, 11]), &Device::flex());
    let defined: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + ((unit_at(key, i as u64) * 2.0 - 1.0) * scale) as f32).collect();
    assert_eq!(host(add_noise(tensor, key, scale)), defined);
}

#[test]
#[should_panic(expected = "a dropout of 1")]
fn nothing_is_left_of_one() {
    drop(dropout(Tensor::<1>::zeros([3], &Device::flex()), 0, 1.0));
}
