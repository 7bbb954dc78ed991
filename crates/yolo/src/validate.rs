//! Judging a model on a validation set: letterboxed rectangular batches, loss, NMS, matching, mAP.

use std::sync::Arc;
use std::time::Instant;

use bellows_kernels::images;
use bellows_learner::{EvalContext, Interrupted, Loader, TaskError};
use burn::data::dataset::Dataset;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::boxes::{Detection, GroundTruth, Label, xywh_to_xyxy};
use crate::config::{STRIDE, TrainConfig};
use crate::data::{
    Areas, Batch, CocoIds, DataError, FrameMeta, Grouping, Item, Letterbox, RectBatch, Size, Target, rect_batches, val_batch,
};
use crate::loss::DetectionLoss;
use crate::metrics::{
    CocoEvaluator, CocoMetrics, ConfusionMatrix, DetectionMetrics, Evaluator, Grouped, NmsConfig, Speed, group_metrics, match_detections,
    nms,
};
use crate::model::Fused;
use crate::predict::tiles::Tiling;
use crate::predict::{PredictConfig, Predictor};
use crate::readback::host;

/// A validation set and the sizes of its images, which decide how they are batched.
#[derive(Clone)]
pub struct ValSet {
    data: Arc<dyn Dataset<Item>>,
    pub(crate) sizes: Vec<Size>,
    /// What the COCO files that it comes from call images and classes.
    ids: Arc<CocoIds>,
    /// What they know of images beside their pixels.
    meta: Arc<FrameMeta>,
    /// Areas of objects that are not those of their boxes.
    areas: Arc<Areas>,
    /// Every detection is kept.
    keeps: bool,
}

impl ValSet {
    /// A set whose image sizes are known.
    pub fn with_sizes(data: Arc<dyn Dataset<Item>>, sizes: Vec<Size>) -> Self {
        Self { data, sizes, ids: Arc::default(), meta: Arc::default(), areas: Arc::default(), keeps: false }
    }

    /// With the ids that its images and classes have in their COCO files.
    pub(crate) fn with_ids(self, ids: CocoIds) -> Self {
        Self { ids: Arc::new(ids), ..self }
    }

    /// With what is known of its images beside their pixels.
    pub fn with_meta(self, meta: FrameMeta) -> Self {
        Self { meta: Arc::new(meta), ..self }
    }

    /// With areas of its objects that are not those of their boxes.
    pub(crate) fn with_areas(self, areas: Areas) -> Self {
        Self { areas: Arc::new(areas), ..self }
    }

    /// The same images by way of another data set.
    pub(crate) fn through(self, guard: impl FnOnce(Arc<dyn Dataset<Item>>) -> Arc<dyn Dataset<Item>>) -> Self {
        Self { data: guard(self.data), ..self }
    }

    /// The same images in another place.
    pub(crate) fn set_data(&mut self, data: Arc<dyn Dataset<Item>>) {
        self.data = data;
    }

