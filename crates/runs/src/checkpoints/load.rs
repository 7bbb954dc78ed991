//! Loading: newest first, nothing believed before its checksum, and never a silent start from nothing.
//!
//! A checkpoint that is not what was written is set aside under a name that says why, and the one before it is used. If all are
//! damaged, now or in an earlier attempt, that is an error. An intact checkpoint of a newer format, or one this process may not
//! read, is not damage: loading stops there and renames nothing.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use serde_json::{Map, Value};

use super::{Checkpoints, Version, newest_first, set_aside_for};
use crate::manifest::{FORMAT, MANIFEST, MANIFEST_LIMIT, Manifest, ManifestError, MemberEntry, sha256_hex};
use crate::store::{Store, StoreError};

/// A verified checkpoint, in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The directory it came from.
    pub path: PathBuf,
    /// The step it was saved at.
    pub step: u64,
    /// What was given to `save` as `info`.
    pub info: Map<String, Value>,
    /// The members, by name.
    pub members: BTreeMap<String, Vec<u8>>,
}

/// What [`Checkpoints::latest`] found.
#[derive(Debug)]
pub struct Latest {
    /// The newest intact checkpoint; `None` if there never was one (or all were abandoned on purpose).
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that were damaged, newest first. Worth telling the user.
    pub set_aside: Vec<SetAside>,
}

/// A damaged checkpoint, out of the way.
#[derive(Debug, Clone, PartialEq)]
pub struct SetAside {
    /// Where it is now.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Why no checkpoint was loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Written by a newer program; nothing was renamed.
    #[error(
        "{} has checkpoint format {found}, this program reads up to format {supported}: use a version that reads format {found}",
        path.display()
    )]
    NewerFormat {
        /// The checkpoint.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The highest format this program reads.
        supported: u32,
    },
    /// There are checkpoints and none is intact. Starting over is the user's decision.
    #[error("no intact checkpoint in {}: {}", dir.display(), describe(set_aside))]
    AllDamaged {
        /// The checkpoints directory.
        dir: PathBuf,
        /// All damaged ones, those set aside earlier included.
        set_aside: Vec<SetAside>,
    },
    /// The checkpoint that was asked for is damaged; it was left where it is.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The step that was asked for was never saved, or pruned.
    #[error("no checkpoint of step {step} in {}", dir.display())]
    NoSuchStep {
        /// The checkpoints directory.
        dir: PathBuf,
        /// The step.
        step: u64,
    },
    /// A file operation failed in a way that says nothing about the checkpoint (permissions, too many open files).
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Coded for LoadError {
    fn exit(&self) -> Exit {
        match self {
            Self::Store(error) => error.exit(),
            _ => Exit::Usage,
        }
    }
}

fn describe(set_aside: &[SetAside]) -> String {
    let lines = set_aside.iter().map(|s| format!("{} ({})", s.path.display(), s.reason));
    lines.collect::<Vec<_>>().join("; ")
}

/// Why one checkpoint could not be used.
pub(super) enum Unusable {
    /// `slug` goes into the new name, `reason` to the user.
    Damaged { slug: &'static str, reason: String },
    /// Of this newer format.
    Newer(u32),
    /// Not its fault.
    Store(StoreError),
}

impl<S: Store> Checkpoints<S> {
    /// The newest intact checkpoint. Damaged newer ones are renamed `….bad-REASON` and reported. Needs the run lock.
    ///
    /// # Errors
    /// [`LoadError::AllDamaged`], [`LoadError::NewerFormat`] (whichever checkpoint is met first decides), [`LoadError::Store`].
    pub fn latest(&self) -> Result<Latest, LoadError> {
        let names = self.store.list(&self.dir)?;
        let mut checkpoint = None;
        let mut damaged = Vec::new();
        for version in newest_first(&names) {
            match self.read_version(version) {
                Ok(intact) => {
                    checkpoint = Some(intact);
                    break;
                }
                Err(Unusable::Damaged { slug, reason }) => damaged.push((version, slug, reason)),
                Err(other) => return Err(self.refuse(version, other)),
            }
        }
        // Renamed only now: every way out above leaves the directory as it was.
        let mut set_aside: Vec<SetAside> =
            damaged.into_iter().map(|(version, slug, reason)| self.set_aside(&names, version, slug, reason)).collect();
        if checkpoint.is_none() {
            set_aside.extend(self.set_aside_earlier(&names));
            if !set_aside.is_empty() {
                return Err(LoadError::AllDamaged { dir: self.dir.clone(), set_aside });
            }
        }
        Ok(Latest { checkpoint, set_aside })
    }

