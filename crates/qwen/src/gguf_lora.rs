//! An adapter as a GGUF of its own, which llama.cpp (`--lora`) and Ollama (`ADAPTER`) put on a model they have.
//!
//! llama.cpp scales a pair by α / r with one α for the file and each pair's own rank. What that cannot say, it is told otherwise: α √r
//! stands for α of rank-stabilised scaling, and the factor of a pair with an α of its own is in its B.

use std::path::Path;

use bellows_weights::gguf::{Metadata, TensorInfo, Value};
use bellows_weights::{BlockType, Tensors};
use indexmap::IndexMap;

use crate::adapter::LoraConfig;
use crate::export::{ExportError, write_file};
use crate::maps::of_model;
use crate::model::ModelConfig;
use crate::peft::{self, PREFIX};
use crate::stored::{gguf_name, pairs_from_halves, rotated_heads};

/// Writes a LoRA adapter (`tensors` under PEFT's names, for a model of this shape) as a GGUF of f32, under `path` once it is complete.
///
/// # Errors
/// DoRA and `modules_to_save`, which the format cannot hold; a tensor that is missing, is not finite, has another shape or no place in the
/// model; a file that cannot be written.
pub fn write_gguf_lora(
    path: &Path,
    adapter: &LoraConfig,
    mut tensors: Tensors,
    config: &ModelConfig,
    name: &str,
) -> Result<(), ExportError> {
    let refuse =
        |what: &str| ExportError::Adapter(format!("a GGUF adapter cannot hold {what}: export the merged model instead (--format gguf)"));
    if adapter.use_dora {
        return Err(refuse("DoRA's magnitudes"));
    }
    if !adapter.modules_to_save.is_empty() {
        return Err(refuse(&format!("modules_to_save ({})", adapter.modules_to_save.join(", "))));
    }
    let root = if adapter.use_rslora { (adapter.r as f64).sqrt() } else { 1.0 };
    // To llama.cpp an α of 0 says that there is none.
    let file_alpha = Some(adapter.lora_alpha * root).filter(|alpha| alpha.is_normal()).unwrap_or(1.0);
    let (mut infos, mut values) = (IndexMap::new(), IndexMap::new());
    for (layer, module, [out, input]) in of_model(config) {
        let Some(spec) = adapter.spec(&module, layer, 0).map_err(|e| ExportError::Adapter(e.to_string()))? else { continue };
        let (weight, rank) = (format!("{module}.weight"), spec.rank);
        let base = gguf_name(&weight).unwrap_or_else(|| weight.clone());
        for (half, shape) in [("lora_A", vec![rank, input]), ("lora_B", vec![out, rank])] {
            let name = format!("{PREFIX}{module}.{half}.weight");
            let mut elements = peft::values(&mut tensors, &name, &shape).map_err(ExportError::Adapter)?;
            if half == "lora_B" {
                let factor = (spec.scaling * rank as f64 / file_alpha) as f32;
                elements.iter_mut().for_each(|x| *x *= factor);
                // Rows of B are rows of the map, and stand in its order.
                if let Some(heads) = rotated_heads(&weight, config).filter(|_| config.architecture.gguf_interleaved()) {
                    elements = pairs_from_halves(&elements, heads, out);
                }
            }
            let stored = format!("{base}.{}", half.to_lowercase());
            infos.insert(stored.clone(), TensorInfo { kind: BlockType::F32, shape });
            values.insert(stored, elements);
        }
    }
    if let Some(extra) = tensors.keys().next() {
        return Err(ExportError::Adapter(format!("a GGUF adapter of this model has no place for {extra}")));
    }
    let metadata: Metadata = [
        ("general.architecture", config.architecture.gguf_name().into()),
        ("general.type", "adapter".into()),
        ("adapter.type", "lora".into()),
        ("general.name", name.into()),
        ("adapter.lora.alpha", Value::F32(file_alpha as f32)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    write_file(path, &metadata, &infos, |name| Ok(values.swap_remove(name).unwrap_or_default())).map(drop)
}
