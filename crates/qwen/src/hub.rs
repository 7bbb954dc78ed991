//! Models by their name on the Hugging Face Hub (`Qwen/Qwen2.5-0.5B-Instruct`): from the cache that other tools share, or over the network.
//!
//! A model that is complete in the cache is used as it is, without a connection. Other programs leave out files that not every model has
//! (the tokenizer's description, with the chat template): the hub is asked once whether it has them, for without them a model is taught and
//! spoken to otherwise. Files that the hub keeps with their SHA-256 (weights, large tokenizers) are checked against it once they are here.

use std::collections::BTreeSet;
use std::env;
use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellows_exit::{Coded, Exit};
use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::hashes::hex;
use crate::model::ModelConfig;

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
pub(crate) const NEWEST: &str = "main";
/// Files that not every model has.
const OPTIONAL: [&str; 3] = ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"];
/// Of models with a million tensors.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Lost connections that a download is taken up again after.
const RETRIES: u32 = 3;
/// Without more of a file for so long the process that downloads it may have ended, so that its lock is tried again.
const PAUSE: Duration = Duration::from_secs(3);
/// Without more of a file for so long nobody waits for it any longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a model of the hub cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not in the cache, and no connection is allowed.
    #[error("offline, and {file} of {repo} is not in the cache (looked in {}): fetch it once without --offline and HF_HUB_OFFLINE", place.display())]
    NotCached {
        /// The model.
        repo: String,
        /// The first file that is missing.
        file: String,
        /// Where it would be.
        place: PathBuf,
    },
    /// The hub knows no such model or data set, or does not show it.
    #[error("{endpoint} has no {what} {repo} (or it is private: set HF_TOKEN), and there is no directory of that name here")]
    NoRepo {
        /// `model` or `data set`.
        what: &'static str,
        /// Its name.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// A model whose conditions were not accepted.
    #[error("{repo} is for those who accepted its conditions: do so at {endpoint}/{repo} and set HF_TOKEN")]
    Gated {
        /// The model.
        repo: String,
        /// The hub.
        endpoint: String,
    },
    /// A model without a file that every model needs.
    #[error("{repo} has no {file} on the hub")]
    NoFile {
        /// The model.
        repo: String,
        /// The file.
        file: String,
    },
    /// The network, or the hub's answer.
    #[error("cannot get {file} of {repo} from {endpoint}: {reason}")]
    Network {
        /// The model.
        repo: String,
        /// The file.
        file: String,
        /// The hub.
        endpoint: String,
        /// What happened.
        reason: String,
    },
    /// A file that is not what the hub has.
    #[error("{file} of {repo} arrived damaged and was removed: run the same again")]
    Damaged {
        /// The model.
        repo: String,
        /// The file.
        file: String,
    },
    /// A file of the cache.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Coded for HubError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// What the hub says of what it has under a name, and the ways to get it.
pub(crate) type Answer = (Api, ApiRepo, RepoInfo);

/// What the hub has under a name.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) kind: RepoType,
    /// `owner/name`.
    pub(crate) name: &'a str,
}

impl Named<'_> {
    pub(crate) fn repo(self, revision: &str) -> Repo {
        Repo::with_revision(self.name.into(), self.kind, revision.into())
    }

    fn what(self) -> &'static str {
        if matches!(self.kind, RepoType::Dataset) { "data set" } else { "model" }
    }
}

/// A hub, and the cache for what comes from it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Its address.
    pub endpoint: String,
    /// Directory of the cache.
    pub cache: PathBuf,
    /// Who asks, for private models.
    pub token: Option<String>,
    /// Never connect.
    pub offline: bool,
}

/// `model` as a path that [`Base::open`](crate::base::Base::open) takes: itself where it is a directory or a file, else that of the
/// hub's model `owner/name`, or of its file `owner/name/file.gguf`. `announce` gets a line before each download,
/// and one if the cache may lack something.
///
/// # Errors
/// See [`HubError`].
pub fn locate(model: &str, offline: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    find(model, offline, true, announce)
}

