//! Data sets to token ids: what a run trains on, what it is judged on, and what was left out.

use std::path::Path;

use bellows_chat::{
    ChatError, Dataset, Dropped, EncodeOptions, Encoded, Example, Fault, Outcome, Splits, Template, Tokenizer, encode, plan,
};
use bellows_learner::Rng;

use crate::config::SftConfig;

/// Examples ready to train on.
#[derive(Debug, Default)]
pub struct SftData {
    /// To learn from; of pairs each chosen answer is followed by the rejected one, here and below.
    pub train: Vec<Encoded>,
    /// To judge by; may be empty.
    pub valid: Vec<Encoded>,
    /// To look at once, at the end; may be empty.
    pub test: Vec<Encoded>,
    /// Examples that lost tokens to truncation.
    pub truncated: usize,
    /// Examples left out because they were too long, or nothing to learn was left of them.
    pub dropped: usize,
    /// How many of those were too long (with `truncation: drop`).
    pub too_long: usize,
    /// How many of those left out were there to judge by, or to test with.
    pub dropped_judged: usize,
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
        let splits = config.data.iter().map(|path| Splits::open(Path::new(path), &config.reading())).collect::<Result<Vec<_>, _>>()?;
        let total = splits.iter().flat_map(sets_of).map(Dataset::len).sum();
        let (mut data, mut done) = (Self::default(), 0);
        let mut sets = Vec::new();
        for split in &splits {
            // What is made of one row stays together: its pieces, and its copies, are all learnt or all judged by.
            let mut rows = |data: &mut Self, set: &Dataset| -> Result<Vec<Vec<Encoded>>, ChatError> {
                let mut rows = Vec::new();
                for i in 0..set.len() {
                    rows.push(data.kept(encode_row(set, i, options, tokenizer, template)?));
                    done += 1;
                    progress(done, total);
                }
                rows.retain(|row| !row.is_empty());
                Ok(rows)
            };
            sets.push(rows(&mut data, &split.train)?);
            let dropped = data.dropped;
            if let Some(valid) = &split.valid {
                let examples = rows(&mut data, valid)?;
                data.valid.extend(examples.into_iter().flatten());
            }
            if let Some(test) = &split.test {
                let examples = rows(&mut data, test)?;
                data.test.extend(examples.into_iter().flatten());
            }
            data.dropped_judged += data.dropped - dropped;
        }
        let draw = |stream: &'static str| move |i: u64| Rng::new(config.seed, stream, 0, i).bits();
        if data.valid.is_empty() && config.val_size > 0.0 {
            let count: usize = sets.iter().map(Vec::len).sum();
            let held = if config.val_size < 1.0 { (config.val_size * count as f64).ceil() } else { config.val_size } as usize;
            let (_, held) = plan::split(count, held.min(count.saturating_sub(1)), draw("split"));
            let place = |row: usize| {
                let (mut set, mut at) = (0, row);
                while at >= sets[set].len() {
                    at -= sets[set].len();
                    set += 1;
                }
                (set, at)
            };
            let places: Vec<(usize, usize)> = held.into_iter().map(place).collect();
            for (set, at) in places.into_iter().rev() {
                data.valid.extend(sets[set].remove(at));
            }
        }
        let weights = if config.data_weights.is_empty() { vec![1.0; sets.len()] } else { config.data_weights.clone() };
        let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
        data.train = plan::mix(&sizes, &weights, draw("mix")).into_iter().flat_map(|(set, row)| sets[set][row].clone()).collect();
        let per = config.objective.sequences();
        let examples = data.train.len() / per;
        if config.max_samples > 0 && config.max_samples < examples {
            let (_, chosen) = plan::split(examples, config.max_samples, draw("max_samples"));
            data.train = chosen.into_iter().flat_map(|i| data.train[i * per..(i + 1) * per].to_vec()).collect();
        }
        Ok(data)
    }

    /// What is wrong with the rows of a run's data sets, at most `limit` faults.
    ///
    /// # Errors
    /// A data set that cannot be opened.
    pub fn faults(
        config: &SftConfig,
        options: &EncodeOptions,
        tokenizer: &Tokenizer,
        template: &Template,
        limit: usize,
    ) -> Result<Vec<ChatError>, ChatError> {
        let mut faults = Vec::new();
        for path in &config.data {
            let split = Splits::open(Path::new(path), &config.reading())?;
            for set in sets_of(&split) {
                let wrong = (0..set.len()).filter_map(|i| encode_row(set, i, options, tokenizer, template).err());
                faults.extend(wrong.take(limit - faults.len()));
            }
        }
        Ok(faults)
    }

    /// Encodes examples made in code.
    ///
    /// # Errors
    /// The first example that cannot be used.
    pub fn of(
        train: &[Example],
        valid: &[Example],
        options: &EncodeOptions,
        tokenizer: &Tokenizer,
        template: &Template,
    ) -> Result<Self, Fault> {
        let mut data = Self::default();
        for example in train {
            let kept = data.kept(encode(example, tokenizer, template, options)?);
            data.train.extend(kept);
        }
        for example in valid {
            let kept = data.kept(encode(example, tokenizer, template, options)?);
            data.valid.extend(kept);
        }
        Ok(data)
    }

    /// What is left of an example; counts what is not.
    fn kept(&mut self, outcome: Outcome) -> Vec<Encoded> {
        match outcome {
            Outcome::Kept(kept) => {
                self.truncated += usize::from(kept.iter().any(|e| e.cut > 0));
                kept
            }
            Outcome::Dropped(why) => {
                self.dropped += 1;
                self.too_long += usize::from(matches!(why, Dropped::TooLong { .. }));
                Vec::new()
            }
        }
    }

    /// Why there is nothing to train on.
    pub(crate) fn nothing_left(&self, config: &SftConfig) -> String {
        let mut why = Vec::new();
        if self.too_long > 0 {
            why.push(format!("{} longer than max_seq_length {} (truncation drop)", self.too_long, config.max_seq_length));
        }
        let cut = self.dropped - self.too_long;
        if cut > 0 {
            let length = config.max_seq_length;
            why.push(format!("{cut} without a learnt token in the {length} that max_seq_length leaves (truncation {})", config.truncation));
        }
        if !self.valid.is_empty() {
            why.push(format!("{} held out to judge by", self.valid.len()));
        }
        match why.is_empty() {
            true => "no example is left to train on".into(),
            false => format!("no example is left to train on: {}", why.join(", ")),
        }
    }

    /// One line for a person.
    pub fn summary(&self) -> String {
        let tokens =
            |examples: &[Encoded]| (examples.iter().map(Encoded::len).sum::<usize>(), examples.iter().map(Encoded::targets).sum::<usize>());
        let ((all, trained), (_, valid)) = (tokens(&self.train), tokens(&self.valid));
        let test = if self.test.is_empty() { String::new() } else { format!(", {} to test with", self.test.len()) };
        format!(
            "{} examples to train on ({all} tokens, {trained} of them learnt), {} to judge by ({valid} learnt){test}; {} truncated, {} left out",
            self.train.len(),
            self.valid.len(),
            self.truncated,
            self.dropped
        )
    }
}

/// The files of a data set.
fn sets_of(splits: &Splits) -> impl Iterator<Item = &Dataset> {
    [Some(&splits.train), splits.valid.as_ref(), splits.test.as_ref()].into_iter().flatten()
}

/// Row `i` of a data set; an error has its file and line.
fn encode_row(set: &Dataset, i: usize, options: &EncodeOptions, tokenizer: &Tokenizer, template: &Template) -> Result<Outcome, ChatError> {
    encode(&set.get(i)?, tokenizer, template, options).map_err(|e| e.on_line(set.path(), set.line(i)))
}
