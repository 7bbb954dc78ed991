//! The settings of a run that are not the task's, and whether they make sense.

use bellows_ranks::Wire;
use serde::{Deserialize, Serialize};

use crate::error::LearnError;
use crate::layout::Layout;
use crate::optim::OptimizerKind;
use crate::scaling::LossScaling;
use crate::schedule::Schedule;
use crate::task::{Group, Task};

/// Settings of a run that are not the task's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnerConfig {
    /// Epochs to train for.
    pub epochs: usize,
    /// Hours to train for; overrides `epochs`. A run stops within an epoch when they are over, and is judged once more.
    pub time: Option<f64>,
    /// Updates after which training ends, wherever in an epoch that is.
    pub max_steps: Option<u64>,
    /// Epochs without improvement, judged or not, after which training stops, or evaluations where `eval_steps` makes some within an epoch; 0 never stops.
    pub patience: usize,
    /// Learning rate, momentum, warm-up, accumulation.
    pub schedule: Schedule,
    /// Update rule.
    pub optimizer: OptimizerKind,
    /// Decay of the second moment (Adam, AdamW), or of Lion's momentum; `None` is the rule's own: 0.999, or 0.99.
    pub beta2: Option<f64>,
    /// What keeps Adam's and AdamW's division from being one by 0.
    pub eps: f64,
    /// How the loss is scaled, for a task with numbers in f16; not at all if `None`, on all ranks.
    pub loss_scaling: Option<LossScaling>,
    /// Keep what is trained rounded to f16.
    pub trains_f16: bool,
    /// Global gradient norm that is clipped to; 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Limit of the EMA's decay; 0 turns the EMA off.
    pub ema_decay: f64,
    /// Updates the EMA's decay takes to reach 63 % of its limit.
    pub ema_tau: f64,
    /// Ranks that a batch is shared by: it is made of so many lists of samples, with however many ranks the run goes on.
    pub ranks: usize,
    /// What is computed of a batch (its statistics, what a loss is divided by) is computed of what all ranks have of it.
    pub sync_bn: bool,
    /// What gradients travel as between ranks.
    pub wire: Wire,
    /// Seed of every random draw.
    pub seed: u64,
    /// Shuffle the samples of each epoch.
    pub shuffle: bool,
    /// Threads that read and augment; 0 uses the training thread.
    pub workers: usize,
    /// Evaluate after every epoch; the last one is always evaluated, if there is anything to evaluate on.
    pub val: bool,
    /// With `val`, evaluate after every so many epochs only, and after the last.
    pub val_interval: usize,
    /// Also evaluate after every so many updates.
    pub eval_steps: Option<usize>,
    /// Save after every epoch; the last one is always saved.
    pub save: bool,
    /// Also keep the weights of every n-th epoch; -1 keeps none.
    pub save_period: i64,
    /// Minutes of training between checkpoints inside an epoch.
    pub checkpoint_minutes: f64,
    /// Checkpoints to keep, at least two; the best one and the one a roll-back would go to are kept besides.
    pub keep_checkpoints: usize,
    /// Batches of an accumulation window that are computed before any of them is read back from the device, which changes no number. `None`: as many as take half a
    /// second, and on the processor, which nobody waits for, one.
    pub ahead: Option<usize>,
    /// Batches between two `step` events.
    pub log_every: usize,
    /// Wait for the device after every stage of a step and tell at the end of an epoch where its time went.
    pub profile: bool,
}

impl LearnerConfig {
    /// `epochs` of `schedule` with AdamW; no EMA, no clipping, an evaluation and a checkpoint after every epoch.
    pub fn new(epochs: usize, schedule: Schedule) -> Self {
        Self {
            epochs,
            time: None,
            max_steps: None,
            patience: 0,
            schedule,
            optimizer: OptimizerKind::AdamW,
            beta2: None,
            eps: 1e-8,
            loss_scaling: None,
            trains_f16: false,
            max_grad_norm: 0.0,
            ema_decay: 0.0,
            ema_tau: 1.0,
            ranks: 1,
            sync_bn: false,
            wire: Wire::F32,
            seed: 0,
            shuffle: true,
            workers: 0,
            val: true,
            val_interval: 1,
            eval_steps: None,
            save: true,
            save_period: -1,
            checkpoint_minutes: 10.0,
            keep_checkpoints: 2,
            ahead: None,
            log_every: 1,
            profile: false,
        }
    }

