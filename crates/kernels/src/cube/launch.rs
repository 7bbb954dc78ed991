//! What launching a kernel of one number to a thread takes, and the second half of a sum in two launches.
//!
//! Kernels are launched without checks of their indices on the device: beside each tensor stands how many numbers a kernel can reach, and of which type if not
//! of 32 bits, which is compared with what is there before anything runs. A launch that says too little is a mistake, as any `unsafe` may be one; what a kernel
//! reaches follows from its sizes and its guard. Of what memory says no size is known beforehand, so kernels that read there where to read or write keep the
//! device's checks ([`launch_checked`]), or compare first.

use super::geometry::MAX_GRID;
use super::packing::Packing;
use crate::planes::HALF_GRADIENTS;
use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Threads to a workgroup; every Vulkan device allows 128.
pub(crate) const UNITS: u32 = 64;

/// Workgroups of [`UNITS`] for at least `units` threads, numbered by `ABSOLUTE_POS`.
pub(crate) fn grid(units: usize) -> CubeCount {
    grid_of(units.div_ceil(UNITS as usize).max(1))
}

/// At least so many workgroups, row by row.
pub(crate) fn grid_of(cubes: usize) -> CubeCount {
    let wide = cubes.min(MAX_GRID);
    CubeCount::Static(wide as u32, cubes.div_ceil(wide) as u32, 1)
}

/// Launches a kernel with at least `$units` threads on these tensors, all on one device, and then its other arguments; `$how` is `launch`, or
/// `launch_unchecked`.
macro_rules! launched {
    ($how:ident, $kernel:ident, $units:expr, [$first:expr $(, $tensor:expr)*], [$($argument:expr),*]) => {{
        let units: usize = $units;
        $crate::cube::trace::note(stringify!($kernel), [&$first $(, &$tensor)*], 0);
        $kernel::$how(
            &$first.client.clone(),
            $crate::cube::launch::grid(units),
            cubecl::prelude::CubeDim::new_1d($crate::cube::launch::UNITS),
            $crate::cube::launch::address_type([&$first $(, &$tensor)*]).max($crate::cube::launch::addresses(units)),
            $first.clone().into_tensor_arg(),
            $($tensor.clone().into_tensor_arg(),)*
            $($argument),*
        )
    }};
}
pub(crate) use launched;

/// Launches a kernel with at least `$units` threads, and panics unless each tensor has as many numbers as stand beside it: all that the kernel can reach. They are
/// of 32 bits, or of the type that stands behind, by which the kernel steps. A tensor that comes among the other arguments is one that replaces another of these
/// (`pixels::replacement`), of its type and shape.
macro_rules! launch {
    ($kernel:ident, $units:expr, [$(($tensor:expr, $reach:expr $(, $dtype:expr)?)),+ $(,)?] $(, $argument:expr)* $(,)?) => {{
        $crate::cube::launch::check_reach(
            stringify!($kernel),
            [$(&$tensor),+],
            [$($reach),+],
            [$([$($dtype,)? burn::backend::DType::F32][0]),+],
        );
        // SAFETY: `check_reach` has found all numbers that the kernel can reach.
        #[allow(unsafe_code, reason = "see SAFETY")]
        unsafe {
            $crate::cube::launch::launched!(launch_unchecked, $kernel, $units, [$($tensor),+], [$($argument),*])
        }
    }};
}
pub(crate) use launch;

/// Launches a kernel with at least `$units` threads that the device keeps from reaching beyond its tensors.
macro_rules! launch_checked {
    ($kernel:ident, $units:expr, [$($tensor:expr),+ $(,)?] $(, $argument:expr)* $(,)?) => {
        $crate::cube::launch::launched!(launch, $kernel, $units, [$($tensor),+], [$($argument),*])
    };
}
pub(crate) use launch_checked;

/// Panics unless each tensor has so many numbers of such a type, gaps between them counted; `F32` is any of 32 bits, whole ones too.
#[track_caller]
pub(crate) fn check_reach<const N: usize>(kernel: &str, tensors: [&CubeTensor; N], reaches: [usize; N], dtypes: [DType; N]) {
    for (i, ((tensor, reach), dtype)) in tensors.into_iter().zip(reaches).zip(dtypes).enumerate() {
        let wide = dtype == DType::F32 && tensor.dtype.size() == size_of::<f32>();
        assert!(wide || tensor.dtype == dtype, "{kernel}: tensor {i} is {:?}, and the kernel steps by {dtype:?}", tensor.dtype);
        let (all, memory) = (tensor.meta.shape().num_elements(), Packing::Plain.numbers(tensor));
        // Memory may be longer than a tensor whose numbers lie in order.
        let numbers = if tensor.is_contiguous() { all.min(memory) } else { memory };
        assert!(reach <= numbers, "{kernel}: tensor {i} has {numbers} numbers, and {reach} are asked for");
    }
}

/// How many numbers a tensor of any strides spans, gaps between them counted.
pub(crate) fn reach(tensor: &CubeTensor) -> usize {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    1 + (0..shape.num_dims()).map(|axis| shape[axis].saturating_sub(1) * strides[axis]).sum::<usize>()
}

/// The integers that count so many numbers, or threads, with room for as many again: a grid is rounded up by millions of threads, which must not be taken for the
/// first ones, and loops look ahead before they compare. (CubeCL has 64 bits from 2^32 numbers on.)
pub(crate) fn addresses(count: usize) -> AddressType {
    AddressType::from_len_signed(count)
}

/// The integers that reach every number of these tensors.
pub(crate) fn address_type<const N: usize>(tensors: [&CubeTensor; N]) -> AddressType {
    let numbers = |tensor: &CubeTensor| tensor.handle.size() as usize / tensor.dtype.size();
    tensors.into_iter().map(|tensor| addresses(numbers(tensor))).max().unwrap_or_default()
}

/// Whether our f32 kernels take these: all of that type and none empty.
pub(crate) fn covers<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> bool {
    tensors.into_iter().all(|tensor| tensor.dtype == DType::F32 && tensor.meta.shape().num_elements() > 0)
}

/// Whether our kernels on images take these: `images` all of one type, which is f32 or half of it, `others` of f32, none empty.
pub(crate) fn covers_images<'a>(images: &[&CubeTensor], others: impl IntoIterator<Item = &'a CubeTensor>) -> bool {
    let float = |tensor: &&CubeTensor| tensor.dtype == images[0].dtype && tensor.meta.shape().num_elements() > 0;
    is_image_type(images[0].dtype) && images.iter().all(float) && covers(others)
}

/// The types of images that our kernels compute with, in f32.
pub(crate) fn is_image_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// What gradients of parameters are multiplied by where those of images are of this type.
pub(crate) fn true_gradients(dtype: DType) -> f32 {
    if dtype == DType::F32 { 1.0 } else { 1.0 / HALF_GRADIENTS }
}

/// Loads in flight in a loop that adds: a GPU waits for each as long as for all of them, and drivers do not unroll for it.
pub(crate) const AHEAD: u32 = 8;

/// `sum over i < count of parts[first + i * step]`, in that order, by eights.
#[cube]
pub(crate) fn fold(parts: &Tensor<f32>, first: usize, step: usize, count: u32) -> f32 {
    let mut total = 0.0f32;
    let mut part = 0u32;
    while part + AHEAD <= count {
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..AHEAD {
            sum += parts[first + (part + i) as usize * step];
        }
        total += sum;
        part += AHEAD;
    }
    while part < count {
        total += parts[first + part as usize * step];
        part += 1u32;
    }
    total
}
