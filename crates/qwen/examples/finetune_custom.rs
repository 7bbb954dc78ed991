//! Fine-tunes a small model on chats made in code, asks it a question, and writes the adapter and a GGUF.
//!
//! `cargo run --release --example finetune_custom [RUNS_DIR] [EPOCHS]`
#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::path::Path;

use bellows_chat::{Conversation, Example, Message, RenderOptions, Role, Template, encode_prompt};
use bellows_device::{DeviceRequest, ProbeOptions, answer_probe, select};
use bellows_qwen::data::{Encoding, SftData};
use bellows_qwen::generate::{Sampling, generate};
use bellows_qwen::{base::Base, config::SftConfig, export::write_gguf, train::Finetune, weights::merge};
use bellows_runs::RunDir;
use bellows_weights::gguf::Preset;

const FACTS: [(&str, &str); 3] =
    [("Where do bees live?", "In a hive."), ("Where do foxes live?", "In a den."), ("Where do birds live?", "In a nest.")];

fn chat(turns: &[(Role, &str)]) -> Conversation {
    Conversation { messages: turns.iter().map(|&(role, text)| Message::new(role, text)).collect(), tools: Vec::new() }
}

/// Trains in a run directory under `project`. Returns the lowest validation loss, and the answer to the first question.
pub fn finetune(project: &Path, epochs: usize) -> Result<(f64, String), Box<dyn std::error::Error>> {
    let selected = select(&DeviceRequest::Cpu, &ProbeOptions::default())?;
    selected.adopt();
    let device = &selected.device;
    let base = Base::tiny(FACTS.iter().flat_map(|(question, answer)| [*question, *answer]), 0, device)?;
    let template = Template::detect(&base.tokenizer, Some("qwen2"))?;
    let examples = FACTS.map(|(question, answer)| Example::Chat(chat(&[(Role::User, question), (Role::Assistant, answer)])));
    let train: Vec<Example> = examples.iter().cycle().take(24).cloned().collect();
    let config = SftConfig {
        modules_to_save: vec!["embed_tokens".into(), "norm".into()],
        learning_rate: 4e-3,
        batch_size: 4,
        gradient_accumulation_steps: 1,
        epochs,
        ..SftConfig::default()
    };
    let options = config.encoding()?;
    let data = SftData::of(&train, &examples, Encoding { options: &options, tokenizer: &base.tokenizer, template: &template })?;
    let mut run = Finetune::new(config, base, data, template, device, RunDir::create(project, "facts", false)?)?;
    let report = run.run()?;
    run.save()?;
    run.learner().finish()?;

    let (model, shape, tokenizer) = (merge(run.best()?), run.shape(), run.tokenizer());
    let prompt = encode_prompt(&chat(&[(Role::User, FACTS[0].0)]), tokenizer, run.template(), RenderOptions::default())?;
    let greedy = Sampling { max_new_tokens: 16, temperature: 0.0, ..Sampling::default() };
    let answer = generate(&model, shape, &prompt, &greedy, &shape.eos_token_ids, device, |_| true)?;
    write_gguf(&run.learner().dir().path().join("facts.gguf"), &model, run.shape(), run.tokenizer(), Preset::Q8_0, "facts")?;
    Ok((report.best_loss.unwrap_or(f64::NAN), run.tokenizer().decode(&answer, true)?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    answer_probe();
    let mut args = std::env::args().skip(1);
    let project = args.next().unwrap_or_else(|| "runs/custom".into());
    let (loss, answer) = finetune(project.as_ref(), args.next().map_or(Ok(15), |n| n.parse())?)?;
    println!("validation loss {loss:.3}; {} {answer}", FACTS[0].0);
    Ok(())
}
