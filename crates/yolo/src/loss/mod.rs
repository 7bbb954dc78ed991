//! The detection loss of YOLOv8: complete IoU for boxes, distribution focal loss for their sides, binary cross
//! entropy for classes.
//!
//! Predictions travel to the host once per step, decoded and without gradient, for the assigner: boxes, and scores of the
//! classes an image has objects of. Box terms are computed on the foreground anchors only. Class scores have one non-zero target per
//! foreground anchor, so their cross entropy is the sum of `softplus(x)` over everything minus `x t` over the foreground.

pub mod assigner;
pub mod ciou;
pub mod dfl;
pub mod topk;

use std::collections::BTreeSet;

use bellows_kernels::softplus_sum;
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::boxes::{GroundTruth, Label};
use crate::model::head::{Anchors, REG_MAX, decode_corners, expectation, flatten, strides};
use crate::model::names::to_host;
use assigner::{Foreground, Planes, assign};

/// The loss and its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectionLoss {
    /// Number of classes.
    pub nc: usize,
    /// Weight of the box term.
    pub box_gain: f32,
    /// Weight of the class term.
    pub cls: f32,
    /// Weight of the distribution term.
    pub dfl: f32,
}

/// What a batch's loss is.
#[derive(Clone, Debug)]
pub struct LossOutput {
    /// The optimised scalar: the sum of the weighted terms times the batch size, `[1]`.
    pub total: Tensor<1>,
    /// Weighted box, class and distribution terms, not times the batch size, without gradient, `[3]`.
    pub items: Tensor<1>,
    /// Objects in the batch.
    pub objects: usize,
    /// Anchors that learn an object.
    pub foreground: usize,
    /// Sum of the target scores, before its floor of 1.
    pub score_sum: f32,
}

impl DetectionLoss {
    /// The usual weights: box 7.5, class 0.5, distribution 1.5.
    pub fn new(nc: usize) -> Self {
        Self { nc, box_gain: 7.5, cls: 0.5, dfl: 1.5 }
    }

    /// The loss of raw outputs `[B, 64 + nc, H/s, W/s]` against labels, each with the index of its image.
    ///
    /// # Panics
    /// If the outputs have another number of classes, or a label's class or image index is out of range.
    pub fn forward(&self, feats: &[Tensor<4>], targets: &[(u32, Label)]) -> LossOutput {
        let device = feats[0].device();
        let [batch, channels, height, width] = feats[0].dims();
        assert_eq!(channels, 4 * REG_MAX + self.nc, "raw outputs of {channels} channels for {} classes", self.nc);
        let anchors = Anchors::of(feats);
        let size = [width, height].map(|s| (s * strides(feats.len())[0]) as f32);
        let flat = flatten(feats);

        let gts = self.by_image(targets, batch, size);
        let assigned = assign(&Predictions::read(&flat, &anchors, &gts).images(), &gts, &anchors);
        let score_sum: f32 = assigned.iter().flatten().map(|f| f.score).sum();
        let norm = score_sum.max(1.0);
        let fg = Gathered::new(&assigned, &anchors, norm);

        let [box_loss, dfl_loss, hits] = fg.losses(&flat, channels, &device);
        let cls_loss = softplus_sum(flat, 4 * REG_MAX..channels).div_scalar(norm) - hits;

        let terms = [box_loss * self.box_gain, cls_loss * self.cls, dfl_loss * self.dfl];
        let items = Tensor::cat(terms.iter().map(|t| t.clone().detach()).collect(), 0);
        let [b, c, d] = terms;
        LossOutput { total: (b + c + d).mul_scalar(batch as f32), items, objects: targets.len(), foreground: fg.weights.len(), score_sum }
    }

    fn by_image(&self, targets: &[(u32, Label)], batch: usize, size: [f32; 2]) -> Vec<Vec<GroundTruth>> {
        let mut gts = vec![Vec::new(); batch];
        for &(image, Label { class, xywh }) in targets {
            assert!((class as usize) < self.nc, "label of class {class} for a model of {} classes", self.nc);
            gts[image as usize].push(GroundTruth::new(class, xywh, size));
        }
        gts
    }
}

/// Decoded predictions on the host: the step's one readback.
struct Predictions {
    /// Rows of a number per anchor: the corners of each image in pixels, then the scores.
    rows: Vec<f32>,
    anchors: usize,
    /// The classes of each image's objects, in order: those whose scores are here.
    classes: Vec<Vec<u32>>,
}

