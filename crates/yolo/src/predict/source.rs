//! What to look at: an image, a folder, a pattern, a list, a film, a camera, or standard input.
//!
//! The order is the one that was given: a list's own, names in order (`2` before `10`) within a folder or pattern. Whether a file that is named really is an image
//! is found out when it is decoded; in a folder, files of other kinds are passed over.

use std::io::Read;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};

use super::output::{LONGEST, shortened};
use crate::data::header::{is_image, suffix};
use crate::data::{Levels, decode, natural};

/// Films that `ffmpeg` is asked for, by suffix.
const FILMS: [&str; 15] = ["asf", "avi", "gif", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "ogv", "ts", "webm", "wmv", "mjpeg", "flv"];
const LISTS: [&str; 2] = ["txt", "csv"];
/// Bytes that are put behind the name of a film: the number of a frame, one among films of one name.
const NUMBER: usize = 16;
/// What standard input and a list may hold.
const MAX_BYTES: u64 = 1 << 30;

/// One thing to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An image file.
    Image(PathBuf),
    /// The bytes of an image from standard input.
    Bytes(Vec<u8>),
    /// A film.
    Film(PathBuf),
    /// The camera of this number.
    Camera(u32),
    /// A stream that `ffmpeg` opens by its address.
    Stream(String),
}

impl Input {
    /// What it is called in what is told and written.
    pub fn name(&self) -> String {
        match self {
            Self::Image(path) | Self::Film(path) => path.display().to_string(),
            Self::Bytes(_) => "-".into(),
            Self::Camera(number) => format!("camera {number}"),
            Self::Stream(address) => address.clone(),
        }
    }

    /// The name of files that are written of it, without a suffix: with room for one, and of a film for the number of a frame.
    pub fn stem(&self) -> String {
        let of = |path: &Path, bytes| path.file_stem().map_or("image".into(), |s| shortened(&s.to_string_lossy(), bytes).to_owned());
        match self {
            Self::Image(path) => of(path, LONGEST),
            Self::Film(path) => of(path, LONGEST - NUMBER),
            Self::Bytes(_) => "stdin".into(),
            Self::Camera(number) => format!("camera{number}"),
            Self::Stream(_) => "stream".into(),
        }
    }

    /// Whether it has many frames.
    pub fn is_film(&self) -> bool {
        matches!(self, Self::Film(_) | Self::Camera(_) | Self::Stream(_))
    }
}

/// A source that names nothing to look at.
#[derive(Debug, thiserror::Error)]
#[error("source {source_text}: {reason}")]
pub struct SourceError {
    source_text: String,
    reason: String,
}

impl Coded for SourceError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// What `source` names; `-` reads `stdin`: an image, or the names of images line by line.
///
/// # Errors
/// Nothing there, or nothing that is an image.
pub fn expand(source: &str, stdin: &mut dyn Read) -> Result<Vec<Input>, SourceError> {
    let fault = |reason: String| SourceError { source_text: source.into(), reason };
    let path = Path::new(source);
    if source == "-" {
        let mut bytes = Vec::new();
        stdin.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|e| fault(e.to_string()))?;
        if decode(&bytes, "-", &Levels::default().alone()).is_ok() {
            return Ok(vec![Input::Bytes(bytes)]);
        }
        let text = String::from_utf8(bytes).map_err(|_| fault("neither an image nor names of images".into()))?;
        return some(lines(&text, Path::new("")), || fault("empty".into()));
    }
    if source.contains("://") {
        return Ok(vec![Input::Stream(source.into())]);
    }
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|e| fault(e.to_string()))?;
        let inputs = in_order(entries.filter_map(Result::ok).map(|e| e.path()));
        return some(inputs, || {
            fault("no image or film in this folder (folders in it are not searched: give a pattern, `dir/**/*.jpg`)".into())
        });
    }
    if path.exists() {
        if LISTS.contains(&suffix(path).as_str()) {
            let bytes = bellows_runs::read_bounded(path, MAX_BYTES).map_err(|e| fault(e.to_string()))?;
            let text = String::from_utf8(bytes).map_err(|_| fault("a list must be UTF-8 text".into()))?;
            return some(lines(&text, path.parent().unwrap_or(Path::new(""))), || fault("an empty list".into()));
        }
        if is_pipe(path) {
            let mut bytes = Vec::new();
            std::fs::File::open(path).and_then(|pipe| pipe.take(MAX_BYTES).read_to_end(&mut bytes)).map_err(|e| fault(e.to_string()))?;
            return Ok(vec![Input::Bytes(bytes)]);
        }
        return Ok(vec![file(path.into())]);
    }
    if source.contains(['*', '?', '[']) {
        let found = glob::glob(source).map_err(|e| fault(e.to_string()))?;
        return some(in_order(found.filter_map(Result::ok)), || fault("no image or film matches this pattern".into()));
    }
    match source.parse() {
        Ok(number) => Ok(vec![Input::Camera(number)]),
        Err(_) => Err(fault("no such file or folder".into())),
    }
}

