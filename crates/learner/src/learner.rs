//! The loop: epochs of steps, evaluation, checkpoints, and what to do when something goes wrong.

mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bellows_runs::{Checkpoints, Member, RunDir};
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use burn::train::Interrupter;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ema::Ema;
use crate::error::{LearnError, TaskError};
use crate::grads::GradBuffer;
use crate::layout::Layout;
use crate::loader::Loader;
use crate::log::RunLog;
use crate::metrics::{ErasedMetric, StepMetric};
use crate::observe::{BatchReport, EpochReport, Gauge, Notice, Observer, RunInfo};
use crate::optim::{Optimizer, OptimizerKind};
use crate::profile::{StepTimes, describe};
use crate::sampler::epoch_order;
use crate::schedule::Schedule;
use crate::shortage::{Failure, attempt};
use crate::state::{Counters, RunState};
use crate::step::{StepContext, try_step};
use crate::task::{Draw, EvalContext, Evaluation, Group, Interrupted, Task};
use memory::{TooLarge, cut};

/// Skipped batches in a row after which the run goes back to its last checkpoint.
const SKIPS_BEFORE_ROLLBACK: u32 = 3;
/// Roll-backs a run may make; one more ends it.
const MAX_ROLLBACKS: u32 = 3;

/// Settings of a run that are not the task's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnerConfig {
    /// Epochs to train for.
    pub epochs: usize,
    /// Hours to train for; overrides `epochs`.
    pub time: Option<f64>,
    /// Evaluations without improvement after which training stops; 0 never stops.
    pub patience: usize,
    /// Learning rate, momentum, warm-up, accumulation.
    pub schedule: Schedule,
    /// Update rule.
    pub optimizer: OptimizerKind,
    /// Global gradient norm that is clipped to; 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Limit of the EMA's decay.
    pub ema_decay: f64,
    /// Updates the EMA's decay takes to reach 63 % of its limit.
    pub ema_tau: f64,
    /// Seed of every random draw.
    pub seed: u64,
    /// Shuffle the samples of each epoch.
    pub shuffle: bool,
    /// Threads that read and augment; 0 uses the training thread.
    pub workers: usize,
    /// Evaluate after every epoch; the last one is always evaluated, if there is anything to evaluate on.
    pub val: bool,
    /// Also evaluate after every so many updates.
    pub eval_steps: Option<usize>,
    /// Save after every epoch; the last one is always saved.
    pub save: bool,
    /// Also keep the weights of every n-th epoch; -1 keeps none.
    pub save_period: i64,
    /// Minutes between checkpoints inside an epoch.
    pub checkpoint_minutes: f64,
    /// Checkpoints to keep, at least two; the best one is kept besides.
    pub keep_checkpoints: usize,
    /// Batches between two `step` events.
    pub log_every: usize,
    /// Wait for the device after every stage of a step and tell at the end of an epoch where its time went.
    pub profile: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All epochs are done.
    Finished,
    /// No improvement for `patience` epochs.
    EarlyStopped,
    /// A signal or an observer asked for it; the state is saved.
    Interrupted,
    /// The run had been finished before.
    NothingToDo,
}

