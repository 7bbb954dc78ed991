//! Tensors on a CubeCL device as the kernels take them.

use super::geometry::dims4;
use super::trace::note_written;
use crate::shapes::within;
use burn::backend::DType;
use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, zeros_client};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::TensorArg;

/// An uninitialised contiguous tensor next to `like`.
pub(crate) fn empty<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// A contiguous tensor of zeros next to `like`.
pub(crate) fn zeros<const D: usize>(like: &CubeTensor, shape: [usize; D], dtype: DType) -> CubeTensor {
    zeros_client(like.client.clone(), like.device.clone(), Shape::new(shape), dtype)
}

/// An uninitialised contiguous tensor of the type and shape of `x`.
pub(crate) fn like(x: &CubeTensor) -> CubeTensor {
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), x.meta.shape().clone(), x.dtype)
}

/// The tensor that replaces the contiguous `old`, in its memory if nobody else holds that, and the argument that writes it. `position` is
/// old's among the kernel's arguments. Its bytes are booked on the thread's next launch, which is to be the one that writes it.
pub(crate) fn replacement(old: &CubeTensor, position: usize) -> (CubeTensor, TensorArg) {
    note_written(old);
    if old.can_mut() {
        return (old.clone(), old.as_tensor_alias(position));
    }
    let new = like(old);
    (new.clone(), new.into_tensor_arg())
}

/// The values `start .. start + len` of a contiguous tensor, in its memory.
pub(crate) fn view(whole: &CubeTensor, start: usize, len: usize) -> CubeTensor {
    let size = whole.dtype.size() as u64;
    // Memory may be longer than the tensor asked for.
    let used = whole.handle.size_in_used();
    within("numbers", &(start..start + len), (used / size) as usize);
    let behind = used - (start + len) as u64 * size;
    let handle = whole.handle.clone().offset_start(start as u64 * size).offset_end(behind);
    CubeTensor::new_contiguous(whole.client.clone(), whole.device.clone(), Shape::new([len]), handle, whole.dtype)
}

/// An image tensor `[n, c, h, w]` whose pixels are one axis of even steps.
pub(super) struct Pixels {
    pub(super) tensor: CubeTensor,
    pub(super) image: usize,
    pub(super) channel: usize,
    pub(super) row: usize,
    pub(super) pixel: usize,
}

impl Pixels {
    /// The tensor in place if it is like that, else a copy in order.
    pub(super) fn new(tensor: CubeTensor) -> Self {
        let [_, _, height, width] = dims4(&tensor);
        let even = |tensor: &CubeTensor| {
            let strides = tensor.meta.strides();
            !tensor.meta.is_tiled() && (height == 1 || width == 1 || strides[2] == width * strides[3])
        };
        let tensor = if even(&tensor) { tensor } else { into_contiguous(tensor) };
        let strides = tensor.meta.strides();
        // An axis of length 1 has any stride.
        let pixel = if width == 1 { strides[2] } else { strides[3] };
        let row = if height == 1 { width * pixel } else { strides[2] };
        let (image, channel) = (strides[0], strides[1]);
        Self { image, channel, row, pixel, tensor }
    }
}
