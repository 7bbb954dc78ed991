//! A tuned model whose adapters are merged into the values of its files, not into the rounded ones they were trained beside.
//!
//! The files are read a tensor at a time while others are written: the base is in memory once, as it was trained, and never in f32.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use indexmap::IndexMap;

use crate::adapter::{EMBEDDING, HEAD, LoraConfig};
use crate::export::{ExportError, Parameters};
use crate::load::{LoadError, checked};
use crate::model::{CausalLm, ModelConfig};
use crate::stored::Stored;
use crate::weights::host;

/// A tuned model and the files of its base.
pub struct Merging<'a> {
    path: PathBuf,
    files: Stored,
    model: &'a CausalLm,
    shape: &'a ModelConfig,
    adapter: &'a LoraConfig,
    device: &'a Device,
    shapes: IndexMap<String, Vec<usize>>,
}

impl<'a> Merging<'a> {
    /// The base in the directory or `.gguf` file `path`, with the adapters, and what was trained whole, of `model`. Sums are made on `device`.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn open(
        path: &Path,
        (model, shape): (&'a CausalLm, &'a ModelConfig),
        adapter: &'a LoraConfig,
        device: &'a Device,
    ) -> Result<Self, ExportError> {
        // A model with blocks would tell them last, and here they are none.
        let shapes = CausalLm::new(shape, device).shapes();
        Ok(Self { path: path.into(), files: Stored::open(path)?, model, shape, adapter, device, shapes })
    }
}

impl Parameters for Merging<'_> {
    fn shapes(&self) -> IndexMap<String, Vec<usize>> {
        self.shapes.clone()
    }

    fn values(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        if self.adapter.trains(name) {
            return self.model.values(name);
        }
        let shape = self.shapes.get(name).map(Vec::as_slice).unwrap_or_default();
        let in_file = |source| ExportError::Load { path: self.path.clone(), source };
        let tensor = self.files.tensor(name, self.shape).map_err(|error| in_file(error.into()))?;
        let tensor = tensor.ok_or_else(|| in_file(LoadError::Missing(name.into())))?;
        // What grew with the adapter's tokenizer has its last rows in the model alone.
        let [rows, wanted] = [&tensor.0, shape].map(|shape| shape.split_first());
        let fewer = rows.zip(wanted).is_some_and(|((rows, width), (wanted, as_wide))| rows < wanted && width == as_wide);
        if fewer && [EMBEDDING, HEAD].contains(&name) {
            return self.model.values(name);
        }
        let values = checked(name, tensor, shape).map_err(in_file)?;
        let linear = name.strip_suffix(".weight").and_then(|module| self.model.linears().find(|(name, _)| name == module));
        match linear.and_then(|(_, linear)| linear.lora.as_ref()) {
            Some(lora) => {
                let weight = Tensor::<2>::from_data(TensorData::new(values, shape), self.device);
                Ok(host(name, lora.clone().to_device(self.device).merge(weight))?)
            }
            None => Ok(values),
        }
    }
}
