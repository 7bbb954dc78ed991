//! One training step, in the order of the paper: forward, loss, gradients, finite check, clip, update, EMA.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::error::LearnError;
use crate::grads::{GradBuffer, clip_to_norm, divide, read_with_squares};
use crate::layout::Layout;
use crate::profile::{Stage, StepTimes, Stopwatch};
use crate::schedule::Hyper;
use crate::shortage::{Failure, attempt};
use crate::state::RunState;
use crate::task::{Draw, Group, StepOutput, Task};

/// What stays the same from step to step.
pub(crate) struct StepContext<'a, T: Task> {
    pub(crate) task: &'a T,
    pub(crate) layout: &'a Layout,
    pub(crate) groups: &'a [Group],
    /// The device with autodiff.
    pub(crate) device: &'a Device,
    /// Global gradient norm that is clipped to; 0 turns clipping off.
    pub(crate) max_grad_norm: f64,
    /// Wait for the device after every stage, so that it can be timed.
    pub(crate) profile: bool,
}

/// What a batch did.
pub(crate) struct StepReport<O> {
    pub(crate) items: Vec<f64>,
    pub(crate) count: usize,
    /// Global norm before clipping of the gradients an update was made with; `None` inside an accumulation window.
    pub(crate) grad_norm: Option<f64>,
    /// What was not finite, if the step was skipped.
    pub(crate) skipped: Option<&'static str>,
    /// An update was due and could not be made.
    pub(crate) lost_update: bool,
    /// Of each part.
    pub(crate) outputs: Vec<StepOutput<O>>,
    pub(crate) times: StepTimes,
}

/// [`train_step`] on a device that may run out of memory: then the whole state is as it was.
pub(crate) fn try_step<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    parts: &[T::Batch],
    draw: Draw,
    hyper: &Hyper,
) -> Result<StepReport<T::Output>, Failure> {
    // Handles, not data. Moments and EMA change last, when everything that needs memory was read back.
    let before = (state.model.valid(), state.grads.clone(), state.counters.clone());
    attempt(|| train_step(context, state, parts, draw, hyper)).inspect_err(|_| {
        (state.grads, state.counters) = (before.1, before.2);
        state.model = before.0.train();
    })
}

/// Trains on one batch, all of it or part by part. A step in which anything is not finite leaves weights, running statistics, moments and EMA
/// as they were.
fn train_step<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    parts: &[T::Batch],
    draw: Draw,
    hyper: &Hyper,
) -> Result<StepReport<T::Output>, LearnError> {
    let StepContext { task, layout, groups, device, max_grad_norm, profile } = context;
    let mut watch = Stopwatch::start(profile.then_some(device));
    // The forward pass moves running statistics: this copy (of handles, not of data) is the way back.
    let before = state.model.valid();

    let (mut sum, mut skipped) = (GradBuffer::default(), None);
    let (mut items, mut outputs) = (Vec::new(), Vec::new());
    for part in parts {
        let (output, grads) = task.gradients(&state.model, part, draw, device, layout, &mut watch);
        let (loss, of_part, squares) = read_scalars(&output, &grads)?;
        watch.lap(Stage::Backward);
        let weight = if task.per_count() { output.count } else { task.sample_names(part).len() };
        items.push((weight, of_part));
        outputs.push(output);
        skipped = match (loss.is_finite(), squares.is_finite()) {
            (false, _) => Some("loss"),
            (true, false) => Some("gradient"),
            (true, true) => None,
        };
        if skipped.is_some() {
            break;
        }
        sum.add(grads);
    }
    // An update is followed by a check of everything; within a window, running statistics are all that has moved.
    if skipped.is_none() && state.counters.pending + 1 < hyper.accumulate && !statistics_are_finite(layout, &state.model)? {
        skipped = Some("running statistic");
    }
    let count = outputs.iter().map(|output| output.count).sum();
    let (items, times) = (mean_items(&items), watch.times());
    let mut report = StepReport { items, count, grad_norm: None, skipped, lost_update: false, outputs, times };
    state.counters.pending += 1;
    if report.skipped.is_some() {
        state.model = before.clone().train();
    } else {
        state.counters.pending_count += report.count as u64;
        state.grads.add(sum.take());
    }
    if state.counters.pending < hyper.accumulate {
        return Ok(report);
    }

    state.counters.pending = 0;
    let count = std::mem::take(&mut state.counters.pending_count);
    let mut grads = state.grads.take();
    if grads.is_empty() {
        return Ok(report);
    }
    if task.per_count() {
        divide(&mut grads, count.max(1));
    }
    let norm = norm_of(grads.iter().flatten())?;
    if !norm.is_finite() {
        state.model = before.train();
        (report.skipped, report.lost_update) = (Some("gradient"), true);
        return Ok(report);
    }
    if *max_grad_norm > 0.0 {
        clip_to_norm(&mut grads, norm, *max_grad_norm);
    }
    let weights = layout.values(&state.model.valid());
    let (updated, optimizer) = state.optimizer.step(layout, groups, hyper, state.counters.updates + 1, &weights, grads);
    // BatchNorm statistics are part of what the EMA sees, so they are part of what is checked.
    let after: Vec<Tensor<1>> = weights.into_iter().zip(&updated).map(|(old, new)| new.clone().unwrap_or(old)).collect();
    if !norm_of(&after)?.is_finite() {
        state.model = before.train();
        (report.skipped, report.lost_update) = (Some("weights"), true);
        return Ok(report);
    }
    state.model = layout.assign(std::mem::replace(&mut state.model, before), updated);
    state.optimizer = optimizer;
    state.counters.updates += 1;
    state.ema.update(after);
    report.grad_norm = Some(norm);
    watch.lap(Stage::Update);
    report.times = watch.times();
    Ok(report)
}

/// Whether what a forward pass moves, the float tensors that are not learned, is finite.
fn statistics_are_finite<M: Module>(layout: &Layout, model: &M) -> Result<bool, LearnError> {
    let kept: Vec<bool> = layout.entries.iter().map(|entry| entry.group.is_none()).collect();
    if !kept.contains(&true) {
        return Ok(true);
    }
    let values = layout.values(&model.valid());
    Ok(norm_of(values.iter().zip(kept).filter_map(|(value, kept)| kept.then_some(value)))?.is_finite())
}

/// Loss, loss items and Σ g².
fn read_scalars<O>(output: &StepOutput<O>, grads: &[Option<Tensor<1>>]) -> Result<(f64, Vec<f64>, f64), LearnError> {
    let (read, squares) = read_with_squares(vec![output.loss.clone(), output.items.clone()], grads.iter().flatten())?;
    let as_f64 = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    Ok((as_f64(&read[0])[0], as_f64(&read[1]), squares))
}

/// The loss items of a batch: the mean of its parts' by their weights.
fn mean_items(parts: &[(usize, Vec<f64>)]) -> Vec<f64> {
    let total = parts.iter().map(|(weight, _)| weight).sum::<usize>().max(1) as f64;
    let items = parts.first().map_or(0, |(_, items)| items.len());
    (0..items).map(|i| parts.iter().map(|(weight, items)| items[i] * (*weight as f64 / total)).sum()).collect()
}

fn norm_of<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> Result<f64, LearnError> {
    Ok(read_with_squares(Vec::new(), tensors)?.1.sqrt())
}
