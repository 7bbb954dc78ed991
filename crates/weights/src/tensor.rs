//! A tensor as a file stores it: a dtype, a shape and bytes; and all that a file holds. Arithmetic is for others.

use std::collections::BTreeMap;
use std::fmt;

use half::{bf16, f16};

use crate::error::{Fault, WeightsError};
use crate::limits;

/// Element types. Others (8-bit floats, complex, quantised) are refused by name when a file has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it can hold a NaN.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A tensor without its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of its data; `name` is for the complaint.
    pub(crate) fn bytes(&self, name: &str) -> Result<usize, Fault> {
        bytes_of(self.dtype, &self.shape)
            .ok_or_else(|| Fault::tensor(name, format!("shape {:?} of {} does not fit the address space", self.shape, self.dtype)))
    }

    /// That `data` fits.
    pub(crate) fn check(&self, name: &str, data: &[u8]) -> Result<(), Fault> {
        let bytes = self.bytes(name)?;
        if data.len() == bytes {
            return Ok(());
        }
        let what = format!("{} bytes of data, but shape {:?} of {} needs {bytes}", data.len(), self.shape, self.dtype);
        Err(Fault::tensor(name, what))
    }
}

/// A dense tensor, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, little endian, `numel() * dtype.size()` bytes.
    pub data: Vec<u8>,
}

/// Tensors by name. Sorted, so that everything written from it is deterministic.
pub type Tensors = BTreeMap<String, Tensor>;

/// What a weight file holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights {
    /// The tensors by name: `model.0.conv.weight`.
    pub tensors: Tensors,
    /// Facts beside the tensors, as text. From safetensors: its `__metadata__`. From a `.pt`: the plain values at the
    /// root (`epoch`, `date`, `version`), its `train_args` and, of a pickled module, `names`, `nc`, `stride` and `task` where present,
    /// as JSON unless they are text (`names` = `{"0":"person"}`, `stride` = `[8.0,16.0,32.0]`). From ONNX: its `metadata_props`.
    pub metadata: BTreeMap<String, String>,
    /// Class of every module of a `.pt` that holds a whole pickled module, by path:
    /// `model.9.cv1.act` = `torch.nn.modules.linear.Identity`; the outermost module has the path `""`. Empty otherwise.
    /// Modules without weights (activations, pooling) show up only here.
    pub classes: BTreeMap<String, String>,
}

impl Tensor {
    /// An F32 tensor.
    ///
    /// # Panics
    /// If `values` does not have as many elements as `shape`.
    pub fn from_f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> Self {
        Tensor::from_bytes(DType::F32, shape.into(), values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// An I64 tensor.
    ///
    /// # Panics
    /// If `values` does not have as many elements as `shape`.
    pub fn from_i64(shape: impl Into<Vec<usize>>, values: &[i64]) -> Self {
        Tensor::from_bytes(DType::I64, shape.into(), values.len(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    fn from_bytes(dtype: DType, shape: Vec<usize>, count: usize, data: Vec<u8>) -> Self {
        let tensor = Tensor { dtype, shape, data };
        assert_eq!(tensor.numel(), count, "{count} values for a tensor of shape {:?}", tensor.shape);
        tensor
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as f32, rounded to nearest where the dtype is wider; Bool gives 0 and 1.
    ///
    /// # Errors
    /// If `data` does not have the length that `dtype` and `shape` ask for.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightsError> {
        self.spec().check("", &self.data)?;
        Ok(to_f32(self.dtype, &self.data))
    }

    /// All but the data.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec { dtype: self.dtype, shape: self.shape.clone() }
    }

    /// Position and value of the first NaN or infinity.
    fn non_finite(&self) -> Option<(usize, f64)> {
        let d = &self.data;
        match self.dtype {
            DType::F64 => first_non_finite(d, f64::from_le_bytes),
            DType::F32 => first_non_finite(d, |b| f64::from(f32::from_le_bytes(b))),
            DType::F16 => first_non_finite(d, |b| f16::from_le_bytes(b).to_f64()),
            DType::BF16 => first_non_finite(d, |b| bf16::from_le_bytes(b).to_f64()),
            _ => None,
        }
    }
}

/// Bytes of a tensor, unless the product overflows.
pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |product, &extent| product.checked_mul(extent))
}

/// The elements as [`Tensor::to_f32`] gives them.
pub(crate) fn to_f32(dtype: DType, d: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F64 => each(d, |b| f64::from_le_bytes(b) as f32),
        DType::F32 => each(d, f32::from_le_bytes),
        DType::F16 => each(d, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => each(d, |b| bf16::from_le_bytes(b).to_f32()),
        DType::I64 => each(d, |b| i64::from_le_bytes(b) as f32),
        DType::I32 => each(d, |b| i32::from_le_bytes(b) as f32),
        DType::I16 => each(d, |b| f32::from(i16::from_le_bytes(b))),
        DType::I8 => each(d, |b| f32::from(i8::from_le_bytes(b))),
        DType::U8 => each(d, |[b]| f32::from(b)),
        DType::Bool => each(d, |[b]| f32::from(u8::from(b != 0))),
    }
}

fn each<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    data.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).collect()
}

