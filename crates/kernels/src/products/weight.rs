//! A weight as it is stored, dense in some float type or in blocks, and what is beside it in a linear map, as the operations take them.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, TensorMetadata};
use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::packed::{Coding, Form};
use super::{int8, nf4};
use crate::operands::Maybe;

/// A frozen matrix in few bits a value.
#[derive(Module, Debug)]
pub struct Blocks {
    /// The codes' bytes, four to a number, the first in its lowest bits.
    codes: Tensor<1, Int>,
    /// What scales them, and what is added.
    scales: Tensor<1>,
    #[module(skip)]
    form: Form,
    #[module(skip)]
    shape: [usize; 2],
}

impl Blocks {
    /// bf16s two to a number: for devices that have no such type, which read them in place of a matrix twice as large. Values that bf16 does not hold are cut.
    pub fn bf16(values: &[f32], shape: [usize; 2], device: &Device) -> Self {
        check(values.len(), shape);
        let codes = values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
        Self::new(Form::Bf16, (codes, Vec::new()), shape, device)
    }

    /// Int8 with a scale a row: no value is off by more than the 254th part of its row's largest magnitude, if that is above 3e-41. `values` are finite,
    /// row by row.
    pub fn int8(values: &[f32], shape: [usize; 2], device: &Device) -> Self {
        check(values.len(), shape);
        Self::new(Form::Int8, int8::encode(values, shape[1]), shape, device)
    }

    /// NF4 in blocks of 64 with double quantisation, as bitsandbytes computes it. `values` are finite, row by row.
    pub fn nf4(values: &[f32], shape: [usize; 2], device: &Device) -> Self {
        check(values.len(), shape);
        Self::new(Form::Nf4, nf4::encode(values), shape, device)
    }

    /// The blocks of a file as they are, row by row.
    ///
    /// # Panics
    /// If the bytes are not whole blocks of the shape's rows.
    pub fn of_file(bytes: Vec<u8>, coding: Coding, shape: [usize; 2], device: &Device) -> Self {
        let [rows, columns] = shape;
        let (len, size) = (coding.layout.len(), coding.layout.bytes());
        let fits = columns.is_multiple_of(len) && bytes.len() == rows * columns / len * size;
        assert!(fits, "{} bytes of blocks ({coding:?}) of a matrix {shape:?}", bytes.len());
        Self::new(Form::File(coding), (bytes, Vec::new()), shape, device)
    }

    fn new(form: Form, (mut codes, mut scales): (Vec<u8>, Vec<f32>), shape: [usize; 2], device: &Device) -> Self {
        codes.resize(codes.len().next_multiple_of(4), 0);
        // Some devices have no tensor of nothing.
        scales.resize(scales.len().max(1), 0.0);
        let words: Vec<i32> = codes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
        let (words_len, scales_len) = (words.len(), scales.len());
        Self {
            codes: Tensor::from_data(TensorData::new(words, [words_len]), (device, DType::I32)),
            scales: Tensor::from_data(TensorData::new(scales, [scales_len]), (device, DType::F32)),
            form,
            shape,
        }
    }

    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        self.shape
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.codes.device()
    }

    /// Bytes of its codes and scales.
    pub fn bytes(&self) -> usize {
        4 * (self.codes.dims()[0] + self.scales.dims()[0])
    }
}

fn check(values: usize, shape: [usize; 2]) {
    assert_eq!(values, shape.iter().product::<usize>(), "values of a matrix of shape {shape:?}");
}

/// A matrix as it is stored, `[out, in]`.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one a product: a kilobyte of handles")]
pub enum Weight {
    /// In some float type.
    Dense(Tensor<2>),
    /// In blocks, frozen.
    Blocks(Blocks),
}

impl Weight {
    /// `[out, in]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight) => weight.dims(),
            Self::Blocks(blocks) => blocks.dims(),
        }
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        match self {
            Self::Dense(weight) => weight.device(),
            Self::Blocks(blocks) => blocks.device(),
        }
    }

    pub(crate) fn into_dispatch(self) -> StoredWeight<Dispatch> {
        match self {
            Self::Dense(weight) => StoredWeight::Dense(weight.into_dispatch()),
            Self::Blocks(Blocks { codes, scales, form, shape }) => {
                StoredWeight::Blocks { codes: codes.into_dispatch(), scales: scales.into_dispatch(), form, shape }
            }
        }
    }
}

impl From<Tensor<2>> for Weight {
    fn from(weight: Tensor<2>) -> Self {
        Self::Dense(weight)
    }
}

/// A [`Weight`] of a backend.
#[derive(ExtensionType, Clone, Debug)]
pub enum StoredWeight<B: Backend> {
    /// `[out, in]`.
    Dense(FloatTensor<B>),
    /// In blocks.
    Blocks {
        /// The codes' bytes, four to an i32.
        codes: IntTensor<B>,
        /// What scales them, f32.
        scales: FloatTensor<B>,
        /// How they stand for values.
        form: Form,
        /// `[out, in]`.
        shape: [usize; 2],
    },
}

impl<B: Backend> StoredWeight<B> {
    /// `[out, in]`.
    pub(crate) fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight) => weight.shape().dims(),
            Self::Blocks { shape, .. } => *shape,
        }
    }
}

/// `s B A`.
#[derive(ExtensionType, Clone, Debug)]
pub struct StoredBranch<B: Backend> {
    /// A, `[r, in]`.
    pub a: FloatTensor<B>,
    /// B, `[out, r]`.
    pub b: FloatTensor<B>,
    /// s.
    pub scaling: f64,
}

/// A branch or none: an operation of a backend extension takes no `Option`.
#[derive(ExtensionType, Clone, Debug)]
pub enum Branch<B: Backend> {
    /// None.
    Zero,
    /// This one.
    LowRank(#[extension_type] StoredBranch<B>),
}

impl<B: Backend> Branch<B> {
    /// As an option.
    pub fn into_option(self) -> Option<StoredBranch<B>> {
        if let Self::LowRank(branch) = self { Some(branch) } else { None }
    }
}

impl<B: Backend> From<Option<StoredBranch<B>>> for Branch<B> {
    fn from(branch: Option<StoredBranch<B>>) -> Self {
        branch.map_or(Self::Zero, Self::LowRank)
    }
}

/// A linear map: a weight, and what is beside it.
#[derive(ExtensionType, Clone, Debug)]
pub struct StoredMap<B: Backend> {
    /// `[out, in]`.
    #[extension_type]
    pub weight: StoredWeight<B>,
    /// `[out]`.
    #[extension_type]
    pub bias: Maybe<B>,
    /// The adapter.
    #[extension_type]
    pub branch: Branch<B>,
}
