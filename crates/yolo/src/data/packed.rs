//! Images and label files in shards: the same files as in folders, and the same rules for them.
//!
//! A sample has one image, which is its first file that is neither text nor JSON, and perhaps a label file (`txt`), as beside images in a folder. What it is
//! called in messages is a path that leads through its shard: `train-000003.tar/000123.jpg`.

use std::path::{Path, PathBuf};

use bellows_shards::{ShardError, Shards};

use super::error::DataError;
use super::record::{BadFile, Content, Stamp};
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

    fn kind(&self, i: usize) -> Option<&str> {
        self.shards.kinds(i).find(|kind| ![LABELS, "json"].contains(kind))
    }

    /// What is wrong with the shards, a line each.
    pub(crate) fn faults(&self) -> &[String] {
        self.shards.faults()
    }

    /// Changes when the data do, or where they lie.
    pub(crate) fn mark(&self) -> u32 {
        self.shards.mark()
    }

    /// Changes when the shard of a sample does, or its files there.
    pub(crate) fn stamp(&self, sample: u32) -> Stamp {
        let i = sample as usize;
        let [length, time, ..] = self.stamps[self.shards.shard(i)].0;
        let sum = |kind: Option<&str>| kind.and_then(|kind| self.shards.checksum(i, kind)).map_or(u64::MAX, u64::from);
        Stamp([length, time, sum(self.kind(i)), sum(Some(LABELS))])
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

    /// Looks at a sample's image, which is called `image`, and its labels.
    pub(crate) fn check(&self, sample: u32, image: &Path) -> Result<Content, BadFile> {
        let bad = |reason: String| BadFile { path: image.into(), line: None, reason };
        let bytes = self.image(sample).map_err(|error| match error {
            DataError::Shard(error) => bad(without_path(&error)),
            DataError::Image { reason, .. } => bad(reason),
            other => bad(other.to_string()),
        })?;
        let header = std::panic::catch_unwind(|| header::of(&bytes)).unwrap_or_else(|_| Err("the decoder panicked on its header".into()));
        let header = header.map_err(bad)?;
        let path = image.with_extension(LABELS);
        let bad = |line, reason| BadFile { path: path.clone(), line, reason };
        let text = self.shards.read(sample as usize, LABELS).map_err(|error| bad(None, without_path(&error)))?;
        let parsed = text.map(|text| labels::parse(&text, u32::MAX)).transpose();
        let labels = parsed.map_err(|error| bad(Some(error.line), error.problem.to_string()))?;
        Ok(Content { header, labels })
    }
}

/// A fault whose file is named already.
fn without_path(error: &ShardError) -> String {
    match error.at {
        Some(at) => format!("byte {at} of the shard: {}", error.fault),
        None => error.fault.to_string(),
    }
}
