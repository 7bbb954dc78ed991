//! Dropout on the device drops what the processor drops, to the bit; noise is the processor's but for the last bits of its draws.

use crate::launches::{assert_ours, trace};
use crate::support::{cube, numbers, on_each_device, pattern};
use bellows_kernels::draws::unit_at;
use bellows_kernels::dropout::DropoutOps;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("dropout::agrees_with_the_cpu") {
        return;
    }
    for (shape, key, p) in [([1, 1], 3, 0.5), ([7, 11], 0, 0.0), ([130, 257], u64::MAX, 0.05), ([3, 4000], 0x1234_5678_9abc_def0, 0.9)] {
        let x = pattern(key % 1000, shape[0] * shape[1]);
        let scale = (1.0 / (1.0 - p)) as f32;
        let defined = |x: &[f32]| -> Vec<f32> {
            x.iter().enumerate().map(|(i, x)| x * if unit_at(key, i as u64) < p { 0.0 } else { scale }).collect()
        };
        let tensor = cube(TensorData::new(x.clone(), shape));
        let turned = CubeBackend::float_swap_dims(tensor.clone(), 0, 1);
        let launched = trace(|| assert_eq!(numbers(CubeBackend::dropout(tensor.clone(), key, p)), defined(&x)));
        assert_ours(&launched, &[("dropout_kernel", 1)]);
        assert_eq!(numbers(tensor), x, "what somebody else holds stays as it is");
        assert_eq!(numbers(CubeBackend::dropout(turned.clone(), key, p)), defined(&numbers(turned)));
    }
}

#[test]
fn noise_is_that_of_the_cpu() {
    if !on_each_device("dropout::noise_is_that_of_the_cpu") {
        return;
    }
    for (len, key, scale) in [(1, 3, 0.5), (33_410, u64::MAX, 1e-3)] {
        let x = pattern(1, len);
        let tensor = cube(TensorData::new(x.clone(), [len]));
        let launched = trace(|| {
            for (i, (got, x)) in numbers(CubeBackend::add_noise(tensor.clone(), key, scale)).into_iter().zip(&x).enumerate() {
                let noise = (unit_at(key, i as u64) * 2.0 - 1.0) * scale;
                assert!((f64::from(got) - f64::from(*x) - noise).abs() < 3e-7 * (scale + f64::from(x.abs())), "{i}: {got}");
            }
        });
        assert_ours(&launched, &[("noise_kernel", 1)]);
        assert_eq!(numbers(tensor), x, "what somebody else holds stays as it is");
    }
}
