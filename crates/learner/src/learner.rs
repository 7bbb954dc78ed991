//! The loop. What is next is a pure function of counters and plan ([`crate::plan`]); each thing that can be next has an arm of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Scope;
use std::time::Instant;

use bellows_ranks::Exchange;
use bellows_runs::{Checkpoint, DiskStore, Journal, Nowhere, RunDir, Store};
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use burn::train::Interrupter;
use serde_json::{Value, json};

use crate::ahead::Batches;
use crate::config::{LearnerConfig, check_task};
use crate::counters::Counters;
use crate::dashboard::Dashboard;
use crate::ema::Ema;
use crate::error::{LearnError, TaskError};
use crate::grads::GradBuffer;
use crate::identity::Identity;
use crate::judge::Judged;
use crate::layout::Layout;
use crate::loader::Loader;
use crate::log;
use crate::metrics::StepMetric;
use crate::observe::{EpochEnds, EpochReport, Gauge, Observer, RunInfo};
use crate::optim::{Constants, Optimizer};
use crate::parts::cut;
use crate::phase::{Limits, Phase};
use crate::plan::{Next, Plan, next};
use crate::ranks::{Hardware, Ranks};
use crate::run::{Clock, Outcome, Run, Settings};
use crate::state::RunState;
use crate::task::{Draw, RunFile, Task, Unreadable};
use crate::tensorboard;
use crate::train::Trained;
use crate::watchers::Watchers;

/// Trains one model on one dataset in one run directory.
pub struct Learner<T: Task> {
    task: T,
    run: Run<T>,
    /// What the ranks that this one joins are told that it computes on.
    hardware: Hardware,
    /// Where the run goes on from.
    came_from: Option<Checkpoint>,
    /// Events to write when the log is opened.
    first_events: Vec<(&'static str, Value)>,
    /// What observers are told when training goes on.
    first_notices: Vec<String>,
    tensorboard: bool,
}

impl<T: Task> Learner<T> {
    /// A learner at the start of a run: `model` lives on `device` (without autodiff here; the learner adds it).
    ///
    /// `identity` is what a checkpoint must agree with to be resumed from.
    ///
    /// # Errors
    /// Settings or a task that make no sense; a run directory that cannot hold checkpoints.
    pub fn new(
        task: T,
        model: T::Model,
        device: &Device,
        config: LearnerConfig,
        dir: RunDir,
        identity: Identity,
    ) -> Result<Self, LearnError> {
        let store: Rc<dyn Store> = if dir.is_nowhere() { Rc::new(Nowhere) } else { Rc::new(DiskStore) };
        Self::with_store(task, model, device, config, dir, identity, store)
    }

    /// The same with another disk than the real one under the run's journal.
    ///
    /// # Errors
    /// As [`Learner::new`].
    pub fn with_store(
        task: T,
        model: T::Model,
        device: &Device,
        config: LearnerConfig,
        dir: RunDir,
        identity: Identity,
        store: Rc<dyn Store>,
    ) -> Result<Self, LearnError> {
        config.validate()?;
        let device = device.clone().autodiff();
        let model = if model.devices().iter().all(Device::is_autodiff) { model } else { model.train() };
        let groups = task.groups();
        let layout = config.optimizer.arrange(Layout::of(&model, |name| task.role_of(name)), &groups);
        check_task(&task, &model, &layout)?;
        let own = config.optimizer.constants();
        let constants = Constants { beta2: config.beta2.unwrap_or(own.beta2), eps: config.eps };
        let state = RunState {
            ema: Ema::new(layout.gathered(&model.valid()), config.ema_decay, config.ema_tau),
            optimizer: Optimizer::new(config.optimizer, constants, &layout),
            grads: GradBuffer::default(),
            counters: Counters::new(config.seed, config.epochs, task.item_names().len()),
            model,
        };
        let journal = Journal::open_with(store, dir)?;
        let settings = Settings { config, device, layout, groups, identity };
        let (watchers, clock, ranks) = (Watchers::none(), Clock::start(), Ranks::default());
        let run = Run { state, journal, watchers, settings, clock, begun: false, ranks };
        let (first_events, first_notices) = (Vec::new(), Vec::new());
        Ok(Self { task, run, hardware: Hardware::default(), came_from: None, first_events, first_notices, tensorboard: false })
    }

