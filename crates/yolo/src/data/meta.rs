//! What is known of frames beside their pixels: the `meta` of a COCO file, when a frame was taken, which clip it belongs to.
//!
//! Values are texts, as the file has them (a number in its shortest form), once each by key: frames of a clip share their weather. What is
//! longer than 256 bytes, or beyond the first 64 keys, is not kept.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::clips::{Clips, OfClip, assign_clips};
use super::moment::Moment;

/// Longest value that is kept, bytes.
const LONGEST: usize = 256;
/// Most keys that are kept.
const MOST_KEYS: usize = 64;
/// The key of the moment that a frame was taken, which COCO has beside `meta`.
pub const MOMENT: &str = "date_captured";
/// The key of the clip of a frame.
pub const CLIP: &str = "clip";

/// The values of one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Column {
    pub(crate) key: String,
    /// Each value once.
    pub(crate) texts: Vec<String>,
    /// Of each row, 1 + the index of its value; 0 and what is missing at the end are rows without one.
    pub(crate) codes: Vec<u32>,
}

/// Rows of values by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetaTable {
    pub(crate) columns: Vec<Column>,
}

impl MetaTable {
    /// Whether it tells anything of its images. Exports that know no moment may write 0 for it.
    pub(crate) fn tells(&self) -> bool {
        self.columns.iter().any(|column| column.key != MOMENT || column.texts.iter().any(|text| Moment::read(text).is_some()))
    }

    /// The value of `key` in row `row`.
    pub(crate) fn get(&self, row: usize, key: &str) -> Option<&str> {
        let column = self.columns.iter().find(|c| c.key == key)?;
        let code = column.codes.get(row)?.checked_sub(1)?;
        Some(&column.texts[code as usize])
    }

    /// What row `row` tells of its clip, if it names one.
    pub(crate) fn clip(&self, row: usize) -> Option<OfClip<'_>> {
        let known = |key: &str| self.get(row, key).filter(|text| !is_unknown(text));
        Some(OfClip::Named { name: known(CLIP)?, camera: self.camera(row), taken: known(MOMENT) })
    }

    /// The camera that row `row` is of, if that is known.
    fn camera(&self, row: usize) -> Option<&str> {
        let column = self.columns.iter().find(|column| column.key.eq_ignore_ascii_case("camera"))?;
        self.get(row, &column.key).filter(|text| !is_unknown(text))
    }
}

