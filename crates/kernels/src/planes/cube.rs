//! The plane operations on CubeCL devices: f32, f16 and bf16 through our kernels, everything else through Burn's own operations.
//!
//! What comes out lies in memory as what goes in, channels before pixels or after. Both are `[outer, H, W, inner]`, with N C planes of one
//! number to a pixel or N planes of C, so one kernel serves both. Gradients gather what they add, so nothing depends on which thread came
//! first, and they add in the order of the processor's version. Sums of two tensors are Burn's: one launch whatever their orders are, and told of here.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{Shape, Slice, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::cube_kernels::{
    PlaneLaunch, RunsLaunch, add_runs_kernel, double_grad_kernel, double_kernel, extract_kernel, first_maximum_kernel,
    max_pool_grad_kernel, max_pool_kernel, of_bytes_kernel, pad_kernel,
};
use super::{HALF_GRADIENTS, Parts, PlaneOps, portable};
use crate::cube::geometry::dims4;
use crate::cube::join::{join, most};
use crate::cube::launch::{covers, covers_images, launch, true_gradients};
use crate::cube::pixels::empty;
use crate::cube::places::place_of_result;
use crate::cube::sums::sums_of_channels;
use crate::cube::trace::note;
use crate::operands::Maybe;
use crate::shapes::{expect, within};

/// A tensor `[N, C, H, W]` whose numbers lie in memory in that order, or with the channels last.
struct Ordered {
    tensor: CubeTensor,
    dims: [usize; 4],
    channels_last: bool,
}

/// Whether the channels of a pixel are neighbours, rather than the pixels of a channel.
fn channels_last(x: &CubeTensor) -> bool {
    let strides = x.meta.strides();
    strides[1] < strides[3]
}

impl Ordered {
    /// x in its own order.
    fn new(x: CubeTensor) -> Self {
        let last = channels_last(&x);
        Self::like(x, last)
    }

    fn like(x: CubeTensor, channels_last: bool) -> Self {
        let dims = dims4(&x);
        let x = if channels_last { CubeBackend::float_permute(x, &[0, 2, 3, 1]) } else { x };
        Self { tensor: into_contiguous(x), dims, channels_last }
    }

    /// An uninitialised one in the same order.
    fn empty(&self, dims @ [n, c, h, w]: [usize; 4]) -> Self {
        let shape = if self.channels_last { [n, h, w, c] } else { dims };
        Self { tensor: empty(&self.tensor, shape, self.tensor.dtype), dims, channels_last: self.channels_last }
    }

    /// By its name: `[N, C, H, W]` of any order.
    fn named(self) -> CubeTensor {
        if self.channels_last { CubeBackend::float_permute(self.tensor, &[0, 3, 1, 2]) } else { self.tensor }
    }

    fn len(&self) -> usize {
        self.dims.iter().product()
    }

    fn plane(&self) -> PlaneLaunch {
        let [_, c, height, width] = self.dims;
        PlaneLaunch::new(height, width, if self.channels_last { c } else { 1 })
    }

    /// These channels, from `start` on, within those of `whole`.
    fn runs(&self, whole: &Self, start: usize) -> RunsLaunch {
        let [_, c, h, w] = self.dims;
        let pixels = if self.channels_last { 1 } else { h * w };
        RunsLaunch::new(c * pixels, whole.dims[1] * pixels, start * pixels)
    }
}

/// What the kernels compute with.
fn kind(x: &Ordered) -> cubecl::prelude::ElemType {
    dtype_to_storage_type(x.tensor.dtype)
}

/// Whether the kernels take these, which are put into one.
fn same_type(parts: &[CubeTensor]) -> bool {
    covers_images(&parts.iter().collect::<Vec<_>>(), [])
}

/// Whether channels `start .. start + len` of x can be had without moving a number: memory is cut at multiples of the device's alignment.
fn is_view(x: &CubeTensor, start: usize, len: usize) -> bool {
    let aligned =
        |channels: usize| ((channels * x.meta.strides()[1] * x.dtype.size()) as u64).is_multiple_of(x.client.properties().memory.alignment);
    aligned(start) && aligned(x.meta.shape()[1] - start - len)
}

