//! `data preview`: what is learnt of the data, how long it is, and what padding it costs.

use std::io::IsTerminal;

use bellows_chat::Encoded;
use bellows_chat::preview::{Lengths, Style, tokens};
use bellows_cli::{Usage, say};
use bellows_device::processor;
use bellows_learner::Rng;

use crate::args::SettingsArgs;
use crate::train::{open_base, open_data, pick_template, settings};

pub(crate) fn preview(args: SettingsArgs, count: usize) -> anyhow::Result<()> {
    let config = settings(&args)?;
    if config.model.is_empty() || config.data.is_empty() {
        return Err(Usage("data preview needs --model (for its tokenizer and template) and --data".into()).into());
    }
    let base = open_base(&config, &processor())?;
    let template = pick_template(&config, &base)?;
    let data = open_data(&config, &base.tokenizer, &template)?;
    let style = if std::io::stdout().is_terminal() { Style::Ansi } else { Style::Plain };
    for example in data.train.iter().take(count) {
        say(&tokens(example, &base.tokenizer, style)?);
    }
    let lengths = Lengths {
        kept: data.train.iter().map(Encoded::len).collect(),
        targets: data.train.iter().map(Encoded::targets).sum(),
        truncated: data.truncated,
        dropped: data.dropped,
    };
    let draw = |i: u64| Rng::new(config.seed, "order", 0, i).bits();
    say(lengths.report(config.max_seq_length, config.pad_to_multiple_of, draw).trim_end());
    Ok(())
}
