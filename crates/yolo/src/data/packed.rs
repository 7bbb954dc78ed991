//! Images and label files in shards: the same files as in folders, and the same rules for them.
//!
//! A sample has one image and perhaps a label file (`txt`), as beside images in a folder. The image is its one file with an image's ending, or, where none has one, its one file
//! that is neither text nor JSON; other files are passed over. A sample that may have been made of several, or lacks what it was written with, because their names have dots, is
//! unusable. What it is called in messages is a path that leads through its shard: `train-000003.tar/000123.jpg`.

use std::path::{Path, PathBuf};

use bellows_shards::{ShardError, Shards};

use super::error::DataError;
use super::record::{BadFile, Content, Record, Stamp};
use super::{header, labels};

/// What a label file is called behind the key.
pub(crate) const LABELS: &str = "txt";

/// Writes the index of shards that another program wrote into their folder. `progress` gets (done, total) shards; returns how many samples there are.
///
/// # Errors
/// No shard, or one that is cut or damaged.
pub fn index_shards(folder: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<usize, DataError> {
    Ok(bellows_shards::write_index(folder, progress)?)
}

/// A split in shards.
#[derive(Debug)]
pub(crate) struct Packed {
    shards: Shards,
    /// Of each shard.
    stamps: Vec<Stamp>,
}

impl PartialEq for Packed {
    /// By what their indices say.
    fn eq(&self, other: &Self) -> bool {
        self.shards.mark() == other.shards.mark()
    }
}

impl Packed {
    /// Whether a folder holds shards with their index.
    pub(crate) fn is(folder: &Path) -> bool {
        Shards::is(folder)
    }

    /// Whether a folder holds shards whose index is not there.
    pub(crate) fn lacks_index(folder: &Path) -> bool {
        Shards::lacks_index(folder)
    }

    /// The shards of a folder.
    ///
    /// # Errors
    /// An index that is damaged or of other shards.
    pub(crate) fn open(folder: &Path) -> Result<Self, DataError> {
        let shards = Shards::open(folder)?;
        let stamps = shards.files().map(|file| Stamp::of(&file, None)).collect();
        Ok(Self { shards, stamps })
    }

    /// The files of the shards.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.shards.files()
    }

    /// What each sample's image is called.
    pub(crate) fn images(&self) -> impl Iterator<Item = PathBuf> {
        let files: Vec<PathBuf> = self.shards.files().collect();
        (0..self.shards.len()).map(move |i| {
            let kind = self.kind(i).map(|kind| format!(".{kind}")).unwrap_or_default();
            files[self.shards.shard(i)].join(format!("{}{kind}", self.shards.key(i)))
        })
    }

    /// The kind of a sample's image: the first, where it is unclear.
    fn kind(&self, i: usize) -> Option<&str> {
        let mut others = self.shards.kinds(i).filter(|kind| ![LABELS, "json"].contains(&ending(kind)));
        self.shards.kinds(i).find(|kind| is_image_kind(kind)).or_else(|| others.next())
    }

    /// Why it is unclear which files a sample has, if it is.
    fn unclear(&self, i: usize) -> Option<String> {
        let list = |of: &dyn Fn(&&str) -> bool| self.shards.kinds(i).filter(of).map(|kind| format!("`.{kind}`")).collect::<Vec<_>>();
        let images = list(&|kind| is_image_kind(kind));
        let unknown = list(&|kind| !is_image_kind(kind) && ![LABELS, "json"].contains(&ending(kind)));
        let lost = list(&|kind| kind.contains('.') && ending(kind) == LABELS);
        let what = match (&images[..], &unknown[..]) {
            ([_, _, ..], _) => format!("{} are all images", images.join(" and ")),
            ([], [_, _, ..]) => format!("{} may all be its image", unknown.join(" and ")),
            _ if !lost.is_empty() => format!("{} is not its label file, which is `.{LABELS}`", lost.join(" and ")),
            _ => return None,
        };
        Some(format!("{what}: names in shards are alike up to their first dot"))
    }

    /// What is wrong with the shards, a line each.
    pub(crate) fn faults(&self) -> &[String] {
        self.shards.faults()
    }

    /// Changes when the data do, or where they lie.
    pub(crate) fn mark(&self) -> u32 {
        self.shards.mark()
    }

    /// Changes when the shard of a sample does, or what the index has of its files there.
    pub(crate) fn stamp(&self, sample: u32) -> Stamp {
        let i = sample as usize;
        let [length, time, ..] = self.stamps[self.shards.shard(i)].0;
        // The place is spread over all bits: size and checksum fill them.
        let mix = |[at, size, crc]: [u64; 3]| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (size << 32 | crc);
        let mark = |kind: Option<&str>| kind.and_then(|kind| self.shards.indexed(i, kind)).map_or(u64::MAX, mix);
        Stamp([length, time, mark(self.kind(i)), mark(Some(LABELS))])
    }

    /// How many of these samples each shard has.
    pub(crate) fn sizes(&self, samples: &[u32]) -> Vec<usize> {
        let mut sizes = vec![0; self.stamps.len()];
        samples.iter().for_each(|&sample| sizes[self.shards.shard(sample as usize)] += 1);
        sizes
    }

    /// The bytes of a sample's image.
    ///
    /// # Errors
    /// A sample without one; a shard that is missing, cut or damaged.
    pub(crate) fn image(&self, sample: u32) -> Result<Vec<u8>, DataError> {
        let i = sample as usize;
        let image = match self.kind(i) {
            Some(kind) => self.shards.read(i, kind)?,
            None => None,
        };
        image.ok_or_else(|| DataError::Image { name: self.shards.key(i).into(), reason: "its sample has no image".into() })
    }

    /// Looks at a sample's image, which is called `image`, and its labels. No stamp stands for a fault: a shard may be put right under the same size and time.
    pub(crate) fn record(&self, sample: u32, image: &Path) -> Record {
        let content = self.content(sample, image);
        Record { stamp: if content.is_err() { Stamp::NEVER } else { self.stamp(sample) }, content }
    }

    fn content(&self, sample: u32, image: &Path) -> Result<Content, BadFile> {
        let bad = |reason: String| BadFile { path: image.into(), line: None, reason };
        if let Some(reason) = self.unclear(sample as usize) {
            return Err(bad(reason));
        }
        let bytes = self.image(sample).map_err(|error| match error {
            DataError::Shard(error) => bad(without_path(&error)),
            DataError::Image { reason, .. } => bad(reason),
            other => bad(other.to_string()),
        })?;
        let header = std::panic::catch_unwind(|| header::of(&bytes)).unwrap_or_else(|_| Err("the decoder panicked on its header".into()));
        let header = header.map_err(bad)?;
        Ok(Content { header, labels: self.labels(sample, image, u32::MAX)? })
    }

    /// The labels of a sample, whose classes must be below `nc`.
    fn labels(&self, sample: u32, image: &Path, nc: u32) -> Result<Option<labels::ParsedLabels>, BadFile> {
        let key = self.shards.key(sample as usize);
        let path = image.with_file_name(format!("{}.{LABELS}", key.rsplit('/').next().unwrap_or(key)));
        let bad = |line, reason| BadFile { path: path.clone(), line, reason };
        let text = self.shards.read(sample as usize, LABELS).map_err(|error| bad(None, without_path(&error)))?;
        let parsed = text.map(|text| labels::parse(&text, nc)).transpose();
        parsed.map_err(|error| bad(Some(error.line), error.problem.to_string()))
    }

    /// Reads a sample's labels again, which have a class that is not below `nc`: to name its line.
    pub(crate) fn name_class(&self, sample: u32, image: &Path, nc: u32) -> Result<(), BadFile> {
        self.labels(sample, image, nc).map(drop)
    }
}

/// What a kind ends with: all of it, where it has no dot.
fn ending(kind: &str) -> &str {
    kind.rsplit('.').next().unwrap_or(kind)
}

fn is_image_kind(kind: &str) -> bool {
    header::is_image(Path::new(&format!("x.{kind}")))
}

/// A fault whose file is named already.
fn without_path(error: &ShardError) -> String {
    match error.at {
        Some(at) => format!("byte {at} of the shard: {}", error.fault),
        None => error.fault.to_string(),
    }
}
