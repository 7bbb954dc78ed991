//! Data sets written into shards, and the index of shards that others wrote.

use std::path::Path;

use bellows_runs::StoreError;
use bellows_shards::{Writer, write_index};

use crate::formats::{Dataset, ROW, Splits};
use crate::{ChatError, Fault};

/// Writes the rows of data sets into shards, `samples` rows each: those of each split into a folder of its name in `out`, which must be new or empty. `progress` gets
/// (done, total) rows. Returns the splits with their numbers of rows and shards.
///
/// # Errors
/// A folder that is not empty, a row that cannot be read, a disk that is full.
pub fn shard(
    splits: &Splits,
    out: &Path,
    samples: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<(&'static str, usize, usize)>, ChatError> {
    let failed = |path: &Path, error| Fault::from(StoreError::new("write", path, error));
    std::fs::create_dir_all(out).map_err(|error| failed(out, error))?;
    if std::fs::read_dir(out).map_err(|error| Fault::from(error).in_file(out))?.next().is_some() {
        let fault = Fault::Setting { setting: "the target", found: "not empty".into(), expected: "a new or an empty folder" };
        return Err(fault.in_file(out));
    }
    let (mut done, total) = (0, splits.all().map(Dataset::len).sum());
    let mut written = Vec::new();
    for (name, sets) in [("train", &splits.train), ("valid", &splits.valid), ("test", &splits.test)] {
        if sets.is_empty() {
            continue;
        }
        let folder = out.join(name);
        std::fs::create_dir(&folder).map_err(|error| failed(&folder, error))?;
        let (mut writer, mut rows) = (Writer::new(&folder, name, samples), 0);
        for set in sets {
            for index in 0..set.len() {
                let text = set.value(index)?.to_string();
                writer.push(&format!("{rows:09}"), &[(ROW, text.as_bytes())]).map_err(Fault::from)?;
                (rows, done) = (rows + 1, done + 1);
                progress(done, total);
            }
        }
        written.push((name, rows, writer.finish().map_err(Fault::from)?));
    }
    Ok(written)
}

/// Writes the index of shards that another program wrote into their folder. `progress` gets (done, total) shards; returns how many samples there are.
///
/// # Errors
/// No shard, or one that is cut or damaged.
pub fn index_shards(folder: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<usize, ChatError> {
    Ok(write_index(folder, progress).map_err(Fault::from)?)
}
