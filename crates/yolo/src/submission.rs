//! The file of a challenge whose truth is not given out: what was found in every image of a COCO file, by the ids of that file.
//!
//! Of the long-term thermal drift challenge (its starting kit, RTIOD): one object, a key an image, `boxes` as x1, y1, x2, y2 in pixels of the file,
//! `scores`, and `labels` as the file's category ids. Every image has its key, also one in which nothing was found or that cannot be read.

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

/// The file for a validation of `set`, which kept its detections.
///
/// # Errors
/// [`DataError::Invalid`] for an image that no COCO file lists.
pub fn submission(set: &ValSet, validation: &Validation) -> Result<Vec<u8>, DataError> {
    let ids = set.ids();
    let key = |index: usize| match ids.image(index) {
        Some(Value::String(text)) => Ok(text),
        Some(number) => Ok(number.to_string()),
        None => Err(DataError::Invalid("a submission names images by the ids of a COCO file, and some of these are in none".into())),
    };
    let mut entries: BTreeMap<String, Entry> = (0..set.len()).map(|i| Ok((key(i)?, Entry::default()))).collect::<Result<_, DataError>>()?;
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
    serde_json::to_vec(&entries).map_err(|e| DataError::Invalid(format!("a submission: {e}")))
}
