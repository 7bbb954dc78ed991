//! A run in progress: its state, its journal, its watchers and its settings, and what every arm of the loop does with them.

use std::sync::atomic::Ordering;
use std::time::Instant;

use bellows_runs::{Checkpoint, Journal, Member, Retention};
use burn::module::Module;
use burn::tensor::Device;
use serde_json::{Value, json};

use crate::config::LearnerConfig;
use crate::counters::{Counters, Place};
use crate::error::{LearnError, TaskError};
use crate::identity::Identity;
use crate::layout::Layout;
use crate::log;
use crate::phase::Phase;
use crate::plan::{Plan, Saved};
use crate::profile::StepTimes;
use crate::ranks::Ranks;
use crate::rng::Rng;
use crate::sampler::epoch_order;
use crate::state::RunState;
use crate::task::{Draw, Group, RunFile, Task};
use crate::watchers::Watchers;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All epochs are done, or the time or the steps that there were.
    Finished,
    /// No improvement for `patience` epochs, or evaluations with `eval_steps`.
    EarlyStopped,
    /// A signal or an observer asked for it; the state is saved.
    Interrupted,
    /// The run had been finished before.
    NothingToDo,
}

/// What does not change while a run goes on.
pub(crate) struct Settings {
    pub(crate) config: LearnerConfig,
    /// With autodiff.
    pub(crate) device: Device,
    pub(crate) layout: Layout,
    pub(crate) groups: Vec<Group>,
    pub(crate) identity: Identity,
}

/// What a session measures of itself; none of it changes a number.
pub(crate) struct Clock {
    lap: Instant,
    pub(crate) saved: Saved,
    /// Batches of the last checkpoint that was made.
    pub(crate) safe: Option<u64>,
    /// Batches after which all ranks had the same weights, when they were compared last.
    pub(crate) compared: Option<u64>,
    /// The counters before the first of the batches in a row that could not be read: nothing else of the state is another since.
    pub(crate) readable: Option<Counters>,
    /// Where the time of this epoch's steps went, and the seconds in which they were.
    pub(crate) times: StepTimes,
    pub(crate) trained_s: f64,
    /// The norm of the newest update that no `step` event has told.
    pub(crate) grad_norm: Option<f64>,
    /// Seconds that the last batch took; no number of them before the first.
    pub(crate) batch_s: f64,
    /// Batches before this one are read one by one.
    pub(crate) singly_until: Place,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            lap: Instant::now(),
            saved: Saved::default(),
            safe: None,
            compared: None,
            readable: None,
            times: StepTimes::default(),
            trained_s: 0.0,
            grad_norm: None,
            batch_s: f64::INFINITY,
            singly_until: Place::default(),
        }
    }

    /// Seconds since the last lap.
    pub(crate) fn lap(&mut self) -> f64 {
        std::mem::replace(&mut self.lap, Instant::now()).elapsed().as_secs_f64()
    }
}

/// Why a checkpoint was not made. A rank that is gone is no fault of the disk: the run goes on from the checkpoint there is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsaved {
    #[error("{0}")]
    Here(TaskError),
    #[error("{0}")]
    Ranks(LearnError),
}

impl Unsaved {
    /// As the end of the run: what the disk did is `of_disk`.
    pub(crate) fn or(self, of_disk: impl FnOnce(TaskError) -> LearnError) -> LearnError {
        match self {
            Self::Here(error) => of_disk(error),
            Self::Ranks(error) => error,
        }
    }
}

/// Everything of a run but the task.
pub(crate) struct Run<T: Task> {
    pub(crate) state: RunState<T::Model>,
    pub(crate) journal: Journal,
    pub(crate) watchers: Watchers<T::Output>,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    /// The logs are open: before that nothing is told, for it would be cut off again.
    pub(crate) begun: bool,
    /// Who else trains this model.
    pub(crate) ranks: Ranks,
}