/// Trains one model on one dataset in one run directory.
pub struct Learner<T: Task> {
    task: T,
    config: LearnerConfig,
    dir: RunDir,
    checkpoints: Checkpoints,
    layout: Layout,
    groups: Vec<Group>,
    device: Device,
    state: RunState<T::Model>,
    stop: Arc<AtomicBool>,
    quit: Interrupter,
    observers: Vec<Box<dyn Observer>>,
    metrics: Vec<Box<dyn ErasedMetric<T::Output>>>,
    gauges: Box<dyn Fn() -> Vec<Gauge>>,
    identity: Map<String, Value>,
    saved_at: Instant,
    times: StepTimes,
    /// The seconds in which they were.
    trained_s: f64,
    resumed: bool,
    first_events: Vec<(&'static str, Value)>,
}

impl<T: Task> Learner<T> {
    /// A learner at the start of a run: `model` lives on `device` (without autodiff here; the learner adds it).
    ///
    /// `identity` is what a checkpoint must agree with to be resumed from (hashes of settings and data).
    ///
    /// # Errors
    /// When the run directory cannot hold checkpoints.
    pub fn new(
        task: T,
        model: T::Model,
        device: &Device,
        config: LearnerConfig,
        dir: RunDir,
        identity: Map<String, Value>,
    ) -> Result<Self, LearnError> {
        let device = device.clone().autodiff();
        let model = if model.devices().iter().all(Device::is_autodiff) { model } else { model.train() };
        let layout = Layout::of(&model, |name| task.role_of(name));
        let state = RunState {
            ema: Ema::new(layout.values(&model.valid()), config.ema_decay, config.ema_tau),
            optimizer: Optimizer::new(config.optimizer, &layout),
            grads: GradBuffer::default(),
            counters: Counters::new(config.seed, config.epochs, task.item_names().len()),
            model,
        };
        let checkpoints = Checkpoints::open(dir.checkpoints())?;
        let (groups, stop) = (task.groups(), Arc::new(AtomicBool::new(false)));
        let (observers, metrics, saved_at) = (Vec::new(), Vec::new(), Instant::now());
        let (gauges, resumed, first_events) = (Box::new(Vec::new), false, Vec::new());
        Ok(Self {
            task,
            config,
            dir,
            checkpoints,
            layout,
            groups,
            device,
            state,
            stop,
            quit: Interrupter::new(),
            observers,
            metrics,
            gauges,
            identity,
            saved_at,
            times: StepTimes::default(),
            trained_s: 0.0,
            resumed,
            first_events,
        })
    }

    /// Adds a watcher of the next [`fit`](Self::fit).
    pub fn observe(&mut self, observer: impl Observer + 'static) -> &mut Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Adds any of burn-train's metrics that this task's output can feed; its values go to `events.jsonl`.
    pub fn metric<M>(&mut self, metric: M) -> &mut Self
    where
        M: burn::train::metric::Metric + burn::train::metric::Numeric + 'static,
        crate::task::StepOutput<T::Output>: burn::train::metric::Adaptor<M::Input>,
        T::Output: 'static,
    {
        self.metrics.push(Box::new(StepMetric(metric)));
        self
    }

    /// What is read after every batch and told with it; it must not block.
    pub fn gauges(&mut self, read: impl Fn() -> Vec<Gauge> + 'static) -> &mut Self {
        self.gauges = Box::new(read);
        self
    }

    /// An event to write when the log is opened: what was decided before training starts.
    pub fn first_event(&mut self, kind: &'static str, fields: Value) -> &mut Self {
        self.first_events.push((kind, fields));
        self
    }

    /// A flag that ends the run after the step in progress, with a checkpoint.
    pub fn stop_when(&mut self, flag: Arc<AtomicBool>) -> &mut Self {
        self.stop = flag;
        self
    }

    /// The same for burn-train's interrupter, which its dashboard's quit key sets.
    pub fn stop_on(&mut self, quit: Interrupter) -> &mut Self {
        self.quit = quit;
        self
    }

    /// Whether one of them asks for the end: also what is done with the model after [`fit`](Self::fit) should stop then.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.quit.should_stop()
    }

    /// What survives a crash.
    pub fn state(&self) -> &RunState<T::Model> {
        &self.state
    }

    /// What it trains on and how that is judged.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The float tensors of the model by name.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The run directory.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// A model with the averaged weights, without autodiff.
    pub fn ema_model(&self) -> T::Model {
        self.layout.assign(self.state.model.valid(), self.state.ema.values.iter().cloned().map(Some).collect())
    }

