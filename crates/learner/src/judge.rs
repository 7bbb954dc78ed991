//! The arm of the loop that judges: a checkpoint, an evaluation, best weights, a row of `results.csv`, and a checkpoint that knows of them.
#![warn(clippy::too_many_lines, reason = "an arm of the loop reads at a glance")]

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bellows_runs::{Again, Checkpoint, Journal, LoadError};
use serde_json::{Map, Value, json};

use crate::attempt::{Failure, attempt};
use crate::error::LearnError;
use crate::log;
use crate::observe::EpochReport;
use crate::phase::Phase;
use crate::plan::Judging;
use crate::profile::describe;
use crate::run::{Outcome, Run};
use crate::settle::settle;
use crate::shared::Shared;
use crate::task::{EvalContext, Evaluation, Interrupted, Task};
use crate::tensorboard;

/// The weights of the newest epoch and the best ones, within the run.
const LAST: &str = "weights/last.safetensors";
const BEST: &str = "weights/best.safetensors";

/// How a judgement ended.
pub(crate) enum Judged {
    /// Training goes on.
    On,
    /// It is over.
    Done(Outcome),
    /// Somebody wanted the run to stop before there was a result.
    Interrupted,
}

impl<T: Task> Run<T> {
    /// Judges the averaged weights.
    ///
    /// # Errors
    /// An evaluation that fails; training up to it is saved. A final checkpoint that cannot be.
    pub(crate) fn judge(&mut self, task: &T, at: Judging) -> Result<Judged, LearnError> {
        let config = &self.settings.config;
        let evaluated = task.judges() && (self.is_due(at) || at.last);
        let saves = config.save || at.last;
        // Evaluations and files have other shapes than a step: its blocks would lie beside theirs. Nor does a step want those of an evaluation.
        bellows_kernels::forget();
        self.prepare(evaluated, saves)?;
        let model = self.ema_model();
        let evaluation = match evaluated.then(|| self.evaluate(task, &model)).transpose() {
            Err(Failure::Other(LearnError::Task { source, .. })) if source.is::<Interrupted>() => return Ok(Judged::Interrupted),
            Err(Failure::Other(error)) => return Err(error),
            Err(Failure::Memory(shortage)) => return Err(self.no_memory_to_evaluate(task, shortage)),
            Ok(evaluation) => evaluation,
        };
        bellows_kernels::forget();
        self.lap();
        self.agree()?;
        let report = self.count_evaluation(evaluation, at);
        self.log_evaluation(task, &report, at)?;
        // Before the checkpoint, which holds what of their files cannot be written.
        self.show(&report);
        // The clock is everybody's again.
        self.agree()?;
        let judged = evaluated || !task.judges();
        let mut outcome = self.move_on(task, at, judged);
        if outcome == Some(Outcome::EarlyStopped) {
            self.tell("stop", self.no_better());
        }
        self.export(task, &model, report.epoch, report.best, saves || outcome.is_some())?;
        if outcome.is_some() {
            self.save_planned().map_err(|error| error.or(LearnError::FinalSave))?;
        } else if saves {
            self.try_save(true)?;
        }
        self.lap();
        if outcome.is_none() && judged {
            outcome = self.end_late(task, &model, &report, saves)?;
        }
        Ok(outcome.map_or(Judged::On, Judged::Done))
    }

    /// Whether there is to be an evaluation: of the epochs every so many have one, and what is judged within an epoch is asked for by itself.
    fn is_due(&self, at: Judging) -> bool {
        let config = &self.settings.config;
        config.val && (!at.complete || (self.state.counters.epoch + 1).is_multiple_of(config.val_interval))
    }

    /// What is done before anything is read to judge by: the ranks agree on what was trained, also where no checkpoint is made, and then it is made safe.
    fn prepare(&mut self, evaluated: bool, saves: bool) -> Result<(), LearnError> {
        self.compare_weights()?;
        if evaluated && saves && self.clock.safe != Some(self.state.counters.batches) {
            self.try_save(true)?;
        }
        if evaluated { self.level_statistics() } else { Ok(()) }
    }

    /// Shows the observers what came of it, and writes what they make of that.
    fn show(&mut self, report: &EpochReport) {
        self.watchers.all(|o| o.on_epoch_end(report));
        let files = self.watchers.files();
        self.write(files);
        self.lap();
    }

