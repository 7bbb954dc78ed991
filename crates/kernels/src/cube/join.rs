//! Tensors put side by side, as many to a launch as a device binds.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{UNITS, address_type, check_reach, grid};
use super::trace::note;

/// Most tensors to a launch: with the result and the launch's numbers what a device of no great age binds.
const MOST: usize = 14;

/// Columns `first .. first + width` of `out`, rows of `stride`, from parts with rows of `lens` that begin at the columns `starts`; zero where no part is. (Memory
/// may be longer than its tensor, and a slice of it is as long as memory.)
///
/// # Safety
/// No index is checked: `out` must have the last of these columns in its last row, and each part as many rows of its own.
#[cube(launch_unchecked, address_type = "dynamic")]
fn join_kernel<E: Float>(
    parts: &Sequence<OwnedTensor<E>>,
    starts: &Sequence<usize>,
    lens: &Sequence<usize>,
    out: &mut Tensor<E>,
    first: usize,
    width: usize,
    stride: usize,
    #[define(E)] _type: ElemType,
) {
    let rows = out.len() / stride;
    let i = ABSOLUTE_POS;
    if i >= rows * width {
        terminate!();
    }
    let row = i / width;
    let column = first + i % width;
    let mut value = E::cast_from(0.0f32);
    #[unroll]
    for p in 0..comptime![parts.len()] {
        let part = parts.index(p).as_slice();
        let start = *starts.index(p);
        let len = *lens.index(p);
        if column >= start && column < start + len {
            value = part[row * len + column - start];
        }
    }
    out[row * stride + column] = value;
}

/// How many tensors of such a device go into a launch of [`join`].
pub(crate) fn most(like: &CubeTensor) -> usize {
    MOST.min((like.client.properties().hardware.max_bindings as usize).saturating_sub(2)).max(1)
}

/// Writes columns `first .. end` of `out`, whose rows are `stride` long: those of the contiguous `parts`, of its type, from `starts` on, and zeros.
#[expect(unsafe_code, reason = "see SAFETY")]
pub(crate) fn join(parts: &[CubeTensor], starts: &[usize], out: &CubeTensor, [first, end]: [usize; 2], stride: usize) {
    let rows = out.meta.shape().num_elements() / stride;
    let lens = parts.iter().map(|part| part.meta.shape().num_elements() / rows);
    let address = parts.iter().map(CubeTensor::required_address_type).max().unwrap_or_default();
    check_reach("join_kernel", [out], [rows.saturating_sub(1) * stride + end], [out.dtype]);
    for (part, len) in parts.iter().zip(lens.clone()) {
        check_reach("join_kernel", [part], [rows * len], [out.dtype]);
    }
    note("join_kernel", parts.iter().chain([out]), 0);
    // SAFETY: `check_reach` has found the last number that is written, and the last of each part.
    unsafe {
        join_kernel::launch_unchecked(
            &out.client,
            grid(rows * (end - first)),
            CubeDim::new_1d(UNITS),
            address.max(address_type([out])),
            parts.iter().map(|part| part.clone().into_tensor_arg()).collect(),
            starts.iter().copied().collect(),
            lens.collect(),
            out.clone().into_tensor_arg(),
            first,
            end - first,
            stride,
            dtype_to_storage_type(out.dtype),
        );
    }
}
