//! How a product's right factor lies in memory: number by number, or several to a word, which the kernel takes apart where it reads them. A product with
//! words needs no launch that makes them dense, and reads the fewer bytes.

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::FloatKind;
use cubecl::prelude::*;

/// What a number of the tensor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Packing {
    /// A number of the factor.
    #[default]
    Plain,
    /// Two bf16s, the first in the lower half: the upper halves of f32s. Rows follow each other without a gap, so one may begin within a word.
    Bf16,
    /// Four whole numbers from -127 to 127, the first in the lowest bits, beside a scale for each row of the tensor's matrix. Rows follow each other here too.
    Int8,
}

impl Packing {
    /// The type that the kernel reads a tensor of this type as.
    pub(crate) fn element(self, dtype: DType) -> DType {
        match self {
            Self::Plain => dtype,
            Self::Bf16 | Self::Int8 => DType::U32,
        }
    }

    /// Elements that hold four numbers.
    pub(crate) fn of_four(self) -> usize {
        match self {
            Self::Plain => 4,
            Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Numbers of the factor that such a tensor has.
    pub(crate) fn numbers(self, tensor: &CubeTensor) -> usize {
        tensor.handle.size_in_used() as usize / self.element(tensor.dtype).size() * 4 / self.of_four()
    }

    /// The integers that count them.
    pub(crate) fn address_type(self, tensor: &CubeTensor) -> AddressType {
        AddressType::from_len(self.numbers(tensor))
    }
}

/// `value` as it is in `F`. `one` is 1, which no compiler knows: some leave out a rounding that is widened again at once (lavapipe's does), and cannot where
/// it is multiplied in between. Only in f16: of bf16 Vulkan has conversions and no products.
#[cube]
pub(super) fn rounded<F: Float>(value: f32, one: f32) -> f32 {
    let kind = elem_type_of::<F>();
    if comptime!(kind == ElemType::Float(FloatKind::F16)) {
        let product = F::cast_from(value) * F::cast_from(one);
        f32::cast_from(product)
    } else if comptime!(kind == ElemType::Float(FloatKind::BF16)) {
        f32::cast_from(F::cast_from(value))
    } else {
        value
    }
}

/// A half of a word, the lower one first.
#[cube]
pub(super) fn bf16_of(word: u32, half: u32) -> f32 {
    f32::reinterpret((word >> (half * 16u32)) << 16u32)
}

/// A byte of a word, the lowest first.
#[cube]
pub(super) fn int8_of(word: u32, byte: u32) -> f32 {
    let value = (word >> (byte * 8u32)) & 255u32;
    f32::cast_from(value) - select(value > 127u32, 256.0f32, 0.0f32)
}

/// Number `at` of a factor that is not read by fours, in row `row` of its matrix in memory if it is scaled by rows. What is packed is rounded to `F`, the type of factors; `one` is 1.
#[cube]
pub(super) fn number_at<E: Numeric, N: Size, F: Float, S: CubePrimitive>(
    from: &Tensor<Vector<E, N>>,
    at: usize,
    scales: &Tensor<S>,
    row: usize,
    one: f32,
    #[comptime] packing: Packing,
) -> f32 {
    if comptime!(packing == Packing::Bf16) {
        let word = u32::cast_from(from[at / 2usize].extract(0usize));
        rounded::<F>(bf16_of(word, (at % 2usize) as u32), one)
    } else if comptime!(packing == Packing::Int8) {
        let word = u32::cast_from(from[at / 4usize].extract(0usize));
        rounded::<F>(f32::cast_from(scales[row]) * int8_of(word, (at % 4usize) as u32), one)
    } else {
        f32::cast_from(from[at].extract(0usize))
    }
}
