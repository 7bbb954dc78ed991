//! Data sets by their name on the Hugging Face Hub (`HuggingFaceH4/no_robots`), from the cache that other tools share, or over the network.
//!
//! The hub alone knows which files a data set has: a cache may hold a part of them, of a download that broke off or of a program that wanted
//! one file. So the hub's list is kept in the cache too. A data set of which all on the list is there is used without a connection; where there
//! is no list, the hub is asked once.

use std::path::{Path, PathBuf};

use bellows_chat::{files, in_part};
use hf_hub::{Cache, RepoType};

use crate::hub::{Answer, Hub, HubError, NEWEST, Named, split_id};

const SPLITS: [&str; 3] = ["train", "valid", "test"];
/// Files of other names are none of rows.
const ROWS: [&str; 4] = ["jsonl", "json", "csv", "parquet"];
/// Of a data set with a million files.
const MAX_LIST_BYTES: u64 = 256 << 20;

/// `data` as a path that [`bellows_chat::Splits::open`] takes: itself where it is a directory or has the ending of a file, else the files of the
/// hub's data set `owner/name`, or of its folder `owner/name/folder`; of those of single answers and of pairs the ones that `pairs` says are meant.
/// `announce` gets a line before each download, and one if the cache may lack something.
///
/// # Errors
/// See [`HubError`].
pub fn locate_data(data: &str, pairs: Option<bool>, offline: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    let path = PathBuf::from(data);
    match parse(data) {
        Some((name, folder)) if !path.exists() => {
            fetch(&Hub::from_env(offline), Named { kind: RepoType::Dataset, name }, Wanted { folder, pairs }, announce)
        }
        _ => Ok(path),
    }
}

/// What of a data set.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    folder: &'a str,
    pairs: Option<bool>,
}

/// `owner/name` and the folder behind it, if `data` may name such.
fn parse(data: &str) -> Option<(&str, &str)> {
    if Path::new(data).extension().is_some_and(|ext| ext == "txt" || ROWS.iter().any(|rows| ext == *rows)) {
        return None;
    }
    split_id(data).map(|(name, folder)| (name, folder.unwrap_or_default()))
}

/// What the cache has of a data set.
enum Cached {
    /// These files, which are all that the hub has of what is wanted, in a snapshot.
    Whole(PathBuf, Vec<String>),
    /// These files, which may be all: the hub's list is not there.
    Perhaps(PathBuf, Vec<String>),
    /// Not this one, at least.
    Lacks(String),
}

impl Cached {
    fn of(snapshot: Option<PathBuf>, wanted: Wanted<'_>) -> Self {
        let nothing = || Self::Lacks("the training rows".into());
        let Some(snapshot) = snapshot else { return nothing() };
        let Some(names) = known_files(&snapshot) else {
            let found = chosen(&listed(&snapshot, ""), wanted).filter(|found| in_part(found).is_none());
            return found.map_or_else(nothing, |found| Self::Perhaps(snapshot, found));
        };
        let Some(wanted) = chosen(&names, wanted) else { return nothing() };
        let missing = wanted.iter().find(|name| !snapshot.join(name).exists()).cloned();
        missing.map_or_else(|| Self::Whole(snapshot, wanted), Self::Lacks)
    }
}

fn fetch(hub: &Hub, named: Named<'_>, wanted: Wanted<'_>, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    match Cached::of(Cache::new(hub.cache.clone()).repo(named.repo(NEWEST)).get(""), wanted) {
        Cached::Whole(snapshot, found) => Ok(place(&snapshot, wanted.folder, &found)),
        Cached::Lacks(file) if hub.offline => {
            let place = hub.cache.join(named.repo(NEWEST).folder_name());
            Err(HubError::NotCached { repo: named.name.into(), file, place })
        }
        Cached::Lacks(_) => download(hub, named, wanted, hub.ask(named, NEWEST)?, announce),
        Cached::Perhaps(snapshot, found) => {
            let why = if hub.offline {
                "offline".to_owned()
            } else {
                // Of the same commit: a newer one may have other rows.
                let commit = snapshot.file_name().unwrap_or_default().to_string_lossy();
                match hub.ask(named, &commit) {
                    Ok(answer) => return download(hub, named, wanted, answer, announce),
                    Err(error) => error.to_string(),
                }
            };
            announce(&format!("{} is used as it lies in the cache, and the hub may have more of it ({why})", named.name));
            Ok(place(&snapshot, wanted.folder, &found))
        }
    }
}