impl Predictions {
    fn read(flat: &Tensor<3>, anchors: &Anchors, gts: &[Vec<GroundTruth>]) -> Self {
        let flat = if flat.device().is_autodiff() { flat.clone().inner() } else { flat.clone() };
        let [batch, channels, a] = flat.dims();
        let distinct = |gts: &Vec<GroundTruth>| gts.iter().map(|gt| gt.class).collect::<BTreeSet<_>>().into_iter().collect();
        let classes: Vec<Vec<u32>> = gts.iter().map(distinct).collect();
        let row = |image: usize, class: u32| (image * channels + 4 * REG_MAX) as i32 + class as i32;
        let chosen: Vec<i32> = classes.iter().enumerate().flat_map(|(i, cs)| cs.iter().map(move |&c| row(i, c))).collect();
        let mut parts = vec![decode_corners(flat.clone(), anchors).reshape([4 * batch, a])];
        if !chosen.is_empty() {
            let index = indices(chosen, &flat.device());
            parts.push(sigmoid(flat.reshape([batch * channels, a]).select(0, index)));
        }
        Self { rows: to_host(Tensor::cat(parts, 0)), anchors: a, classes }
    }

    fn images(&self) -> Vec<Planes<'_>> {
        let a = self.anchors;
        let (corners, mut scores) = self.rows.split_at(4 * a * self.classes.len());
        let image = |(i, classes): (usize, &'_ Vec<u32>)| {
            let (own, others) = scores.split_at(classes.len() * a);
            scores = others;
            Planes::new(&corners[4 * a * i..][..4 * a], own, &self.classes[i])
        };
        self.classes.iter().enumerate().map(image).collect()
    }
}

fn indices(places: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let n = places.len();
    Tensor::from_data(TensorData::new(places, [n]), device)
}

/// The foreground of a batch, row by row: what to gather and what it should be.
struct Gathered {
    /// Image, anchor and class of each row.
    places: Vec<(usize, usize, usize)>,
    /// Target score over the norm.
    weights: Vec<f32>,
    /// Cell centres in grid units, twice (for both corners).
    centres: Vec<f32>,
    /// Target boxes in grid units.
    boxes: Vec<f32>,
    /// Target distributions of the sides, weighted.
    sides: Vec<f32>,
    anchors: usize,
}

impl Gathered {
    fn new(assigned: &[Vec<Foreground>], anchors: &Anchors, norm: f32) -> Self {
        let mut fg = Self { places: vec![], weights: vec![], centres: vec![], boxes: vec![], sides: vec![], anchors: anchors.len() };
        for (image, f) in assigned.iter().enumerate().flat_map(|(i, fs)| fs.iter().map(move |f| (i, f))) {
            let [x, y] = anchors.centres[f.anchor];
            let target = f.target.xyxy.map(|v| v / anchors.strides[f.anchor]);
            let weight = f.score / norm;
            fg.places.push((image, f.anchor, f.target.class as usize));
            fg.weights.push(weight);
            fg.centres.extend([x, y, x, y]);
            fg.boxes.extend(target);
            fg.sides.extend(dfl::target([x, y], target, weight));
        }
        fg
    }

    /// Box term, distribution term, and the foreground part of the class term (weighted target logits).
    fn losses(&self, flat: &Tensor<3>, channels: usize, device: &Device) -> [Tensor<1>; 3] {
        let m = self.weights.len();
        if m == 0 {
            return [(); 3].map(|()| Tensor::zeros([1], device));
        }
        let at = |image: usize, channel: usize, anchor: usize| ((image * channels + channel) * self.anchors + anchor) as i32;
        let rows = |data: &[f32], k| Tensor::<2>::from_data(TensorData::new(data.to_vec(), [m, k]), device);

        // All in one, for the gradient of each is as large as the whole.
        let bins = self.places.iter().flat_map(|&(i, a, _)| (0..4 * REG_MAX).map(move |c| at(i, c, a)));
        let hits = self.places.iter().map(|&(i, a, class)| at(i, 4 * REG_MAX + class, a));
        let logits = flat.clone().reshape([-1]).select(0, indices(bins.chain(hits).collect(), device));
        let hits = logits.clone().narrow(0, 4 * REG_MAX * m, m);
        let logits: Tensor<2> = logits.narrow(0, 0, 4 * REG_MAX * m).reshape([m, 4 * REG_MAX]);
        let predicted = corners(logits.clone(), rows(&self.centres, 4));
        let loss = ciou::ciou_tensor(predicted, rows(&self.boxes, 4)).neg().add_scalar(1.0) * rows(&self.weights, 1);

        let hits = hits * Tensor::from_data(TensorData::new(self.weights.clone(), [m]), device);
        [loss.sum(), dfl::loss(logits, self.sides.clone(), device), hits.sum()]
    }
}

/// Boxes `[M, 4]` in grid units of side logits `[M, 64]` around cell centres (x, y, x, y).
fn corners(logits: Tensor<2>, centres: Tensor<2>) -> Tensor<2> {
    let [m, _] = logits.dims();
    let device = logits.device();
    let sides = expectation(logits.reshape([m, 4, REG_MAX])).reshape([m, 4]);
    let direction = Tensor::<1>::from_floats([-1.0, -1.0, 1.0, 1.0], &device).reshape([1, 4]);
    centres + sides * direction
}