    /// Goes on from the newest intact checkpoint; does nothing when the run has none yet.
    ///
    /// # Errors
    /// When checkpoints exist but none can be used: a run never silently starts again at 0.
    pub fn resume(&mut self) -> Result<(), LearnError> {
        let latest = self.checkpoints.latest()?;
        for bad in &latest.set_aside {
            let message = format!("checkpoint {} is damaged ({}): using the one before", bad.path.display(), bad.reason);
            self.first_event("warning", json!({ "message": message }));
            self.notify("warning", message);
        }
        let Some(checkpoint) = latest.checkpoint else { return Ok(()) };
        let mismatch = |reason: String| LearnError::Mismatch { path: checkpoint.path.clone(), reason };
        if let Some(key) = self.identity.keys().find(|&key| checkpoint.info.get(key) != self.identity.get(key)) {
            return Err(mismatch(format!("the {key} has changed since step {} was saved", checkpoint.step)));
        }
        let member = |name: &str| checkpoint.members.get(name).map(Vec::as_slice);
        self.state.decode(&self.layout, &self.device, &member).map_err(mismatch)?;
        self.resumed = true;
        Ok(())
    }

    /// Trains to the end, or until something stops the run.
    ///
    /// # Errors
    /// See [`LearnError`]; whatever was saved before the error stays.
    pub fn fit(&mut self, data: &dyn Dataset<T::Item>) -> Result<Outcome, LearnError> {
        if self.state.counters.done {
            return Ok(Outcome::NothingToDo);
        }
        if data.is_empty() {
            return Err(LearnError::Config("the training set is empty".into()));
        }
        let metrics = self.task.metric_names();
        let mut log = RunLog::open(&self.dir, &self.state.counters, self.task.item_names(), &metrics, self.groups.len())?;
        self.announce(&mut log, data.len(), &metrics);
        // A run has a checkpoint from its first moment: roll-backs have somewhere to go and an unwritable disk shows at once.
        if !self.resumed {
            self.checkpoints.abandon_after(None)?;
            self.save(&mut log).map_err(LearnError::Save)?;
        }
        let outcome = self.run(data, &mut log);
        // They are let go too: a dashboard gives the terminal back when it is dropped.
        self.observers.drain(..).for_each(|mut observer| observer.on_end());
        outcome
    }

    fn run(&mut self, data: &dyn Dataset<T::Item>, log: &mut RunLog) -> Result<Outcome, LearnError> {
        loop {
            let (epoch, position) = (self.state.counters.epoch, self.state.counters.position);
            self.observers.iter_mut().for_each(|o| o.on_epoch(epoch, position));
            let started = Instant::now();
            let end = self.train_epoch(data, log)?;
            self.trained_s += started.elapsed().as_secs_f64();
            let end = match end {
                EpochEnd::Evaluate => self.judge(log, false)?,
                EpochEnd::Complete => {
                    if self.config.profile {
                        self.tell_profile(log);
                    }
                    self.judge(log, true)?
                }
                other => other,
            };
            match end {
                EpochEnd::Complete | EpochEnd::Evaluate => {}
                EpochEnd::RolledBack => self.roll_back(log)?,
                EpochEnd::TooLarge(batch) => self.cut_batches(log, batch)?,
                EpochEnd::Interrupted => {
                    self.save(log).map_err(LearnError::FinalSave)?;
                    self.notify_logged(log, "stop", "stopped by request; the state is saved".into());
                    return Ok(Outcome::Interrupted);
                }
                EpochEnd::Done(outcome) => return Ok(outcome),
            }
        }
    }

