//! The verbs of `concept`.

use std::path::Path;

use bellows_chat::{ChatError, Conversation, Message, RenderOptions, Role, Template, encode_prompt};
use bellows_cli::{Failure, Usage, join_pool, note, pick_device, say};
use bellows_device::{ProbeOptions, Selected, Work};
use bellows_qwen::base::Base;
use bellows_qwen::concept::edit::{Ablation, steer};
use bellows_qwen::concept::files::{Found, write_control_vector};
use bellows_qwen::concept::judge::Comparison;
use bellows_qwen::generate::{Sampling, generate, stop_ids};
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::storage::BaseDtype;
use bellows_qwen::weights::merge;
use bellows_weights::DType;

use super::args::{ConceptArgs, EditArgs, ModelArgs, Steered};
use super::steps::{Prompts, ablate, extract, judged, known_as, place, reader, scored, tell_comparison};
use crate::prove::prove;
use crate::speak::open;

pub(crate) fn concept(args: &ConceptArgs) -> Result<(), Failure> {
    join_pool(0)?;
    match args {
        ConceptArgs::Extract { model, sets, out } => {
            let (base, device) = load(model)?;
            let prompts = Prompts::open(sets, &base.tokenizer, template(&base)?)?;
            extract(reader(&base, &device.device), &model.model, &prompts, out).map(drop)
        }
        ConceptArgs::Score { model, sets, concept, edit } => {
            let (edit, found) = (edit.settle()?, Found::read(concept)?);
            let (base, device) = load(model)?;
            found.fits(&base.config)?;
            edit.check(base.config.num_hidden_layers)?;
            let prompts = Prompts::open(sets, &base.tokenizer, template(&base)?)?;
            scored(&base, &device.device, &found, &prompts, &edit, concept).map(drop)
        }
        ConceptArgs::Ablate { model, concept, at_layer, edit, dtype, out } => {
            let (edit, found) = (edit.settle()?, Found::read(concept)?);
            let place = place(&found, concept, at_layer.map(|n| n as usize))?;
            let dtype = match dtype.as_str() {
                "f16" => DType::F16,
                "bf16" => DType::BF16,
                _ => DType::F32,
            };
            let adapter = model.adapter.as_ref().map(|dir| format!(" with the adapter {}", known_as(&dir.display().to_string())));
            let name = known_as(&model.model) + &adapter.unwrap_or_default();
            ablate((&name, load(model)?.0), &found, place, &edit, dtype, out)
        }
        ConceptArgs::Steer { model, concept, at_layer, coefficient, what } => {
            if !coefficient.is_finite() {
                return Err(Usage(format!("--coefficient is {coefficient}")).into());
            }
            let found = Found::read(concept)?;
            let place = place(&found, concept, at_layer.map(|n| n as usize))?;
            found.directions.unit(place)?;
            let vector: Vec<f64> = found.directions.at(place).iter().map(|x| x * coefficient).collect();
            let (mut base, device) = load(model)?;
            found.fits(&base.config)?;
            match what {
                Steered::ControlVector(file) => {
                    write_control_vector(file, &vector, place, &base.config, &found.concept)?;
                    say(&format!("Saved {}", file.display()));
                    Ok(())
                }
                Steered::Prompt { prompt, tokens } => {
                    base.model = steer(base.model, place.layer, &vector)?;
                    answer(&base, prompt, *tokens, &device)
                }
            }
        }
        ConceptArgs::Eval { model, sets, edited, tokens, most_rise, json } => {
            eval(model, sets, edited.as_deref(), *tokens, *most_rise, *json)
        }
    }
}

impl EditArgs {
    fn settle(&self) -> Result<Ablation, Failure> {
        let Self { strength, norm_preserving, embeddings, .. } = *self;
        Ok(Ablation { layers: self.layers.parse()?, strength, norm_preserving, embeddings })
    }
}

/// The model with its adapter merged, where it computes as the processor does.
fn load(args: &ModelArgs) -> Result<(Base, Selected), Failure> {
    let device = pick_device(&args.device, &ProbeOptions::of(Work::LanguageModel))?;
    let mut base = open(&args.model, args.adapter.as_deref(), args.offline, BaseDtype::Auto, &device.device)?;
    base.model = merge(base.model);
    prove(&base.model, &base.config, RunPrecision::F32, &device, true)?;
    Ok((base, device))
}

/// The model's template; none of one that does not chat.
fn template(base: &Base) -> Result<Option<Template>, Failure> {
    let chats = base.tokenizer.chat_template().is_some() || base.tokenizer.id("<|im_start|>").is_some();
    let detect = || Template::detect(&base.tokenizer, Some(base.config.architecture.model_type()));
    Ok(chats.then(detect).transpose().map_err(ChatError::from)?)
}

fn answer(base: &Base, prompt: &str, tokens: usize, device: &Selected) -> Result<(), Failure> {
    let conversation = Conversation { messages: vec![Message::new(Role::User, prompt)], ..Conversation::default() };
    let template = template(base)?.ok_or_else(|| Usage("this model has no chat template".into()))?;
    let ids =
        encode_prompt(&conversation, &base.tokenizer, &template, RenderOptions { thinking: Some(false), ..RenderOptions::default() })?;
    let sampling = Sampling { max_new_tokens: tokens, temperature: 0.0, ..Sampling::default() };
    let stop = stop_ids(&base.config, &base.tokenizer, Some(&template));
    let new = generate(&base.model, &base.config, &ids, &sampling, &stop, &device.device, |_| true)?;
    say(&base.tokenizer.decode(&new, true)?);
    Ok(())
}

fn eval(model: &ModelArgs, sets: &Path, edited: Option<&Path>, tokens: usize, most_rise: f64, json: bool) -> Result<(), Failure> {
    let (base, device) = load(model)?;
    let prompts = Prompts::open(sets, &base.tokenizer, template(&base)?)?;
    let tell: fn(&str) = if json { note } else { say };
    let before = judged(&base, &device.device, &prompts, tokens, ("judging", tell))?;
    drop(base);
    let after = match edited {
        Some(path) => {
            let base = open(&path.display().to_string(), None, true, BaseDtype::Auto, &device.device)?;
            Some(judged(&base, &device.device, &prompts, tokens, ("judging the edited", tell))?)
        }
        None => None,
    };
    let comparison = Comparison { before, after, most_rise };
    if json {
        say(&serde_json::json!(comparison).to_string());
    } else {
        tell_comparison(&comparison);
    }
    Ok(comparison.hold()?)
}
