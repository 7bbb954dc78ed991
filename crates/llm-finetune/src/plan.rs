//! `plan`: memory and speed of a run before anything is allocated; every run asks the same before it begins.

use bellows_cli::{Failure, Target, Usage, join_pool, note, pick_device, say};
use bellows_device::Selected;
use bellows_learner::memory::Place;
use bellows_qwen::base::Base;
use bellows_qwen::bench::Size;
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::SftConfig;
use bellows_qwen::fit::{FitError, Question, largest_allocation, longest_row};
use bellows_qwen::hub::describe;
use bellows_qwen::memory::Plan;
use bellows_qwen::model::ModelConfig;
use bellows_qwen::speed::{PRODUCTS, product_rate};
use bellows_qwen::storage::Storage;
use bellows_qwen::train::with_adapter;
use serde_json::json;

use crate::args::PlanArgs;
use crate::presets::settings;
use crate::prove::{by, has_numbers};
use crate::settle::{storage, widened};
use crate::train::{data_paths, open_data, open_tokenizer, pick_template};

/// The share of a card's published rate that training reaches: an assumption, for none was at hand. Others report 15 to 35 %.
const OF_PUBLISHED: f64 = 0.2;
/// Most rows that are proposed.
const ROWS: usize = 1024;

pub(crate) fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let (config, _) = with_adapter(settings(&args.settings)?)?;
    // What is wrong with the model is said before a device is proved and data are read.
    if args.size.is_none() {
        match config.model.as_str() {
            "" => return Err(Usage("plan needs --model or --size".into()).into()),
            "tiny" => {}
            model => drop(Base::shape(&describe(model, config.offline, &mut note)?)?),
        }
    }
    join_pool(0)?;
    let (target, device) = match &args.card {
        Some(card) => (Target::card(card, OF_PUBLISHED)?, None),
        None => {
            let device = pick_device(&config.device, &by(config.products))?;
            let target = Target::here(&device, OF_PUBLISHED, || {
                let rate = product_rate(config.precision());
                (PRODUCTS * rate, format!("products run at {:.0} GFLOP/s here", rate / 1e9))
            });
            (target, Some(device))
        }
    };
    let config = config.stored_at(target.place);
    let lacking = device.as_ref().and_then(|device| lacks(&config, device));
    let (name, model, seq) = subject(args, &config)?;
    let storage = match target.place {
        // As published models are.
        place if args.size.is_some() => Storage::asked(config.base_dtype).unwrap_or_else(|| Storage::of_bf16(place, config.keeps_maps())),
        place => storage(&config, place)?,
    };
    let room = target.room(config.memory_limit);
    let has_f16 = device.as_ref().is_none_or(Selected::has_f16);
    let mut question = Question { model: &model, config, storage, place: target.place, has_f16, seq };
    // A limit is a question here, and no reason to refuse.
    let plan = question.choose(target.memory)?;
    let most = device.and_then(|device| largest_allocation(&device.device));
    let answer = Answer::new(&question, plan, &target, room, lacking, most)?;
    if args.json {
        say(&answer.json().to_string());
        return Ok(());
    }
    answer.tell(&name, &target);
    if args.size.is_none() {
        widened(&question.config, storage)?.iter().for_each(|line| say(line));
    }
    Ok(())
}

/// Why this device refuses a run with these settings: it has not the numbers.
fn lacks(config: &SftConfig, device: &Selected) -> Option<String> {
    if let Err(why) = has_numbers(config.precision, device) {
        return Some(why.to_string());
    }
    Base::on_device(config.dtypes(Place::of(&device.device)), &device.device).err().map(|why| why.to_string())
}

