//! Data sets to token ids: what a run trains on, what it is judged on, and what was left out.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use bellows_chat::plan::Stop;
use bellows_chat::{
    ChatError, Dataset, Dropped, EncodeOptions, Encoded, Example, Fault, Outcome, Splits, Template, Tokenizer, encode, plan,
};
use bellows_learner::Rng;
use bellows_runs::StoreError;
use rayon::prelude::*;

use crate::config::SftConfig;
use crate::examples::{Collector, Examples};
use crate::preference::Objective;

/// Rows that cannot be used are listed up to this many.
pub const LISTED: usize = 20;
/// So many rows are encoded at a time, on all cores,
const PIECE: usize = 1024;
/// and fewer where they are long, for all of them are in memory.
const PIECE_BYTES: usize = 16 << 20;

/// Examples ready to train on.
#[derive(Debug, Default)]
pub struct SftData {
    /// To learn from; of pairs each chosen answer is followed by the rejected one, here and below.
    pub train: Examples,
    /// To judge by; may be empty.
    pub valid: Examples,
    /// To look at once, at the end; may be empty.
    pub test: Examples,
    /// They are pairs of answers, all of them or none.
    pub pairs: bool,
    /// What was left out, and what was cut.
    pub left: LeftOut,
}

/// What became of the rows that are not, or not wholly, there.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// Rows that were read.
    pub rows: usize,
    /// Examples that lost tokens to truncation.
    pub truncated: usize,
    /// Examples left out because they were empty or too long, or nothing to learn was left of them.
    pub dropped: usize,
    /// How many of those were empty texts.
    pub empty: usize,
    /// How many were too long (with `truncation: drop`).
    pub too_long: usize,
    /// How many of those left out were there to judge by, or to test with.
    pub dropped_judged: usize,
    /// Rows to learn from that say what an earlier one says (with `deduplicate`).
    pub duplicates: usize,
    /// Rows that cannot be used (with `skip_bad_rows`), and the first [`LISTED`] reasons.
    pub bad: usize,
    /// Those reasons, with file and line.
    pub reasons: Vec<String>,
}

/// How rows become examples.
#[derive(Clone, Copy)]
pub struct Encoding<'a> {
    /// What is learnt, and how much of it.
    pub options: &'a EncodeOptions,
    /// The model's.
    pub tokenizer: &'a Tokenizer,
    /// The turns.
    pub template: &'a Template,
}

impl Encoding<'_> {
    fn of(self, example: &Example) -> Result<Outcome, Fault> {
        encode(example, self.tokenizer, self.template, self.options)
    }

    /// The rows of a data set, in their order; an error has its file and line. They are read one after another, for a set may hold a group of them at a time.
    fn rows(self, set: &Dataset) -> impl Iterator<Item = Result<Outcome, ChatError>> {
        let (len, mut next) = (set.len(), 0);
        let piece = move || {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while next < len && rows.len() < PIECE && bytes < PIECE_BYTES {
                let row = set.get(next);
                bytes += row.as_ref().map_or(0, Example::bytes);
                rows.push((next, row));
                next += 1;
            }
            (!rows.is_empty()).then_some(rows)
        };
        std::iter::from_fn(piece).flat_map(move |rows| {
            let encoded: Vec<_> = rows.into_par_iter().map(|(i, row)| (i, row.map(|example| self.of(&example)))).collect();
            let told = move |(i, row): (usize, Result<Result<Outcome, Fault>, ChatError>)| {
                row.and_then(|outcome| outcome.map_err(|fault| fault.on_line(set.path(), set.line(i))))
            };
            encoded.into_iter().map(told)
        })
    }
}

/// A run's data while they are read.
struct Reading<'a> {
    config: &'a SftConfig,
    encoding: Encoding<'a>,
    store: Collector,
    left: LeftOut,
    /// What training rows have said.
    said: HashSet<u128>,
}

/// The numbers of the examples that one row has become: its pieces stay together, all learnt or all judged by.
type Row = Vec<u32>;

