//! A model whose adapters are merged into the values of its files: not into the rounded ones they were trained beside, and without the model in memory.
//!
//! The files are read a tensor at a time while others are written.

use std::path::{Path, PathBuf};

use bellows_weights::{DType, WeightsError};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use indexmap::IndexMap;

use crate::adapter::{EMBEDDING, HEAD, LoraConfig};
use crate::base::{Base, BaseError};
use crate::export::{ExportError, Parameters};
use crate::grow::with_rows;
use crate::load::{LoadError, checked};
use crate::model::{CausalLm, ModelConfig};
use crate::stored::Stored;
use crate::weights::host;

/// What a merged model is written in where no other type is asked for: what the matrices of its base in the directory or `.gguf` file `path` are in,
/// bf16 for blocks of few bits, f32 where they are in several types.
///
/// # Errors
/// Files that cannot be read.
pub fn own_dtype(path: &Path) -> Result<DType, WeightsError> {
    Ok(Stored::open(path)?.dtype())
}

/// Adapters and the files of their base.
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
    /// The base in the directory or `.gguf` file `path`, with the adapters of `model`, and what else is `adapter`'s ([`LoraConfig::keeps`]): none of its other
    /// weights is looked at. Sums are made on `device`.
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
        if self.adapter.keeps(name) {
            return self.model.values(name);
        }
        let values = self.stored(name)?;
        let linear = name.strip_suffix(".weight").and_then(|module| self.model.linears().find(|(name, _)| name == module));
        match linear.and_then(|(_, linear)| Some((linear.lora.as_ref()?, linear.weight.dims()))) {
            Some((lora, shape)) => {
                let weight = Tensor::<2>::from_data(TensorData::new(values, shape), self.device);
                Ok(host(name, lora.clone().to_device(self.device).merge(weight))?)
            }
            None => Ok(values),
        }
    }
}

impl Merging<'_> {
    /// The values in the files.
    fn stored(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let shape = self.shapes.get(name).map(Vec::as_slice).unwrap_or_default();
        let in_file = |source| ExportError::Load { path: self.path.clone(), source };
        let tensor = self.files.tensor(name, self.shape).map_err(|error| in_file(error.into()))?;
        let (found, values) = tensor.ok_or_else(|| in_file(LoadError::Missing(name.into())))?;
        // The rows of an adapter's tokenizer: the embedding's are with the adapter, those of a head of its own need not be. They are as many as the base says.
        if let ([rows, width], [wanted, as_wide]) = (&found[..], shape)
            && rows != wanted
            && width == as_wide
            && name == HEAD
            && self.adapter.keeps(EMBEDDING)
        {
            let unread = |e: BaseError| ExportError::File { path: self.path.clone(), reason: e.to_string() };
            let own = Base::shape(&self.path).map_err(unread)?.vocab_size;
            let values = checked(name, (found.clone(), values), &[own, *width]).map_err(in_file)?;
            let tokens = Base::tokenizer(&self.path).map_err(unread)?.len();
            let old = Tensor::<2>::from_data(TensorData::new(values, [*rows, *width]), self.device);
            return Ok(host(name, with_rows(old, tokens..*wanted, *wanted))?);
        }
        checked(name, (found, values), shape).map_err(in_file)
    }
}
