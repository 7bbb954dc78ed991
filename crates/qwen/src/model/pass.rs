//! What all layers share in one pass over a batch: rotary angles, which tokens see which, and the key of this pass's random draws.

use bellows_kernels::{Precision, next_batch};
use bellows_learner::Rng;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::ModelConfig;
use super::rope::RopeScaling;

/// One pass over a batch.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Rotary angles of the batch's positions.
    pub rope: Rope,
    /// The first key that each token sees, `[B, S]`: they see what lies between that and themselves.
    pub first: Tensor<2, Int>,
    /// How exactly the model's own weights are multiplied.
    pub precision: Precision,
    /// Where dropout and embedding noise are drawn from; `None` in evaluation.
    pub draws: Option<Draws>,
}

/// The random draws of one training batch: re-running a layer draws the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    /// The run's seed.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// What tells the batch from the others of its epoch.
    pub batch: u64,
}

impl Draws {
    /// The draws for `purpose` in the model's map (or layer) number `of`.
    pub fn stream(&self, purpose: &str, of: u64) -> Rng {
        Rng::new(self.seed, &format!("{purpose} {of}"), self.epoch, self.batch)
    }
}

impl Pass {
    /// A batch of `positions` and `documents`, both `[B, S]` row-major; tokens see earlier tokens of their own document, which lie side by side.
    ///
    /// Padding at the end of a row needs no document of its own: nothing before it sees it.
    pub fn new(shape: [usize; 2], positions: &[i32], documents: &[i32], config: &ModelConfig, device: &Device) -> Self {
        let seq = shape[1];
        next_batch();
        let mut first = vec![0; documents.len()];
        for (first, documents) in first.chunks_mut(seq).zip(documents.chunks(seq)) {
            for t in 1..documents.len() {
                first[t] = if documents[t] == documents[t - 1] { first[t - 1] } else { t as i32 };
            }
            let window = window_of(config);
            first.iter_mut().enumerate().for_each(|(t, first)| *first = (*first).max(t as i32 + 1 - window));
        }
        let first = Tensor::from_data(TensorData::new(first, shape), device);
        let longest = positions.iter().max().map_or(0, |&p| p as usize + 1);
        Self { rope: Rope::new(shape, positions, longest, config, device), first, precision: Precision::F32, draws: None }
    }

    /// `tokens` new tokens after `past` old ones in every row. Frequencies that are scaled are those of a text of `longest` tokens, of which these may be
    /// a part.
    pub fn after(past: usize, batch: usize, tokens: usize, longest: usize, config: &ModelConfig, device: &Device) -> Self {
        let positions: Vec<i32> = (0..batch).flat_map(|_| past as i32..(past + tokens) as i32).collect();
        let shape = [batch, tokens];
        let first: Vec<i32> = positions.iter().map(|&p| (p + 1 - window_of(config)).max(0)).collect();
        Self {
            rope: Rope::new(shape, &positions, longest, config, device),
            first: Tensor::from_data(TensorData::new(first, shape), device),
            precision: Precision::F32,
            draws: None,
        }
    }

    /// The same with dropout.
    pub fn with_draws(self, draws: Draws) -> Self {
        Self { draws: Some(draws), ..self }
    }

    /// The same with products of this precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same on the autodiff device, or off it.
    pub fn on(&self, autodiff: bool) -> Self {
        let to = |t: &Tensor<4>| match (autodiff, t.is_autodiff()) {
            (true, false) => Tensor::from_inner(t.clone()),
            (false, true) => t.clone().inner(),
            _ => t.clone(),
        };
        let first = match (autodiff, self.rope.cos.is_autodiff()) {
            (true, false) => Tensor::from_inner(self.first.clone()),
            (false, true) => self.first.clone().inner(),
            _ => self.first.clone(),
        };
        Self { rope: Rope { cos: to(&self.rope.cos), sin: to(&self.rope.sin) }, first, precision: self.precision, draws: self.draws }
    }
}

/// Keys that a token sees.
fn window_of(config: &ModelConfig) -> i32 {
    config.sliding_window.map_or(i32::MAX, |window| window.min(i32::MAX as usize) as i32)
}

/// Cosines and sines, `[1 or B, 1, S, d / 2]`: the first and the second half of a head are the coordinates of d / 2 rotations.
#[derive(Clone, Debug)]
pub struct Rope {
    pub(super) cos: Tensor<4>,
    pub(super) sin: Tensor<4>,
}

impl Rope {
    /// Angle of position p and pair j: `p θ^(-2j/d)`, or p times the frequency as texts of up to `longest` tokens have it scaled, in f32 as the published
    /// models compute it.
    fn new([batch, seq]: [usize; 2], positions: &[i32], longest: usize, config: &ModelConfig, device: &Device) -> Self {
        let half = config.head_dim / 2;
        let rows = if positions.chunks(seq).all(|row| row == &positions[..seq]) { 1 } else { batch };
        let (rotation, scaling) = (config.rotation(), &config.rope_scaling);
        let frequencies = match scaling {
            Some(scaling) => scaling.frequencies(rotation, longest),
            None => (0..half).map(|j| rotation.frequency(j)).collect(),
        };
        let frequencies: Vec<f32> = frequencies.into_iter().map(|f| f as f32).collect();
        let factor = scaling.as_ref().map_or(1.0, RopeScaling::attention_factor) as f32;
        let table = |of: fn(f32) -> f32| {
            let values = positions[..rows * seq].iter().flat_map(|&p| frequencies.iter().map(move |f| factor * of(p as f32 * f)));
            Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), [rows, 1, seq, half]), device)
        };
        Self { cos: table(f32::cos), sin: table(f32::sin) }
    }
}

/// Keys and values of one layer, `[B, n_kv, T, d]` each.
#[derive(Clone, Debug, Default)]
pub struct KvCache(Option<(Tensor<4>, Tensor<4>)>);

impl KvCache {
    /// Appends, and returns all.
    pub(super) fn extend(&mut self, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.0.take() {
            Some((old_k, old_v)) => (Tensor::cat(vec![old_k, k], 2), Tensor::cat(vec![old_v, v], 2)),
            None => (k, v),
        };
        self.0 = Some(all.clone());
        all
    }
}
