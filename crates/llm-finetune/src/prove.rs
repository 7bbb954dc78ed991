//! Before a device computes anything that counts: whether it has the numbers, and the first layer of the model itself, compared with the processor's.

use bellows_cli::{Failure, Usage, say};
use bellows_device::{ProbeOptions, Selected, Work, processor};
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::precision::{Products, RunPrecision};
use bellows_qwen::prove::first_layer;
use bellows_qwen::speed::processor_level;

/// How far an accelerator's first layer may be from the processor's; f32 kernels are within 1e-5.
const PROVED: f64 = 1e-3;
/// The same in f16, whose products an accelerator rounds once more: 2^-11 of each.
const PROVED_F16: f64 = 1e-2;

/// What a device is to prove for a language model with these products.
pub(crate) fn by(products: Products) -> ProbeOptions {
    ProbeOptions { lowering: Some(products.lowering()), ..ProbeOptions::of(Work::LanguageModel) }
}

/// Refuses a precision that the device has no numbers for, and says where one is computed in f32.
pub(crate) fn has_numbers(precision: RunPrecision, device: &Selected) -> Result<(), Usage> {
    let [asked, f32] = [precision, RunPrecision::F32].map(|precision| processor_level(precision.of_products()));
    if precision == RunPrecision::Bf16x2 && (device.is_accelerator() || asked == f32) {
        say("precision bf16x2: in f32, which is as fast where there is no AMX");
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
