//! What happens between the convolutions: joining and cutting channels, adding, pooling, doubling.
//!
//! None of it computes much, so all of its cost is memory: Burn's own versions write index tensors, zero what they are about to
//! overwrite, and take fresh pages each time. These move each value once, into recycled memory, and keep nothing that can be had
//! again: the maximum's place is found anew from the input in the backward pass.

mod autodiff;
mod cube;
mod cube_kernels;
pub(crate) mod kernels;
mod parts;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, FloatDType, Int, Slice, Tensor, TensorData};
use burn_flex::FlexTensor;
use rayon::prelude::*;

pub use parts::Parts;

use crate::buffers::{all_f32, changed, contiguous, values, written};
use crate::operands::Maybe;
use crate::shapes;

/// Operations on whole planes of `[N, C, H, W]`.
#[backend_extension(Flex, Cube, Autodiff)]
pub trait PlaneOps: Backend {
    /// [`images`] of bytes that lie four to a word.
    fn of_bytes(words: IntTensor<Self>, bytes: [usize; 4], channels: usize) -> Float<Self>;

    /// The parts side by side along the channels.
    fn concat_channels(#[extension_type] parts: Parts<Self>) -> Float<Self>;

    /// `a + b`, of one shape.
    fn add(a: Float<Self>, b: Float<Self>) -> Float<Self>;

    /// Channels `start .. start + len`.
    fn slice_channels(x: Float<Self>, start: usize, len: usize) -> Float<Self>;

    /// x as the channels from `before` on of `total`, zeros around it: the gradient of [`slice_channels`](Self::slice_channels).
    fn pad_channels(x: Float<Self>, before: usize, total: usize) -> Float<Self> {
        portable::pad_channels::<Self>(x, before, total)
    }

    /// x added to the channels of `whole` from `before` on.
    fn add_to_channels(whole: Float<Self>, x: Float<Self>, before: usize) -> Float<Self> {
        portable::add_to_channels::<Self>(whole, x, before)
    }

    /// Maximum over the `kernel` x `kernel` window around each pixel (odd kernel, stride 1, same size).
    fn max_pool_same(x: Float<Self>, kernel: usize) -> Float<Self>;

    /// Its gradient: each dy goes to the first maximum of its window, row by row.
    fn max_pool_same_grad(x: Float<Self>, dy: Float<Self>, kernel: usize) -> Float<Self> {
        portable::max_pool_same_grad::<Self>(x, dy, kernel)
    }

    /// x in f32. See [`HALF_GRADIENTS`] for its gradient.
    fn widen(x: Float<Self>) -> Float<Self> {
        Self::float_cast(x, FloatDType::F32)
    }

    /// The sum of all numbers, `[1]`.
    fn total(x: Float<Self>) -> Float<Self> {
        Self::float_sum(x)
    }

    /// The gradient of a bias `[C]`, f32: the sums of dy over (N, H, W), which in half precision is [`HALF_GRADIENTS`] times too large. If `bias` lies in an
    /// [arena](mod@crate::arena), it may have a place.
    fn bias_grad(dy: Float<Self>, #[extension_type] bias: Maybe<Self>) -> Float<Self> {
        drop(bias);
        portable::bias_grad::<Self>(dy, HALF_GRADIENTS)
    }

    /// Each pixel becomes 2 x 2.
    fn double(x: Float<Self>) -> Float<Self>;

    /// The gradient of [`double`](Self::double): each pixel is the sum of its four.
    fn double_grad(dy: Float<Self>) -> Float<Self> {
        portable::double_grad::<Self>(dy)
    }
}

/// Images of bytes, `[N, C, H, W]`, as numbers from 0 to 1, `[N, channels, H, W]`: the last of their channels stands for those that they lack, so that a gray one
/// fills all. What goes to the device are the bytes.
///
/// # Panics
/// If there are not as many bytes as the shape says, or an image has no channel.
pub fn images(bytes: &[u8], shape: [usize; 4], channels: usize, device: &Device) -> Tensor<4> {
    assert!(bytes.len() == shape.iter().product::<usize>() && shape[1] > 0, "{} bytes of images {shape:?}", bytes.len());
    let mut words = vec![0i32; bytes.len().div_ceil(4)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    let len = words.len();
    let words = Tensor::<1, Int>::from_data(TensorData::new(words, [len]), (device, DType::I32));
    Tensor::from_dispatch(Dispatch::of_bytes(words.into_dispatch(), shape, channels))
}

/// Which plane of images of `own` channels is plane `i` of theirs with `channels`.
fn source(i: usize, own: usize, channels: usize) -> usize {
    i / channels * own + (i % channels).min(own - 1)
}

/// The tensors, at least one, side by side along the channels: `[N, C1, H, W]`, `[N, C2, H, W]`, ... to `[N, C1 + C2 + ..., H, W]`.
pub fn concat(parts: Vec<Tensor<4>>) -> Tensor<4> {
    shapes::joined(&parts);
    Tensor::from_dispatch(join::<Dispatch>(parts.into_iter().map(Tensor::into_dispatch).collect()))
}

/// The tensor that the parts make together.
pub(crate) fn join<B: PlaneOps>(parts: Vec<Float<B>>) -> Float<B> {
    match <[_; 1]>::try_from(parts) {
        Ok([alone]) => alone,
        Err(parts) => B::concat_channels(Parts(parts)),
    }
}

/// The parts of so many channels that make `whole` together.
pub(crate) fn cut<B: PlaneOps>(whole: Float<B>, channels: &[usize]) -> Vec<Float<B>> {
    if channels.len() == 1 {
        return vec![whole];
    }
    let mut start = 0;
    let part = |&channels: &usize| {
        start += channels;
        B::slice_channels(whole.clone(), start - channels, channels)
    };
    channels.iter().map(part).collect()
}

/// The sum of all numbers of x, `[1]`. Burn's own sum tunes itself on a GPU, for which it measures the card: seconds of every process.
pub fn total(x: Tensor<1>) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::total(x.into_dispatch()))
}

