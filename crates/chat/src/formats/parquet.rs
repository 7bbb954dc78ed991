//! Parquet as the objects that the other formats hold: a group of rows at a time is in memory.

use std::fs::File;

use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::{Field, Row};
use serde_json::{Value, json};

use crate::Fault;
use crate::conversation::size;

/// Cells compress well beyond the size of the file, so what a group of rows unpacks to has a bound of its own.
const MAX_UNPACKED_BYTES: usize = 8 << 30;

/// A file whose rows are read when they are asked for.
pub(super) struct Groups {
    reader: SerializedFileReader<File>,
    /// Rows before each group, and at last all of them.
    starts: Vec<usize>,
    /// The group that was read last, and its rows.
    held: Option<(usize, Vec<Value>)>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("starts", &self.starts).finish_non_exhaustive()
    }
}

impl Groups {
    pub(super) fn open(file: File) -> Result<Self, Fault> {
        Fault::guarded(damaged, || {
            let reader = SerializedFileReader::new(file).map_err(refused)?;
            let mut starts = vec![0];
            for group in reader.metadata().row_groups() {
                let rows = usize::try_from(group.num_rows()).map_err(|_| damaged())?;
                let end = starts.last().copied().unwrap_or_default();
                starts.push(usize::checked_add(end, rows).ok_or_else(damaged)?);
            }
            Ok(Self { reader, starts, held: None })
        })
    }

    pub(super) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Row `index`; None behind the last. A file that is damaged ends where the damage is: it may promise any number of rows.
    pub(super) fn get(&mut self, index: usize) -> Result<Option<&Value>, Fault> {
        if index >= self.len() {
            return Ok(None);
        }
        let group = self.starts.partition_point(|&start| start <= index) - 1;
        if self.held.as_ref().is_none_or(|(held, _)| *held != group) {
            self.held = None;
            let promised = self.starts[group + 1] - self.starts[group];
            let rows = Fault::guarded(damaged, || read_group(&self.reader, group))
                .and_then(|rows| if rows.len() == promised { Ok(rows) } else { Err(damaged()) });
            let rows = rows.inspect_err(|_| self.starts.truncate(group + 1))?;
            self.held = Some((group, rows));
        }
        let place = index - self.starts[group];
        Ok(self.held.as_ref().and_then(|(_, rows)| rows.get(place)))
    }

    /// Gives back the memory of the group that was read last.
    pub(super) fn forget(&mut self) {
        self.held = None;
    }
}

fn read_group(reader: &SerializedFileReader<File>, group: usize) -> Result<Vec<Value>, Fault> {
    let (mut unpacked, mut rows) = (0, Vec::new());
    for row in reader.get_row_group(group).map_err(refused)?.get_row_iter(None).map_err(refused)? {
        let row = object(&row.map_err(refused)?);
        unpacked += size(&row);
        if unpacked > MAX_UNPACKED_BYTES {
            let (size, limit) = (unpacked as u64, MAX_UNPACKED_BYTES as u64);
            return Err(Fault::TooLarge { what: "bytes of a group of unpacked rows", size, limit });
        }
        rows.push(row);
    }
    Ok(rows)
}

fn object(row: &Row) -> Value {
    row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
}

/// Text may stand in bytes that nothing calls text, where the library's own conversion is base64. Bytes that are none are an object, which stands for no
/// text anywhere: null would be a field that is not given. A column has one type for all of its rows, so what is null in a group inside is what others
/// have there: arguments of other calls, which would be learnt.
fn value(field: &Field) -> Value {
    match field {
        Field::Bytes(bytes) => bytes.as_utf8().map_or_else(|_| json!({ "bytes": bytes.len() }), Value::from),
        Field::Group(row) => {
            let given = row.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
            given.map(|(name, field)| (name.clone(), value(field))).collect()
        }
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => map.entries().iter().map(|(key, field)| (name(key), value(field))).collect(),
        other => other.to_json_value(),
    }
}

/// A key of a map, which need not be text.
fn name(key: &Field) -> String {
    match value(key) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn damaged() -> Fault {
    Fault::Table { format: "Parquet", what: "the file is damaged".into() }
}

fn refused(error: ParquetError) -> Fault {
    Fault::Table { format: "Parquet", what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_forgotten_are_read_again() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/rows.parquet");
        let mut groups = Groups::open(File::open(path).unwrap()).unwrap();
        let row = groups.get(0).unwrap().cloned();
        assert!(row.is_some() && groups.held.is_some());
        groups.forget();
        assert!(groups.held.is_none());
        assert_eq!(groups.get(0).unwrap().cloned(), row);
    }
}
