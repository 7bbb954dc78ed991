//! The arm of the loop that trains on a batch, and what becomes of batches that cannot be trained on.
#![warn(clippy::too_many_lines, reason = "an arm of the loop reads at a glance")]

use std::time::Instant;

use serde_json::json;

use crate::attempt::Failure;
use crate::counters::{Counters, Place};
use crate::error::{LearnError, TaskError};
use crate::log::step_fields;
use crate::observe::BatchReport;
use crate::plan::Plan;
use crate::profile::StepTimes;
use crate::ranks::Had;
use crate::run::Run;
use crate::scaling::LossScale;
use crate::schedule::{Hyper, Schedule};
use crate::shortage::Shortage;
use crate::state::RunState;
use crate::step::{StepContext, StepReport, try_step};
use crate::task::{Draw, Task, Unreadable};
use crate::tensorboard;

/// Skipped batches in a row after which the run goes back to its last planned checkpoint; unreadable ones after which it ends.
const SKIPS_BEFORE_ROLLBACK: u32 = 3;

/// What a batch asks the loop for.
pub(crate) enum Trained {
    /// The next batch.
    On,
    /// A way out of batches that are not finite.
    RollBack {
        /// The samples of the last one.
        files: Vec<String>,
    },
    /// Smaller parts.
    TooLarge(TooLarge),
}

/// A batch that did not fit on the device.
pub(crate) struct TooLarge {
    pub(crate) shortage: Shortage,
    /// Its class of size.
    pub(crate) class: usize,
    /// Samples in its largest part.
    pub(crate) samples: usize,
    /// What the user calls all of them.
    pub(crate) files: Vec<String>,
}