impl PlaneOps for CubeBackend {
    fn of_bytes(words: CubeTensor, [n, own, h, w]: [usize; 4], channels: usize) -> CubeTensor {
        let (plane, y) = (h * w, empty(&words, [n, channels, h, w], DType::F32));
        let len = n * channels * plane;
        if len == 0 {
            return y;
        }
        // Not every device divides to the last bit.
        let table: Vec<f32> = (0..=255u8).map(|byte| f32::from(byte) / 255.0).collect();
        let table = Self::float_from_data(TensorData::new(table, [256]), &words.device);
        let read = (n * own * plane).div_ceil(4);
        launch!(of_bytes_kernel, len, [(words, read), (table, 256), (y, len)], plane, own, channels);
        y
    }

    fn total(x: CubeTensor) -> CubeTensor {
        let len = x.meta.shape().num_elements();
        if !covers([&x]) {
            return Self::float_sum(x);
        }
        let sum = empty(&x, [1], DType::F32);
        sums_of_channels(Self::float_reshape(x, Shape::new([1, 1, 1, len])), 1.0, sum)
    }

    fn bias_grad(dy: CubeTensor, bias: Maybe<Self>) -> CubeTensor {
        if !covers_images(&[&dy], []) {
            return portable::bias_grad::<Self>(dy, HALF_GRADIENTS);
        }
        let ([_, channels, ..], scale) = (dims4(&dy), true_gradients(dy.dtype));
        let sums = bias.into_option().map_or_else(|| empty(&dy, [channels], DType::F32), |bias| place_of_result(&bias, [channels]));
        sums_of_channels(dy, scale, sums)
    }

    fn concat_channels(parts: Parts<Self>) -> CubeTensor {
        if parts.0.is_empty() || !same_type(&parts.0) {
            return Self::float_cat(parts.0, 1);
        }
        let last = parts.0.iter().all(channels_last);
        let parts: Vec<Ordered> = parts.0.into_iter().map(|part| Ordered::like(part, last)).collect();
        let [n, _, h, w] = parts[0].dims;
        let whole = parts[0].empty([n, parts.iter().map(|part| part.dims[1]).sum(), h, w]);
        // A row is an image's channels, or a pixel's.
        let pixels = if last { 1 } else { h * w };
        let most = most(&whole.tensor);
        let mut start = 0;
        for parts in parts.chunks(most) {
            let first = start;
            let mut starts = Vec::new();
            for part in parts {
                starts.push(start);
                start += part.dims[1] * pixels;
            }
            let tensors: Vec<CubeTensor> = parts.iter().map(|part| part.tensor.clone()).collect();
            join(&tensors, &starts, &whole.tensor, [first, start], whole.dims[1] * pixels);
        }
        whole.named()
    }

    fn add(a: CubeTensor, b: CubeTensor) -> CubeTensor {
        // Of nothing nothing is launched.
        if a.meta.shape().num_elements() > 0 {
            // The sum is as large as either.
            note("sum of two", [&a, &b, &a], 0);
        }
        Self::float_add(a, b)
    }

    fn slice_channels(x: CubeTensor, start: usize, len: usize) -> CubeTensor {
        if len == 0 || !covers_images(&[&x], []) || is_view(&x, start, len) {
            return Self::float_slice(x, &[Slice::full(), Slice::from(start..start + len)]);
        }
        let whole = Ordered::new(x);
        let [n, _, h, w] = whole.dims;
        let part = whole.empty([n, len, h, w]);
        within("channels", &(start..start + len), whole.dims[1]);
        launch!(
            extract_kernel,
            part.len(),
            [(whole.tensor, whole.len(), part.tensor.dtype), (part.tensor, part.len(), part.tensor.dtype)],
            part.runs(&whole, start),
            kind(&part)
        );
        part.named()
    }

