//! Saving: members, then the manifest, then one rename, with a flush after each, so that `Ok` means "survives a power cut".
//!
//! A sibling of its final name is filled and flushed, renamed to it, and the rename itself is flushed. An error leaves the
//! directory as it was: no temporary files, no new checkpoint, the earlier ones untouched.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{Checkpoints, Version, newest_first};
use crate::atomic::sibling;
use crate::manifest::{MANIFEST, MANIFEST_LIMIT, Manifest, Member, MemberNameError};
use crate::store::{Store, StoreError};

/// Why a checkpoint was not saved. The earlier ones are untouched.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A member's name is unusable.
    #[error(transparent)]
    MemberName(#[from] MemberNameError),
    /// `info` does not fit a manifest.
    #[error("the manifest of a checkpoint in {}: {reason}", dir.display())]
    Manifest {
        /// The checkpoints directory.
        dir: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Not enough room, seen before anything was written.
    #[error("not enough space for a checkpoint in {}: {needed} bytes needed, {free} free", dir.display())]
    NoSpace {
        /// The checkpoints directory.
        dir: PathBuf,
        /// Bytes needed: 1.2 times the checkpoint.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SaveError {
    /// True when space ran out (disk, quota or file-size limit): training may go on and try again at the next interval.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace { .. } => true,
            Self::Store(e) => e.is_no_space(),
            Self::MemberName(_) | Self::Manifest { .. } => false,
        }
    }
}

impl<S: Store> Checkpoints<S> {
    /// Saves a checkpoint and returns its directory; once it returns, the checkpoint survives a kill and a power cut.
    ///
    /// `info` is for small facts beside the state (the settings, epoch, position); its numbers come back to the last digit.
    ///
    /// Saving a step again: if it is there already with the same members and `info`, and intact, nothing is rewritten (a final
    /// save right after a periodic one). If anything differs (the same step saved again after its validation) or it is damaged,
    /// the new state is written beside it as `step-S-2` and from then on is the step; the old version stays until `prune`. So at
    /// no instant is the step missing. A run that goes *back* must call [`Checkpoints::abandon_after`] first.
    ///
    /// Needs the run lock. On error the directory is as it was, and the error names a path.
    pub fn save(&self, step: u64, members: &[Member<'_>], info: &Map<String, Value>) -> Result<PathBuf, SaveError> {
        let bad_manifest = |reason: String| SaveError::Manifest { dir: self.dir.clone(), reason };
        let manifest = Manifest::new(step, members, info)?.to_sealed().map_err(|e| bad_manifest(e.to_string()))?;
        if manifest.len() as u64 > MANIFEST_LIMIT {
            return Err(bad_manifest(format!("{} bytes, at most {MANIFEST_LIMIT} allowed", manifest.len())));
        }

        let names = self.store.list(&self.dir)?;
        let existing = newest_first(&names).into_iter().find(|v| v.step == step);
        if let Some(version) = existing.filter(|v| self.holds(*v, &manifest)) {
            // The process that wrote it may have died between the rename and this.
            self.store.sync_dir(&self.dir)?;
            return Ok(self.dir.join(version.name()));
        }
        self.check_space(members.iter().map(|m| m.bytes.len() as u64).sum::<u64>() + manifest.len() as u64)?;

        let target = Version { step, revision: existing.map_or(1, |v| v.revision + 1) };
        let target = self.dir.join(target.name());
        self.discard_left(&names);
        let temp = sibling(&target)?;
        let written = self.write_temp(&temp, members, &manifest).and_then(|()| self.publish(&temp, &target));
        if let Err(e) = written {
            // A rename may have happened and its flush failed; nothing else can be at `target`. Both may also be absent.
            let _ = self.store.rename(&target, &temp);
            self.discard(&temp);
            return Err(e.into());
        }
        Ok(target)
    }

    fn write_temp(&self, temp: &Path, members: &[Member<'_>], manifest: &str) -> Result<(), StoreError> {
        self.store.create_dir(temp)?;
        for member in members {
            self.write_synced(&temp.join(member.name), member.bytes)?;
        }
        self.write_synced(&temp.join(MANIFEST), manifest.as_bytes())?;
        self.store.sync_dir(temp)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.write_file(path, bytes)?;
        self.store.sync_file(path)
    }

    fn publish(&self, temp: &Path, target: &Path) -> Result<(), StoreError> {
        self.store.rename(temp, target)?;
        self.store.sync_dir(&self.dir)
    }

    /// Whether `version` is intact and was saved with exactly this manifest.
    fn holds(&self, version: Version, manifest: &str) -> bool {
        let path = self.dir.join(version.name()).join(MANIFEST);
        let same = self.store.read(&path, MANIFEST_LIMIT).is_ok_and(|bytes| bytes == manifest.as_bytes());
        same && self.read_version(version).is_ok()
    }

    fn check_space(&self, size: u64) -> Result<(), SaveError> {
        let free = match self.store.free_space(&self.dir) {
            Ok(free) => free,
            Err(e) => {
                tracing::warn!("saving without knowing the free space: {e}");
                return Ok(());
            }
        };
        let needed = size.saturating_add(size / 5);
        if free < needed {
            return Err(SaveError::NoSpace { dir: self.dir.clone(), needed, free });
        }
        if let Some(little) = self.little(free, size) {
            tracing::warn!("{little}");
        }
        Ok(())
    }

    /// What there is to say of a disk that has room for less than three checkpoints of so many bytes, where that is known.
    pub fn little_room(&self, size: u64) -> Option<String> {
        self.little(self.store.free_space(&self.dir).ok()?, size)
    }

    fn little(&self, free: u64, size: u64) -> Option<String> {
        let told = || format!("{} has room for less than three checkpoints: {free} bytes free, {size} each", self.dir.display());
        (free < size.saturating_mul(3)).then(told)
    }
}
