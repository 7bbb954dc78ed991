//! What survives a crash: one struct. Anything that is not in it does not survive.

use std::collections::{BTreeMap, HashSet};

use bellows_weights::{Tensors, WeightsError, check_finite, from_safetensors, to_safetensors};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::counters::Counters;
use crate::discrete::{assign_discrete, discrete};
use crate::ema::Ema;
use crate::entry::Entry;
use crate::error::LearnError;
use crate::grads::GradBuffer;
use crate::host::{of_float, to_float};
use crate::layout::Layout;
use crate::optim::Optimizer;

/// Everything a run needs to go on.
pub struct RunState<M> {
    /// The weights being trained, with autodiff.
    pub model: M,
    /// The averaged weights.
    pub ema: Ema,
    /// The moments.
    pub optimizer: Optimizer,
    /// Gradients of an accumulation window that is not full yet.
    pub grads: GradBuffer,
    /// The scalars.
    pub counters: Counters,
}

/// What a batch, or a window of them, may have to go back to: handles, not data. Moments and EMA change last, when everything that needs memory was read back.
pub(crate) struct Before<M> {
    pub(crate) model: M,
    grads: GradBuffer,
    pub(crate) counters: Counters,
}

impl<M: Module> Before<M> {
    pub(crate) fn of(state: &RunState<M>) -> Self {
        Self { model: state.model.valid(), grads: state.grads.clone(), counters: state.counters.clone() }
    }

    pub(crate) fn restore(self, state: &mut RunState<M>) {
        (state.model, state.grads, state.counters) = (self.model.train(), self.grads, self.counters);
    }
}

/// A checkpoint's files by name.
pub type Members = Vec<(&'static str, Vec<u8>)>;

const WEIGHTS: &str = "weights.safetensors";
const EMA: &str = "ema.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const GRADS: &str = "grads.safetensors";
/// Whole numbers and booleans of the model; absent where it has none.
const DISCRETE: &str = "discrete.safetensors";
/// The member that holds [`Counters`].
pub(crate) const COUNTERS: &str = "state.json";

/// Before the names of the optimizer's two buffers of a tensor.
const BUFFERS: [&str; 2] = ["first.", "second."];

impl<M: Module> RunState<M> {
    /// The state as the files of a checkpoint: equal states give equal bytes.
    ///
    /// # Errors
    /// A number that is not finite, with its tensor: such a state is no checkpoint. A tensor that cannot be read back from the device.
    pub fn encode(&self, layout: &Layout) -> Result<Members, LearnError> {
        let mut moments = Vec::new();
        for (slot, values) in [&self.optimizer.first, &self.optimizer.second].into_iter().enumerate() {
            for (mut name, shape, value) in named(layout, layout.scatter(values)) {
                name.insert_str(0, BUFFERS[slot]);
                moments.push((name, self.buffer_shape(slot, &shape), value));
            }
        }
        let model = self.model.valid();
        let counters = serde_json::to_vec_pretty(&Counters { ema_updates: self.ema.updates, ..self.counters.clone() })
            .map_err(|e| LearnError::Config(format!("the run's counters cannot be written: {e}")))?;
        let mut members = vec![
            (WEIGHTS, encode(WEIGHTS, named(layout, layout.values(&model).into_iter().map(Some).collect()))?),
            (EMA, encode(EMA, named(layout, layout.scatter(&self.ema.values)))?),
            (OPTIMIZER, encode(OPTIMIZER, moments)?),
            (GRADS, encode(GRADS, named(layout, self.grads.by_entry(layout)))?),
            (COUNTERS, counters),
        ];
        let discrete = discrete(&model)?;
        if !discrete.is_empty() {
            members.push((DISCRETE, to_file(DISCRETE, &discrete)?));
        }
        Ok(members)
    }

    /// Bytes of the tensors of a checkpoint once every parameter has had an update, with which moments come; with its gradients if made `in_window`.
    pub fn full_size(&self, layout: &Layout, in_window: bool) -> u64 {
        let gradients = |entry: &Entry| usize::from(in_window) * entry.numel();
        let kept = |entry: &Entry| entry.group.map_or(0, |_| self.optimizer.kind.kept(&entry.shape) + gradients(entry));
        layout.entries.iter().map(|entry| (entry.dtype.size() * (2 * entry.numel() + kept(entry))) as u64).sum()
    }

    /// Puts a checkpoint's files into this state, which must have been built for the same model and settings.
    ///
    /// # Errors
    /// A sentence saying which file or tensor does not fit.
    pub fn decode<'a>(&mut self, layout: &Layout, device: &Device, member: &dyn Fn(&str) -> Option<&'a [u8]>) -> Result<(), String> {
        let bytes = |name: &'static str| -> Result<&'a [u8], String> { member(name).ok_or_else(|| format!("has no {name}")) };
        let open = |name: &'static str| open(bytes(name)?, layout).map_err(|e| format!("{name}: {e}"));
        let optional =
            |name: &'static str| take(&mut open(name)?, layout, "", <[usize]>::to_vec, device).map_err(|e| format!("{name}: {e}"));
        let now = layout.values(&self.model.valid());
        let complete = |name: &'static str| -> Result<Vec<Tensor<1>>, String> {
            let values = layout.entries.iter().zip(optional(name)?).zip(&now);
            let value = |((entry, value), now): ((&Entry, Option<Tensor<1>>), &Tensor<1>)| match value {
                Some(value) if value.dtype() == now.dtype() => Ok(value),
                Some(value) => Err(format!("{name}: {} is {:?} where the model has {:?}", entry.name, value.dtype(), now.dtype())),
                None => Err(format!("{name}: no tensor {}", entry.name)),
            };
            values.map(value).collect()
        };
        let counters: Counters = serde_json::from_slice(bytes(COUNTERS)?).map_err(|e| format!("{COUNTERS}: {e}"))?;
        if counters.item_sums.len() != self.counters.item_sums.len() {
            return Err(format!("{COUNTERS}: another number of loss items"));
        }
        let weights = complete(WEIGHTS)?;
        let ema = complete(EMA)?;
        let mut file = open(OPTIMIZER)?;
        let mut buffers = |slot: usize| {
            let shape = |shape: &[usize]| self.buffer_shape(slot, shape);
            take(&mut file, layout, BUFFERS[slot], shape, device).map_err(|e| format!("{OPTIMIZER}: {e}"))
        };
        let moments = (buffers(0)?, buffers(1)?);
        let sums = optional(GRADS)?;
        let mut model = layout.assign(self.model.valid(), weights.into_iter().map(Some).collect());
        if let Some(bytes) = member(DISCRETE) {
            let file = from_safetensors(bytes).map_err(|e| format!("{DISCRETE}: {e}"))?;
            model = assign_discrete(model, file.tensors).map_err(|e| format!("{DISCRETE}: {e}"))?;
        }
        // Nothing is changed before everything has proved to fit.
        self.model = model.train();
        (self.ema.values, self.ema.updates) = (layout.gather(ema.into_iter().map(Some).collect()), counters.ema_updates);
        (self.optimizer.first, self.optimizer.second) = (layout.gather(moments.0), layout.gather(moments.1));
        self.grads = GradBuffer::of(layout, sums);
        self.counters = counters;
        Ok(())
    }

    fn buffer_shape(&self, slot: usize, shape: &[usize]) -> Vec<usize> {
        let [first, second] = self.optimizer.kind.buffer_shapes(shape);
        if slot == 0 { first } else { second }
    }
}