    /// What the backend and the device are called that this one computes on, for ranks that it [joins](Self::join) afterwards: their backend must be the
    /// same, and of a device with another name all are told.
    pub fn computes_on(&mut self, backend: &str, name: &str) -> &mut Self {
        self.hardware = Hardware { backend: backend.into(), name: name.into() };
        self
    }

    /// Makes this one of several ranks that train one model, each with a Learner of its own: before [`resume`](Self::resume), which all of them
    /// call or none. Each trains on its part of a batch ([`LearnerConfig::ranks`]). Rank 0 has the run directory; the others are made with
    /// [`RunDir::nowhere`] and write nothing. `code` is what the program is called that all must be, and `limits` say how long one waits for
    /// another.
    ///
    /// # Errors
    /// A rank that is gone; one that has another program, other settings, other data or another backend: on all ranks.
    pub fn join(&mut self, exchange: Rc<dyn Exchange>, code: &str, limits: Limits) -> Result<(), LearnError> {
        self.run.ranks = Ranks::of(exchange, limits);
        self.run.ranks.introduce(code, self.run.settings.identity.info(), self.hardware.clone())
    }

    /// Whether it keeps the run: the only rank, or rank 0.
    pub fn is_first(&self) -> bool {
        self.run.ranks.is_first()
    }

    /// Adds a watcher of the next [`fit`](Self::fit).
    pub fn observe(&mut self, observer: impl Observer + 'static) -> &mut Self {
        self.run.watchers.observe(Box::new(observer));
        self
    }

    /// Calls `tell` with every epoch's report: all that most programs want to watch.
    pub fn on_epoch_end(&mut self, tell: impl FnMut(&EpochReport) + 'static) -> &mut Self {
        self.observe(EpochEnds(tell))
    }

    /// Adds one of burn-train's renderers, told of everything.
    pub fn dashboard(&mut self, renderer: Box<dyn burn::train::renderer::MetricsRenderer>) -> &mut Self {
        self.observe(Dashboard::new(renderer))
    }

    /// Adds any of burn-train's metrics whose input this task's output can be adapted to; its values go to `events.jsonl`.
    pub fn metric<M>(&mut self, metric: M) -> &mut Self
    where
        M: burn::train::metric::Metric + burn::train::metric::Numeric + 'static,
        T::Output: burn::train::metric::Adaptor<M::Input> + 'static,
    {
        self.run.watchers.measure(Box::new(StepMetric(metric)));
        self
    }

    /// Writes event files for TensorBoard, under `tensorboard/` of the run.
    pub fn tensorboard(&mut self) -> &mut Self {
        self.tensorboard = true;
        self
    }

    /// What is read after every batch and told with it; it must not block.
    pub fn gauges(&mut self, read: impl Fn() -> Vec<Gauge> + 'static) -> &mut Self {
        self.run.watchers.gauges = Box::new(read);
        self
    }

    /// An event to write when the log is opened: what was decided before training starts.
    pub fn first_event(&mut self, kind: &'static str, fields: Value) -> &mut Self {
        self.first_events.push((kind, fields));
        self
    }

    /// A flag that ends the run after the step in progress, with a checkpoint; on a GPU a few short ones of a window may be in progress at once.
    pub fn stop_when(&mut self, flag: Arc<AtomicBool>) -> &mut Self {
        self.run.watchers.stop = flag;
        self
    }

    /// The same for burn-train's interrupter, which its dashboard's quit key sets.
    pub fn stop_on(&mut self, quit: Interrupter) -> &mut Self {
        self.run.watchers.quit = quit;
        self
    }