/// `x + y`, both `[N, C, H, W]`.
pub fn add(x: Tensor<4>, y: Tensor<4>) -> Tensor<4> {
    shapes::expect("y", y.dims(), x.dims());
    Tensor::from_dispatch(Dispatch::add(x.into_dispatch(), y.into_dispatch()))
}

/// The parts, with `held` added to those that are `of`.
pub(crate) fn added<B: PlaneOps>(mut parts: Parts<B>, held: Parts<B>, of: Vec<usize>) -> Parts<B> {
    for (held, part) in held.0.into_iter().zip(of) {
        let own = parts.0.remove(part);
        parts.0.insert(part, B::add(own, held));
    }
    parts
}

/// Channels `start .. start + len` of `[N, C, H, W]`.
pub fn slice_channels(x: Tensor<4>, start: usize, len: usize) -> Tensor<4> {
    shapes::within("channels", &(start..start.saturating_add(len)), x.dims()[1]);
    Tensor::from_dispatch(Dispatch::slice_channels(x.into_dispatch(), start, len))
}

/// Maximum over the `kernel` x `kernel` window around each pixel, `[N, C, H, W]` to the same; kernel odd.
pub fn max_pool_same(x: Tensor<4>, kernel: usize) -> Tensor<4> {
    assert!(kernel % 2 == 1, "a pooling window of {kernel}");
    Tensor::from_dispatch(Dispatch::max_pool_same(x.into_dispatch(), kernel))
}

/// What gradients of images in half precision are multiplied by, in memory: f16 has nothing between zero and 6e-8. It begins where images become
/// f32 again ([`widen`]), and ends in the gradients of parameters, which are f32 and true.
pub const HALF_GRADIENTS: f32 = 1024.0;

/// x in f32, differentiable: the last step of a network whose images are in half precision. What is f32 stays as it is.
pub fn widen<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F32 { x } else { Tensor::from_dispatch(Dispatch::widen(x.into_dispatch())) }
}

/// Nearest-neighbour upsampling by two, `[N, C, H, W]` to `[N, C, 2H, 2W]`.
pub fn upsample2(x: Tensor<4>) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::double(x.into_dispatch()))
}

/// `[N, C, H, W]` of a tensor that is one of ours: f32 and not empty.
fn ours(x: &FlexTensor) -> Option<[usize; 4]> {
    (all_f32([x]) && x.shape().num_elements() > 0).then(|| x.shape().dims())
}

