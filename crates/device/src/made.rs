//! Made-up numbers, the same on every device, and the way back.

use burn::tensor::{Device, Tensor, TensorData};

/// Numbers in [-1, 1) from a hash of (stream, index).
pub(crate) fn pattern(stream: u64, len: usize) -> Vec<f32> {
    let value = |index: u64| {
        let mut x = (stream << 32 ^ index).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len as u64).map(value).collect()
}

pub(crate) fn tensor<const D: usize>(stream: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(pattern(stream, shape.iter().product()), shape), device)
}

/// The child catches the panic of a device that cannot be read; there is no other answer to it.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
