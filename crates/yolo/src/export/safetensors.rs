//! Weights as training writes them: safetensors with every tensor of the state dict under its published name, f32, and a few facts as metadata.

use std::collections::BTreeMap;

use bellows_weights::to_safetensors;
use serde_json::{Map, Value};

use super::error::ExportError;
use super::state::state_dict;
use crate::model::Yolo;
use crate::preprocessing::Preprocessing;

/// The file of `model`, which is not folded; `epoch`, where it is known, is the number of those it has learnt, `license` that of the weights.
///
/// # Errors
/// [`ExportError`].
pub fn to_weights(
    model: &Yolo,
    names: &[String],
    imgsz: usize,
    preprocessing: &Preprocessing,
    epoch: Option<usize>,
    license: Option<&str>,
) -> Result<Vec<u8>, ExportError> {
    let by_index: Map<String, Value> = names.iter().enumerate().map(|(i, name)| (i.to_string(), name.as_str().into())).collect();
    let mut metadata = BTreeMap::from([
        ("format".to_string(), "pt".to_string()),
        ("task".to_string(), "detect".to_string()),
        ("nc".to_string(), names.len().to_string()),
        ("names".to_string(), Value::Object(by_index).to_string()),
        ("imgsz".to_string(), imgsz.to_string()),
        ("sppf_act".to_string(), model.sppf_act().to_string()),
    ]);
    metadata.extend(epoch.map(|epoch| ("epoch".to_string(), epoch.to_string())));
    metadata.extend(license.map(|license| ("license".to_string(), license.to_string())));
    metadata.extend(preprocessing.facts());
    Ok(to_safetensors(&state_dict(model)?, &metadata)?)
}
