//! What memory there is, and which layers are run again for it: asked before a run's weights are read.

use bellows_cli::{Failure, card_memory, note, say};
use bellows_device::Selected;
use bellows_learner::memory::Place;
use bellows_qwen::base::Base;
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::SftData;
use bellows_qwen::fit::{Question, largest_allocation, longest_row};
use bellows_qwen::hub::describe;
use bellows_qwen::memory::Plan;
use bellows_qwen::model::ModelConfig;
use bellows_qwen::storage::Storage;

/// How the model of these settings is kept there.
pub(crate) fn storage(config: &SftConfig, place: Place) -> Result<Storage, Failure> {
    match config.model.as_str() {
        "tiny" => Ok(Storage::asked(config.base_dtype).unwrap_or(Storage::F32)),
        model => Ok(Base::storage(&describe(model, config.offline, &mut note)?, config.base_dtype, config.keeps_maps(), place)),
    }
}

/// What is told of a base that is kept larger than its file has it.
pub(crate) fn widened(config: &SftConfig, kept: Storage) -> Result<Option<String>, Failure> {
    match config.model.as_str() {
        "tiny" => Ok(None),
        model => Ok(Base::widened(&describe(model, config.offline, &mut note)?, config.base_dtype, config.keeps_maps(), kept)),
    }
}

/// The settings of a run with `auto` settled, and its plan. So many ranks are `here`, on this machine: they share its memory, and a card's if they compute
/// on one.
///
/// # Errors
/// A plan beyond the limit that is set, a tensor beyond what the device allocates at a time.
pub(crate) fn settle_memory(
    config: SftConfig,
    model: &ModelConfig,
    data: &SftData,
    device: &Selected,
    here: usize,
) -> Result<(SftConfig, Plan), Failure> {
    let place = Place::of(&device.device);
    let free = place.room(card_memory(&config.device, device, here));
    let free = free.map(|bytes| if place == Place::Processor { bytes / here as f64 } else { bytes });
    let (storage, seq) = (storage(&config, place)?, longest_row(&config, data.train.lengths()));
    let mut question = Question { model, config, storage, place, has_f16: device.has_f16(), seq };
    question.allocates(largest_allocation(&device.device))?;
    let plan = question.settle(free)?;
    let layers = question.footprint()?.layers();
    let there = free.map(|bytes| format!(" of {:.2} there are", bytes / 1e9)).unwrap_or_default();
    let rerun = question.config.gradient_checkpointing.of(layers);
    say(&format!("memory: {:.2} GB planned{there}; {rerun} of {layers} layers are run again in the backward pass", plan.peak() / 1e9));
    widened(&question.config, storage)?.iter().for_each(|line| say(line));
    if free.is_some_and(|bytes| plan.peak() > bytes) {
        say("warning: that may not fit; `llm-finetune plan` with the same settings says what would");
    }
    Ok((question.config, plan))
}
