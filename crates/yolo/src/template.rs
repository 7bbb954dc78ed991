//! The template of a submission: the ids that a challenge's evaluator asks for, every one and no other.
//!
//! An object with a key an image, as the submission itself is, with nothing in it. What the challenge gives out as its images need not be what it asks for: a
//! copy of a data set may have lost some, and a template may name images that are in no list.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use bellows_runs::read_bounded;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::data::DataError;

/// Longest file that is read, bytes: that of 49,430 images has 3.8 million.
const MOST: u64 = 1 << 28;
/// What some editors begin a text with; COCO files may have one, too.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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
        let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
        let byte = |e: &serde_json::Error| bytes.len() - text.len() + byte_of(text, e.line(), e.column());
        let Ids(ids) = serde_json::from_slice(text).map_err(|e| none(format!("{e} (byte {})", byte(&e))))?;
        if ids.is_empty() {
            return Err(none("it has none".into()));
        }
        Ok(Self { path: path.into(), ids })
    }
}

/// The keys of an object of objects, each of which stands there once.
struct Ids(BTreeSet<String>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
                let mut ids = BTreeSet::new();
                while let Some(id) = map.next_key::<String>()? {
                    if ids.contains(&id) {
                        return Err(A::Error::custom(format!("id {id} stands here twice")));
                    }
                    map.next_value::<HashMap<String, IgnoredAny>>()?;
                    ids.insert(id);
                }
                Ok(Ids(ids))
            }
        }
        deserializer.deserialize_map(Keys)
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
        assert_eq!(read("\u{feff}{\"a\": {}}").unwrap().ids.len(), 1, "a byte order mark is nothing");
        for (text, why) in [
            ("", "(byte 0)"),
            ("[1]", "expected a map at line 1"),
            ("{\n\"images\": [{}]}", "(byte 12)"),
            ("{\n\"a\": {},\n\"b\": {", "(byte 17)"),
            ("{}", "it has none"),
            ("\u{feff}{\n\"a\": {},\n\"b\": {", "(byte 20)"),
            ("{\"a\": {}, \"b\": {}, \"a\": {}}", "id a stands here twice at line 1 column 22 (byte 22)"),
        ] {
            let refused = read(text).unwrap_err();
            let told = refused.to_string();
            assert!(told.contains("template.json: no template of a submission") && told.contains(why), "{told}");
            assert_eq!((refused.exit(), told.lines().count()), (Exit::Usage, 1));
        }
        assert!(Template::read(&dir.path().join("gone.json")).unwrap_err().to_string().contains("gone.json"));
    }
}