    /// Trains on what is left of this epoch.
    fn train_epoch(&mut self, data: &dyn Dataset<T::Item>, log: &mut RunLog) -> Result<EpochEnd, LearnError> {
        let Counters { epoch, position, epochs, seed, .. } = self.state.counters;
        let draw = Draw { seed, epoch, epochs };
        let plan = self.plan(data.len(), draw);
        let batches = plan.len();
        let (stop, quit) = (Arc::clone(&self.stop), self.quit.clone());
        let every = self.config.eval_steps.unwrap_or(usize::MAX).max(1) as u64;
        let due = |c: &Counters| c.updates.is_multiple_of(every) && c.updates != c.evaluated_at && c.position < batches;
        // A run that was interrupted while it was judged is judged first.
        if due(&self.state.counters) {
            return Ok(EpochEnd::Evaluate);
        }
        let task = &self.task;
        let context = StepContext {
            task,
            layout: &self.layout,
            groups: &self.groups,
            device: &self.device,
            max_grad_norm: self.config.max_grad_norm,
            profile: self.config.profile,
        };
        let parts = self.state.counters.parts();
        let make = |i: usize| cut(&plan[i], parts).map(|part| task.batch(data, draw, part)).collect::<Result<Vec<_>, _>>();
        let adam = !self.state.optimizer.is_sgd();
        std::thread::scope(|scope| {
            let mut clock = Instant::now();
            let mut loader = Loader::start(scope, self.config.workers, position..batches, &make);
            for (i, samples) in plan.iter().enumerate().skip(position) {
                let asked = Instant::now();
                let Some(made) = loader.next() else { break };
                let wait = asked.elapsed().as_secs_f64();
                if stop.load(Ordering::Relaxed) || quit.should_stop() {
                    return Ok(EpochEnd::Interrupted);
                }
                let batch = made.map_err(LearnError::task(format!("batch {} of epoch {}", i + 1, epoch + 1)))?;
                let mut hyper = self.config.schedule.at(i, batches, epoch, epochs, &self.groups, adam);
                hyper.lr.iter_mut().for_each(|lr| *lr *= self.state.counters.lr_scale);
                batch.first().into_iter().for_each(|part| task.inspect(part, draw, i));
                let files = || batch.iter().flat_map(|part| task.sample_names(part)).collect::<Vec<_>>();
                let mut step = match try_step(&context, &mut self.state, &batch, draw, &hyper) {
                    Ok(step) => step,
                    Err(Failure::Other(error)) => return Err(error),
                    Err(Failure::Memory(shortage)) => {
                        self.state.counters.elapsed_s += clock.elapsed().as_secs_f64();
                        let samples = cut(samples, parts).map(<[usize]>::len).max().unwrap_or(0);
                        return Ok(EpochEnd::TooLarge(TooLarge { shortage, samples, files: files() }));
                    }
                };
                step.times.wait = wait;
                self.times += step.times;

                let counters = &mut self.state.counters;
                counters.position = i + 1;
                counters.lr.clone_from(&hyper.lr);
                counters.batches += 1;
                let seconds = clock.elapsed().as_secs_f64();
                counters.elapsed_s += seconds;
                clock = Instant::now();
                let names = || files().join(", ");
                if let Some(what) = step.skipped {
                    counters.skipped += 1;
                    counters.skipped_in_a_row += 1;
                    counters.lost_updates += u32::from(step.lost_update);
                    let message = format!("batch {} of epoch {} skipped: the {what} is not finite ({})", i + 1, epoch + 1, names());
                    let fields = json!({ "reason": what, "files": files(), "skipped": counters.skipped });
                    log.event("skip", counters, fields);
                    notify(&mut self.observers, "skip", message);
                    if counters.skipped_in_a_row.max(counters.lost_updates) >= SKIPS_BEFORE_ROLLBACK {
                        return if counters.rollbacks >= MAX_ROLLBACKS {
                            let (rollbacks, batch) = (counters.rollbacks, counters.batches);
                            Err(LearnError::Diverged { rollbacks, batch, names: names() })
                        } else {
                            Ok(EpochEnd::RolledBack)
                        };
                    }
                    continue;
                }
                counters.skipped_in_a_row = 0;
                if step.grad_norm.is_some() {
                    counters.lost_updates = 0;
                }
                let weight = if task.per_count() { step.count as u64 } else { 1 };
                for (sum, item) in counters.item_sums.iter_mut().zip(&step.items) {
                    *sum += item * weight as f64;
                }
                counters.item_count += weight;
                let report = BatchReport {
                    step: counters.batches,
                    epoch,
                    position: i,
                    means: counters.item_means(),
                    count: step.count,
                    samples: files().len(),
                    units: batch.iter().map(|part| task.units(part)).sum(),
                    seconds,
                    lr: hyper.lr,
                    grad_norm: step.grad_norm,
                    times: step.times,
                    gauges: (self.gauges)(),
                    items: step.items,
                };
                for metric in &mut self.metrics {
                    step.outputs.iter().for_each(|output| metric.update(output, i, batches));
                }
                if i % self.config.log_every.max(1) == 0 {
                    let metrics: Value = self.metrics.iter().map(|m| m.value()).collect();
                    log.event("step", counters, step_fields(task, &report, metrics));
                }
                self.observers.iter_mut().for_each(|o| o.on_batch(&report));
                if self.saved_at.elapsed().as_secs_f64() >= self.config.checkpoint_minutes * 60.0 {
                    // Also after a failure: the next try comes an interval later, not a batch later.
                    self.saved_at = Instant::now();
                    if let Err(error) =
                        save(&self.checkpoints, &self.layout, &mut self.state, &self.identity, self.config.keep_checkpoints, log)
                    {
                        log.event("warning", &self.state.counters, json!({ "message": not_saved(&*error) }));
                        notify(&mut self.observers, "warning", not_saved(&*error));
                    }
                }
                if due(&self.state.counters) {
                    return Ok(EpochEnd::Evaluate);
                }
            }
            Ok(EpochEnd::Complete)
        })
    }

