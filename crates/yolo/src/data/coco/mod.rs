//! Labels in the form of COCO: one JSON file with `images`, `annotations` and `categories`, as it is.
//!
//! [`open`] streams it once ([`parse`]), in whatever order its keys stand, and keeps what training needs ([`file`]): names, sizes, boxes. That is
//! remembered ([`cache`]) under the file's size and time, so the next start reads a fraction of it. What it means for a split (which class,
//! which image, which box of the decoded picture) is [`super::annotated`]'s. What Python writes and JSON does not know is read ([`tolerant`]). A file that
//! is wrong is wrong at a line, a column and a byte.

mod cache;
mod file;
mod id;
mod parse;
mod scalar;
mod segmentation;
mod tolerant;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

pub(crate) use file::{CocoFile, EXAMPLES};
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
    let fresh = parse::parse(opened).map_err(|fault| DataError::Coco { path: path.into(), reason: said(path, &fault) })?;
    if let Some(file) = memory
        && let Err(error) = cache::save(&file, &stamp, &fresh)
    {
        tracing::warn!("{}: what it holds could not be remembered ({error}); the next start reads it again", path.display());
    }
    Ok(fresh)
}

/// What is wrong, with the byte of the file where it was noticed: editors do not open lines of a gigabyte.
fn said(path: &Path, fault: &parse::Fault) -> String {
    match fault.place.and_then(|(line, column)| byte_of(path, line, column)) {
        Some(byte) => format!("{} (byte {byte})", fault.reason),
        None => fault.reason.clone(),
    }
}

/// How many bytes stand before the end of `column` of `line`, both counted from 1.
fn byte_of(path: &Path, line: usize, column: usize) -> Option<u64> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).ok()?);
    let mut before = 0;
    for _ in 1..line {
        before += file.skip_until(b'\n').ok()? as u64;
    }
    Some(before + column as u64)
}

#[cfg(test)]
mod tests {
    use bellows_exit::{Coded, Exit};

    use super::*;

    #[test]
    fn a_fault_has_its_byte() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("a.json");
        let whole = "{\"images\":[{\"id\":1,\"file_name\":\"a\"}],\n\n \"annotations\":[{\"image_id\":{}}]}";
        std::fs::write(&json, whole).unwrap();
        let refused = open(&json, None).unwrap_err().to_string();
        let byte: usize = refused.split("(byte ").nth(1).unwrap().trim_end_matches(')').parse().unwrap();
        let there = whole.find("{}}").unwrap();
        assert!(refused.contains("element 0") && refused.contains("at line 3") && (there..there + 3).contains(&byte), "{refused}");
    }

    #[test]
    fn a_fault_behind_a_byte_order_mark_and_other_words_of_python_has_its_byte() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("a.json");
        let part = "{\"images\":[{\"id\":1,\"file_name\":\"a\",\"meta\":{\"t\":-Infinity}}],\"categories\":[{\"id\":1,\"name\":\"c\"}],";
        for (before, word) in [("", "NaN"), ("", "-Infinity"), ("\n\n", "NaN"), ("\n", "Infinity"), ("", "null"), ("\n", "\" \"")] {
            let whole = format!("\u{feff}{part}{before}\"annotations\":[{{\"image_id\":1,\"category_id\":1,\"bbox\":[1,2,{word},4]}}]}}");
            std::fs::write(&json, &whole).unwrap();
            let refused = open(&json, None).unwrap_err().to_string();
            let byte: usize = refused.split("(byte ").nth(1).unwrap().trim_end_matches(')').parse().unwrap();
            let there = whole.rfind(word).unwrap();
            assert!(refused.contains("a box needs four numbers") && (there + 1..=there + word.len()).contains(&byte), "{there} {refused}");
            std::fs::write(&json, whole.replace(&format!("2,{word},"), "2,3,")).unwrap();
            assert_eq!(open(&json, None).unwrap().boxes.len(), 1);
        }
    }

    /// With everything that a file may hold, over several lines, and names of more bytes than letters.
    fn whole() -> Vec<u8> {
        let meta = "\"date_captured\":\"2020-05-14T23:07:15\",\"meta\":{\"Temperature\":-3.5,\"Sted\":\"Ø\",\"n\":[1,{}]}";
        let image = |i: usize| format!("{{\"id\":{i},\"file_name\":\"æ/{i}.jpg\",\"width\":96,\"height\":72,{meta}}}");
        let outline = ["[[1,2,3,4,5,6]]", "{\"counts\":\"aÅ\",\"size\":[9,9]}", "null"];
        let note = |i: usize| {
            let outline = outline[i % 3];
            format!(
                "{{\"id\":\"{i}x\",\"image_id\":{i},\"category_id\":1,\"bbox\":[1,2,3.5,4e0],\"segmentation\":{outline},\"iscrowd\":0}}"
            )
        };
        let list = |of: &dyn Fn(usize) -> String| (0..6).map(of).collect::<Vec<_>>().join(",\n");
        let classes = "[{\"id\":1,\"name\":\"kvæg\"}]";
        format!("{{\"images\":[\n{}\n],\n\"categories\":{classes},\"annotations\":[\n{}]}}", list(&image), list(&note)).into_bytes()
    }

    #[test]
    fn a_file_that_was_cut_off_anywhere_is_refused_where_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (json, whole) = (dir.path().join("a.json"), whole());
        for cut in 0..whole.len() {
            std::fs::write(&json, &whole[..cut]).unwrap();
            let refused = open(&json, None).unwrap_err();
            assert_eq!(refused.exit(), Exit::Usage);
            assert!(refused.to_string().ends_with(&format!("(byte {cut})")), "{cut}: {refused}");
        }
        std::fs::write(&json, &whole).unwrap();
        assert_eq!(open(&json, None).unwrap().boxes.len(), 6);
    }

    #[test]
    fn a_file_with_any_byte_damaged_is_read_or_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (json, whole) = (dir.path().join("a.json"), whole());
        let (mut read, mut refused) = (0, 0);
        for at in 0..whole.len() {
            for byte in [0, b'9', b'"', b'}', 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                std::fs::write(&json, &damaged).unwrap();
                match open(&json, None) {
                    Ok(_) => read += 1,
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("(byte ") || text.contains("not a COCO file"), "{at} {byte}: {text}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(read > 100 && refused > 1000, "{read} {refused}");
    }
}
