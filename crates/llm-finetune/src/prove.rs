//! Before a device computes anything that counts: the first layer of the model itself, compared with the processor's.

use bellows_cli::{Failure, Usage};
use bellows_device::{Selected, processor};
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::prove::first_layer;

/// How far an accelerator's first layer may be from the processor's; f32 kernels are within 1e-5.
const PROVED: f64 = 1e-3;

/// Refuses a device that does not compute the model as the processor does.
pub(crate) fn prove(model: &CausalLm, shape: &ModelConfig, device: &Selected) -> Result<(), Failure> {
    let error = match device.backend {
        "flex" => 0.0,
        _ => first_layer(model, shape, &device.device, &processor()),
    };
    if error < PROVED {
        return Ok(());
    }
    let (backend, name) = (device.backend, &device.name);
    let reason = format!("{backend} ({name}) computes the model's first layer wrongly (relative error {error:.3} against the processor)");
    Err(Usage(format!("{reason}: use --device cpu")).into())
}