    /// A flag that says whether a file of the run could not be written so far: for whoever ends the process before [`finish`](Self::finish).
    pub fn incomplete_when(&mut self, flag: Arc<AtomicBool>) -> &mut Self {
        self.run.watchers.incomplete = flag;
        self
    }

    /// Whether one of them asks for the end: also what is done with the model after [`fit`](Self::fit) should stop then.
    pub fn is_stopped(&self) -> bool {
        self.run.watchers.stopping()
    }

    /// What survives a crash.
    pub fn state(&self) -> &RunState<T::Model> {
        &self.run.state
    }

    /// What it trains on and how that is judged.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// The float tensors of the model by name.
    pub fn layout(&self) -> &Layout {
        &self.run.settings.layout
    }

    /// The run directory.
    pub fn dir(&self) -> &RunDir {
        self.run.journal.dir()
    }

    /// A model with the averaged weights, without autodiff.
    pub fn ema_model(&self) -> T::Model {
        self.run.ema_model()
    }

    /// Writes a file of the run; one that cannot be written is tried again, and told by [`finish`](Self::finish).
    pub fn write(&mut self, file: RunFile) {
        self.run.write(vec![file]);
    }

    /// Tries once more to write what could not be written.
    ///
    /// # Errors
    /// What is still missing; the checkpoints are there.
    pub fn finish(&mut self) -> Result<(), LearnError> {
        let written = self.run.journal.finish();
        self.run.tell_warnings();
        Ok(written?)
    }

    /// Goes on from the newest intact checkpoint, which rank 0 reads for all, and writes the weights that whoever made it may not have written; does
    /// nothing when the run was stopped before it had one.
    ///
    /// # Errors
    /// When checkpoints exist but none can be used, or are gone from a run that has trained: a run never silently starts again at 0. A checkpoint that
    /// wants a file written outside of its run.
    pub fn resume(&mut self) -> Result<(), LearnError> {
        let (mut set_aside, journal) = (Vec::new(), &self.run.journal);
        let checkpoint = self.run.ranks.checkpoint(|| {
            let latest = journal.checkpoints().latest()?;
            set_aside = latest.set_aside;
            if latest.checkpoint.is_none() && journal.has_trained()? {
                let run = journal.dir().path().display();
                return Err(LearnError::Config(format!("{run} has trained, and no checkpoint is left to go on from: begin another run")));
            }
            if let Some(checkpoint) = &latest.checkpoint
                && let Some(file) = Journal::foreign_file(checkpoint)
            {
                let reason = format!("it wants {file:?} written, which is no file of its run: no program of ours has made it");
                return Err(LearnError::Mismatch { path: checkpoint.path.clone(), reason });
            }
            Ok(latest.checkpoint)
        })?;
        for bad in &set_aside {
            let message = format!("checkpoint {} is damaged ({}): using the one before", bad.path.display(), bad.reason);
            self.first_event("warning", json!({ "message": message }));
            self.run.watchers.notify("warning", message);
        }
        let Some(mut checkpoint) = checkpoint else { return Ok(()) };
        if let Some(difference) = self.run.settings.identity.difference(&checkpoint.info) {
            let reason = format!("{difference} (since step {} was saved)", checkpoint.step);
            return Err(LearnError::Mismatch { path: checkpoint.path, reason });
        }
        let defaults = self.run.settings.identity.unknown_to(&checkpoint.info);
        if !defaults.is_empty() {
            let list: Vec<String> = defaults.iter().map(|(key, value)| format!("{key} ({value})")).collect();
            self.first_notices
                .push(format!("the run was begun by an older program; of what it did not know, defaults: {}", list.join(", ")));
            self.first_event("defaults", defaults.into());
        }
        self.run.turn_state_to(&checkpoint)?;
        // Memory ran out before: that it did not suffice for all that was held may be why the device was lost.
        if self.run.state.counters.cuts() {
            self.task.hold_less();
        }
        self.run.export_missing(&self.task, &checkpoint)?;
        // The logs ask for their part when training begins; the weights are in the state, beside which the old ones were for a moment.
        checkpoint.members.retain(|name, _| !name.ends_with(".safetensors"));
        bellows_kernels::forget();
        self.came_from = Some(checkpoint);
        self.run.begun = false;
        Ok(())
    }

