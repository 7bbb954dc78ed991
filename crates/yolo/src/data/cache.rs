//! What a scan found, remembered in the user's cache folder (never in the dataset).
//!
//! A remembered file counts only while the size and the modification time of the image and of its label file are what they were. Times can lie
//! (archives, copies, network disks), so the contents of 64 files spread over the list are hashed as well (first and last 4 KiB): one
//! that differs under an unchanged size and time makes the whole memory worthless. A damaged cache costs a warning and a new scan, nothing else.
//!
//! Format, little-endian: magic, records, samples, then the SHA-256 of all that.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bellows_runs::{open_regular, write_atomic};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::bytes::{Reader, Writer};
use super::description::{DataConfig, Split};
use super::error::DataError;
use super::frame::Size;
use super::header::Header;
use super::labels::ParsedLabels;
use super::listing::Entry;
use super::record::{BadFile, Content, Record, Stamp};
use crate::boxes::Label;

/// Its number goes up with the format, and with what makes an image unusable: one that passed by another rule is looked at again.
const MAGIC: &[u8; 12] = b"BELLOWSCAN06";
const SAMPLES: usize = 64;
const SAMPLE_BYTES: u64 = 4096;

/// The cache file of one split of one dataset.
pub(crate) fn file_name(config: &DataConfig, split: Split, fraction: f64) -> String {
    let root = config.root.canonicalize().unwrap_or_else(|_| config.root.clone());
    let mut hash = Sha256::new();
    let sources = config.sources(split).iter().flat_map(|source| std::iter::once(&source.path).chain(&source.images));
    for part in std::iter::once(&root).chain(sources) {
        hash.update(part.to_string_lossy().as_bytes());
        hash.update([0]);
    }
    if config.hold_out {
        hash.update(split.key());
    }
    hash.update(fraction.to_le_bytes());
    let hex: String = hash.finalize().iter().take(12).map(|b| format!("{b:02x}")).collect();
    format!("{hex}.scan")
}

/// Remembered records by image path, letter by letter: comparing paths as paths takes several times as long.
type Records = HashMap<OsString, Record>;

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    records: Records,
    samples: Samples,
}

impl Cache {
    pub(crate) fn get(&self, image: &Path) -> Option<&Record> {
        self.records.get(image.as_os_str())
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// What `file` remembers; nothing if it is absent or damaged.
    pub(crate) fn load(file: &Path) -> Self {
        let mut bytes = Vec::new();
        match open_regular(file).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Self::default(),
            Err(e) => {
                tracing::warn!("{}: {e}; scanning again", file.display());
                return Self::default();
            }
        }
        if bytes.starts_with(&MAGIC[..10]) && !bytes.starts_with(MAGIC) {
            // Of another version of this program.
            return Self::default();
        }
        let Some((records, samples)) = parse(&bytes) else {
            tracing::warn!("{}: damaged; scanning again", file.display());
            return Self::default();
        };
        Self { records, samples }
    }

    /// The same of files that lie as `entries` say, which are sorted by their images; nothing if a sample does not match its files any more.
    pub(crate) fn checked(self, entries: &[Entry]) -> Self {
        let lies = |(image, digest): &&(PathBuf, [u8; 32])| {
            let Ok(at) = entries.binary_search_by(|entry| entry.image.cmp(image)) else { return false };
            let is_unchanged = self.get(image).is_some_and(|record| record.stamp == entries[at].look());
            is_unchanged && sample(&entries[at]).is_some_and(|now| now != *digest)
        };
        if let Some((image, _)) = self.samples.par_iter().find_first(lies) {
            tracing::warn!("{}: its content changed under an unchanged size and time; scanning everything again", image.display());
            return Self::default();
        }
        self
    }