type NamedTensor = (String, Vec<usize>, Tensor<1>);

fn named(layout: &Layout, values: Vec<Option<Tensor<1>>>) -> Vec<NamedTensor> {
    let with_value = layout.entries.iter().zip(values).filter_map(|(e, v)| v.map(|v| (e, v)));
    with_value.map(|(e, v)| (e.name.clone(), e.shape.clone(), v)).collect()
}

fn encode(member: &str, tensors: Vec<NamedTensor>) -> Result<Vec<u8>, LearnError> {
    let tensors = tensors.into_iter().map(|(name, shape, tensor)| Ok((name.clone(), of_float(&name, &shape, &tensor)?)));
    to_file(member, &tensors.collect::<Result<Tensors, LearnError>>()?)
}

/// The file of these tensors, every number of which is finite.
fn to_file(member: &str, tensors: &Tensors) -> Result<Vec<u8>, LearnError> {
    let refused = |e: WeightsError| LearnError::NotFinite { member: member.into(), reason: e.to_string() };
    check_finite(tensors).map_err(refused)?;
    to_safetensors(tensors, &BTreeMap::new()).map_err(|e| LearnError::Config(format!("{member}: {e}")))
}

/// The tensors of a file, all of which are of this model.
fn open(bytes: &[u8], layout: &Layout) -> Result<Tensors, String> {
    let file = from_safetensors(bytes).map_err(|e| e.to_string())?.tensors;
    let known: HashSet<&str> = layout.entries.iter().map(|e| e.name.as_str()).collect();
    let bare = |name: &String| BUFFERS.iter().find_map(|prefix| name.strip_prefix(prefix)).is_some_and(|bare| known.contains(bare));
    match file.keys().find(|name| !known.contains(name.as_str()) && !bare(name)) {
        Some(name) => Err(format!("this model has no tensor {name}")),
        None => Ok(file),
    }
}

/// The tensors of a file whose names begin with `prefix`, taken out of it, so that none is in memory twice; `shape_of` says what becomes of a
/// parameter's shape.
fn take(
    file: &mut Tensors,
    layout: &Layout,
    prefix: &str,
    shape_of: impl Fn(&[usize]) -> Vec<usize>,
    device: &Device,
) -> Result<Vec<Option<Tensor<1>>>, String> {
    let value = |entry: &Entry| {
        let Some(tensor) = file.remove(&format!("{prefix}{}", entry.name)) else { return Ok(None) };
        let shape = shape_of(&entry.shape);
        if tensor.shape != shape {
            return Err(format!("{} is {:?} where the model has {shape:?}", entry.name, tensor.shape));
        }
        to_float(&tensor, device).map(Some).map_err(|e| format!("{} {e}", entry.name))
    };
    layout.entries.iter().map(value).collect()
}
