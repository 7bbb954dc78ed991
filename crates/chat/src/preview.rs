//! What `data preview` shows, as text: examples with what is learnt set off, and what lengths mean for batches.

use std::fmt::Write as _;

use crate::encode::Encoded;
use crate::plan::{Mode, plan};
use crate::{Fault, Tokenizer};

const TRAINED: &str = "\u{1b}[1;32m";
const MASKED: &str = "\u{1b}[2m";
const RESET: &str = "\u{1b}[0m";

/// How to set off what is learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Green and bold, the rest dim, for terminals.
    Ansi,
    /// In `⟦` and `⟧`, for files and pipes.
    Plain,
}

/// The text of `encoded`, with what is learnt set off. Control characters other than line ends are spelled out, so that data cannot play
/// with the terminal.
///
/// # Errors
/// [`Fault::Tokenizer`] if a token cannot be decoded.
pub fn tokens(encoded: &Encoded, tokenizer: &Tokenizer, style: Style) -> Result<String, Fault> {
    let mut out = String::new();
    let mut at = 0;
    while at < encoded.len() {
        let trained = encoded.trained[at];
        let end = encoded.trained[at..].iter().position(|&flag| flag != trained).map_or(encoded.len(), |len| at + len);
        let text = spelled_out(&tokenizer.decode(&encoded.ids[at..end], false)?);
        let _ = match (style, trained) {
            (Style::Ansi, true) => write!(out, "{TRAINED}{text}{RESET}"),
            (Style::Ansi, false) => write!(out, "{MASKED}{text}{RESET}"),
            (Style::Plain, true) => write!(out, "⟦{text}⟧"),
            (Style::Plain, false) => write!(out, "{text}"),
        };
        at = end;
    }
    let _ = write!(out, "\n({} tokens, {} trained", encoded.len(), encoded.targets());
    if encoded.cut > 0 {
        let _ = write!(out, ", {} cut off", encoded.cut);
    }
    out.push_str(")\n");
    Ok(out)
}

fn spelled_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// The lengths of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Tokens of each example that was kept, after truncation; of pairs those of each answer, the chosen one first.
    pub kept: Vec<usize>,
    /// Whether examples are pairs.
    pub pairs: bool,
    /// Learnt tokens of all of them.
    pub targets: usize,
    /// How many examples were cut.
    pub truncated: usize,
    /// How many examples were left out.
    pub dropped: usize,
}

/// Bars of the histogram.
const BARS: usize = 10;

impl Lengths {
    /// Counts one more example, which is no pair.
    pub fn push(&mut self, encoded: &Encoded) {
        self.kept.push(encoded.len());
        self.targets += encoded.targets();
        self.truncated += usize::from(encoded.cut > 0);
    }

    /// Sequences of an example.
    fn per(&self) -> usize {
        1 + usize::from(self.pairs)
    }

    /// Tokens of the longest sequence of each example: both rows of a pair are in one batch.
    fn longest(&self) -> Vec<usize> {
        self.kept.chunks(self.per()).map(|example| example.iter().copied().max().unwrap_or(0)).collect()
    }

    /// The length that a share `q` of the sequences does not exceed (nearest rank); 0 for none.
    pub fn quantile(&self, q: f64) -> usize {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let rank = (q * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0)
    }

    /// Share of places that are padding, in an epoch of `rows` rows (or pairs of them) a batch rounded up to `multiple`, from 0 to 1.
    pub fn padding(&self, rows: usize, mode: Mode, multiple: usize, draw: impl Fn(u64) -> u64) -> f64 {
        let (tokens, lengths): (usize, _) = (self.kept.iter().sum(), self.longest());
        let places: usize = plan(&lengths, rows, mode, draw)
            .iter()
            .map(|batch| {
                let longest = batch.iter().map(|row| row.iter().map(|&index| lengths[index]).sum::<usize>()).max().unwrap_or(0);
                self.per() * batch.len() * longest.next_multiple_of(multiple.max(1))
            })
            .sum();
        if places == 0 { 0.0 } else { 1.0 - tokens as f64 / places as f64 }
    }

    /// The batches of an epoch and its padding, as text; the arguments are those of [`Lengths::padding`].
    pub fn epoch(&self, rows: usize, mode: Mode, multiple: usize, draw: impl Fn(u64) -> u64) -> String {
        let batches = plan(&self.longest(), rows, mode, &draw).len();
        format!("{batches} batches an epoch, {:.1} % padding", 100.0 * self.padding(rows, mode, multiple, &draw))
    }

    /// The report: counts, quantiles, a histogram, and the padding of each way to batch. `draw` is the one to train with.
    pub fn report(&self, max_seq_length: usize, multiple: usize, draw: impl Fn(u64) -> u64) -> String {
        let tokens: usize = self.kept.iter().sum();
        let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        let (kept, unit) = (self.kept.len() / self.per(), if self.pairs { "pairs" } else { "examples" });
        let all = kept + self.dropped;
        let mut out = String::new();
        let _ = writeln!(out, "{unit:<10} {all}, of which {kept} kept");
        let _ = writeln!(out, "truncated  {:.1} %, dropped {:.1} %", percent(self.truncated, all), percent(self.dropped, all));
        let _ = writeln!(out, "tokens     {tokens} an epoch, {} trained ({:.1} %)", self.targets, percent(self.targets, tokens));
        let quantiles = [0.5, 0.9, 0.99, 1.0].map(|q| self.quantile(q));
        let _ = writeln!(out, "length     p50 {}, p90 {}, p99 {}, max {}", quantiles[0], quantiles[1], quantiles[2], quantiles[3]);
        out.push_str(&self.histogram());
        let _ = writeln!(out, "padding at batch size     1      2      4      8     16");
        // Pairs are not packed.
        let packing = (!self.pairs).then_some(("packing", Mode::Pack { capacity: max_seq_length }));
        for (name, mode) in [("shuffle", Mode::Shuffle), ("group_by_length", Mode::GroupByLength)].into_iter().chain(packing) {
            let _ = write!(out, "  {name:<17}");
            for rows in [1, 2, 4, 8, 16] {
                let _ = write!(out, " {:4.1} %", 100.0 * self.padding(rows, mode, multiple, &draw));
            }
            out.push('\n');
        }
        out
    }

    fn histogram(&self) -> String {
        let longest = self.quantile(1.0);
        let width = (longest / BARS + 1).max(1);
        let mut counts = [0usize; BARS];
        for length in &self.kept {
            counts[(length / width).min(BARS - 1)] += 1;
        }
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let mut out = String::new();
        for (bar, count) in counts.iter().enumerate().filter(|(bar, _)| bar * width <= longest) {
            let range = format!("{}-{}", bar * width, (bar + 1) * width - 1);
            let row = format!("  {range:>13} {count:>7} {}", "█".repeat((40 * count).div_ceil(most)));
            let _ = writeln!(out, "{}", row.trim_end());
        }
        out
    }
}
