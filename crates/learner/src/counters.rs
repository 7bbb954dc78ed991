//! The scalars of a run: where it is, what it has counted, what it must not do again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::scaling::{LossScale, LossScaling};

/// A batch, by its epoch and its position in it, both from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The epoch.
    pub epoch: usize,
    /// The batch of that epoch.
    pub position: usize,
}

/// The scalars of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Seed of every random draw.
    pub seed: u64,
    /// Epoch in progress, from 0; how many are complete, once training is done.
    pub epoch: usize,
    /// Epochs planned; a time limit changes it.
    pub epochs: usize,
    /// The `epochs` by which a run that a time limit ends came, after half of the time, to what belongs to its last epochs
    /// ([`Task::is_closing`](crate::Task::is_closing)): draws are told these from then on.
    #[serde(default)]
    pub closing: Option<usize>,
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
    #[serde(with = "reals")]
    pub item_sums: Vec<f64>,
    /// The weights in `item_sums`: 1 a batch, or what it counted.
    pub item_count: u64,
    /// Best fitness so far and the epoch (from 0) it was reached in.
    pub best: Option<(f64, usize)>,
    /// Epochs since then, or evaluations with `eval_steps`.
    pub since_best: usize,
    /// Updates made when the model was last evaluated.
    pub evaluated_at: u64,
    /// The checkpoint of that epoch, which is kept.
    pub best_step: Option<u64>,
    /// The newest checkpoint of an epoch's edge or an evaluation, where a roll-back goes: the settings chose its place, not a clock and not a
    /// signal. Runs begun before this was counted have none before their next one.
    #[serde(default)]
    pub planned_step: Option<u64>,
    /// Batches skipped because something was not finite, in all and in a row.
    pub skipped: u64,
    /// Skipped batches in a row.
    pub skipped_in_a_row: u32,
    /// Updates in a row that could not be made: the batches of their windows may well have been finite.
    pub lost_updates: u32,
    /// Batches of which no sample could be read.
    #[serde(default)]
    pub unreadable: u64,
    /// Those in a row.
    #[serde(default)]
    pub unreadable_in_a_row: u32,
    /// Of each rank, the batches in a row that it trained on without a sample, because it could read none of its own; empty where there are none. Whoever starts
    /// the run again has no patience anew.
    #[serde(default)]
    pub unread_by_ranks: Vec<u32>,
    /// The first batch of the accumulation window in progress.
    #[serde(default)]
    pub window_from: Place,
    /// The first batch of what is going wrong now: batches skipped, or updates lost, in a row.
    #[serde(default)]
    pub trouble_from: Option<Place>,
    /// Batches that roll-backs have taken out of the data, from the first to the last.
    #[serde(default)]
    pub passed_over: Vec<(Place, Place)>,
    /// Returns to an earlier checkpoint.
    pub rollbacks: u32,
    /// Factor on the learning rate, halved by every roll-back.
    pub lr_scale: f64,
    /// Batches of every size are cut into 2^split parts at least, because the device has no memory for all of one; never goes back. Runs begun
    /// before this was counted had no parts.
    #[serde(default)]
    pub split: u32,
    /// The same of batches of a class of size ([`Task::size_class`](crate::Task::size_class)) and larger ones, where a task tells sizes apart.
    #[serde(default)]
    pub splits: BTreeMap<usize, u32>,
    /// What the loss is multiplied by, in a run that scales it.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// Learning rate of each group at the last batch: the `lr/pgN` columns.
    #[serde(with = "reals")]
    pub lr: Vec<f64>,
    /// Seconds spent training, over all sessions.
    pub elapsed_s: f64,
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
            closing: None,
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
            planned_step: None,
            skipped: 0,
            skipped_in_a_row: 0,
            lost_updates: 0,
            unreadable: 0,
            unreadable_in_a_row: 0,
            unread_by_ranks: Vec::new(),
            window_from: Place::default(),
            trouble_from: None,
            passed_over: Vec::new(),
            rollbacks: 0,
            lr_scale: 1.0,
            split: 0,
            splits: BTreeMap::new(),
            loss_scale: None,
            lr: Vec::new(),
            elapsed_s: 0.0,
            done: false,
        }
    }

    /// The next batch, or the end of the epoch.
    pub fn place(&self) -> Place {
        Place { epoch: self.epoch, position: self.position }
    }

    /// Moves to the start of the next epoch.
    pub(crate) fn next_epoch(&mut self) {
        self.epoch += 1;
        self.position = 0;
        self.item_sums.iter_mut().for_each(|s| *s = 0.0);
        self.item_count = 0;
    }

    /// How often batches of this class of size are halved: as often as smaller ones at least.
    fn halvings(&self, class: usize) -> u32 {
        self.splits.range(..=class).map(|(_, split)| *split).fold(self.split, u32::max)
    }

    /// Parts that a batch of this class of size is cut into, if it has so many samples.
    pub fn parts(&self, class: usize) -> usize {
        1_usize.checked_shl(self.halvings(class)).unwrap_or(usize::MAX)
    }

    /// Whether batches of any size are cut.
    pub(crate) fn cuts(&self) -> bool {
        self.splits.values().any(|split| *split > 0) || self.split > 0
    }

    /// Cuts batches of this class and larger ones into twice as many parts.
    pub(crate) fn halve(&mut self, class: usize) {
        let split = self.halvings(class) + 1;
        match class {
            0 => self.split = split,
            class => drop(self.splits.insert(class, split)),
        }
    }

    /// Cuts batches of every size into twice as many parts, also those that were cut before.
    pub(crate) fn halve_all(&mut self) {
        self.split += 1;
        self.splits.values_mut().for_each(|split| *split += 1);
    }

    /// Cuts batches at least as often as so; whether any of them had been cut less.
    pub(crate) fn halve_as(&mut self, split: u32, splits: &BTreeMap<usize, u32>) -> bool {
        let before = (self.split, self.splits.clone());
        self.split = self.split.max(split);
        for (&class, &split) in splits {
            let own = self.splits.entry(class).or_default();
            *own = split.max(*own);
        }
        (self.split, &self.splits) != (before.0, &before.1)
    }

    /// The first and the last batch of what is going wrong now.
    pub(crate) fn in_trouble(&self) -> (Place, Place) {
        let last = Place { position: self.position.saturating_sub(1), ..self.place() };
        (self.trouble_from.unwrap_or(last), last)
    }

    /// These, of an earlier checkpoint, as a run goes on with them that was at `now`: what was counted stays counted, the learning rate is
    /// halved, and the batches that went wrong do not come again. The loss is scaled by what its scale had come down to, unless it could come down no further:
    /// then it was not the scale.
    pub(crate) fn roll_back_from(&mut self, now: &Self, scaling: Option<LossScaling>) {
        let Self { batches, skipped, unreadable, split, elapsed_s, .. } = *now;
        let loss_scale = now.loss_scale.filter(|scale| !scaling.is_some_and(|scaling| scale.is_least(scaling))).or(self.loss_scale);
        let mut passed_over = now.passed_over.clone();
        passed_over.push(now.in_trouble());
        *self = Self {
            batches,
            skipped,
            unreadable,
            rollbacks: now.rollbacks + 1,
            lr_scale: now.lr_scale * 0.5,
            split,
            splits: now.splits.clone(),
            unreadable_in_a_row: now.unreadable_in_a_row,
            unread_by_ranks: now.unread_by_ranks.clone(),
            loss_scale,
            elapsed_s,
            passed_over,
            skipped_in_a_row: 0,
            lost_updates: 0,
            trouble_from: None,
            ..self.clone()
        };
    }

    /// Mean of each loss item over this epoch so far; no numbers where nothing was trained: a loss of 0 would be a lie.
    pub fn item_means(&self) -> Vec<f64> {
        self.item_sums.iter().map(|sum| sum / self.item_count as f64).collect()
    }
}