    /// The end of a run whose time has run out while files were made: its weights are judged, and after another step they would have to be again.
    fn end_late(&mut self, task: &T, model: &T::Model, report: &EpochReport, saved: bool) -> Result<Option<Outcome>, LearnError> {
        let Some(hours) = self.settings.config.time else { return Ok(None) };
        // All ranks say the same.
        self.agree()?;
        if self.state.counters.elapsed_s < hours * 3600.0 {
            return Ok(None);
        }
        self.state.counters.done = true;
        self.export(task, model, report.epoch, false, !saved)?;
        self.save_planned().map_err(|error| error.or(LearnError::FinalSave))?;
        Ok(Some(Outcome::Finished))
    }

    /// Every rank judges its share.
    fn evaluate(&mut self, task: &T, model: &T::Model) -> Result<Evaluation, Failure> {
        let ranks = self.ranks.clone();
        let shared = Shared::among(ranks.others());
        let judged = self.evaluate_share(task, model, &shared);
        settle(&shared, judged)
    }

    fn evaluate_share(&mut self, task: &T, model: &T::Model, shared: &Shared<'_>) -> Result<Evaluation, Failure> {
        self.turn_to(Phase::Evaluation);
        let device = self.settings.device.clone().without_autodiff();
        let (workers, epoch) = (self.settings.config.workers, self.judged_epoch());
        let (stop, quit) = (self.watchers.stop.clone(), self.watchers.quit.clone());
        let interrupted = || stop.load(std::sync::atomic::Ordering::Relaxed) || quit.should_stop();
        let mut progress = |done, total| {
            self.watchers.all(|o| o.on_evaluating(done, total));
            shared.sign_of_life();
        };
        let mut context = EvalContext { device: &device, workers, epoch, progress: &mut progress, interrupted: &interrupted, shared };
        let evaluation = attempt(|| task.evaluate(model, &mut context).map_err(LearnError::task("evaluation")))?;
        let (told, promised) = (evaluation.metrics.iter().map(|(name, _)| name), task.metric_names());
        if told.ne(&promised) {
            let told: Vec<&String> = evaluation.metrics.iter().map(|(name, _)| name).collect();
            let reason = format!("evaluate() returned the metrics {told:?} where metric_names() says {promised:?}");
            return Err(Failure::Other(LearnError::Config(reason)));
        }
        Ok(evaluation)
    }

    /// What an evaluation changes of the counters.
    fn count_evaluation(&mut self, evaluation: Option<Evaluation>, at: Judging) -> EpochReport {
        // Patience is of epochs, however few of them are judged, or of evaluations where some are made within an epoch.
        let config = &self.settings.config;
        let passed = if at.complete && config.eval_steps.is_none() { config.val_interval } else { 1 };
        // The time may have run out after an epoch that was not judged: that one is judged now, for of the next nothing is trained.
        let epoch = if at.complete { self.state.counters.epoch } else { self.judged_epoch() };
        let counters = &mut self.state.counters;
        counters.evaluated_at = counters.updates;
        // What is not a number is never best: it would stay so, and no checkpoint can hold it.
        let better = |e: &Evaluation| e.fitness.is_finite() && counters.best.is_none_or(|(fitness, _)| e.fitness >= fitness);
        let best = evaluation.as_ref().is_some_and(better);
        if let Some(e) = &evaluation {
            counters.since_best += passed;
            if best {
                (counters.best, counters.since_best) = (Some((e.fitness, epoch)), 0);
                counters.best_step = Some(counters.batches);
            }
        }
        let (step, elapsed_s) = (counters.batches, counters.elapsed_s);
        let means = if epoch == counters.epoch { counters.item_means() } else { Vec::new() };
        EpochReport { step, epoch, means, evaluation, best, over: at.complete || at.last, elapsed_s }
    }

