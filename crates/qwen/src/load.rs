//! Checkpoint tensors into a model, under the checkpoint's own names.

use bellows_kernels::reads_bf16;
use bellows_weights::WeightsError;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor, TensorData};
use rayon::prelude::*;

use crate::model::CausalLm;

/// Why weights do not fit a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A tensor the model needs is not there.
    #[error("no tensor {0}")]
    Missing(String),
    /// A tensor has another shape.
    #[error("{name} has shape {found:?} where the configuration asks for {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The model's.
        expected: Vec<usize>,
    },
    /// A tensor the model would not use, and without which it would compute something else.
    #[error(
        "the tensor {0} has no place in this model, which would compute something else without it (further biases and other frequencies of rotary positions are not supported)"
    )]
    Unused(String),
    /// A value that is NaN or infinite.
    #[error("{0} holds a value that is not finite")]
    NotFinite(String),
    /// A tensor's bytes cannot be read as numbers.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Shape and values of a tensor on the host.
pub type HostTensor = (Vec<usize>, Vec<f32>);

/// The path of a module's fields, joined by dots.
#[derive(Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    pub(crate) fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    pub(crate) fn leave(&mut self) {
        self.0.pop();
    }

    pub(crate) fn join(&self) -> String {
        self.0.join(".")
    }
}

/// Fills every parameter but those of adapters with what `read` returns for its name.
///
/// # Errors
/// A tensor that is missing, has another shape, or is not finite.
pub fn load(model: CausalLm, mut read: impl FnMut(&str) -> Result<Option<HostTensor>, WeightsError>) -> Result<CausalLm, LoadError> {
    fill(model, false, &mut |name| read(name)?.map(Some).ok_or_else(|| LoadError::Missing(name.into())))
}

/// Whether bf16 holds all of these exactly, as it does those of a checkpoint in bf16: kept so, they take half the memory, and products of them
/// have the same bits.
fn fits_bf16(values: &[f32]) -> bool {
    values.par_iter().all(|v| v.to_bits() & 0xffff == 0)
}

/// Replaces the parameters, those of adapters too, for which `read` returns something; returns their names too.
///
/// # Errors
/// A tensor of another shape, or that is not finite.
pub fn replace(model: CausalLm, mut read: impl FnMut(&str) -> Option<HostTensor>) -> Result<(CausalLm, Vec<String>), LoadError> {
    let mut used = Vec::new();
    let model = fill(model, true, &mut |name| {
        let tensor = read(name);
        used.extend(tensor.is_some().then(|| name.to_owned()));
        Ok(tensor)
    })?;
    Ok((model, used))
}

type Read<'a> = &'a mut dyn FnMut(&str) -> Result<Option<HostTensor>, LoadError>;

fn fill(model: CausalLm, adapters: bool, read: Read<'_>) -> Result<CausalLm, LoadError> {
    struct Fill<'a> {
        path: Path,
        adapters: bool,
        read: Read<'a>,
        error: Option<LoadError>,
    }
    impl Fill<'_> {
        fn values(&mut self, name: &str, expected: &[usize]) -> Result<Option<Vec<f32>>, LoadError> {
            let Some((shape, values)) = (self.read)(name)? else { return Ok(None) };
            if shape != expected {
                return Err(LoadError::Shape { name: name.into(), found: shape, expected: expected.into() });
            }
            if !values.iter().all(|v| v.is_finite()) {
                return Err(LoadError::NotFinite(name.into()));
            }
            Ok(Some(values))
        }
    }
    impl ModuleMapper for Fill<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (name, shape) = (self.path.join(), param.lazy_shape().to_vec());
            if self.error.is_some() || (name.contains(".lora.") && !self.adapters) {
                return param;
            }
            match self.values(&name, &shape) {
                Ok(Some(values)) => {
                    let (id, device) = (param.id, param.lazy_device());
                    // A base that is loaded is frozen.
                    let narrow = !self.adapters && D == 2 && reads_bf16(&device) && fits_bf16(&values);
                    let new = Tensor::<D>::from_data(TensorData::new(values, shape), &device);
                    param.transform_for_load(if narrow { new.cast(DType::BF16) } else { new }, id)
                }
                Ok(None) => param,
                Err(error) => {
                    self.error = Some(error);
                    param
                }
            }
        }
    }
    let mut fill = Fill { path: Path::default(), adapters, read, error: None };
    let model = model.map(&mut fill);
    match fill.error {
        Some(error) => Err(error),
        None => Ok(model),
    }
}
