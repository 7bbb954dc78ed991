//! What the model is made of: layers, parameters, gradients, operations; and which optimizer group a name is in.
//!
//! GFLOPs follow the convention of the `thop` profiler, which detector users compare with: two operations for
//! each multiplication of a convolution, eight for each output of a batch normalisation before fusing;
//! everything else is free.

use bellows_kernels::cube::{Maps, side_by_side};

use super::head::REG_MAX;
use super::layers::{C2f, Conv, Conv2d};
use super::names::{Kind, named_tensors};
use super::planned::sizes;
use super::{Layer, Yolo};

/// The optimizer groups, by what a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamGroup {
    /// Biases of convolutions and batch normalisation: no weight decay, own warm-up of the learning rate.
    Bias,
    /// Convolution weights: decayed.
    Decay,
    /// Batch-normalisation weights: no decay.
    NoDecay,
}

/// The group of a parameter by its state-dict name.
pub fn param_group(name: &str) -> ParamGroup {
    if name.contains("bias") {
        ParamGroup::Bias
    } else if name.contains("bn.") {
        ParamGroup::NoDecay
    } else {
        ParamGroup::Decay
    }
}

/// The layer a tensor belongs to: the number after `model.`.
pub fn layer_index(name: &str) -> Option<usize> {
    name.strip_prefix("model.")?.split('.').next()?.parse().ok()
}

/// One convolution of the network at a given image size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Convolution {
    /// Channels of its input.
    pub cin: usize,
    /// Those of the maps that its input is in training, side by side.
    pub maps: Maps,
    /// Channels of its output.
    pub cout: usize,
    /// Side of the kernel; it is padded by half of it.
    pub k: usize,
    /// Step.
    pub stride: usize,
    /// Height and width of its input.
    pub input: [usize; 2],
    /// Whether batch normalisation follows.
    pub normed: bool,
}

impl Convolution {
    /// Number of outputs for one image.
    pub fn outputs(&self) -> usize {
        self.cout * (self.input[0] / self.stride) * (self.input[1] / self.stride)
    }

    /// Multiplications and additions for one image, each counted.
    pub fn flops(&self) -> u64 {
        2 * (self.outputs() * self.cin * self.k * self.k) as u64
    }
}

/// The figures of the summary line.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Modules without parts of their own.
    pub layers: usize,
    /// Parameters, with the 16 constant ones of the box expectation.
    pub parameters: usize,
    /// Parameters that can get a gradient.
    pub gradients: usize,
    /// Every convolution, in the order of the layers.
    pub convolutions: Vec<Convolution>,
    /// Billions of operations for one image of the given size (see the file's head for the convention).
    pub gflops: f64,
}

impl Summary {
    /// Multiplications and additions to train on an image, each counted: forward, and both gradients of all convolutions but the first, whose input has none.
    pub fn work(&self) -> f64 {
        let first = self.convolutions.first().map_or(0, Convolution::flops);
        (3 * self.convolutions.iter().map(Convolution::flops).sum::<u64>() - first) as f64
    }
}

impl Yolo {
    /// Layers, parameters, gradients and operations for an input of `height` x `width` pixels.
    pub fn summary(&self, height: usize, width: usize) -> Summary {
        let tensors = named_tensors(self);
        let params = tensors.iter().filter(|t| t.2 == Kind::Param);
        let gradients: usize = params.map(|(_, shape, _)| shape.iter().product::<usize>()).sum();
        let moved = self.model.iter().filter(|layer| matches!(layer, Layer::Upsample(_) | Layer::Concat(_))).count();
        let mut count = Count { layers: LAYERS_WITHOUT_PARAMETERS + moved, convolutions: Vec::new(), flops: 0 };
        count.model(self, [height, width]);
        Summary {
            layers: count.layers,
            parameters: gradients + REG_MAX,
            gradients,
            convolutions: count.convolutions,
            gflops: count.flops as f64 / 1e9,
        }
    }
}

