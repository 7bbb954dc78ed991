//! Before a device computes anything that counts: whether it has the numbers, and the first layer of the model itself, compared with the processor's.

use bellows_cli::{Failure, Usage, note};
use bellows_device::{ProbeOptions, Selected, Shape, Work, processor};
use bellows_qwen::config::SftConfig;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::precision::{Products, RunPrecision};
use bellows_qwen::prove::first_layer;

/// How far an accelerator's first layer may be from the processor's; f32 kernels are within 1e-5.
const PROVED: f64 = 1e-3;
/// The same in f16, whose products an accelerator rounds once more: 2^-11 of each.
const PROVED_F16: f64 = 1e-2;

/// What a device is to prove for a language model with these products.
pub(crate) fn by(products: Products) -> ProbeOptions {
    ProbeOptions { lowering: Some(products.lowering()), ..ProbeOptions::of(Work::LanguageModel) }
}

/// The same for a run of this model, in its precision and with its own maps.
pub(crate) fn of_run(config: &SftConfig, model: Option<&ModelConfig>) -> ProbeOptions {
    let work = if config.precision.is_f16() { Work::HalfLanguageModel } else { Work::LanguageModel };
    ProbeOptions { work, shapes: model.map(maps).unwrap_or_default(), ..by(config.products) }
}

/// The maps of a layer, each shape once.
fn maps(model: &ModelConfig) -> Vec<Shape> {
    let (hidden, inner) = (model.hidden_size, model.intermediate_size);
    let [queries, keys] = [model.num_attention_heads, model.num_key_value_heads].map(|heads| heads * model.head_dim);
    let mut all = [[queries, hidden], [keys, hidden], [hidden, queries], [inner, hidden], [hidden, inner]].map(Shape::Map).to_vec();
    all.sort();
    all.dedup();
    all
}

/// Refuses a precision that the device has no numbers for, and tells of one that it has no products of.
pub(crate) fn has_numbers(precision: RunPrecision, device: &Selected) -> Result<(), Usage> {
    if let Some(instead) = precision.instead(&device.device) {
        let (asked, backend, name) = (precision.name(), device.backend, &device.name);
        note(&format!("warning: precision {asked}: {backend} ({name}) has no products of {asked}, so they are computed in {instead}"));
    }
    if !precision.is_f16() || device.has_f16() {
        return Ok(());
    }
    Err(Usage(format!("precision {}: {} ({}) has no f16; f32 is computed everywhere", precision.name(), device.backend, device.name)))
}

/// Refuses a device that does not compute the model as the processor does in the same precision.
pub(crate) fn prove(model: &CausalLm, shape: &ModelConfig, precision: RunPrecision, device: &Selected) -> Result<(), Failure> {
    let error = match device.backend {
        "flex" => 0.0,
        _ => first_layer(model, shape, precision.of_products(), &device.device, &processor()),
    };
    if error < if precision.is_f16() { PROVED_F16 } else { PROVED } {
        return Ok(());
    }
    let (backend, name) = (device.backend, &device.name);
    let reason = format!("{backend} ({name}) computes the model's first layer wrongly (relative error {error:.3} against the processor)");
    Err(Usage(format!("{reason}: use --device cpu")).into())
}