/// The same for who needs the model's description and tokenizer alone: of the hub's `owner/name` the weights are not downloaded.
///
/// # Errors
/// Those of [`locate`].
pub fn describe(model: &str, offline: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    find(model, offline, false, announce)
}

fn find(model: &str, offline: bool, weights: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
    let path = PathBuf::from(model);
    match parse(model) {
        Some((repo, file)) if !path.exists() => Hub::from_env(offline).fetch(repo, file, weights, announce),
        _ => Ok(path),
    }
}

/// `owner/name` and what is behind it, if `text` may name something of the hub.
pub(crate) fn split_id(text: &str) -> Option<(&str, Option<&str>)> {
    let word = |w: &str| !w.is_empty() && !w.starts_with('.') && w.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !text.split('/').all(word) {
        return None;
    }
    let (owner, rest) = text.split_once('/')?;
    match rest.split_once('/') {
        None => Some((text, None)),
        Some((name, behind)) => Some((&text[..owner.len() + 1 + name.len()], Some(behind))),
    }
}

/// `owner/name` and the .gguf file behind it, if `model` may name such.
fn parse(model: &str) -> Option<(&str, Option<&str>)> {
    split_id(model).filter(|(_, file)| file.is_none_or(|file| file.ends_with(".gguf")))
}

