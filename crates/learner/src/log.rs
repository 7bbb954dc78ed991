//! The lines of a run's two logs: a row of `results.csv` an evaluation or epoch, an object of `events.jsonl` an event.

use serde_json::{Map, Value, json};

use crate::counters::Counters;
use crate::error::LearnError;
use crate::observe::{BatchReport, EpochReport};

/// The first line of `results.csv`.
///
/// # Errors
/// Never in practice: writing to memory.
pub(crate) fn header(items: &[&str], metrics: &[String], groups: usize) -> Result<String, LearnError> {
    let columns = ["epoch".to_string(), "time".to_string()]
        .into_iter()
        .chain(items.iter().map(|i| format!("train/{i}")))
        .chain(metrics.iter().cloned())
        .chain((0..groups).map(|g| format!("lr/pg{g}")));
    csv_line(columns.collect())
}

/// The row of an epoch; metrics of an epoch without evaluation are left empty.
///
/// # Errors
/// As [`header`].
pub(crate) fn row(report: &EpochReport, metrics: usize, lr: &[f64]) -> Result<String, LearnError> {
    let rounded = |x: f64| format_g((x * 1e5).round() / 1e5, 6);
    let mut row = vec![(report.epoch + 1).to_string(), format_g(report.elapsed_s, 6)];
    row.extend(report.means.iter().map(|&x| rounded(x)));
    match &report.evaluation {
        Some(evaluation) => row.extend(evaluation.metrics.iter().map(|&(_, x)| rounded(x))),
        None => row.extend(std::iter::repeat_n(String::new(), metrics)),
    }
    row.extend(lr.iter().map(|&x| format_g(x, 6)));
    csv_line(row)
}

fn csv_line(fields: Vec<String>) -> Result<String, LearnError> {
    let failed = |e: &dyn std::fmt::Display| LearnError::Config(format!("a row of results.csv: {e}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields).map_err(|e| failed(&e))?;
    let bytes = writer.into_inner().map_err(|e| failed(&e))?;
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
}

/// The line of an event.
pub(crate) fn event(kind: &str, counters: &Counters, fields: Value) -> String {
    let mut line = json!({ "event": kind, "epoch": counters.epoch + 1, "batch": counters.position, "step": counters.batches });
    if let (Value::Object(line), Value::Object(fields)) = (&mut line, fields) {
        line.extend(fields);
    }
    line.to_string()
}

/// What a `step` event tells of a batch.
pub(crate) fn step_fields(items: &[&'static str], unit: &str, report: &BatchReport, metrics: Value) -> Value {
    let items: Map<String, Value> = items.iter().zip(&report.items).map(|(n, v)| (n.to_string(), json!(v))).collect();
    let mut fields = json!({
        "items": items,
        "count": report.count,
        unit: report.units,
        format!("{unit}/s"): (report.rate() * 10.0).round() / 10.0,
        "lr": report.lr,
        "grad_norm": report.grad_norm,
        "metrics": metrics,
    });
    if let Value::Object(fields) = &mut fields {
        fields.extend(report.gauges.iter().map(|(name, value, _)| (name.to_string(), json!(value))));
    }
    fields
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
