//! The products in Burn's own words: their definition, and the way of devices and types without a kernel.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, Slice, TensorData, try_read_sync};

use super::nf4::{self, LEVELS, MAGNITUDES};
use super::operand::Stored;
use super::packed::{Form, Packed};
use super::weight::StoredWeight;
use crate::cpu::Precision;
use crate::cpu::simd;
use crate::matrices::MatrixOps;

fn transposed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 0, 1)
}

fn cast<B: Backend>(x: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if x.dtype() == dtype { x } else { B::float_cast(x, dtype.into()) }
}

fn reshaped<B: Backend, const D: usize>(x: FloatTensor<B>, shape: [usize; D]) -> FloatTensor<B> {
    B::float_reshape(x, Shape::new(shape))
}

/// A weight as a tensor of `dtype`, `[out, in]`.
pub(super) fn dense<B: Backend>(weight: StoredWeight<B>, dtype: DType) -> FloatTensor<B> {
    let (codes, scales, form, shape) = match weight {
        StoredWeight::Dense(weight) => return cast::<B>(weight, dtype),
        StoredWeight::Blocks { codes, scales, form, shape } => (codes, scales, form, shape),
    };
    let values = match form {
        Form::Int8 => of_int8::<B>(codes, scales, shape),
        Form::Nf4 => of_nf4::<B>(codes, scales, shape[0] * shape[1]),
        Form::File(_) => on_the_host::<B>(codes, scales, form, shape),
    };
    cast::<B>(reshaped::<B, 2>(values, shape), dtype)
}

/// Some of the elements of a vector.
fn slice_of(start: usize, end: usize) -> [Slice; 1] {
    [Slice::from(start as isize..end as isize)]
}

/// Fields of `bits` bits of every word, those at `shifts` in this order, as `[words × shifts]`.
fn fields<B: Backend>(words: IntTensor<B>, shifts: &[i32], bits: u32) -> IntTensor<B> {
    let (count, each, device) = (words.shape().num_elements(), shifts.len(), words.device());
    let shifts = B::int_from_data(TensorData::new(shifts.to_vec(), [1, each]), &device);
    let both = Shape::new([count, each]);
    let words = B::int_expand(B::int_reshape(words, Shape::new([count, 1])), both.clone());
    let moved = B::bitwise_right_shift(words, B::int_expand(shifts, both));
    B::int_reshape(B::bitwise_and_scalar(moved, Scalar::Int((1 << bits) - 1)), Shape::new([count * each]))
}

/// The shifts of a word's bytes.
const BYTES: [i32; 4] = [0, 8, 16, 24];
/// The shifts of a word's nibbles, the higher one of each byte first.
const NIBBLES: [i32; 8] = [4, 0, 12, 8, 20, 16, 28, 24];

/// What whole numbers stand for in a table.
fn looked_up<B: Backend>(table: &[f32], codes: IntTensor<B>) -> FloatTensor<B> {
    let table = B::float_from_data(TensorData::new(table.to_vec(), [table.len()]), &codes.device());
    B::float_select(table, 0, codes)
}

/// `[rows × columns]` of numbers times that of their row.
fn by_rows<B: Backend>(values: FloatTensor<B>, scales: FloatTensor<B>, columns: usize) -> FloatTensor<B> {
    let (count, rows) = (values.shape().num_elements(), scales.shape().num_elements());
    reshaped::<B, 1>(B::float_mul(reshaped::<B, 2>(values, [rows, columns]), reshaped::<B, 2>(scales, [rows, 1])), [count])
}

fn of_int8<B: Backend>(codes: IntTensor<B>, scales: FloatTensor<B>, [rows, columns]: [usize; 2]) -> FloatTensor<B> {
    // A byte to the number it is in two's complement.
    let numbers: Vec<f32> = (0..=u8::MAX).map(|byte| f32::from(byte as i8)).collect();
    let values = B::float_slice(looked_up::<B>(&numbers, fields::<B>(codes, &BYTES, 8)), &slice_of(0, rows * columns));
    by_rows::<B>(values, scales, columns)
}

fn of_nf4<B: Backend>(codes: IntTensor<B>, scales: FloatTensor<B>, count: usize) -> FloatTensor<B> {
    let (blocks, words) = (count.div_ceil(nf4::BLOCK), nf4::level_bytes(count) / 4);
    let groups = blocks.div_ceil(nf4::GROUP);
    let all = codes.shape().num_elements();
    // Filled up to whole groups and blocks, so that rows are of one length.
    let filled = |values: FloatTensor<B>, to: usize| {
        let (have, device) = (values.shape().num_elements(), values.device());
        let rest = B::float_zeros(Shape::new([to - have]), &device, FloatDType::F32);
        if to == have { values } else { B::float_cat(vec![values, rest], 0) }
    };
    let magnitudes = looked_up::<B>(&*MAGNITUDES, fields::<B>(B::int_slice(codes.clone(), &slice_of(words, all)), &BYTES, 8));
    let magnitudes = filled(B::float_slice(magnitudes, &slice_of(0, blocks)), groups * nf4::GROUP);
    let scaled = by_rows::<B>(magnitudes, B::float_slice(scales.clone(), &slice_of(0, groups)), nf4::GROUP);
    let magnitudes = B::float_add(B::float_slice(scaled, &slice_of(0, blocks)), B::float_slice(scales, &slice_of(groups, groups + 1)));
    let levels = looked_up::<B>(&LEVELS, fields::<B>(B::int_slice(codes, &slice_of(0, words)), &NIBBLES, 4));
    let levels = filled(B::float_slice(levels, &slice_of(0, count)), blocks * nf4::BLOCK);
    B::float_slice(by_rows::<B>(levels, magnitudes, nf4::BLOCK), &slice_of(0, count))
}

