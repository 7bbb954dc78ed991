//! Checkpoint tensors into a model, under the checkpoint's own names.

use std::collections::BTreeSet;

use bellows_weights::WeightsError;
use burn::module::Param;
use burn::tensor::Tensor;

use crate::adapter::{EMBEDDING, HEAD};
use crate::model::CausalLm;
use crate::model::weight::Weight;
use crate::named::{Change, map};
use crate::storage::BaseDtype;

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
    /// A value that the type asked for does not hold.
    #[error("{0} holds a value beyond ±65504, the range of f16: bf16 holds it")]
    Range(String),
    /// A value that is NaN or infinite.
    #[error("{0} holds a value that is not finite")]
    NotFinite(String),
    /// A tensor's bytes cannot be read as numbers.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Shape and values of a tensor on the host.
pub type HostTensor = (Vec<usize>, Vec<f32>);

/// Fills every parameter but those of adapters with what `read` returns for its name, stored as `dtype` says. One tensor at a time is in memory in
/// f32. Maps that are in blocks already stay; if all linear maps are `frozen`, [`BaseDtype::Auto`] may put them in blocks of the same values.
///
/// # Errors
/// A tensor that is missing, has another shape, or is not finite.
pub fn load(
    model: CausalLm,
    dtype: BaseDtype,
    frozen: bool,
    read: impl FnMut(&str) -> Result<Option<HostTensor>, WeightsError>,
) -> Result<CausalLm, LoadError> {
    load_for(model, [dtype; 2], frozen, read)
}

/// The same with layers, and embedding and head, stored as these two say.
pub(crate) fn load_for(
    mut model: CausalLm,
    dtypes: [BaseDtype; 2],
    frozen: bool,
    mut read: impl FnMut(&str) -> Result<Option<HostTensor>, WeightsError>,
) -> Result<CausalLm, LoadError> {
    let ([dtype, _], mut dense) = (dtypes, BTreeSet::new());
    let mut need = |name: &str| -> Result<HostTensor, LoadError> { read(name)?.ok_or_else(|| LoadError::Missing(name.into())) };
    for (name, linear) in model.linears_mut().filter(|(_, linear)| matches!(linear.weight, Weight::Dense(_))) {
        let (name, shape, device) = (format!("{name}.weight"), linear.weight.dims(), linear.weight.device());
        let Some((encode, holds)) = dtype.encoder(&device).filter(|_| frozen || dtype.rounds()) else { break };
        let values = checked(&name, need(&name)?, &shape)?;
        // Each by its own values, as plans count them: a file may have maps of several types.
        linear.weight = if values.iter().copied().all(holds) {
            Weight::Blocks(encode(&values, shape, &device))
        } else {
            let tensor = dtype.tensor(values, shape, &device).map_err(|_| LoadError::Range(name.clone()))?;
            dense.insert(name);
            Weight::frozen(tensor)
        };
    }
    fill(model, Some(dtypes), &mut |name| if dense.contains(name) { Ok(None) } else { need(name).map(Some) })
}

/// The values of a tensor that has the shape it should have, and numbers in it.
pub(crate) fn checked(name: &str, (shape, values): HostTensor, expected: &[usize]) -> Result<Vec<f32>, LoadError> {
    if shape != expected {
        return Err(LoadError::Shape { name: name.into(), found: shape, expected: expected.into() });
    }
    if values.iter().all(|v| v.is_finite()) { Ok(values) } else { Err(LoadError::NotFinite(name.into())) }
}

/// Replaces the parameters, those of adapters too, for which `read` returns something; returns their names too.
///
/// # Errors
/// A tensor of another shape, or that is not finite.
pub fn replace(model: CausalLm, mut read: impl FnMut(&str) -> Option<HostTensor>) -> Result<(CausalLm, Vec<String>), LoadError> {
    let mut used = Vec::new();
    let model = fill(model, None, &mut |name| {
        let tensor = read(name);
        used.extend(tensor.is_some().then(|| name.to_owned()));
        Ok(tensor)
    })?;
    Ok((model, used))
}

type Read<'a> = &'a mut dyn FnMut(&str) -> Result<Option<HostTensor>, LoadError>;

/// `dtypes` are those of a base, whose adapters are passed over; without them everything is f32.
fn fill(model: CausalLm, dtypes: Option<[BaseDtype; 2]>, read: Read<'_>) -> Result<CausalLm, LoadError> {
    struct Fill<'a> {
        dtypes: Option<[BaseDtype; 2]>,
        read: Read<'a>,
        error: Option<LoadError>,
    }
    impl Fill<'_> {
        fn tensor<const D: usize>(&mut self, name: &str, param: &Param<Tensor<D>>) -> Result<Option<Tensor<D>>, LoadError> {
            let (shape, device) = (param.lazy_shape().dims::<D>(), param.lazy_device());
            let Some(tensor) = (self.read)(name)? else { return Ok(None) };
            let values = checked(name, tensor, &shape)?;
            let of_base = |[layers, rows]: [BaseDtype; 2]| if [EMBEDDING, HEAD].contains(&name) { rows } else { layers };
            let tensor = self.dtypes.map_or(BaseDtype::F32, of_base).tensor(values, shape, &device);
            tensor.map(Some).map_err(|_| LoadError::Range(name.into()))
        }
    }
    impl Change for Fill<'_> {
        fn change<const D: usize>(&mut self, name: &str, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if self.error.is_some() || (name.contains(".lora.") && self.dtypes.is_some()) {
                return param;
            }
            match self.tensor(name, &param) {
                Ok(Some(tensor)) => {
                    let id = param.id;
                    param.transform_for_load(tensor, id)
                }
                Ok(None) => param,
                Err(error) => {
                    self.error = Some(error);
                    param
                }
            }
        }
    }
    let mut fill = Fill { dtypes, read, error: None };
    let model = map(model, &mut fill);
    match fill.error {
        Some(error) => Err(error),
        None => Ok(model),
    }
}
