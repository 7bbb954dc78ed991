//! One training step, in the order of the paper: forward, loss, gradients, finite check, clip, update, EMA.

use bellows_ranks::Wire;
use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};

use crate::arenas::Arenas;
use crate::attempt::{Failure, attempt};
use crate::error::LearnError;
use crate::grads::{GradBuffer, read};
use crate::layout::Layout;
use crate::meet::{Made, Met, Sums, agreed, meet, statistics};
use crate::optim::Optimizer;
use crate::profile::{Stage, StepTimes, Stopwatch};
use crate::ranks::Ranks;
use crate::schedule::Hyper;
use crate::state::{Before, RunState};
use crate::task::{Draw, Group, StepOutput, Task};
use crate::together::together;

/// What stays the same from step to step.
pub(crate) struct StepContext<'a, T: Task> {
    pub(crate) task: &'a T,
    pub(crate) layout: &'a Layout,
    pub(crate) groups: &'a [Group],
    /// The device with autodiff.
    pub(crate) device: &'a Device,
    /// Who else trains this model.
    pub(crate) ranks: &'a Ranks,
    /// What is computed of a batch is computed of what all of them have of it.
    pub(crate) sync_bn: bool,
    /// What gradients travel as between them.
    pub(crate) wire: Wire,
    /// Global gradient norm that is clipped to; 0 turns clipping off.
    pub(crate) max_grad_norm: f64,
    /// Round what is trained to f16.
    pub(crate) trains_f16: bool,
    /// Wait for the device after every stage, so that it can be timed.
    pub(crate) profile: bool,
}

/// What a batch did.
pub(crate) struct StepReport<O> {
    pub(crate) items: Vec<f64>,
    pub(crate) count: usize,
    /// Samples, and what the speed is told in.
    pub(crate) samples: usize,
    pub(crate) units: usize,
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

/// Trains on one batch, all of it or part by part, on a device that may run out of memory: then the whole state is as it was.
pub(crate) fn try_step<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    parts: &[T::Batch],
    draw: Draw,
    hyper: &Hyper,
) -> Result<StepReport<T::Output>, Failure> {
    let before = Before::of(state);
    let mut watch = Stopwatch::start(context.profile.then_some(context.device));
    let sharing = context.sync_bn.then_some(context.ranks);
    // What is asked of the other ranks in the middle of the pass has the exchange for itself; and of several parts only the sum is told.
    let meanwhile = !context.sync_bn && parts.len() == 1;
    let met = meet((context.ranks, context.wire), context.layout, &state.model, meanwhile, || {
        together(sharing, || attempt(|| Ok(gradients(context, &state.model, parts, draw, &mut watch))))
    });
    if context.ranks.others().is_some() {
        watch.lap(Stage::Exchange);
    }
    let stepped = met.and_then(|(made, met)| {
        let prepared = attempt(|| prepare(context, state, &before.model, made, met, hyper, watch.times()));
        // Nobody makes an update that another one has no memory for.
        let prepared = agreed(context.ranks, prepared)?;
        attempt(|| Ok(complete(state, prepared, &mut watch)))
    });
    stepped.inspect_err(|_| before.restore(state))
}

/// Forward and backward pass of this rank's part of a batch.
fn gradients<T: Task>(
    context: &StepContext<'_, T>,
    model: &T::Model,
    parts: &[T::Batch],
    draw: Draw,
    watch: &mut Stopwatch<'_>,
) -> Made<T::Output> {
    let StepContext { task, layout, device, .. } = context;
    let (mut grads, mut outputs) = (GradBuffer::default(), Vec::new());
    for part in parts {
        let (output, made) = layout.in_place(model, || {
            let (output, made) = task.gradients(model, part, draw, device, layout, watch);
            (output, GradBuffer::of(layout, made))
        });
        grads.add(made);
        outputs.push(output);
    }
    watch.lap(Stage::Backward);
    let samples: Vec<usize> = parts.iter().map(|part| task.sample_names(part).len()).collect();
    let weights = match task.per_count() {
        true => outputs.iter().map(|output| output.count).collect(),
        false => samples.clone(),
    };
    let units = parts.iter().map(|part| task.units(part)).sum();
    Made { grads, outputs, weights, samples: samples.iter().sum(), units }
}