    /// Writes `records` (of `entries`, same order) to `file`, whole or not at all.
    pub(crate) fn save(file: &Path, entries: &[Entry], records: &[Record]) -> Result<(), DataError> {
        let mut out = Writer(MAGIC.to_vec());
        out.u32(records.len() as u32);
        for (entry, record) in entries.iter().zip(records) {
            out.record(&entry.image, record);
        }
        // A file that changed under an unchanged stamp before this scan reused its record is not hidden: samples are checked at every load.
        let step = entries.len().div_ceil(SAMPLES).max(1);
        // A path that is no text would be another file's when it is read back.
        let sampled = entries.iter().step_by(step).filter_map(|entry| Some((entry.image.to_str()?, sample(entry)?)));
        let sampled: Vec<(&str, [u8; 32])> = sampled.collect();
        out.u32(sampled.len() as u32);
        for (path, digest) in sampled {
            out.text(path);
            out.0.extend(digest);
        }
        let digest = Sha256::digest(&out.0);
        out.0.extend(digest);
        let dir = file.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).map_err(DataError::io(dir))?;
        Ok(write_atomic(file, &out.0)?)
    }
}

/// SHA-256 over the first and the last 4 KiB of the image and of its label file; `None` where one is there and cannot be read.
fn sample(entry: &Entry) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    for path in [entry.image.clone(), entry.label_path()] {
        let mut bytes = Vec::new();
        let read = open_regular(&path).and_then(|mut f| {
            f.by_ref().take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
            let length = f.seek(SeekFrom::End(0))?;
            f.seek(SeekFrom::Start(length.saturating_sub(SAMPLE_BYTES)))?;
            f.take(SAMPLE_BYTES).read_to_end(&mut bytes)
        });
        if read.as_ref().is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound) {
            return None;
        }
        hash.update([u8::from(read.is_ok())]);
        hash.update(&bytes);
    }
    Some(hash.finalize().into())
}

impl Writer {
    fn record(&mut self, path: &Path, record: &Record) {
        self.text(&path.to_string_lossy());
        record.stamp.0.iter().for_each(|&v| self.u64(v));
        match &record.content {
            Err(bad) => {
                self.0.push(0);
                self.text(&bad.path.to_string_lossy());
                self.u32(bad.line.unwrap_or(0));
                self.text(&bad.reason);
            }
            Ok(content) => {
                self.0.push(1 + u8::from(content.labels.is_some()));
                self.u32(content.header.size.width);
                self.u32(content.header.size.height);
                self.0.push(u8::from(content.header.gray) | u8::from(content.header.deep) << 1);
                if let Some(parsed) = &content.labels {
                    self.u32(parsed.duplicates);
                    self.u32(parsed.zero_size);
                    self.u32(parsed.labels.len() as u32);
                    for label in &parsed.labels {
                        self.u32(label.class);
                        label.xywh.iter().for_each(|&v| self.f32(v));
                    }
                    self.u32(parsed.outlines.len() as u32);
                    for outline in &parsed.outlines {
                        self.u32(outline.len() as u32);
                        outline.as_flattened().iter().for_each(|&v| self.f32(v));
                    }
                }
            }
        }
    }
}

type Samples = Vec<(PathBuf, [u8; 32])>;

fn parse(bytes: &[u8]) -> Option<(Records, Samples)> {
    let (body, digest) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    let mut input = Reader(body.strip_prefix(MAGIC)?);
    if Sha256::digest(body)[..] != *digest {
        return None;
    }
    let count = input.u32()? as usize;
    let mut records = HashMap::with_capacity(count.min(body.len() / 40));
    for _ in 0..count {
        let (path, record) = input.record()?;
        records.insert(path, record);
    }
    let samples = (0..input.u32()?).map(|_| Some((PathBuf::from(input.text()?), input.take()?))).collect::<Option<_>>()?;
    input.0.is_empty().then_some((records, samples))
}