impl Reading<'_> {
    /// The rows of `sets` of which something is left.
    fn rows(&mut self, sets: &[Dataset], learnt: bool, read: &mut dyn FnMut()) -> Result<Vec<Row>, ChatError> {
        let mut rows = Vec::new();
        for set in sets {
            for row in self.encoding.rows(set) {
                read();
                let Some(outcome) = self.left.usable(row, self.config)? else { continue };
                let kept = self.left.kept(outcome);
                if learnt && self.config.deduplicate && !kept.is_empty() && !self.said.insert(digest(&kept)) {
                    self.left.duplicates += 1;
                    continue;
                }
                let numbers =
                    kept.into_iter().map(|example| self.store.push(example)).collect::<Result<Row, StoreError>>().map_err(Fault::from)?;
                rows.extend((!numbers.is_empty()).then_some(numbers));
            }
            set.forget();
        }
        Ok(rows)
    }
}

/// What tells rows apart: their tokens, and which of them are learnt.
fn digest(examples: &[Encoded]) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        examples.iter().for_each(|example| (&example.ids, &example.trained).hash(&mut hasher));
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

impl SftData {
    /// Reads and encodes the data sets of a run, which lie in `paths`, in the order of the setting `data`. `progress` gets (done, total) rows.
    ///
    /// # Errors
    /// The first row that cannot be used, with file and line; with `skip_bad_rows` more than 1 % of them. A data set without a row to mix.
    pub fn open(
        config: &SftConfig,
        paths: &[PathBuf],
        encoding: Encoding<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ChatError> {
        let splits = paths.iter().map(|path| Splits::open(path, &config.reading())).collect::<Result<Vec<_>, _>>()?;
        let total = splits.iter().flat_map(Splits::all).map(Dataset::len).sum();
        let store = Collector::new(config.streaming).map_err(Fault::from)?;
        let mut reading = Reading { config, encoding, store, left: LeftOut::default(), said: HashSet::new() };
        let mut done = 0;
        let mut read = || {
            done += 1;
            progress(done, total);
        };
        let (mut sets, mut valid, mut test) = (Vec::new(), Vec::new(), Vec::new());
        for split in &splits {
            sets.push(reading.rows(&split.train, true, &mut read)?);
            let dropped = reading.left.dropped;
            valid.extend(reading.rows(&split.valid, false, &mut read)?.into_iter().flatten());
            test.extend(reading.rows(&split.test, false, &mut read)?.into_iter().flatten());
            reading.left.dropped_judged += reading.left.dropped - dropped;
        }
        reading.left.check()?;
        if valid.is_empty() && config.val_size > 0.0 {
            valid = hold_out(config, &mut sets);
        }
        let train = mixed(config, paths, &sets)?;
        let Reading { store, left, .. } = reading;
        let [train, valid, test] = store.finish([train, valid, test]).map_err(Fault::from)?;
        Ok(Self { train, valid, test, pairs: encoding.options.pairs, left })
    }

    /// What is wrong with the rows of a run's data sets, at most `limit` faults.
    ///
    /// # Errors
    /// A data set that cannot be opened.
    pub fn faults(config: &SftConfig, paths: &[PathBuf], encoding: Encoding<'_>, limit: usize) -> Result<Vec<ChatError>, ChatError> {
        let mut faults = Vec::new();
        for path in paths {
            for set in Splits::open(path, &config.reading())?.all() {
                let wrong = encoding.rows(set).filter_map(Result::err);
                faults.extend(wrong.take(limit - faults.len()));
                set.forget();
            }
        }
        Ok(faults)
    }

    /// Encodes examples made in code.
    ///
    /// # Errors
    /// The first example that cannot be used.
    pub fn of(train: &[Example], valid: &[Example], encoding: Encoding<'_>) -> Result<Self, Fault> {
        let mut left = LeftOut::default();
        let mut encode = |examples: &[Example]| -> Result<Examples, Fault> {
            let kept = examples.iter().map(|example| Ok(left.kept(encoding.of(example)?)));
            Ok(kept.collect::<Result<Vec<_>, Fault>>()?.concat().into())
        };
        let (train, valid) = (encode(train)?, encode(valid)?);
        Ok(Self { train, valid, test: Examples::default(), pairs: encoding.options.pairs, left })
    }

    /// That they are what an `objective` learns from.
    pub(crate) fn suit(&self, objective: Objective) -> Result<(), String> {
        let encode = "encode them as SftConfig::encoding of the run's settings says";
        match (self.pairs, objective.is_of_pairs()) {
            (true, false) => return Err(format!("the data are pairs of answers, and objective sft learns from single ones: {encode}")),
            (false, true) => return Err(format!("the data are single answers, and the objective learns from pairs of them: {encode}")),
            _ => {}
        }
        let whole = |examples: &Examples| examples.len().is_multiple_of(objective.sequences());
        if [&self.train, &self.valid, &self.test].into_iter().all(whole) {
            return Ok(());
        }
        Err("the data are pairs of answers, and an answer is without its other: their number is odd".into())
    }

    /// Why there is nothing to train on.
    pub(crate) fn nothing_left(&self, config: &SftConfig) -> String {
        let (mut why, left) = (Vec::new(), &self.left);
        if left.too_long > 0 {
            why.push(format!("{} longer than max_seq_length {} (truncation drop)", left.too_long, config.max_seq_length));
        }
        if left.empty > 0 {
            why.push(format!("{} without a character of text", left.empty));
        }
        let cut = left.dropped - left.too_long - left.empty;
        if cut > 0 {
            let length = config.max_seq_length;
            why.push(format!("{cut} without a learnt token in the {length} that max_seq_length leaves (truncation {})", config.truncation));
        }
        if !self.valid.is_empty() && config.val_size > 0.0 {
            why.push(format!("{} held out to judge by", self.valid.len()));
        }
        match why.is_empty() {
            true => "no example is left to train on".into(),
            false => format!("no example is left to train on: {}", why.join(", ")),
        }
    }

    /// What a person wants to know of them, which an `objective` learns: one line each.
    pub fn summary(&self, objective: Objective) -> Vec<String> {
        let (per, unit) = (objective.sequences(), if objective.is_of_pairs() { "pairs" } else { "examples" });
        let (all, trained, valid) =
            (self.train.lengths().sum::<usize>(), self.train.targets().sum::<usize>(), self.valid.targets().sum::<usize>());
        let test = if self.test.is_empty() { String::new() } else { format!(", {} to test with", self.test.len() / per) };
        let LeftOut { truncated, dropped, duplicates, .. } = &self.left;
        let twice = if *duplicates == 0 { String::new() } else { format!(", {duplicates} said before") };
        let mut lines = vec![format!(
            "{} {unit} to train on ({all} tokens, {trained} of them learnt), {} to judge by ({valid} learnt){test}; {truncated} truncated, {dropped} left out{twice}",
            self.train.len() / per,
            self.valid.len() / per,
        )];
        lines.extend(self.left.skipped());
        lines
    }
}

impl LeftOut {
    /// What came of reading a row. With `skip_bad_rows` it is None of one that cannot be used, which is counted.
    pub(crate) fn usable<T>(&mut self, row: Result<T, ChatError>, config: &SftConfig) -> Result<Option<T>, ChatError> {
        self.rows += 1;
        match row {
            // A file that cannot be read, or a table that is damaged, is no bad row.
            Err(error) if config.skip_bad_rows && !matches!(error.fault, Fault::Io(_) | Fault::Table { format: "Parquet", .. }) => {
                self.bad += 1;
                self.reasons.extend((self.bad <= LISTED).then(|| error.to_string()));
                Ok(None)
            }
            row => row.map(Some),
        }
    }

