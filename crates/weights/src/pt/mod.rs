//! `.pt` files, as `torch.save` has written them since PyTorch 1.6: a zip with a pickle and raw storages.
//!
//! Reading: `archive` opens the zip, `opcodes` splits the pickle into instructions, `machine` executes them on `value`s with
//! the allow-list in `globals`, `rebuild` checks descriptions of tensors, `view` turns them into bytes, `modules` finds and names the weights.
//! Nothing of Python is run. Writing: `write` makes the pickle of a tree of values and the zip around it; what the values
//! mean to whoever loads them is the caller's knowledge.
//! Format: `torch/csrc/jit/serialization/docs/serialization.md` in the PyTorch sources.

mod archive;
mod globals;
mod machine;
mod modules;
mod opcodes;
mod rebuild;
mod value;
mod view;
mod write;

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use crate::error::Fault;
use crate::limits::Budget;
use crate::tensor::{Tensor, Tensors, Weights, insert};
use archive::Archive;
use view::TensorRef;
pub use write::{Pickled, Storages, View, write};

/// Reads a `.pt` of `size` bytes.
pub(crate) fn read(file: impl Read + Seek, size: u64) -> Result<Weights, Fault> {
    let mut archive = Archive::open(file, size)?;
    let pickle = archive.pickle()?;
    let (arena, root) = machine::load(&pickle)?;
    let found = modules::find(&arena, root, &mut Budget::bytes_of(size))?;

    let mut metadata = found.metadata;
    for (name, tensor) in materialise(&mut archive, found.facts)? {
        metadata.insert(name, number_list(&tensor)?);
    }
    Ok(Weights { tensors: materialise(&mut archive, found.tensors)?, metadata, classes: found.classes })
}

/// Reads the storages and cuts the tensors out of them. Each storage is read once, and only one is held at a time.
fn materialise<'a, R: Read + Seek>(archive: &mut Archive<R>, views: Vec<(String, TensorRef<'a>)>) -> Result<Tensors, Fault> {
    let mut by_storage: BTreeMap<&'a str, Vec<(String, TensorRef<'a>)>> = BTreeMap::new();
    for (name, view) in views {
        by_storage.entry(view.storage.key).or_default().push((name, view));
    }
    let mut tensors = Tensors::new();
    for (key, views) in by_storage {
        let Some((_, first)) = views.first() else { continue };
        let storage = first.storage;
        if let Some((name, view)) = views.iter().find(|(_, view)| view.storage != storage) {
            let what = format!(
                "storage `{key}` is {} of {} bytes here, elsewhere {} of {}",
                view.storage.dtype, view.storage.bytes, storage.dtype, storage.bytes
            );
            return Err(Fault::tensor(name, what));
        }
        let bytes = archive.storage(key, storage.bytes)?;
        // The common case by far: one tensor owns its storage, and no copy is made.
        if let [(name, view)] = views.as_slice()
            && view.is_whole()
        {
            insert(&mut tensors, name.clone(), Tensor { dtype: storage.dtype, shape: view.shape.clone(), data: bytes })?;
            continue;
        }
        for (name, view) in views {
            insert(&mut tensors, name, Tensor { dtype: storage.dtype, data: view.gather(&bytes), shape: view.shape })?;
        }
    }
    Ok(tensors)
}

/// `[8.0,16.0,32.0]`
fn number_list(tensor: &Tensor) -> Result<String, Fault> {
    let values = tensor.to_f32().map_err(|error| error.fault)?;
    Ok(serde_json::Value::from(values).to_string())
}