    /// The batches of an epoch.
    fn plan(&self, samples: usize, draw: Draw) -> Vec<Vec<usize>> {
        self.task.plan(draw).unwrap_or_else(|| {
            let order = epoch_order(samples, draw.seed, draw.epoch, self.config.shuffle);
            order.chunks(self.config.schedule.batch()).map(<[usize]>::to_vec).collect()
        })
    }

    /// Where this epoch's time went, on the console and in the log.
    fn tell_profile(&mut self, log: &mut RunLog) {
        let (line, fields) = describe(&std::mem::take(&mut self.times), std::mem::take(&mut self.trained_s), &self.task.batch_times());
        log.event("profile", &self.state.counters, fields);
        self.notify("profile", line);
    }

    /// Evaluation, best weights, a row of `results.csv`, a checkpoint. `complete` tells the end of an epoch from a place within one.
    fn judge(&mut self, log: &mut RunLog, complete: bool) -> Result<EpochEnd, LearnError> {
        let started = Instant::now();
        let Counters { epoch, epochs, elapsed_s, .. } = self.state.counters;
        let out_of_time = self.config.time.is_some_and(|hours| elapsed_s >= hours * 3600.0);
        let last = complete && (epoch + 1 >= epochs || out_of_time);
        let model = self.ema_model();
        let evaluation = if self.task.judges() && (self.config.val || last) {
            match self.evaluate(&model) {
                Err(Failure::Other(LearnError::Task { source, .. })) if source.is::<Interrupted>() => return Ok(EpochEnd::Interrupted),
                Err(Failure::Other(error)) => return Err(error),
                Err(Failure::Memory(shortage)) => return Err(self.no_memory_to_evaluate(log, shortage)),
                Ok(evaluation) => Some(evaluation),
            }
        } else {
            None
        };
        let counters = &mut self.state.counters;
        counters.elapsed_s += started.elapsed().as_secs_f64();
        counters.evaluated_at = counters.updates;
        // What is not a number is never best: it would stay so, and no checkpoint can hold it.
        let better = |e: &Evaluation| e.fitness.is_finite() && counters.best.is_none_or(|(fitness, _)| e.fitness >= fitness);
        let best = evaluation.as_ref().is_some_and(better);
        if let Some(e) = &evaluation {
            counters.since_best += 1;
            if best {
                (counters.best, counters.since_best) = (Some((e.fitness, epoch)), 0);
                counters.best_step = Some(counters.batches);
            }
        }
        let (step, elapsed_s) = (counters.batches, counters.elapsed_s);
        let report = EpochReport { step, epoch, means: counters.item_means(), evaluation, best, elapsed_s };
        log.row(&report, self.task.metric_names().len(), &self.state.counters.lr)?;
        let counters = &mut self.state.counters;
        let metrics: serde_json::Map<String, Value> =
            report.evaluation.iter().flat_map(|e| &e.metrics).map(|(k, v)| (k.clone(), json!(v))).collect();
        let kind = if complete { "epoch" } else { "evaluation" };
        log.event(kind, counters, json!({ "train": report.means, "metrics": metrics, "best": best, "time_s": report.elapsed_s }));
        if complete {
            counters.next_epoch();
            if let Some(hours) = self.config.time {
                let mean_epoch_s = counters.elapsed_s / counters.epoch as f64;
                counters.epochs = ((hours * 3600.0 / mean_epoch_s).ceil() as usize).max(counters.epoch);
            }
        }
        let patience = self.config.patience;
        let stale = patience > 0 && counters.since_best >= patience;
        counters.done = last || stale;
        let done = counters.done;
        if self.config.save || done {
            self.export(&model, epoch, best)?;
        }
        if done {
            self.save(log).map_err(LearnError::FinalSave)?;
        } else if self.config.save {
            self.save_or_warn(log);
        }
        self.observers.iter_mut().for_each(|o| o.on_epoch_end(&report));
        Ok(match (done, stale && !last) {
            (true, true) => EpochEnd::Done(Outcome::EarlyStopped),
            (true, false) => EpochEnd::Done(Outcome::Finished),
            (false, _) => EpochEnd::Complete,
        })
    }

