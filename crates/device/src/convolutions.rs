//! Convolutions of YOLOv8n's kinds (stem 3x3 stride 2, bottleneck 3x3 stride 1, 1x1), small because a software adapter needs seconds to tune each new
//! one. 1x1 with 104 -> 208 channels is here because drivers have got exactly that wrong (burn issue 5626).

use crate::made::{numbers, tensor};
use bellows_kernels::cube::{Class, Maps, Pass, classes_of};
use bellows_kernels::{
    BatchNormed, ConvConfig, HALF_GRADIENTS, Lowering, NormStep, batch_norm_silu, conv2d, conv2d_data_grad, conv2d_for_norm, conv2d_silu,
    conv2d_weight_grad,
};
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

pub(crate) const STEM: Conv = plain(3, 16, 3, 2, 32);
pub(crate) const BOTTLENECK: Conv = plain(16, 16, 3, 1, 20);
pub(crate) const POINTWISE: Conv = plain(104, 208, 1, 1, 20);
/// So many pixels that our product takes its largest blocks.
pub(crate) const WIDE: Conv = plain(64, 64, 3, 1, 136);

/// Values of a channel at least, where it is normalised: the deviation of fewer may be as small as their rounding.
const VALUES: usize = 16;

/// A convolution with "same" padding, no bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Conv {
    /// Channels of the maps that are its image, side by side.
    pub maps: Maps,
    /// Channels of the result.
    pub c_out: usize,
    /// Side of the kernel.
    pub kernel: usize,
    /// Step.
    pub stride: usize,
    /// Height and width of the image.
    pub input: [usize; 2],
    /// Whether batch normalisation follows, whose statistics our product finds.
    pub normed: bool,
    /// Images of a batch ([`in_batch`](Self::in_batch)).
    pub images: usize,
}

/// One of these, of a square image, that is not normalised.
pub(crate) const fn plain(c_in: usize, c_out: usize, kernel: usize, stride: usize, side: usize) -> Conv {
    Conv { maps: [c_in, 0, 0, 0, 0], c_out, kernel, stride, input: [side; 2], normed: false, images: 1 }
}

impl Conv {
    /// The same in batches of so many images; or of the fewest of which every pass takes the blocks of those, so that what is remembered of one batch holds for others.
    #[must_use]
    pub fn in_batch(self, images: usize) -> Self {
        let classes = |images| [Pass::Forward, Pass::Input, Pass::Weight].map(|pass| self.classes(pass, images));
        let asked = classes(images.max(1));
        Self { images: (1..images).find(|&fewer| classes(fewer) == asked).unwrap_or(images.max(1)), ..self }
    }

    /// The classes of the blocks in which a pass over so many images is computed.
    pub(crate) fn classes(&self, pass: Pass, images: usize) -> Vec<Class> {
        classes_of(pass, self.image_shape(images), self.channels(), self.weight_shape(), &self.config(Lowering::Gemm))
    }

    /// Channels of each of the maps.
    pub(crate) fn channels(&self) -> &[usize] {
        let count = self.maps.iter().take_while(|&&channels| channels > 0).count();
        &self.maps[..count]
    }

    /// Channels of the image.
    pub(crate) fn c_in(&self) -> usize {
        self.maps.iter().sum()
    }

    /// Images that show whether a pass is right: one, unless its channels have too few values to be normalised.
    pub(crate) fn least(&self) -> usize {
        let [height, width] = self.output();
        if self.normed { VALUES.div_ceil((height * width).max(1)) } else { 1 }
    }

    fn config(&self, by: Lowering) -> ConvConfig {
        ConvConfig::new(self.stride, self.kernel / 2, by)
    }

    /// Height and width of the result.
    fn output(&self) -> [usize; 2] {
        self.input.map(|side| (side + self.kernel / 2 * 2).saturating_sub(self.kernel) / self.stride + 1)
    }

    fn image_shape(&self, images: usize) -> [usize; 4] {
        [images, self.c_in(), self.input[0], self.input[1]]
    }

    fn weight_shape(&self) -> [usize; 4] {
        [self.c_out, self.c_in(), self.kernel, self.kernel]
    }

    /// A gradient of the result.
    fn slopes(&self, images: usize, device: &Device) -> Tensor<4> {
        let [height, width] = self.output();
        tensor(6, [images, self.c_out, height, width], device)
    }