impl Hub {
    /// What the variables that all tools of the hub share say: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and
    /// `HF_HUB_OFFLINE`.
    pub fn from_env(offline: bool) -> Self {
        let var = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let dot_cache = || var("XDG_CACHE_HOME").map_or_else(|| env::home_dir().unwrap_or_default().join(".cache"), PathBuf::from);
        let home = var("HF_HOME").map_or_else(|| dot_cache().join("huggingface"), PathBuf::from);
        let token_file = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let token = var("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file).ok());
        let yes = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str());
        Self {
            endpoint: var("HF_ENDPOINT").as_deref().unwrap_or("https://huggingface.co").trim_end_matches('/').into(),
            cache: var("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: offline || var("HF_HUB_OFFLINE").is_some_and(yes),
        }
    }

    /// The directory of a model, with or without its weights, or the path of one of its files.
    ///
    /// # Errors
    /// See [`HubError`].
    pub fn fetch(&self, repo: &str, file: Option<&str>, weights: bool, announce: &mut dyn FnMut(&str)) -> Result<PathBuf, HubError> {
        let missing = match self.snapshot(repo, file.unwrap_or(CONFIG)) {
            Some(snapshot) => match first_missing(&snapshot, file, weights)? {
                None => {
                    if let Some(file) = file {
                        return Ok(snapshot.join(file));
                    }
                    self.complete(repo, &snapshot, announce);
                    return Ok(snapshot);
                }
                Some(missing) => (missing, snapshot),
            },
            None => (file.unwrap_or(CONFIG).to_owned(), self.cache.join(Repo::model(repo.into()).folder_name())),
        };
        if self.offline {
            let (file, place) = missing;
            return Err(HubError::NotCached { repo: repo.into(), file, place });
        }
        self.download(repo, NEWEST, file, weights, announce)
    }

    /// Gets what the hub has of the [`OPTIONAL`] files that a snapshot is without, and says so if that cannot be known.
    fn complete(&self, repo: &str, snapshot: &Path, announce: &mut dyn FnMut(&str)) {
        let settled = |name: &&str| snapshot.join(name).exists() || not_on_hub(snapshot).join(name).exists();
        let unknown = || OPTIONAL.into_iter().filter(|name| !settled(name)).collect::<Vec<_>>();
        if unknown().is_empty() {
            return;
        }
        let why = if self.offline {
            "offline".to_owned()
        } else {
            // Of the same commit: a newer one may have other weights.
            let commit = snapshot.file_name().unwrap_or_default().to_string_lossy();
            let Err(error) = self.download(repo, &commit, None, false, announce) else { return };
            error.to_string()
        };
        announce(&format!("{repo} is used from the cache without {}, which the hub may have ({why})", unknown().join(", ")));
    }

    /// The directory with the files of the newest known commit, if `file` is there.
    fn snapshot(&self, repo: &str, file: &str) -> Option<PathBuf> {
        let path = Cache::new(self.cache.clone()).model(repo.into()).get(file)?;
        path.ancestors().nth(file.split('/').count()).map(Path::to_path_buf)
    }

    fn download(
        &self,
        repo: &str,
        revision: &str,
        file: Option<&str>,
        weights: bool,
        announce: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, HubError> {
        let named = Named { kind: RepoType::Model, name: repo };
        let (api, model, info) = self.ask(named, revision)?;
        let snapshot = Cache::new(self.cache.clone()).model(repo.into()).pointer_path(&info.sha);
        let there = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        let mut get = |name: &str| -> Result<(), HubError> {
            if !there(name) {
                return Err(HubError::NoFile { repo: repo.into(), file: name.into() });
            }
            if snapshot.join(name).exists() {
                return Ok(());
            }
            announce(&format!("downloading {name} of {repo}"));
            self.get(&api, &model, named, &snapshot, name, announce)
        };
        if let Some(file) = file {
            get(file)?;
            return Ok(snapshot.join(file));
        }
        // The tokenizer comes after what not every model has, and the weights come last: where they are, everything is.
        let (optional, absent): (Vec<&str>, Vec<&str>) = OPTIONAL.into_iter().partition(|name| there(name));
        optional.into_iter().chain([CONFIG, TOKENIZER]).try_for_each(&mut get)?;
        remember(&not_on_hub(&snapshot), &absent);
        if !weights {
            return Ok(snapshot);
        }
        can_be_built(&snapshot.join(CONFIG))?;
        if there(WEIGHTS) || !there(INDEX) {
            get(WEIGHTS)?;
        } else {
            get(INDEX)?;
            shards(&snapshot.join(INDEX))?.iter().try_for_each(|shard| get(shard))?;
        }
        match first_missing(&snapshot, None, true)? {
            None => Ok(snapshot),
            Some(file) => {
                let reason = "the model was changed meanwhile: run the same again".into();
                Err(HubError::Network { repo: repo.into(), file, endpoint: self.endpoint.clone(), reason })
            }
        }
    }

    /// What the hub has under a name.
    pub(crate) fn ask(&self, named: Named<'_>, revision: &str) -> Result<Answer, HubError> {
        let builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()));
        let api = builder.with_endpoint(self.endpoint.clone()).with_token(self.token.clone()).build();
        let list = |e| self.why(named, "the list of files", e);
        let api = api.map_err(list)?;
        let source = api.repo(named.repo(revision));
        let info = source.info().map_err(list)?;
        Ok((api, source, info))
    }

    /// Downloads one file into the cache, going on from where a lost connection (or an earlier run) left it. One that another process is at is waited for.
    pub(crate) fn get(
        &self,
        api: &Api,
        source: &ApiRepo,
        named: Named<'_>,
        snapshot: &Path,
        file: &str,
        announce: &mut dyn FnMut(&str),
    ) -> Result<(), HubError> {
        let there = snapshot.join(file);
        let (mut tried, mut grown) = (0, None);
        let path = loop {
            // Who has brought it may not have compared it yet.
            if there.exists() {
                break there;
            }
            // It may have come between that look and the turn.
            let download = |_turn| if there.exists() { Ok(there.clone()) } else { source.download(file) };
            let error = match self.turn(api, &source.url(file), named).and_then(download) {
                Ok(path) => break path,
                Err(error) => error,
            };
            match &error {
                ApiError::LockAcquisition(lock) => {
                    let grown = grown.get_or_insert_with(|| {
                        announce(&format!("waiting for another process, which downloads {file} of {}", named.name));
                        (0, Instant::now())
                    });
                    wait(&there, &lock.with_extension("part"), grown);
                    if there.exists() || grown.1.elapsed() < PATIENCE {
                        continue;
                    }
                    return Err(self.why(named, file, error));
                }
                _ if tried == RETRIES => return Err(self.why(named, file, error)),
                ApiError::InvalidResume => self.forget_part(api, &source.url(file), named),
                // A part that is already as long as the file has no rest.
                ApiError::RequestError(e) if matches!(**e, ureq::Error::StatusCode(416)) => self.forget_part(api, &source.url(file), named),
                ApiError::RequestError(e) if passes(e) => std::thread::sleep(Duration::from_millis(300 << tried)),
                ApiError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {}
                _ => return Err(self.why(named, file, error)),
            }
            tried += 1;
        };
        let at = |path: &Path, e: std::io::Error| HubError::File { path: path.to_owned(), reason: e.to_string() };
        let blob = path.canonicalize().map_err(|e| at(&path, e))?;
        let name = blob.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        // Large files are kept under their SHA-256, 64 digits; small ones under a hash of git's, 40.
        if name.len() != 64 || sha256(&blob).map_err(|e| at(&blob, e))? == name {
            return Ok(());
        }
        [&blob, &path].into_iter().try_for_each(|p| std::fs::remove_file(p).map_err(|e| at(p, e)))?;
        Err(HubError::Damaged { repo: named.name.into(), file: file.into() })
    }