    fn log_evaluation(&mut self, task: &T, report: &EpochReport, at: Judging) -> Result<(), LearnError> {
        let mut columns = log::columns_of(self.journal.rows().unwrap_or_default())?;
        if columns.is_empty() {
            columns = log::columns(task.item_names(), &task.metric_names(), self.settings.groups.len());
        }
        self.journal.row(&log::row(report, task.item_names(), &self.state.counters.lr, &columns)?);
        for unreadable in report.evaluation.iter().flat_map(|e| &e.unreadable) {
            self.tell("unreadable", format!("left out of the evaluation: {unreadable}"));
        }
        let metrics: Map<String, Value> =
            report.evaluation.iter().flat_map(|e| &e.metrics).map(|(name, value)| (name.clone(), json!(value))).collect();
        let kind = if at.complete { "epoch" } else { "evaluation" };
        self.event(kind, json!({ "train": report.means, "metrics": metrics, "best": report.best, "time_s": report.elapsed_s }));
        self.journal.scalars(&tensorboard::of_epoch(report));
        if at.complete && self.settings.config.profile {
            let (times, trained_s) = (std::mem::take(&mut self.clock.times), std::mem::take(&mut self.clock.trained_s));
            let (line, fields) = describe(&times, trained_s, &task.batch_times());
            self.event("profile", fields);
            self.watchers.notify("profile", line);
        }
        self.tell_warnings();
        Ok(())
    }

    /// To the next epoch if this one is complete, and to the end if there is nothing more to do.
    fn move_on(&mut self, task: &T, at: Judging, judged: bool) -> Option<Outcome> {
        let closing = Some(self.draw()).filter(|draw| task.is_closing(*draw)).map(|draw| draw.epochs);
        let (counters, config) = (&mut self.state.counters, &self.settings.config);
        let seconds = config.time.map(|hours| hours * 3600.0);
        if at.complete {
            counters.next_epoch();
            if let Some(seconds) = seconds {
                // Before half of the time the estimate is of too few epochs, or only what was asked for.
                if counters.elapsed_s * 2.0 >= seconds {
                    counters.closing = counters.closing.or(closing);
                }
                let mean_epoch_s = counters.elapsed_s / counters.epoch as f64;
                counters.epochs =
                    ((seconds / mean_epoch_s).ceil() as usize).max(counters.epoch + usize::from(counters.elapsed_s < seconds));
            }
        }
        // The time may have run out while the model was judged.
        let over = at.last || (judged && seconds.is_some_and(|seconds| counters.elapsed_s >= seconds));
        let stale = config.patience > 0 && counters.since_best >= config.patience;
        counters.done = over || stale;
        match (over, stale) {
            (true, _) => Some(Outcome::Finished),
            (false, true) => Some(Outcome::EarlyStopped),
            (false, false) => None,
        }
    }

    /// Why a run ends before its epochs are over.
    fn no_better(&self) -> String {
        let (counters, config) = (&self.state.counters, &self.settings.config);
        let unit = if config.eval_steps.is_some() { "evaluation" } else { "epoch" };
        let (since, s) = (counters.since_best, if counters.since_best == 1 { "" } else { "s" });
        let best = counters.best.map_or(String::new(), |(_, epoch)| format!(", best was epoch {}", epoch + 1));
        format!("stopped early: no improvement for {since} {unit}{s} (patience {}){best}", config.patience)
    }

    /// `weights/last`, `weights/best` and `weights/epochN`: after the checkpoint they belong to, or now if there is none. Rank 0 does, for all.
    ///
    /// # Errors
    /// Weights that cannot be read back, on all ranks.
    fn export(&mut self, task: &T, model: &T::Model, epoch: usize, best: bool, all: bool) -> Result<(), LearnError> {
        if !all && !best {
            return Ok(());
        }
        self.turn_to(Phase::Export);
        let ranks = self.ranks.clone();
        // The others wait for rank 0 here, as long as an export may take, and not in the save that comes next.
        ranks.done_by_first(|| self.export_here(task, model, epoch, best, all))
    }

    fn export_here(&mut self, task: &T, model: &T::Model, epoch: usize, best: bool, all: bool) -> Result<(), LearnError> {
        let bytes: Rc<[u8]> = task.export(model, epoch).map_err(LearnError::task("exporting the weights"))?.into();
        let step = self.state.counters.batches;
        let mut periodic = self.periodic(epoch).filter(|_| all);
        if let Some(path) = periodic.take_if(|_| self.journal.is_full()) {
            self.journal.give_up(&path, Again::Perhaps(step), &"others wait to be written, and there is no room for more");
        }
        for path in all.then(|| LAST.into()).into_iter().chain(best.then(|| BEST.into())).chain(periodic) {
            if all {
                self.journal.write_weights_after_save(&path, step, &bytes);
            } else {
                self.journal.write_weights(&path, step, &bytes);
            }
        }
        self.tell_warnings();
        Ok(())
    }