    pub(crate) fn input(&self, images: usize, device: &Device) -> Tensor<4> {
        tensor(4, self.image_shape(images), device)
    }

    /// Its maps, each with numbers of its own.
    fn inputs(&self, images: usize, device: &Device) -> Vec<Tensor<4>> {
        let map = |(stream, &channels): (u64, &usize)| tensor(stream, [images, channels, self.input[0], self.input[1]], device);
        [4, 21, 22, 23, 24].into_iter().zip(self.channels()).map(map).collect()
    }

    pub(crate) fn weight(&self, device: &Device) -> Tensor<4> {
        tensor(5, self.weight_shape(), device)
    }

    pub(crate) fn apply(&self, x: Tensor<4>, w: Tensor<4>, by: Lowering) -> Tensor<4> {
        conv2d(x, w, None, self.config(by))
    }

    /// With a bias and SiLU in one pass, as validation and prediction have it.
    pub(crate) fn inferred(&self, device: &Device, by: Lowering) -> Vec<Vec<f32>> {
        let bias = tensor(7, [self.c_out], device);
        vec![numbers(conv2d_silu(self.input(1, device), self.weight(device), Some(bias), self.config(by)))]
    }

    /// A pass over so many images, which are in f16 if asked: the result or, where it is normalised, what becomes of it with the mean and the variance of its
    /// channels; or a gradient of a weighted sum of the result.
    pub(crate) fn run(&self, pass: Pass, images: usize, device: &Device, by: Lowering, half: bool) -> Vec<Vec<f32>> {
        let held = |image: Tensor<4>| if half { image.cast(DType::F16) } else { image };
        let (config, w) = (self.config(by), || self.weight(device));
        let inputs = || self.inputs(images, device).into_iter().map(held).collect();
        match pass {
            Pass::Forward if self.normed => normalised(inputs(), w(), config),
            Pass::Forward => vec![numbers(self.apply(held(self.input(images, device)), w(), by))],
            Pass::Input => {
                let dx = conv2d_data_grad(held(self.slopes(images, device)), w(), self.channels(), self.input, config);
                dx.into_iter().map(numbers).collect()
            }
            Pass::Weight => {
                // It is divided by what an image's gradient in f16 is held too large by (decision 15).
                let dy = self.slopes(images, device);
                let dy = held(if half { dy * HALF_GRADIENTS } else { dy });
                vec![numbers(conv2d_weight_grad(inputs(), dy, [self.kernel; 2], config))]
            }
        }
    }
}