/// What the user calls the samples of a batch: each name once, for a task may have one for many.
fn names<T: Task>(task: &T, batch: &[T::Batch]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in batch.iter().flat_map(|part| task.sample_names(part)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

impl<T: Task> Run<T> {
    /// Trains on the next batch of `plan`, which `made` holds, all of it or part by part. `waited` is how long the loop waited for it.
    ///
    /// # Errors
    /// A task or a device that fails; too many batches in a row that cannot be read.
    pub(crate) fn train(
        &mut self,
        task: &T,
        plan: &Plan,
        made: Result<Vec<T::Batch>, TaskError>,
        waited: Instant,
    ) -> Result<Trained, LearnError> {
        let wait = waited.elapsed().as_secs_f64();
        let position = self.state.counters.position;
        if plan.is_empty(position) {
            self.state.counters.position += 1;
            return Ok(Trained::On);
        }
        let unread_by_ranks = self.state.counters.unread_by_ranks.clone();
        let (batch, without) = match self.ranks.readable(made, SKIPS_BEFORE_ROLLBACK, &mut self.state.counters.unread_by_ranks)? {
            Ok(Had { parts, without }) => (parts, without),
            Err(error) => return self.unread(error),
        };
        let draw = plan.draw(self.draw(), position);
        self.inspect(task, &batch, draw);
        let hyper = self.hyper(plan, position);
        self.begin_step(task, draw);
        let (context, state) = self.context(task);
        let step = match try_step(&context, state, &batch, draw, &hyper) {
            Ok(step) => Ok(step),
            Err(Failure::Other(error)) => Err(error),
            Err(Failure::Memory(shortage)) => {
                // It comes again in smaller parts; that a rank can read nothing of it counts once, and is told once.
                self.state.counters.unread_by_ranks = unread_by_ranks;
                return Ok(Trained::TooLarge(self.too_large(task, plan, &batch, shortage)));
            }
        };
        without.iter().for_each(|(rank, reason)| self.goes_without(*rank, reason));
        let mut step = step?;
        step.times.wait = wait;
        let seconds = self.clock.lap();
        self.pass_on(hyper.lr, step.times, seconds);
        if let Some(what) = step.skipped {
            return Ok(self.skip(task, &batch, draw, what, step.lost_update));
        }
        self.count(task, &step)?;
        self.report(task, plan, step, seconds);
        Ok(Trained::On)
    }

    /// The files that a task makes of a batch.
    pub(crate) fn inspect(&mut self, task: &T, batch: &[T::Batch], draw: Draw) {
        let position = self.state.counters.position;
        let seen = batch.first().filter(|_| self.ranks.is_first());
        let files = seen.map(|part| task.inspect(part, draw, position)).unwrap_or_default();
        self.write(files);
    }

    /// To the next batch, after one was computed with these rates, so many seconds after the one before.
    pub(crate) fn pass_on(&mut self, lr: Vec<f64>, times: StepTimes, seconds: f64) {
        let counters = &mut self.state.counters;
        (counters.position, counters.unreadable_in_a_row) = (counters.position + 1, 0);
        counters.lr = lr;
        counters.batches += 1;
        counters.elapsed_s += seconds;
        self.clock.readable = None;
        self.clock.times += times;
        self.clock.trained_s += seconds;
        self.clock.batch_s = seconds;
        self.ranks.stepped(seconds);
    }

    fn too_large(&mut self, task: &T, plan: &Plan, batch: &[T::Batch], shortage: Shortage) -> TooLarge {
        self.lap();
        let position = self.state.counters.position;
        let class = plan.size_class(task, plan.draw(self.draw(), position), position);
        let samples = plan.largest_part(position, self.ranks.count(), self.state.counters.parts(class));
        TooLarge { shortage, class, samples, files: names(task, batch) }
    }

    fn tell_first_not_finite(&mut self, task: &T, batch: &[T::Batch], draw: Draw) {
        let place = batch.iter().find_map(|part| task.first_not_finite(&self.state.model, part, draw, &self.settings.device));
        if let Some(place) = place {
            self.event("not_finite", json!({ "place": place }));
            self.watchers.notify("warning", format!("the first number that is not finite: {place}"));
        }
    }

    pub(crate) fn hyper(&self, plan: &Plan, position: usize) -> Hyper {
        let (config, counters) = (&self.settings.config, &self.state.counters);
        let adam = !self.state.optimizer.has_momentum();
        let (batches, limit) = (plan.batches.len(), config.max_steps);
        let mut hyper = config.schedule.at(position, batches, (plan.epoch, counters.epochs), &self.settings.groups, adam, limit);
        hyper.lr.iter_mut().for_each(|lr| *lr *= counters.lr_scale);
        if let Schedule::Updates(schedule) = &config.schedule {
            // Some of its batches may have been taken out, or could not be read: a window ends with the last that there is, and so does an epoch.
            let from = position - position % schedule.accumulate.max(1);
            let left = (position + 1..from + hyper.accumulate).filter(|&i| !plan.is_empty(i)).count();
            hyper.accumulate = counters.pending + 1 + left;
        }
        hyper
    }

    /// What comes before a batch is computed: its seed, the place of its window, the scale of its loss.
    pub(crate) fn begin_step(&mut self, task: &T, draw: Draw) {
        self.seed_device(draw);
        let (settings, counters) = (&self.settings, &mut self.state.counters);
        if counters.pending == 0 {
            counters.window_from = counters.place();
        }
        if let Some(scaling) = settings.config.loss_scaling {
            task.scale_loss(counters.loss_scale.get_or_insert_with(|| LossScale::first(scaling)).scale);
        }
    }

    /// What a batch is computed with, and the state that it moves.
    pub(crate) fn context<'a>(&'a mut self, task: &'a T) -> (StepContext<'a, T>, &'a mut RunState<T::Model>) {
        let settings = &self.settings;
        let context = StepContext {
            task,
            layout: &settings.layout,
            groups: &settings.groups,
            device: &settings.device,
            ranks: &self.ranks,
            sync_bn: settings.config.sync_bn,
            wire: settings.config.wire,
            max_grad_norm: settings.config.max_grad_norm,
            trains_f16: settings.config.trains_f16,
            profile: settings.config.profile,
        };
        (context, &mut self.state)
    }

    /// A batch that was trained on, in the counters.
    ///
    /// # Errors
    /// A task that tells another number of loss items than it has names for.
    pub(crate) fn count(&mut self, task: &T, step: &StepReport<T::Output>) -> Result<(), LearnError> {
        let (told, named) = (step.items.len(), task.item_names().len());
        if told != named {
            return Err(LearnError::Config(format!("loss() returned {told} items where item_names() has {named}")));
        }
        let weight = if task.per_count() { step.count as u64 } else { 1 };
        let counters = &mut self.state.counters;
        counters.skipped_in_a_row = 0;
        if step.grad_norm.is_some() {
            counters.lost_updates = 0;
            if let (Some(scale), Some(scaling)) = (&mut counters.loss_scale, self.settings.config.loss_scaling) {
                scale.updated(scaling);
            }
        }
        if counters.lost_updates == 0 {
            counters.trouble_from = None;
        }
        for (sum, item) in counters.item_sums.iter_mut().zip(&step.items) {
            *sum += item * weight as f64;
        }
        counters.item_count += weight;
        Ok(())
    }

    /// The same for logs and observers.
    pub(crate) fn report(&mut self, task: &T, plan: &Plan, step: StepReport<T::Output>, seconds: f64) {
        let counters = &self.state.counters;
        let updated = step.grad_norm.is_some();
        let report = BatchReport {
            step: counters.batches,
            epoch: counters.epoch,
            epochs: counters.epochs,
            position: counters.position - 1,
            means: counters.item_means(),
            count: step.count,
            samples: step.samples,
            units: step.units,
            seconds,
            lr: counters.lr.clone(),
            grad_norm: step.grad_norm,
            times: step.times,
            gauges: (self.watchers.gauges)(),
            items: step.items,
        };
        self.watchers.update(&step.outputs, Place { epoch: report.epoch, position: report.position }, plan.batches.len());
        self.clock.grad_norm = report.grad_norm.or(self.clock.grad_norm);
        if report.position.is_multiple_of(self.settings.config.log_every.max(1)) {
            let grad_norm = self.clock.grad_norm.take();
            let fields = step_fields(task.item_names(), task.unit(), &report, grad_norm, self.watchers.values());
            self.event("step", fields);
        }
        self.journal.scalars(&tensorboard::of_batch(task.item_names(), task.unit(), &report));
        self.tell_warnings();
        self.watchers.all(|o| o.on_batch(&report));
        if let Some(message) = updated.then(|| task.oddity(&self.state.model, self.state.counters.updates)).flatten() {
            self.tell("warning", message);
        }
    }

    /// A batch that left nothing, because something in it was not finite.
    fn skip(&mut self, task: &T, batch: &[T::Batch], draw: Draw, what: &'static str, lost_update: bool) -> Trained {
        let files = names(task, batch);
        let counters = &mut self.state.counters;
        let mut from = counters.place();
        from.position -= 1;
        counters.trouble_from.get_or_insert(if lost_update { counters.window_from } else { from });
        counters.skipped += 1;
        counters.skipped_in_a_row += 1;
        counters.lost_updates += u32::from(lost_update);
        let scaling = self.settings.config.loss_scaling;
        let patience = scaling.map_or(SKIPS_BEFORE_ROLLBACK, |scaling| scaling.patience(SKIPS_BEFORE_ROLLBACK));
        let stuck = counters.skipped_in_a_row.max(counters.lost_updates) >= patience;
        let mut scaled = String::new();
        if let (Some(scale), Some(scaling)) = (&mut counters.loss_scale, scaling) {
            scale.overflowed(scaling);
            scaled = format!("; the loss scale is {}", scale.scale);
        }
        let (number, epoch, skipped) = (from.position + 1, from.epoch + 1, counters.skipped);
        let message = format!("batch {number} of epoch {epoch} skipped: the {what} is not finite ({}){scaled}", files.join(", "));
        self.event("skip", json!({ "reason": what, "files": files, "skipped": skipped }));
        self.watchers.notify("skip", message);
        if !stuck {
            return Trained::On;
        }
        self.tell_first_not_finite(task, batch, draw);
        Trained::RollBack { files }
    }

    /// This batch is trained on without the samples of a rank, which can read none of them.
    fn goes_without(&mut self, rank: usize, reason: &str) {
        let Counters { position, epoch, unreadable, .. } = self.state.counters;
        let message = format!("batch {} of epoch {} without the samples of rank {rank}: {reason}", position + 1, epoch + 1);
        self.event("unreadable", json!({ "reason": reason, "rank": rank, "unreadable": unreadable }));
        self.watchers.notify("unreadable", message);
    }

    /// A batch of which no sample could be read, or could be made.
    fn unread(&mut self, error: TaskError) -> Result<Trained, LearnError> {
        let counters = &mut self.state.counters;
        let what = format!("batch {} of epoch {}", counters.position + 1, counters.epoch + 1);
        if !error.is::<Unreadable>() || counters.unreadable_in_a_row + 1 >= SKIPS_BEFORE_ROLLBACK {
            self.save_readable();
            return Err(LearnError::task(what)(error));
        }
        self.clock.readable.get_or_insert_with(|| counters.clone());
        counters.position += 1;
        counters.batches += 1;
        counters.unreadable += 1;
        counters.unreadable_in_a_row += 1;
        let fields = json!({ "reason": error.to_string(), "unreadable": counters.unreadable });
        self.lap();
        self.event("unreadable", fields);
        self.watchers.notify("unreadable", format!("{what} skipped: {error}"));
        Ok(Trained::On)
    }

    /// Saves what is trained, for the data may come back: with the batches in a row that could not be read still to come, so that whoever goes on leaves
    /// none of them out.
    fn save_readable(&mut self) {
        let (now, safe) = (&self.state.counters, self.clock.safe);
        // Behind a checkpoint, or an epoch, that came after the first of them there is no way back.
        let reaches = |first: &Counters| first.epoch == now.epoch && safe.is_none_or(|safe| safe <= first.batches);
        if let Some(first) = self.clock.readable.take().filter(reaches) {
            self.state.counters = Counters { elapsed_s: now.elapsed_s, ..first };
        }
        if safe == Some(self.state.counters.batches) {
            return;
        }
        // The run ends of its data, whatever becomes of this.
        if let Err(error) = self.save() {
            self.tell("warning", format!("what is trained could not be saved, the checkpoint before stands: {error}"));
        }
    }
}