    /// Cuts batches into twice as many parts as so far, as is done when the device's memory runs out; `reason` is for the log. For a caller who
    /// has seen a process die of that.
    pub fn cut_batches(&mut self, reason: &str) {
        self.task.hold_less();
        let counters = &mut self.run.state.counters;
        counters.halve_all();
        let parts = counters.parts(0);
        self.first_event("oom", json!({ "reason": reason, "files": [], "parts": parts }));
    }

    /// Trains to the end, or until something stops the run, and goes on from there when called again; of a run that is over, writes what is missing of its
    /// files. What of them could not be written is told by [`finish`](Self::finish), which is called last.
    ///
    /// # Errors
    /// See [`LearnError`]; whatever was saved before the error stays.
    pub fn fit(&mut self, data: &dyn Dataset<T::Item>) -> Result<Outcome, LearnError> {
        if self.run.state.counters.done {
            if let (Some(checkpoint), false) = (&self.came_from, self.run.begun) {
                self.run.journal.reopen(checkpoint);
                self.run.begun = true;
            }
            self.run.end();
            if let (true, Err(error)) = (self.run.ranks.is_first(), self.run.journal.settle()) {
                tracing::debug!("what was written will be written again: {error}");
            }
            return Ok(Outcome::NothingToDo);
        }
        if data.is_empty() {
            return Err(LearnError::Config("the training set is empty".into()));
        }
        self.begin(data.len())?;
        let outcome = self.train(data);
        self.run.end();
        outcome
    }

    /// Opens the logs, tells the observers, and sees to it that there is a checkpoint.
    fn begin(&mut self, samples: usize) -> Result<(), LearnError> {
        let (run, metrics) = (&mut self.run, self.task.metric_names());
        // Of a Learner that goes on after an earlier `fit` the logs are where its state is.
        let open = run.begun;
        match &self.came_from {
            _ if open => {}
            Some(checkpoint) => run.journal.go_on(checkpoint),
            None => run.journal.begin(&log::line(log::columns(self.task.item_names(), &metrics, run.settings.groups.len()))?)?,
        }
        run.begun = true;
        run.level_begin()?;
        let batches = run.plan(&self.task, samples).batches.len();
        let Counters { epochs, epoch, position, batches: step, elapsed_s, .. } = run.state.counters;
        let (unit, item_names) = (self.task.unit(), self.task.item_names().to_vec());
        let info = RunInfo { epochs, epoch, position, batches, step, unit, item_names, metric_names: metrics };
        if self.tensorboard {
            run.journal.open_scalars(&tensorboard::file_name());
            run.journal.scalars(&tensorboard::of_start(&info));
        }
        for (kind, fields) in self.first_events.drain(..) {
            run.event(kind, fields);
        }
        let (resumed, safe) = (open || self.came_from.is_some(), run.clock.safe);
        run.event(if resumed { "resume" } else { "start" }, json!({ "epochs": epochs, "batches": batches }));
        run.watchers.all(|o| o.on_start(&info));
        if let Some(unlike) = run.ranks.unlike_hardware().filter(|_| !open) {
            run.tell("warning", unlike);
        }
        run.tell_warnings();
        run.clock = Clock::start();
        run.clock.saved.elapsed_s = elapsed_s;
        run.clock.saved.batches = step;
        run.clock.safe = if open { safe } else { resumed.then_some(step) };
        run.clock.compared = Some(step);
        if resumed {
            let place = format!("going on at epoch {} batch {}", epoch + 1, position + 1);
            self.first_notices.drain(..).chain([place]).for_each(|notice| run.watchers.notify("resume", notice));
            if run.clock.safe.is_some() {
                return Ok(());
            }
        }
        // Of the largest to come: the first is without moments, and within no window.
        let size = run.state.full_size(&run.settings.layout, run.settings.config.schedule.accumulate() > 1);
        if let Some(little) = run.journal.checkpoints().little_room(size) {
            run.tell("warning", little);
        }
        // A run has a checkpoint from its first moment: roll-backs have somewhere to go and an unwritable disk shows at once.
        run.save_planned().map_err(|error| error.or(LearnError::Save))
    }