/// Name and shape of the model, and tokens of the longest row: of the data if there are any, else of `max_seq_length`.
fn subject(args: &PlanArgs, config: &SftConfig) -> Result<(String, ModelConfig, usize), Failure> {
    let longest = longest_row(config, std::iter::once(config.max_seq_length));
    if let Some(size) = &args.size {
        let shape = Size::named(size).ok_or_else(|| Usage(format!("plan: there is no size {size}")))?.shape();
        if !config.data.is_empty() {
            let taken = config.max_seq_length;
            note(&format!("--size has no tokenizer, so the rows of --data are not measured: max_seq_length {taken} is taken"));
        }
        return Ok((format!("Qwen2.5, {size}"), shape, longest));
    }
    if config.data.is_empty() && config.model != "tiny" {
        return Ok((config.model.clone(), Base::shape(&describe(&config.model, config.offline, &mut note)?)?, longest));
    }
    let paths = data_paths(config, false)?;
    let (shape, tokenizer) = open_tokenizer(config, &paths)?;
    let template = pick_template(config, shape.architecture, &tokenizer)?;
    let data = open_data(config, &paths, &tokenizer, &template)?;
    Ok((config.model.clone(), shape, longest_row(config, data.train.lengths())))
}

/// What there is to say.
struct Answer {
    plan: Plan,
    seq: usize,
    batch: usize,
    rerun: usize,
    layers: usize,
    room: Option<f64>,
    /// Why it would be refused in any room.
    refused: Option<String>,
    /// Rows of this length that fit, and the length of so many that does.
    largest: Option<[usize; 2]>,
    /// What would make it fit, if there is no room for it; `None` if nothing would.
    remedy: Option<String>,
    tokens_per_s: Option<f64>,
}

impl Answer {
    /// Of a device that is `lacking` something of the run, or nothing, and allocates `most` bytes at a time, where that is known.
    fn new(
        question: &Question<'_>,
        plan: Plan,
        target: &Target,
        room: Option<f64>,
        lacking: Option<String>,
        most: Option<u64>,
    ) -> Result<Self, Failure> {
        let (footprint, rows, seq) = (question.footprint()?, question.rows(), question.seq);
        let (checkpointing, per) = (question.config.gradient_checkpointing, question.config.objective.sequences());
        let (all, step) = (Checkpointing::ALL, question.config.pad_to_multiple_of.max(64));
        let refused = match question.allocates(most) {
            Err(error @ FitError::Tensor(..)) => Some(error.to_string()),
            other => other.map(|()| lacking)?,
        };
        // Neither fewer nor shorter rows make a tensor of the model smaller, or give a device numbers.
        let usable = room.filter(|_| refused.is_none());
        let largest = usable.map(|room| {
            let longest = footprint.longest(rows, all, room, step, question.model.max_position_embeddings);
            [footprint.most_rows(seq, all, room, ROWS) / per, longest]
        });
        Ok(Self {
            plan,
            seq,
            batch: question.config.batch_size,
            rerun: checkpointing.of(footprint.layers()),
            layers: footprint.layers(),
            room,
            refused,
            largest,
            remedy: usable.filter(|room| plan.peak() > *room).map_or(Ok(None), |room| question.remedies(room))?,
            tokens_per_s: target.rate.as_ref().map(|(rate, _)| footprint.tokens_per_s(seq, checkpointing, *rate)),
        })
    }

    fn fits(&self) -> Option<bool> {
        if self.refused.is_some() { Some(false) } else { self.room.map(|room| self.plan.peak() <= room) }
    }

