//! Initial weights: every draw is a hash of (seed, parameter name, element), so no device or order changes them.
//!
//! Convolutions are uniform in +-1/sqrt(fan_in) (the PyTorch default, Kaiming with a = sqrt 5); batch
//! normalisation starts as the identity; the head's box biases are 1 and its class biases assume about five
//! objects in a 640-pixel image: ln(5 / nc / (640 / stride)^2).

use bellows_learner::rng::{GOLDEN, mix};
use burn::tensor::Device;

use super::names::{NamedTensors, assign, named_tensors};
use super::summary::Summary;
use super::{Yolo, YoloConfig};

impl YoloConfig {
    /// Builds the model and draws its weights from `seed`; the same on every device.
    pub fn init(&self, seed: u64, device: &Device) -> Yolo {
        initialise(self.build(device), self, seed)
    }

    /// What it consists of, for images of this height and width; no weights are drawn for that.
    pub fn summary(&self, height: usize, width: usize, device: &Device) -> Summary {
        self.build(device).summary(height, width)
    }
}

fn initialise(mut model: Yolo, config: &YoloConfig, seed: u64) -> Yolo {
    let drawn = named_tensors(&model).into_iter().filter_map(|(name, shape, _)| {
        let values = values(&name, &shape, config, seed)?;
        Some((name, (shape, values)))
    });
    assign(&mut model, &drawn.collect::<NamedTensors>());
    model
}

/// The initial values of a parameter; none for those of batch normalisation, which are built as the identity.
fn values(name: &str, shape: &[usize], config: &YoloConfig, seed: u64) -> Option<Vec<f32>> {
    let n: usize = shape.iter().product();
    if shape.len() == 4 {
        let bound = 1.0 / ((shape[1] * shape[2] * shape[3]) as f32).sqrt();
        let stream = hash(seed ^ name.bytes().fold(0, |h, b| hash(h ^ u64::from(b))));
        return Some((0..n as u64).map(|i| bound * signed_unit(hash(stream.wrapping_add(i)))).collect());
    }
    let mut parts = name.split('.').skip(2);
    let (branch, level) = (parts.next()?, parts.next()?.parse::<usize>().ok()?);
    match (branch, parts.next()?, parts.next()?) {
        ("cv2", "2", "bias") => Some(vec![1.0; n]),
        ("cv3", "2", "bias") => {
            let cells = 640.0 / *config.strides().get(level)? as f64;
            Some(vec![(5.0 / config.nc as f64 / (cells * cells)).ln() as f32; n])
        }
        _ => None,
    }
}

/// Neighbours scattered.
fn hash(x: u64) -> u64 {
    mix(x.wrapping_add(GOLDEN))
}

/// The top 24 bits as a float in -1..1.
fn signed_unit(x: u64) -> f32 {
    (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::to_tensors;
    use burn::tensor::Device;

    #[test]
    fn weights_fill_their_bound_and_biases_follow_the_formula() {
        let tensors = to_tensors(&YoloConfig::new(4).init(0, &Device::flex()), 0).unwrap();
        let w = &tensors["model.8.m.0.cv1.conv.weight"].1;
        let bound = 1.0 / (128.0f32 * 9.0).sqrt();
        assert!(w.iter().all(|v| v.abs() <= bound));
        let mean = w.iter().sum::<f32>() / w.len() as f32;
        let var = w.iter().map(|v| v * v).sum::<f32>() / w.len() as f32;
        assert!(mean.abs() < 0.01 * bound, "{mean}");
        assert!((var / (bound * bound / 3.0) - 1.0).abs() < 0.02, "{var}");
        for (level, bias) in [-8.5409f32, -7.1546, -5.7683].into_iter().enumerate() {
            let cls = &tensors[&format!("model.22.cv3.{level}.2.bias")].1;
            assert!(cls.iter().all(|v| (v - bias).abs() < 1e-4), "{cls:?}");
            assert!(tensors[&format!("model.22.cv2.{level}.2.bias")].1.iter().all(|&v| v == 1.0));
        }
    }

    #[test]
    fn the_seed_and_the_name_decide_and_nothing_else() {
        let init = |seed, device: &Device| to_tensors(&YoloConfig::new(2).init(seed, device), 0).unwrap();
        let (plain, ad) = (Device::flex(), Device::flex().autodiff());
        assert_eq!(init(7, &plain), init(7, &ad));
        let (a, b) = (init(7, &plain), init(8, &plain));
        assert_ne!(a["model.0.conv.weight"], b["model.0.conv.weight"]);
        assert_ne!(a["model.2.m.0.cv1.conv.weight"], a["model.2.m.0.cv2.conv.weight"]);
    }
}