/// An update that has been computed and not yet been made: whether it may be is known when its sums have been read.
struct Proposal {
    optimizer: Optimizer,
    /// All values after it, running statistics too: the EMA follows them.
    after: Arenas,
    /// Σ g² before clipping, and Σ of the squares of all values after the update.
    sums: [Tensor<1>; 2],
}

impl Proposal {
    /// An update of `model` by the gradients of a window. `None` if there is nothing to update.
    fn new<T: Task>(
        context: &StepContext<'_, T>,
        state: &RunState<T::Model>,
        model: &T::Model,
        hyper: &Hyper,
        (mut grads, count): (GradBuffer, u64),
    ) -> Option<Self> {
        let StepContext { task, layout, groups, max_grad_norm, .. } = context;
        if task.per_count() {
            grads.divide(count.max(1));
        }
        let squares = grads.squares(layout)?;
        if *max_grad_norm > 0.0 {
            grads.clip(&squares, *max_grad_norm);
        }
        let weights = layout.gathered(model);
        let (mut updated, optimizer) = state.optimizer.step(layout, groups, hyper, state.counters.updates + 1, &weights, grads);
        if context.trains_f16 {
            updated.iter_mut().flatten().for_each(|weights| weights.inplace(|w| w.cast(DType::F16).cast(DType::F32)));
        }
        // BatchNorm statistics are part of what the EMA sees, so they are part of what is checked.
        let after: Arenas = weights.into_iter().zip(&updated).map(|(old, new)| new.clone().or(old)).collect();
        let check = layout.pieces.squares(&after, |_| true)?;
        Some(Self { optimizer, after, sums: [squares, check] })
    }

    /// What is not finite, by the values of the sums.
    fn wrong(sums: &[Vec<f32>]) -> Option<&'static str> {
        match sums {
            [squares, _] if !squares[0].is_finite() => Some("gradient"),
            [_, check] if !check[0].is_finite() => Some("weights"),
            _ => None,
        }
    }
}

/// A batch that is computed, and what it is asked: nothing of it has been read.
pub(crate) struct Queued<O> {
    /// Its gradients are those of a batch that makes no update.
    made: Made<O>,
    met: Option<Met>,
    count: usize,
    /// It ends its window.
    pub(crate) due: bool,
    squares: Option<Tensor<1>>,
    moved: Option<Tensor<1>>,
    proposal: Option<Proposal>,
    times: StepTimes,
}

/// The same when the answers are there.
struct Answered<O> {
    report: StepReport<O>,
    grads: GradBuffer,
    due: bool,
    update: Option<(Proposal, Vec<Vec<f32>>)>,
}

/// A step whose numbers are known. The weights are the new ones; moments and EMA follow when it is completed.
struct Prepared<O> {
    report: StepReport<O>,
    /// The update, if one is made, and Σ g² before clipping.
    update: Option<(Proposal, f32)>,
}

/// Queues behind the gradients of a batch what is to be known of it, and the update that it makes if all of that is finite.
fn queue<T: Task>(
    context: &StepContext<'_, T>,
    state: &RunState<T::Model>,
    mut made: Made<T::Output>,
    met: Option<(Met, Sums)>,
    hyper: &Hyper,
    times: StepTimes,
) -> Queued<T::Output> {
    let StepContext { layout, device, .. } = context;
    let met = met.map(|(met, sums)| {
        made.grads = sums.on_device(layout, device);
        met
    });
    let count = met.as_ref().map_or_else(|| made.outputs.iter().map(|output| output.count).sum(), |met| met.count);
    let due = state.counters.pending + 1 >= hyper.accumulate;
    // The gradient of a window of one batch is looked at by its update.
    let squares = if due && state.grads.is_empty() { None } else { made.grads.squares(layout) };
    let proposal = match due {
        true => {
            let mut sum = state.grads.clone();
            sum.add(std::mem::take(&mut made.grads));
            Proposal::new(context, state, &state.model.valid(), hyper, (sum, state.counters.pending_count + count as u64))
        }
        false => None,
    };
    // An update is followed by a check of everything; within a window, running statistics are all that has moved.
    let moved = if due || met.is_some() { None } else { statistics(layout, &state.model) };
    Queued { made, met, count, due, squares, moved, proposal, times }
}