impl<T: Task> Run<T> {
    /// A model with the averaged weights, without autodiff.
    pub(crate) fn ema_model(&self) -> T::Model {
        let layout = &self.settings.layout;
        layout.assign(self.state.model.valid(), layout.scatter(&self.state.ema.values))
    }

    /// What this epoch may depend on.
    pub(crate) fn draw(&self) -> Draw {
        let Counters { seed, epoch, epochs, closing, .. } = self.state.counters;
        Draw { seed, epoch, epochs: closing.unwrap_or(epochs), step: 0, first: 0 }
    }

    /// Takes the state of a checkpoint.
    ///
    /// # Errors
    /// One of another model or another run.
    pub(crate) fn turn_state_to(&mut self, checkpoint: &Checkpoint) -> Result<(), LearnError> {
        let member = |name: &str| checkpoint.members.get(name).map(Vec::as_slice);
        let mismatch = |reason| LearnError::Mismatch { path: checkpoint.path.clone(), reason };
        self.state.decode(&self.settings.layout, &self.settings.device, &member).map_err(mismatch)
    }

    /// The batches of this epoch.
    pub(crate) fn plan(&self, task: &T, samples: usize) -> Plan {
        let config = &self.settings.config;
        let draw = self.draw();
        let lists = task.plan(draw).unwrap_or_else(|| {
            let order = epoch_order(samples, draw.seed, draw.epoch, config.shuffle);
            order.chunks(config.schedule.batch() / config.ranks).map(<[usize]>::to_vec).collect()
        });
        Plan::new(config, &self.state.counters, lists)
    }

    /// Whether anybody wants to stop; several ranks have one clock.
    ///
    /// # Errors
    /// A rank that is gone.
    pub(crate) fn agree(&mut self) -> Result<bool, LearnError> {
        let (counters, saved) = (&mut self.state.counters, &mut self.clock.saved);
        let (stop, clocks) = self.ranks.agree(self.watchers.stopping(), [counters.elapsed_s, saved.elapsed_s])?;
        [counters.elapsed_s, saved.elapsed_s] = clocks;
        Ok(stop)
    }

    /// Seeds what Burn draws by itself on the device (`Dropout`, `Tensor::random`): with the batch it is for, so that a run that is resumed
    /// draws the same.
    pub(crate) fn seed_device(&self, draw: Draw) {
        let bits = Rng::new(draw.seed, "device", draw.epoch as u64, draw.step).bits();
        // Another rank has other samples, and draws for itself.
        let own = |rank| Rng::new(bits, "rank", rank, 0).bits();
        self.settings.device.seed(if self.ranks.is_first() { bits } else { own(self.ranks.rank() as u64) });
    }

    /// Adds the time since the last call to the run's.
    pub(crate) fn lap(&mut self) -> f64 {
        let seconds = self.clock.lap();
        self.state.counters.elapsed_s += seconds;
        seconds
    }

    /// What the run is busy with from here on.
    pub(crate) fn turn_to(&mut self, phase: Phase) {
        self.ranks.turn_to(phase);
        self.watchers.turn_to(phase);
    }

    /// A line of `events.jsonl`.
    pub(crate) fn event(&mut self, kind: &str, fields: Value) {
        self.journal.event(&log::event(kind, &self.state.counters, fields));
    }

    /// A line of `events.jsonl` that observers are told too.
    pub(crate) fn tell(&mut self, kind: &'static str, message: String) {
        self.event(kind, json!({ "message": message }));
        self.watchers.notify(kind, message);
    }

    /// Tells what the journal could not write.
    pub(crate) fn tell_warnings(&mut self) {
        let warnings = if self.begun { self.journal.take_warnings() } else { Vec::new() };
        warnings.into_iter().for_each(|warning| self.tell("warning", warning));
        self.watchers.incomplete.store(self.journal.lacks_a_file(), Ordering::Relaxed);
    }

    pub(crate) fn write(&mut self, files: Vec<RunFile>) {
        files.into_iter().for_each(|file| self.journal.write(&file.path, file.bytes));
        self.tell_warnings();
    }

