//! Learning rate, momentum and accumulation of every batch, as pure functions of where a run is.
//!
//! The rules by epochs are those detector users know: the rate is constant within an epoch and falls linearly or along a cosine to `lrf`; during
//! warm-up the bias rate falls from `warmup_bias_lr`, the others rise from 0, momentum rises from `warmup_momentum`, and the number of
//! accumulated batches rises from 1 to `nbs / batch`.

use serde::{Deserialize, Serialize};

use crate::task::Group;

/// How rates move over a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Schedule {
    /// By epochs, as detectors are trained.
    Epochs(EpochSchedule),
    /// By updates, as language models are trained.
    Updates(UpdateSchedule),
}

impl Schedule {
    /// Samples per batch, of all ranks together.
    pub fn batch(&self) -> usize {
        match self {
            Self::Epochs(s) => s.batch,
            Self::Updates(s) => s.batch,
        }
    }

    /// The most batches that gradients are summed over.
    pub(crate) fn accumulate(&self) -> usize {
        match self {
            Self::Epochs(s) => s.accumulate(),
            Self::Updates(s) => s.accumulate,
        }
    }

    /// Everything for batch `position` of `batches` in `epoch` of `epochs`, all from 0; a run by updates ends after `max_steps` of them, if given.
    pub(crate) fn at(
        &self,
        position: usize,
        batches: usize,
        (epoch, epochs): (usize, usize),
        groups: &[Group],
        adam: bool,
        max_steps: Option<u64>,
    ) -> Hyper {
        match self {
            Self::Epochs(s) => s.at(epoch * batches + position, epoch, epochs, batches, groups, adam),
            Self::Updates(s) => s.at(position, batches, (epoch, epochs), groups, max_steps),
        }
    }
}

/// Settings of a schedule by epochs, with the field's usual names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochSchedule {
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
    /// Samples per batch, of all ranks together.
    pub batch: usize,
}

impl Default for EpochSchedule {
    /// What detectors are trained with: SGD's rates, three epochs of warm-up, batches of 16 in windows of 64.
    fn default() -> Self {
        Self {
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

impl EpochSchedule {
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

/// The shape of the learning rate after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Stays.
    Constant,
    /// A straight line to the end.
    Linear,
    /// Half a cosine to the end.
    #[default]
    Cosine,
    /// Stays, and falls along a straight line over the last tenth (warm-up, stable, decay; Hu et al. 2024).
    Wsd,
}

/// Settings of a schedule by updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateSchedule {
    /// Peak learning rate.
    pub lr: f64,
    /// What it ends at, as a fraction of the peak.
    pub min_lr_ratio: f64,
    /// The shape.
    pub decay: Decay,
    /// Updates over which the rate rises from 0, if given; else `warmup_ratio` counts.
    pub warmup_steps: Option<usize>,
    /// The same as a fraction of all updates, rounded up.
    pub warmup_ratio: f64,
    /// beta1, or SGD's momentum.
    pub momentum: f64,
    /// Samples per batch, of all ranks together.
    pub batch: usize,
    /// Batches to sum gradients over; the last window of an epoch may be shorter, and so may one of which batches are left out.
    pub accumulate: usize,
}

impl Default for UpdateSchedule {
    /// AdamW's usual rate, which falls along half a cosine to 0; no warm-up, an update of every sample.
    fn default() -> Self {
        Self {
            lr: 1e-3,
            min_lr_ratio: 0.0,
            decay: Decay::Cosine,
            warmup_steps: None,
            warmup_ratio: 0.0,
            momentum: 0.9,
            batch: 1,
            accumulate: 1,
        }
    }
}

impl UpdateSchedule {
    /// Updates of an epoch of `batches`.
    pub fn updates(&self, batches: usize) -> usize {
        batches.div_ceil(self.accumulate.max(1))
    }

    /// Factor on `lr` for update `u` (from 0) of `total`: that of the field's trainers, whose first update is made at rate 0 if there is
    /// a warm-up.
    pub fn factor(&self, u: usize, total: usize) -> f64 {
        let warmup = self.warmup_steps.unwrap_or((self.warmup_ratio * total as f64).ceil() as usize);
        if u < warmup {
            return u as f64 / warmup as f64;
        }
        let progress = |from: usize| (u.saturating_sub(from) as f64 / total.saturating_sub(from).max(1) as f64).min(1.0);
        let fall = match self.decay {
            Decay::Constant => return 1.0,
            Decay::Linear => 1.0 - progress(warmup),
            Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress(warmup)).cos()),
            Decay::Wsd => 1.0 - progress((total - total.div_ceil(10)).max(warmup)),
        };
        self.min_lr_ratio + (1.0 - self.min_lr_ratio) * fall
    }