/// JSON has no number for NaN and infinity: they are written as text.
mod reals {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Real {
        Number(f64),
        Text(String),
        /// What the first format wrote for every one of them.
        Nothing(()),
    }

    pub(super) fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        let real = |&x: &f64| if x.is_finite() { Real::Number(x) } else { Real::Text(x.to_string()) };
        values.iter().map(real).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let number = |real| match real {
            Real::Number(x) => Ok(x),
            Real::Nothing(()) => Ok(f64::NAN),
            Real::Text(text) => text.parse().map_err(|_| D::Error::custom(format!("{text:?} is no number"))),
        };
        Vec::<Real>::deserialize(deserializer)?.into_iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_cut_as_often_as_smaller_ones_and_no_smaller_one_as_often_as_it() {
        let mut counters = Counters::new(0, 1, 0);
        let parts = |counters: &Counters| [0, 9, 10, 11, 12].map(|class| counters.parts(class));
        counters.halve(11);
        counters.halve(11);
        assert_eq!(parts(&counters), [1, 1, 1, 4, 4]);
        counters.halve(10);
        assert_eq!(parts(&counters), [1, 1, 2, 4, 4]);
        counters.halve(12);
        assert_eq!(parts(&counters), [1, 1, 2, 4, 8]);
        counters.halve(0);
        counters.halve(0);
        assert_eq!(parts(&counters), [4, 4, 4, 4, 8]);
        counters.halve_all();
        assert_eq!(parts(&counters), [8, 8, 8, 8, 16]);
        assert!(!counters.halve_as(2, &[(12, 4)].into()), "nothing is put together again");
        assert_eq!(parts(&counters), [8, 8, 8, 8, 16]);
        assert!(counters.halve_as(2, &[(10, 4)].into()));
        assert_eq!(parts(&counters), [8, 8, 16, 16, 16]);
        let text = serde_json::to_string(&counters).unwrap();
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }

    #[test]
    fn what_can_be_read_now_is_not_rolled_back() {
        let at = |unreadable_in_a_row, unread_by_ranks: [u32; 2]| Counters {
            unreadable_in_a_row,
            unread_by_ranks: unread_by_ranks.into(),
            ..Counters::new(0, 1, 0)
        };
        let mut counters = at(2, [0, 2]);
        counters.roll_back_from(&at(0, [1, 0]), None);
        assert_eq!((counters.unreadable_in_a_row, counters.unread_by_ranks), (0, vec![1, 0]));
    }

    #[test]
    fn sums_that_are_no_numbers_come_back() {
        let counters = Counters { item_sums: vec![0.1 + 0.2, f64::NAN, f64::INFINITY, f64::NEG_INFINITY], ..Counters::new(0, 1, 4) };
        let text = serde_json::to_string(&counters).unwrap();
        let back: Counters = serde_json::from_str(&text).unwrap();
        let bits = |c: &Counters| c.item_sums.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&back), bits(&counters));
        let first = text.replace("\"NaN\"", "null");
        assert!(serde_json::from_str::<Counters>(&first).unwrap().item_sums[1].is_nan());
        assert!(serde_json::from_str::<Counters>(&text.replace("\"inf\"", "\"many\"")).is_err());
    }
}
