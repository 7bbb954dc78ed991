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

    /// Of an image of whose pixels something is kept, which nobody reads again: in place of a label file, when the system changed the file last (s and ns).
    /// No archive, no copy and no program sets that back, as they do the other time; more changes it than pixels, and what is kept is then made once too often.
    pub(crate) fn of_pixels(image: &Path) -> Self {
        std::fs::metadata(image).map_or(Self([u64::MAX; 4]), |info| {
            let ([length, modified], [s, ns]) = (seen(&info), changed(&info));
            Self([length, modified, s, ns])
        })
    }
}

#[cfg(unix)]
fn changed(info: &Metadata) -> [u64; 2] {
    use std::os::unix::fs::MetadataExt;
    [info.ctime() as u64, info.ctime_nsec() as u64]
}

/// It is not told.
#[cfg(not(unix))]
fn changed(_: &Metadata) -> [u64; 2] {
    [u64::MAX; 2]
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

#[cfg(test)]
pub(crate) mod tests {
    /// Writes other bytes over as many, and sets the time back, as archives and copies do.
    #[cfg(unix)]
    pub(crate) fn replace_unseen(file: &std::path::Path, bytes: &[u8]) {
        use std::os::unix::fs::MetadataExt;
        let before = std::fs::metadata(file).unwrap();
        assert_eq!(before.len(), bytes.len() as u64);
        std::fs::write(file, bytes).unwrap();
        let written = std::fs::File::options().write(true).open(file).unwrap();
        let time = |info: &std::fs::Metadata| (info.ctime(), info.ctime_nsec());
        // Clocks of file systems tick every few milliseconds.
        loop {
            written.set_modified(before.modified().unwrap()).unwrap();
            if time(&written.metadata().unwrap()) != time(&before) {
                break;
            }
        }
        assert_eq!(super::Stamp::of(file, None), super::Stamp::seen(&before));
    }
}
