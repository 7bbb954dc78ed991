//! The JSON header: read, checked and written.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use std::ops::Range;

use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use indexmap::IndexMap;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Fault;
use crate::limits;
use crate::tensor::{DType, TensorSpec, check_name};

const METADATA: &str = "__metadata__";

/// A checked header.
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    /// In the order of the data.
    pub(super) tensors: Vec<Entry>,
    /// Where the data begins in the file.
    pub(super) data: usize,
}

/// One tensor of a header.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) spec: TensorSpec,
    /// Its bytes, from the start of the data.
    pub(super) place: Range<usize>,
}

/// Reads the header of a file of `size` bytes, up to where the data begins. All places lie within the file, one after the other.
pub(super) fn read(file: &mut impl Read, size: u64) -> Result<Header, Fault> {
    let mut prefix = [0; 8];
    limits::at_most("bytes of the header length", 8, size)?;
    file.read_exact(&mut prefix)?;
    let header_size = u64::from_le_bytes(prefix);
    limits::at_most("bytes of the safetensors header", header_size, limits::HEADER_BYTES.min(size - 8))?;
    let mut json = vec![0; header_size as usize];
    file.read_exact(&mut json)?;
    let mut header: Json = serde_json::from_slice(&json).map_err(fault)?;

    header.tensors.sort_by_key(|(_, info)| info.data_offsets);
    let checked = Metadata::new(None, header.tensors.clone()).map_err(fault)?;
    let (stored, declared) = (size - 8 - header_size, checked.data_len() as u64);
    if stored != declared {
        return Err(Fault::Header { what: format!("it describes {declared} bytes of data, but {stored} follow") });
    }
    let tensors = header.tensors.into_iter().map(|(name, info)| entry(name, info)).collect::<Result<_, _>>()?;
    Ok(Header { metadata: header.metadata, tensors, data: json.len() + 8 })
}

fn entry(name: String, info: TensorInfo) -> Result<Entry, Fault> {
    check_name(&name)?;
    let dtype = from_dtype(info.dtype).ok_or_else(|| Fault::tensor(&name, format!("dtype {:?} is not supported", info.dtype)))?;
    let (start, end) = info.data_offsets;
    Ok(Entry { name, spec: TensorSpec { dtype, shape: info.shape }, place: start..end })
}

/// The bytes of a file before the data, which follows in the order of `tensors`.
pub(super) fn write(tensors: &IndexMap<&str, &TensorSpec>, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, Fault> {
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.into(), json(metadata)?);
    }
    let mut end = 0usize;
    for (&name, spec) in tensors {
        check_name(name)?;
        if name == METADATA {
            return Err(Fault::tensor(METADATA, "the name is reserved by the format"));
        }
        let start = end;
        end = end.checked_add(spec.bytes(name)?).ok_or_else(|| Fault::tensor(name, "the file would not fit the address space"))?;
        let info = TensorInfo { dtype: to_dtype(spec.dtype), shape: spec.shape.clone(), data_offsets: (start, end) };
        header.insert(name.to_owned(), json(&info)?);
    }
    let mut header = serde_json::to_vec(&header).map_err(fault)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    limits::at_most("bytes of the safetensors header", header.len() as u64, limits::HEADER_BYTES)?;
    Ok([&(header.len() as u64).to_le_bytes()[..], &header].concat())
}

/// Takes a map's entries one by one, and refuses a repeated key, of which serde would keep the last, silently.
pub(super) fn each_key<'de, A: MapAccess<'de>>(
    mut map: A,
    mut take: impl FnMut(String, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut seen = HashSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if !seen.insert(key.clone()) {
            return Err(A::Error::custom(format_args!("`{}` appears twice", key.escape_debug())));
        }
        take(key, &mut map)?;
    }
    Ok(())
}

#[derive(Default)]
struct Json {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Json, A::Error> {
        let mut header = Json::default();
        each_key(map, |name, map| {
            if name == METADATA {
                header.metadata = map.next_value()?;
            } else {
                header.tensors.push((name, map.next_value()?));
            }
            Ok(())
        })?;
        Ok(header)
    }
}

fn json(value: &impl Serialize) -> Result<serde_json::Value, Fault> {
    serde_json::to_value(value).map_err(fault)
}

fn fault(error: impl fmt::Display) -> Fault {
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
