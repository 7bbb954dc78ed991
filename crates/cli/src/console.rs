//! Lines and bars: a terminal gets bars (on stderr, by indicatif); anything else gets a plain line every half minute.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(30);

/// What the bar, its count, its rate and its times take of a line.
const BAR_COLUMNS: usize = 46;

/// Prints one line to stdout; a closed pipe is not an error worth dying for.
pub fn say(line: &str) {
    let written = writeln!(std::io::stdout(), "{line}");
    if written.is_err() {
        tracing::debug!("stdout is closed");
    }
}

/// Prints one line to stderr: news of the work, where stdout is for its result.
pub fn note(line: &str) {
    let written = writeln!(std::io::stderr(), "{line}");
    if written.is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// A progress display for a count that ends somewhere: a bar, or a line now and then.
pub struct Bar {
    bar: Option<ProgressBar>,
    label: String,
    started: Instant,
    printed: Instant,
}

impl Bar {
    /// Of `total`; `label` stands before the count.
    pub fn new(label: &str, total: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg} {percent:>3}% {bar:12} {pos}/{len} {per_sec} {elapsed}<{eta}");
            ProgressBar::new(total as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
        });
        Self { bar, label: label.into(), started: Instant::now(), printed: Instant::now() }
    }

    /// Columns there are for a message; no limit where there is no terminal.
    pub fn room(&self) -> usize {
        let columns = || usize::from(console::Term::stderr().size().1).saturating_sub(BAR_COLUMNS);
        self.bar.as_ref().map_or(usize::MAX, |_| columns())
    }

    /// Shows `message` and the count.
    pub fn set(&mut self, message: String, done: usize, total: usize) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(message);
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            }
            None if self.printed.elapsed() >= LINE_EVERY => {
                self.printed = Instant::now();
                let rate = done as f64 / self.started.elapsed().as_secs_f64();
                say(&format!("{message} {}{done}/{total} {rate:.1}/s", self.label));
            }
            None => {}
        }
    }

    /// Prints a line above the bar.
    pub fn interject(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Removes the bar and leaves `line`, if any.
    pub fn finish(self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if !line.is_empty() {
            say(line);
        }
    }
}

/// Resident memory of this process, as text.
pub fn memory() -> String {
    memory_stats::memory_stats().map_or_else(|| "-".into(), |m| format!("{:.2}G", m.physical_mem as f64 / 1e9))
}
