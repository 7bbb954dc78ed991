//! What survives a crash: one struct. Anything that is not in it does not survive.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::ema::Ema;
use crate::error::LearnError;
use crate::grads::GradBuffer;
use crate::layout::{Layout, upload};
use crate::optim::Optimizer;

/// The scalars of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seed of every random draw.
    pub seed: u64,
    /// Epoch in progress, from 0; equal to `epochs` once training is done.
    pub epoch: usize,
    /// Epochs planned; a time limit changes it.
    pub epochs: usize,
    /// Batches of this epoch that were trained on or skipped.
    pub position: usize,
    /// Batches since the run began, those repeated after a roll-back included: never goes back, names the checkpoints.
    pub batches: u64,
    /// Optimizer updates.
    pub updates: u64,
    /// Batches since the last update: the place in the accumulation window.
    pub pending: usize,
    /// What the batches since the last update counted (tokens), for a task that divides by it.
    pub pending_count: u64,
    /// Updates of the EMA: its decay depends on it.
    pub ema_updates: u64,
    /// Weighted sums of the loss items over this epoch's batches.
    pub item_sums: Vec<f64>,
    /// The weights in `item_sums`: 1 a batch, or what it counted.
    pub item_count: u64,
    /// Best fitness so far and the epoch (from 0) it was reached in.
    pub best: Option<(f64, usize)>,
    /// Evaluations since then.
    pub since_best: usize,
    /// Updates made when the model was last evaluated.
    pub evaluated_at: u64,
    /// The checkpoint of that epoch, which is kept.
    pub best_step: Option<u64>,
    /// Batches skipped because something was not finite, in all and in a row.
    pub skipped: u64,
    /// Skipped batches in a row.
    pub skipped_in_a_row: u32,
    /// Updates in a row that could not be made: the batches of their windows may well have been finite.
    pub lost_updates: u32,
    /// Returns to an earlier checkpoint.
    pub rollbacks: u32,
    /// Factor on the learning rate, halved by every roll-back.
    pub lr_scale: f64,
    /// Batches are cut into 2^split parts, because the device has no memory for all of one; never goes back. Runs begun before this was
    /// counted had no parts.
    #[serde(default)]
    pub split: u32,
    /// Learning rate of each group at the last batch: the `lr/pgN` columns.
    pub lr: Vec<f64>,
    /// Seconds spent training, over all sessions.
    pub elapsed_s: f64,
    /// Length of `events.jsonl` in bytes.
    pub events_len: u64,
    /// Length of `results.csv` in bytes.
    pub results_len: u64,
    /// Nothing is left to do.
    pub done: bool,
}

impl Counters {
    /// The start of a run.
    pub fn new(seed: u64, epochs: usize, items: usize) -> Self {
        Self {
            seed,
            epoch: 0,
            epochs,
            position: 0,
            batches: 0,
            updates: 0,
            pending: 0,
            pending_count: 0,
            ema_updates: 0,
            item_sums: vec![0.0; items],
            item_count: 0,
            best: None,
            since_best: 0,
            evaluated_at: 0,
            best_step: None,
            skipped: 0,
            skipped_in_a_row: 0,
            lost_updates: 0,
            rollbacks: 0,
            lr_scale: 1.0,
            split: 0,
            lr: Vec::new(),
            elapsed_s: 0.0,
            events_len: 0,
            results_len: 0,
            done: false,
        }
    }

    /// Moves to the start of the next epoch.
    pub(crate) fn next_epoch(&mut self) {
        self.epoch += 1;
        self.position = 0;
        self.item_sums.iter_mut().for_each(|s| *s = 0.0);
        self.item_count = 0;
    }

    /// Parts that a batch is cut into, if it has so many samples.
    pub fn parts(&self) -> usize {
        1_usize.checked_shl(self.split).unwrap_or(usize::MAX)
    }

    /// Mean of each loss item over this epoch so far.
    pub fn item_means(&self) -> Vec<f64> {
        self.item_sums.iter().map(|sum| sum / self.item_count.max(1) as f64).collect()
    }
}

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

