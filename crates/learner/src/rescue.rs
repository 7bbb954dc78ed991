//! What becomes of a run when the numbers are no numbers, or the memory runs out.
//!
//! Batches that are not finite in a row: back to the last checkpoint whose place the settings chose, and not to one that a clock or a signal chose,
//! with half the learning rate and without the batches that did it, so that neither the clock changes a number nor the same data comes again. Only
//! where that checkpoint is damaged, or not there any more, it is the newest one that is intact, whoever chose it.
//!
//! A batch that the device has no memory for is tried again with less that is kept, if the task knows of any; else it is cut into parts, and so
//! is every batch of its size and larger after it. Nothing is lost by that: the gradients of the parts are summed, so an update is made of the
//! same samples as before. How far batches are cut is saved before the next attempt, from the state before the step: should that one take the
//! process with it, a resumed run starts with the smaller parts.

use bellows_runs::{Latest, LoadError};
use serde_json::json;

use crate::attempt::attempt;
use crate::counters::Counters;
use crate::error::{LearnError, TaskError};
use crate::run::Run;
use crate::shortage::Shortage;
use crate::state::COUNTERS;
use crate::task::Task;
use crate::train::TooLarge;

/// Roll-backs a run may make; one more ends it.
const MAX_ROLLBACKS: u32 = 3;

impl<T: Task> Run<T> {
    /// Back to the last planned checkpoint, with half the learning rate and without the data since `trouble_from`.
    ///
    /// # Errors
    /// One roll-back too many, or no checkpoint that is intact.
    pub(crate) fn roll_back(&mut self, files: &[String]) -> Result<(), LearnError> {
        let now = self.state.counters.clone();
        let diverged = || LearnError::Diverged { rollbacks: now.rollbacks, batch: now.batches, names: files.join(", ") };
        if now.rollbacks >= MAX_ROLLBACKS {
            return Err(diverged());
        }
        let (checkpoints, mut unusable) = (self.journal.checkpoints(), Vec::new());
        let found = self.ranks.checkpoint(|| {
            // A run begun by an older program may have made none yet.
            if let Some(step) = now.planned_step {
                match checkpoints.load_step(step) {
                    Err(error @ (LoadError::Damaged { .. } | LoadError::NoSuchStep { .. })) => unusable.push(error.to_string()),
                    found => return Ok(Some(found?)),
                }
            }
            let Latest { checkpoint, set_aside } = checkpoints.latest()?;
            // The planned one may be among them.
            let fresh: Vec<_> = set_aside.into_iter().filter(|bad| !unusable.iter().any(|why| why.ends_with(&bad.reason))).collect();
            unusable.extend(fresh.into_iter().map(|bad| format!("{} is damaged: {}", bad.path.display(), bad.reason)));
            Ok(checkpoint)
        })?;
        for why in unusable {
            self.tell("warning", format!("{why}: going back to the newest checkpoint that is intact"));
        }
        let checkpoint = found.ok_or_else(diverged)?;
        self.turn_state_to(&checkpoint)?;
        self.journal.take_back(&checkpoint);
        let (from, last) = now.in_trouble();
        self.state.counters.roll_back_from(&now, self.settings.config.loss_scaling);
        let Counters { epoch, position, lr_scale, rollbacks, .. } = self.state.counters;
        let in_a_row = now.skipped_in_a_row.max(now.lost_updates);
        self.tell(
            "rollback",
            format!(
                "{in_a_row} batches or updates in a row were not finite: back to epoch {} batch {position}, learning rate \
                 x{lr_scale}, without batches {} of epoch {} to {} of epoch {} (roll-back {rollbacks} of {MAX_ROLLBACKS})",
                epoch + 1,
                from.position + 1,
                from.epoch + 1,
                last.position + 1,
                last.epoch + 1,
            ),
        );
        self.try_save(true)
    }

