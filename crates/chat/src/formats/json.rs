//! JSON as data sets hold it: rows found by position, so that a file is never in memory, and values without keys written twice.

use std::fmt;
use std::io::BufRead;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::Fault;

/// Where a row lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) line: u64,
}

/// The value that `text` is.
pub(super) fn parse(text: &str) -> Result<Value, Fault> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        // The parser counts lines from the row's beginning; the file's line stands before the message.
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let what = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
        let place = if line > 1 { format!("line {line} of the row, column {column}") } else { format!("column {column}") };
        Fault::Json { what: format!("{what}, at {place}") }
    })
}

/// A value whose objects have every key once: of a key written twice, the last would win in silence.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(value) = list.next_element_seed(Strict)? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(Error::custom(format_args!("the key `{key}` is there twice")));
            }
            let value = map.next_value_seed(Strict)?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

/// The lines of a JSONL file that hold something, found without keeping them.
pub(super) fn lines(reader: &mut impl BufRead) -> std::io::Result<Vec<Span>> {
    let mut spans = Vec::new();
    let (mut offset, mut line) = (0, 1);
    loop {
        let (mut len, mut blank, mut ended) = (0, true, false);
        while !ended {
            let chunk = reader.fill_buf()?;
            if chunk.is_empty() {
                break;
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let used = end.map_or(chunk.len(), |at| at + 1);
            ended = end.is_some();
            blank &= chunk[..used].iter().all(u8::is_ascii_whitespace);
            len += used as u64;
            reader.consume(used);
        }
        if len == 0 {
            return Ok(spans);
        }
        if !blank {
            spans.push(Span { offset, len, line });
        }
        offset += len;
        line += 1;
    }
}

/// The elements of a file that is one JSON array, found without keeping them. Commas and brackets are counted; whether each element is JSON
/// shows when it is parsed.
pub(super) fn elements(reader: &mut impl BufRead) -> Result<Vec<Span>, (u64, Fault)> {
    let mut scan =
        Elements { offset: 0, line: 1, depth: 0, text: false, escaped: false, open: None, comma: false, done: false, spans: Vec::new() };
    loop {
        let chunk = reader.fill_buf().map_err(|error| (scan.line, error.into()))?;
        if chunk.is_empty() {
            return if scan.done { Ok(scan.spans) } else { Err((scan.line, broken("the file ends before its array does"))) };
        }
        for &byte in chunk {
            scan.step(byte).map_err(|what| (scan.line, broken(what)))?;
            scan.offset += 1;
            scan.line += u64::from(byte == b'\n');
        }
        let used = chunk.len();
        reader.consume(used);
    }
}

fn broken(what: &str) -> Fault {
    Fault::Json { what: what.to_owned() }
}

struct Elements {
    offset: u64,
    line: u64,
    /// Brackets that are open, the array's own among them.
    depth: u64,
    /// Inside a string, and after a backslash in it.
    text: bool,
    escaped: bool,
    /// Offset and line of the element that has begun.
    open: Option<(u64, u64)>,
    /// A comma has been read, and an element must follow.
    comma: bool,
    done: bool,
    spans: Vec<Span>,
}

impl Elements {
    fn step(&mut self, byte: u8) -> Result<(), &'static str> {
        if self.text {
            (self.text, self.escaped) = (self.escaped || byte != b'"', !self.escaped && byte == b'\\');
            return Ok(());
        }
        if byte.is_ascii_whitespace() || (self.offset < 3 && self.depth == 0 && [0xef, 0xbb, 0xbf].contains(&byte)) {
            return Ok(());
        }
        match (byte, self.depth) {
            _ if self.done => return Err("there is more after the array"),
            (b'[', 0) => {
                self.depth = 1;
                return Ok(());
            }
            (_, 0) => return Err("it does not begin with ["),
            (b',', 1) => {
                self.close()?;
                self.comma = true;
                return Ok(());
            }
            (b']', 1) => {
                if self.comma || self.open.is_some() {
                    self.close()?;
                }
                (self.depth, self.done) = (0, true);
                return Ok(());
            }
            _ => {}
        }
        if self.open.is_none() {
            self.open = Some((self.offset, self.line));
        }
        match byte {
            b'"' => self.text = true,
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth -= 1,
            _ => {}
        }
        if self.depth == 0 { Err("a bracket closes that was not opened") } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), &'static str> {
        let (offset, line) = self.open.take().ok_or("an element is missing between commas or brackets")?;
        self.spans.push(Span { offset, len: self.offset - offset, line });
        self.comma = false;
        Ok(())
    }
}