impl<O> Queued<O> {
    /// What is to be read.
    fn asked(&self) -> Vec<Tensor<1>> {
        let of_outputs = self.made.outputs.iter().flat_map(|output| [output.loss.clone(), output.items.clone()]);
        let of_update = self.proposal.iter().flat_map(|proposal| proposal.sums.clone());
        of_outputs.chain(self.squares.clone()).chain(self.moved.clone()).chain(of_update).collect()
    }

    /// Takes its answers.
    fn answered(self, values: &mut impl Iterator<Item = Vec<f32>>) -> Answered<O> {
        let Self { made, met, count, due, squares, moved, proposal, times } = self;
        let Made { grads, outputs, weights, samples, units } = made;
        let of_parts: Vec<Vec<f32>> = values.by_ref().take(2 * outputs.len()).collect();
        let [gradients, statistics] =
            [&squares, &moved].map(|asked| asked.is_none() || values.next().is_some_and(|sum| sum[0].is_finite()));
        let update = proposal.map(|proposal| {
            let sums: Vec<Vec<f32>> = values.by_ref().take(proposal.sums.len()).collect();
            (proposal, sums)
        });
        let of_window = update.as_ref().is_none_or(|(_, sums)| sums[0][0].is_finite());
        let gradients = gradients && (squares.is_some() || of_window);

        let items = weights.into_iter().zip(of_parts.chunks_exact(2).map(|part| as_f64(&part[1])));
        let own = Met { items: items.collect(), count, samples, units, loss: all_finite(&of_parts), statistics };
        let Met { items, samples, units, loss, statistics, .. } = met.unwrap_or(own);
        let wrong = [("loss", loss), ("gradient", gradients), ("running statistic", statistics)];
        let skipped = wrong.into_iter().find(|(_, finite)| !finite).map(|(name, _)| name);
        let items = mean_items(&items);
        let report = StepReport { items, count, samples, units, grad_norm: None, skipped, lost_update: false, outputs, times };
        Answered { report, grads, due, update }
    }
}

/// Does all of a batch's update that may want memory. A step in which anything is not finite leaves weights, running statistics, moments and EMA as they were, which
/// is `before`.
///
/// The device is asked once: update and checks are queued behind the gradients, and the update is made if the sums turn out to be finite.
fn prepare<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    before: &T::Model,
    made: Made<T::Output>,
    met: Option<(Met, Sums)>,
    hyper: &Hyper,
    times: StepTimes,
) -> Result<Prepared<T::Output>, LearnError> {
    let queued = queue(context, state, made, met, hyper, times);
    let values = read(queued.asked())?;
    let mut batch = queued.answered(&mut values.into_iter());
    if batch.report.skipped.is_none() {
        keep(state, batch.report.count, std::mem::take(&mut batch.grads));
    } else {
        state.model = before.clone().train();
        state.counters.pending += 1;
        // The update, if one is due, is that of the batches before.
        batch.update = None;
        let window = (state.grads.clone(), state.counters.pending_count);
        if batch.due
            && let Some(proposal) = Proposal::new(context, state, before, hyper, window)
        {
            let sums = read(proposal.sums.to_vec())?;
            batch.update = Some((proposal, sums));
        }
    }
    Ok(close(context.layout, state, before, batch))
}

/// Adds a batch to its window; the gradients of the one that ends it are in its update.
fn keep<M>(state: &mut RunState<M>, count: usize, grads: GradBuffer) {
    state.counters.pending += 1;
    state.counters.pending_count += count as u64;
    state.grads.add(grads);
}

