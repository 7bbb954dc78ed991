//! Data sets: a file of rows, each read when it is asked for.
//!
//! JSONL, JSON arrays and text are indexed (16 to 24 bytes a row) and read from disk row by row, so that a file larger than memory is no
//! trouble; CSV and Parquet are held once. What a row means is told by its keys: OpenAI messages, ShareGPT, Alpaca, prompt and completion,
//! text, or token ids.

mod json;
mod parquet;
mod rows;
mod table;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::conversation::Example;
use crate::{ChatError, Fault};
use json::Span;

pub use rows::ReadOptions;

/// The longest row: far beyond any context, and small enough to hold.
const MAX_ROW_BYTES: u64 = 64 << 20;

/// The rows of one file.
#[derive(Debug)]
pub struct Dataset {
    path: PathBuf,
    options: ReadOptions,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// Read from the file when asked for; `json` or plain text.
    OnDisk { file: Mutex<File>, spans: Vec<Span>, json: bool },
    /// Of a table, with the line of each.
    InMemory(Vec<(u64, Value)>),
}

/// The data sets of a folder, or the one a file is.
#[derive(Debug)]
pub struct Splits {
    /// To learn from.
    pub train: Dataset,
    /// To watch.
    pub valid: Option<Dataset>,
    /// To judge by, at the end.
    pub test: Option<Dataset>,
}

const EXTENSIONS: [&str; 5] = ["jsonl", "json", "csv", "parquet", "txt"];

impl Splits {
    /// Opens a file (all of it to train on), or a folder with `train.jsonl` and, if they are there, `valid.jsonl` and `test.jsonl` (or
    /// `.json`, `.csv`, `.parquet`, `.txt`).
    ///
    /// # Errors
    /// [`Fault::Empty`] for a folder without `train`, and the errors of [`Dataset::open`].
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, ChatError> {
        if !path.is_dir() {
            return Ok(Splits { train: Dataset::open(path, options)?, valid: None, test: None });
        }
        let find = |split: &str| EXTENSIONS.iter().map(|ext| path.join(format!("{split}.{ext}"))).find(|file| file.is_file());
        let open = |split| find(split).map(|file| Dataset::open(&file, options)).transpose();
        let expected = "train.jsonl (or .json, .csv, .parquet, .txt) in this folder";
        let train = open("train")?.ok_or_else(|| Fault::Empty { expected }.in_file(path))?;
        Ok(Splits { train, valid: open("valid")?, test: open("test")? })
    }
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
            Rows::OnDisk { spans, .. } => spans.len(),
            Rows::InMemory(rows) => rows.len(),
        }
    }

    /// Whether there are none; never, once opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The line of the file (the row, for Parquet) on which row `index` begins, from 1; 0 for a row that does not exist.
    pub fn line(&self, index: usize) -> u64 {
        match &self.rows {
            Rows::OnDisk { spans, .. } => spans.get(index).map_or(0, |span| span.line),
            Rows::InMemory(rows) => rows.get(index).map_or(0, |row| row.0),
        }
    }

    /// Row `index`, from 0.
    ///
    /// # Errors
    /// Whatever is wrong with the row ([`Fault`]), with path and line.
    pub fn get(&self, index: usize) -> Result<Example, ChatError> {
        self.example(index).map_err(|fault| fault.on_line(&self.path, self.line(index)))
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Example, ChatError>> {
        (0..self.len()).map(|index| self.get(index))
    }

    fn example(&self, index: usize) -> Result<Example, Fault> {
        let missing = Fault::Empty { expected: "a row with this number" };
        match &self.rows {
            Rows::InMemory(rows) => rows::example(&rows.get(index).ok_or(missing)?.1, &self.options),
            Rows::OnDisk { file, spans, json } => {
                let text = read_span(file, *spans.get(index).ok_or(missing)?)?;
                if *json { rows::example(&json::parse(text.trim())?, &self.options) } else { Ok(Example::Text(text.trim_end().to_owned())) }
            }
        }
    }
}

fn read_span(file: &Mutex<File>, span: Span) -> Result<String, Fault> {
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
    let extension = path.extension().and_then(|ext| ext.to_str()).unwrap_or_default().to_ascii_lowercase();
    // Looked at before opening: opening a pipe would block for ever.
    let info = std::fs::metadata(path).map_err(|error| here(error.into()))?;
    if !info.is_file() {
        return Err(Fault::Open(bellows_runs::PathError::NotAFile { path: path.into() }).into());
    }
    let mut file = File::open(path).map_err(|error| here(error.into()))?;
    match extension.as_str() {
        "csv" => table::read(file, path).map(Rows::InMemory),
        "parquet" => parquet::read(file).map(Rows::InMemory).map_err(here),
        "txt" | "json" | "jsonl" => {
            let array = extension != "txt" && first_byte(&mut file).map_err(|error| here(error.into()))? == Some(b'[');
            let mut reader = BufReader::with_capacity(1 << 20, &file);
            let spans = if array {
                json::elements(&mut reader).map_err(|(line, fault)| fault.on_line(path, line))?
            } else {
                json::lines(&mut reader).map_err(|error| here(error.into()))?
            };
            Ok(Rows::OnDisk { file: Mutex::new(file), spans, json: extension != "txt" })
        }
        _ => Err(here(Fault::Setting {
            setting: "the extension",
            found: format!("\"{extension}\""),
            expected: "jsonl, json, csv, parquet or txt",
        })),
    }
}

/// The first byte that is no white space and no byte order mark. The file is rewound.
fn first_byte(file: &mut File) -> std::io::Result<Option<u8>> {
    let mut start = Vec::new();
    Read::by_ref(file).take(4096).read_to_end(&mut start)?;
    file.rewind()?;
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    Ok(text.iter().copied().find(|byte| !byte.is_ascii_whitespace()))
}
