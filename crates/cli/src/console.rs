//! Lines and bars: a terminal gets bars (on stderr, by indicatif); anything else gets whole lines, and every half minute one that tells how far it is.
//!
//! Nothing wraps: a line is made for the width it has, and gives up columns from the right. What it looks like is a function of that width.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{place, print, pulse};

const LINE_EVERY: Duration = Duration::from_secs(30);

/// The longest and the shortest picture of a bar, in columns.
const BAR: (usize, usize) = (16, 4);

/// Prints one line to stdout, as [`print()`] does.
/// Rank 0 speaks for all: no other rank of a run says anything here.
pub fn say(line: &str) {
    if place::is_silent() {
        return;
    }
    print(&format!("{line}\n"));
}

/// Prints one line to stderr: news of the work, where stdout is for its result.
pub fn note(line: &str) {
    // At once: stderr has no buffer, and lines of several processes would get into each other.
    let written = std::io::stderr().write_all(format!("{}{line}\n", place::prefix()).as_bytes());
    if written.is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// Whether what goes to `stream` has colours: they are for terminals that have them, and for those who did not say no (<https://no-color.org>).
pub fn coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && takes_colours(|name| std::env::var_os(name))
}

fn takes_colours(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty()) && variable("TERM").is_none_or(|value| value != "dumb")
}

/// Columns of the terminal that [`say`] prints to; no limit where it is none.
pub fn columns() -> usize {
    width(&Term::stdout())
}

fn width(term: &Term) -> usize {
    term.size_checked().map_or(usize::MAX, |(_, columns)| usize::from(columns))
}

/// As many of `cells` as fit into `columns`, `gap` between two of them: what comes first matters most.
pub fn fit(cells: &[String], gap: &str, columns: usize) -> String {
    let mut line = String::new();
    for cell in cells {
        let gap = if line.is_empty() { "" } else { gap };
        if line.chars().count() + gap.len() + cell.chars().count() > columns {
            break;
        }
        line = line + gap + cell;
    }
    line
}

/// A number of things a second, as a person reads it: three digits, fewer where the first is a hundredth.
pub fn rate(per_second: f64) -> String {
    let digits = match per_second {
        r if r >= 99.95 => 0,
        r if r >= 9.995 => 1,
        r if r >= 0.095 => 2,
        _ => 3,
    };
    format!("{per_second:.digits$}")
}

/// `1:02`, `1:02:03`.
fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// How far something is, and since when.
#[derive(Clone, Copy)]
struct Progress {
    done: usize,
    total: usize,
    /// Done when the clock began.
    before: usize,
    seconds: f64,
}

impl Progress {
    fn rate(&self) -> f64 {
        self.done.saturating_sub(self.before) as f64 / self.seconds.max(1e-9)
    }

    /// What is never given up: share and count.
    fn count(&self) -> [String; 2] {
        let share = self.done * 100 / self.total.max(1);
        [format!("{share:>3}%"), format!("{:>1$}/{2}", self.done, self.total.to_string().len(), self.total)]
    }

    /// `message` and how far it is, in less than `columns`: the rate, the times and the bar take what is left.
    fn line(&self, message: &str, columns: usize) -> String {
        // A cursor behind the last column is on the next line already.
        let columns = columns.saturating_sub(1);
        let [share, count] = self.count();
        let room = columns.saturating_sub(share.len() + count.len() + 2);
        let mut message: String = message.to_string();
        if message.chars().count() > room {
            message = message.chars().take(room.saturating_sub(1)).chain(['…']).collect();
        }
        let mut left = room - message.chars().count().min(room);
        let mut take = |text: String| {
            let fits = text.chars().count() <= left;
            left -= if fits { text.chars().count() } else { 0 };
            if fits { text } else { String::new() }
        };
        let rate = take(format!(" {}/s", rate(self.rate())));
        let to_come = self.total.saturating_sub(self.done) as f64 / self.rate();
        let to_come = if to_come.is_finite() { clock(to_come) } else { "-".into() };
        let times = take(format!(" {}<{to_come}", clock(self.seconds)));
        let picture = left.saturating_sub(1).min(BAR.0);
        let picture = if picture < BAR.1 { String::new() } else { format!(" {}", self.picture(picture)) };
        let gap = if message.is_empty() { "" } else { " " };
        format!("{message}{gap}{share}{picture} {count}{rate}{times}")
    }

