//! Data sets by their name on the Hugging Face Hub (`HuggingFaceH4/no_robots`), from the cache that other tools share, or over the network.

use std::path::{Path, PathBuf};

use bellows_chat::files;
use hf_hub::{Cache, RepoType};

use crate::hub::{Hub, HubError, NEWEST, Named};

const SPLITS: [&str; 3] = ["train", "valid", "test"];
/// Files of other names are none of rows.
const ROWS: [&str; 4] = ["jsonl", "json", "csv", "parquet"];

/// `data` as a path that [`bellows_chat::Splits::open`] takes: itself where it is a directory or has the ending of a file, else the files of the
/// hub's data set `owner/name`, or of its folder `owner/name/folder`. `announce` gets a line before each download.
///
/// # Errors
/// See [`HubError`].
pub fn locate_data(data: &str, offline: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    let path = PathBuf::from(data);
    match parse(data) {
        Some((name, folder)) if !path.exists() => fetch(&Hub::from_env(offline), Named { kind: RepoType::Dataset, name }, folder, announce),
        _ => Ok(path),
    }
}

/// `owner/name` and the folder behind it, if `data` may name such.
fn parse(data: &str) -> Option<(&str, &str)> {
    let word = |w: &str| !w.is_empty() && !w.starts_with('.') && w.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let file = Path::new(data).extension().is_some_and(|ext| ext == "txt" || ROWS.iter().any(|rows| ext == *rows));
    if file || !data.split('/').all(word) {
        return None;
    }
    let (owner, rest) = data.split_once('/')?;
    match rest.split_once('/') {
        None => Some((data, "")),
        Some((name, folder)) => Some((&data[..owner.len() + 1 + name.len()], folder)),
    }
}

fn fetch(hub: &Hub, named: Named<'_>, folder: &str, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    let cache = || Cache::new(hub.cache.clone()).repo(named.repo(NEWEST));
    if let Some(snapshot) = cache().get("") {
        let there = listed(&snapshot, "");
        if let Some(found) = chosen(&there, folder).filter(|wanted| complete(wanted)) {
            return Ok(place(&snapshot, folder, &found));
        }
    }
    let repo = named.name.to_owned();
    if hub.offline {
        let place = hub.cache.join(named.repo(NEWEST).folder_name());
        return Err(HubError::NotCached { repo, file: "the training rows".into(), place });
    }
    let (api, source, info) = hub.ask(named, NEWEST)?;
    let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    let Some(wanted) = chosen(&names, folder) else {
        let folders: std::collections::BTreeSet<&str> = names.iter().filter_map(|name| Some(name.split_once('/')?.0)).collect();
        let folders = folders.into_iter().map(|folder| format!("{}/{folder}", named.name)).collect::<Vec<_>>().join(", ");
        let also = if folders.is_empty() { String::new() } else { format!("; its folders are {folders}") };
        return Err(HubError::NoFile { repo, file: format!("train.jsonl, train-*.parquet or single file of rows{also}") });
    };
    let snapshot = cache().pointer_path(&info.sha);
    for name in &wanted {
        if !snapshot.join(name).exists() {
            announce(&format!("downloading {name} of {}", named.name));
            hub.get(&api, &source, named, name)?;
        }
    }
    Ok(place(&snapshot, folder, &wanted))
}

/// Of all files, those with rows to learn from, to watch and to test with: the splits of the folder, or its one file of rows.
fn chosen(names: &[String], folder: &str) -> Option<Vec<String>> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let inside: Vec<String> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).map(String::from).collect();
    let whole = |name: &String| format!("{prefix}{name}");
    if files(&inside, "train").is_empty() {
        let of_rows = |name: &&String| !name.contains('/') && ROWS.iter().any(|ext| name.ends_with(&format!(".{ext}")));
        let rows: Vec<&String> = inside.iter().filter(of_rows).collect();
        return if let [one] = rows.as_slice() { Some(vec![whole(one)]) } else { None };
    }
    Some(SPLITS.iter().flat_map(|split| files(&inside, split)).map(|name| whole(&name)).collect())
}

/// Whether no piece of a file in pieces (`train-00000-of-00003.parquet`) is missing.
fn complete(names: &[String]) -> bool {
    let piece = |name: &String| -> Option<(String, usize)> {
        let (stem, of) = name.rsplit_once('.')?.0.rsplit_once("-of-")?;
        Some((stem.rsplit_once('-')?.0.to_owned(), of.parse().ok()?))
    };
    let pieces: Vec<_> = names.iter().filter_map(piece).collect();
    pieces.iter().all(|one| pieces.iter().filter(|other| *other == one).count() == one.1)
}

/// Where the rows are: the folder of the splits, or the one file.
fn place(snapshot: &Path, folder: &str, wanted: &[String]) -> PathBuf {
    match wanted {
        [one] if files(&[one.strip_prefix(folder).unwrap_or(one).trim_start_matches('/').to_owned()], "train").is_empty() => {
            snapshot.join(one)
        }
        _ => snapshot.join(folder),
    }
}

/// The files below `dir`, two folders deep.
fn listed(dir: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let name = |entry: &std::fs::DirEntry| format!("{prefix}{}", entry.file_name().to_string_lossy());
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() && prefix.matches('/').count() < 2 => listed(&path, &format!("{}/", name(&entry))),
            path if path.is_file() => vec![name(&entry)],
            _ => Vec::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        assert_eq!(parse("o/chats"), Some(("o/chats", "")));
        assert_eq!(parse("o/chats/en/small"), Some(("o/chats", "en/small")));
        for path in ["tiny", "./a/b", "../a", "/a/b", "a/", "data/chats.jsonl", "o/chats/train.parquet", "a b/c", "a/b.txt"] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn files_of_rows_are_chosen_by_their_names() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let pieces = names(&[
            "README.md",
            "data/train-00001-of-00002.parquet",
            "data/train-00000-of-00002.parquet",
            "data/test-00000-of-00001.parquet",
        ]);
        let wanted = chosen(&pieces, "").unwrap();
        assert_eq!(wanted, [2, 1, 3].map(|i: usize| pieces[i].clone()));
        assert!(complete(&wanted) && !complete(&wanted[1..]));
        assert_eq!(chosen(&names(&["a.md", "alpaca.json"]), ""), Some(names(&["alpaca.json"])));
        assert_eq!(chosen(&names(&["a.json", "b.json"]), ""), None);
        let folders = names(&["en/train.jsonl", "de/train.jsonl", "de/validation.jsonl"]);
        assert_eq!(chosen(&folders, "de"), Some(folders[1..].to_vec()));
        assert_eq!(chosen(&folders, ""), None);
        let dir = Path::new("s");
        assert_eq!(place(dir, "de", &folders[1..]), dir.join("de"));
        assert_eq!(place(dir, "", &names(&["alpaca.json"])), dir.join("alpaca.json"));
        assert_eq!(place(dir, "de", &names(&["de/train.jsonl"])), dir.join("de"));
    }
}
