//! Writing, as a stream: the tables first, then the tensors one after the other, no more than one in memory.

use std::io::Write;

use indexmap::IndexMap;

use super::{MAGIC, Metadata, TensorInfo, alignment};
use crate::error::{Fault, WeightsError};
use crate::limits;
use crate::tensor::check_name;

const VERSION: u32 = 3;
/// ggml's arrays for names have 64 bytes, the last of them zero.
const MAX_NAME: u64 = 63;

/// Writes a GGUF file.
///
/// `values` is asked for the elements of each tensor (row-major), in the order of `tensors`, when it is its turn.
/// Returns the tensors some of whose values were out of f16's range and saturated, with how many; of good weights none.
///
/// # Errors
/// What `values` returned; a tensor that would not read back, or values that do not fit its shape or type; or `out`'s error.
/// What has been written by then is no valid file: write to a temporary one.
pub fn write<E: From<WeightsError>>(
    mut out: impl Write,
    metadata: &Metadata,
    tensors: &IndexMap<String, TensorInfo>,
    mut values: impl FnMut(&str) -> Result<Vec<f32>, E>,
) -> Result<Vec<(String, usize)>, E> {
    let alignment = alignment(metadata).map_err(wrong)?;
    let tables = tables(metadata, tensors, alignment).map_err(wrong)?;
    padded(&mut out, &tables, alignment).map_err(wrong)?;
    let mut saturated = Vec::new();
    for (name, info) in tensors {
        let clamped = data(&mut out, name, info, &values(name)?, alignment).map_err(wrong)?;
        if clamped > 0 {
            saturated.push((name.clone(), clamped));
        }
    }
    out.flush().map_err(|e| wrong(Fault::Io(e)))?;
    Ok(saturated)
}

fn wrong<E: From<WeightsError>>(fault: Fault) -> E {
    WeightsError::from(fault).into()
}

/// Everything before the data.
fn tables(metadata: &Metadata, tensors: &IndexMap<String, TensorInfo>, alignment: usize) -> Result<Vec<u8>, Fault> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        limits::at_most("bytes of a metadata key", key.len() as u64, limits::GGUF_KEY_BYTES)?;
        text(key, &mut out);
        out.extend(value.id().to_le_bytes());
        value.write(&mut out);
    }
    let mut offset = 0u64;
    for (name, info) in tensors {
        check_name(name)?;
        limits::at_most(format!("bytes of the name `{name}`"), name.len() as u64, MAX_NAME)?;
        text(name, &mut out);
        out.extend((info.shape.len() as u32).to_le_bytes());
        for &extent in info.shape.iter().rev() {
            out.extend((extent as u64).to_le_bytes());
        }
        out.extend(info.kind.id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        let end = offset.checked_add(info.bytes(name)? as u64).and_then(|end| end.checked_next_multiple_of(alignment as u64));
        offset = end.ok_or_else(|| Fault::tensor(name, "the file would be larger than any disk"))?;
    }
    Ok(out)
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Returns how many values saturated.
fn data(out: &mut impl Write, name: &str, info: &TensorInfo, values: &[f32], alignment: usize) -> Result<usize, Fault> {
    if values.len() != info.shape.iter().product::<usize>() {
        return Err(Fault::tensor(name, format!("{} values for shape {:?}", values.len(), info.shape)));
    }
    let quantized = info.kind.quantize(values).map_err(|fault| Fault::tensor(name, fault.to_string()))?;
    padded(out, &quantized.bytes, alignment)?;
    Ok(quantized.saturated)
}

/// Writes `bytes` and zeros up to the alignment.
fn padded(out: &mut impl Write, bytes: &[u8], alignment: usize) -> Result<(), Fault> {
    out.write_all(bytes)?;
    out.write_all(&vec![0; bytes.len().next_multiple_of(alignment) - bytes.len()])?;
    Ok(())
}
