//! Tensors between a device and the files of a checkpoint, each in the type it has: floats of 16, 32 or 64 bits, whole numbers, booleans.

use bellows_weights::{DType as FileType, Tensor as FileTensor};
use burn::tensor::{Bool, DType, Device, Float, Int, Tensor, TensorData, bf16, f16};

use crate::error::LearnError;

fn failed(name: &str) -> impl Fn(&dyn std::fmt::Display) -> LearnError + '_ {
    move |error| LearnError::Device(format!("reading {name}: {error}"))
}

fn little_endian<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

/// A float tensor, flattened, as the file tensor of `shape`.
///
/// # Errors
/// When the device cannot hand it back.
pub(crate) fn of_float(name: &str, shape: &[usize], tensor: &Tensor<1>) -> Result<FileTensor, LearnError> {
    let failed = failed(name);
    let data = tensor.try_to_data().map_err(|e| failed(&e))?;
    let (dtype, data) = match data.dtype() {
        DType::F16 => (FileType::F16, little_endian(data.as_slice::<f16>().map_err(|e| failed(&e))?, |v| v.to_le_bytes())),
        DType::BF16 => (FileType::BF16, little_endian(data.as_slice::<bf16>().map_err(|e| failed(&e))?, |v| v.to_le_bytes())),
        DType::F64 => (FileType::F64, little_endian(data.as_slice::<f64>().map_err(|e| failed(&e))?, f64::to_le_bytes)),
        _ => {
            let data = data.try_cast_as::<f32>().map_err(|e| failed(&e))?;
            (FileType::F32, little_endian(data.as_slice::<f32>().map_err(|e| failed(&e))?, f32::to_le_bytes))
        }
    };
    Ok(FileTensor { dtype, shape: shape.to_vec(), data })
}

/// The other way: flattened, on `device`, in the type of the file.
///
/// # Errors
/// A type that is no float's.
pub(crate) fn to_float(tensor: &FileTensor, device: &Device) -> Result<Tensor<1>, String> {
    let (n, device) = (tensor.numel(), device.clone().without_autodiff());
    fn values<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|&chunk| value(chunk)).collect()
    }
    let (data, dtype) = match tensor.dtype {
        FileType::F32 => (TensorData::new(values(&tensor.data, f32::from_le_bytes), [n]), DType::F32),
        FileType::F16 => (TensorData::new(values(&tensor.data, f16::from_le_bytes), [n]), DType::F16),
        FileType::BF16 => (TensorData::new(values(&tensor.data, bf16::from_le_bytes), [n]), DType::BF16),
        FileType::F64 => (TensorData::new(values(&tensor.data, f64::from_le_bytes), [n]), DType::F64),
        other => return Err(format!("is {other}, which is no type of float")),
    };
    Ok(Tensor::<1, Float>::from_data(data, (&device, dtype)))
}

/// A tensor of whole numbers as a file's.
///
/// # Errors
/// When the device cannot hand it back.
pub(crate) fn of_int<const D: usize>(name: &str, tensor: &Tensor<D, Int>) -> Result<FileTensor, LearnError> {
    let data = tensor.try_to_data_as::<i64>().map_err(|e| failed(name)(&e))?;
    let values = data.as_slice::<i64>().map_err(|e| failed(name)(&e))?;
    Ok(FileTensor::from_i64(tensor.dims(), values))
}

/// A tensor of booleans as a file's.
///
/// # Errors
/// When the device cannot hand it back.
pub(crate) fn of_bool<const D: usize>(name: &str, tensor: &Tensor<D, Bool>) -> Result<FileTensor, LearnError> {
    let data = tensor.try_to_data_as::<bool>().map_err(|e| failed(name)(&e))?;
    let values = data.as_slice::<bool>().map_err(|e| failed(name)(&e))?;
    Ok(FileTensor { dtype: FileType::Bool, shape: tensor.dims().to_vec(), data: values.iter().map(|&v| u8::from(v)).collect() })
}

/// A file's whole numbers in the place, and the type, of `old`.
pub(crate) fn to_int<const D: usize>(tensor: &FileTensor, old: &Tensor<D, Int>) -> Tensor<D, Int> {
    let values: Vec<i64> = tensor.data.as_chunks::<8>().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect();
    let options = (&old.device().without_autodiff(), old.dtype());
    Tensor::from_data(TensorData::new(values, tensor.shape.clone()), options)
}

/// A file's booleans in the place of `old`.
pub(crate) fn to_bool<const D: usize>(tensor: &FileTensor, old: &Tensor<D, Bool>) -> Tensor<D, Bool> {
    let values: Vec<bool> = tensor.data.iter().map(|&v| v != 0).collect();
    Tensor::from_data(TensorData::new(values, tensor.shape.clone()), &old.device().without_autodiff())
}

/// Whether a module's tensor can take the file's: of this type and shape.
pub(crate) fn fits(tensor: &FileTensor, dtype: FileType, dims: &[usize]) -> Result<(), String> {
    let shape = &tensor.shape;
    if tensor.dtype == dtype && *shape == dims {
        return Ok(());
    }
    Err(format!("is {} {shape:?} where the model has {dtype} {dims:?}", tensor.dtype))
}
