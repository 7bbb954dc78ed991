//! The two files a run appends to: `results.csv`, one row an epoch, and `events.jsonl`, one object a line.

use bellows_runs::{AppendLog, LogError, RunDir};
use serde_json::{Value, json};

use crate::observe::EpochReport;
use crate::state::Counters;

/// `results.csv` and `events.jsonl`, opened where a checkpoint left them.
pub(crate) struct RunLog {
    events: AppendLog,
    results: AppendLog,
}

impl RunLog {
    /// Opens both files, cut back to the lengths in `counters`; writes the header of an empty `results.csv`.
    pub(crate) fn open(dir: &RunDir, counters: &Counters, items: &[&str], metrics: &[String], groups: usize) -> Result<Self, LogError> {
        let events = AppendLog::open_at(dir.events(), Some(counters.events_len))?;
        let mut results = AppendLog::open_at(dir.results(), Some(counters.results_len))?;
        if results.is_empty() {
            let columns = ["epoch".to_string(), "time".to_string()]
                .into_iter()
                .chain(items.iter().map(|i| format!("train/{i}")))
                .chain(metrics.iter().cloned())
                .chain((0..groups).map(|g| format!("lr/pg{g}")));
            results.append_line(&columns.collect::<Vec<_>>().join(","))?;
        }
        Ok(Self { events, results })
    }

    /// Writes one event; a log that cannot be written costs a warning, not the run.
    pub(crate) fn event(&mut self, kind: &str, counters: &Counters, fields: Value) {
        let mut line = json!({ "event": kind, "epoch": counters.epoch + 1, "batch": counters.position, "step": counters.batches });
        if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
            line.extend(fields);
        }
        if let Err(error) = self.events.append_line(&line.to_string()) {
            tracing::warn!("{error}");
        }
    }

    /// Writes the row of an epoch; metrics of an epoch without evaluation are left empty.
    pub(crate) fn row(&mut self, report: &EpochReport, metrics: usize, lr: &[f64]) -> Result<(), LogError> {
        let rounded = |x: f64| format_g((x * 1e5).round() / 1e5, 6);
        let mut row = vec![(report.epoch + 1).to_string(), format_g(report.elapsed_s, 6)];
        row.extend(report.means.iter().map(|&x| rounded(x)));
        match &report.evaluation {
            Some(evaluation) => row.extend(evaluation.metrics.iter().map(|&(_, x)| rounded(x))),
            None => row.extend(std::iter::repeat_n(String::new(), metrics)),
        }
        row.extend(lr.iter().map(|&x| format_g(x, 6)));
        self.results.append_line(&row.join(","))?;
        self.results.sync()
    }

    /// Notes both lengths, so that a resumed run cuts off what came after.
    pub(crate) fn mark(&self, counters: &mut Counters) {
        counters.events_len = self.events.len();
        counters.results_len = self.results.len();
    }

    /// Takes back the rows of epochs that a roll-back undoes.
    pub(crate) fn truncate_results(&mut self, dir: &RunDir, counters: &Counters) -> Result<(), LogError> {
        self.results = AppendLog::open_at(dir.results(), Some(counters.results_len))?;
        Ok(())
    }
}

/// C's `%.{digits}g`: `digits` significant digits, no trailing zeros, an exponent only below 1e-4 or from 10^digits up.
pub fn format_g(value: f64, digits: usize) -> String {
    if !value.is_finite() || value == 0.0 {
        return if value == 0.0 { "0".into() } else { value.to_string().to_lowercase() };
    }
    let digits = digits.max(1);
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let strip = |text: &str| if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() };
    if exponent < -4 || exponent >= digits as i32 {
        format!("{}e{}{:02}", strip(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.abs())
    } else {
        strip(&format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::format_g;

    #[test]
    fn formats_like_printf_g() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (0.00125, "0.00125"),
            (0.000123456789, "0.000123457"),
            (0.0000123456, "1.23456e-05"),
            (123456.0, "123456"),
            (1234567.0, "1.23457e+06"),
            (2.345678901, "2.34568"),
            (-0.5, "-0.5"),
            (999999.9, "1e+06"),
            (f64::NAN, "nan"),
        ];
        for (x, expected) in cases {
            assert_eq!(format_g(x, 6), expected);
        }
        assert_eq!([format_g(0.99951, 3), format_g(1234.0, 3), format_g(f64::INFINITY, 3)], ["1", "1.23e+03", "inf"]);
    }
}
