//! The detection loss of YOLOv8: complete IoU for boxes, distribution focal loss for their sides, binary cross
//! entropy for classes.
//!
//! Which anchors learn which object a GPU finds by itself ([`assigned_terms`]), so that a step does not wait for it. Of outputs on the processor, and of a batch that
//! others hold parts of, the [`assigner`] does: predictions travel to the host once per step, decoded and without gradient, boxes, and scores of the
//! classes an image has objects of. Box terms are computed on the foreground anchors only. Class scores have one non-zero target per
//! foreground anchor, so their cross entropy is the sum of `softplus(x)` over everything minus `x t` over the foreground. The terms
//! themselves are an operation of the kernels: [`detection_terms`].

pub mod assigner;
pub mod topk;

use std::collections::BTreeSet;
use std::sync::Arc;

use bellows_kernels::{
    self as kernels, Object, Objects, Positive, assigned_terms, assigns, detection_terms, note_read, of_all_parts, predictions,
};
use bellows_learner::LearnError;
use burn::tensor::Tensor;

use crate::boxes::{GroundTruth, Label};
use crate::model::head::{Anchors, REG_MAX, flatten, strides};
use crate::readback::host;
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
}

impl DetectionLoss {
    /// The usual weights: box 7.5, class 0.5, distribution 1.5.
    pub fn new(nc: usize) -> Self {
        Self { nc, box_gain: 7.5, cls: 0.5, dfl: 1.5 }
    }

    /// The loss of raw outputs `[B, 64 + nc, H/s, W/s]` against labels, each with the index of its image.
    ///
    /// # Errors
    /// When the device cannot hand the predictions back.
    ///
    /// # Panics
    /// If the outputs have another number of classes, or a label's class or image index is out of range.
    pub fn forward(&self, feats: &[Tensor<4>], targets: &[(u32, Label)]) -> Result<LossOutput, LearnError> {
        let [batch, channels, height, width] = feats[0].dims();
        assert_eq!(channels, 4 * REG_MAX + self.nc, "raw outputs of {channels} channels for {} classes", self.nc);
        let anchors = Anchors::of(feats);
        let size = [width, height].map(|s| (s * strides(feats.len())[0]) as f32);
        let flat = flatten(feats);

        let gts = self.by_image(targets, batch, size);
        let gains = [self.box_gain, self.cls, self.dfl];
        let terms = if assigns(&flat.device()) {
            assigned_terms(flat, objects(&gts, anchors, gains))
        } else {
            let assigned = assign(&Predictions::read(&flat, &anchors, &gts)?.images(), &gts, &anchors);
            let norm = norm(assigned.iter().flatten().map(|f| f.score).sum(), batch);
            detection_terms(flat, kernels::Foreground { positives: Arc::new(positives(&assigned, &anchors, norm)), gains, norm })
        };
        let items = terms.clone().detach();
        Ok(LossOutput { total: kernels::total(terms).mul_scalar(batch as f32), items, objects: targets.len() })
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

/// What a batch's terms are divided by: the sum of its target scores, or 1 if that is less. Of a part of a batch it is the share of that which
/// its images have, so that the losses of all parts, each times its images, add up to the loss of the batch.
fn norm(score_sum: f32, images: usize) -> f32 {
    let parts = of_all_parts(vec![score_sum.into(), images as f64]);
    let [scores, all] = [0, 1].map(|i| parts.iter().map(|part| part[i]).sum::<f64>());
    (scores.max(1.0) * (images as f64 / all)) as f32
}

/// The objects of each image and the anchors, as a device wants them.
fn objects(gts: &[Vec<GroundTruth>], anchors: Anchors, gains: [f32; 3]) -> Objects {
    let all = gts.iter().enumerate().flat_map(|(image, gts)| gts.iter().map(move |gt| (image, gt)));
    let object = |(image, gt): (usize, &GroundTruth)| Object { image: image as u32, class: gt.class, xyxy: gt.xyxy };
    Objects { all: all.map(object).collect(), centres: anchors.centres, strides: anchors.strides, gains }
}

/// The anchors that learn an object, as the terms want them: in cells of their levels.
fn positives(assigned: &[Vec<Foreground>], anchors: &Anchors, norm: f32) -> Vec<Positive> {
    let all = assigned.iter().enumerate().flat_map(|(image, of_image)| of_image.iter().map(move |f| (image, f)));
    let positive = |(image, f): (usize, &Foreground)| Positive {
        image: image as u32,
        anchor: f.anchor as u32,
        class: f.target.class,
        centre: anchors.centres[f.anchor],
        target: f.target.xyxy.map(|v| v / anchors.strides[f.anchor]),
        weight: f.score / norm,
    };
    all.map(positive).collect()
}

/// Decoded predictions on the host: one of the two reads of a step that asks for them (the other is that of its sums).
struct Predictions {
    /// Rows of a number per anchor: the corners of each image in pixels, then the scores.
    rows: Vec<f32>,
    anchors: usize,
    /// The classes of each image's objects, in order: those whose scores are here.
    classes: Vec<Vec<u32>>,
}

impl Predictions {
    fn read(flat: &Tensor<3>, anchors: &Anchors, gts: &[Vec<GroundTruth>]) -> Result<Self, LearnError> {
        let flat = if flat.device().is_autodiff() { flat.clone().inner() } else { flat.clone() };
        let [_, channels, a] = flat.dims();
        let distinct = |gts: &Vec<GroundTruth>| gts.iter().map(|gt| gt.class).collect::<BTreeSet<_>>().into_iter().collect();
        let classes: Vec<Vec<u32>> = gts.iter().map(distinct).collect();
        let row = |image: usize, class: u32| (image * channels + 4 * REG_MAX) as i32 + class as i32;
        let chosen: Vec<i32> = classes.iter().enumerate().flat_map(|(i, cs)| cs.iter().map(move |&c| row(i, c))).collect();
        let (centres, strides) = anchors.tensors(&flat.device());
        note_read();
        Ok(Self { rows: host(predictions(flat, centres, strides, chosen, REG_MAX))?, anchors: a, classes })
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
