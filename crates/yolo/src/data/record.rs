//! What a scan finds out about one image and its label file, and by what it knows that they have not changed.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::header::Header;
use super::labels::ParsedLabels;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct BadFile {
    /// The image or the label file.
    pub path: PathBuf,
    /// 1-based line of a label file.
    pub line: Option<u32>,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.reason),
            None => write!(f, "{}: {}", self.path.display(), self.reason),
        }
    }
}

/// Size and modification time (ns) of an image and of its label file; `u64::MAX` where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stamp(pub(crate) [u64; 4]);

impl Stamp {
    /// Of what is to be looked at again next time.
    pub(crate) const NEVER: Self = Self([0, 0, u64::MAX, 0]);

    pub(crate) fn of(image: &Path, label: Option<&Path>) -> Self {
        let look = |path: &Path| std::fs::metadata(path).map_or([u64::MAX; 2], |info| seen(&info));
        let ([a, b], [c, d]) = (look(image), label.map_or([u64::MAX; 2], look));
        Self([a, b, c, d])
    }

    /// Of an image that has been looked at, and has no label file of its own.
    pub(crate) fn seen(image: &Metadata) -> Self {
        let [length, modified] = seen(image);
        Self([length, modified, u64::MAX, u64::MAX])
    }
}

fn seen(info: &Metadata) -> [u64; 2] {
    let modified = info.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    [info.len(), modified.map_or(0, |d| d.as_nanos() as u64)]
}

/// What one image file and its label file hold; classes are not yet compared with the dataset's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) stamp: Stamp,
    pub(crate) content: Result<Content, BadFile>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Content {
    pub(crate) header: Header,
    /// `None` without a label file.
    pub(crate) labels: Option<ParsedLabels>,
}
