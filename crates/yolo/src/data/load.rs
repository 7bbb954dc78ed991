//! Opening a data set by what a person has: a data.yaml, a COCO file, Darknet's `obj.data`, or the folder that a labelling tool exported.
//!
//! A folder is searched for what describes it (see [`super::layouts`]). Class names that no data.yaml gives are those of the first COCO file.

use std::path::{Path, PathBuf};

use bellows_runs::cache_dir;

use super::annotated;
use super::description::{DataConfig, Source};
use super::error::DataError;
use super::layouts;

impl DataConfig {
    /// Opens the data set that `path` describes. `allow_outside` names folders beyond its root that the user allows it to use.
    ///
    /// # Errors
    /// [`DataError::File`]; [`DataError::Yaml`] or [`DataError::Coco`] with the place; [`DataError::Outside`].
    pub fn load(path: &Path, allow_outside: &[PathBuf]) -> Result<Self, DataError> {
        Self::load_with(path, allow_outside, cache_dir().as_deref())
    }

    /// The same with another folder to remember COCO files in.
    pub(crate) fn load_with(path: &Path, allow_outside: &[PathBuf], cache_dir: Option<&Path>) -> Result<Self, DataError> {
        let mut config = if path.is_dir() {
            layouts::folder(path, allow_outside)?
        } else if Source::from(path).is_coco() {
            layouts::coco_file(path)
        } else if path.extension().is_some_and(|e| e == "data") {
            layouts::darknet(path, allow_outside)?
        } else {
            Self::from_yaml(path)?
        };
        config.allow_outside = allow_outside.to_vec();
        config.name_classes(cache_dir)?;
        Ok(config)
    }

    /// Takes the class names from the first COCO file if there are none yet.
    fn name_classes(&mut self, cache_dir: Option<&Path>) -> Result<(), DataError> {
        let first = [&self.train, &self.val, &self.test].into_iter().flatten().find(|source| source.is_coco());
        let Some(source) = first.filter(|_| self.names.is_empty()) else { return Ok(()) };
        let (json, file) = annotated::read(self, source, cache_dir)?;
        self.names = file.names();
        if self.names.is_empty() {
            return Err(DataError::Coco { path: json, reason: "`categories` is empty: there is no class".into() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
