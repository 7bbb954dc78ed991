//! YOLOv8, sizes n to x: backbone, neck and head as one list of numbered layers.
//!
//! The numbering is the published one, because checkpoints name tensors by it (`model.22.cv2.0.2.weight`).
//! Nothing here reads files: `names` turns a model into named tensors and back.
//! Input sides must be multiples of 32; they need not be equal.

mod fused;
pub mod head;
mod init;
pub mod layers;
pub mod names;
mod planned;
pub mod summary;

use bellows_kernels::concat;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

pub use fused::Fused;
use head::Detect;
use layers::{C2f, Concat, Conv, Sppf, Upsample};

/// Model size: how deep and wide the common plan is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Nano, 3.2 million parameters.
    #[default]
    N,
    /// Small, 11.2 million.
    S,
    /// Medium, 25.9 million.
    M,
    /// Large, 43.7 million.
    L,
    /// Extra large, 68.2 million.
    X,
}

impl Scale {
    /// From small to large.
    pub const ALL: [Self; 5] = [Self::N, Self::S, Self::M, Self::L, Self::X];

    /// `n`, `s`, `m`, `l` or `x`.
    pub fn letter(self) -> &'static str {
        match self {
            Scale::N => "n",
            Scale::S => "s",
            Scale::M => "m",
            Scale::L => "l",
            Scale::X => "x",
        }
    }

    /// What it is known by: channels that leave layers 0 and 7, and bottlenecks of layer 4.
    pub(crate) fn looks(self) -> ([usize; 2], usize) {
        ([self.channels(64), self.channels(1024)], self.repeats(6))
    }

    /// Depth multiple, width multiple, and the most channels before the width multiple.
    pub(crate) fn table(self) -> (f64, f64, usize) {
        match self {
            Scale::N => (0.33, 0.25, 1024),
            Scale::S => (0.33, 0.50, 1024),
            Scale::M => (0.67, 0.75, 768),
            Scale::L => (1.00, 1.00, 512),
            Scale::X => (1.00, 1.25, 512),
        }
    }

    /// Output channels of a layer planned with `c`: a multiple of 8.
    fn channels(self, c: usize) -> usize {
        let (_, width, most) = self.table();
        (c.min(most) as f64 * width / 8.0).ceil() as usize * 8
    }

    /// Bottlenecks of a block planned with `n`.
    fn repeats(self, n: usize) -> usize {
        ((n as f64 * self.table().0).round_ties_even() as usize).max(1)
    }
}

/// What a model is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct YoloConfig {
    /// Size.
    pub scale: Scale,
    /// Number of classes, at least 1.
    pub nc: usize,
    /// Image channels.
    pub channels: usize,
    /// Whether the first convolution of the pooling pyramid is followed by SiLU. Checkpoints of release 8.4 have none.
    pub sppf_act: bool,
    /// A fourth, finer level of stride 4 for small objects (`yolov8n-p2`).
    #[serde(default)]
    pub p2: bool,
}

impl YoloConfig {
    /// Size n for colour images.
    pub fn new(nc: usize) -> Self {
        Self { scale: Scale::N, nc, channels: 3, sppf_act: true, p2: false }
    }

