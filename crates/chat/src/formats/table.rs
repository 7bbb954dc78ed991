//! CSV with a header line, row by row. Cells that hold lists in the other formats hold the JSON text of them here; those that hold text or a chat
//! are a chat where they are the JSON text of one. `choices`, which training never looks at, are text where they are no JSON.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use csv::{ByteRecord, ErrorKind, ReaderBuilder};
use serde_json::{Map, Value};

use super::json::{Span, parse};
use super::rows::ReadOptions;
use crate::{ChatError, Fault};

const LISTS: [&str; 6] = ["messages", "conversations", "history", "input_ids", "labels", "attention_mask"];

/// The keys of the header, and where the rows lie. What is wrong with a row shows when it is read: it may be one that is skipped.
pub(super) fn index(file: &File, path: &Path) -> Result<(Vec<String>, Vec<Span>), ChatError> {
    let refused = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        fault_of(&error).on_line(path, line)
    };
    let mut reader = ReaderBuilder::new().flexible(true).from_reader(file);
    // The byte order mark is the reader's to remove, but not all files have it where it looks.
    let header: Vec<String> = reader.headers().map_err(refused)?.iter().map(|key| key.trim_start_matches('\u{feff}').to_owned()).collect();
    let mut seen = HashSet::new();
    if let Some(key) = header.iter().find(|key| !seen.insert(key.as_str())) {
        return Err(Fault::Table { format: "CSV", what: format!("the column `{key}` is there twice") }.on_line(path, 1));
    }
    let (mut spans, mut record) = (Vec::new(), ByteRecord::new());
    while reader.read_byte_record(&mut record).map_err(refused)? {
        let start = record.position().map_or((0, 0), |at| (at.byte(), at.line()));
        spans.push(Span { offset: start.0, len: reader.position().byte() - start.0, line: start.1 });
    }
    drop(record);
    if let Some(last) = spans.last() {
        closed(file, last, path)?;
    }
    Ok((header, spans))
}

/// That no quote is open in the last row. The reader takes what is there for the cell, which is that of a file that was cut, or all rows behind a stray
/// quote.
fn closed(mut file: &File, last: &Span, path: &Path) -> Result<(), ChatError> {
    let mut text = Vec::new();
    let read = file.seek(SeekFrom::Start(last.offset)).and_then(|_| file.take(last.len).read_to_end(&mut text));
    read.map_err(|error| Fault::from(error).in_file(path))?;
    let line = first_line(last, &text);
    // A row of its own, unless it is in a cell.
    text.extend_from_slice(b"\n.\n");
    let mut records = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_slice()).into_byte_records();
    if records.nth(1).is_none() {
        let what = "a quoted cell that begins in this row is never closed: the file is cut, or has a stray quote";
        return Err(Fault::Table { format: "CSV", what: what.into() }.on_line(path, line));
    }
    Ok(())
}

/// The line on which the text of a row begins: the reader of cells leaves the second half of a line end, and empty lines, to the next row.
pub(super) fn first_line(span: &Span, text: &[u8]) -> u64 {
    span.line + text.iter().take_while(|byte| b"\r\n".contains(byte)).filter(|&&byte| byte == b'\n').count() as u64
}

/// The object that a row of the file is.
pub(super) fn row(header: &[String], text: &str, options: &ReadOptions) -> Result<Value, Fault> {
    let mut reader = ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let record = reader.records().next().transpose().map_err(|error| fault_of(&error))?.unwrap_or_default();
    if record.len() != header.len() {
        return Err(Fault::Table { format: "CSV", what: format!("{} cells; the header has {}", record.len(), header.len()) });
    }
    let chats = [options.prompt_key.as_str(), options.completion_key.as_str(), "chosen", "rejected"];
    let mut row = Map::new();
    for (key, cell) in header.iter().zip(&record) {
        let value = match cell {
            "" if key == "choices" || LISTS.contains(&key.as_str()) => Value::Null,
            cell if key == "choices" => parse(cell).unwrap_or_else(|_| cell.into()),
            cell if LISTS.contains(&key.as_str()) => listed(key, cell)?,
            cell if chats.contains(&key.as_str()) => chat(key, cell)?.unwrap_or_else(|| cell.into()),
            cell => Value::from(cell),
        };
        row.insert(key.clone(), value);
    }
    Ok(Value::Object(row))
}

/// What a cell in the column `key` is the JSON text of.
fn listed(key: &str, cell: &str) -> Result<Value, Fault> {
    let expected = "the JSON text of a list (json.dumps; pandas writes Python's words)";
    parse(cell).map_err(|fault| Fault::Value { key: key.into(), found: fault.to_string(), expected })
}

/// The list of messages that `cell` is the JSON text of. Other lists are text to learn, such as calls of functions.
///
/// # Errors
/// A cell that begins as such a list and is no JSON: one that was cut, or Python's words for a list, which pandas writes.
fn chat(key: &str, cell: &str) -> Result<Option<Value>, Fault> {
    let begins = || {
        let message = cell.trim_start().strip_prefix('[')?.trim_start().strip_prefix('{')?.trim_start();
        let key = message.strip_prefix(['"', '\''])?;
        Some(["role", "content"].into_iter().any(|name| key.strip_prefix(name).is_some_and(|rest| rest.starts_with(['"', '\'']))))
    };
    if !cell.trim_start().starts_with('[') {
        return Ok(None);
    }
    let list = match listed(key, cell) {
        Ok(list) => list,
        Err(fault) if begins() == Some(true) => return Err(fault),
        Err(_) => return Ok(None),
    };
    let is_chat = list.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(|message| message.get("role").is_some()));
    Ok(is_chat.then_some(list))
}

fn fault_of(error: &csv::Error) -> Fault {
    match error.kind() {
        ErrorKind::Utf8 { err, .. } => Fault::NotUtf8 { at: err.valid_up_to() + 1 },
        _ => Fault::Table { format: "CSV", what: error.to_string() },
    }
}
