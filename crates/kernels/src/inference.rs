//! The layers of a network on the processor's memory, for inference.
//!
//! Of one image, `[C, H, W]`, a range of channels is a slice: whoever plans a network's memory has results written where they will be read, and
//! neither concatenates nor cuts. Weights are packed or transformed once. The results are, to the bit, those of the operations on tensors.

use std::fmt;

use burn::backend::{BackendTensor, DispatchTensor, DispatchTensorKind};
use burn::tensor::{DType, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::buffers::{contiguous, owned, take, tensor, values};
use crate::cpu::{ConvShape, Epilogue, Prepared};
use crate::operands::ConvConfig;
use crate::planes::kernels;
use crate::shapes;

/// A tensor of f32 without gradients in the processor's memory.
fn flex<const D: usize>(x: Tensor<D>) -> Option<FlexTensor> {
    match x.into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(x)) if x.dtype() == DType::F32 => Some(x),
        _ => None,
    }
}

/// Whether [`image_by_image`] takes such a tensor: f32 on the processor, without gradients.
pub fn applies(x: &Tensor<4>) -> bool {
    flex(x.clone()).is_some()
}

/// Calls `pass` for each image of `[N, C, H, W]`, f32 on the processor, for several at once where there are threads, with its own slice of the images,
/// which it may write over, and its own of every output, which it must fill; returns the outputs, `[N]` and then the dimensions that are given of each.
pub fn image_by_image(images: Tensor<4>, outputs: &[[usize; 3]], pass: impl Fn(Vec<&mut [f32]>) + Send + Sync) -> Vec<Tensor<4>> {
    let autodiff = images.clone().into_dispatch().autodiff;
    let dims @ [n, ..] = images.dims();
    let mut images =
        flex(images).map(|images| owned(contiguous(images))).unwrap_or_else(|| panic!("images that are not f32 on the processor"));
    let mut results: Vec<Vec<f32>> = outputs.iter().map(|dims| take(n * dims.iter().product::<usize>())).collect();
    let mut parts: Vec<Vec<&mut [f32]>> = (0..n).map(|_| Vec::new()).collect();
    for all in [&mut images].into_iter().chain(&mut results) {
        let (len, mut rest) = (all.len() / n.max(1), all.as_mut_slice());
        // Not in chunks, of which a map without values has none: every image has a slice of each.
        parts.iter_mut().for_each(|parts| parts.extend(rest.split_off_mut(..len)));
    }
    parts.into_par_iter().with_max_len(1).for_each(pass);
    // Its memory goes back to where the next images come from.
    drop(tensor(images, dims));
    let result = |(values, &[c, h, w]): (_, &[usize; 3])| {
        let kind = DispatchTensorKind::Flex(BackendTensor::Float(tensor(values, [n, c, h, w])));
        Tensor::from_dispatch(DispatchTensor { kind, autodiff })
    };
    results.into_iter().zip(outputs).map(result).collect()
}

/// A convolution with bias and, if asked for, SiLU, whose weights are prepared.
pub struct Convolution {
    /// Of images whose size is not known yet.
    shape: ConvShape,
    weights: Prepared,
    bias: Option<Vec<f32>>,
    silu: bool,
}

impl fmt::Debug for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Convolution").field("shape", &self.shape).field("silu", &self.silu).finish_non_exhaustive()
    }
}

impl Convolution {
    /// Of a weight `[Co, Ci, Kh, Kw]` and a bias `[Co]`. None where the convolution is not our kernels': on another device, of another type, in groups, with
    /// dilation, or where the lowering is one of Burn's own.
    pub fn new(weight: Tensor<4>, bias: Option<Tensor<1>>, config: &ConvConfig, silu: bool) -> Option<Self> {
        let precision = config.lowering.precision().filter(|_| config.groups == 1 && config.dilation == [1; 2])?;
        let dims @ [co, ci, ..] = weight.dims();
        let host = |x: FlexTensor| values(&contiguous(x)).to_vec();
        bias.iter().for_each(|bias| shapes::expect("bias", bias.dims(), [co]));
        let bias = if let Some(bias) = bias { Some(host(flex(bias)?)) } else { None };
        let shape = ConvShape::new([1, ci, 0, 0], dims, config.stride, config.padding);
        let weights = Prepared::new(&shape, config.lowering, precision, &host(flex(weight)?));
        Some(Self { shape, weights, bias, silu })
    }

    /// x `[Ci, H, W]` of `size` = (H, W) to out `[Co, Oh, Ow]`.
    pub fn run(&self, [height, width]: [usize; 2], x: &[f32], out: &mut [f32]) {
        let shape = ConvShape { height, width, ..self.shape };
        self.weights.forward(&shape, &[x], Epilogue { bias: self.bias.as_deref(), silu: self.silu }, out);
    }
}

/// `sum += x`.
pub fn add(x: &[f32], sum: &mut [f32]) {
    assert_eq!(x.len(), sum.len(), "lengths of a sum");
    kernels::add(sum, x);
}

/// [`max_pool_same`](crate::max_pool_same) of planes of `size` = (H, W).
pub fn max_pool(size: [usize; 2], kernel: usize, x: &[f32], out: &mut [f32]) {
    assert!(kernel % 2 == 1, "a pooling window of {kernel}");
    assert!(x.len() == out.len() && x.len().is_multiple_of(size[0] * size[1]), "{} to {} values, planes of {size:?}", x.len(), out.len());
    kernels::max_pool(x, size, kernel, out);
}

/// [`upsample2`](crate::upsample2) of planes of `size` = (H, W).
pub fn double(size: [usize; 2], x: &[f32], out: &mut [f32]) {
    let fits = 4 * x.len() == out.len() && x.len().is_multiple_of(size[0] * size[1]);
    assert!(fits, "{} to {} values, planes of {size:?}", x.len(), out.len());
    kernels::double(x, size, out);
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Outputs have their places whatever is empty beside them.
    #[test]
    fn every_image_has_a_slice_of_each_map() {
        for shape in [[3usize, 2, 1, 2], [3, 0, 4, 4], [3, 2, 0, 5], [0, 2, 3, 3]] {
            let images = Tensor::<4>::ones(shape, &Device::flex());
            let all = image_by_image(images, &[[2, 0, 7], [1, 1, 2]], |mut maps| {
                assert_eq!(maps.iter().map(|map| map.len()).collect::<Vec<_>>(), [shape[1..].iter().product::<usize>(), 0, 2]);
                maps[2].fill(4.0);
            });
            assert_eq!([all[0].dims(), all[1].dims()], [[shape[0], 2, 0, 7], [shape[0], 1, 1, 2]]);
            assert_eq!(all[1].clone().try_to_vec_as::<f32>().unwrap(), vec![4.0; 2 * shape[0]], "{shape:?}");
        }
    }
}