    fn train(&mut self, data: &dyn Dataset<T::Item>) -> Result<Outcome, LearnError> {
        loop {
            let plan = self.run.plan(&self.task, data.len());
            let (task, run) = (&self.task, &mut self.run);
            if let Some(outcome) = std::thread::scope(|scope| by_plan(scope, task, run, &plan, data))? {
                return Ok(outcome);
            }
        }
    }
}

/// Goes on by one plan until it is done (the epoch is over) or batches have to be laid out anew, which is `None`.
fn by_plan<'scope, T: Task>(
    scope: &'scope Scope<'scope, '_>,
    task: &'scope T,
    run: &mut Run<T>,
    plan: &'scope Plan,
    data: &'scope dyn Dataset<T::Item>,
) -> Result<Option<Outcome>, LearnError> {
    let (draw, counters) = (run.draw(), run.state.counters.clone());
    let (position, rank) = (counters.position, (run.ranks.rank(), run.ranks.count()));
    let make = move |i: usize| make(task, data, plan, i, rank, draw, &counters);
    let mut batches = Batches::<T>::of(Loader::start(scope, run.settings.config.workers, position..plan.batches.len(), make));
    run.watchers.all(|o| o.on_epoch(plan.epoch, position));
    loop {
        if run.agree()? {
            return run.stop().map(Some);
        }
        match next(&run.state.counters, plan, &run.clock.saved) {
            Next::Step => {
                run.turn_to(Phase::Step);
                if run.train_ahead(task, plan, &mut batches)? {
                    continue;
                }
                let asked = Instant::now();
                let Some(made) = batches.next() else { return Ok(None) };
                match run.train(task, plan, made, asked)? {
                    Trained::On => {}
                    Trained::RollBack { files } => return run.roll_back(&files).map(|()| None),
                    Trained::TooLarge(batch) => return run.cut_batches(task, batch).map(|()| None),
                }
            }
            Next::Judge(at) => match run.judge(task, at)? {
                Judged::On if at.complete => return Ok(None),
                Judged::On => run.watchers.all(|o| o.on_epoch(plan.epoch, run.state.counters.position)),
                Judged::Done(outcome) => return Ok(Some(outcome)),
                Judged::Interrupted => return run.stop().map(Some),
            },
            Next::Save => {
                run.try_save(false)?;
                run.lap();
            }
            Next::Done => return Ok(None),
        }
    }
}

/// The parts of a batch that this rank (of so many) has. A part of which no sample can be read is left out, if there is another one.
fn make<T: Task>(
    task: &T,
    data: &dyn Dataset<T::Item>,
    plan: &Plan,
    position: usize,
    (rank, ranks): (usize, usize),
    draw: Draw,
    counters: &Counters,
) -> Result<Vec<T::Batch>, TaskError> {
    let (mut made, mut unreadable) = (Vec::new(), None);
    let draw = plan.draw(draw, position);
    let parts = counters.parts(plan.size_class(task, draw, position));
    let share = plan.share(position, rank, ranks).into_iter().flat_map(|list| cut(list, parts));
    for part in share.filter(|part| !part.is_empty()) {
        match task.batch(data, draw, part) {
            Ok(batch) => made.push(batch),
            Err(error) if error.is::<Unreadable>() => unreadable = Some(error),
            Err(error) => return Err(error),
        }
    }
    unreadable.filter(|_| made.is_empty()).map_or(Ok(made), Err)
}