    /// Where the weights of this epoch stay.
    fn periodic(&self, epoch: usize) -> Option<String> {
        let period = self.settings.config.save_period;
        (period > 0 && epoch as i64 % period == 0).then(|| format!("weights/epoch{epoch}.safetensors"))
    }

    /// The weights that the process which made this checkpoint, which the run goes on from, may not have written: it has died between the
    /// checkpoint and what comes after it, or the disk had no room. Those of an earlier state are in a checkpoint of their own.
    ///
    /// # Errors
    /// A checkpoint of another run; weights that cannot be read back.
    pub(crate) fn export_missing(&mut self, task: &T, newest: &Checkpoint) -> Result<(), LearnError> {
        if !self.ranks.is_first() {
            return Ok(());
        }
        let mut unwritten = match Journal::unwritten_without_steps(newest) {
            Some(paths) => self.unwritten_of_older(newest.step, paths),
            None => Journal::unwritten(newest),
        };
        // Somebody may have deleted them: the checkpoint of the best is kept, and a run that is over stands at its last.
        let counters = &self.state.counters;
        for (path, step) in [(BEST, counters.best_step), (LAST, counters.done.then_some(newest.step))] {
            let waits = unwritten.values().flatten().any(|waits| waits == path);
            if let Some(step) = step.filter(|_| !waits && !self.journal.dir().path().join(path).exists()) {
                unwritten.entry(step).or_default().push(path.into());
            }
        }
        for (step, paths) in unwritten {
            let (model, epoch) = if step == newest.step {
                self.judged_model()
            } else {
                let older = match self.journal.checkpoints().load_step(step) {
                    Ok(older) => older,
                    Err(error) => {
                        let again = if matches!(error, LoadError::Store(_) | LoadError::NewerFormat { .. }) {
                            Again::Later(step)
                        } else {
                            Again::Never
                        };
                        paths.iter().for_each(|path| self.journal.give_up(path, again, &error));
                        continue;
                    }
                };
                let turned = self.turn_state_to(&older).map(|()| self.judged_model());
                self.turn_state_to(newest)?;
                turned?
            };
            let bytes: Rc<[u8]> = task.export(&model, epoch).map_err(LearnError::task("exporting the weights"))?.into();
            paths.iter().for_each(|path| self.journal.write_weights(path, step, &bytes));
        }
        Ok(())
    }

    /// The weights that an older program may not have written: those of the paths that it has recorded, and those of its newest checkpoint, which
    /// it did not record, if that was made after a judgement.
    fn unwritten_of_older(&mut self, step: u64, paths: Vec<String>) -> BTreeMap<u64, Vec<String>> {
        let periodic = self.periodic(self.judged_epoch());
        let known = |path: &String| [LAST, BEST].contains(&path.as_str()) || Some(path) == periodic.as_ref();
        let (mut weights, others): (BTreeSet<String>, BTreeSet<String>) = paths.into_iter().partition(known);
        for path in others.into_iter().filter(|path| path.starts_with("weights/")) {
            self.tell("warning", format!("{path} may be missing: an older program did not write down which state it is of"));
        }
        let c = &self.state.counters;
        if step > 0 && c.planned_step == Some(step) && c.evaluated_at == c.updates {
            let all = self.settings.config.save || c.done;
            weights.extend(all.then(|| LAST.to_owned()));
            weights.extend(periodic.filter(|_| all));
            weights.extend((c.best_step == Some(step)).then(|| BEST.to_owned()));
        }
        let mut by_step: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for path in weights {
            let of = if path == BEST { c.best_step.unwrap_or(step) } else { step };
            by_step.entry(of).or_default().push(path);
        }
        by_step
    }

    /// The averaged weights of a state that was judged, and the epoch they are of.
    fn judged_model(&self) -> (T::Model, usize) {
        (self.ema_model(), self.judged_epoch())
    }

    fn judged_epoch(&self) -> usize {
        let counters = &self.state.counters;
        if counters.position == 0 { counters.epoch.saturating_sub(1) } else { counters.epoch }
    }
}
