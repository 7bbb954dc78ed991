//! Parquet, row by row, as the objects that the other formats hold.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use serde_json::Value;

use crate::Fault;

/// Cells compress well beyond the size of the file, so what they unpack to has a bound of its own.
const MAX_UNPACKED_BYTES: usize = 8 << 30;

/// The rows with their numbers, from 1.
pub(super) fn read(file: File) -> Result<Vec<(u64, Value)>, Fault> {
    // The library checks most of a damaged file, and indexes without a check in places.
    let outcome = catch_unwind(AssertUnwindSafe(|| read_rows(file)));
    outcome.unwrap_or_else(|_| Err(Fault::Table { format: "Parquet", what: "the file is damaged".into() }))
}

fn read_rows(file: File) -> Result<Vec<(u64, Value)>, Fault> {
    let refused = |error: parquet::errors::ParquetError| Fault::Table { format: "Parquet", what: error.to_string() };
    let reader = SerializedFileReader::new(file).map_err(refused)?;
    let mut unpacked = 0;
    let mut rows = Vec::new();
    for (row, number) in reader.get_row_iter(None).map_err(refused)?.zip(1..) {
        let row = row.map_err(refused)?.to_json_value();
        unpacked += size(&row);
        if unpacked > MAX_UNPACKED_BYTES {
            let (size, limit) = (unpacked as u64, MAX_UNPACKED_BYTES as u64);
            return Err(Fault::TooLarge { what: "bytes of the unpacked rows", size, limit });
        }
        rows.push((number, row));
    }
    Ok(rows)
}

/// Bytes that `value` takes in memory, about.
fn size(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}
