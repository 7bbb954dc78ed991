//! The file of a challenge whose truth is not given out: what was found in every image of a COCO file, by the ids of that file.
//!
//! Of the long-term thermal drift challenge (its starting kit, RTIOD): one object, a key an image, `boxes` as x1, y1, x2, y2 in pixels of the file,
//! `scores`, and `labels` as the file's category ids. Every image that a COCO file of the split lists has its key, also one in which nothing was found, that
//! cannot be read, or that is not there.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::boxes::Detection;
use crate::data::DataError;
use crate::validate::{ValSet, Validation};

#[derive(Default, Serialize)]
struct Entry {
    boxes: Vec<[f64; 4]>,
    scores: Vec<f64>,
    labels: Vec<Value>,
}

/// What an image of this id is called in the file.
fn name(id: Value) -> String {
    if let Value::String(text) = id { text } else { id.to_string() }
}

/// What image `index` is called in the file.
fn key(set: &ValSet, index: usize) -> Result<String, DataError> {
    let reason = || DataError::Invalid("a submission names images by the ids of a COCO file, and some of these are in none".into());
    set.ids().image(index).map(name).ok_or_else(reason)
}

/// That the images of `set` and their classes have names to be handed in under: to be asked before they are looked at.
///
/// # Errors
/// [`DataError::Invalid`] for an image that no COCO file lists, or whose file and the data set's others list no category for its classes.
pub fn can_submit(set: &ValSet) -> Result<(), DataError> {
    (0..set.len()).try_for_each(|index| {
        let key = key(set, index)?;
        let reason = || format!("a submission labels by the ids of categories, and no COCO file of the data set has any for image {key}");
        if set.ids().names_classes(index) { Ok(()) } else { Err(DataError::Invalid(reason())) }
    })
}

/// The file for a validation of `set`, which kept its detections, and how many images it names.
///
/// # Errors
/// As [`can_submit`].
pub fn submission(set: &ValSet, validation: &Validation) -> Result<(Vec<u8>, usize), DataError> {
    can_submit(set)?;
    let ids = set.ids();
    let key = |index: usize| key(set, index);
    let keys = (0..set.len()).map(key).chain(ids.left_out().map(|id| Ok(name(id))));
    let mut entries: BTreeMap<String, Entry> = keys.map(|key| Ok((key?, Entry::default()))).collect::<Result<_, DataError>>()?;
    for (index, found) in &validation.kept {
        let label = |d: &Detection| ids.category(*index, d.class);
        let named = found.iter().filter_map(|d| Some((d, label(d)?)));
        let entry = entries.entry(key(*index)?).or_default();
        for (d, label) in named {
            let round = |v: f32, unit: f64| (f64::from(v) * unit).round() / unit;
            entry.boxes.push(d.xyxy.map(|v| round(v, 1e2)));
            entry.scores.push(round(d.score, 1e5));
            entry.labels.push(label);
        }
    }
    let bytes = serde_json::to_vec(&entries).map_err(|e| DataError::Invalid(format!("a submission: {e}")))?;
    Ok((bytes, entries.len()))
}
