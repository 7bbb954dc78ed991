//! The files of a data set: what is learnt, watched and tested.

use std::collections::{BTreeMap, BTreeSet};
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
/// What is behind the names of splits where a data set has some of single answers and some of pairs: `train_sft`, `train_prefs`.
const KINDS: [&str; 2] = ["_sft", "_prefs"];

impl Splits {
    /// Opens a file (all of it to train on), or a folder with `train.jsonl` and, if they are there, `valid.jsonl` and `test.jsonl` (or `.json`,
    /// `.csv`, `.parquet`, `.txt`; `validation` for `valid`), or with pieces as the hub has them: `train-00000-of-00002.parquet`, there or in
    /// the folder `data`. Of a data set with `train_sft` and `train_prefs`, [`ReadOptions::pairs`] says which are meant. In shards a split is a folder
    /// of them; beside such a `train` the others may be files.
    ///
    /// # Errors
    /// [`Fault::Empty`] for a folder without `train`, [`Fault::Splits`] if it has only splits of other names, [`Fault::Pieces`] if one is not whole, and the
    /// errors of [`Dataset::open`].
    pub fn open(path: &Path, options: &ReadOptions) -> Result<Self, ChatError> {
        if !path.is_dir() || Shards::is(path) {
            return Ok(Splits { train: vec![Dataset::open(path, options)?], valid: Vec::new(), test: Vec::new() });
        }
        let names = names(path)?;
        if Shards::is(&path.join("train")) {
            let open = |folders: &[&str]| -> Result<Vec<Dataset>, ChatError> {
                // One without its index is named, not left out.
                let there = |folder: &PathBuf| Shards::is(folder) || Shards::lacks_index(folder);
                let mut found: Vec<PathBuf> = folders.iter().map(|folder| path.join(folder)).filter(there).collect();
                if found.is_empty() {
                    found.extend(of_kind(&names, folders[0], "").into_iter().map(|name| path.join(name)));
                }
                found.iter().map(|found| Dataset::open(found, options)).collect()
            };
            return Ok(Splits { train: open(&["train"])?, valid: open(&["valid", "validation"])?, test: open(&["test"])? });
        }
        let kind = kind(&names, options.pairs);
        let open = |split: &str| -> Result<Vec<Dataset>, ChatError> {
            let files = kind.map(|kind| of_kind(&names, split, kind)).unwrap_or_default();
            if let Some((file, there, count)) = in_part(&files) {
                return Err(Fault::Pieces { file, there, count }.in_file(path));
            }
            files.into_iter().map(|name| Dataset::open(&path.join(name), options)).collect()
        };
        let train = open("train")?;
        if train.is_empty() && Shards::lacks_index(path) {
            return Ok(Splits { train: vec![Dataset::open(path, options)?], valid: Vec::new(), test: Vec::new() });
        }
        if train.is_empty() {
            let found = named_train(&names);
            if found.is_empty() {
                let expected = "train.jsonl (or .json, .csv, .parquet, .txt) in this folder";
                return Err(Fault::Empty { expected }.in_file(path));
            }
            let expected = match options.pairs {
                Some(true) => "`train` or `train_prefs`",
                Some(false) => "`train` or `train_sft`",
                None => "`train`",
            };
            return Err(Fault::Splits { found: found.join(", "), expected }.in_file(path));
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
/// pieces. Of splits of single answers and of pairs they are those that are meant ([`ReadOptions::pairs`]); of both where that is not known, and
/// of what there is where it lacks them.
pub fn files(names: &[String], split: &str, pairs: Option<bool>) -> Vec<String> {
    let kinds = kind(names, pairs).map_or_else(|| kinds(names), |kind| vec![kind]);
    kinds.into_iter().flat_map(|kind| of_kind(names, split, kind)).collect()
}

/// What is behind the names of splits: nothing where there is a `train`, else the [`KINDS`] that there are rows to learn from of.
fn kinds(names: &[String]) -> Vec<&'static str> {
    let there = |kind: &&str| !of_kind(names, "train", kind).is_empty();
    if there(&"") { vec![""] } else { KINDS.into_iter().filter(there).collect() }
}

/// The one of [`kinds`] that is meant.
fn kind(names: &[String], pairs: Option<bool>) -> Option<&'static str> {
    let kinds = kinds(names);
    let wanted = pairs.map(|pairs| KINDS[usize::from(pairs)]);
    match kinds.as_slice() {
        &[one] if one.is_empty() || pairs.is_none() => Some(one),
        _ => wanted.filter(|kind| kinds.contains(kind)),
    }
}

/// The files of a split whose name has this behind it.
fn of_kind(names: &[String], split: &str, kind: &str) -> Vec<String> {
    let words: &[&str] = if split == "valid" { &["valid", "validation"] } else { &[split] };
    let words: Vec<String> = words.iter().map(|word| format!("{word}{kind}")).collect();
    let whole = |word: &String| EXTENSIONS.iter().map(|ext| format!("{word}.{ext}")).find(|name| names.contains(name));
    if let Some(name) = words.iter().find_map(whole) {
        return vec![name];
    }
    let piece = |name: &&String| split_of(name).is_some_and(|split| words.iter().any(|word| word == split));
    let mut pieces: Vec<String> = names.iter().filter(piece).cloned().collect();
    pieces.sort();
    pieces
}

/// The first file in pieces (`train-00000-of-00003.parquet`) of which some are missing: its name, those that are there, and how many it has.
pub fn in_part(names: &[String]) -> Option<(String, usize, usize)> {
    let piece = |name: &String| -> Option<((String, usize), String)> {
        let (stem, of) = name.rsplit_once('.')?.0.rsplit_once("-of-")?;
        // Older ones have a hash behind the number.
        let count = of.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        let (file, number) = stem.rsplit_once('-')?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| ((file.to_owned(), count), number.to_owned()))
    };
    let mut pieces: BTreeMap<(String, usize), BTreeSet<String>> = BTreeMap::new();
    for (file, number) in names.iter().filter_map(piece) {
        pieces.entry(file).or_default().insert(number);
    }
    pieces.into_iter().map(|((file, count), numbers)| (file, numbers.len(), count)).find(|(_, there, count)| there < count)
}

/// The name of the split that a file is, or is a piece of; None for files of no rows and those in other folders.
fn split_of(name: &str) -> Option<&str> {
    let file = name.strip_prefix("data/").unwrap_or(name);
    let (stem, ext) = file.rsplit_once('.')?;
    let split = stem.split('-').next()?;
    (!stem.contains('/') && EXTENSIONS.contains(&ext)).then_some(split)
}

/// The splits that are called `train_` and something.
fn named_train(names: &[String]) -> Vec<&str> {
    let splits: BTreeSet<&str> = names.iter().filter_map(|name| split_of(name)).filter(|split| split.starts_with("train_")).collect();
    splits.into_iter().collect()
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