/// What somebody else writes into while it is read: `<(cat a.jpg)`, /dev/stdin.
#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|info| info.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}

/// The images and films among these, in the order of their names.
fn in_order(paths: impl Iterator<Item = PathBuf>) -> Vec<Input> {
    let known = |path: &PathBuf| path.is_file() && (is_image(path) || FILMS.contains(&suffix(path).as_str()));
    let mut files: Vec<PathBuf> = paths.filter(known).collect();
    files.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()).then_with(|| a.cmp(b)));
    files.into_iter().map(file).collect()
}

fn some(inputs: Vec<Input>, fault: impl FnOnce() -> SourceError) -> Result<Vec<Input>, SourceError> {
    if inputs.is_empty() { Err(fault()) } else { Ok(inputs) }
}

fn file(path: PathBuf) -> Input {
    if FILMS.contains(&suffix(&path).as_str()) { Input::Film(path) } else { Input::Image(path) }
}

/// A name a line, relative to `folder`.
fn lines(text: &str, folder: &Path) -> Vec<Input> {
    let names = text.trim_start_matches('\u{feff}').lines().map(|line| line.trim().trim_matches(',')).filter(|line| !line.is_empty());
    names.map(|name| file(folder.join(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(inputs: &[Input], root: &Path) -> Vec<String> {
        let name = |i: &Input| i.name().replace(&format!("{}/", root.display()), "");
        inputs.iter().map(name).collect()
    }

    #[test]
    fn what_is_written_of_a_long_name_has_room_for_a_suffix() {
        let long = |bytes: usize| "n".repeat(bytes);
        let stem = |name: String| file(name.into()).stem();
        assert_eq!(stem(long(251) + ".jpg"), long(251));
        assert_eq!(stem(long(255)), long(251));
        assert_eq!([stem(long(252) + ".ts"), stem(long(235) + ".mp4")], [long(235), long(235)]);
    }

    #[test]
    fn every_form_of_source_keeps_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("sub")).unwrap();
        for name in ["b10.jpg", "b9.jpg", "a.png", "notes.md", "z.mp4", "sub/c.jpg"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        std::fs::write(root.join("list.txt"), "b9.jpg\n\nsub/c.jpg\na.png\n").unwrap();
        std::fs::write(root.join("marked.txt"), "\u{feff}b9.jpg\r\na.png\r\n").unwrap();
        let of = |source: &str, stdin: &[u8]| expand(source, &mut &*stdin).map(|i| names(&i, root)).map_err(|e| e.to_string());
        let at = |name: &str| root.join(name).display().to_string();
        assert_eq!(of(&at("a.png"), b"").unwrap(), ["a.png"]);
        assert_eq!(of(&root.display().to_string(), b"").unwrap(), ["a.png", "b9.jpg", "b10.jpg", "z.mp4"]);
        assert_eq!(of(&at("**/*.jpg"), b"").unwrap(), ["b9.jpg", "b10.jpg", "sub/c.jpg"]);
        assert_eq!(of(&at("list.txt"), b"").unwrap(), ["b9.jpg", "sub/c.jpg", "a.png"]);
        assert_eq!(of(&at("marked.txt"), b"").unwrap(), ["b9.jpg", "a.png"]);
        assert_eq!(of("-", b"x.jpg\ny.png\n").unwrap(), ["x.jpg", "y.png"]);
        assert_eq!(of("-", "\u{feff}x.jpg\n".as_bytes()).unwrap(), ["x.jpg"]);
        assert_eq!(of("rtsp://host/1", b"").unwrap(), ["rtsp://host/1"]);
        assert_eq!(of("0", b"").unwrap(), ["camera 0"]);
        let image = crate::data::image::tests::jpeg(32, 20);
        assert_eq!(expand("-", &mut &*image).unwrap(), [Input::Bytes(image.clone())]);
        for (source, part) in [("gone.jpg", "no such file"), (&at("*.bmp"), "matches"), (&at("sub"), ""), ("-", "empty")] {
            match of(source, b"") {
                Err(error) => assert!(error.contains(part), "{error}"),
                Ok(found) => assert_eq!((part, found), ("", vec!["sub/c.jpg".to_string()])),
            }
        }
    }
}