    /// The checkpoint of one step, verified like any other. Renames nothing.
    pub fn load_step(&self, step: u64) -> Result<Checkpoint, LoadError> {
        let names = self.store.list(&self.dir)?;
        match newest_first(&names).into_iter().find(|v| v.step == step) {
            Some(version) => self.read_version(version).map_err(|why| self.refuse(version, why)),
            None => Err(LoadError::NoSuchStep { dir: self.dir.clone(), step }),
        }
    }

    fn refuse(&self, version: Version, why: Unusable) -> LoadError {
        let path = self.dir.join(version.name());
        match why {
            Unusable::Damaged { reason, .. } => LoadError::Damaged { path, reason },
            Unusable::Newer(found) => LoadError::NewerFormat { path, found, supported: FORMAT },
            Unusable::Store(e) => e.into(),
        }
    }

    fn set_aside(&self, names: &[String], version: Version, slug: &str, reason: String) -> SetAside {
        let path = self.rename_aside(names, &version.name(), &format!("bad-{slug}")).unwrap_or_else(|e| {
            tracing::warn!("a damaged checkpoint keeps its name: {e}");
            self.dir.join(version.name())
        });
        tracing::warn!("damaged checkpoint set aside as {}: {reason}", path.display());
        SetAside { path, reason }
    }

    fn set_aside_earlier(&self, names: &[String]) -> Vec<SetAside> {
        let earlier = names.iter().filter_map(|name| {
            let reason = format!("set aside earlier: {}", set_aside_for(name)?);
            Some(SetAside { path: self.dir.join(name), reason })
        });
        earlier.collect()
    }

    pub(super) fn read_version(&self, version: Version) -> Result<Checkpoint, Unusable> {
        let path = self.dir.join(version.name());
        let text = self.read_part(&path.join(MANIFEST), MANIFEST_LIMIT, "manifest")?;
        let manifest = Manifest::parse(&text).map_err(|e| match e {
            ManifestError::Newer(format) => Unusable::Newer(format),
            ManifestError::Damaged(why) => damaged("manifest", format!("{MANIFEST}: {why}")),
        })?;
        if manifest.step != version.step {
            return Err(damaged("step", format!("{MANIFEST} is that of step {}", manifest.step)));
        }
        let mut members = BTreeMap::new();
        for entry in manifest.members {
            let bytes = self.read_member(&path, &entry)?;
            members.insert(entry.name, bytes);
        }
        Ok(Checkpoint { path, step: version.step, info: manifest.info, members })
    }

    fn read_member(&self, checkpoint: &Path, entry: &MemberEntry) -> Result<Vec<u8>, Unusable> {
        let MemberEntry { name, len, sha256 } = entry;
        let bytes = self.read_part(&checkpoint.join(name), *len, "member")?;
        if bytes.len() as u64 != *len {
            return Err(damaged("length", format!("{name} has {} bytes, {len} were written", bytes.len())));
        }
        if sha256_hex(&bytes) != *sha256 {
            return Err(damaged("checksum", format!("{name} does not match its SHA-256")));
        }
        Ok(bytes)
    }

    /// Reads one file; sorts failures into damage and "ask again elsewhere".
    fn read_part(&self, path: &Path, limit: u64, part: &'static str) -> Result<Vec<u8>, Unusable> {
        const EIO: i32 = 5; // The same number on every Unix; `ErrorKind` has no name for it.
        self.store.read(path, limit).map_err(|e| match e.error.kind() {
            ErrorKind::NotFound if part == "manifest" => damaged("no-manifest", e.to_string()),
            ErrorKind::NotFound => damaged("missing", e.to_string()),
            ErrorKind::FileTooLarge => damaged("length", e.to_string()),
            ErrorKind::InvalidData | ErrorKind::NotADirectory | ErrorKind::UnexpectedEof => damaged("unreadable", e.to_string()),
            _ if cfg!(unix) && e.error.raw_os_error() == Some(EIO) => damaged("unreadable", e.to_string()),
            _ => Unusable::Store(e),
        })
    }
}

fn damaged(slug: &'static str, reason: String) -> Unusable {
    Unusable::Damaged { slug, reason }
}