/// The way of blocks of a file, of which there are many kinds: decoded by the processor.
fn on_the_host<B: Backend>(codes: IntTensor<B>, scales: FloatTensor<B>, form: Form, shape: [usize; 2]) -> FloatTensor<B> {
    let device = codes.device();
    let words = try_read_sync(B::int_into_data(codes)).and_then(Result::ok).and_then(|data| data.try_into_vec_as::<i32>().ok());
    let scales = try_read_sync(B::float_into_data(scales)).and_then(Result::ok).and_then(|data| data.try_into_vec_as::<f32>().ok());
    let mut values = vec![f32::NAN; shape[0] * shape[1]];
    // A device that is lost hands nothing back: what is computed with these is not finite.
    if let (Some(words), Some(scales)) = (words, scales) {
        let bytes: Vec<u8> = words.into_iter().flat_map(i32::to_le_bytes).collect();
        Stored::Packed(Packed::new(form, &bytes, &scales, shape)).decode(simd::level(), 0, &mut values);
    }
    B::float_from_data(TensorData::new(values, [shape[0] * shape[1]]), &device)
}

fn times<B: Backend>(x: FloatTensor<B>, by: f64) -> FloatTensor<B> {
    B::float_mul_scalar(x, Scalar::Float(by))
}

/// The type of the factors of products with a weight where the others are `dtype`. (bf16 is the processor's.)
fn factors(precision: Precision, dtype: DType) -> DType {
    match precision {
        Precision::F16 | Precision::PureF16 => DType::F16,
        Precision::F32 | Precision::Bf16 => dtype,
    }
}

/// The same in a low-rank branch.
fn of_branch(precision: Precision, dtype: DType) -> DType {
    if precision == Precision::PureF16 { DType::F16 } else { dtype }
}

/// `a b` of factors in `dtype`, in the type of a.
fn product<B: MatrixOps>(a: FloatTensor<B>, b: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let out = a.dtype();
    let read = dtype == DType::F32 && matches!(b.dtype(), DType::F16 | DType::BF16) && B::reads_halves();
    let b = if read { b } else { cast::<B>(b, dtype) };
    cast::<B>(B::product(cast::<B>(a, dtype), b), out)
}

/// A weight as a factor: as it is, or values made of its blocks.
fn factor<B: Backend>(weight: StoredWeight<B>, dtype: DType) -> FloatTensor<B> {
    match weight {
        StoredWeight::Dense(weight) => weight,
        blocks @ StoredWeight::Blocks { .. } => dense::<B>(blocks, dtype),
    }
}

pub(super) fn linear<B: MatrixOps>(
    x: FloatTensor<B>,
    weight: StoredWeight<B>,
    bias: Option<FloatTensor<B>>,
    precision: Precision,
) -> FloatTensor<B> {
    let dtype = factors(precision, x.dtype());
    let y = product::<B>(x, transposed::<B>(factor::<B>(weight, dtype)), dtype);
    match bias {
        Some(bias) => {
            let out = bias.shape().num_elements();
            B::float_add(y, B::float_reshape(bias, Shape::new([1, out])))
        }
        None => y,
    }
}

pub(super) fn linear_data_grad<B: MatrixOps>(dy: FloatTensor<B>, weight: StoredWeight<B>, precision: Precision) -> FloatTensor<B> {
    let dtype = factors(precision, dy.dtype());
    product::<B>(dy, factor::<B>(weight, dtype), dtype)
}

pub(super) fn linear_weight_grad<B: MatrixOps>(x: FloatTensor<B>, dy: FloatTensor<B>) -> FloatTensor<B> {
    B::product(transposed::<B>(dy), x)
}

pub(super) fn lora_linear<B: MatrixOps>(
    x: FloatTensor<B>,
    weight: StoredWeight<B>,
    bias: Option<FloatTensor<B>>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
    precision: Precision,
) -> FloatTensor<B> {
    let dtype = of_branch(precision, x.dtype());
    let inner = product::<B>(x.clone(), transposed::<B>(a), dtype);
    let branch = times::<B>(product::<B>(inner, transposed::<B>(b), dtype), scaling);
    B::float_add(linear::<B>(x, weight, bias, precision), branch)
}

pub(super) fn lora_data_grad<B: MatrixOps>(
    dy: FloatTensor<B>,
    weight: StoredWeight<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
    precision: Precision,
) -> FloatTensor<B> {
    let dtype = of_branch(precision, dy.dtype());
    let inner = times::<B>(product::<B>(dy.clone(), b, dtype), scaling);
    B::float_add(linear_data_grad::<B>(dy, weight, precision), product::<B>(inner, a, dtype))
}

pub(super) fn lora_grads<B: MatrixOps>(
    x: FloatTensor<B>,
    dy: FloatTensor<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    scaling: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let above = times::<B>(B::product(dy.clone(), b), scaling);
    let inner = times::<B>(B::product(x.clone(), transposed::<B>(a)), scaling);
    (B::product(transposed::<B>(above), x), B::product(transposed::<B>(dy), inner))
}