    /// To be judged with every detection kept in [`Validation::kept`].
    pub fn keeping_detections(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// The ids of its images and classes.
    pub(crate) fn ids(&self) -> &CocoIds {
        &self.ids
    }

    /// What its images are usually grouped by, as far as it is known of them.
    pub fn usual_groups(&self) -> Vec<String> {
        Grouping::usual(&self.meta, self.len())
    }

    /// Its images by each of these keys.
    ///
    /// # Errors
    /// [`DataError::Invalid`] for a key that no image has, with those there are.
    pub fn groupings(&self, keys: &[String]) -> Result<Vec<Grouping>, DataError> {
        keys.iter().map(|key| Grouping::by(&self.meta, key, self.len()).map_err(DataError::Invalid)).collect()
    }

    /// A set of any kind; every item is read once for its size.
    ///
    /// # Errors
    /// When an item cannot be read.
    pub fn new(data: Arc<dyn Dataset<Item>>) -> Result<Self, TaskError> {
        let size = |i| data.get(i).map(|item| item.original);
        let sizes = (0..data.len()).map(size).collect::<Result<_, _>>()?;
        Ok(Self::with_sizes(data, sizes))
    }

    /// One of its images.
    pub(crate) fn item(&self, index: usize) -> Result<Item, TaskError> {
        Ok(self.data.get(index)?)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

/// One validated batch, kept for pictures.
pub struct Shown {
    /// The images and their labels.
    pub batch: Batch,
    /// Detections of each image, in the pixels of the batch.
    pub detections: Vec<Vec<Detection>>,
}

/// The result of a validation.
pub struct Validation {
    /// mAP and the rest, as detector users know it.
    pub metrics: DetectionMetrics,
    /// pycocotools' summary, which has it by object size too, in pixels of the image files.
    pub coco: CocoMetrics,
    /// The same of each class.
    pub coco_classes: Vec<CocoMetrics>,
    /// Mean box, class and distribution loss over the batches; NaN for tiles, which have none.
    pub losses: [f64; 3],
    /// Confidence from which a mistake is one: 0.25, or `conf` where that was given.
    pub sure: f32,
    /// Confusion at that.
    pub confusion: ConfusionMatrix,
    /// The first batches.
    pub shown: Vec<Shown>,
    /// Images that cannot be read, and why: they count in nothing else.
    pub unreadable: Vec<String>,
    /// The images with the most mistakes, worst first.
    pub cases: Vec<Case>,
    /// The same by groups of images, one for each key of `group_by`.
    pub groups: Vec<Grouped>,
    /// What was found in each image, where the set is to keep it.
    pub kept: Vec<Kept>,
}

/// What was found in an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Index into the set.
    pub index: usize,
    /// File name.
    pub name: String,
    /// In the pixels of the file.
    pub found: Vec<Detection>,
}

/// An image with mistakes at confidence 0.25 (or the `conf` that was given) and IoU 0.5. Boxes are in parts of the image's sides.
pub struct Case {
    /// Index into the set.
    pub index: usize,
    /// File name.
    pub name: String,
    /// Objects that were not found.
    pub missed: usize,
    /// Detections that are none.
    pub mistaken: usize,
    /// What was detected.
    pub found: Vec<Detection>,
    /// What is there.
    pub truths: Vec<GroundTruth>,
}

/// Batches whose pictures are drawn.
const SHOWN: usize = 3;
/// Images with mistakes that are remembered.
const CASES: usize = 24;

/// What a batch of the set leaves to be judged.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    images: Vec<SeenImage>,
    /// Box, class and distribution loss; none of a batch of which no image can be read.
    losses: Option<[f32; 3]>,
    unreadable: Vec<String>,
}

/// An image of it: what was found and what is there, in network pixels.
#[derive(Serialize, Deserialize)]
struct SeenImage {
    index: usize,
    name: String,
    found: Vec<Detection>,
    truths: Vec<GroundTruth>,
    place: Letterbox,
}

/// Runs `model` over `set`, of which every rank that shares the evaluation looks at some batches and judges all.
///
/// # Errors
/// [`Interrupted`] when the run should stop; more than 1 % of images that cannot be read, unless `allow_bad`.
pub fn validate(model: &Fused, set: &ValSet, config: &TrainConfig, context: &mut EvalContext<'_>) -> Result<Validation, TaskError> {
    let nc = model.nc();
    let loss = detection_loss(config, nc);
    let imgsz = config.imgsz as u32;
    let batches = rect_batches(&set.sizes, 2 * config.batch.images(), imgsz, STRIDE as u32, 0.5);
    let suppression = suppression(config, nc);
    let mut judge = Judge::new(nc, config, set)?;
    let mine: Vec<usize> = (0..batches.len()).filter(|&i| context.shared.is_mine(i)).collect();
    let (mut seen, mut shown, mut done) = (Vec::with_capacity(mine.len()), Vec::new(), 0);
    let mut stages = [0.0; 4];
    let make = |i: usize| -> Result<(Option<Batch>, Vec<DataError>), TaskError> {
        let RectBatch { indices, shape } = &batches[mine[i]];
        Ok(val_batch(&*set.data, indices, imgsz, *shape)?)
    };
    std::thread::scope(|scope| -> Result<(), TaskError> {
        for (batch, &number) in Loader::start(scope, context.workers, 0..mine.len(), &make).zip(&mine) {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let (batch, errors) = batch?;
            done += errors.len();
            let unreadable = errors.iter().map(ToString::to_string).collect();
            let Some(batch) = batch else {
                seen.push((number, Seen { unreadable, ..Seen::default() }));
                (context.progress)((done * context.shared.ranks()).min(set.len()), set.len());
                continue;
            };
            let mut clock = Instant::now();
            let mut lap = |stage: usize| stages[stage] += std::mem::replace(&mut clock, Instant::now()).elapsed().as_secs_f64();
            let images = images(&batch.images, batch.shape, model.channels(), context.device);
            lap(0);
            let feats = model.forward(images);
            let decoded = host(model.decode(&feats))?;
            lap(1);
            let losses = host(loss.forward(&feats, &targets(&batch))?.items)?.try_into().ok();
            lap(2);
            let [count, _, height, width] = batch.shape;
            let per_image = decoded.len() / count;
            let detections: Vec<Vec<Detection>> =
                decoded.par_chunks(per_image).map(|pred| nms(pred, nc, per_image / (4 + nc), &suppression)).collect();
            let images = detections.iter().enumerate().map(|(image, found)| SeenImage {
                index: batch.indices[image],
                name: batch.names[image].clone(),
                found: found.clone(),
                truths: truths_of(&batch, image as u32, width as f32, height as f32),
                place: batch.letterboxes[image],
            });
            seen.push((number, Seen { images: images.collect(), losses, unreadable }));
            lap(3);
            done += count;
            (context.progress)((done * context.shared.ranks()).min(set.len()), set.len());
            if shown.len() < SHOWN {
                shown.push(Shown { batch, detections });
            }
        }
        Ok(())
    })?;
    let clock = Instant::now();
    let (mut sums, mut judged, mut unreadable) = ([0.0; 3], 0, Vec::new());
    for batch in context.shared.merge(seen)? {
        if (context.interrupted)() {
            return Err(Box::new(Interrupted));
        }
        unreadable.extend(batch.unreadable);
        judged += u32::from(batch.losses.is_some());
        sums.iter_mut().zip(batch.losses.unwrap_or_default()).for_each(|(sum, item)| *sum += f64::from(item));
        for SeenImage { index, name, found, truths, place } in batch.images {
            judge.image((index, &name), &found, &truths, &place);
        }
    }
    stages[3] += clock.elapsed().as_secs_f64();
    let losses = sums.map(|sum| sum / f64::from(judged.max(1)));
    judge.sum_up(Walk { losses, shown, unreadable, stages, done }, set.len())
}

/// The same with every image looked at as prediction with tiles does it: whole and tile by tile, one at a time.
///
/// # Errors
/// As [`validate`].
pub fn validate_tiled(
    model: &Fused,
    set: &ValSet,
    tiling: Tiling,
    config: &TrainConfig,
    context: &mut EvalContext<'_>,
) -> Result<Validation, TaskError> {
    let look = PredictConfig {
        imgsz: Size::square(config.imgsz as u32),
        batch: config.batch.images(),
        nms: suppression(config, model.nc()),
        tiling: Some(tiling),
    };
    let predictor = Predictor::new(model.clone(), context.device, look);
    let mut judge = Judge::new(model.nc(), config, set)?;
    let (mut unreadable, mut done, mut inference) = (Vec::new(), 0, 0.0);
    let make = |i: usize| set.data.get(i);
    std::thread::scope(|scope| -> Result<(), TaskError> {
        for item in Loader::start(scope, context.workers, 0..set.len(), &make) {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let index = done;
            done += 1;
            match item {
                Err(error) => unreadable.push(error.to_string()),
                Ok(item) => {
                    let clock = Instant::now();
                    let found = predictor.predict(&[&item.frame])?.concat();
                    inference += clock.elapsed().as_secs_f64();
                    let size = [item.frame.width as f32, item.frame.height as f32];
                    let truths: Vec<_> = item.labels.iter().map(|l| GroundTruth::new(l.class, l.xywh, size)).collect();
                    judge.image((index, &item.name), &found, &truths, &Letterbox::none(item.frame.size()));
                }
            }
            (context.progress)(done, set.len());
        }
        Ok(())
    })?;
    let walk = Walk { losses: [f64::NAN; 3], shown: Vec::new(), unreadable, stages: [0.0, inference, 0.0, 0.0], done };
    judge.sum_up(walk, set.len())
}

/// `nc` is the number of classes of the model.
fn suppression(config: &TrainConfig, nc: usize) -> NmsConfig {
    // Labels of the wanted classes are class 0 then, and so is whatever a model of one class finds.
    let one = config.single_cls && nc == 1;
    NmsConfig {
        conf: config.conf as f32,
        iou: config.iou,
        max_det: config.max_det,
        agnostic: config.agnostic_nms || config.single_cls,
        classes: config.classes.clone().filter(|_| !one),
        ..NmsConfig::default()
    }
}

/// Everything that is counted of images one by one.
struct Judge<'a> {
    config: &'a TrainConfig,
    set: &'a ValSet,
    groupings: Vec<Grouping>,
    evaluator: Evaluator,
    coco: CocoEvaluator,
    confusion: ConfusionMatrix,
    /// Confidence from which a mistake is one.
    sure: f32,
    cases: Vec<Case>,
    /// Indices of the images, in the order in which they were judged.
    order: Vec<usize>,
    kept: Vec<Kept>,
}

