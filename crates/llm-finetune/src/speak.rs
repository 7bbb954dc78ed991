//! `generate` and `chat`: the model's words as they come.

use std::io::{BufRead, ErrorKind};
use std::path::Path;

use bellows_chat::{Conversation, Message, RenderOptions, Role, Template, Tokenizer, encode_prompt};
use bellows_cli::{Context, Exit, Failure, Usage, join_pool, note, pick_device, print, say};
use bellows_device::{ProbeOptions, Work};
use bellows_learner::memory::Place;
use bellows_qwen::base::{Base, BaseError};
use bellows_qwen::generate::{Sampling, generate, stop_ids};
use bellows_qwen::grow;
use bellows_qwen::hub::locate;
use bellows_qwen::model::CausalLm;
use bellows_qwen::peft;
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::storage::BaseDtype;
use burn::tensor::Device;

use crate::args::SpeakArgs;
use crate::prove::prove;

/// The part of the free memory that a model's weights may take.
const ROOM: f64 = 0.7;

pub(crate) fn speak(args: &SpeakArgs) -> Result<(), Failure> {
    args.sampling.over(&Sampling::default()).check()?;
    if args.stop.iter().any(String::is_empty) {
        return Err(Usage("--stop is an empty text, which every answer begins with: leave it out".into()).into());
    }
    if args.prompt.as_deref() == Some("") {
        return Err(Usage("--prompt is empty".into()).into());
    }
    join_pool(0)?;
    let selected = pick_device(&args.device, &ProbeOptions::of(Work::LanguageModel))?;
    let base = open(&args.model, args.adapter.as_deref(), args.offline, BaseDtype::Auto, &selected.device)?;
    prove(&base.model, &base.config, RunPrecision::F32, &selected, true)?;
    let device = selected.device;
    let options = RenderOptions { thinking: args.thinking, ..RenderOptions::default() };
    let system = args.system.iter().map(|text| Message::new(Role::System, text.clone()));
    let mut conversation = Conversation { messages: system.collect(), ..Conversation::default() };
    if let Some(prompt) = args.prompt.as_ref().filter(|_| args.raw) {
        let text = base.tokenizer.encode(prompt, true)?;
        let ids: Vec<u32> = base.tokenizer.leading_bos().into_iter().chain(text).collect();
        return say_answer(&base, &ids, None, args, &device).map(drop);
    }
    let template = Template::detect(&base.tokenizer, Some(base.config.architecture.model_type()))?;
    if let Some(prompt) = &args.prompt {
        conversation.messages.push(Message::new(Role::User, prompt.clone()));
        let ids = encode_prompt(&conversation, &base.tokenizer, &template, options)?;
        return say_answer(&base, &ids, Some(&template), args, &device).map(drop);
    }
    say("Type a message; an empty line ends the chat.");
    for line in std::io::stdin().lock().lines() {
        // What is no text is who typed it to mend.
        let is_text = line.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::InvalidData);
        let line = line.context(if is_text { Exit::Failed } else { Exit::Usage }, "reading what you type")?;
        if line.trim().is_empty() {
            break;
        }
        conversation.messages.push(Message::new(Role::User, line));
        let ids = encode_prompt(&conversation, &base.tokenizer, &template, options)?;
        let text = say_answer(&base, &ids, Some(&template), args, &device)?;
        conversation.messages.push(Message::new(Role::Assistant, text));
    }
    Ok(())
}

/// A model with its adapter, if there is one, and then the tokenizer and the template that the adapter was trained with. A GGUF's blocks, which take twice the
/// time for each word, are kept where there is no room for all of it in f32, and on cards.
pub(crate) fn open(model: &str, adapter: Option<&Path>, offline: bool, dtype: BaseDtype, device: &Device) -> Result<Base, Failure> {
    let (path, place) = (locate(model, offline, &mut note)?, Place::of(device));
    let dense = Base::in_f32(&path).filter(|_| dtype == BaseDtype::Auto);
    let keeps = dense.filter(|dense| place == Place::Card || place.room(None).is_some_and(|room| *dense > ROOM * room));
    if let Some(dense) = keeps {
        note(&format!("the model stays in the blocks of its file: in f32 it would take {:.1} GB", dense / 1e9));
    }
    let mut base = Base::open_for(&path, [dtype; 2], keeps.is_some(), device)?;
    if let Some(dir) = adapter {
        adopt_tokenizer(&mut base, dir)?;
        let (config, tensors) = peft::read(dir)?;
        base.model = peft::attach(base.model, &config, tensors, dir)?;
    }
    Ok(base)
}

/// Gives the model the tokenizer beside an adapter, if there is one: it may have tokens and a template that the model's own has not. And as many rows
/// as the adapter's embedding has.
pub(crate) fn adopt_tokenizer(base: &mut Base, adapter: &Path) -> Result<(), Failure> {
    let tokenizer = adapter_tokenizer(adapter)?.unwrap_or_else(|| base.tokenizer.clone());
    let (tokens, rows) = (tokenizer.len(), base.config.vocab_size);
    // An adapter that was trained with other tokens brings the rows for them.
    match peft::embedding_rows(&peft::read(adapter)?.1) {
        Some(own) if own != rows && own >= tokens => grow::adopt(base, tokenizer, own),
        _ if tokens <= rows => base.tokenizer = tokenizer,
        _ => return Err(BaseError::Vocabulary { path: adapter.to_owned(), tokens, rows }.into()),
    }
    Ok(())
}

/// The tokenizer beside an adapter, if there is one.
pub(crate) fn adapter_tokenizer(dir: &Path) -> Result<Option<Tokenizer>, Failure> {
    Ok(dir.join("tokenizer.json").exists().then(|| Tokenizer::from_dir(dir)).transpose()?)
}

/// Prints the answer as it comes, up to a stop string or the end of a turn of `template`; returns it.
fn say_answer(base: &Base, prompt: &[u32], template: Option<&Template>, args: &SpeakArgs, device: &Device) -> Result<String, Failure> {
    let (model, tokenizer): (&CausalLm, _) = (&base.model, &base.tokenizer);
    let ends = stop_ids(&base.config, tokenizer, template);
    let (mut stream, mut text, mut shown) = (tokenizer.stream(true), String::new(), 0);
    // What may be the beginning of a stop string is held back.
    let held = args.stop.iter().map(String::len).max().unwrap_or(1).saturating_sub(1);
    let sampling = args.sampling.over(&Sampling::of(&base.config.generation));
    generate(model, &base.config, prompt, &sampling, &ends, device, |id| {
        text.push_str(&stream.push(id));
        if let Some(at) = args.stop.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            text.truncate(at);
            return false;
        }
        let mut safe = text.len().saturating_sub(held).max(shown);
        while !text.is_char_boundary(safe) {
            safe -= 1;
        }
        print(&text[shown.min(safe)..safe]);
        shown = safe.max(shown);
        true
    })?;
    if args.stop.iter().all(|stop| !text.contains(stop.as_str())) {
        text.push_str(&stream.finish());
    }
    print(&text[shown.min(text.len())..]);
    print("\n");
    Ok(text)
}
