//! What ranks make equal, or make sure is equal, where they meet outside a step.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use serde_json::json;

use crate::error::LearnError;
use crate::grads::read;
use crate::run::Run;
use crate::task::Task;
use crate::wire::tell;

impl<T: Task> Run<T> {
    /// At the beginning of a session: rank 0's counters are everybody's, and so is when it saves, for all meet there; and so must be the weights. But batches
    /// are cut as far as on any rank, and if one scales its loss, as one with numbers in f16, all do: an overflow of one is answered by all.
    ///
    /// # Errors
    /// A rank that is gone, or has other weights.
    pub(crate) fn level_begin(&mut self) -> Result<(), LearnError> {
        let own = (self.state.counters.clone(), self.settings.config.checkpoint_minutes);
        let mine = (own.0.split, own.0.splits.clone(), self.settings.config.loss_scaling);
        (self.state.counters, self.settings.config.checkpoint_minutes) = self.ranks.done_by_first(|| Ok(own))?;
        if let Some(others) = self.ranks.others() {
            let all = tell(others, &mine)?;
            self.settings.config.loss_scaling = all.iter().find_map(|(.., scaling)| *scaling);
            // One that a supervisor of its own has started again knows of a want of memory that rank 0 has not heard of.
            for (rank, (split, splits, _)) in all.into_iter().enumerate() {
                if self.state.counters.halve_as(split, &splits) {
                    let parts = self.state.counters.parts(0);
                    self.event("oom", json!({ "reason": format!("rank {rank} had no memory"), "files": [], "parts": parts }));
                }
            }
        }
        // Of whoever has come since nothing is known.
        self.clock.compared = None;
        self.compare_weights()
    }

    /// Whether all ranks have learnt the same, if they have trained since that was last so. Running statistics are each rank's own.
    ///
    /// # Errors
    /// The first rank that has not.
    pub(crate) fn compare_weights(&mut self) -> Result<(), LearnError> {
        let batches = Some(self.state.counters.batches);
        if self.ranks.others().is_none() || self.clock.compared == batches {
            return Ok(());
        }
        let layout = &self.settings.layout;
        let values = layout.entries.iter().zip(layout.values(&self.state.model.valid()));
        let mut hash = 0;
        // One after the other: all of them may be much to hold once more.
        for (entry, value) in values.filter(|(entry, _)| entry.group.is_some()) {
            let values = value.try_to_vec_as::<f32>().map_err(|e| LearnError::Device(format!("reading {}: {e}", entry.name)))?;
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            hash = crc32c::crc32c_append(hash, &bytes);
        }
        self.ranks.compare("weights", hash)?;
        self.clock.compared = batches;
        Ok(())
    }

    /// Gives all ranks the averages of rank 0's running statistics: every rank has those of its own samples, and all are to judge one model.
    ///
    /// # Errors
    /// A rank that is gone, a device that does not hand its numbers back.
    pub(crate) fn level_statistics(&mut self) -> Result<(), LearnError> {
        let Some(others) = self.ranks.others() else { return Ok(()) };
        let layout = &self.settings.layout;
        let mut averages = layout.scatter(&self.state.ema.values);
        let kept: Vec<usize> = (0..averages.len()).filter(|&i| layout.entries[i].group.is_none() && averages[i].is_some()).collect();
        let own = if self.ranks.is_first() { read(kept.iter().filter_map(|&i| averages[i].clone()).collect())? } else { Vec::new() };
        let bytes: Vec<u8> = own.into_iter().flatten().flat_map(f32::to_le_bytes).collect();
        let theirs = others.first(&bytes)?;
        if self.ranks.is_first() {
            return Ok(());
        }
        let device = self.settings.device.clone().without_autodiff();
        let mut values = theirs.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four));
        for i in kept {
            let entry = &layout.entries[i];
            let values: Vec<f32> = values.by_ref().take(entry.numel()).collect();
            let data = TensorData::new(values, [entry.numel()]);
            averages[i] = Some(Tensor::from_data(data, (&device, entry.dtype)));
        }
        self.state.ema.values = layout.gather(averages);
        Ok(())
    }
}
