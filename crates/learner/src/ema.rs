//! Exponential moving average of every float tensor of a model, batch-norm statistics included: the weights that are judged and saved.

use bellows_kernels::blend;

use crate::arenas::Arenas;

/// Averages of every entry of a [`Layout`](crate::Layout), and how often they were updated.
#[derive(Clone, Debug)]
pub struct Ema {
    /// The averaged tensors.
    pub values: Arenas,
    /// Updates so far: the decay ramps with it.
    pub updates: u64,
    /// Limit of the decay.
    pub decay: f64,
    /// Updates after which the decay has reached 63 % of its limit.
    pub tau: f64,
}

impl Ema {
    /// Starts at the model's own weights. `decay` 0.9999 and `tau` 2000 are the field's defaults.
    pub fn new(weights: Arenas, decay: f64, tau: f64) -> Self {
        Self { values: weights, updates: 0, decay, tau }
    }

    /// d = decay·(1 − e^(−updates/tau)); ema = d·ema + (1−d)·w
    pub fn update(&mut self, weights: Arenas) {
        self.updates += 1;
        let d = self.decay * (1.0 - (-(self.updates as f64) / self.tau).exp());
        for (ema, weight) in self.values.iter_mut().zip(weights) {
            *ema = ema.take().zip(weight).map(|(old, weight)| blend(old, weight, d, 1.0 - d));
        }
    }
}