/// A checkpoint's files by name.
pub type Members = Vec<(&'static str, Vec<u8>)>;

const WEIGHTS: &str = "weights.safetensors";
const EMA: &str = "ema.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const GRADS: &str = "grads.safetensors";
/// The member that holds [`Counters`].
pub(crate) const COUNTERS: &str = "state.json";

/// Before the names of the optimizer's two buffers of a tensor.
const BUFFERS: [&str; 2] = ["first.", "second."];

impl<M: Module> RunState<M> {
    /// The state as the files of a checkpoint: equal states give equal bytes.
    ///
    /// # Errors
    /// When a tensor cannot be read back from the device.
    pub fn encode(&self, layout: &Layout) -> Result<Members, LearnError> {
        fn all<'a>(layout: &'a Layout, values: &'a [Tensor<1>]) -> Vec<NamedTensor<'a>> {
            named(layout, values.iter().map(Some))
        }
        let mut moments = Vec::new();
        for (slot, values) in [&self.optimizer.first, &self.optimizer.second].into_iter().enumerate() {
            for (mut name, shape, value) in named(layout, values.iter().map(Option::as_ref)) {
                name.insert_str(0, BUFFERS[slot]);
                moments.push((name, self.buffer_shape(slot, &shape), value));
            }
        }
        let counters = serde_json::to_vec_pretty(&Counters { ema_updates: self.ema.updates, ..self.counters.clone() })
            .map_err(|e| LearnError::Config(format!("the run's counters cannot be written: {e}")))?;
        Ok(vec![
            (WEIGHTS, encode(all(layout, &layout.values(&self.model.valid())))?),
            (EMA, encode(all(layout, &self.ema.values))?),
            (OPTIMIZER, encode(moments)?),
            (GRADS, encode(named(layout, self.grads.sums.iter().map(Option::as_ref)))?),
            (COUNTERS, counters),
        ])
    }

    /// Puts a checkpoint's files into this state, which must have been built for the same model and settings.
    ///
    /// # Errors
    /// A sentence saying which file or tensor does not fit.
    pub fn decode<'a>(&mut self, layout: &Layout, device: &Device, member: &dyn Fn(&str) -> Option<&'a [u8]>) -> Result<(), String> {
        let bytes = |name: &'static str| -> Result<&'a [u8], String> { member(name).ok_or_else(|| format!("has no {name}")) };
        let optional = |name: &'static str| read(bytes(name)?, layout, "", <[usize]>::to_vec, device).map_err(|e| format!("{name}: {e}"));
        let complete = |name: &'static str| -> Result<Vec<Tensor<1>>, String> {
            let values = optional(name)?;
            layout.entries.iter().zip(values).map(|(e, v)| v.ok_or_else(|| format!("{name}: no tensor {}", e.name))).collect()
        };
        let counters: Counters = serde_json::from_slice(bytes(COUNTERS)?).map_err(|e| format!("{COUNTERS}: {e}"))?;
        if counters.item_sums.len() != self.counters.item_sums.len() {
            return Err(format!("{COUNTERS}: another number of loss items"));
        }
        let weights = complete(WEIGHTS)?;
        self.ema.values = complete(EMA)?;
        self.ema.updates = counters.ema_updates;
        let buffers = |slot: usize| {
            let shape = |shape: &[usize]| self.buffer_shape(slot, shape);
            read(bytes(OPTIMIZER)?, layout, BUFFERS[slot], shape, device).map_err(|e| format!("{OPTIMIZER}: {e}"))
        };
        (self.optimizer.first, self.optimizer.second) = (buffers(0)?, buffers(1)?);
        let sums = optional(GRADS)?;
        self.grads.sums = if sums.iter().any(Option::is_some) { sums } else { Vec::new() };
        self.model = layout.assign_all(&self.model, weights);
        self.counters = counters;
        Ok(())
    }

    fn buffer_shape(&self, slot: usize, shape: &[usize]) -> Vec<usize> {
        let [first, second] = self.optimizer.kind.buffer_shapes(shape);
        if slot == 0 { first } else { second }
    }
}

type NamedTensor<'a> = (String, Vec<usize>, &'a Tensor<1>);

fn named<'a>(layout: &'a Layout, values: impl Iterator<Item = Option<&'a Tensor<1>>>) -> Vec<NamedTensor<'a>> {
    let with_value = layout.entries.iter().zip(values).filter_map(|(e, v)| v.map(|v| (e, v)));
    with_value.map(|(e, v)| (e.name.clone(), e.shape.clone(), v)).collect()
}

fn encode(tensors: Vec<NamedTensor<'_>>) -> Result<Vec<u8>, LearnError> {
    let failed = |name: &str, e: &dyn std::fmt::Display| LearnError::Device(format!("saving {name}: {e}"));
    let data = tensors
        .into_iter()
        .map(|(name, shape, tensor)| {
            let values = tensor.try_to_vec_as::<f32>().map_err(|e| failed(&name, &e))?;
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            Ok((name, shape, bytes))
        })
        .collect::<Result<Vec<_>, LearnError>>()?;
    let views = data
        .iter()
        .map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| failed(name, &e))?;
            Ok((name.as_str(), view))
        })
        .collect::<Result<Vec<_>, LearnError>>()?;
    safetensors::serialize(views, None).map_err(|e| failed("tensors", &e))
}

/// The tensors of a file whose names begin with `prefix`; `shape_of` says what becomes of a parameter's shape.
fn read(
    bytes: &[u8],
    layout: &Layout,
    prefix: &str,
    shape_of: impl Fn(&[usize]) -> Vec<usize>,
    device: &Device,
) -> Result<Vec<Option<Tensor<1>>>, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    if let Some(name) = file.names().into_iter().find(|name| {
        let bare = BUFFERS.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        !layout.entries.iter().any(|e| e.name == bare || e.name == **name)
    }) {
        return Err(format!("this model has no tensor {name}"));
    }
    layout
        .entries
        .iter()
        .map(|entry| {
            let Ok(view) = file.tensor(&format!("{prefix}{}", entry.name)) else { return Ok(None) };
            let shape = shape_of(&entry.shape);
            if view.dtype() != Dtype::F32 || view.shape() != shape {
                let (name, kind, found) = (&entry.name, view.dtype(), view.shape());
                return Err(format!("{name} is {kind:?} {found:?} where the model has F32 {shape:?}"));
            }
            let (chunks, _) = view.data().as_chunks::<4>();
            let values: Vec<f32> = chunks.iter().map(|c| f32::from_le_bytes(*c)).collect();
            Ok(Some(upload(&values, device)))
        })
        .collect()
}