impl Reader<'_> {
    fn record(&mut self) -> Option<(OsString, Record)> {
        let path = OsString::from(self.text()?);
        let mut stamp = [0; 4];
        for v in &mut stamp {
            *v = self.u64()?;
        }
        let content = match self.take()? {
            [0] => Err(BadFile { path: PathBuf::from(self.text()?), line: Some(self.u32()?).filter(|&l| l > 0), reason: self.text()? }),
            [kind @ (1 | 2)] => {
                let size = Size { width: self.u32()?, height: self.u32()? };
                let [flags] = self.take()?;
                Ok(Content {
                    header: Header { size, gray: flags & 1 != 0, deep: flags & 2 != 0 },
                    labels: if kind == 2 { Some(self.labels()?) } else { None },
                })
            }
            _ => return None,
        };
        Some((path, Record { stamp: Stamp(stamp), content }))
    }

    fn labels(&mut self) -> Option<ParsedLabels> {
        let (duplicates, zero_size, count) = (self.u32()?, self.u32()?, self.u32()?);
        let mut labels = Vec::with_capacity((count as usize).min(self.0.len() / 20));
        for _ in 0..count {
            let class = self.u32()?;
            let mut xywh = [0.0; 4];
            for v in &mut xywh {
                *v = self.f32()?;
            }
            labels.push(Label { class, xywh });
        }
        let (count, mut outlines) = self.list(4)?;
        for _ in 0..count {
            let (points, mut outline) = self.list(8)?;
            for _ in 0..points {
                outline.push([self.f32()?, self.f32()?]);
            }
            outlines.push(outline);
        }
        (outlines.is_empty() || outlines.len() == labels.len()).then_some(ParsedLabels { labels, outlines, duplicates, zero_size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much is remembered of `image` once `change` has come over it.
    fn remembered(image: &Path, change: impl FnOnce()) -> usize {
        let file = image.with_file_name("memory.scan");
        let content = Err(BadFile { path: image.to_path_buf(), line: None, reason: String::new() });
        let entries = [Entry::of_files(image.to_path_buf(), None)];
        let record = Record { stamp: entries[0].look(), content };
        Cache::save(&file, &entries, &[record]).unwrap();
        change();
        Cache::load(&file).checked(&entries).len()
    }

    #[test]
    fn only_a_size_and_a_time_that_lie_make_it_worthless() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.jpg");
        std::fs::write(&image, "one").unwrap();
        let time = std::fs::metadata(&image).unwrap().modified().unwrap();
        let lie = || {
            std::fs::write(&image, "two").unwrap();
            std::fs::File::options().write(true).open(&image).unwrap().set_modified(time).unwrap();
        };
        assert_eq!(remembered(&image, lie), 0);
        assert_eq!(remembered(&image, || std::fs::write(&image, "longer").unwrap()), 1, "its time says so");
        assert_eq!(remembered(&image, || std::fs::remove_file(&image).unwrap()), 1);
    }

    #[test]
    fn what_passed_by_another_rule_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.jpg");
        std::fs::write(&image, "one").unwrap();
        let older = || {
            let file = image.with_file_name("memory.scan");
            let bytes = std::fs::read(&file).unwrap();
            let body = [&b"BELLOWSCAN05"[..], &bytes[MAGIC.len()..bytes.len() - 32]].concat();
            std::fs::write(&file, [&body[..], &Sha256::digest(&body)[..]].concat()).unwrap();
        };
        assert_eq!(remembered(&image, older), 0);
    }

    /// No file can be read by such a name, as one without permission cannot.
    #[test]
    fn what_cannot_be_read_is_no_sample() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a.jpg")).unwrap();
        let sample = |name: &str| sample(&Entry::of_files(dir.path().join(name), None));
        assert_eq!(sample("a.jpg"), None);
        assert!(sample("absent.jpg").is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_path_that_is_no_text_is_no_sample() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9.jpg"));
        // What its name is read back as is there, too, and looks the same from outside.
        let other = dir.path().join("caf\u{fffd}.jpg");
        std::fs::write(&image, "one").unwrap();
        let time = std::fs::metadata(&image).unwrap().modified().unwrap();
        let beside = || {
            std::fs::write(&other, "two").unwrap();
            std::fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        };
        assert_eq!(remembered(&image, beside), 1);
    }
}
