//! `eval`: how well a model does on some files, before and after an adapter.

use std::path::Path;

use bellows_cli::{Bar, Failure, Usage, join_pool, note, pick_device, say};
use bellows_device::Selected;
use bellows_qwen::base::Base;
use bellows_qwen::config::SftConfig;
use bellows_qwen::eval::{Judge, Scores, table};
use bellows_qwen::memory::Place;
use bellows_qwen::model::CausalLm;
use bellows_qwen::peft;
use bellows_qwen::questions::{Questions, Words};
use serde_json::{Value, json};

use crate::args::EvalArgs;
use crate::presets::settings;
use crate::prove::{by, has_numbers, prove};
use crate::speak::{adopt_tokenizer, open};
use crate::train::{data_paths, pick_template};

pub(crate) fn eval(args: &EvalArgs) -> Result<(), Failure> {
    let config = settings(&args.settings)?;
    if config.model.is_empty() || config.data.is_empty() {
        return Err(Usage("eval needs --model and --data".into()).into());
    }
    if config.objective.is_of_pairs() {
        return Err(Usage("eval judges single texts: leave --objective out".into()).into());
    }
    join_pool(0)?;
    let paths = data_paths(&config, false)?;
    let device = pick_device(&config.device, &by(config.products))?;
    has_numbers(config.precision, &device)?;
    let config = config.stored_at(Place::of(&device.device));
    let mut base = open(&config.model, None, config.offline, config.base_dtype, &device.device)?;
    let adapter = config.adapter.as_deref().map(Path::new);
    // Both are asked in the same words: those the adapter was trained with.
    adapter.map_or(Ok(()), |dir| adopt_tokenizer(&mut base, dir))?;
    let Base { model, config: shape, tokenizer, .. } = base;
    let (template, options) = (pick_template(&config, shape.architecture, &tokenizer)?, config.encoding()?);
    let words = Words { tokenizer: &tokenizer, template: &template, config: &config, options: &options, asking: args.asking };
    let judge = Judge { shape: &shape, words };
    let questions = words.read(&paths)?;
    let left = &questions.left;
    left.skipped().iter().for_each(|line| note(line));
    let shortened = left.truncated + left.dropped - left.empty;
    if shortened > 0 {
        note(&format!("{shortened} rows are longer than max_seq_length {} and were cut or left out", config.max_seq_length));
    }
    if left.empty > 0 {
        note(&format!("{} rows without a character of text were left out", left.empty));
    }
    prove(&model, &shape, config.precision, &device, true)?;
    let score = |when: &str, model: &CausalLm| scored(&judge, when, model, &questions, &device, args.json);
    let before = score("as it is", &model)?;
    let after = match adapter {
        Some(dir) => {
            let (lora, tensors) = peft::read(dir)?;
            Some(score("with the adapter", &peft::attach(model, &lora, tensors, dir)?)?)
        }
        None => None,
    };
    if args.json {
        say(&as_json(&config, &before, after.as_ref()).to_string());
        return Ok(());
    }
    say(format!("{:17} {:38} {}", "", config.model, config.adapter.as_deref().unwrap_or_default()).trim_end());
    for (name, before, after) in table(&before, after.as_ref()) {
        say(format!("{name:17} {before:38} {}", after.unwrap_or_default()).trim_end());
    }
    Ok(())
}

fn scored(
    judge: &Judge<'_>,
    when: &str,
    model: &CausalLm,
    questions: &Questions,
    device: &Selected,
    quiet: bool,
) -> Result<Scores, Failure> {
    let mut bar = Bar::new("judging ", 0).through(if quiet { note } else { say });
    let scores = judge.score(model, questions, &device.device, &mut |done, total| bar.set(when.into(), done, total))?;
    bar.finish("");
    Ok(scores)
}

fn as_json(config: &SftConfig, before: &Scores, after: Option<&Scores>) -> Value {
    let mut out = json!({ "model": config.model, "data": config.data, "base": before });
    if let Some(after) = after {
        out["adapter"] = json!(config.adapter);
        out["adapted"] = json!(after);
    }
    out
}
