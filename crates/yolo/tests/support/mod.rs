//! Reading reference tensors, repeating their formulas, and a ten-line optimizer: shared by the parity tests.

use std::collections::BTreeMap;
use std::path::Path;

use bellows_yolo::boxes::{GroundTruth, Label};
use bellows_yolo::loss::assigner::{Foreground, Planes, assign};
use bellows_yolo::model::head::{Anchors, REG_MAX, decode_corners, flatten};
use bellows_yolo::model::names::NamedTensors;
use bellows_yolo::model::{Yolo, YoloConfig, names};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors};

/// All tensors of a file as floats.
pub(crate) fn read(path: &Path) -> NamedTensors {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |dtype, data: &[u8]| -> Vec<f32> {
        match dtype {
            Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::I64 => data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
            Dtype::I8 => data.iter().map(|&b| b as i8 as f32).collect(),
            Dtype::U8 => data.iter().map(|&b| f32::from(b)).collect(),
            other => panic!("{other:?}"),
        }
    };
    file.tensors().into_iter().map(|(name, t)| (name, (t.shape().to_vec(), floats(t.dtype(), t.data())))).collect()
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 64 random bits per element of the tensor called `name`.
pub(crate) fn draws(name: &str, n: usize) -> impl Iterator<Item = u64> {
    let stream = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    (0..n as u64).map(move |i| mix(stream.wrapping_add(i)))
}

/// Uniform values in `low..high`.
pub(crate) fn uniform(name: &str, n: usize, low: f32, high: f32) -> Vec<f32> {
    let (span, low) = ((f64::from(high) - f64::from(low)) as f32, low);
    draws(name, n).map(|x| (x >> 40) as f32 / (1 << 24) as f32 * span + low).collect()
}

/// Norm and eight projections on random signs.
pub(crate) fn sketch(name: &str, values: &[f32]) -> [f64; 9] {
    let mut out = [0.0; 9];
    for (bits, &v) in draws(name, values.len()).zip(values) {
        let v = f64::from(v);
        out[0] += v * v;
        for k in 0..8 {
            out[k + 1] += if bits >> k & 1 == 0 { v } else { -v };
        }
    }
    out[0] = out[0].sqrt();
    out
}

/// The greatest of these errors; one that is no number counts as infinite.
pub(crate) fn greatest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max)
}

/// How far a sketch is from its reference, relative to the norm: the projections of the difference are of its size.
pub(crate) fn sketch_error(own: [f64; 9], reference: &[f32]) -> f64 {
    assert_eq!(own.len(), reference.len());
    let norm = f64::from(reference[0]).max(1e-12);
    greatest(own.iter().zip(reference).map(|(a, &b)| (a - f64::from(b)).abs() / norm))
}

/// Norm of the difference over the norm of the reference.
pub(crate) fn relative(own: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(own.len(), reference.len());
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut own.iter().zip(reference).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    greatest([difference / norm(&mut reference.iter().map(|&v| f64::from(v))).max(1e-12)].into_iter())
}

/// The largest difference over the largest magnitude.
pub(crate) fn worst(own: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(own.len(), reference.len());
    let largest = reference.iter().fold(0.0f32, |m, v| m.max(v.abs())).max(1e-12);
    greatest(own.iter().zip(reference).map(|(a, b)| f64::from((a - b).abs() / largest)))
}

/// A model of size n with these weights on `device`, with autodiff.
pub(crate) fn model_from(weights: &NamedTensors, nc: usize, device: &Device) -> Yolo {
    let model = YoloConfig::new(nc).init(0, &device.clone().autodiff());
    let (model, report) = names::load_tensors(model, weights).unwrap();
    assert_eq!(report.transferred, report.total, "{report:?}");
    model
}

pub(crate) fn vec<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    names::to_host(t)
}

pub(crate) fn image(values: Vec<f32>, shape: [usize; 4], device: &Device) -> Tensor<4> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The assignment of raw outputs, as the loss makes it.
pub(crate) fn assignment(feats: &[Tensor<4>], targets: &[(u32, Label)]) -> Vec<Vec<Foreground>> {
    let feats: Vec<_> = feats.iter().cloned().map(Tensor::inner).collect();
    let [batch, _, h, w] = feats[0].dims();
    let mut gts = vec![vec![]; batch];
    for (image, label) in targets {
        gts[*image as usize].push(GroundTruth::new(label.class, label.xywh, [8.0 * w as f32, 8.0 * h as f32]));
    }
    let anchors = Anchors::of(&feats);
    let (flat, boxes) = (flatten(&feats), 4 * REG_MAX);
    let nc = flat.dims()[1] - boxes;
    let scores = vec(sigmoid(flat.clone().narrow(1, boxes, nc)));
    let (corners, classes) = (vec(decode_corners(flat, &anchors)), (0..nc as u32).collect::<Vec<_>>());
    let images = corners.chunks(4 * anchors.len()).zip(scores.chunks(nc * anchors.len()));
    assign(&images.map(|(corners, scores)| Planes::new(corners, scores, &classes)).collect::<Vec<_>>(), &gts, &anchors)
}

/// Gradients by parameter name.
pub(crate) fn gradients(model: &Yolo, grads: &Gradients) -> BTreeMap<String, Vec<f32>> {
    let mut visit = Visit { path: vec![], grads, found: BTreeMap::new() };
    model.visit(&mut visit);
    visit.found
}

struct Visit<'a> {
    path: Vec<String>,
    grads: &'a Gradients,
    found: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Visit<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum") {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        if !container.starts_with("Enum") {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = param.val().grad(self.grads) {
            self.found.insert(self.path.join("."), vec(grad));
        }
    }
}

/// Nesterov SGD as PyTorch does it: momentum 0.937, decay 5e-4 on convolution weights, global norm clipped to 10.
#[derive(Default)]
pub(crate) struct Sgd {
    momentum: BTreeMap<String, Vec<f32>>,
}

impl Sgd {
    pub(crate) fn step(&mut self, model: Yolo, grads: &Gradients, lr: f32) -> Yolo {
        let mut grads = gradients(&model, grads);
        let norm = grads.values().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        let clip = (10.0 / (norm as f32 + 1e-6)).min(1.0);
        grads.values_mut().flatten().for_each(|g| *g *= clip);
        model.map(&mut Update { path: vec![], grads, momentum: &mut self.momentum, lr })
    }
}

struct Update<'a> {
    path: Vec<String>,
    grads: BTreeMap<String, Vec<f32>>,
    momentum: &'a mut BTreeMap<String, Vec<f32>>,
    lr: f32,
}

impl ModuleMapper for Update<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum") {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        if !container.starts_with("Enum") {
            self.path.pop();
        }
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let Some(grad) = self.grads.remove(&name) else { return param };
        let decay = if D == 4 { 5e-4 } else { 0.0 };
        let shape = param.val().dims();
        let mut values = vec(param.val().inner());
        let first = !self.momentum.contains_key(&name);
        let buffer = self.momentum.entry(name).or_insert_with(|| vec![0.0; values.len()]);
        for ((p, g), m) in values.iter_mut().zip(grad).zip(buffer) {
            let g = g + decay * *p;
            *m = if first { g } else { 0.937 * *m + g };
            *p -= self.lr * (g + 0.937 * *m);
        }
        param.map(|old| Tensor::from_data(TensorData::new(values, shape), &old.device()).require_grad())
    }
}