    /// Cuts batches of that size and larger ones into twice as many parts from here on, unless the task can hold less. The state is that before the step.
    ///
    /// # Errors
    /// When a part was a single sample already, or the device cannot be used any more; what is known is saved.
    pub(crate) fn cut_batches(&mut self, task: &T, batch: TooLarge) -> Result<(), LearnError> {
        let TooLarge { shortage: Shortage { reason, lost }, class, samples, files } = batch;
        if let Some(what) = if lost { None } else { task.hold_less() } {
            let Counters { epoch, position, .. } = self.state.counters;
            self.event("oom", json!({ "reason": reason, "files": files, "parts": self.state.counters.parts(class), "less": what }));
            self.release_memory();
            let message = format!("no memory for batch {} of epoch {}: {reason}; from here on {what}", position + 1, epoch + 1);
            self.watchers.notify("oom", message);
            return Ok(());
        }
        let counters = &mut self.state.counters;
        if samples > 1 {
            counters.halve(class);
        }
        let parts = counters.parts(class);
        let place = format!("batch {} of epoch {}", counters.position + 1, counters.epoch + 1);
        self.event("oom", json!({ "reason": reason, "files": files, "parts": parts }));
        if lost {
            // Nothing can be read back from it any more.
            if let Err(error) = self.remember_split() {
                self.tell("warning", format!("how far to cut batches could not be saved: {error}"));
            }
        } else {
            self.release_memory();
            self.try_save(false)?;
        }
        let names = files.join(", ");
        if samples <= 1 {
            let what = format!("{place} ({names}) does not fit on the device one sample at a time");
            return Err(LearnError::OutOfMemory { what, reason, advice: task.less_memory() });
        }
        if lost {
            let what = format!("the device ran out of memory in {place} ({names}) and was lost");
            let advice = format!("resume the run, which will cut its batches into {parts} parts");
            return Err(LearnError::Lost { what, reason, advice });
        }
        let statistics = if task.per_count() { "" } else { "; batch statistics are now those of a part" };
        let which = if class == 0 { "batches" } else { "batches of its size and larger ones" };
        let message = format!("no memory for {place} ({names}): {reason}; from here on {which} are cut into {parts} parts{statistics}");
        self.watchers.notify("oom", message);
        Ok(())
    }

    /// The error of an evaluation that did not fit. Training up to here is saved.
    pub(crate) fn no_memory_to_evaluate(&mut self, task: &T, shortage: Shortage) -> LearnError {
        let Shortage { reason, lost } = shortage;
        let parts = self.state.counters.parts(0);
        self.event("oom", json!({ "reason": reason, "files": [], "parts": parts }));
        if lost {
            // Nothing can be read back from it any more: the last checkpoint stands.
            let what = "the device ran out of memory in an evaluation and was lost".into();
            return LearnError::Lost { what, reason, advice: task.less_memory() };
        }
        self.release_memory();
        if let Err(error) = self.try_save(false) {
            return error;
        }
        LearnError::OutOfMemory { what: "the evaluation does not fit on the device".into(), reason, advice: task.less_memory() }
    }

    /// Lets go of what the allocator keeps for later.
    pub(crate) fn release_memory(&self) {
        let device = &self.settings.device;
        let released = attempt(|| {
            device.sync().map_err(|e| LearnError::Device(e.to_string()))?;
            device.memory_cleanup();
            Ok(())
        });
        if released.is_err() {
            tracing::debug!("the device's memory could not be released");
        }
    }

    /// Notes how far batches are cut in the newest checkpoint.
    fn remember_split(&mut self) -> Result<(), TaskError> {
        let Some(mut newest) = self.journal.checkpoints().latest()?.checkpoint else { return Ok(()) };
        let old = newest.members.get(COUNTERS).map(Vec::as_slice).unwrap_or_default();
        let Counters { split, splits, .. } = self.state.counters.clone();
        let counters = Counters { split, splits, ..serde_json::from_slice(old)? };
        newest.members.insert(COUNTERS.into(), serde_json::to_vec_pretty(&counters)?);
        Ok(self.journal.save_again(newest)?)
    }
}