/// What a walk over a set leaves beside the counts.
struct Walk {
    losses: [f64; 3],
    shown: Vec<Shown>,
    unreadable: Vec<String>,
    stages: [f64; 4],
    done: usize,
}

impl<'a> Judge<'a> {
    fn new(nc: usize, config: &'a TrainConfig, set: &'a ValSet) -> Result<Self, DataError> {
        let groupings = set.groupings(config.group_by.as_deref().unwrap_or_default())?;
        // The matrix is for people: at validation's own threshold it would be all false alarms.
        let sure = if config.conf == TrainConfig::default().conf { 0.25 } else { config.conf as f32 };
        let confusion = ConfusionMatrix::new(nc, sure, 0.45);
        let (evaluator, coco) = (Evaluator::new(nc), CocoEvaluator::new(nc));
        let (cases, order, kept) = Default::default();
        Ok(Self { config, set, groupings, evaluator, coco, confusion, sure, cases, order, kept })
    }

    /// `found` and `truths` in network pixels; `place` says how the image came there.
    fn image(&mut self, (index, name): (usize, &str), found: &[Detection], truths: &[GroundTruth], place: &Letterbox) {
        let class = |d: &Detection| if self.config.single_cls { 0 } else { d.class };
        let found: Vec<Detection> = found.iter().map(|d| Detection { class: class(d), ..*d }).collect();
        self.evaluator.add_image(&found, truths);
        self.confusion.add_image(&found, truths);
        let truths: Vec<_> = truths.iter().map(|t| GroundTruth { xyxy: place.to_original(t.xyxy), ..*t }).collect();
        let there: Vec<_> = found.iter().map(|d| Detection { xyxy: place.to_original(d.xyxy), ..*d }).collect();
        self.coco.add_image_with_areas(&there, &truths, |k| self.set.areas.get(index, k).map(f64::from));
        self.order.push(index);
        self.remember((index, name), &there, &truths, place.original);
        if self.set.keeps {
            self.kept.push(Kept { index, name: name.into(), found: there });
        }
    }