    /// The terms by the names of the keys.
    fn terms(&self) -> [(&'static str, f64); 6] {
        let Plan { weights, adapters, optimizer, activations, logits, workspace, .. } = self.plan;
        [
            ("weights", weights),
            ("adapters", adapters),
            ("optimizer", optimizer),
            ("activations", activations),
            ("logits", logits),
            ("workspace", workspace),
        ]
    }

    fn json(&self) -> serde_json::Value {
        let mut json = json!({});
        for (name, bytes) in self.terms() {
            json[format!("{name}_gb")] = (bytes / 1e9).into();
        }
        json["peak_gb"] = (self.plan.peak() / 1e9).into();
        json["tokens_per_s"] = self.tokens_per_s.into();
        json["batch"] = self.batch.into();
        json["seq"] = self.seq.into();
        json["layers_rerun"] = self.rerun.into();
        json["memory_gb"] = self.room.map(|bytes| bytes / 1e9).into();
        json["fits"] = self.fits().into();
        json["refused"] = self.refused.clone().into();
        json["largest_batch"] = self.largest.map(|[rows, _]| rows).into();
        json["longest_seq"] = self.largest.map(|[_, seq]| seq).into();
        json["remedy"] = self.remedy.clone().into();
        json
    }

    fn tell(&self, name: &str, target: &Target) {
        say(&format!("{name} · {} x {} tokens · {}", self.batch, self.seq, target.name));
        for (name, bytes) in self.terms() {
            let more =
                if name == "activations" { format!("   {} of {} layers are run again", self.rerun, self.layers) } else { String::new() };
            say(&format!("{name:>12} {:>8.2} GB{more}", bytes / 1e9));
        }
        let verdict = match (self.room, self.fits()) {
            (Some(room), _) if self.refused.is_some() => format!("   of {:.2}: refused", room / 1e9),
            (Some(room), Some(fits)) => format!("   of {:.2}: {}", room / 1e9, if fits { "fits" } else { "does not fit" }),
            _ => String::new(),
        };
        say(&format!("{:>12} {:>8.2} GB{verdict}", "peak", self.plan.peak() / 1e9));
        if let (Some(speed), Some((_, how))) = (self.tokens_per_s, &target.rate) {
            say(&format!("{:>12} {speed:>8.0} tokens/s   roughly: {how}", "speed"));
        }
        let longer = |seq| format!("rows of {seq} tokens in batches of {}", self.batch);
        let largest = match self.largest {
            None | Some([0, 0]) => None,
            Some([0, seq]) => Some(longer(seq)),
            Some([rows, seq]) => Some(format!("batches of {rows} at {} tokens, or {}", self.seq, longer(seq))),
        };
        if let Some(largest) = largest {
            say(&format!("the largest that fits, with every layer but the top one run again: {largest}"));
        }
        match (&self.refused, &self.remedy, self.fits()) {
            (Some(why), ..) => say(why),
            (None, Some(flags), _) => say(&format!("it would fit with {flags}")),
            (None, None, Some(false)) => say("no setting makes it fit; a smaller model would"),
            (None, None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_refused_for_a_tensor_does_not_fit() {
        let shape = ModelConfig { hidden_size: 3584, vocab_size: 152_064, ..Size::named("1.5B").unwrap().shape() };
        let (config, storage, place) = (SftConfig::default(), Storage::F32, Place::Card);
        let mut question = Question { model: &shape, config, storage, place, has_f16: true, seq: 64 };
        let (plan, target) = (question.choose(None).unwrap(), Target::card("MI50", OF_PUBLISHED).unwrap());
        let lacking =
            |why: Option<&str>, room, most| Answer::new(&question, plan, &target, room, why.map(String::from), most).unwrap().json();
        let answer = |room, most| lacking(None, room, most);
        for room in [None, Some(1e9), Some(1e12)] {
            let json = answer(room, Some((1 << 31) - 1));
            assert_eq!(json["fits"], false);
            assert!(json["refused"].as_str().unwrap().contains("takes 2.18 GB, and the device allocates 2.15 GB"), "{json}");
            assert!(json["largest_batch"].is_null() && json["remedy"].is_null(), "{json}");
        }
        let json = answer(Some(1e12), Some(1 << 32));
        assert!(json["fits"] == true && json["refused"].is_null() && json["largest_batch"].is_u64(), "{json}");
        let json = lacking(Some("it has no f16"), Some(1e12), Some(1 << 32));
        assert!(json["fits"] == false && json["refused"] == "it has no f16" && json["largest_batch"].is_null(), "{json}");
    }
}