    fn picture(&self, columns: usize) -> String {
        let full = (self.done * columns / self.total.max(1)).min(columns);
        let head = usize::from(full < columns);
        "━".repeat(full) + &"╸".repeat(head) + &"─".repeat(columns - full - head)
    }
}

/// A progress display for a count that ends somewhere: a bar, or a line now and then.
pub struct Bar {
    bar: Option<ProgressBar>,
    /// Prints its lines.
    tell: fn(&str),
    label: String,
    total: usize,
    /// Since when the count goes up, and from what.
    begun: (Instant, usize),
    done: Option<usize>,
    printed: Instant,
}

impl Bar {
    /// Of `total`; `label` stands before the count.
    pub fn new(label: &str, total: usize) -> Self {
        let bar = (std::io::stderr().is_terminal() && !place::is_silent()).then(|| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new_spinner().with_style(style)
        });
        let now = Instant::now();
        Self { bar, tell: say, label: label.into(), total, begun: (now, 0), done: None, printed: now }
    }

    /// The same with lines that `tell` prints: [`note`] where stdout is for a result that a program reads.
    pub fn through(self, tell: fn(&str)) -> Self {
        Self { tell, ..self }
    }

    /// Columns there are for a message; no limit where there is no terminal.
    pub fn room(&self) -> usize {
        let [share, count] = Progress { done: self.total, total: self.total, before: 0, seconds: 0.0 }.count();
        let columns = || width(&Term::stderr()).saturating_sub(share.len() + count.len() + 3);
        self.bar.as_ref().map_or(usize::MAX, |_| columns())
    }

    /// Shows `message` and the count.
    pub fn set(&mut self, message: String, done: usize, total: usize) {
        pulse::beat();
        match self.done {
            // A run that is resumed does not begin at the first.
            None => self.begun.1 = done.saturating_sub(1),
            // The next thing is counted.
            Some(last) if done < last => self.begun = (Instant::now(), done.saturating_sub(1)),
            Some(_) => {}
        }
        (self.done, self.total) = (Some(done), total);
        let (begun, before) = self.begun;
        let progress = Progress { done, total, before, seconds: begun.elapsed().as_secs_f64() };
        match &self.bar {
            Some(bar) => bar.set_message(progress.line(&message, width(&Term::stderr()))),
            None if self.printed.elapsed() >= LINE_EVERY => {
                self.printed = Instant::now();
                let gap = if message.is_empty() { "" } else { " " };
                (self.tell)(&format!("{message}{gap}{}{done}/{total} {}/s", self.label, rate(progress.rate())));
            }
            None => {}
        }
    }

    /// Shows a row that is not complete yet, made for the columns there are, and the count. What is no terminal gets the count alone: among its lines that row
    /// would look like one that is.
    pub fn show(&mut self, row: impl FnOnce(usize) -> String, done: usize, total: usize) {
        let row = if self.bar.is_some() { row(self.room()) } else { String::new() };
        self.set(row, done, total);
    }

    /// Prints a line above the bar.
    pub fn interject(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| (self.tell)(line)),
            None => (self.tell)(line),
        }
    }

    /// Removes the bar and leaves `line`, if any.
    pub fn finish(self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if !line.is_empty() {
            (self.tell)(line);
        }
    }
}

/// The foot of a run's console: a bar, or none at the moment, below what is printed.
pub struct Foot {
    bar: Option<Bar>,
    /// Prints its lines.
    tell: fn(&str),
}

impl Default for Foot {
    fn default() -> Self {
        Self { bar: None, tell: say }
    }
}

impl Foot {
    /// The same with lines that `tell` prints.
    pub fn through(self, tell: fn(&str)) -> Self {
        Self { tell, ..self }
    }

    /// A bar in place of what was there.
    pub fn begin(&mut self, label: &str, total: usize) {
        self.close("");
        self.bar = Some(Bar::new(label, total).through(self.tell));
    }

    /// Shows `row`, made for the columns there are, and the count as [`Bar::show`] does; begins a bar called `label` where there is none.
    pub fn show(&mut self, label: &str, row: impl FnOnce(usize) -> String, done: usize, total: usize) {
        let tell = self.tell;
        self.bar.get_or_insert_with(|| Bar::new(label, total).through(tell)).show(row, done, total);
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.interject(line),
            None => (self.tell)(line),
        }
    }

    /// Removes the bar and leaves `line`, if any.
    pub fn close(&mut self, line: &str) {
        match self.bar.take() {
            Some(bar) => bar.finish(line),
            None if !line.is_empty() => (self.tell)(line),
            None => {}
        }
    }
}