    fn pad_channels(x: CubeTensor, before: usize, total: usize) -> CubeTensor {
        if !covers_images(&[&x], []) {
            return portable::pad_channels::<Self>(x, before, total);
        }
        let part = Ordered::new(x);
        let [n, _, h, w] = part.dims;
        let whole = part.empty([n, total, h, w]);
        launch!(
            pad_kernel,
            whole.len(),
            [(part.tensor, part.len(), part.tensor.dtype), (whole.tensor, whole.len(), part.tensor.dtype)],
            part.runs(&whole, before),
            kind(&part)
        );
        whole.named()
    }

    fn add_to_channels(whole: CubeTensor, x: CubeTensor, before: usize) -> CubeTensor {
        if !covers_images(&[&whole, &x], []) {
            return portable::add_to_channels::<Self>(whole, x, before);
        }
        let [n, c, h, w] = dims4(&whole);
        let channels = dims4(&x)[1];
        expect("a part", dims4(&x), [n, channels, h, w]);
        within("channels", &(before..before + channels), c);
        let whole = Ordered::new(whole);
        let part = Ordered::like(x, whole.channels_last);
        // What others read too is copied; rows of Burn's copy may have room behind them.
        let whole = if whole.tensor.can_mut() { whole } else { Ordered { tensor: into_contiguous(whole.tensor.copy()), ..whole } };
        let dtype = part.tensor.dtype;
        // The whole is told of once. Half of it is read and written where half of the channels are added to, as in a detector.
        launch!(
            add_runs_kernel,
            part.len(),
            [(part.tensor, part.len(), dtype), (whole.tensor, whole.len(), dtype)],
            part.runs(&whole, before),
            kind(&part)
        );
        whole.named()
    }

    fn max_pool_same(x: CubeTensor, kernel: usize) -> CubeTensor {
        if !covers_images(&[&x], []) {
            return portable::max_pool_same::<Self>(x, kernel);
        }
        let x = Ordered::new(x);
        let (y, len) = (x.empty(x.dims), x.len());
        launch!(max_pool_kernel, len, [(x.tensor, len, x.tensor.dtype), (y.tensor, len, x.tensor.dtype)], x.plane(), kernel / 2, kind(&x));
        y.named()
    }

    fn max_pool_same_grad(x: CubeTensor, dy: CubeTensor, kernel: usize) -> CubeTensor {
        if !covers_images(&[&x, &dy], []) {
            return portable::max_pool_same_grad::<Self>(x, dy, kernel);
        }
        let x = Ordered::new(x);
        let (dy, dx, len) = (Ordered::like(dy, x.channels_last), x.empty(x.dims), x.len());
        expect("dy", dy.dims, x.dims);
        let firsts = empty(&x.tensor, [len], DType::U32);
        launch!(first_maximum_kernel, len, [(x.tensor, len, x.tensor.dtype), (firsts, len)], x.plane(), kernel / 2, kind(&x));
        launch!(
            max_pool_grad_kernel,
            len,
            [(firsts, len), (dy.tensor, len, x.tensor.dtype), (dx.tensor, len, x.tensor.dtype)],
            x.plane(),
            kernel / 2,
            kind(&x)
        );
        dx.named()
    }

    fn double(x: CubeTensor) -> CubeTensor {
        if !covers_images(&[&x], []) {
            return portable::double::<Self>(x);
        }
        let x = Ordered::new(x);
        let [n, c, h, w] = x.dims;
        let y = x.empty([n, c, 2 * h, 2 * w]);
        launch!(double_kernel, y.len(), [(x.tensor, x.len(), x.tensor.dtype), (y.tensor, y.len(), x.tensor.dtype)], x.plane(), kind(&x));
        y.named()
    }

    fn double_grad(dy: CubeTensor) -> CubeTensor {
        if !covers_images(&[&dy], []) {
            return portable::double_grad::<Self>(dy);
        }
        let dy = Ordered::new(dy);
        let [n, c, h, w] = dy.dims;
        let dx = dy.empty([n, c, h / 2, w / 2]);
        launch!(
            double_grad_kernel,
            dx.len(),
            [(dy.tensor, 4 * dx.len(), dx.tensor.dtype), (dx.tensor, dx.len(), dx.tensor.dtype)],
            dx.plane(),
            kind(&dx)
        );
        dx.named()
    }
}