    /// Keeps the image if it is among the worst so far. Boxes are in the pixels of its file.
    fn remember(&mut self, (index, name): (usize, &str), found: &[Detection], truths: &[GroundTruth], size: Size) {
        let sure: Vec<Detection> = found.iter().filter(|d| d.score > self.sure).copied().collect();
        let right = match_detections(&sure, truths).iter().filter(|hits| hits[0]).count();
        let (missed, mistaken) = (truths.len() - right, sure.len() - right);
        let place = self.cases.iter().position(|c| c.missed + c.mistaken < missed + mistaken).unwrap_or(self.cases.len());
        if missed + mistaken == 0 || place == CASES {
            return;
        }
        let [width, height] = [size.width, size.height].map(|v| v.max(1) as f32);
        let part = |[x1, y1, x2, y2]: [f32; 4]| [x1 / width, y1 / height, x2 / width, y2 / height];
        let found = sure.iter().map(|d| Detection { xyxy: part(d.xyxy), ..*d }).collect();
        let truths = truths.iter().map(|t| GroundTruth { xyxy: part(t.xyxy), ..*t }).collect();
        self.cases.insert(place, Case { index, name: name.into(), missed, mistaken, found, truths });
        self.cases.truncate(CASES);
    }

    fn groups(&self) -> Vec<Grouped> {
        let clip: Vec<u32> = self.order.iter().map(|&i| self.set.meta.clip_of().get(i).copied().unwrap_or(i as u32)).collect();
        let grouped = |by: &Grouping| {
            let of: Vec<Option<u32>> = self.order.iter().map(|&i| by.of[i]).collect();
            group_metrics(&self.coco, &by.key, &by.names, &of, &clip)
        };
        self.groupings.iter().map(grouped).collect()
    }