/// Ends the window with its last batch: with the weights of its update, if there is one and it is finite, and else with the model `before`.
fn close<M: Module, O>(layout: &Layout, state: &mut RunState<M>, before: &M, batch: Answered<O>) -> Prepared<O> {
    let Answered { mut report, due, update, .. } = batch;
    if !due {
        return Prepared { report, update: None };
    }
    (state.counters.pending, state.counters.pending_count, state.grads) = (0, 0, GradBuffer::default());
    let Some((proposal, sums)) = update else { return Prepared { report, update: None } };
    if let Some(wrong) = Proposal::wrong(&sums) {
        state.model = before.clone().train();
        (report.skipped, report.lost_update) = (Some(wrong), true);
        return Prepared { report, update: None };
    }
    state.model = layout.assign(std::mem::replace(&mut state.model, before.clone()), layout.scatter(&proposal.after));
    Prepared { report, update: Some((proposal, sums[0][0])) }
}

/// Makes the rest of the update, if there is one.
fn complete<M, O>(state: &mut RunState<M>, prepared: Prepared<O>, watch: &mut Stopwatch<'_>) -> StepReport<O> {
    let Prepared { mut report, update } = prepared;
    if let Some((proposal, squares)) = update {
        state.optimizer = proposal.optimizer;
        state.counters.updates += 1;
        state.ema.update(proposal.after);
        report.grad_norm = Some(f64::from(squares).sqrt());
        watch.lap(Stage::Update);
        report.times.update = watch.times().update;
    }
    report
}

/// Computes a batch as if all of it were finite, behind others of its window of which that is not known either: [`catch_up`] reads them all. A failure leaves a state that is good
/// for nothing.
pub(crate) fn go_ahead<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    parts: &[T::Batch],
    draw: Draw,
    hyper: &Hyper,
) -> Result<Queued<T::Output>, Failure> {
    attempt(|| {
        let mut watch = Stopwatch::start(None);
        let made = gradients(context, &state.model, parts, draw, &mut watch);
        let mut queued = queue(context, state, made, None, hyper, watch.times());
        keep(state, queued.count, std::mem::take(&mut queued.made.grads));
        Ok(queued)
    })
}

/// What batches were that were computed ahead, from the state `before` on; the last of them may end the window. `None` if it was for nothing, because something is not as it should be.
/// Then, and after a failure, moments and EMA are untouched and the rest of the state is good for nothing.
pub(crate) fn catch_up<T: Task>(
    context: &StepContext<'_, T>,
    state: &mut RunState<T::Model>,
    before: &Before<T::Model>,
    queued: Vec<Queued<T::Output>>,
) -> Result<Option<Vec<StepReport<T::Output>>>, Failure> {
    let mut watch = Stopwatch::start(None);
    let prepared = attempt(|| {
        let mut values = read(queued.iter().flat_map(Queued::asked).collect())?.into_iter();
        let answer = |batch: Queued<T::Output>| close(context.layout, state, &before.model, batch.answered(&mut values));
        Ok(queued.into_iter().map(answer).collect::<Vec<_>>())
    })?;
    let items = context.task.item_names().len();
    let fine = |batch: &Prepared<T::Output>| batch.report.skipped.is_none() && batch.report.items.len() == items;
    if !prepared.iter().all(fine) {
        return Ok(None);
    }
    attempt(|| Ok(prepared.into_iter().map(|batch| complete(state, batch, &mut watch)).collect())).map(Some)
}

/// Whether the first tensor of every pair, its loss, is a number.
fn all_finite(of_parts: &[Vec<f32>]) -> bool {
    of_parts.chunks_exact(2).all(|part| part[0][0].is_finite())
}

fn as_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// The loss items of a batch: the mean of its parts' by their weights.
fn mean_items(parts: &[(usize, Vec<f64>)]) -> Vec<f64> {
    let total = parts.iter().map(|(weight, _)| weight).sum::<usize>().max(1) as f64;
    let items = parts.first().map_or(0, |(_, items)| items.len());
    (0..items).map(|i| parts.iter().map(|(weight, items)| items[i] * (*weight as f64 / total)).sum()).collect()
}