    /// Whether these settings can be trained with.
    ///
    /// # Errors
    /// The first that cannot, with its value and what it may be.
    pub fn validate(&self) -> Result<(), LearnError> {
        let fraction = |x: f64| (0.0..1.0).contains(&x);
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        let (rate, momentum, warmup_momentum, window) = match &self.schedule {
            Schedule::Epochs(s) => (s.lr0, s.momentum, s.warmup_momentum, s.nbs),
            Schedule::Updates(s) => (s.lr, s.momentum, 0.0, s.accumulate),
        };
        let scale = self.loss_scaling.map(LossScaling::first);
        let checks = [
            (self.epochs > 0, "epochs", self.epochs.to_string(), "at least 1"),
            (self.schedule.batch() > 0, "batch", self.schedule.batch().to_string(), "at least 1"),
            (
                self.ranks > 0 && self.schedule.batch().is_multiple_of(self.ranks),
                "batch",
                format!("{} for {} ranks", self.schedule.batch(), self.ranks),
                "as many samples for each, of at least one",
            ),
            (window > 0, "accumulation (nbs, accumulate)", window.to_string(), "at least 1"),
            (not_negative(rate), "the learning rate", rate.to_string(), "a finite number from 0 up"),
            (fraction(momentum), "momentum (beta1)", momentum.to_string(), "from 0 up and below 1"),
            (fraction(warmup_momentum), "warmup_momentum", warmup_momentum.to_string(), "from 0 up and below 1"),
            (self.beta2.is_none_or(fraction), "beta2", format!("{:?}", self.beta2), "from 0 up and below 1"),
            (positive(self.eps), "eps", self.eps.to_string(), "a finite number above 0"),
            (scale.is_none_or(positive), "the loss scale", format!("{scale:?}"), "a finite number above 0"),
            (not_negative(self.max_grad_norm), "max_grad_norm", self.max_grad_norm.to_string(), "a finite number from 0 (off) up"),
            ((0.0..=1.0).contains(&self.ema_decay), "ema_decay", self.ema_decay.to_string(), "from 0 (off) to 1"),
            (self.ema_decay == 0.0 || positive(self.ema_tau), "ema_tau", self.ema_tau.to_string(), "a finite number above 0"),
            (self.time.is_none_or(positive), "time", format!("{:?}", self.time), "hours above 0"),
            (self.max_steps != Some(0), "max_steps", "0".into(), "at least 1"),
            (self.val_interval > 0, "val_interval", "0".into(), "at least 1"),
            (self.eval_steps != Some(0), "eval_steps", "0".into(), "at least 1"),
            (self.checkpoint_minutes >= 0.0, "checkpoint_minutes", self.checkpoint_minutes.to_string(), "from 0 up"),
        ];
        let rates: &[(&str, f64)] = match &self.schedule {
            Schedule::Epochs(s) => &[("lrf", s.lrf), ("warmup_epochs", s.warmup_epochs), ("warmup_bias_lr", s.warmup_bias_lr)],
            Schedule::Updates(s) => &[("min_lr_ratio", s.min_lr_ratio), ("warmup_ratio", s.warmup_ratio)],
        };
        let rates = rates.iter().map(|&(name, value)| (not_negative(value), name, value.to_string(), "a finite number from 0 up"));
        let wrong = checks.into_iter().chain(rates).find(|(fine, ..)| !fine);
        wrong.map_or(Ok(()), |(_, name, value, may)| Err(LearnError::Config(format!("{name} is {value}: it must be {may}"))))
    }
}

/// Whether what a task says of itself fits together.
///
/// # Errors
/// Names that are missing or twice there, a tensor in a group that does not exist, nothing to train, one parameter in two places.
pub(crate) fn check_task<T: Task>(task: &T, model: &T::Model, layout: &Layout) -> Result<(), LearnError> {
    let wrong = |what: String| Err(LearnError::Config(what));
    if let Some([one, other]) = layout.twice(model) {
        return wrong(format!(
            "{one} and {other} are one parameter, of which one place alone would learn: make a layer anew in place of a clone"
        ));
    }
    let groups = task.groups().len();
    if let Some((entry, group)) = layout.entries.iter().find_map(|e| e.group.filter(|&g| g >= groups).map(|g| (e, g))) {
        return wrong(format!("role_of puts {} into group {group}, and groups() has {groups}, counted from 0", entry.name));
    }
    let fine = |group: &Group| [group.lr_scale, group.weight_decay].iter().all(|x| x.is_finite() && *x >= 0.0);
    if let Some(group) = task.groups().iter().position(|group| !fine(group)) {
        return wrong(format!("group {group} of groups() has a learning rate or a weight decay that is no finite number from 0 up"));
    }
    if layout.entries.iter().all(|e| e.group.is_none()) {
        return wrong("no tensor of the model is trained: role_of says Kept or Fixed of all, or none asks for a gradient".into());
    }
    let (items, metrics) = (task.item_names(), task.metric_names());
    if items.is_empty() {
        return wrong("item_names() is empty: a run needs a loss to show".into());
    }
    let names: Vec<&str> = items.iter().copied().chain(metrics.iter().map(String::as_str)).collect();
    let twice = names.iter().enumerate().find(|(i, name)| name.is_empty() || names[..*i].contains(name));
    twice.map_or(Ok(()), |(_, name)| wrong(format!("the name {name:?} of a loss item or metric is empty or given twice")))
}