    fn sum_up(self, walk: Walk, total: usize) -> Result<Validation, TaskError> {
        if let Some(error) = DataError::too_many_bad(&walk.unreadable, total).filter(|_| !self.config.allow_bad) {
            return Err(error.into());
        }
        let [preprocess, inference, loss, postprocess] = walk.stages.map(|s: f64| s * 1e3 / walk.done.max(1) as f64);
        let groups = self.groups();
        let mut metrics = self.evaluator.metrics();
        metrics.speed = Speed { preprocess, inference, loss, postprocess };
        Ok(Validation {
            metrics,
            coco: self.coco.metrics(),
            coco_classes: self.coco.class_metrics(),
            losses: walk.losses,
            sure: self.sure,
            confusion: self.confusion,
            shown: walk.shown,
            unreadable: walk.unreadable,
            cases: self.cases,
            groups,
            kept: self.kept,
        })
    }
}

/// The loss with the run's gains.
pub(crate) fn detection_loss(config: &TrainConfig, nc: usize) -> DetectionLoss {
    DetectionLoss { nc, box_gain: config.box_ as f32, cls: config.cls as f32, dfl: config.dfl as f32 }
}

/// The labels of one image of a batch as corners in the batch's pixels.
pub(crate) fn truths_of(batch: &Batch, image: u32, width: f32, height: f32) -> Vec<GroundTruth> {
    let mine = batch.targets.iter().filter(|t| t.image == image);
    let scaled = mine.map(|Target { label, .. }| {
        let [x1, y1, x2, y2] = xywh_to_xyxy(label.xywh);
        GroundTruth { class: label.class, xyxy: [x1 * width, y1 * height, x2 * width, y2 * height] }
    });
    scaled.collect()
}

