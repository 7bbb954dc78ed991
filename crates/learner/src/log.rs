//! The lines of a run's two logs: a row of `results.csv` an evaluation or epoch, an object of `events.jsonl` an event.

use serde_json::{Map, Value, json};

use crate::counters::Counters;
use crate::error::LearnError;
use crate::observe::{BatchReport, EpochReport};

/// The columns of `results.csv`, as this program begins it.
pub(crate) fn columns(items: &[&str], metrics: &[String], groups: usize) -> Vec<String> {
    let losses = items.iter().map(|item| format!("train/{item}"));
    let rates = (0..groups).map(|g| format!("lr/pg{g}"));
    ["epoch", "time"].map(String::from).into_iter().chain(losses).chain(metrics.iter().cloned()).chain(rates).collect()
}

/// The columns that a file of these `rows` began with; none where there is no header.
///
/// # Errors
/// Never in practice: reading from memory.
pub(crate) fn columns_of(rows: &[u8]) -> Result<Vec<String>, LearnError> {
    let mut reader = csv::Reader::from_reader(rows);
    let header = reader.byte_headers().map_err(|e| unwritten(&e))?;
    Ok(header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// The row of an epoch, each value under its name in `columns`. A run goes on under the header that it began with, which may be an older program's: a column
/// of which nothing is known stays empty, as metrics do in an epoch without evaluation, and a value without a column is left out.
///
/// # Errors
/// As [`line`].
pub(crate) fn row(report: &EpochReport, items: &[&str], lr: &[f64], columns: &[String]) -> Result<String, LearnError> {
    let rounded = |x: f64| format_g((x * 1e5).round() / 1e5, 6);
    let mut values = vec![("epoch".to_string(), (report.epoch + 1).to_string()), ("time".to_string(), format_g(report.elapsed_s, 6))];
    values.extend(items.iter().zip(&report.means).map(|(item, &x)| (format!("train/{item}"), rounded(x))));
    values.extend(report.evaluation.iter().flat_map(|e| &e.metrics).map(|(name, x)| (name.clone(), rounded(*x))));
    values.extend(lr.iter().enumerate().map(|(g, &x)| (format!("lr/pg{g}"), format_g(x, 6))));
    // Taken out, so that of two columns of one name each has its own.
    let mut take = |name: &String| values.iter().position(|(of, _)| of == name).map(|i| values.remove(i).1);
    line(columns.iter().map(|name| take(name).unwrap_or_default()).collect())
}

fn unwritten(e: &dyn std::fmt::Display) -> LearnError {
    LearnError::Config(format!("a row of results.csv: {e}"))
}

/// A line of the file.
///
/// # Errors
/// Never in practice: writing to memory.
pub(crate) fn line(fields: Vec<String>) -> Result<String, LearnError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields).map_err(|e| unwritten(&e))?;
    let bytes = writer.into_inner().map_err(|e| unwritten(&e))?;
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

/// What a `step` event tells of a batch. `grad_norm` is that of the newest update since the event before, for the batches that have an event may all be
/// others than those that complete an update.
pub(crate) fn step_fields(items: &[&'static str], unit: &str, report: &BatchReport, grad_norm: Option<f64>, metrics: Value) -> Value {
    let items: Map<String, Value> = items.iter().zip(&report.items).map(|(n, v)| (n.to_string(), json!(v))).collect();
    let mut fields = json!({
        "items": items,
        "count": report.count,
        unit: report.units,
        format!("{unit}/s"): (report.rate() * 10.0).round() / 10.0,
        "lr": report.lr,
        "grad_norm": grad_norm,
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
    use super::{columns, columns_of, format_g, line, row};
    use crate::observe::EpochReport;
    use crate::task::Evaluation;

    #[test]
    fn a_value_stands_under_its_name() {
        let metrics = vec![("m(a, b)".to_string(), 0.25), ("new".to_string(), 0.5)];
        let evaluation = Some(Evaluation { metrics, ..Evaluation::default() });
        let judged = EpochReport { step: 9, epoch: 1, means: vec![3.0], evaluation, best: false, over: true, elapsed_s: 7.0 };
        let trained = EpochReport { evaluation: None, ..judged.clone() };
        let begun = columns_of(b"epoch,lr/pg0,\"m(a, b)\",gone,train/mse\n1,2,3,4,5\n").unwrap();
        let rows = |columns: &[String]| [&judged, &trained].map(|report| row(report, &["mse"], &[0.125], columns).unwrap());
        assert_eq!(rows(&begun), ["2,0.125,0.25,,3", "2,0.125,,,3"]);
        let own = columns(&["mse"], &["m(a, b)".into(), "new".into()], 1);
        assert_eq!(rows(&own), ["2,7,3,0.25,0.5,0.125", "2,7,3,,,0.125"]);
        assert_eq!(columns_of(line(own.clone()).unwrap().as_bytes()).unwrap(), own);
        assert!(columns_of(b"").unwrap().is_empty(), "a file that was lost has no header");
    }

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