    fn at(&self, position: usize, batches: usize, (epoch, epochs): (usize, usize), groups: &[Group], max_steps: Option<u64>) -> Hyper {
        let (window, updates) = (position / self.accumulate.max(1), self.updates(batches));
        let total = max_steps.map_or(epochs * updates, |most| (epochs * updates).min(most as usize));
        let lr = self.lr * self.factor(epoch * updates + window, total);
        // The batches of this window: the last one of an epoch ends with it.
        let accumulate = self.accumulate.max(1).min(batches - window * self.accumulate.max(1));
        Hyper { lr: groups.iter().map(|g| lr * g.lr_scale).collect(), momentum: self.momentum, accumulate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right-hand sides are those of transformers' get_*_schedule_with_warmup for 4 updates of warm-up in 20.
    #[test]
    fn update_schedules_are_the_fields() {
        let schedule =
            |decay| UpdateSchedule { lr: 1.0, decay, warmup_steps: Some(4), warmup_ratio: 0.5, accumulate: 3, ..UpdateSchedule::default() };
        let factors = |decay, at: [usize; 5]| at.map(|u| schedule(decay).factor(u, 20));
        assert_eq!(factors(Decay::Constant, [0, 1, 4, 12, 19]), [0.0, 0.25, 1.0, 1.0, 1.0]);
        assert_eq!(factors(Decay::Linear, [0, 1, 4, 12, 19]), [0.0, 0.25, 1.0, 0.5, 0.0625]);
        let cosine = factors(Decay::Cosine, [0, 1, 4, 12, 19]);
        for (ours, theirs) in cosine.into_iter().zip([0.0, 0.25, 1.0, 0.5, 0.009_607_359_798_384_785]) {
            assert!((ours - theirs).abs() < 1e-12, "{cosine:?}");
        }
        assert_eq!(factors(Decay::Wsd, [1, 4, 17, 18, 19]), [0.25, 1.0, 1.0, 1.0, 0.5]);
        // Seven batches in windows of 3, 3 and 1: three updates an epoch.
        let groups = [Group { lr_scale: 2.0, ..Group::default() }];
        let at = |position, epoch| schedule(Decay::Constant).at(position, 7, (epoch, 2), &groups, None);
        assert_eq!([at(0, 0), at(2, 0), at(5, 0), at(6, 0)].map(|h| h.accumulate), [3, 3, 3, 1]);
        assert_eq!([at(2, 0), at(3, 0), at(6, 0), at(0, 1)].map(|h| h.lr[0]), [0.0, 0.5, 1.0, 1.5]);
    }

    fn groups() -> Vec<Group> {
        [true, false].map(|bias| Group { bias, ..Group::default() }).to_vec()
    }

    #[test]
    fn linear_and_cosine_end_points() {
        let mut s = EpochSchedule::default();
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
        let s = EpochSchedule::default();
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
        let s = EpochSchedule { warmup_epochs: 0.0, ..EpochSchedule::default() };
        assert_eq!(s.at(0, 0, 10, 5, &groups(), false), Hyper { lr: vec![0.01; 2], momentum: 0.937, accumulate: 4 });
    }

    #[test]
    fn adam_keeps_its_beta_during_warmup() {
        assert_eq!(EpochSchedule::default().at(0, 0, 10, 100, &groups(), true).momentum, 0.937);
    }
}
