//! Labels in the form of COCO: one JSON file with `images`, `annotations` and `categories`, as it is.
//!
//! [`open`] streams it once ([`parse`]), in whatever order its keys stand, and keeps what training needs ([`file`]): names, sizes, boxes. That is
//! remembered ([`cache`]) under the file's size and time, so the next start reads a fraction of it. What it means for a split (which class,
//! which image, which box of the decoded picture) is [`super::annotated`]'s.

mod cache;
mod file;
mod id;
mod parse;

use std::fs::File;
use std::path::Path;

pub(crate) use file::CocoFile;
pub(crate) use id::Id;

use super::error::DataError;

/// The COCO file at `path`; `cache_dir` is where it is remembered.
///
/// # Errors
/// [`DataError::Io`], or [`DataError::Coco`] with the place in the file.
pub(crate) fn open(path: &Path, cache_dir: Option<&Path>) -> Result<CocoFile, DataError> {
    let stamp = cache::Stamp::of(path).map_err(DataError::io(path))?;
    let memory = cache_dir.map(|dir| dir.join(cache::file_name(path)));
    if let Some(known) = memory.as_deref().and_then(|file| cache::load(file, &stamp)) {
        return Ok(known);
    }
    let opened = File::open(path).map_err(DataError::io(path))?;
    let fresh = parse::parse(opened).map_err(|reason| DataError::Coco { path: path.into(), reason })?;
    if let Some(file) = memory
        && let Err(error) = cache::save(&file, &stamp, &fresh)
    {
        tracing::warn!("{}: what it holds could not be remembered ({error}); the next start reads it again", path.display());
    }
    Ok(fresh)
}
