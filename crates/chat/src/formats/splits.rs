//! The files of a data set: what is learnt, watched and tested.

use std::path::{Path, PathBuf};

use bellows_shards::Shards;

use super::Dataset;
use super::rows::ReadOptions;
use crate::{ChatError, Fault};

/// The data sets of a folder, or the one a file is. Each part may be in several files.
#[derive(Debug)]
pub struct Splits {
    /// To learn from.
    pub train: Vec<Dataset>,
    /// To watch.
    pub valid: Vec<Dataset>,
    /// To judge by, at the end.
    pub test: Vec<Dataset>,
}

const EXTENSIONS: [&str; 5] = ["jsonl", "json", "csv", "parquet", "txt"];

impl Splits {
    /// Opens a file (all of it to train on), or a folder with `train.jsonl` and, if they are there, `valid.jsonl` and `test.jsonl` (or `.json`,
    /// `.csv`, `.parquet`, `.txt`; `validation` for `valid`), or with pieces as the hub has them: `train-00000-of-00002.parquet`, there or in
    /// the folder `data`. In shards a split is a folder of them.
    ///
    /// # Errors
    /// [`Fault::Empty`] for a folder without `train`, and the errors of [`Dataset::open`].
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, ChatError> {
        if !path.is_dir() || Shards::is(path) {
            return Ok(Splits { train: vec![Dataset::open(path, options)?], valid: Vec::new(), test: Vec::new() });
        }
        if Shards::is(&path.join("train")) {
            let open = |split: &str| -> Result<Vec<Dataset>, ChatError> {
                let folder = path.join(split);
                // One without its index is named, not left out.
                let there = Shards::is(&folder) || Shards::lacks_index(&folder);
                if there { Ok(vec![Dataset::open(&folder, options)?]) } else { Ok(Vec::new()) }
            };
            let valid = [open("valid")?, open("validation")?].into_iter().flatten().collect();
            return Ok(Splits { train: open("train")?, valid, test: open("test")? });
        }
        let names = names(path)?;
        let open = |split: &str| -> Result<Vec<Dataset>, ChatError> {
            files(&names, split).into_iter().map(|name| Dataset::open(&path.join(name), options)).collect()
        };
        let train = open("train")?;
        if train.is_empty() && Shards::lacks_index(path) {
            return Ok(Splits { train: vec![Dataset::open(path, options)?], valid: Vec::new(), test: Vec::new() });
        }
        if train.is_empty() {
            let expected = "train.jsonl (or .json, .csv, .parquet, .txt) in this folder";
            return Err(Fault::Empty { expected }.in_file(path));
        }
        Ok(Splits { train, valid: open("valid")?, test: open("test")? })
    }

    /// The files to judge a model by: those that are there to test with, else those to watch, else those to learn from.
    pub fn judged(&self) -> &[Dataset] {
        [&self.test, &self.valid].into_iter().find(|split| !split.is_empty()).unwrap_or(&self.train)
    }

    /// All of its files.
    pub fn all(&self) -> impl Iterator<Item = &Dataset> {
        self.train.iter().chain(&self.valid).chain(&self.test)
    }
}

/// Of these names of files, `/` between folders, those of a split (`train`, `valid` or `test`) in order: the one file of that name, else its
/// pieces.
pub fn files(names: &[String], split: &str) -> Vec<String> {
    let words: &[&str] = if split == "valid" { &["valid", "validation"] } else { &[split] };
    let whole = |word: &&str| EXTENSIONS.iter().map(|ext| format!("{word}.{ext}")).find(|name| names.contains(name));
    if let Some(name) = words.iter().find_map(whole) {
        return vec![name];
    }
    let piece = |name: &&String| {
        let file = name.strip_prefix("data/").unwrap_or(name);
        let Some((stem, ext)) = file.rsplit_once('.') else { return false };
        let of_split = |word: &&str| stem.strip_prefix(*word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        !stem.contains('/') && EXTENSIONS.contains(&ext) && words.iter().any(of_split)
    };
    let mut pieces: Vec<String> = names.iter().filter(piece).cloned().collect();
    pieces.sort();
    pieces
}

/// The files in a folder and in its folder `data`.
fn names(dir: &Path) -> Result<Vec<String>, ChatError> {
    let mut names = Vec::new();
    for (folder, prefix) in [(dir.to_path_buf(), ""), (dir.join("data"), "data/")] {
        if !folder.is_dir() {
            continue;
        }
        let listed = std::fs::read_dir(&folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        for entry in listed.map_err(|error| Fault::from(error).in_file(&folder))? {
            let path: PathBuf = entry.path();
            if let (true, Some(name)) = (path.is_file(), entry.file_name().to_str()) {
                names.push(format!("{prefix}{name}"));
            }
        }
    }
    Ok(names)
}
