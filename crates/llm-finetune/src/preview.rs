//! `data preview`: what is learnt of the data, how long it is, and what padding it costs.

use bellows_chat::Fault;
use bellows_chat::preview::{Lengths, Style, tokens};
use bellows_cli::{Failure, Usage, coloured, note, say};
use bellows_learner::Rng;
use bellows_qwen::data::{Encoding, SftData};

use crate::presets::{SettingsArgs, settings};
use crate::train::{data_paths, open_data, open_tokenizer, pick_template};

/// Most faulty rows that are named.
const FAULTS: usize = 10;

pub(crate) fn preview(args: &SettingsArgs, count: usize) -> Result<(), Failure> {
    let config = settings(args)?;
    if config.model.is_empty() || config.data.is_empty() {
        return Err(Usage("data preview needs --model (for its tokenizer and template) and --data".into()).into());
    }
    let paths = data_paths(&config, false)?;
    let (shape, tokenizer) = open_tokenizer(&config, &paths)?;
    let template = pick_template(&config, shape.architecture, &tokenizer)?;
    let data = match open_data(&config, &paths, &tokenizer, &template) {
        Ok(data) => data,
        Err(first) => {
            let options = config.encoding()?;
            let encoding = Encoding { options: &options, tokenizer: &tokenizer, template: &template };
            let faults = SftData::faults(&config, &paths, encoding, FAULTS)?;
            faults.iter().for_each(|fault| note(&fault.to_string()));
            let what = match faults.len() {
                0 => return Err(first),
                FAULTS => format!("{FAULTS} rows cannot be used, and there may be more"),
                1 => "1 row cannot be used".into(),
                n => format!("{n} rows cannot be used"),
            };
            return Err(Usage(what).into());
        }
    };
    let (style, marked) = if coloured(&std::io::stdout()) { (Style::Ansi, "green") } else { (Style::Plain, "in ⟦⟧") };
    say(&format!("{} · template {} · what is learnt is {marked}\n", config.data.join(", "), template.name()));
    let (pairs, per) = (config.objective.is_of_pairs(), config.objective.sequences());
    let unit = if pairs { "pair" } else { "example" };
    let sides: &[&str] = if pairs { &[", chosen", ", rejected"] } else { &[""] };
    for (i, example) in data.train.iter().take(count * per).enumerate() {
        let text = tokens(example.map_err(Fault::from)?.as_ref(), &tokenizer, style)?;
        say(&format!("── {unit} {} of {}{} ──\n{text}", i / per + 1, data.train.len() / per, sides[i % per]));
    }
    // The first line counts what the report does.
    data.summary(config.objective).iter().skip(1).for_each(|line| say(line));
    let lengths = Lengths {
        kept: data.train.lengths().collect(),
        pairs,
        targets: data.train.targets().sum(),
        truncated: data.train.truncated(per),
        dropped: data.left.dropped - data.left.dropped_judged,
    };
    let draw = |i: u64| Rng::new(config.seed, "order", 0, i).bits();
    say(lengths.report(config.max_seq_length, config.pad_to_multiple_of, draw).trim_end());
    let epoch = lengths.epoch(config.batch_size, config.batching(), config.pad_to_multiple_of, draw);
    say(&format!("as set     {epoch} (batch_size {})", config.batch_size));
    for (name, set) in [("validation", &data.valid), ("test", &data.test)] {
        if !set.is_empty() {
            say(&format!("{name:10} {} {unit}s, {} tokens judged", set.len() / per, set.targets().sum::<usize>()));
        }
    }
    if data.left.dropped_judged > 0 {
        say(&format!("{:10} {} {unit}s to judge by or to test with dropped", "", data.left.dropped_judged));
    }
    Ok(())
}
