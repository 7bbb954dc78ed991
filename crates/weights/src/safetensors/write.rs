//! Writing, as a stream: a header, then the tensors one after the other, no more than one in memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use bellows_runs::sweep_dead;
use indexmap::IndexMap;
use serde_json::json;

use super::{INDEX, SINGLE, header};
use crate::error::{Fault, WeightsError};
use crate::parts::Parts;
use crate::tensor::{TensorSpec, Tensors};

/// Writes a safetensors file. The same input gives the same bytes.
///
/// `data` is asked for the bytes of each tensor, little endian, when it is its turn: those with the widest elements come first,
/// otherwise in the order of `tensors`.
///
/// # Errors
/// What `data` returned; bytes that do not fit their tensor, or a name no reader would take; or `out`'s error.
/// What has been written by then is no valid file: write to a temporary one.
pub fn write_safetensors<D: AsRef<[u8]>, E: From<WeightsError>>(
    out: impl Write,
    tensors: &IndexMap<String, TensorSpec>,
    metadata: &BTreeMap<String, String>,
    data: impl FnMut(&str) -> Result<D, E>,
) -> Result<(), E> {
    let tensors = tensors.iter().map(|(name, spec)| (name.as_str(), spec)).collect();
    stream(out, tensors, metadata, data, |fault| WeightsError::from(fault).into())
}

/// The safetensors file of these tensors. The same input gives the same bytes.
///
/// # Errors
/// A tensor whose data does not fit its shape, or a name no reader would take.
pub fn to_safetensors(tensors: &Tensors, metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, WeightsError> {
    let specs = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.spec())).collect();
    let mut bytes = Vec::new();
    write_safetensors(&mut bytes, &specs, metadata, |name| Ok::<_, WeightsError>(&tensors[name].data))?;
    Ok(bytes)
}

/// Writes the weights of a model into a directory, with `format: pt`, as transformers demands: as `model.safetensors`, or, where
/// that would have more than `max_shard_bytes` of data, as `model-00001-of-00003.safetensors` and so on with
/// `model.safetensors.index.json`. Returns the names of the files. They get these names at the end, when all of them are on disk;
/// then files of such names that an earlier model left are removed, for a reader might take them instead. What processes that died were writing
/// there is removed first: it may be as large as this model, which need not have files of its names.
///
/// `data` is asked for the bytes of each tensor, little endian, when it is its turn.
///
/// # Errors
/// As [`write_safetensors`], with the path. What was in the directory before stands, unless it is the renaming that fails, or
/// the removal of leftovers.
pub fn write_checkpoint<D: AsRef<[u8]>, E: From<WeightsError>>(
    dir: &Path,
    tensors: &IndexMap<String, TensorSpec>,
    max_shard_bytes: usize,
    mut data: impl FnMut(&str) -> Result<D, E>,
) -> Result<Vec<String>, E> {
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let wrong = |path: &Path, fault| -> E { WeightsError::at(path)(fault).into() };
    sweep_dead(dir);
    let (shards, total_size) = shards(tensors, max_shard_bytes).map_err(|fault| wrong(dir, fault))?;
    let (count, mut files, mut weight_map) = (shards.len(), Vec::new(), BTreeMap::new());
    let mut parts = Parts::default();
    for (number, shard) in shards.into_iter().enumerate() {
        let file = if count == 1 { SINGLE.into() } else { format!("model-{:05}-of-{count:05}.safetensors", number + 1) };
        weight_map.extend(shard.keys().map(|&name| (name, file.clone())));
        let path = dir.join(&file);
        parts.write(&path, |out| stream(out, shard, &metadata, &mut data, |fault| wrong(&path, fault)))?;
        files.push(file);
    }
    if count > 1 {
        let index = format!("{:#}\n", json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map }));
        let path = dir.join(INDEX);
        parts.write(&path, |out| out.write_all(index.as_bytes()).map_err(|e| wrong(&path, e.into())))?;
        files.push(INDEX.into());
    }
    parts.publish()?;
    remove_others(dir, &files).map_err(|e| wrong(dir, e.into()))?;
    Ok(files)
}

/// Removes what a model of another layout left in `dir`.
fn remove_others(dir: &Path, files: &[String]) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_ours(&name) && !files.contains(&name) {
            fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

/// Whether [`write_checkpoint`] may give a file this name.
fn is_ours(name: &str) -> bool {
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors")?.split_once("-of-"));
    let number = |text: &str| text.len() >= 5 && text.bytes().all(|b| b.is_ascii_digit());
    name == SINGLE || name == INDEX || shard.is_some_and(|(n, count)| number(n) && number(count))
}

type Specs<'a> = IndexMap<&'a str, &'a TensorSpec>;

/// Consecutive tensors of up to `max_bytes` together (a larger tensor is alone), and the bytes of all; one shard if there are none.
fn shards(tensors: &IndexMap<String, TensorSpec>, max_bytes: usize) -> Result<(Vec<Specs<'_>>, usize), Fault> {
    let (mut shards, mut filled, mut total) = (vec![Specs::new()], 0usize, 0usize);
    for (name, spec) in tensors {
        let bytes = spec.bytes(name)?;
        total = total.checked_add(bytes).ok_or_else(|| Fault::tensor(name, "the model would not fit the address space"))?;
        if filled > 0 && bytes > max_bytes.saturating_sub(filled) {
            shards.push(Specs::new());
            filled = 0;
        }
        filled += bytes;
        if let Some(shard) = shards.last_mut() {
            shard.insert(name, spec);
        }
    }
    Ok((shards, total))
}

fn stream<D: AsRef<[u8]>, E>(
    mut out: impl Write,
    mut tensors: Specs,
    metadata: &BTreeMap<String, String>,
    mut data: impl FnMut(&str) -> Result<D, E>,
    wrong: impl Fn(Fault) -> E,
) -> Result<(), E> {
    // Widest elements first keeps every tensor aligned to its element size, as the reference writer does.
    tensors.sort_by_key(|_, spec| Reverse(spec.dtype.size()));
    let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(Fault::from);
    put(&header::write(&tensors, metadata).map_err(&wrong)?).map_err(&wrong)?;
    for (name, spec) in tensors {
        let data = data(name)?;
        spec.check(name, data.as_ref()).and_then(|()| put(data.as_ref())).map_err(&wrong)?;
    }
    out.flush().map_err(|e| wrong(e.into()))
}