/// One activation that all share, one pooling, the box expectation; upsamplings and concatenations are counted.
const LAYERS_WITHOUT_PARAMETERS: usize = 1 + 1 + 1;

struct Count {
    layers: usize,
    convolutions: Vec<Convolution>,
    flops: u64,
}

impl Count {
    fn model(&mut self, yolo: &Yolo, mut size: [usize; 2]) {
        let mut head_sizes = Vec::new();
        let channels: Vec<usize> = sizes(&yolo.model, [yolo.channels, 1]).into_iter().map(|[channels, _]| channels).collect();
        for (i, layer) in yolo.model.iter().enumerate() {
            match layer {
                Layer::Conv(m) => size = self.conv(m, size),
                Layer::C2f(m) => match &yolo.model[i - 1] {
                    Layer::Concat(before) => self.c2f(m, &[channels[i - 2], channels[before.with()]], size),
                    _ => self.c2f(m, &[channels[i - 1]], size),
                },
                Layer::Sppf(m) => {
                    self.conv(&m.cv1, size);
                    self.joined(&m.cv2, &[m.cv1.out_channels(); 4], size);
                }
                Layer::Upsample(_) => size = size.map(|s| 2 * s),
                Layer::Concat(_) => {}
                Layer::Detect(m) => {
                    for (level, &size) in head_sizes.iter().enumerate() {
                        for (a, b, plain) in [&m.cv2[level], &m.cv3[level]] {
                            self.convs([a, b], size);
                            self.conv2d(plain, None, size, false);
                        }
                        self.flops += 2 * (4 * REG_MAX * size[0] * size[1]) as u64;
                    }
                }
            }
            if yolo.head_inputs().contains(&i) {
                head_sizes.push(size);
            }
        }
    }

    fn c2f(&mut self, m: &C2f, maps: &[usize], size: [usize; 2]) {
        self.convs(m.m.iter().flat_map(|b| [&b.cv1, &b.cv2]), size);
        self.joined(&m.cv1, maps, size);
        let chain = std::iter::repeat_n(m.hidden(), m.m.len());
        self.joined(&m.cv2, &std::iter::once(2 * m.hidden()).chain(chain).collect::<Vec<_>>(), size);
    }

