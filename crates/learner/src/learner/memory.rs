//! What becomes of a batch that the device has no memory for: it is cut into parts, and so is every batch after it.
//!
//! Nothing is lost by that: the gradients of the parts are summed, so an update is made of the same samples as before. How far batches are cut is
//! saved before the next attempt, from the state before the step: should that one take the process with it, a resumed run starts with the smaller parts.

use bellows_runs::Member;
use serde_json::json;

use super::Learner;
use crate::error::{LearnError, TaskError};
use crate::log::RunLog;
use crate::shortage::{Shortage, attempt};
use crate::state::{COUNTERS, Counters};
use crate::task::Task;

/// A batch that did not fit.
pub(super) struct TooLarge {
    pub(super) shortage: Shortage,
    /// Samples in its largest part.
    pub(super) samples: usize,
    /// What the user calls all of them.
    pub(super) files: Vec<String>,
}

/// The samples of a batch in `parts` parts of nearly equal size, in order, or as many as it has samples.
pub(super) fn cut(indices: &[usize], parts: usize) -> impl Iterator<Item = &[usize]> {
    let (n, parts) = (indices.len(), parts.clamp(1, indices.len().max(1)));
    (0..parts).map(move |part| &indices[n * part / parts..n * (part + 1) / parts])
}

impl<T: Task> Learner<T> {
    /// Cuts batches into twice as many parts from here on. The state is that before the step.
    ///
    /// # Errors
    /// When a part was a single sample already, or the device cannot be used any more; what is known is saved.
    pub(super) fn cut_batches(&mut self, log: &mut RunLog, batch: TooLarge) -> Result<(), LearnError> {
        let TooLarge { shortage: Shortage { reason, lost }, samples, files } = batch;
        let counters = &mut self.state.counters;
        counters.split += u32::from(samples > 1);
        let parts = counters.parts();
        let place = format!("batch {} of epoch {}", counters.position + 1, counters.epoch + 1);
        log.event("oom", counters, json!({ "reason": reason, "files": files, "parts": parts }));
        if lost {
            // Nothing can be read back from it any more.
            if let Err(error) = self.remember_split(log) {
                self.notify_logged(log, "warning", format!("how far to cut batches could not be saved: {error}"));
            }
        } else {
            self.release_memory();
            self.save_or_warn(log);
        }
        let names = files.join(", ");
        if samples <= 1 {
            let what = format!("{place} ({names}) does not fit on the device one sample at a time");
            return Err(LearnError::OutOfMemory { what, reason, advice: self.task.less_memory() });
        }
        if lost {
            let what = format!("the device ran out of memory in {place} ({names}) and was lost");
            let advice = format!("resume the run, which will cut its batches into {parts} parts");
            return Err(LearnError::OutOfMemory { what, reason, advice });
        }
        let statistics = if self.task.per_count() { "" } else { "; batch statistics are now those of a part" };
        let message = format!("no memory for {place} ({names}): {reason}; from here on batches are cut into {parts} parts{statistics}");
        self.notify("oom", message);
        Ok(())
    }

    /// The error of an evaluation that did not fit. Training up to here is saved.
    pub(super) fn no_memory_to_evaluate(&mut self, log: &mut RunLog, shortage: Shortage) -> LearnError {
        self.release_memory();
        log.event("oom", &self.state.counters, json!({ "reason": shortage.reason, "files": [], "parts": self.state.counters.parts() }));
        self.save_or_warn(log);
        LearnError::OutOfMemory {
            what: "the evaluation does not fit on the device".into(),
            reason: shortage.reason,
            advice: self.task.less_memory(),
        }
    }

    /// Lets go of what the allocator keeps for later.
    fn release_memory(&self) {
        let released = attempt(|| {
            self.device.sync().map_err(|e| LearnError::Device(e.to_string()))?;
            self.device.memory_cleanup();
            Ok(())
        });
        if released.is_err() {
            tracing::debug!("the device's memory could not be released");
        }
    }

    /// Notes how far batches are cut in the newest checkpoint.
    fn remember_split(&mut self, log: &RunLog) -> Result<(), TaskError> {
        let Some(newest) = self.checkpoints.latest()?.checkpoint else { return Ok(()) };
        let old = newest.members.get(COUNTERS).map(Vec::as_slice).unwrap_or_default();
        log.mark(&mut self.state.counters);
        let Counters { split, events_len, .. } = self.state.counters;
        let counters = serde_json::to_vec_pretty(&Counters { split, events_len, ..serde_json::from_slice(old)? })?;
        let bytes = newest.members.iter().map(|(name, old)| (name, if name == COUNTERS { &counters } else { old }));
        let members: Vec<Member<'_>> = bytes.map(|(name, bytes)| Member { name, bytes }).collect();
        self.checkpoints.save(newest.step, &members, &newest.info)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn parts_are_all_of_a_batch_and_nearly_equal() {
        let batch: Vec<usize> = (10..23).collect();
        for parts in [1, 2, 3, 4, 8, 13, 16, usize::MAX] {
            let cut: Vec<&[usize]> = cut(&batch, parts).collect();
            assert_eq!((cut.concat(), cut.len()), (batch.clone(), parts.min(13)));
            let sizes = cut.iter().map(|part| part.len());
            assert!(sizes.clone().min() >= Some(1) && sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{parts} parts");
        }
        assert_eq!(cut(&[], 2).count(), 1);
    }
}
