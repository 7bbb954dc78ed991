//! Where the time of training goes.

use std::ops::AddAssign;
use std::time::Instant;

use burn::tensor::Device;
use serde_json::{Map, Value, json};

/// Seconds of the training thread by stage. Where the device works on its own (a GPU), the stages are told apart only while profiling,
/// which waits for it after each.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Waiting for a batch.
    pub wait: f64,
    /// Forward pass and loss.
    pub forward: f64,
    /// Backward pass, finite check.
    pub backward: f64,
    /// Of several ranks: gradients on their way after the pass, and waiting for ranks that are not done with theirs.
    pub exchange: f64,
    /// Clipping, update, EMA.
    pub update: f64,
}

impl StepTimes {
    /// Of the whole step, which begins when its batch is there.
    pub fn step(&self) -> f64 {
        self.forward + self.backward + self.exchange + self.update
    }

    /// A share of each.
    pub(crate) fn part(&self, share: f64) -> Self {
        let Self { wait, forward, backward, exchange, update } = *self;
        let [wait, forward, backward, exchange, update] = [wait, forward, backward, exchange, update].map(|s| s * share);
        Self { wait, forward, backward, exchange, update }
    }
}

/// A part of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Forward pass and loss.
    Forward,
    /// Backward pass, finite check.
    Backward,
    /// Adding up what the ranks have made, if there are several.
    Exchange,
    /// Clipping, update, EMA.
    Update,
}

/// Tells a step's stages apart.
pub struct Stopwatch<'a> {
    last: Instant,
    times: StepTimes,
    /// Waited for before the clock is read.
    device: Option<&'a Device>,
}

impl<'a> Stopwatch<'a> {
    /// Starts now; `device` is waited for at each lap, if given.
    pub fn start(device: Option<&'a Device>) -> Self {
        Self { last: Instant::now(), times: StepTimes::default(), device }
    }

    /// What went by since the last lap was `stage`.
    pub fn lap(&mut self, stage: Stage) {
        if let Some(device) = self.device {
            // A device that is lost says so at the next read-back.
            device.sync().ok();
        }
        let time = match stage {
            Stage::Forward => &mut self.times.forward,
            Stage::Backward => &mut self.times.backward,
            Stage::Exchange => &mut self.times.exchange,
            Stage::Update => &mut self.times.update,
        };
        *time += std::mem::replace(&mut self.last, Instant::now()).elapsed().as_secs_f64();
    }

    /// The times so far.
    pub fn times(&self) -> StepTimes {
        self.times
    }
}

impl AddAssign for StepTimes {
    fn add_assign(&mut self, other: Self) {
        self.wait += other.wait;
        self.forward += other.forward;
        self.backward += other.backward;
        self.exchange += other.exchange;
        self.update += other.update;
    }
}

/// An epoch's times: the share of each stage of `total` seconds, and beside it that of the workers' threads per stage of theirs. One rank has nothing to exchange.
pub(crate) fn describe(times: &StepTimes, total: f64, workers: &[(&'static str, f64)]) -> (String, Value) {
    let pass = [("waiting for data", times.wait), ("forward", times.forward), ("backward", times.backward)];
    let exchange = Some(("exchange", times.exchange)).filter(|(_, s)| *s > 0.0);
    let after = [("update", times.update), ("rest", total - times.wait - times.step())];
    let stages: Vec<(&str, f64)> = pass.into_iter().chain(exchange).chain(after).collect();
    let share = |s: f64| 100.0 * s / total.max(1e-9);
    let parts: Vec<String> = stages.iter().map(|(name, s)| format!("{name} {:.1} %", share(*s))).collect();
    let mut line = format!("{total:.1} s of training: {}", parts.join(", "));
    if !workers.is_empty() {
        let parts: Vec<String> = workers.iter().map(|(name, s)| format!("{name} {:.1} %", share(*s))).collect();
        line += &format!("; beside it in the workers: {}", parts.join(", "));
    }
    let seconds = |stages: &[(&str, f64)]| stages.iter().map(|(name, s)| (name.replace(' ', "_"), json!(s))).collect::<Map<_, _>>();
    (line, json!({ "total_s": total, "training_s": seconds(&stages), "workers_s": seconds(workers) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let times = StepTimes { wait: 1.0, forward: 3.0, backward: 5.0, exchange: 0.0, update: 0.5 };
        let (line, fields) = describe(&times, 10.0, &[("decode", 2.0)]);
        assert_eq!(
            line,
            "10.0 s of training: waiting for data 10.0 %, forward 30.0 %, backward 50.0 %, update 5.0 %, rest 5.0 %; \
             beside it in the workers: decode 20.0 %"
        );
        assert_eq!(fields["training_s"]["rest"], 0.5);
        assert_eq!(fields["workers_s"]["decode"], 2.0);
        // With several ranks.
        let once = StepTimes { exchange: 0.25, ..times };
        let mut twice = once;
        twice += once;
        let (line, fields) = describe(&twice, 20.0, &[]);
        assert!(line.ends_with("backward 50.0 %, exchange 2.5 %, update 5.0 %, rest 2.5 %"), "{line}");
        assert_eq!((&fields["training_s"]["exchange"], &fields["training_s"]["rest"]), (&json!(0.5), &json!(0.5)));
    }
}
