//! Proof, before anything is trained or said, that a device computes this model as another one does.
//!
//! A probe of a device tries a few shapes; a driver or an autotuned kernel may fail at others. So the model's own first layer, with its own sizes and
//! adapters, is run forward and backward on both, which takes moments where a wrong run takes hours.

use bellows_kernels::{Precision, enter, lead};
use bellows_learner::{Layout, ParamGrads, Rng, Role};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use crate::model::layers::Layer;
use crate::model::pass::Pass;
use crate::model::{CausalLm, ModelConfig};

/// Tokens that go through together.
const SEQ: usize = 32;
/// Tokens that go through then before a model speaks, which may be other kernels: one, as of an answer, and the most of which products are dot products.
const FEW: [usize; 2] = [1, 4];

/// The largest relative difference, ‖a − b‖ / ‖b‖, between `device` and `reference` over the first layer's outputs, the gradient of its input and
/// those of its trained parameters, and of the outputs of a few tokens alone if the model `speaks`; infinite where a device does not answer. The reference computes bf16 in f32, as accelerators do: a processor may
/// round its factors.
pub fn first_layer(model: &CausalLm, shape: &ModelConfig, precision: Precision, device: &Device, reference: &Device, speaks: bool) -> f64 {
    let Some(layer) = model.model.layers.first() else { return 0.0 };
    let exact = if matches!(precision, Precision::Bf16 | Precision::Bf16x2) { Precision::F32 } else { precision };
    let [ours, theirs] = [(device, precision), (reference, exact)]
        .map(|(device, precision)| run(layer, shape, precision, &device.clone().without_autodiff(), speaks));
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => ours.iter().zip(&theirs).map(|(a, b)| distance(a, b)).fold(0.0, f64::max),
        _ => f64::INFINITY,
    }
}

/// Output, input gradient and parameter gradients of Σ y ⊙ dy for a made-up input and dy; and the outputs of a few tokens if it `speaks`.
fn run(layer: &Layer, shape: &ModelConfig, precision: Precision, device: &Device, speaks: bool) -> Option<Vec<Vec<f32>>> {
    let layer = layer.clone().to_device(device).train();
    let size = [1, SEQ, shape.hidden_size];
    let noise = |name: &str| {
        let mut rng = Rng::new(0, name, 0, 0);
        let values: Vec<f32> = (0..SEQ * shape.hidden_size).map(|_| rng.uniform(-1.0, 1.0) as f32).collect();
        Tensor::<3>::from_data(TensorData::new(values, size), device)
    };
    let positions: Vec<i32> = (0..SEQ as i32).collect();
    let pass = Pass::new([1, SEQ], &positions, &[0; SEQ], shape, device).with_precision(precision).on(true);
    let x = Tensor::from_inner(noise("x")).require_grad();
    let y = layer.forward(enter(x.clone()), &pass, None);
    let mut graph = lead(y.clone(), Tensor::from_inner(noise("dy"))).backward();
    let mut grads = ParamGrads::default();
    grads.take(&layer, &mut graph);
    let layout = Layout::of(&layer, |_| Role::Trained(0));
    let mut all = vec![y.inner().reshape([-1]), x.grad_remove(&mut graph)?.reshape([-1])];
    let plain = layer.valid();
    all.extend(FEW.into_iter().filter(|_| speaks).map(|few| {
        let pass = Pass::new([1, few], &positions[..few], &[0; SEQ][..few], shape, device).with_precision(precision);
        plain.forward(noise("x").narrow(1, 0, few), &pass, None).reshape([-1])
    }));
    all.extend(layout.arrange(&layer, grads).into_iter().flatten());
    all.into_iter().map(|t: Tensor<1>| t.try_into_vec_as::<f32>().ok()).collect()
}

/// ‖a − b‖ / ‖b‖; where b is all zeros, ‖a‖.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let length = norm(&mut b.iter().map(|b| f64::from(*b)));
    let distance = if length > 0.0 { difference / length } else { difference };
    if a.len() == b.len() && !distance.is_nan() { distance } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::LoraConfig;
    use crate::base::random;

    #[test]
    fn wrong_numbers_are_seen() {
        let shape = ModelConfig::from_json(include_str!("../tests/golden/qwen2/model/config.json")).unwrap();
        let device = Device::flex();
        let model = LoraConfig::default().apply(random(&shape, 1, &device), 1).unwrap();
        assert_eq!(first_layer(&model, &shape, Precision::F32, &device, &device, true), 0.0);
        let frozen = random(&shape, 1, &device);
        assert_eq!(
            first_layer(&frozen, &shape, Precision::F32, &device, &device, true),
            0.0,
            "a model to talk to has nothing that is trained"
        );
        // Where the processor rounds factors, it is seen beside products in f32.
        let rounded = run(&model.model.layers[0], &shape, Precision::Bf16, &device, false).unwrap();
        let values = run(&model.model.layers[0], &shape, Precision::F32, &device, false).unwrap();
        let apart = rounded.iter().zip(&values).map(|(a, b)| distance(a, b)).fold(0.0, f64::max);
        assert_eq!(first_layer(&model, &shape, Precision::Bf16, &device, &device, false), apart);
        assert!(values.len() > 2 + 7, "no gradient of an adapter");
        let said = run(&model.model.layers[0], &shape, Precision::F32, &device, true).unwrap();
        let few: Vec<usize> = said[2..4].iter().map(Vec::len).collect();
        assert_eq!((said.len(), few), (values.len() + 2, vec![shape.hidden_size, 4 * shape.hidden_size]));
        // A token sees nothing behind it.
        assert!(distance(&said[2], &said[0][..shape.hidden_size]) < 1e-6);
        assert!(distance(&[1.0, 2.2], &[1.0, 2.0]) > 0.08);
        assert_eq!(distance(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(distance(&[0.5], &[0.0]), 0.5);
    }
}
