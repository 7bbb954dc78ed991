//! The plane operations on Flex: f32 through our loops and recycled memory, everything else through Burn's own.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Slice;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{Parts, PlaneOps, kernels, portable, source};
use crate::buffers::{all_f32, changed, contiguous, values, written};

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