    /// Held by the one process that downloads a file. The library has a lock too, but takes it only after a request of its own, and does not look whether
    /// the file came while it waited. Other programs have that one alone, so it must be free as well.
    fn turn(&self, api: &Api, url: &str, named: Named<'_>) -> Result<File, ApiError> {
        let blob = self.blob(api, url, named)?;
        blob.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let lock = |extension: &str| -> Result<File, ApiError> {
            let path = blob.with_extension(extension);
            let file = File::create(&path)?;
            match file.try_lock() {
                Ok(()) => Ok(file),
                Err(TryLockError::WouldBlock) => Err(ApiError::LockAcquisition(path)),
                Err(TryLockError::Error(e)) => Err(e.into()),
            }
        };
        let turn = lock("turn")?;
        lock("lock")?;
        Ok(turn)
    }

    /// Where the cache keeps what has this address.
    fn blob(&self, api: &Api, url: &str, named: Named<'_>) -> Result<PathBuf, ApiError> {
        Ok(Cache::new(self.cache.clone()).repo(named.repo(NEWEST)).blob_path(api.metadata(url)?.etag()))
    }

    /// Removes what an earlier download left, so that the next one starts at the beginning.
    fn forget_part(&self, api: &Api, url: &str, named: Named<'_>) {
        let Ok(blob) = self.blob(api, url, named) else { return };
        let part = blob.with_extension("part");
        if let Err(e) = std::fs::remove_file(&part) {
            tracing::debug!("{}: {e}", part.display());
        }
    }

    fn why(&self, named: Named<'_>, file: &str, error: ApiError) -> HubError {
        let (repo, endpoint) = (named.name.to_owned(), self.endpoint.clone());
        let reason = match error {
            ApiError::RequestError(e) => match *e {
                // The hub does not tell strangers what is private from what is not.
                ureq::Error::StatusCode(401 | 404) => return HubError::NoRepo { what: named.what(), repo, endpoint },
                ureq::Error::StatusCode(403) => return HubError::Gated { repo, endpoint },
                e => e.to_string(),
            },
            ApiError::LockAcquisition(path) => format!("another process is at it ({} is locked) and gets no further", path.display()),
            e => e.to_string(),
        };
        HubError::Network { repo, file: file.into(), endpoint, reason }
    }
}

/// Waits for a file that another process downloads until it is `there`, or has not grown for [`PAUSE`]. `grown` is how many bytes the part in the cache
/// has, and since when.
fn wait(there: &Path, part: &Path, grown: &mut (u64, Instant)) {
    let begun = Instant::now();
    while !there.exists() && begun.max(grown.1).elapsed() < PAUSE {
        std::thread::sleep(Duration::from_millis(100));
        let bytes = std::fs::metadata(part).map_or(0, |info| info.len());
        if bytes != grown.0 {
            *grown = (bytes, Instant::now());
        }
    }
}

