//! Parquet, row by row, as the objects that the other formats hold.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use serde_json::Value;

use crate::Fault;

/// Cells compress well beyond the size of the file, so what they unpack to has a bound of its own.
const MAX_UNPACKED_BYTES: u64 = 16 << 30;

/// The rows with their numbers, from 1.
pub(super) fn read(file: File) -> Result<Vec<(u64, Value)>, Fault> {
    // The library checks most of a damaged file, and indexes without a check in places.
    let outcome = catch_unwind(AssertUnwindSafe(|| read_rows(file)));
    outcome.unwrap_or_else(|_| Err(Fault::Table { format: "Parquet", what: "the file is damaged".into() }))
}

fn read_rows(file: File) -> Result<Vec<(u64, Value)>, Fault> {
    let refused = |error: parquet::errors::ParquetError| Fault::Table { format: "Parquet", what: error.to_string() };
    let reader = SerializedFileReader::new(file).map_err(refused)?;
    let groups = reader.metadata().row_groups();
    let unpacked: u64 = groups.iter().map(|group| u64::try_from(group.total_byte_size()).unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    if unpacked > MAX_UNPACKED_BYTES {
        return Err(Fault::TooLarge { what: "bytes of the unpacked rows", size: unpacked, limit: MAX_UNPACKED_BYTES });
    }
    let rows = reader.get_row_iter(None).map_err(refused)?;
    rows.zip(1..).map(|(row, number)| Ok((number, row.map_err(refused)?.to_json_value()))).collect()
}