/// Whether a value is how data sets write that there is none: `NaN`, `n/a`, `null`.
pub(crate) fn is_unknown(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || ["nan", "n/a", "na", "none", "null", "-"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// A table while it is filled.
#[derive(Default)]
pub(crate) struct MetaBuilder {
    table: MetaTable,
    /// By column: the code of each text.
    known: Vec<HashMap<String, u32>>,
}

impl MetaBuilder {
    /// `key` of row `row`, which is not below any row before it, is `text`.
    pub(crate) fn set(&mut self, row: usize, key: &str, text: &str) {
        if text.len() > LONGEST || key.len() > LONGEST {
            return;
        }
        let at = match self.table.columns.iter().position(|c| c.key == key) {
            Some(at) => at,
            None if self.table.columns.len() == MOST_KEYS => return,
            None => {
                self.table.columns.push(Column { key: key.into(), ..Column::default() });
                self.known.push(HashMap::new());
                self.table.columns.len() - 1
            }
        };
        let (column, known) = (&mut self.table.columns[at], &mut self.known[at]);
        let code = match known.get(text) {
            Some(&code) => code,
            None => {
                column.texts.push(text.into());
                let code = column.texts.len() as u32;
                known.insert(text.into(), code);
                code
            }
        };
        column.codes.resize(row, 0);
        column.codes.push(code);
    }

    pub(crate) fn finish(self) -> MetaTable {
        self.table
    }
}

/// What is known of the images of a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrameMeta {
    tables: Vec<Arc<MetaTable>>,
    /// Of each image up to the last that has one: which table, and its row.
    rows: Vec<Option<(u32, u32)>>,
    clips: Clips,
}

impl FrameMeta {
    pub(crate) fn new(tables: Vec<Arc<MetaTable>>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// Image `index`, of which there is none after it yet, is this row of that table.
    pub(crate) fn push(&mut self, index: usize, of: Option<(u32, u32)>) {
        if of.is_some() {
            self.rows.resize(index, None);
            self.rows.push(of);
        }
    }

    /// Tells the clips of images by their meta, or by the folders of their files, which `paths` are, in the order of the images.
    pub(crate) fn find_clips<P: AsRef<Path>>(&mut self, paths: impl Iterator<Item = P>) {
        let named = |index: usize| {
            let (table, row) = self.row(index)?;
            table.clip(row)
        };
        self.clips = assign_clips(paths.enumerate().map(|(i, path)| named(i).unwrap_or_else(|| OfClip::folder(path.as_ref()))));
    }

    /// What is known of image `index`.
    fn row(&self, index: usize) -> Option<(&MetaTable, usize)> {
        let (table, row) = (*self.rows.get(index)?)?;
        let table: &MetaTable = self.tables.get(table as usize)?;
        Some((table, row as usize))
    }

    fn told(&self, index: usize, key: &str) -> Option<&str> {
        let (table, row) = self.row(index)?;
        table.get(row, key)
    }

    /// The camera of image `index`, if it is known.
    pub(crate) fn camera(&self, index: usize) -> Option<&str> {
        let (table, row) = self.row(index)?;
        table.camera(row)
    }

    /// The value of `key` of image `index`; that of [`CLIP`] is its clip, a name with its day and camera or the folder of its file.
    pub fn get(&self, index: usize, key: &str) -> Option<&str> {
        if key == CLIP { Some(self.clip_name(*self.clips.of.get(index)?)) } else { self.told(index, key) }
    }

    /// Whether the files tell anything of their images.
    pub(crate) fn tells(&self) -> bool {
        self.tables.iter().any(|table| table.tells())
    }

    /// All keys that the files have, in their order.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = Vec::new();
        for column in self.tables.iter().flat_map(|t| &t.columns) {
            if !keys.contains(&column.key.as_str()) {
                keys.push(&column.key);
            }
        }
        keys
    }

    /// The clip of each image, as an index below [`clips`](Self::clips).
    pub fn clip_of(&self) -> &[u32] {
        &self.clips.of
    }

    /// Number of clips.
    pub fn clips(&self) -> usize {
        self.clips.names.len()
    }

    /// The name of a clip.
    pub fn clip_name(&self, clip: u32) -> &str {
        &self.clips.names[clip as usize]
    }

    /// Whether the meta names that clip; else it is a folder.
    pub(crate) fn is_named(&self, clip: u32) -> bool {
        self.clips.named[clip as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_by_row_and_key() {
        let mut builder = MetaBuilder::default();
        builder.set(0, "Temperature", "3.5");
        builder.set(2, "Temperature", "3.5");
        builder.set(2, "Day_Night", "day");
        builder.set(3, "long", &"x".repeat(LONGEST + 1));
        for key in 0..2 * MOST_KEYS {
            builder.set(4, &key.to_string(), "1");
        }
        let table = builder.finish();
        assert_eq!((table.columns.len(), table.columns[0].texts.len()), (MOST_KEYS, 1));
        let got: Vec<_> = (0..4).map(|row| table.get(row, "Temperature")).collect();
        assert_eq!(got, [Some("3.5"), None, Some("3.5"), None]);
        let mut meta = FrameMeta::new(vec![Arc::new(table)]);
        meta.push(1, Some((0, 2)));
        meta.find_clips(["a/b/1.jpg", "a/c/1.jpg", "a/b/2.jpg"].iter());
        assert_eq!([0, 1, 2].map(|i| meta.get(i, "Day_Night")), [None, Some("day"), None]);
        assert_eq!((meta.clip_of(), meta.get(2, CLIP), meta.get(3, CLIP)), (&[0, 1, 0][..], Some("a/b"), None));
        assert_eq!(meta.keys()[..2], ["Temperature", "Day_Night"]);
    }

    #[test]
    fn a_clip_that_is_named_is_that() {
        let mut builder = MetaBuilder::default();
        (0..3).for_each(|row| builder.set(row, CLIP, if row == 1 { "north" } else { "south" }));
        let mut meta = FrameMeta::new(vec![Arc::new(builder.finish())]);
        (0..3).for_each(|i| meta.push(i, Some((0, i as u32))));
        meta.find_clips(["1.jpg", "2.jpg", "3.jpg"].iter());
        assert_eq!((meta.clip_of(), meta.clip_name(1), meta.clips()), (&[0, 1, 0][..], "north", 2));
    }

    #[test]
    fn a_name_that_comes_again_on_another_day_or_camera_is_another_clip() {
        let mut builder = MetaBuilder::default();
        let rows = [
            ("2020-05-14T10:00:00", "1", "c0"),
            ("2020-05-15T10:00:00", "1", "c0"),
            ("2020-05-14T10:00:00", "2", "c0"),
            ("2020-05-14T10:00:01", "1", "c0"),
            ("2020-05-14T10:00:02", "1", "n/a"),
        ];
        for (row, (taken, camera, clip)) in rows.iter().enumerate() {
            [(MOMENT, *taken), ("CAMERA", *camera), (CLIP, *clip)].iter().for_each(|(key, text)| builder.set(row, key, text));
        }
        let mut meta = FrameMeta::new(vec![Arc::new(builder.finish())]);
        (0..5).for_each(|i| meta.push(i, Some((0, i as u32))));
        meta.find_clips((0..5).map(|i| format!("a/{i}.jpg")));
        assert_eq!(meta.clip_of(), [0, 1, 2, 0, 3]);
        assert_eq!([2, 3].map(|clip| meta.is_named(clip)), [true, false]);
        assert_eq!((meta.get(1, CLIP), meta.get(4, CLIP)), (Some("c0 2020-05-15 camera 1"), Some("a")));
    }
}
