//! Data sets: a file of rows, each read when it is asked for.
//!
//! JSONL, JSON arrays, CSV and text are indexed (24 bytes a row) and read from disk row by row, Parquet by its groups of rows, so that a file
//! larger than memory is no trouble. So is a folder of shards, in which a row is a `.json`. What a row means is told by its keys: OpenAI messages, ShareGPT, Alpaca, prompt and completion,
//! text, or token ids.

mod json;
mod packed;
mod parquet;
mod rows;
mod splits;
mod table;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bellows_shards::Shards;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::conversation::Example;
use crate::{ChatError, Fault};
use json::Span;
use parquet::Groups;

pub(crate) use packed::ROW;
pub use rows::ReadOptions;
pub use splits::{Splits, files, in_part};

/// The longest row: far beyond any context, and small enough to hold.
const MAX_ROW_BYTES: u64 = 64 << 20;

/// The rows of one file, or of one folder of shards.
#[derive(Debug)]
pub struct Dataset {
    path: PathBuf,
    options: ReadOptions,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// Read from a file of text, whose rows are found once.
    Lines { file: Mutex<File>, spans: Vec<Span>, form: Form },
    /// Each a file of its own in a folder of shards.
    Packed(Shards),
    /// Read from a Parquet file.
    Groups(Mutex<Groups>),
}

/// What the text of a row is.
#[derive(Debug)]
enum Form {
    Json,
    Plain,
    /// Cells of the keys of a header.
    Cells(Vec<String>),
}

