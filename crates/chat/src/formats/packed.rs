//! Rows in shards: each is a sample of one file, `.json`, that holds what a line of JSONL does.

use bellows_shards::Shards;
use serde_json::Value;

use super::json;
use crate::Fault;

/// What a row is called behind its key.
pub(crate) const ROW: &str = "json";

/// Row `index` of `shards`, which must be one of them.
pub(super) fn row(shards: &Shards, index: usize) -> Result<Value, Fault> {
    if let Some(kind) = shards.kinds(index).find(|kind| kind.strip_suffix(ROW).is_some_and(|before| before.ends_with('.'))) {
        return Err(Fault::Merged { key: shards.key(index).into(), kind: kind.into() });
    }
    let bytes = shards.read(index, ROW)?.ok_or(Fault::Empty { expected: "a .json in each sample of shards" })?;
    let text = String::from_utf8(bytes).map_err(|error| Fault::NotUtf8 { at: error.utf8_error().valid_up_to() + 1 })?;
    json::parse(text.trim())
}