    /// Makes a checkpoint at a place that the settings chose, where a roll-back may go.
    ///
    /// # Errors
    /// As [`Run::save`].
    pub(crate) fn save_planned(&mut self) -> Result<(), Unsaved> {
        let counters = &mut self.state.counters;
        let before = counters.planned_step.replace(counters.batches);
        self.save().inspect_err(|_| self.state.counters.planned_step = before)
    }

    /// Makes a checkpoint, and writes what waited for one: rank 0 does, for all, if all have learnt the same. What one of them has learnt would be taken for
    /// progress.
    ///
    /// # Errors
    /// When it is not made; then the one before stands.
    pub(crate) fn save(&mut self) -> Result<(), Unsaved> {
        self.turn_to(Phase::Save);
        self.compare_weights().map_err(Unsaved::Ranks)?;
        let (batches, elapsed_s) = (self.state.counters.batches, self.state.counters.elapsed_s);
        // Also if it fails: the next try comes an interval later, not a batch later.
        self.clock.saved = Saved { batches, elapsed_s };
        let ranks = self.ranks.clone();
        let mut failed = None;
        let told = ranks.done_by_first(|| match self.save_here() {
            Ok(()) => Ok(true),
            Err(error) => {
                failed = Some(error);
                Ok(false)
            }
        });
        match (told.map_err(Unsaved::Ranks)?, failed) {
            (true, _) => {
                self.clock.safe = Some(batches);
                self.watchers.all(|o| o.on_saved(batches));
                Ok(())
            }
            (false, Some(error)) => Err(Unsaved::Here(error)),
            (false, None) => Err(Unsaved::Here("rank 0 could not save it".into())),
        }
    }

    fn save_here(&mut self) -> Result<(), TaskError> {
        let counters = &self.state.counters;
        let members = self.state.encode(&self.settings.layout)?;
        let members: Vec<Member<'_>> = members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
        let mut info = self.settings.identity.info();
        info.insert("epoch".into(), json!(counters.epoch));
        info.insert("position".into(), json!(counters.position));
        let steps = [counters.best_step, counters.planned_step].into_iter().flatten().collect();
        let keep = Retention { newest: self.settings.config.keep_checkpoints, steps };
        self.journal.event(&log::event("checkpoint", counters, json!({})));
        let saved = self.journal.save(counters.batches, &members, info, &keep);
        self.tell_warnings();
        Ok(saved?)
    }

    /// Ends a run that somebody wants to stop.
    ///
    /// # Errors
    /// When its state cannot be saved.
    pub(crate) fn stop(&mut self) -> Result<Outcome, LearnError> {
        self.save().map_err(|error| error.or(LearnError::FinalSave))?;
        self.tell("stop", "stopped by request; the state is saved".into());
        Ok(Outcome::Interrupted)
    }

    /// The last files of the observers, and a last try for all that waits. What is still missing is told before they are let go.
    pub(crate) fn end(&mut self) {
        let files = self.watchers.last_files();
        self.write(files);
        if let Err(unwritten) = self.journal.finish() {
            unwritten.reasons.into_iter().for_each(|reason| self.tell("warning", format!("not written: {reason}")));
        }
        self.tell_warnings();
        self.watchers.let_go();
    }

    /// Makes a checkpoint that training can go on without, at a `planned` place or not.
    ///
    /// # Errors
    /// A rank that is gone, without which it cannot.
    pub(crate) fn try_save(&mut self, planned: bool) -> Result<(), LearnError> {
        let saved = if planned { self.save_planned() } else { self.save() };
        match saved {
            Ok(()) => Ok(()),
            Err(Unsaved::Here(error)) => {
                self.tell("warning", format!("the checkpoint was not saved, training goes on: {error}"));
                Ok(())
            }
            Err(Unsaved::Ranks(error)) => Err(error),
        }
    }
}
