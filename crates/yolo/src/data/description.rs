//! What a data set is, however it was written down: its root, its splits, its classes, and what its owner allows.
//!
//! A path of it is used only after [`DataConfig::resolve`] has seen that it stays inside the dataset root or a folder that the user allowed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::DataError;
use super::sample_spec::SampleSpec;

/// Images of a split: a folder, a `.txt` list, or a COCO `.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    /// As written, absolute or relative.
    pub path: PathBuf,
    /// Of a COCO file, the folder that its file names are relative to, where it is not one of the usual.
    pub images: Option<PathBuf>,
}

impl Source {
    /// Whether it holds labels in the form of COCO.
    pub fn is_coco(&self) -> bool {
        self.path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
    }
}

impl<P: Into<PathBuf>> From<P> for Source {
    fn from(path: P) -> Self {
        Self { path: path.into(), images: None }
    }
}

/// A dataset description, its paths not yet resolved.
#[derive(Clone, Debug, Default)]
pub struct DataConfig {
    /// The file (or folder) that says all this.
    pub yaml: PathBuf,
    /// The dataset root.
    pub root: PathBuf,
    /// Folders, list files or COCO files with training images.
    pub train: Vec<Source>,
    /// The same for validation; empty when it is to be held out of `train`.
    pub val: Vec<Source>,
    /// The same for testing; may be empty.
    pub test: Vec<Source>,
    /// No `val` is named: every tenth training image, by a hash of its path, is kept for validation.
    pub hold_out: bool,
    /// Class names; their number is `nc`.
    pub names: Vec<String>,
    /// 3, or 1 for a network with one input channel.
    pub channels: u32,
    /// Present when the data is generated rather than collected.
    pub generator: Option<SampleSpec>,
    /// Training settings that suit this data set, below the user's own.
    pub settings: BTreeMap<String, Value>,
    /// How to obtain the data; text for a person, never executed.
    pub download: Option<String>,
    /// What its reader has to say about it: unknown keys, guesses.
    pub notes: Vec<String>,
    /// Folders outside the root that may be read too.
    pub allow_outside: Vec<PathBuf>,
}

/// Which images of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// `train`
    Train,
    /// `val`
    Val,
    /// `test`
    Test,
}

impl Split {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// Its key in the data.yaml.
    pub fn key(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

impl DataConfig {
    /// The folders and lists of a split; those of `train` where validation images are held out of them.
    pub fn sources(&self, split: Split) -> &[Source] {
        match split {
            Split::Val if !self.hold_out => &self.val,
            Split::Train | Split::Val => &self.train,
            Split::Test => &self.test,
        }
    }

    /// The splits that have images of their own: of two that name the same sources, the first.
    pub fn splits(&self) -> Vec<Split> {
        let mut splits: Vec<Split> = Vec::new();
        for split in Split::ALL {
            let sources = self.sources(split);
            let held_out = self.hold_out && split == Split::Val;
            if !sources.is_empty() && (held_out || splits.iter().all(|&s| self.sources(s) != sources)) {
                splits.push(split);
            }
        }
        splits
    }

    /// Number of classes.
    pub fn nc(&self) -> u32 {
        self.names.len() as u32
    }

    /// The one way from a path in a user's file to a path that may be opened: looked for in `base`, there without a leading `../` or `data/`
    /// (which tools write and leave out of their archives), then in the current directory; made real (links followed), and refused unless it
    /// lies in the dataset root or in a folder of `allow_outside`.
    ///
    /// # Errors
    /// [`DataError::Outside`], or [`DataError::Io`] when it does not exist.
    pub fn resolve(&self, base: &Path, path: &Path) -> Result<PathBuf, DataError> {
        self.find(base, path).map(|(_, real)| real)
    }

    /// The path that led there, and the same: links of a download have names where what they lead to has a hash.
    pub(crate) fn find(&self, base: &Path, path: &Path) -> Result<(PathBuf, PathBuf), DataError> {
        let joined = base.join(path);
        let shorter = path.strip_prefix("..").or_else(|_| path.strip_prefix("data")).ok().map(|rest| base.join(rest));
        let inside = |real: &PathBuf| {
            let folders = std::iter::once(&self.root).chain(&self.allow_outside);
            folders.filter_map(|folder| folder.canonicalize().ok()).any(|folder| real.starts_with(folder))
        };
        let mut outside = None;
        for candidate in [Some(&joined), shorter.as_ref()].into_iter().flatten() {
            match candidate.canonicalize() {
                Ok(real) if inside(&real) => return Ok((candidate.clone(), real)),
                Ok(real) => outside = outside.or(Some(real)),
                Err(_) => {}
            }
        }
        if let Some(real) = path.canonicalize().ok().filter(|real| path.is_relative() && inside(real)) {
            return Ok((path.into(), real));
        }
        match (outside, joined.canonicalize()) {
            (Some(path), _) => Err(DataError::Outside { path, root: self.root.clone() }),
            (None, Err(source)) => Err(DataError::Io { path: joined, source }),
            // It came into being just now.
            (None, Ok(path)) => Err(DataError::Outside { path, root: self.root.clone() }),
        }
    }
}