    fn evaluate(&mut self, model: &T::Model) -> Result<Evaluation, Failure> {
        let device = self.device.clone().without_autodiff();
        let (observers, stop, quit) = (&mut self.observers, &self.stop, &self.quit);
        let mut progress = |done, total| observers.iter_mut().for_each(|o| o.on_evaluating(done, total));
        let interrupted = || stop.load(Ordering::Relaxed) || quit.should_stop();
        let mut context = EvalContext {
            device: &device,
            workers: self.config.workers,
            epoch: self.state.counters.epoch,
            progress: &mut progress,
            interrupted: &interrupted,
        };
        attempt(|| self.task.evaluate(model, &mut context).map_err(LearnError::task("evaluation")))
    }

    /// `weights/last`, `weights/best` and `weights/epochN`, each replaced atomically.
    fn export(&self, model: &T::Model, epoch: usize, best: bool) -> Result<(), LearnError> {
        let bytes = self.task.export(model, epoch).map_err(LearnError::task("exporting the weights"))?;
        let period = self.config.save_period;
        let periodic = (period > 0 && epoch as i64 % period == 0).then(|| format!("epoch{epoch}"));
        for name in ["last".to_string()].into_iter().chain(best.then(|| "best".into())).chain(periodic) {
            bellows_runs::write_atomic(&self.dir.weights().join(format!("{name}.safetensors")), &bytes)?;
        }
        Ok(())
    }

    /// Back to the last checkpoint, with half the learning rate.
    fn roll_back(&mut self, log: &mut RunLog) -> Result<(), LearnError> {
        let Counters { batches, skipped, rollbacks, lr_scale, split, elapsed_s, .. } = self.state.counters;
        let events_len = {
            log.mark(&mut self.state.counters);
            self.state.counters.events_len
        };
        self.resume()?;
        let counters = &mut self.state.counters;
        *counters = Counters {
            batches,
            skipped,
            rollbacks: rollbacks + 1,
            lr_scale: lr_scale * 0.5,
            split,
            elapsed_s,
            events_len,
            ..counters.clone()
        };
        (counters.skipped_in_a_row, counters.lost_updates) = (0, 0);
        log.truncate_results(&self.dir, counters)?;
        let message = format!(
            "{SKIPS_BEFORE_ROLLBACK} batches or updates in a row were not finite: back to epoch {} batch {}, learning rate x{} (roll-back {} of {MAX_ROLLBACKS})",
            counters.epoch + 1,
            counters.position,
            counters.lr_scale,
            counters.rollbacks,
        );
        self.notify_logged(log, "rollback", message);
        self.save_or_warn(log);
        Ok(())
    }