    fn convs<'a>(&mut self, convs: impl IntoIterator<Item = &'a Conv>, size: [usize; 2]) {
        for conv in convs {
            self.conv(conv, size);
        }
    }

    /// Convolution and normalisation; returns the output's size.
    fn conv(&mut self, m: &Conv, size: [usize; 2]) -> [usize; 2] {
        self.conv_of(m, None, size)
    }

    /// The same of maps with so many channels side by side.
    fn joined(&mut self, m: &Conv, maps: &[usize], size: [usize; 2]) {
        self.conv_of(m, Some(side_by_side(maps)), size);
    }

    fn conv_of(&mut self, m: &Conv, maps: Option<Maps>, size: [usize; 2]) -> [usize; 2] {
        let (outputs, size) = self.conv2d(&m.conv, maps, size, m.bn.is_some());
        self.layers += 1;
        self.flops += 8 * outputs as u64;
        size
    }

    /// The number of outputs and their size.
    fn conv2d(&mut self, m: &Conv2d, maps: Option<Maps>, size: [usize; 2], normed: bool) -> (usize, [usize; 2]) {
        let [cout, cin, k, _] = m.weight.val().dims();
        let maps = maps.unwrap_or_else(|| side_by_side(&[cin]));
        let convolution = Convolution { cin, maps, cout, k, stride: m.stride(), input: size, normed };
        self.layers += 1;
        self.flops += convolution.flops();
        self.convolutions.push(convolution);
        (convolution.outputs(), size.map(|s| s / m.stride()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Scale, YoloConfig};
    use burn::tensor::Device;

    fn summary(scale: Scale, nc: usize) -> Summary {
        YoloConfig { scale, ..YoloConfig::new(nc) }.build(&Device::flex()).summary(640, 640)
    }

    #[test]
    fn sizes_and_operations_are_the_published_ones() {
        for (scale, nc, layers, parameters, gflops) in [
            (Scale::N, 1, 129, 3_011_043, 8.1917),
            (Scale::N, 4, 129, 3_011_628, 8.1949),
            (Scale::N, 5, 129, 3_011_823, 8.1960),
            (Scale::N, 80, 129, 3_157_200, 8.8551),
            (Scale::S, 80, 129, 11_166_560, 28.8119),
            (Scale::M, 80, 169, 25_902_640, 79.3137),
            (Scale::L, 80, 209, 43_691_520, 165.7347),
            (Scale::X, 80, 209, 68_229_648, 258.5370),
        ] {
            let s = summary(scale, nc);
            assert_eq!((s.layers, s.parameters, s.gradients), (layers, parameters, parameters - 16), "{scale:?} {nc}");
            assert!((s.gflops - gflops).abs() < 1e-4, "{scale:?} {nc}: {} GFLOPs", s.gflops);
        }
    }

    /// Maps that a convolution reads side by side are its input: of the blocks what lies before their mixing, of the neck a deeper map and one of before.
    #[test]
    fn inputs_are_maps_side_by_side() {
        for scale in [Scale::N, Scale::X] {
            assert!(summary(scale, 4).convolutions.iter().all(|c| c.maps.iter().sum::<usize>() == c.cin), "{scale:?}");
        }
        let several = |scale| {
            let all = summary(scale, 4).convolutions.into_iter();
            all.filter(|c| c.maps[1] > 0).map(|c| c.maps).collect::<Vec<_>>()
        };
        let nano = several(Scale::N);
        assert_eq!((nano.len(), nano[0], nano[1]), (13, [32, 16, 0, 0, 0], [64, 32, 32, 0, 0]));
        assert_eq!(nano[4..9], [[128, 128, 128, 128, 0], [256, 128, 0, 0, 0], [128, 64, 0, 0, 0], [128, 64, 0, 0, 0], [64, 32, 0, 0, 0]]);
        // Six bottlenecks: two maps more than have a place.
        assert!(several(Scale::X).contains(&[320, 160, 160, 160, 480]));
    }

    /// As docs/benchmarks.md counts a step of four images.
    #[test]
    fn training_is_three_passes_but_for_the_image() {
        let gflop = 4.0 * summary(Scale::N, 4).work() / 1e9;
        assert!((gflop - 96.7).abs() < 0.1, "{gflop} GFLOP");
    }

    #[test]
    fn a_finer_level_has_the_published_parameters() {
        for (scale, nc, parameters) in [
            (Scale::N, 80, 3_354_144),
            (Scale::N, 4, 2_927_088),
            (Scale::S, 80, 10_884_336),
            (Scale::M, 80, 25_082_496),
            (Scale::L, 80, 42_888_080),
            (Scale::X, 80, 66_637_536),
        ] {
            let s = YoloConfig { scale, p2: true, ..YoloConfig::new(nc) }.build(&Device::flex()).summary(640, 640);
            assert_eq!(s.parameters, parameters, "{scale:?} {nc}");
        }
    }

    #[test]
    fn groups_split_as_the_optimizer_expects() {
        let names = named_tensors(&YoloConfig::new(4).build(&Device::flex()));
        let count = |g| names.iter().filter(|(n, _, k)| *k == Kind::Param && param_group(n) == g).count();
        // The decayed group of the reference has one more: the constant of the box expectation, which never changes.
        assert_eq!([ParamGroup::Bias, ParamGroup::Decay, ParamGroup::NoDecay].map(count), [63, 63, 57]);
        assert_eq!(layer_index("model.22.cv2.0.2.weight"), Some(22));
        assert_eq!(layer_index("optimizer.step"), None);
    }
}
