//! Files that get their names only once all of them are whole and on disk.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use bellows_runs::{StoreError, part_of, publish};

use crate::error::WeightsError;

/// Files being written, each beside its place ([`part_of`]). Those that are not published are removed when this is dropped, and what had their
/// names before stands.
#[derive(Debug, Default)]
pub struct Parts {
    /// Where each is, and where it belongs.
    files: Vec<(PathBuf, PathBuf)>,
}

impl Parts {
    /// Has `write` write the file that belongs at `path`, and flushes it to disk.
    ///
    /// # Errors
    /// What `write` returned, or the disk's error with `path`.
    pub fn write<T, E: From<WeightsError>>(
        &mut self,
        path: &Path,
        write: impl FnOnce(&mut BufWriter<File>) -> Result<T, E>,
    ) -> Result<T, E> {
        let wrong = |e: io::Error| E::from(WeightsError::at(path)(e.into()));
        let part = part_of(path).map_err(|e| wrong(e.error))?;
        let file = File::create(&part).map_err(wrong)?;
        self.files.push((part, path.to_owned()));
        let mut out = BufWriter::new(file);
        let done = write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all()).map_err(wrong)?;
        Ok(done)
    }

    /// Gives every file its name, for good and in the order they were written.
    ///
    /// # Errors
    /// The disk's, with the path of the file that could not be renamed; those before it are in place.
    pub fn publish(mut self) -> Result<(), WeightsError> {
        for (part, path) in &self.files {
            publish(part, path).map_err(|StoreError { error, .. }| WeightsError::at(path)(error.into()))?;
        }
        self.files.clear();
        Ok(())
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for (part, _) in &self.files {
            fs::remove_file(part).ok();
        }
    }
}
