//! The weights in an ONNX file: initializers by name, and the metadata.
//!
//! The file is read whole, so it costs its size and the tensors that are kept, and nothing else. Only what is on the way to a tensor is looked at;
//! the graph is not. Elements lie in `raw_data`, as every exporter writes them, or in the typed lists of floats and 64-bit integers.

use std::io::Read;

use super::wire::{Part, Value};
use crate::error::Fault;
use crate::limits::{self, Budget};
use crate::tensor::{DType, Tensor, TensorSpec, Weights, insert};

/// Whether a file that starts so is ONNX: there is no magic number, but the version of the format comes first and is small, and then
/// comes a field of text or a message.
pub(crate) fn is_onnx(start: &[u8]) -> bool {
    matches!(start, [0x08, 1..=63, key, ..] if key & 7 == 2)
}

/// Reads an ONNX file of `size` bytes.
pub(crate) fn read(file: impl Read, size: u64) -> Result<Weights, Fault> {
    limits::at_most("bytes of an ONNX file", size, limits::ONNX_BYTES)?;
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(size).read_to_end(&mut bytes)?;
    let mut found = Found { weights: Weights::default(), budget: Budget::bytes_of(size) };
    found.model(Part { bytes: &bytes, at: 0 })?;
    if found.weights.tensors.is_empty() {
        return Err(Fault::Layout { what: "an ONNX model without initializers".into() });
    }
    Ok(found.weights)
}

struct Found {
    weights: Weights,
    budget: Budget,
}

impl Found {
    fn model(&mut self, mut model: Part) -> Result<(), Fault> {
        while let Some((number, value)) = model.field()? {
            match (number, value) {
                (7, Value::Bytes(graph)) => self.graph(graph)?,
                (14, Value::Bytes(entry)) => self.entry(entry)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn graph(&mut self, mut graph: Part) -> Result<(), Fault> {
        while let Some((number, value)) = graph.field()? {
            match (number, value) {
                (5, Value::Bytes(tensor)) => self.tensor(tensor)?,
                (15, Value::Bytes(sparse)) => return Err(sparse.wrong("sparse initializers are not read")),
                _ => {}
            }
        }
        Ok(())
    }

    /// One of `metadata_props`.
    fn entry(&mut self, mut entry: Part) -> Result<(), Fault> {
        let (mut key, mut text) = (String::new(), String::new());
        while let Some((number, value)) = entry.field()? {
            match (number, value) {
                (1, Value::Bytes(part)) => key = self.text(part)?,
                (2, Value::Bytes(part)) => text = self.text(part)?,
                _ => {}
            }
        }
        limits::at_most("metadata entries", self.weights.metadata.len() as u64 + 1, limits::ONNX_ENTRIES as u64)?;
        match self.weights.metadata.insert(key.clone(), text) {
            Some(_) => Err(Fault::Metadata { key: key.escape_debug().to_string(), what: "it appears twice".into() }),
            None => Ok(()),
        }
    }

    fn tensor(&mut self, mut message: Part) -> Result<(), Fault> {
        let whole = message;
        let (mut shape, mut kind, mut name) = (Vec::new(), 0, String::new());
        let (mut raw, mut typed) = (None, Vec::new());
        while let Some((number, value)) = message.field()? {
            match (number, value) {
                (1, value) => extents(value, &mut shape)?,
                (2, Value::Number(number)) => kind = number,
                (4 | 7, value) => self.typed(number, value, &mut typed)?,
                (5 | 6 | 10 | 11, _) => {
                    return Err(whole.wrong("elements in this kind of list are not read, only raw bytes, floats and 64-bit integers"));
                }
                (8, Value::Bytes(part)) => name = self.text(part)?,
                (9, Value::Bytes(part)) => raw = Some(part.bytes),
                (13, _) | (14, Value::Number(1)) => {
                    return Err(whole.wrong("the weights are in a file of their own; save the model with its weights inside"));
                }
                _ => {}
            }
        }
        let dtype = dtype(kind).ok_or_else(|| Fault::tensor(&name, format!("elements of ONNX type {kind} are not read")))?;
        let spec = TensorSpec { dtype, shape };
        let data = match raw {
            Some(raw) => {
                spec.check(&name, raw)?;
                self.budget.spend(raw.len())?;
                raw.to_vec()
            }
            None => typed,
        };
        spec.check(&name, &data)?;
        limits::at_most("initializers", self.weights.tensors.len() as u64 + 1, limits::ONNX_ENTRIES as u64)?;
        insert(&mut self.weights.tensors, name, Tensor { dtype, shape: spec.shape, data })
    }

    /// One or more elements of `float_data` (field 4) or `int64_data` (field 7).
    fn typed(&mut self, field: u64, value: Value, data: &mut Vec<u8>) -> Result<(), Fault> {
        match value {
            Value::Bytes(part) if field == 4 => {
                self.budget.spend(part.bytes.len())?;
                data.extend_from_slice(part.bytes);
            }
            Value::Bytes(mut part) => {
                while !part.bytes.is_empty() {
                    let number = part.varint()?;
                    self.budget.spend(8)?;
                    data.extend(number.to_le_bytes());
                }
            }
            Value::Number(number) => {
                self.budget.spend(8)?;
                data.extend(number.to_le_bytes());
            }
        }
        Ok(())
    }

    fn text(&mut self, part: Part) -> Result<String, Fault> {
        self.budget.spend(part.bytes.len())?;
        let text = std::str::from_utf8(part.bytes).map_err(|_| part.wrong("text that is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

/// One extent, or several packed.
fn extents(value: Value, shape: &mut Vec<usize>) -> Result<(), Fault> {
    let mut push = |number: u64| {
        let size = usize::try_from(number).ok().filter(|&n| isize::try_from(n).is_ok());
        let size = size.ok_or_else(|| Fault::tensor("", format!("an extent of {}", number as i64)))?;
        limits::at_most("dimensions of a tensor", shape.len() as u64 + 1, limits::RANK as u64)?;
        shape.push(size);
        Ok::<_, Fault>(())
    };
    match value {
        Value::Number(number) => push(number)?,
        Value::Bytes(mut part) => {
            while !part.bytes.is_empty() {
                push(part.varint()?)?;
            }
        }
    }
    Ok(())
}

/// The element type of `TensorProto.DataType`.
fn dtype(kind: u64) -> Option<DType> {
    Some(match kind {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        16 => DType::BF16,
        _ => return None,
    })
}