impl Dataset {
    /// Opens a file and finds its rows. The format of the file is told by its extension, JSON from JSONL by the first character.
    ///
    /// # Errors
    /// [`Fault::Io`], [`Fault::Empty`], [`Fault::Json`] for an array that does not end, [`Fault::Table`]; rows are checked when they are
    /// read ([`Dataset::get`]).
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, ChatError> {
        let rows = find_rows(path)?;
        let dataset = Dataset { path: path.to_owned(), options: options.clone(), rows };
        if dataset.is_empty() { Err(Fault::Empty { expected: "at least one row" }.in_file(path)) } else { Ok(dataset) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rows.
    pub fn len(&self) -> usize {
        match &self.rows {
            Rows::Lines { spans, .. } => spans.len(),
            Rows::Packed(shards) => shards.len(),
            Rows::Groups(groups) => held(groups).len(),
        }
    }

    /// Whether there are none; never, once opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The line of the file (the row, for Parquet and shards) on which row `index` begins, from 1; 0 for a row that does not exist.
    pub fn line(&self, index: usize) -> u64 {
        match &self.rows {
            Rows::Lines { file, spans, form: Form::Cells(_) } => {
                spans.get(index).map_or(0, |span| table::first_line(span, read_span(file, Some(span)).unwrap_or_default().as_bytes()))
            }
            Rows::Lines { spans, .. } => spans.get(index).map_or(0, |span| span.line),
            Rows::Packed(_) | Rows::Groups(_) => {
                if index < self.len() {
                    index as u64 + 1
                } else {
                    0
                }
            }
        }
    }

    /// Row `index`, from 0.
    ///
    /// # Errors
    /// Whatever is wrong with the row ([`Fault`]), with path and line.
    pub fn get(&self, index: usize) -> Result<Example, ChatError> {
        self.example(index).map_err(|fault| fault.on_line(&self.path, self.line(index)))
    }

    /// Row `index`, from 0, as it is written: an object with keys; of a text file, its text under `text_key`.
    ///
    /// # Errors
    /// A row that cannot be read, with path and line.
    pub fn value(&self, index: usize) -> Result<Value, ChatError> {
        self.row(index).map_err(|fault| fault.on_line(&self.path, self.line(index)))
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Example, ChatError>> {
        // A damaged file may turn out shorter.
        (0..).map_while(|index| (index < self.len()).then(|| self.get(index)))
    }

    /// Gives back the memory of rows that are held for the next to be read, for whoever has read the last: Parquet unpacks a group of them at a time, and a
    /// data set may be in any number of files. One that is asked for is read again.
    pub fn forget(&self) {
        if let Rows::Groups(groups) = &self.rows {
            held(groups).forget();
        }
    }

    fn example(&self, index: usize) -> Result<Example, Fault> {
        match &self.rows {
            Rows::Lines { file, spans, form: Form::Plain } => Ok(Example::Text(read_span(file, spans.get(index))?.trim_end().to_owned())),
            _ => rows::example(&self.row(index)?, &self.options),
        }
    }

    fn row(&self, index: usize) -> Result<Value, Fault> {
        let (file, spans, form) = match &self.rows {
            Rows::Lines { file, spans, form } => (file, spans, form),
            Rows::Packed(shards) if index < shards.len() => return packed::row(shards, index),
            Rows::Packed(_) => return Err(MISSING),
            Rows::Groups(groups) => return held(groups).get(index)?.cloned().ok_or(MISSING),
        };
        let text = read_span(file, spans.get(index))?;
        match form {
            Form::Json => json::parse(text.trim()),
            Form::Plain => Ok(serde_json::json!({ &self.options.text_key: text.trim_end() })),
            Form::Cells(header) => table::row(header, &text, &self.options),
        }
    }
}

const MISSING: Fault = Fault::Empty { expected: "a row with this number" };

fn held(groups: &Mutex<Groups>) -> std::sync::MutexGuard<'_, Groups> {
    groups.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_span(file: &Mutex<File>, span: Option<&Span>) -> Result<String, Fault> {
    let span = span.ok_or(MISSING)?;
    if span.len > MAX_ROW_BYTES {
        return Err(Fault::TooLarge { what: "bytes of the row", size: span.len, limit: MAX_ROW_BYTES });
    }
    let mut bytes = vec![0; span.len as usize];
    {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(span.offset))?;
        file.read_exact(&mut bytes)?;
    }
    // A byte order mark is no part of the first row.
    if span.offset == 0 && bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| Fault::NotUtf8 { at: error.utf8_error().valid_up_to() + 1 })
}

fn find_rows(path: &Path) -> Result<Rows, ChatError> {
    let here = |fault: Fault| fault.in_file(path);
    if Shards::is(path) || Shards::lacks_index(path) {
        return Ok(Rows::Packed(Shards::open(path).map_err(Fault::from)?));
    }
    let extension = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default().to_ascii_lowercase();
    // Looked at before opening: opening a pipe would block for ever.
    let info = std::fs::metadata(path).map_err(|error| here(error.into()))?;
    if !info.is_file() {
        return Err(Fault::Open(bellows_runs::PathError::NotAFile { path: path.into() }).into());
    }
    let mut file = File::open(path).map_err(|error| here(error.into()))?;
    match extension.as_str() {
        "csv" => {
            let (header, spans) = table::index(&file, path)?;
            Ok(Rows::Lines { file: Mutex::new(file), spans, form: Form::Cells(header) })
        }
        "parquet" => Groups::open(file).map(|groups| Rows::Groups(Mutex::new(groups))).map_err(here),
        "txt" | "json" | "jsonl" => {
            let array = extension != "txt" && first_byte(&mut file).map_err(|error| here(error.into()))? == Some(b'[');
            let mut reader = BufReader::with_capacity(1 << 20, &file);
            let spans = if array {
                json::elements(&mut reader).map_err(|(line, fault)| fault.on_line(path, line))?
            } else {
                json::lines(&mut reader).map_err(|error| here(error.into()))?
            };
            if extension == "json" && !array && spans.len() > 1 {
                not_one_object(path, &spans[0]).map_err(here)?;
            }
            Ok(Rows::Lines { file: Mutex::new(file), spans, form: if extension == "txt" { Form::Plain } else { Form::Json } })
        }
        _ => Err(here(Fault::Setting {
            setting: "the extension",
            found: format!("\"{extension}\""),
            expected: "jsonl, json, csv, parquet or txt",
        })),
    }
}

/// Refuses a file, if it is no large one, that is one object over several lines, each of which would be read as a row.
fn not_one_object(path: &Path, first: &Span) -> Result<(), Fault> {
    if std::fs::metadata(path)?.len() > 1 << 26 {
        return Ok(());
    }
    let text = std::fs::read(path)?;
    let line = text.get(first.offset as usize..(first.offset + first.len) as usize).unwrap_or_default();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    if serde_json::from_slice::<IgnoredAny>(line).is_ok() {
        return Ok(());
    }
    let Ok(Value::Object(object)) = serde_json::from_slice(text) else { return Ok(()) };
    let lists: Vec<&String> = object.iter().filter(|(_, value)| value.is_array()).map(|(key, _)| key).collect();
    let of_lists = if let [key] = lists.as_slice() { format!(", whose `{key}` is a list") } else { String::new() };
    let found = format!("one object over several lines{of_lists}");
    Err(Fault::Value { key: "the file".into(), found, expected: "a list of rows, `[..]`, or one row a line" })
}

/// The first byte that is no white space and no byte order mark. The file is rewound.
fn first_byte(file: &mut File) -> std::io::Result<Option<u8>> {
    let mut start = Vec::new();
    Read::by_ref(file).take(4096).read_to_end(&mut start)?;
    file.rewind()?;
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    Ok(text.iter().copied().find(|byte| !byte.is_ascii_whitespace()))
}