/// A convolution as training has it: normalised by the statistics of its channels, which our product finds as it writes them; and those.
fn normalised(maps: Vec<Tensor<4>>, w: Tensor<4>, config: ConvConfig) -> Vec<Vec<f32>> {
    let ([channels, ..], device) = (w.dims(), w.device());
    let [ones, zeros] = [Tensor::<1>::ones([channels], &device), Tensor::<1>::zeros([channels], &device)];
    // Running statistics that forget at once are those of the batch.
    let step = NormStep { epsilon: 1e-3, silu: true, momentum: 1.0 };
    let y = conv2d_for_norm(maps, w, config);
    let BatchNormed { output, running: [mean, variance] } = batch_norm_silu(y, ones.clone(), zeros.clone(), [zeros, ones], step, None);
    vec![numbers(output), numbers(mean), numbers(variance)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::pattern;
    use bellows_kernels::concat;
    use burn::tensor::TensorData;

    /// The gradient of a weighted sum is linear in the input, so a finite difference of any step is exact up to rounding. So it is in the weight.
    #[test]
    fn gradients_are_those_of_the_forward_pass() {
        let device = Device::flex();
        let weighted = |x: Tensor<4>, w: Tensor<4>| {
            let y = BOTTLENECK.apply(x, w, Lowering::Gemm);
            let seed = tensor(6, y.dims(), &device);
            numbers((y * seed).sum())[0]
        };
        let moved = |stream, shape: [usize; 4]| {
            let mut moved = pattern(stream, shape.iter().product());
            moved[777] += 1.0;
            Tensor::<4>::from_data(TensorData::new(moved, shape), &device)
        };
        let (x, w) = (BOTTLENECK.input(1, &device), BOTTLENECK.weight(&device));
        let before = weighted(x.clone(), w.clone());
        let differences = [weighted(moved(4, [1, 16, 20, 20]), w) - before, weighted(x, moved(5, [16, 16, 3, 3])) - before];
        for (pass, difference) in [Pass::Input, Pass::Weight].into_iter().zip(differences) {
            let gradient = BOTTLENECK.run(pass, 1, &device, Lowering::Gemm, false)[0][777];
            assert!((difference - gradient).abs() < 1e-3, "{pass:?}: {difference} {gradient}");
        }
    }

    #[test]
    fn a_bias_and_silu_follow_where_nothing_is_learnt() {
        let device = Device::flex();
        let plain = BOTTLENECK.run(Pass::Forward, 1, &device, Lowering::Direct, false).remove(0);
        let (bias, inferred) = (pattern(7, 16), BOTTLENECK.inferred(&device, Lowering::Gemm).remove(0));
        for (i, (plain, inferred)) in plain.iter().zip(inferred).enumerate() {
            let z = plain + bias[i / 400];
            assert!((z / (1.0 + (-z).exp()) - inferred).abs() < 1e-4, "{i}: {z} {inferred}");
        }
    }

    #[test]
    fn a_normalised_convolution_tells_mean_and_variance() {
        let (device, conv) = (Device::flex(), Conv { normed: true, ..BOTTLENECK });
        let run = |conv: Conv| conv.run(Pass::Forward, 2, &device, Lowering::Direct, false);
        let (convolved, [output, mean, variance]) = (run(BOTTLENECK).remove(0), <[_; 3]>::try_from(run(conv)).unwrap());
        assert_eq!([output.len(), mean.len(), variance.len()], [convolved.len(), 16, 16]);
        let of_channel = |c: usize| convolved.iter().enumerate().filter(move |(i, _)| i / 400 % 16 == c).map(|(_, v)| f64::from(*v));
        for c in 0..16 {
            let own = of_channel(c).sum::<f64>() / 800.0;
            let spread = of_channel(c).map(|v| (v - own).powi(2)).sum::<f64>() / 799.0;
            assert!((own - f64::from(mean[c])).abs() < 1e-4 && (spread / f64::from(variance[c]) - 1.0).abs() < 1e-4, "channel {c}");
        }
    }

    /// Forward a convolution of maps is that of one image, their gradients are its own cut, and a weight has one gradient of all.
    #[test]
    fn maps_are_an_image_side_by_side() {
        let device = Device::flex();
        let conv = Conv { maps: [7, 9, 0, 0, 0], normed: true, ..BOTTLENECK };
        let run = |conv: Conv, pass| conv.run(pass, 2, &device, Lowering::Direct, false);
        let dx = [conv, Conv { maps: BOTTLENECK.maps, ..conv }].map(|conv| run(conv, Pass::Input));
        assert_eq!(dx[0].iter().map(Vec::len).collect::<Vec<_>>(), [2 * 7 * 400, 2 * 9 * 400]);
        let of_image = |i: usize| [&dx[0][0][i * 2800..][..2800], &dx[0][1][i * 3600..][..3600]].concat();
        assert_eq!([of_image(0), of_image(1)].concat(), dx[1][0]);
        let (x, w) = (concat(conv.inputs(2, &device)), conv.weight(&device));
        let dw = conv2d_weight_grad(vec![x.clone()], conv.slopes(2, &device), [3; 2], conv.config(Lowering::Direct));
        assert_eq!(run(conv, Pass::Weight), [numbers(dw)]);
        assert_eq!(run(conv, Pass::Forward), normalised(vec![x], w, conv.config(Lowering::Direct)));
    }

    /// 12 images of 1,600 pixels are the first with 144 blocks of 128, and 29 the first whose weight's gradient has as many, in parts.
    #[test]
    fn a_batch_has_the_fewest_images_with_its_blocks() {
        let images = |conv: Conv, batch| conv.in_batch(batch).images;
        let down = plain(64, 64, 3, 2, 80);
        assert_eq!([0, 1, 11, 12, 16, 64].map(|batch| images(down, batch)), [1, 1, 1, 12, 12, 29]);
        // A channel of a single pixel has no deviation.
        let deep = Conv { normed: true, ..plain(16, 16, 3, 2, 2) };
        assert_eq!([deep.least(), Conv { normed: false, ..deep }.least(), Conv { normed: true, ..STEM }.least()], [16, 1, 1]);
    }
}