    fn announce(&mut self, log: &mut RunLog, samples: usize, metrics: &[String]) {
        let Counters { epochs, epoch, position, seed, batches: step, .. } = self.state.counters;
        let batches = self.plan(samples, Draw { seed, epoch, epochs }).len();
        let info = RunInfo {
            epochs,
            epoch,
            position,
            batches,
            step,
            unit: self.task.unit(),
            item_names: self.task.item_names().to_vec(),
            metric_names: metrics.to_vec(),
        };
        for (kind, fields) in self.first_events.drain(..) {
            log.event(kind, &self.state.counters, fields);
        }
        log.event(if self.resumed { "resume" } else { "start" }, &self.state.counters, json!({ "epochs": epochs, "batches": batches }));
        self.observers.iter_mut().for_each(|o| o.on_start(&info));
        if self.resumed {
            self.notify("resume", format!("going on at epoch {} batch {}", epoch + 1, position + 1));
        }
    }

    fn save(&mut self, log: &mut RunLog) -> Result<(), TaskError> {
        self.saved_at = Instant::now();
        save(&self.checkpoints, &self.layout, &mut self.state, &self.identity, self.config.keep_checkpoints, log)
    }

    fn save_or_warn(&mut self, log: &mut RunLog) {
        if let Err(error) = self.save(log) {
            self.notify_logged(log, "warning", not_saved(&*error));
        }
    }

    fn notify(&mut self, kind: &'static str, message: String) {
        notify(&mut self.observers, kind, message);
    }

    fn notify_logged(&mut self, log: &mut RunLog, kind: &'static str, message: String) {
        log.event(kind, &self.state.counters, json!({ "message": message }));
        self.notify(kind, message);
    }
}

enum EpochEnd {
    Complete,
    Evaluate,
    RolledBack,
    TooLarge(TooLarge),
    Interrupted,
    Done(Outcome),
}

fn notify(observers: &mut [Box<dyn Observer>], kind: &'static str, message: String) {
    tracing::info!(kind, "{message}");
    let notice = Notice { kind, message };
    observers.iter_mut().for_each(|o| o.on_notice(&notice));
}

fn not_saved(error: &dyn std::error::Error) -> String {
    format!("the checkpoint was not saved, training goes on: {error}")
}

/// Writes a checkpoint and removes the ones no longer needed.
fn save<M: Module>(
    checkpoints: &Checkpoints,
    layout: &Layout,
    state: &mut RunState<M>,
    identity: &Map<String, Value>,
    keep: usize,
    log: &mut RunLog,
) -> Result<(), TaskError> {
    log.event("checkpoint", &state.counters, json!({}));
    log.mark(&mut state.counters);
    let members = state.encode(layout)?;
    let mut info = identity.clone();
    info.insert("epoch".into(), json!(state.counters.epoch));
    info.insert("position".into(), json!(state.counters.position));
    let members: Vec<Member<'_>> = members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    checkpoints.save(state.counters.batches, &members, &info)?;
    let best: Vec<u64> = state.counters.best_step.into_iter().collect();
    checkpoints.prune(keep, &best)?;
    Ok(())
}

fn step_fields<T: Task>(task: &T, report: &BatchReport, metrics: Value) -> Value {
    let items: Map<String, Value> = task.item_names().iter().zip(&report.items).map(|(n, v)| (n.to_string(), json!(v))).collect();
    let unit = task.unit();
    let mut fields = json!({
        "items": items,
        "count": report.count,
        unit: report.units,
        format!("{unit}/s"): (report.rate() * 10.0).round() / 10.0,
        "lr": report.lr,
        "grad_norm": report.grad_norm,
        "metrics": metrics,
    });
    if let Value::Object(fields) = &mut fields {
        fields.extend(report.gauges.iter().map(|(name, value, _)| (name.to_string(), json!(value))));
    }
    fields
}
