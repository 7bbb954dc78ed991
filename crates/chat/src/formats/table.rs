//! CSV with a header line. Cells that hold lists in the other formats hold the JSON text of them here.

use std::fs::File;
use std::path::Path;

use csv::{ErrorKind, ReaderBuilder};
use serde_json::{Map, Value};

use crate::{ChatError, Fault};

const LISTS: [&str; 6] = ["messages", "conversations", "history", "input_ids", "labels", "attention_mask"];

/// The rows with the line on which each begins.
pub(super) fn read(file: File, path: &Path) -> Result<Vec<(u64, Value)>, ChatError> {
    let refused = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        let fault = match error.kind() {
            ErrorKind::Utf8 { err, .. } => Fault::NotUtf8 { at: err.valid_up_to() + 1 },
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                Fault::Table { format: "CSV", what: format!("{len} cells; the header has {expected_len}") }
            }
            _ => Fault::Table { format: "CSV", what: error.to_string() },
        };
        fault.on_line(path, line)
    };
    let mut reader = ReaderBuilder::new().from_reader(file);
    let header = reader.headers().map_err(refused)?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(refused)?;
        let line = record.position().map_or(0, csv::Position::line);
        let mut row = Map::new();
        for (key, cell) in header.iter().zip(&record) {
            // The byte order mark is the reader's to remove, but not all files have it where it looks.
            let key = key.trim_start_matches('\u{feff}');
            let value = match cell {
                "" if LISTS.contains(&key) => Value::Null,
                cell if LISTS.contains(&key) => super::json::parse(cell).map_err(|fault| fault.on_line(path, line))?,
                cell => Value::from(cell),
            };
            if row.insert(key.to_owned(), value).is_some() {
                return Err(Fault::Table { format: "CSV", what: format!("the column `{key}` is there twice") }.on_line(path, 1));
            }
        }
        rows.push((line, Value::Object(row)));
    }
    Ok(rows)
}
