//! The detector as it is used: every batch normalisation folded into its convolution, once.
//!
//! W' = W gamma / sqrt(var + eps) for each output channel, b' = beta - gamma mean / sqrt(var + eps), with the running statistics. Validation,
//! prediction and export all see this form. It has no statistics to move and is not trained; what was trained keeps its own form. On the processor
//! its passes are [`planned`](super::planned).

use std::sync::{Arc, Mutex, PoisonError};

use bellows_kernels::{Lowering, default_lowering, inference};
use burn::tensor::{Device, Tensor};

use super::names::{NamedTensors, to_tensors};
use super::planned::Plan;
use super::{Layer, Yolo};

/// A detector for inference.
#[derive(Clone, Debug)]
pub struct Fused {
    network: Yolo,
    /// What the last pass on the processor went by.
    made: Arc<Mutex<Option<Made>>>,
}

/// The plan for a lowering; none where the convolutions are Burn's own.
#[derive(Debug)]
struct Made {
    lowering: Lowering,
    plan: Option<Arc<Plan>>,
}

impl Yolo {
    /// This model's inference form on `device`, which must not be an autodiff device.
    pub fn fuse(&self, device: &Device) -> Fused {
        let fuse = |layer: &Layer| match layer {
            Layer::Conv(m) => Layer::Conv(m.fuse(device)),
            Layer::C2f(m) => Layer::C2f(m.fuse(device)),
            Layer::Sppf(m) => Layer::Sppf(m.fuse(device)),
            Layer::Detect(m) => Layer::Detect(m.fuse(device)),
            other @ (Layer::Upsample(_) | Layer::Concat(_)) => other.clone(),
        };
        Fused { network: Self { model: self.model.iter().map(fuse).collect(), ..self.clone() }, made: Arc::default() }
    }
}

impl Fused {
    /// Number of classes.
    pub fn nc(&self) -> usize {
        self.network.nc
    }

    /// Image channels.
    pub fn channels(&self) -> usize {
        self.network.channels
    }

    /// See [`YoloConfig::sppf_act`](super::YoloConfig::sppf_act).
    pub fn sppf_act(&self) -> bool {
        self.network.sppf_act
    }

    /// Its layers, in which no batch normalisation is left.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.network.model
    }

    pub(crate) fn into_inner(self) -> Yolo {
        self.network
    }

    /// See [`Yolo::head_inputs`].
    pub(crate) fn head_inputs(&self) -> &'static [usize] {
        self.network.head_inputs()
    }

    /// As [`Yolo::forward`].
    ///
    /// # Panics
    /// As there.
    pub fn forward(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        let plan = if inference::applies(&images) { self.plan(default_lowering()) } else { None };
        match plan {
            Some(plan) => plan.run(images),
            None => self.network.forward(images),
        }
    }

    /// The plan for a lowering, made when it is asked for first.
    fn plan(&self, lowering: Lowering) -> Option<Arc<Plan>> {
        let made = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made().as_ref().filter(|made| made.lowering == lowering) {
            return made.plan.clone();
        }
        // Not under the lock: weights are prepared on threads that may be waiting for it.
        let plan = Plan::new(&self.network, lowering).map(Arc::new);
        *made() = Some(Made { lowering, plan: plan.clone() });
        plan
    }

    /// As [`Yolo::decode`].
    pub fn decode(&self, feats: &[Tensor<4>]) -> Tensor<3> {
        self.network.decode(feats)
    }

    /// Its tensors under the published names: `model.0.conv.weight`, `model.0.conv.bias`, ..., 127 for sizes n and s with the constant of the
    /// box expectation.
    ///
    /// # Errors
    /// When the device cannot hand a tensor back.
    pub fn tensors(&self) -> Result<NamedTensors, burn::store::burn_pack::Error> {
        to_tensors(&self.network, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::YoloConfig;
    use super::super::names::{load_tensors, to_host};
    use super::*;

    #[test]
    fn folding_changes_no_output_and_happens_once() {
        let device = Device::flex();
        let model = YoloConfig { sppf_act: false, ..YoloConfig::new(3) }.init(1, &device);
        // Statistics and scales that are not the identity's.
        let mut tensors = to_tensors(&model, 0).unwrap();
        for (name, (_, values)) in tensors.iter_mut().filter(|(name, _)| name.contains(".bn.")) {
            let (low, span) = if name.ends_with("running_var") { (0.5, 1.0) } else { (-0.2, 0.4) };
            values.iter_mut().enumerate().for_each(|(i, v)| *v = low + span * ((i * 7 + name.len()) % 11) as f32 / 10.0);
        }
        let (model, _) = load_tensors(model, &tensors).unwrap();
        let fused = model.fuse(&device);
        let image = Tensor::<1, burn::tensor::Int>::arange(0..3 * 32 * 64, &device).float().reshape([1, 3, 32, 64]).div_scalar(6144.0);
        let outputs = |feats: Vec<Tensor<4>>| feats.into_iter().map(to_host).collect::<Vec<_>>().concat();
        let expected = outputs(model.forward(image.clone()));
        assert_eq!(outputs(fused.forward(image.clone())), expected, "the same sums in the same order");
        assert_eq!(outputs(fused.network.fuse(&device).forward(image)), expected);
        let names = fused.tensors().unwrap();
        assert_eq!(names.len(), 57 * 2 + 6 * 2 + 1);
        assert!(names.contains_key("model.2.m.0.cv1.conv.bias") && !names.keys().any(|name| name.contains(".bn.")));
    }
}