    /// The rows that cannot be used, one line each up to [`LISTED`].
    pub fn skipped(&self) -> Vec<String> {
        if self.bad == 0 {
            return Vec::new();
        }
        let mut lines = vec![format!("warning: {} of {} rows cannot be used and are left out:", self.bad, self.rows)];
        lines.extend(self.reasons.iter().map(|reason| format!("  {reason}")));
        lines.extend((self.bad > LISTED).then(|| format!("  and {} more", self.bad - LISTED)));
        lines
    }

    /// What is left of an example; counts what is not.
    pub(crate) fn kept(&mut self, outcome: Outcome) -> Vec<Encoded> {
        match outcome {
            Outcome::Kept(kept) => {
                self.truncated += usize::from(kept.iter().any(|e| e.cut > 0));
                kept
            }
            Outcome::Dropped(why) => {
                self.dropped += 1;
                self.empty += usize::from(why == Dropped::Empty);
                self.too_long += usize::from(matches!(why, Dropped::TooLong { .. }));
                Vec::new()
            }
        }
    }

    /// That no more rows are skipped than accidents explain: of more than one in a hundred, something is wrong with all of them.
    pub(crate) fn check(&self) -> Result<(), ChatError> {
        let Some(first) = self.reasons.first().filter(|_| self.bad * 100 > self.rows) else { return Ok(()) };
        Err(Fault::TooManyBad { bad: self.bad, rows: self.rows, first: first.clone() }.into())
    }
}

/// Takes rows out of `sets` to judge by; returns their examples.
fn hold_out(config: &SftConfig, sets: &mut [Vec<Row>]) -> Vec<u32> {
    let count: usize = sets.iter().map(Vec::len).sum();
    let wanted = if config.val_size < 1.0 { (config.val_size * count as f64).ceil() } else { config.val_size } as usize;
    let (_, held) = plan::split(count, wanted.min(count.saturating_sub(1)), draw(config, "split"));
    let (mut held, mut row, mut out) = (held.into_iter().peekable(), 0, Vec::new());
    for set in sets {
        set.retain_mut(|numbers| {
            let chosen = held.next_if_eq(&row).is_some();
            row += 1;
            if chosen {
                out.push(std::mem::take(numbers));
            }
            !chosen
        });
    }
    out.into_iter().rev().flatten().collect()
}

/// The examples of an epoch over `sets`.
fn mixed(config: &SftConfig, paths: &[PathBuf], sets: &[Vec<Row>]) -> Result<Vec<u32>, ChatError> {
    let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
    let rows = if config.data_probabilities.is_empty() {
        let weights = if config.data_weights.is_empty() { vec![1.0; sets.len()] } else { config.data_weights.clone() };
        let rows = plan::mix(&sizes, &weights, draw(config, "mix"));
        let lost = (0..sets.len()).find(|&set| sizes[set] > 0 && rows.iter().all(|(of, _)| *of != set));
        if let Some(set) = lost {
            let found = format!("{} for {} rows, of which none is left", weights[set], sizes[set]);
            let expected = "enough for one row, or the data set left out";
            return Err(Fault::Setting { setting: "data_weights", found, expected }.in_file(&paths[set]));
        }
        rows
    } else {
        if let Some(empty) = sizes.iter().position(|&size| size == 0) {
            return Err(Fault::Empty { expected: "a row to mix with those of the other data sets" }.in_file(&paths[empty]));
        }
        if config.stopping() == Stop::AllExhausted {
            bounded(&sizes, &config.data_probabilities)?;
        }
        plan::interleave(&sizes, &config.data_probabilities, config.stopping(), draw(config, "mix"))
    };
    let train: Vec<u32> = rows.into_iter().flat_map(|(set, row)| sets[set][row].iter().copied()).collect();
    let per = config.objective.sequences();
    let examples = train.len() / per;
    if config.max_samples == 0 || config.max_samples >= examples {
        return Ok(train);
    }
    let (_, chosen) = plan::split(examples, config.max_samples, draw(config, "max_samples"));
    Ok(chosen.into_iter().flat_map(|i| train[i * per..(i + 1) * per].iter().copied()).collect())
}

/// That an epoch in which every one of the sets is used up has no more rows than weights may make of them.
fn bounded(sizes: &[usize], probabilities: &[f64]) -> Result<(), Fault> {
    let (total, there) = (probabilities.iter().sum::<f64>(), sizes.iter().sum::<usize>());
    let rows = probabilities.iter().zip(sizes).map(|(p, &size)| size as f64 * total / p).fold(0.0, f64::max);
    if rows <= 1e3 * there as f64 {
        return Ok(());
    }
    let all = probabilities.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Err(Fault::Setting {
        setting: "data_probabilities",
        found: format!("{all} with all_exhausted, which makes an epoch of {rows:.0} rows out of {there}"),
        expected: "at most 1000 times as many: raise the probability of the set that is used up last, or take first_exhausted",
    })
}

fn draw(config: &SftConfig, stream: &'static str) -> impl Fn(u64) -> u64 {
    let seed = config.seed;
    move |i| Rng::new(seed, stream, 0, i).bits()
}