/// Each label of a batch with the index of its image.
pub(crate) fn targets(batch: &Batch) -> Vec<(u32, Label)> {
    batch.targets.iter().map(|t| (t.image, t.label)).collect()
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::InMemDataset;

    use super::*;
    use crate::data::Frame;

    #[test]
    fn what_a_model_of_one_class_finds_is_of_the_wanted_classes() {
        let kept = |single_cls, nc| suppression(&TrainConfig { single_cls, classes: Some(vec![2]), ..TrainConfig::default() }, nc).classes;
        assert_eq!(kept(true, 1), None);
        for (single_cls, nc) in [(true, 4), (false, 4), (false, 1)] {
            assert_eq!(kept(single_cls, nc), Some(vec![2]), "{single_cls} {nc}");
        }
    }

    #[test]
    fn detections_are_kept_where_that_is_asked_for_alone() {
        let items = vec![Item::new(Frame::filled(1, 100, 50, 90), Vec::new(), "a".into())];
        let set = ValSet::with_sizes(Arc::new(InMemDataset::new(items)), vec![Size { width: 100, height: 50 }]);
        // What each evaluation of a run has, of which the file of detections is not made.
        let config = TrainConfig { save_json: true, ..TrainConfig::default() };
        let place = Letterbox { ratio: [2.0, 2.0], pad: [10.0, 20.0], original: Size { width: 100, height: 50 } };
        let kept = |set: &ValSet| {
            let mut judge = Judge::new(1, &config, set).unwrap();
            judge.image((0, "a"), &[Detection { xyxy: [30.0, 40.0, 50.0, 80.0], score: 0.9, class: 0 }], &[], &place);
            judge.kept
        };
        assert!(kept(&set).is_empty());
        let found = vec![Detection { xyxy: [10.0, 10.0, 20.0, 30.0], score: 0.9, class: 0 }];
        assert_eq!(kept(&set.keeping_detections()), [Kept { index: 0, name: "a".into(), found }], "in pixels of the file");
    }

    #[test]
    fn objects_are_as_large_as_their_file_says() {
        let items = (0..2).map(|i| Item::new(Frame::filled(1, 100, 100, 90), Vec::new(), i.to_string())).collect();
        // Of the second image the second object.
        let areas = Areas(vec![([1, 1], 900.0)]);
        let set = ValSet::with_sizes(Arc::new(InMemDataset::new(items)), vec![Size::square(100); 2]).with_areas(areas);
        let config = TrainConfig::default();
        let truths = [[0.0, 0.0, 40.0, 40.0], [50.0, 50.0, 90.0, 90.0]].map(|xyxy| GroundTruth { class: 0, xyxy });
        let found = [Detection { xyxy: truths[1].xyxy, score: 0.9, class: 0 }];
        let by_size = |index: usize| {
            let mut judge = Judge::new(1, &config, &set).unwrap();
            judge.image((index, "a"), &found, &truths, &Letterbox::none(Size::square(100)));
            let coco = judge.coco.metrics();
            [coco.small50, coco.medium50]
        };
        assert_eq!(by_size(1), [Some(1.0), Some(0.0)]);
        assert_eq!(by_size(0)[0], None, "of the first image nothing is said");
    }

    #[test]
    fn an_object_at_an_edge_of_sizes_is_of_both() {
        let of = |area: Option<f32>| {
            let items = vec![Item::new(Frame::filled(1, 600, 500, 90), Vec::new(), "a".into())];
            let size = Size { width: 600, height: 500 };
            let areas = Areas(Areas::own(area, [32.0; 2]).map(|area| ([0, 0], area)).into_iter().collect());
            let set = ValSet::with_sizes(Arc::new(InMemDataset::new(items)), vec![size]).with_areas(areas);
            let config = TrainConfig::default();
            let mut judge = Judge::new(1, &config, &set).unwrap();
            // As it comes back from the network's pixels.
            let truth = GroundTruth { class: 0, xyxy: [11.0, 13.0, 43.0001, 45.0] };
            judge.image((0, "a"), &[Detection { xyxy: truth.xyxy, score: 0.9, class: 0 }], &[truth], &Letterbox::none(size));
            let coco = judge.coco.metrics();
            [coco.small50, coco.medium50, coco.large50]
        };
        assert_eq!([Some(1024.0), None].map(of), [[Some(1.0), Some(1.0), None]; 2]);
    }
}