/// Whether a request may do better a moment later.
fn passes(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::StatusCode(status) => *status == 429 || *status >= 500,
        ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}

/// Where all tools of the hub keep, as empty files, the names of what a snapshot's commit does not have.
fn not_on_hub(snapshot: &Path) -> PathBuf {
    let commit = snapshot.file_name().unwrap_or_default();
    snapshot.ancestors().nth(2).unwrap_or(snapshot).join(".no_exist").join(commit)
}

/// Makes the empty files. Without them the hub is asked again.
fn remember(dir: &Path, names: &[&str]) {
    let made = std::fs::create_dir_all(dir).and_then(|()| names.iter().try_for_each(|name| File::create(dir.join(name)).map(drop)));
    if let Err(e) = made {
        tracing::debug!("{}: {e}", dir.display());
    }
}

/// That a model so described is built here, asked before its weights are downloaded.
fn can_be_built(config: &Path) -> Result<(), HubError> {
    let fail = |reason: String| HubError::File { path: config.to_owned(), reason };
    let text = std::fs::read_to_string(config).map_err(|e| fail(e.to_string()))?;
    ModelConfig::from_json(&text).map(drop).map_err(|e| fail(e.to_string()))
}

/// The first file of a model, with or without its weights (of `file` alone, if given), that is not in `dir`.
fn first_missing(dir: &Path, file: Option<&str>, weights: bool) -> Result<Option<String>, HubError> {
    let missing = |name: &&str| !dir.join(name).exists();
    if let Some(name) = file.map_or_else(|| [CONFIG, TOKENIZER].into_iter().find(missing), |file| Some(file).filter(missing)) {
        return Ok(Some(name.into()));
    }
    if file.is_some() || !weights || dir.join(WEIGHTS).exists() {
        return Ok(None);
    }
    if !dir.join(INDEX).exists() {
        return Ok(Some(WEIGHTS.into()));
    }
    Ok(shards(&dir.join(INDEX))?.into_iter().find(|shard| !dir.join(shard).exists()))
}

/// The files that an index names, each a plain name.
fn shards(index: &Path) -> Result<BTreeSet<String>, HubError> {
    let fail = |reason: String| HubError::File { path: index.to_owned(), reason };
    let bytes = bellows_runs::read_bounded(index, MAX_INDEX_BYTES).map_err(|e| fail(e.to_string()))?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| fail(e.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| fail("there is no weight_map".into()))?;
    let plain = |name: &str| !name.starts_with('.') && !name.contains(['/', '\\', ':']);
    let name =
        |v: &Value| v.as_str().filter(|name| plain(name)).map(String::from).ok_or_else(|| fail(format!("{v} is not the name of a file")));
    map.values().map(name).collect()
}

/// In hexadecimal digits.
fn sha256(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        assert_eq!(parse("Qwen/Qwen2.5-0.5B-Instruct"), Some(("Qwen/Qwen2.5-0.5B-Instruct", None)));
        assert_eq!(parse("o/r/q/m-q8_0.gguf"), Some(("o/r", Some("q/m-q8_0.gguf"))));
        for path in ["tiny", "./a/b", "../a", "/a/b", "a/", "a/b/c", "a//b.gguf", "a\\b/c", "a/../b.gguf", "~/m", "a b/c"] {
            assert_eq!(parse(path), None, "{path}");
        }
    }

    #[test]
    fn an_index_names_plain_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(INDEX);
        std::fs::write(&path, r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}"#).unwrap();
        assert_eq!(shards(&path).unwrap().into_iter().collect::<Vec<_>>(), ["m-1.safetensors", "m-2.safetensors"]);
        for bad in [r#"{"weight_map": {"a": "../../x"}}"#, r#"{"weight_map": {"a": 3}}"#, "{}", "["] {
            std::fs::write(&path, bad).unwrap();
            assert!(matches!(shards(&path), Err(HubError::File { .. })), "{bad}");
        }
    }
}
