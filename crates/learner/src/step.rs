//! One training step, in the order of the paper: forward, loss, gradients, finite check, clip, update, EMA.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::error::LearnError;
use crate::grads::{clip_to_norm, divide, sum_of_squares};
use crate::layout::Layout;
use crate::profile::{Stage, StepTimes, Stopwatch};
use crate::schedule::Hyper;
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
    pub(crate) output: StepOutput<O>,
    pub(crate) times: StepTimes,
}

/// Trains on one batch. A step in which anything is not finite leaves weights, running statistics, moments and EMA as they were.
pub(crate) fn train_step<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    batch: &T::Batch,
    draw: Draw,
    hyper: &Hyper,
) -> Result<StepReport<T::Output>, LearnError> {
    let StepContext { task, layout, groups, device, max_grad_norm, profile } = context;
    let mut watch = Stopwatch::start(profile.then_some(device));
    // The forward pass moves running statistics: this copy (of handles, not of data) is the way back.
    let before = state.model.valid();

    let (output, grads) = task.gradients(&state.model, batch, draw, device, layout, &mut watch);
    let (loss, items, squares) = read_scalars(&output, &grads)?;
    watch.lap(Stage::Backward);
    let times = watch.times();
    let mut report = StepReport { items, count: output.count, grad_norm: None, skipped: None, lost_update: false, output, times };
    report.skipped = match (loss.is_finite(), squares.is_finite()) {
        (false, _) => Some("loss"),
        (true, false) => Some("gradient"),
        (true, true) => None,
    };
    state.counters.pending += 1;
    if report.skipped.is_some() {
        state.model = before.clone().train();
    } else {
        state.counters.pending_count += report.count as u64;
        state.grads.add(grads);
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

/// Loss, loss items and Σ g², in one transfer from the device.
fn read_scalars<O>(output: &StepOutput<O>, grads: &[Option<Tensor<1>>]) -> Result<(f64, Vec<f64>, f64), LearnError> {
    let mut scalars = vec![output.loss.clone(), output.items.clone()];
    scalars.extend(sum_of_squares(grads.iter().flatten()));
    let values = Tensor::cat(scalars, 0).try_to_vec_as::<f32>().map_err(|e| LearnError::Device(e.to_string()))?;
    let items = output.items.dims()[0];
    let as_f64 = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    Ok((f64::from(values[0]), as_f64(&values[1..=items]), values.get(1 + items).copied().map_or(0.0, f64::from)))
}

fn norm_of<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> Result<f64, LearnError> {
    let Some(squares) = sum_of_squares(tensors) else { return Ok(0.0) };
    let squares = squares.try_into_scalar::<f32>().map_err(|e| LearnError::Device(e.to_string()))?;
    Ok(f64::from(squares).sqrt())
}
