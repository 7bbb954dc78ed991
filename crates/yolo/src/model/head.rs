//! The detection head: per level, one branch for box distributions and one for class logits; and what they mean.
//!
//! A box side is the expectation of a softmax over 16 bins (distances 0..15 in grid units), measured from the
//! anchor: the centre of the grid cell. The order of channels is side-major (left, top, right, bottom) x 16 bins,
//! then the classes; anchors run level by level (strides 8, 16, 32, with p2 a level of 4 before them), rows outside, columns inside.

use bellows_kernels::{concat, widen};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::layers::{Conv, Conv2d};

/// Pixels per grid cell of all levels there can be, the finest first.
const STRIDES: [usize; 4] = [4, 8, 16, 32];

/// Pixels per grid cell of each of `levels` levels, three or four: the coarsest are always there.
pub fn strides(levels: usize) -> &'static [usize] {
    &STRIDES[STRIDES.len() - levels.min(STRIDES.len())..]
}
/// Bins per box side.
pub const REG_MAX: usize = bellows_kernels::foreground::BINS;

/// Two 3x3 convolutions and a plain 1x1 one.
pub type Branch = (Conv, Conv, Conv2d);

/// The detection head.
#[derive(Module, Debug)]
pub struct Detect {
    /// Box branches of the levels: 64 channels out.
    pub cv2: Vec<Branch>,
    /// Class branches of the levels: `nc` channels out.
    pub cv3: Vec<Branch>,
}

impl Detect {
    /// For levels with so many channels each, the finest first.
    pub(super) fn new(channels: &[usize], nc: usize, device: &Device) -> Self {
        let c2 = (channels[0] / 4).max(4 * REG_MAX);
        let c3 = channels[0].max(nc.min(100));
        let branch = |cin, mid, out| -> Branch {
            (Conv::new(cin, mid, 3, 1, device), Conv::new(mid, mid, 3, 1, device), Conv2d::new(mid, out, 1, 1, true, device))
        };
        let branches = |mid, out| channels.iter().map(|&cin| branch(cin, mid, out)).collect();
        Self { cv2: branches(c2, 4 * REG_MAX), cv3: branches(c3, nc) }
    }

    /// Maps `[B, C, H/s, W/s]`, one a level, to raw outputs `[B, 64 + nc, H/s, W/s]`.
    pub fn forward(&self, x: Vec<Tensor<4>>) -> Vec<Tensor<4>> {
        let run = |b: &Branch, x: Tensor<4>| b.2.forward(b.1.forward(b.0.forward(x)));
        let branches = self.cv2.iter().zip(&self.cv3);
        x.into_iter().zip(branches).map(|(x, (cv2, cv3))| concat(vec![run(cv2, x.clone()), run(cv3, x)])).collect()
    }

    pub(super) fn fuse(&self, device: &Device) -> Self {
        let fuse = |b: &Branch| (b.0.fuse(device), b.1.fuse(device), b.2.clone());
        Self { cv2: self.cv2.iter().map(fuse).collect(), cv3: self.cv3.iter().map(fuse).collect() }
    }
}

/// The anchors of an input: cell centres in grid units, and the stride of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Anchors {
    /// `x + 0.5, y + 0.5` of every cell.
    pub centres: Vec<[f32; 2]>,
    /// Pixels per grid unit at that anchor.
    pub strides: Vec<f32>,
}

impl Anchors {
    /// Anchors for level sizes `[height, width]` in grid cells.
    pub fn new(sizes: &[[usize; 2]]) -> Self {
        let (mut centres, mut units) = (Vec::new(), Vec::new());
        for (&[h, w], &stride) in sizes.iter().zip(strides(sizes.len())) {
            centres.extend((0..h).flat_map(|y| (0..w).map(move |x| [x as f32 + 0.5, y as f32 + 0.5])));
            units.resize(centres.len(), stride as f32);
        }
        Self { centres, strides: units }
    }

    /// Anchors of raw outputs `[B, C, H/s, W/s]`.
    pub fn of(feats: &[Tensor<4>]) -> Self {
        let size = |feat: &Tensor<4>| {
            let [_, _, h, w] = feat.dims();
            [h, w]
        };
        Self::new(&feats.iter().map(size).collect::<Vec<_>>())
    }

    /// Number of anchors, A.
    pub fn len(&self) -> usize {
        self.strides.len()
    }

    /// Whether the input had no cell at all.
    pub fn is_empty(&self) -> bool {
        self.strides.is_empty()
    }

    /// Centres `[1, 2, A]` (x row, y row) in grid units and strides `[1, 1, A]`.
    pub(crate) fn tensors(&self, device: &Device) -> (Tensor<3>, Tensor<3>) {
        let n = self.len();
        let planes: Vec<f32> = (0..2).flat_map(|k| self.centres.iter().map(move |c| c[k])).collect();
        let centres = Tensor::from_data(TensorData::new(planes, [1, 2, n]), device);
        (centres, Tensor::from_data(TensorData::new(self.strides.clone(), [1, 1, n]), device))
    }
}

/// Joins the levels: raw outputs `[B, C, h, w]` to `[B, C, A]`, in f32 whatever the network computes in.
pub fn flatten(feats: &[Tensor<4>]) -> Tensor<3> {
    let [b, c, ..] = feats[0].dims();
    // Cells as the channels of images of one pixel, of which there are as many as channels.
    let flat = feats.iter().map(|f| {
        let [_, _, h, w] = f.dims();
        f.clone().reshape([b * c, h * w, 1, 1])
    });
    let flat = concat(flat.collect());
    let [_, cells, ..] = flat.dims();
    widen(flat.reshape([b, c, cells]))
}

/// The corners in pixels, `[B, 4, A]` (x1, y1, x2, y2), that flattened raw outputs `[B, 64 + nc, A]` mean.
pub fn decode_corners(flat: Tensor<3>, anchors: &Anchors) -> Tensor<3> {
    let (centres, strides) = anchors.tensors(&flat.device());
    let sides = bellows_kernels::expectation(flat, 4, REG_MAX);
    let low = centres.clone() - sides.clone().narrow(1, 0, 2);
    let high = centres + sides.narrow(1, 2, 2);
    Tensor::cat(vec![low, high], 1) * strides
}

/// Decodes raw outputs to `[B, 4 + nc, A]`: `xywh` in pixels, then scores in 0..1.
pub fn decode(feats: &[Tensor<4>]) -> Tensor<3> {
    let flat = flatten(feats);
    let scores = bellows_kernels::scores(flat.clone(), 4 * REG_MAX);
    let corners = decode_corners(flat, &Anchors::of(feats));
    let low = corners.clone().narrow(1, 0, 2);
    let high = corners.narrow(1, 2, 2);
    let centre = (low.clone() + high.clone()).div_scalar(2.0);
    Tensor::cat(vec![centre, high - low, scores], 1)
}