    /// Pixels per grid cell of the levels of the head, the finest first.
    pub fn strides(&self) -> &'static [usize] {
        head::strides(3 + usize::from(self.p2))
    }

    /// The architecture with every convolution zero.
    pub(crate) fn build(&self, device: &Device) -> Yolo {
        let s = self.scale;
        let [c1, c2, c3, c4, c5] = [64, 128, 256, 512, 1024].map(|c| s.channels(c));
        let down = |cin, cout| Layer::Conv(Conv::new(cin, cout, 3, 2, device));
        let c2f = |cin, cout, n, shortcut| Layer::C2f(C2f::new(cin, cout, s.repeats(n), shortcut, device));
        let mut model = vec![
            down(self.channels, c1),
            down(c1, c2),
            c2f(c2, c2, 3, true),
            down(c2, c3),
            c2f(c3, c3, 6, true), // 4: P3
            down(c3, c4),
            c2f(c4, c4, 6, true), // 6: P4
            down(c4, c5),
            c2f(c5, c5, 3, true),
            Layer::Sppf(Sppf::new(c5, self.sppf_act, device)), // 9: P5
            Layer::Upsample(Upsample),
            Layer::Concat(Concat::new(6)),
            c2f(c5 + c4, c4, 3, false),
            Layer::Upsample(Upsample),
            Layer::Concat(Concat::new(4)),
            c2f(c4 + c3, c3, 3, false), // 15: out, stride 8
        ];
        if self.p2 {
            model.extend([
                Layer::Upsample(Upsample),
                Layer::Concat(Concat::new(2)),
                c2f(c3 + c2, c2, 3, false), // 18: out, stride 4
                down(c2, c2),
                Layer::Concat(Concat::new(15)),
                c2f(c2 + c3, c3, 3, false), // 21: out, stride 8
            ]);
        }
        model.extend([
            down(c3, c3),
            Layer::Concat(Concat::new(12)),
            c2f(c3 + c4, c4, 3, false), // 18 (p2: 24): out, stride 16
            down(c4, c4),
            Layer::Concat(Concat::new(9)),
            c2f(c4 + c5, c5, 3, false), // 21 (p2: 27): out, stride 32
            Layer::Detect(if self.p2 {
                Detect::new(&[c2, c3, c4, c5], self.nc, device)
            } else {
                Detect::new(&[c3, c4, c5], self.nc, device)
            }),
        ]);
        Yolo { model, nc: self.nc, channels: self.channels, sppf_act: self.sppf_act, p2: self.p2 }
    }
}

/// One numbered layer.
#[derive(Module, Debug)]
pub enum Layer {
    /// Convolution block.
    Conv(Conv),
    /// Cross-stage block.
    C2f(C2f),
    /// Pooling pyramid.
    Sppf(Sppf),
    /// Nearest-neighbour doubling.
    Upsample(Upsample),
    /// Concatenation with an earlier layer.
    Concat(Concat),
    /// Detection head.
    Detect(Detect),
}

/// Layers whose maps the head reads.
const HEAD_INPUTS: [usize; 3] = [15, 18, 21];
/// The same with a level of stride 4.
const HEAD_INPUTS_P2: [usize; 4] = [18, 21, 24, 27];
/// Layers whose output is needed again by a layer of the neck.
const KEPT: [usize; 4] = [4, 6, 9, 12];
/// The same with a level of stride 4.
const KEPT_P2: [usize; 6] = [2, 4, 6, 9, 12, 15];
/// Layers before this one are the same whatever levels there are.
pub(crate) const COMMON: usize = 16;

/// A YOLOv8 detector.
#[derive(Module, Debug)]
pub struct Yolo {
    /// The numbered layers.
    pub model: Vec<Layer>,
    nc: usize,
    channels: usize,
    sppf_act: bool,
    p2: bool,
}

impl Yolo {
    /// Number of classes.
    pub fn nc(&self) -> usize {
        self.nc
    }

    /// Image channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// See [`YoloConfig::sppf_act`].
    pub fn sppf_act(&self) -> bool {
        self.sppf_act
    }

    /// See [`YoloConfig::p2`].
    pub fn p2(&self) -> bool {
        self.p2
    }

    /// Layers whose maps the head reads, the finest first.
    pub(crate) fn head_inputs(&self) -> &'static [usize] {
        if self.p2 { &HEAD_INPUTS_P2 } else { &HEAD_INPUTS }
    }

    /// Number of the head's layer.
    pub(crate) fn head(&self) -> usize {
        self.model.len() - 1
    }

    /// Freezes whole layers by their number: no gradient, and normalisation by the running statistics.
    pub fn freeze_layers(mut self, layers: &[usize]) -> Self {
        let frozen = |(i, layer): (usize, Layer)| if layers.contains(&i) { layer.freeze() } else { layer };
        self.model = self.model.into_iter().enumerate().map(frozen).collect();
        self
    }

    /// Raw head outputs `[B, 64 + nc, H/s, W/s]` for s = 8, 16, 32 (with p2 4 before them), of images `[B, C, H, W]` in 0..1.
    ///
    /// On an autodiff device the batch normalisation trains; on a plain one the model infers.
    ///
    /// # Panics
    /// If H or W is not a multiple of 32, or C is not the model's.
    pub fn forward(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        side_lengths(&images);
        let mut kept: Vec<Option<Tensor<4>>> = vec![None; self.model.len()];
        let take = |kept: &[Option<Tensor<4>>], i: usize| kept[i].clone().unwrap_or_else(|| unreachable!("layer {i} is kept"));
        let needed: &[usize] = if self.p2 { &KEPT_P2 } else { &KEPT };
        // The last layer's output; a concatenation's are maps side by side, for its reader to join or not.
        let mut x = vec![images];
        for (i, layer) in self.model.iter().enumerate() {
            x = match layer {
                Layer::Conv(m) => vec![m.forward(concat(x))],
                Layer::C2f(m) => vec![m.forward(x)],
                Layer::Sppf(m) => vec![m.forward(concat(x))],
                Layer::Upsample(m) => vec![m.forward(concat(x))],
                Layer::Concat(m) => {
                    x.push(take(&kept, m.with()));
                    x
                }
                Layer::Detect(m) => return m.forward(self.head_inputs().iter().map(|&i| take(&kept, i)).collect()),
            };
            if needed.contains(&i) || self.head_inputs().contains(&i) {
                kept[i] = Some(concat(x.clone()));
            }
        }
        unreachable!("the last layer is the head")
    }

    /// Boxes `xywh` in pixels and class scores in 0..1, `[B, 4 + nc, A]`, of raw outputs.
    pub fn decode(&self, feats: &[Tensor<4>]) -> Tensor<3> {
        head::decode(feats)
    }
}

