//! Data sets to token ids: what a run trains on, what it is judged on, and what was left out.

use std::path::Path;

use bellows_chat::{ChatError, Dataset, Dropped, EncodeOptions, Encoded, Outcome, ReadOptions, Splits, Template, Tokenizer, encode, plan};
use bellows_learner::Rng;

use crate::config::SftConfig;

/// Examples ready to train on.
#[derive(Debug, Default)]
pub struct SftData {
    /// To learn from.
    pub train: Vec<Encoded>,
    /// To judge by; may be empty.
    pub valid: Vec<Encoded>,
    /// Examples that lost tokens to truncation.
    pub truncated: usize,
    /// Examples left out because they were too long, or nothing to learn was left of them.
    pub dropped: usize,
}

impl SftData {
    /// Reads and encodes the data sets of a run. `progress` gets (done, total) rows.
    ///
    /// # Errors
    /// The first row that cannot be used, with file and line.
    pub fn open(
        config: &SftConfig,
        options: &EncodeOptions,
        tokenizer: &Tokenizer,
        template: &Template,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ChatError> {
        let splits =
            config.data.iter().map(|path| Splits::open(Path::new(path), &ReadOptions::default())).collect::<Result<Vec<_>, _>>()?;
        let total = splits.iter().map(|s| s.train.len() + s.valid.as_ref().map_or(0, Dataset::len)).sum();
        let (mut data, mut done) = (Self::default(), 0);
        let mut sets = Vec::new();
        for split in &splits {
            let mut rows = |data: &mut Self, set: &Dataset| -> Result<Vec<Encoded>, ChatError> {
                let mut examples = Vec::new();
                for i in 0..set.len() {
                    let outcome = encode(&set.get(i)?, tokenizer, template, options).map_err(|e| e.on_line(set.path(), set.line(i)))?;
                    match outcome {
                        Outcome::Kept(kept) => {
                            data.truncated += usize::from(kept.iter().any(|e| e.cut > 0));
                            examples.extend(kept);
                        }
                        Outcome::Dropped(Dropped::TooLong { .. } | Dropped::NothingLeft { .. }) => data.dropped += 1,
                    }
                    done += 1;
                    progress(done, total);
                }
                Ok(examples)
            };
            sets.push(rows(&mut data, &split.train)?);
            if let Some(valid) = &split.valid {
                let examples = rows(&mut data, valid)?;
                data.valid.extend(examples);
            }
        }
        let draw = |stream: &'static str| move |i: u64| Rng::new(config.seed, stream, 0, i).bits();
        let weights = if config.data_weights.is_empty() { vec![1.0; sets.len()] } else { config.data_weights.clone() };
        let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
        data.train = plan::mix(&sizes, &weights, draw("mix")).into_iter().map(|(set, row)| sets[set][row].clone()).collect();
        if data.valid.is_empty() && config.val_size > 0.0 {
            let count = data.train.len();
            let held = if config.val_size < 1.0 { (config.val_size * count as f64).ceil() } else { config.val_size } as usize;
            let (_, held) = plan::split(count, held.min(count.saturating_sub(1)), draw("split"));
            for i in held.into_iter().rev() {
                data.valid.push(data.train.remove(i));
            }
        }
        if config.max_samples > 0 {
            data.train.truncate(config.max_samples);
        }
        Ok(data)
    }

    /// One line for a person.
    pub fn summary(&self) -> String {
        let tokens =
            |examples: &[Encoded]| (examples.iter().map(Encoded::len).sum::<usize>(), examples.iter().map(Encoded::targets).sum::<usize>());
        let ((all, trained), (_, valid)) = (tokens(&self.train), tokens(&self.valid));
        format!(
            "{} examples to train on ({all} tokens, {trained} of them learnt), {} to judge by ({valid} learnt); {} truncated, {} left out",
            self.train.len(),
            self.valid.len(),
            self.truncated,
            self.dropped
        )
    }
}