/// Gets what the cache lacks of the files that the hub has named.
fn download(
    hub: &Hub,
    named: Named<'_>,
    wanted: Wanted<'_>,
    (api, source, info): Answer,
    announce: &mut dyn FnMut(&str),
) -> Result<PathBuf, HubError> {
    let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    let Some(chosen) = chosen(&names, wanted) else {
        let folders: std::collections::BTreeSet<&str> = names.iter().filter_map(|name| Some(name.split_once('/')?.0)).collect();
        let folders = folders.into_iter().map(|folder| format!("{}/{folder}", named.name)).collect::<Vec<_>>().join(", ");
        let also = if folders.is_empty() { String::new() } else { format!("; its folders are {folders}") };
        let file = format!("train.jsonl, train-*.parquet or single file of rows{also}");
        return Err(HubError::NoFile { repo: named.name.into(), file });
    };
    let snapshot = Cache::new(hub.cache.clone()).repo(named.repo(NEWEST)).pointer_path(&info.sha);
    // Before the first file comes: where the download breaks off, the list tells what is missing.
    remember(&snapshot, &names);
    for name in &chosen {
        if !snapshot.join(name).exists() {
            announce(&format!("downloading {name} of {}", named.name));
            hub.get(&api, &source, named, &snapshot, name, announce)?;
        }
    }
    Ok(place(&snapshot, wanted.folder, &chosen))
}

/// Where the hub's list of a snapshot's files is kept, in JSON.
fn list_of(snapshot: &Path) -> PathBuf {
    let commit = snapshot.file_name().unwrap_or_default();
    snapshot.ancestors().nth(2).unwrap_or(snapshot).join(".bellows").join(commit).with_extension("json")
}

/// The names of all files under a snapshot's commit, if the hub was asked for them.
fn known_files(snapshot: &Path) -> Option<Vec<String>> {
    let bytes = bellows_runs::read_bounded(&list_of(snapshot), MAX_LIST_BYTES).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Keeps these names. Without them the hub is asked again.
fn remember(snapshot: &Path, names: &[String]) {
    let list = list_of(snapshot);
    let keep = || -> Result<(), String> {
        let json = serde_json::to_vec(names).map_err(|e| e.to_string())?;
        list.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|e| e.to_string())?;
        bellows_runs::write_atomic(&list, &json).map_err(|e| e.to_string())
    };
    if let Err(e) = keep() {
        tracing::debug!("{}: {e}", list.display());
    }
}

/// Of all files, those with rows to learn from, to watch and to test with: the splits of the folder, or its one file of rows.
fn chosen(names: &[String], Wanted { folder, pairs }: Wanted<'_>) -> Option<Vec<String>> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let inside: Vec<String> = names.iter().filter_map(|name| name.strip_prefix(&prefix)).map(String::from).collect();
    let whole = |name: &String| format!("{prefix}{name}");
    if files(&inside, "train", pairs).is_empty() {
        let of_rows = |name: &&String| !name.contains('/') && ROWS.iter().any(|ext| name.ends_with(&format!(".{ext}")));
        let rows: Vec<&String> = inside.iter().filter(of_rows).collect();
        return if let [one] = rows.as_slice() { Some(vec![whole(one)]) } else { None };
    }
    Some(SPLITS.iter().flat_map(|split| files(&inside, split, pairs)).map(|name| whole(&name)).collect())
}

/// Where the rows are: the folder of the splits, or the one file.
fn place(snapshot: &Path, folder: &str, wanted: &[String]) -> PathBuf {
    match wanted {
        [one] if files(&[one.strip_prefix(folder).unwrap_or(one).trim_start_matches('/').to_owned()], "train", None).is_empty() => {
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
        let chosen = |names: &[String], folder| chosen(names, Wanted { folder, pairs: None });
        let wanted = chosen(&pieces, "").unwrap();
        assert_eq!(wanted, [2, 1, 3].map(|i: usize| pieces[i].clone()));
        assert!(in_part(&wanted).is_none() && in_part(&wanted[1..]).is_some());
        let hashed = names(&["data/train-00000-of-00002-0a1b2c.parquet", "data/train-00001-of-00002-3d4e5f.parquet"]);
        assert!(in_part(&hashed).is_none() && in_part(&hashed[..1]).is_some());
        assert_eq!(chosen(&names(&["a.md", "alpaca.json"]), ""), Some(names(&["alpaca.json"])));
        assert_eq!(chosen(&names(&["a.json", "b.json"]), ""), None);
        let folders = names(&["en/train.jsonl", "de/train.jsonl", "de/validation.jsonl"]);
        assert_eq!(chosen(&folders, "de"), Some(folders[1..].to_vec()));
        assert_eq!(chosen(&folders, ""), None);
        let kinds = names(&["data/train_prefs-0-of-1.parquet", "data/train_sft-0-of-1.parquet", "data/test_sft-0-of-1.parquet"]);
        assert_eq!(super::chosen(&kinds, Wanted { folder: "", pairs: Some(false) }), Some(kinds[1..].to_vec()));
        let dir = Path::new("s");
        assert_eq!(place(dir, "de", &folders[1..]), dir.join("de"));
        assert_eq!(place(dir, "", &names(&["alpaca.json"])), dir.join("alpaca.json"));
        assert_eq!(place(dir, "de", &names(&["de/train.jsonl"])), dir.join("de"));
    }
}