/// Resident memory of this process, as text.
pub fn memory() -> String {
    memory_stats::memory_stats().map_or_else(|| "-".into(), |m| format!("{:.2}G", m.physical_mem as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_every_terminal() {
        let progress = Progress { done: 123, total: 4567, before: 0, seconds: 61.5 };
        assert_eq!(progress.line("scanning", 34), "scanning   2%  123/4567 2.00/s");
        assert_eq!(progress.line("scanning", 40), "scanning   2% ╸───────  123/4567 2.00/s");
        assert_eq!(progress.line("scanning", 45), "scanning   2%  123/4567 2.00/s 1:01<37:02");
        assert_eq!(progress.line("scanning", 80), "scanning   2% ╸───────────────  123/4567 2.00/s 1:01<37:02");
        assert_eq!(progress.line("", 30), "  2% ╸─────  123/4567 2.00/s");
        for message in [0, 10, 40, 88, 200].map(|n| "x".repeat(n)) {
            for columns in 40..=140 {
                let line = progress.line(&message, columns);
                assert!(line.chars().count() < columns && line.contains("2%") && line.contains("123/4567"), "{columns}: {line}");
            }
        }
        let done = Progress { done: 10, total: 10, before: 9, seconds: 2.0 };
        assert_eq!(done.line("a", 47), "a 100% ━━━━━━━━━━━━━━━━ 10/10 0.50/s 0:02<0:00");
        let begun = Progress { done: 0, total: 0, before: 0, seconds: 0.0 };
        assert_eq!(begun.line("a", 20), "a   0% 0/0 0.000/s");
    }

    #[test]
    fn lines_go_where_they_are_told_to() {
        static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
        let told = |line: &str| TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line.to_string());
        let mut bar = Bar { bar: None, ..Bar::new("judging ", 0).through(told) };
        bar.set("as it is".into(), 1, 3);
        let Some(long_ago) = bar.printed.checked_sub(LINE_EVERY) else { return };
        bar.printed = long_ago;
        bar.set("as it is".into(), 2, 3);
        bar.interject("beside it");
        bar.finish("done");
        let told = TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        assert!(told[0].starts_with("as it is judging 2/3 ") && told[1..] == ["beside it", "done"], "{told:?}");
    }

    #[test]
    fn a_log_has_no_row_that_is_not_complete() {
        static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
        let told = |line: &str| TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line.to_string());
        let mut bar = Bar { bar: None, ..Bar::new("batch ", 0).through(told) };
        let row = |_: usize| "1/3  1.20G  0.5000".to_string();
        bar.show(row, 1, 40);
        let Some(long_ago) = bar.printed.checked_sub(LINE_EVERY) else { return };
        bar.printed = long_ago;
        bar.show(row, 2, 40);
        bar.finish(&row(0));
        let told = TOLD.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        assert!(told[0].starts_with("batch 2/40 ") && told[1..] == ["1/3  1.20G  0.5000"], "{told:?}");
    }

    #[test]
    fn columns_go_from_the_right() {
        let cells = ["epoch 1/3", "loss 0.1234", "5.1/16.0G", "x"].map(String::from);
        assert_eq!(fit(&cells, "  ", 100), "epoch 1/3  loss 0.1234  5.1/16.0G  x");
        assert_eq!(fit(&cells, "  ", 25), "epoch 1/3  loss 0.1234");
        assert_eq!(fit(&cells, "  ", 8), "");
        assert_eq!(fit(&cells, "", usize::MAX), "epoch 1/3loss 0.12345.1/16.0Gx");
    }

    #[test]
    fn colours_are_for_those_who_have_not_said_no() {
        let takes = |name: &'static str, value: &'static str| takes_colours(|asked| (asked == name).then(|| value.into()));
        assert!(takes("TERM", "xterm-256color") && takes("NO_COLOR", "") && takes("PATH", "1"));
        assert!(!takes("TERM", "dumb") && !takes("NO_COLOR", "1"));
    }

    #[test]
    fn rates_read_well() {
        let rates = [697.0162, 99.96, 99.94, 12.345, 1.0, 0.9254, 0.096, 0.0123].map(rate);
        assert_eq!(rates, ["697", "100", "99.9", "12.3", "1.00", "0.93", "0.10", "0.012"]);
        assert_eq!([0.4, 61.0, 3723.9].map(clock), ["0:00", "1:01", "1:02:03"]);
    }
}