/// A tensor of `dims` that `write` makes from the values of `x`, whose memory is recycled.
fn map(x: FlexTensor, dims: [usize; 4], write: impl FnOnce(&[f32], &mut [f32])) -> FlexTensor {
    let x = contiguous(x);
    written(dims, |out| write(values(&x), out))
}

impl PlaneOps for Flex {
    fn of_bytes(words: FlexTensor, [n, own, h, w]: [usize; 4], channels: usize) -> FlexTensor {
        let (plane, bytes) = (h * w, words.bytes());
        let fill = |(i, out): (usize, &mut [f32])| {
            let bytes = &bytes[source(i, own, channels) * plane..][..plane];
            out.iter_mut().zip(bytes).for_each(|(v, &byte)| *v = f32::from(byte) / 255.0);
        };
        written([n, channels, h, w], |out| out.par_chunks_mut(plane.max(1)).enumerate().for_each(fill))
    }

    fn concat_channels(parts: Parts<Self>) -> FlexTensor {
        let Some(dims) = parts.0.iter().map(ours).collect::<Option<Vec<_>>>() else { return Self::float_cat(parts.0, 1) };
        let parts: Vec<FlexTensor> = parts.0.into_iter().map(contiguous).collect();
        let [n, _, h, w] = dims[0];
        let total = dims.iter().map(|d| d[1]).sum();
        let slices: Vec<_> = parts.iter().zip(&dims).map(|(part, d)| (values(part), d[1] * h * w)).collect();
        written([n, total, h, w], |out| kernels::concat(&slices, out))
    }

    fn add(a: FlexTensor, b: FlexTensor) -> FlexTensor {
        let true = (all_f32([&a, &b]) && a.shape() == b.shape() && a.shape().num_elements() != 0) else { return Self::float_add(a, b) };
        // In the memory of the one that nobody else holds, if there is one.
        let (a, b) = if a.is_unique() { (a, b) } else { (b, a) };
        let b = contiguous(b);
        changed(a, |sum| kernels::add(sum, values(&b)))
    }

    fn slice_channels(x: FlexTensor, start: usize, len: usize) -> FlexTensor {
        let Some([n, _, h, w]) = ours(&x) else { return Self::float_slice(x, &[Slice::full(), Slice::from(start..start + len)]) };
        map(x, [n, len, h, w], |x, out| kernels::slice(x, n, start * h * w, out))
    }

    fn pad_channels(x: FlexTensor, before: usize, total: usize) -> FlexTensor {
        let Some([n, _, h, w]) = ours(&x) else { return portable::pad_channels::<Self>(x, before, total) };
        map(x, [n, total, h, w], |x, out| kernels::pad(x, n, before * h * w, out))
    }

    fn add_to_channels(whole: FlexTensor, x: FlexTensor, before: usize) -> FlexTensor {
        let (Some([n, _, h, w]), Some(_)) = (ours(&whole), ours(&x)) else {
            return portable::add_to_channels::<Self>(whole, x, before);
        };
        let x = contiguous(x);
        changed(whole, |sum| kernels::add_to(values(&x), n, before * h * w, sum))
    }

    fn max_pool_same(x: FlexTensor, kernel: usize) -> FlexTensor {
        let Some(dims @ [.., h, w]) = ours(&x) else { return portable::max_pool_same::<Self>(x, kernel) };
        map(x, dims, |x, out| kernels::max_pool(x, [h, w], kernel, out))
    }

    fn max_pool_same_grad(x: FlexTensor, dy: FlexTensor, kernel: usize) -> FlexTensor {
        let Some(dims @ [.., h, w]) = ours(&x) else { return portable::max_pool_same_grad::<Self>(x, dy, kernel) };
        let dy = contiguous(dy);
        map(x, dims, |x, dx| kernels::max_pool_grad(x, values(&dy), [h, w], kernel, dx))
    }

    fn double(x: FlexTensor) -> FlexTensor {
        let Some([n, c, h, w]) = ours(&x) else { return portable::double::<Self>(x) };
        map(x, [n, c, 2 * h, 2 * w], |x, out| kernels::double(x, [h, w], out))
    }

    fn double_grad(dy: FlexTensor) -> FlexTensor {
        let Some([n, c, h, w]) = ours(&dy) else { return portable::double_grad::<Self>(dy) };
        map(dy, [n, c, h / 2, w / 2], |dy, dx| kernels::double_grad(dy, [h / 2, w / 2], dx))
    }
}
