//! Images from the host's bytes to the device's floats.

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;

/// Planar bytes `[B, C, H, W]` as `[B, channels, H, W]` in 0..1; gray images fill all the model's channels.
pub(crate) fn upload(images: &[u8], [count, own, height, width]: [usize; 4], channels: usize, device: &Device) -> Tensor<4> {
    let plane = (height * width).max(1);
    let mut pixels = vec![0.0f32; count * channels * height * width];
    pixels.par_chunks_mut(plane).enumerate().for_each(|(i, to)| {
        let (image, channel) = (i / channels, (i % channels).min(own - 1));
        let from = &images[(image * own + channel) * plane..][..plane];
        to.iter_mut().zip(from).for_each(|(to, &p)| *to = f32::from(p) / 255.0);
    });
    Tensor::from_data(TensorData::new(pixels, [count, channels, height, width]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_fills_every_channel_and_colour_stays() {
        let host = |own: usize, images: &[u8]| {
            let uploaded = upload(images, [2, own, 1, 2], 3, &Device::flex()).into_data();
            uploaded.try_into_vec_as::<f32>().unwrap().iter().map(|v| v * 255.0).collect::<Vec<_>>()
        };
        assert_eq!(host(1, &[0, 255, 51, 102]), [0., 255., 0., 255., 0., 255., 51., 102., 51., 102., 51., 102.]);
        let colour: Vec<u8> = (0..12).map(|v| v * 5).collect();
        assert_eq!(host(3, &colour), colour.iter().map(|&v| f32::from(v)).collect::<Vec<_>>());
    }
}
