//! The state dict as tensors of a file.

use bellows_weights::{Tensor, Tensors};

use super::error::ExportError;
use crate::model::Yolo;
use crate::model::names::to_tensors;

/// Every tensor under its published name: counters as i64, all else f32.
///
/// # Errors
/// A folded model, which has no such tensors, or a device that cannot hand one back.
pub(super) fn state_dict(model: &Yolo) -> Result<Tensors, ExportError> {
    let tensors = to_tensors(model, 0)?;
    if !tensors.contains_key("model.0.bn.weight") {
        return Err(ExportError::Folded);
    }
    let tensors = tensors.into_iter().map(|(name, (shape, values))| {
        let tensor = if name.ends_with("num_batches_tracked") {
            Tensor::from_i64(shape, &values.iter().map(|&v| v as i64).collect::<Vec<_>>())
        } else {
            Tensor::from_f32(shape, &values)
        };
        (name, tensor)
    });
    Ok(tensors.collect())
}
