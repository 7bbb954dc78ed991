//! Learning rate, momentum and accumulation of every batch, as pure functions of where a run is.
//!
//! The rules are those detector users know: the rate is constant within an epoch and falls linearly or along a cosine to `lrf`; during
//! warm-up the bias rate falls from `warmup_bias_lr`, the others rise from 0, momentum rises from `warmup_momentum`, and the number of
//! accumulated batches rises from 1 to `nbs / batch`.

use serde::{Deserialize, Serialize};

use crate::task::Group;

/// Settings of the schedule, with the field's usual names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Initial learning rate.
    pub lr0: f64,
    /// Final learning rate as a fraction of `lr0`.
    pub lrf: f64,
    /// Cosine instead of linear decay.
    pub cos_lr: bool,
    /// Momentum (SGD) or beta1 (Adam) after warm-up.
    pub momentum: f64,
    /// Warm-up length in epochs, fractions allowed; at least 100 batches when it is not 0.
    pub warmup_epochs: f64,
    /// Momentum at the start of warm-up.
    pub warmup_momentum: f64,
    /// Learning rate of biases at the start of warm-up.
    pub warmup_bias_lr: f64,
    /// Nominal batch size that gradients are accumulated to.
    pub nbs: usize,
    /// Samples per batch.
    pub batch: usize,
}

/// What one batch is trained with.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate of each parameter group.
    pub lr: Vec<f64>,
    /// Momentum or beta1.
    pub momentum: f64,
    /// Batches to sum gradients over before an update.
    pub accumulate: usize,
}

impl Schedule {
    /// Batches whose gradients are summed once warm-up is over: `max(round(nbs / batch), 1)`.
    pub fn accumulate(&self) -> usize {
        (self.nbs as f64 / self.batch as f64).round_ties_even().max(1.0) as usize
    }

    /// Factor on `lr0` in `epoch` (from 0) of `epochs`.
    pub fn decay(&self, epoch: usize, epochs: usize) -> f64 {
        let (e, total) = (epoch as f64, epochs as f64);
        if self.cos_lr {
            (1.0 - (std::f64::consts::PI * e / total).cos()) / 2.0 * (self.lrf - 1.0) + 1.0
        } else {
            (1.0 - e / total).max(0.0) * (1.0 - self.lrf) + self.lrf
        }
    }

    /// Warm-up length in batches; `None` without warm-up.
    pub fn warmup_batches(&self, batches_per_epoch: usize) -> Option<usize> {
        (self.warmup_epochs > 0.0).then(|| ((self.warmup_epochs * batches_per_epoch as f64).round_ties_even() as usize).max(100))
    }

    /// Everything for batch number `iteration` (counted from the start of the run) in `epoch` of `epochs`.
    pub fn at(&self, iteration: usize, epoch: usize, epochs: usize, batches_per_epoch: usize, groups: &[Group], adam: bool) -> Hyper {
        let base = self.lr0 * self.decay(epoch, epochs);
        let settled = |group: &Group| base * group.lr_scale;
        let Some(warmup) = self.warmup_batches(batches_per_epoch).filter(|&n| iteration <= n) else {
            return Hyper { lr: groups.iter().map(settled).collect(), momentum: self.momentum, accumulate: self.accumulate() };
        };
        let t = iteration as f64 / warmup as f64;
        let ramp = |from: f64, to: f64| from + (to - from) * t;
        Hyper {
            lr: groups.iter().map(|g| ramp(if g.bias { self.warmup_bias_lr } else { 0.0 }, settled(g))).collect(),
            momentum: if adam { self.momentum } else { ramp(self.warmup_momentum, self.momentum) },
            accumulate: ramp(1.0, self.nbs as f64 / self.batch as f64).round_ties_even().max(1.0) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule {
            lr0: 0.01,
            lrf: 0.01,
            cos_lr: false,
            momentum: 0.937,
            warmup_epochs: 3.0,
            warmup_momentum: 0.8,
            warmup_bias_lr: 0.1,
            nbs: 64,
            batch: 16,
        }
    }

    fn groups() -> Vec<Group> {
        [true, false].map(|bias| Group { lr_scale: 1.0, weight_decay: 0.0, bias }).to_vec()
    }

    #[test]
    fn linear_and_cosine_end_points() {
        let mut s = schedule();
        assert_eq!(s.decay(0, 100), 1.0);
        assert!((s.decay(50, 100) - 0.505).abs() < 1e-12);
        assert!((s.decay(99, 100) - (0.01 * 0.99 + 0.01)).abs() < 1e-12);
        s.cos_lr = true;
        assert_eq!(s.decay(0, 100), 1.0);
        assert!((s.decay(50, 100) - 0.505).abs() < 1e-12);
        assert!((s.decay(100, 100) - 0.01).abs() < 1e-12);
    }

    #[test]
    fn warmup_ramps_rates_momentum_and_accumulation() {
        let s = schedule();
        assert_eq!(s.warmup_batches(100), Some(300));
        assert_eq!(s.warmup_batches(10), Some(100), "never shorter than 100 batches");
        let start = s.at(0, 0, 100, 100, &groups(), false);
        assert_eq!((start.lr.as_slice(), start.momentum, start.accumulate), (&[0.1, 0.0][..], 0.8, 1));
        let middle = s.at(150, 1, 100, 100, &groups(), false);
        let lr = 0.01 * s.decay(1, 100);
        assert!((middle.lr[0] - (0.1 + lr) / 2.0).abs() < 1e-12 && (middle.lr[1] - lr / 2.0).abs() < 1e-12);
        assert_eq!(middle.accumulate, 2, "2.5 rounds to even");
        let after = s.at(301, 3, 100, 100, &groups(), false);
        assert_eq!((after.momentum, after.accumulate), (0.937, 4));
        assert_eq!(after.lr[0], after.lr[1]);
    }

    #[test]
    fn no_warmup_starts_settled() {
        let s = Schedule { warmup_epochs: 0.0, ..schedule() };
        assert_eq!(s.at(0, 0, 10, 5, &groups(), false), Hyper { lr: vec![0.01; 2], momentum: 0.937, accumulate: 4 });
    }

    #[test]
    fn adam_keeps_its_beta_during_warmup() {
        assert_eq!(schedule().at(0, 0, 10, 100, &groups(), true).momentum, 0.937);
    }
}