fn first_non_finite<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<(usize, f64)> {
    data.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).enumerate().find(|(_, v)| !v.is_finite())
}

/// That no tensor holds a NaN or an infinity. No weight format promises it.
///
/// # Errors
/// [`Fault::NonFinite`] for the first offending tensor in name order.
pub fn check_finite(tensors: &Tensors) -> Result<(), WeightsError> {
    for (name, tensor) in tensors {
        if let Some((index, value)) = tensor.non_finite() {
            return Err(Fault::NonFinite { name: name.clone(), index, value }.into());
        }
    }
    Ok(())
}

/// Adds a tensor, refusing a second one of the same name and names that would garble a log.
pub(crate) fn insert(tensors: &mut Tensors, name: String, tensor: Tensor) -> Result<(), Fault> {
    check_name(&name)?;
    match tensors.entry(name) {
        std::collections::btree_map::Entry::Vacant(slot) => {
            slot.insert(tensor);
            Ok(())
        }
        std::collections::btree_map::Entry::Occupied(slot) => Err(Fault::Duplicate { name: slot.key().clone() }),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Fault> {
    limits::at_most("bytes of a tensor's name", name.len() as u64, limits::NAME_BYTES as u64)?;
    if name.chars().any(char::is_control) {
        return Err(Fault::tensor(name.escape_debug().to_string(), "its name has control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(dtype: DType, data: &[u8]) -> Tensor {
        Tensor { dtype, shape: vec![data.len() / dtype.size()], data: data.to_vec() }
    }

    #[test]
    fn every_dtype_converts_to_f32() {
        assert_eq!(Tensor::from_f32([2], &[1.5, -2.0]).to_f32().unwrap(), [1.5, -2.0]);
        assert_eq!(Tensor::from_i64([], &[-7]).to_f32().unwrap(), [-7.0]);
        assert_eq!(raw(DType::F64, &0.1f64.to_le_bytes()).to_f32().unwrap(), [0.1f32]);
        assert_eq!(raw(DType::F16, &[0x00, 0x3c, 0x00, 0xc0]).to_f32().unwrap(), [1.0, -2.0]);
        assert_eq!(raw(DType::BF16, &[0x80, 0x3f, 0x40, 0xc0]).to_f32().unwrap(), [1.0, -3.0]);
        assert_eq!(raw(DType::I32, &(-9i32).to_le_bytes()).to_f32().unwrap(), [-9.0]);
        assert_eq!(raw(DType::I16, &[0xfe, 0xff]).to_f32().unwrap(), [-2.0]);
        assert_eq!(raw(DType::I8, &[0xff]).to_f32().unwrap(), [-1.0]);
        assert_eq!(raw(DType::U8, &[0xff]).to_f32().unwrap(), [255.0]);
        assert_eq!(raw(DType::Bool, &[0, 1, 7]).to_f32().unwrap(), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn data_of_another_length_is_refused() {
        let short = Tensor { dtype: DType::F32, shape: vec![2, 2], data: vec![0; 15] };
        assert!(short.to_f32().unwrap_err().to_string().contains("15 bytes of data, but shape [2, 2] of F32 needs 16"));
        let huge = Tensor { dtype: DType::F32, shape: vec![usize::MAX, 2], data: vec![] };
        assert!(huge.to_f32().unwrap_err().to_string().contains("address space"));
    }

    #[test]
    fn the_first_non_finite_tensor_is_named() {
        let mut tensors = Tensors::new();
        tensors.insert("a".into(), Tensor::from_f32([2], &[f32::MAX, 0.0]));
        tensors.insert("ints".into(), Tensor::from_i64([1], &[-1]));
        check_finite(&tensors).unwrap();
        tensors.insert("c".into(), raw(DType::F16, &[0, 0, 0, 0x7c]));
        tensors.insert("z".into(), Tensor::from_f32([1], &[f32::NAN]));
        assert_eq!(check_finite(&tensors).unwrap_err().to_string(), "tensor `c`: element 1 is inf");
        for (dtype, data) in
            [(DType::BF16, &[0xc0u8, 0x7f][..]), (DType::F64, &f64::NAN.to_le_bytes()), (DType::F32, &f32::NAN.to_le_bytes())]
        {
            assert!(check_finite(&Tensors::from([("x".into(), raw(dtype, data))])).is_err(), "{dtype}");
        }
    }
}