/// Rows and columns of `[B, C, H, W]`. Panics unless the maps of every stride divide them.
fn side_lengths(images: &Tensor<4>) -> [usize; 2] {
    let [.., h, w] = images.dims();
    assert!(h % 32 == 0 && w % 32 == 0, "input sides {h} x {w} are not multiples of 32");
    [h, w]
}

#[cfg(test)]
mod tests {
    use super::names::{to_host, to_tensors};
    use super::*;

    fn image(device: &Device) -> Tensor<4> {
        Tensor::<1, burn::tensor::Int>::arange(0..3 * 32 * 64, device).float().reshape([1, 3, 32, 64]).div_scalar(6144.0)
    }

    #[test]
    fn frozen_layers_keep_their_statistics_and_get_no_gradient() {
        let device = Device::flex().autodiff();
        let model = YoloConfig::new(2).init(0, &device).freeze_layers(&[0, 2]);
        let before = to_tensors(&model, 0).unwrap();
        let p3 = model.forward(image(&device)).swap_remove(0);
        let grads = p3.sum().backward();
        let after = to_tensors(&model, 0).unwrap();
        for (name, moves) in [("model.0", false), ("model.1", true), ("model.2.cv1", false), ("model.3", true)] {
            let key = format!("{name}.bn.running_mean");
            assert_eq!(before[&key] != after[&key], moves, "{key}");
        }
        let grad = |i: usize| match &model.model[i] {
            Layer::Conv(m) => m.conv.weight.val().grad(&grads).is_some(),
            other => panic!("{other}"),
        };
        assert_eq!([grad(0), grad(1), grad(3)], [false, true, true]);
    }

    #[test]
    fn a_pyramid_without_activation_is_another_model() {
        let device = Device::flex().autodiff();
        let run = |sppf_act| {
            let feats = YoloConfig { sppf_act, ..YoloConfig::new(2) }.init(0, &device).forward(image(&device));
            to_host(feats[2].clone())
        };
        assert_eq!(run(true).len(), (64 + 2) * 2);
        assert_ne!(run(true), run(false));
    }

    #[test]
    fn a_level_of_stride_4_is_the_first_and_the_names_are_the_published_ones() {
        let device = Device::flex();
        let model = YoloConfig { p2: true, ..YoloConfig::new(2) }.init(0, &device);
        let sizes: Vec<[usize; 4]> = model.forward(image(&device)).iter().map(Tensor::dims).collect();
        assert_eq!(sizes, [[1, 66, 8, 16], [1, 66, 4, 8], [1, 66, 2, 4], [1, 66, 1, 2]]);
        let decoded = model.decode(&model.forward(image(&device)));
        assert_eq!(decoded.dims(), [1, 6, 128 + 32 + 8 + 2]);
        let tensors = to_tensors(&model, 0).unwrap();
        assert_eq!((tensors.len(), &tensors["model.28.cv2.0.0.conv.weight"].0), (437, &vec![64, 32, 3, 3]));
        assert!(
            tensors.contains_key("model.28.dfl.conv.weight")
                && tensors["model.28.cv3.0.2.bias"].1.iter().all(|b| (b + 9.2341).abs() < 1e-3)
        );
    }
}
