//! Data sets written into shards, and the index of shards that others wrote.

use std::path::{Path, PathBuf};

use bellows_runs::{create_dir_all_synced, part_of, publish};
use bellows_shards::{Writer, write_index};

use crate::formats::{Dataset, ROW, Splits};
use crate::{ChatError, Fault};

/// In this order.
const SPLITS: [&str; 3] = ["train", "valid", "test"];

/// The splits that were written, with their numbers of rows and shards.
type Written = Vec<(&'static str, usize, usize)>;

/// Writes the rows of data sets into shards, `samples` rows each: those of each split into a folder of its name in `out`, which must be new or empty. The
/// folders get their names when all are complete. `progress` gets (done, total) rows. Returns the splits with their numbers of rows and shards.
///
/// # Errors
/// A folder that is not empty, a row that cannot be read, a disk that is full.
pub fn shard(splits: &Splits, out: &Path, samples: usize, progress: &mut dyn FnMut(usize, usize)) -> Result<Written, ChatError> {
    let all = SPLITS.into_iter().zip([&splits.train, &splits.valid, &splits.test]);
    // Within it: it may be a disk of its own. What a process that was killed has left of any split goes.
    let parts = all.map(|(name, sets)| Ok((name, sets, part_of(&out.join(name)).map_err(Fault::from)?)));
    let mut parts: Vec<(&'static str, &Vec<Dataset>, PathBuf)> = parts.collect::<Result<_, ChatError>>()?;
    parts.retain(|(_, sets, _)| !sets.is_empty());
    let is_new = begin(out)?;
    let mut named = Vec::new();
    let written = write(splits, &parts, samples, progress).and_then(|written| {
        // Nothing is read without the rows to train on, so they come last.
        for (name, _, part) in parts.iter().rev() {
            let done = publish(part, &out.join(name));
            // A rename that could not be flushed has been done all the same. What another process has put there meanwhile is its own.
            if !part.exists() {
                named.push(out.join(name));
            }
            done.map_err(Fault::from)?;
        }
        Ok(written)
    });
    if written.is_err() {
        // What cannot be removed now is removed by whoever writes here next.
        parts.iter().map(|(_, _, part)| part).chain(&named).for_each(|folder| drop(std::fs::remove_dir_all(folder)));
        if is_new {
            std::fs::remove_dir(out).ok();
        }
    }
    written
}

/// Makes the folder, if it is not there and empty but for parts that were never finished. Whether it was made.
fn begin(out: &Path) -> Result<bool, ChatError> {
    if !out.exists() {
        create_dir_all_synced(out).map_err(Fault::from)?;
        return Ok(true);
    }
    let is_part = |name: &str| SPLITS.iter().any(|split| name.starts_with(&format!(".{split}.tmp-")));
    let mut entries = std::fs::read_dir(out).map_err(|error| Fault::from(error).in_file(out))?;
    if entries.any(|entry| !entry.is_ok_and(|entry| is_part(&entry.file_name().to_string_lossy()))) {
        let fault = Fault::Setting { setting: "the target", found: "not empty".into(), expected: "a new or an empty folder" };
        return Err(fault.in_file(out));
    }
    Ok(false)
}

fn write(
    splits: &Splits,
    parts: &[(&'static str, &Vec<Dataset>, PathBuf)],
    samples: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Written, ChatError> {
    let (mut done, total) = (0, splits.all().map(Dataset::len).sum());
    let mut written = Vec::new();
    for (name, sets, folder) in parts {
        create_dir_all_synced(folder).map_err(Fault::from)?;
        let (mut writer, mut rows) = (Writer::new(folder, name, samples), 0);
        for set in *sets {
            for index in 0..set.len() {
                let text = set.value(index)?.to_string();
                writer.push(&format!("{rows:09}"), &[(ROW, text.as_bytes())]).map_err(Fault::from)?;
                (rows, done) = (rows + 1, done + 1);
                progress(done, total);
            }
            set.forget();
        }
        written.push((*name, rows, writer.finish().map_err(Fault::from)?));
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
