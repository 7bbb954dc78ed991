//! safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
//!
//! The header's rules (offsets in order, no hole, no overlap, sizes that fit the shapes) are checked by the
//! `safetensors` crate. Added here: a repeated key is refused instead of the last one winning, data is read tensor by
//! tensor instead of through a second copy of the file, and what is written is the same for the same
//! input (the crate writes metadata in hash order).
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{Cursor, Read};

use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Weights;
use crate::error::{Fault, WeightsError};
use crate::limits;
use crate::tensor::{DType, Tensor, Tensors, check_name, insert};

const METADATA: &str = "__metadata__";

/// Reads safetensors from memory.
///
/// # Errors
/// As [`read`](crate::read()), without a path.
pub fn from_safetensors(bytes: &[u8]) -> Result<Weights, WeightsError> {
    Ok(read(Cursor::new(bytes), bytes.len() as u64)?)
}

pub(crate) fn read(mut file: impl Read, size: u64) -> Result<Weights, Fault> {
    let mut prefix = [0; 8];
    limits::at_most("bytes of the header length", 8, size)?;
    file.read_exact(&mut prefix)?;
    let header_size = u64::from_le_bytes(prefix);
    limits::at_most("bytes of the safetensors header", header_size, limits::HEADER_BYTES.min(size - 8))?;
    let mut header = vec![0; header_size as usize];
    file.read_exact(&mut header)?;
    let header: Header = serde_json::from_slice(&header).map_err(header_fault)?;

    let mut tensors = header.tensors;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let checked = Metadata::new(None, tensors.clone()).map_err(header_fault)?;
    let (stored, declared) = (size - 8 - header_size, checked.data_len() as u64);
    if stored != declared {
        return Err(Fault::Header { what: format!("it describes {declared} bytes of data, but {stored} follow") });
    }

    let mut weights = Weights { metadata: header.metadata, ..Weights::default() };
    for (name, info) in tensors {
        let dtype = from_dtype(info.dtype).ok_or_else(|| Fault::tensor(&name, format!("dtype {:?} is not supported", info.dtype)))?;
        // In bounds: the crate has checked offsets against shapes, and their end against the file is checked above.
        let mut data = vec![0; info.data_offsets.1 - info.data_offsets.0];
        file.read_exact(&mut data)?;
        insert(&mut weights.tensors, name, Tensor { dtype, shape: info.shape, data })?;
    }
    Ok(weights)
}

/// The safetensors file of these tensors. The same input gives the same bytes.
///
/// # Errors
/// A tensor whose data does not fit its shape, or a name no reader would take.
pub fn to_safetensors(tensors: &Tensors, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, WeightsError> {
    // Widest elements first keeps every tensor aligned to its element size, as the reference writer does.
    let mut ordered: Vec<(&String, &Tensor)> = tensors.iter().collect();
    ordered.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype.size()));

    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.into(), json(metadata)?);
    }
    let mut end = 0;
    for (name, tensor) in &ordered {
        check_name(name)?;
        tensor.check(name)?;
        if name.as_str() == METADATA {
            return Err(Fault::tensor(METADATA, "the name is reserved by the format").into());
        }
        let start = end;
        end += tensor.data.len();
        let info = TensorInfo { dtype: to_dtype(tensor.dtype), shape: tensor.shape.clone(), data_offsets: (start, end) };
        header.insert((*name).clone(), json(&info)?);
    }
    let mut header = serde_json::to_vec(&header).map_err(header_fault)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    limits::at_most("bytes of the safetensors header", header.len() as u64, limits::HEADER_BYTES)?;

    let mut bytes = Vec::with_capacity(8 + header.len() + end);
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for (_, tensor) in ordered {
        bytes.extend(&tensor.data);
    }
    Ok(bytes)
}

/// The JSON header. A type of our own because the crate's keeps the last of repeated keys, silently.
#[derive(Default)]
struct Header {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("`{}` appears twice", name.escape_debug())));
            }
            if name == METADATA {
                header.metadata = map.next_value()?;
            } else {
                header.tensors.push((name, map.next_value()?));
            }
        }
        Ok(header)
    }
}

fn json(value: &impl Serialize) -> Result<serde_json::Value, Fault> {
    serde_json::to_value(value).map_err(header_fault)
}

fn header_fault(error: impl fmt::Display) -> Fault {
    Fault::Header { what: error.to_string() }
}

fn from_dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

fn to_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
