//! Images from the host's bytes to the device's floats.

use burn::tensor::{Device, Tensor, TensorData};

use crate::data::Batch;

/// A batch as `[B, channels, H, W]` in 0..1; gray images fill all the model's channels.
pub(crate) fn upload(batch: &Batch, channels: usize, device: &Device) -> Tensor<4> {
    let pixels: Vec<f32> = batch.images.iter().map(|&p| f32::from(p) / 255.0).collect();
    let images = Tensor::<4>::from_data(TensorData::new(pixels, batch.shape), device);
    if batch.shape[1] == channels { images } else { images.repeat_dim(1, channels) }
}
