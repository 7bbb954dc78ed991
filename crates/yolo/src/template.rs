//! The template of a submission: the ids that a challenge's evaluator asks for, every one and no other.
//!
//! An object with a key an image, as the submission itself is, with nothing in it. What the challenge gives out as its images need not be what it asks for: a
//! copy of a data set may have lost some, and a template may name images that are in no list.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bellows_runs::read_bounded;
use serde::de::IgnoredAny;

use crate::data::DataError;

/// Longest file that is read, bytes: that of 49,430 images has 3.8 million.
const MOST: u64 = 1 << 28;

/// The ids that a submission is to have.
#[derive(Debug)]
pub struct Template {
    pub(crate) path: PathBuf,
    pub(crate) ids: BTreeSet<String>,
}

impl Template {
    /// The ids in the file at `path`.
    ///
    /// # Errors
    /// [`DataError::File`], or [`DataError::Invalid`] with the place in the file.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes = read_bounded(path, MOST)?;
        let none = |why: String| {
            DataError::Invalid(format!("{}: no template of a submission, which is an object with a key an image: {why}", path.display()))
        };
        let entries: BTreeMap<String, HashMap<String, IgnoredAny>> =
            serde_json::from_slice(&bytes).map_err(|e| none(format!("{e} (byte {})", byte_of(&bytes, e.line(), e.column()))))?;
        if entries.is_empty() {
            return Err(none("it has none".into()));
        }
        Ok(Self { path: path.into(), ids: entries.into_keys().collect() })
    }
}

/// How many bytes stand before the end of `column` of `line`, both counted from 1.
fn byte_of(bytes: &[u8], line: usize, column: usize) -> usize {
    bytes.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum::<usize>() + column
}

#[cfg(test)]
mod tests {
    use bellows_exit::{Coded, Exit};

    use super::*;

    #[test]
    fn a_template_is_its_keys_and_what_is_none_is_refused_with_its_byte() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("template.json");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Template::read(&file)
        };
        let known = read("{\n\"20200501014174415\": {\"boxes\": [], \"scores\": []},\n\"a\": {}}").unwrap();
        assert_eq!(known.ids.into_iter().collect::<Vec<_>>(), ["20200501014174415", "a"]);
        for (text, why) in [
            ("", "(byte 0)"),
            ("[1]", "expected a map at line 1"),
            ("{\n\"images\": [{}]}", "(byte 12)"),
            ("{\n\"a\": {},\n\"b\": {", "(byte 17)"),
            ("{}", "it has none"),
        ] {
            let refused = read(text).unwrap_err();
            let told = refused.to_string();
            assert!(told.contains("template.json: no template of a submission") && told.contains(why), "{told}");
            assert_eq!((refused.exit(), told.lines().count()), (Exit::Usage, 1));
        }
        assert!(Template::read(&dir.path().join("gone.json")).unwrap_err().to_string().contains("gone.json"));
    }
}
