//! Weights as training writes them: safetensors with every tensor of the state dict under its published name, f32, and a few facts as metadata.

use std::collections::BTreeMap;

use bellows_learner::TaskError;
use bellows_weights::{Tensor, to_safetensors};

use crate::model::Yolo;
use crate::model::names::to_tensors;

/// The file of `model`, which is not folded. `epoch` is how many it was trained for, where that is known.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_weights(model: &Yolo, names: &[String], imgsz: usize, epoch: Option<usize>) -> Result<Vec<u8>, TaskError> {
    let tensors = to_tensors(model, 0)?.into_iter().map(|(name, (shape, values))| {
        let tensor = if name.ends_with("num_batches_tracked") {
            Tensor::from_i64(shape, &values.iter().map(|&v| v as i64).collect::<Vec<_>>())
        } else {
            Tensor::from_f32(shape, &values)
        };
        (name, tensor)
    });
    let by_index: BTreeMap<usize, &String> = names.iter().enumerate().collect();
    let mut metadata = BTreeMap::from([
        ("format".to_string(), "pt".to_string()),
        ("task".to_string(), "detect".to_string()),
        ("nc".to_string(), names.len().to_string()),
        ("names".to_string(), serde_json::to_string(&by_index)?),
        ("imgsz".to_string(), imgsz.to_string()),
        ("sppf_act".to_string(), model.sppf_act().to_string()),
    ]);
    metadata.extend(epoch.map(|epoch| ("epoch".to_string(), epoch.to_string())));
    Ok(to_safetensors(&tensors.collect(), &metadata)?)
}
