//! Collects a validation run image by image and turns it into the numbers and curves of the report.
//!
//! Memory: 8 bytes a detection and nothing per pixel or per box, so 44,000 images at 300 detections are about 100 MB.
//! Means run over the classes that occur in the ground truth; a set without any object scores 0 everywhere.

use super::ap::{RankedCurve, average_precision, box_filter, envelope, interp};
use super::match_detections;
use crate::boxes::{Detection, GroundTruth};
use rayon::prelude::*;

/// Points of every confidence and precision-recall curve.
const POINTS: usize = 1000;
const EPS: f64 = 1e-16;

#[derive(Clone, Copy)]
struct Scored {
    score: f32,
    /// Bit t: true positive at the t-th IoU threshold.
    hits: u16,
}

#[derive(Clone, Default)]
struct ClassRecord {
    detections: Vec<Scored>,
    images: usize,
    instances: usize,
}

/// Accumulates detections against ground truth. Feed every validation image once, in a fixed order, then call [`Evaluator::metrics`].
#[derive(Clone)]
pub struct Evaluator {
    images: usize,
    classes: Vec<ClassRecord>,
}

/// One class that occurs in the ground truth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassMetrics {
    /// Class index.
    pub class: u32,
    /// Images that contain the class.
    pub images: usize,
    /// Objects of the class.
    pub instances: usize,
    /// Precision at the confidence that maximises the mean F1.
    pub precision: f64,
    /// Recall at that confidence.
    pub recall: f64,
    /// F1 at that confidence.
    pub f1: f64,
    /// AP at IoU .50.
    pub ap50: f64,
    /// Mean AP over IoU .50 to .95.
    pub ap50_95: f64,
}

/// What the curve plots draw. One inner vector of 1000 values per class of `classes`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Class index of each row.
    pub classes: Vec<u32>,
    /// Shared x axis, 0..1: confidence for `precision`, `recall` and `f1`; recall for `pr`.
    pub x: Vec<f64>,
    /// Precision over confidence, at IoU .50.
    pub precision: Vec<Vec<f64>>,
    /// Recall over confidence, at IoU .50.
    pub recall: Vec<Vec<f64>>,
    /// F1 over confidence, at IoU .50.
    pub f1: Vec<Vec<f64>>,
    /// Precision over recall, at IoU .50.
    pub pr: Vec<Vec<f64>>,
    /// AP at IoU .50, for the legend of the precision-recall plot.
    pub ap50: Vec<f64>,
}

/// Milliseconds per image of each stage; measured by the caller, zero until set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Upload and normalisation.
    pub preprocess: f64,
    /// Forward pass.
    pub inference: f64,
    /// Validation loss.
    pub loss: f64,
    /// NMS and matching.
    pub postprocess: f64,
}

/// The result of a validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DetectionMetrics {
    /// Images seen.
    pub images: usize,
    /// Objects in them.
    pub instances: usize,
    /// Mean precision at the best-F1 confidence.
    pub precision: f64,
    /// Mean recall at the best-F1 confidence.
    pub recall: f64,
    /// Mean AP at IoU .50.
    pub map50: f64,
    /// Mean AP at IoU .75.
    pub map75: f64,
    /// Mean AP over IoU .50 to .95.
    pub map50_95: f64,
    /// What best weights and patience are chosen by: `map50_95`.
    pub fitness: f64,
    /// The confidence at which the smoothed mean F1 is highest.
    pub best_confidence: f64,
    /// Classes of the ground truth, in order of index.
    pub per_class: Vec<ClassMetrics>,
    /// Curves of the same classes.
    pub curves: Curves,
    /// Filled in by the validation loop.
    pub speed: Speed,
}

/// Everything one class contributes, before the common confidence is known.
struct ClassCurves {
    precision: Vec<f64>,
    recall: Vec<f64>,
    f1: Vec<f64>,
    pr: Vec<f64>,
    ap: [f64; 10],
}

impl Evaluator {
    /// For classes `0..nc`.
    pub fn new(nc: usize) -> Self {
        Self { images: 0, classes: vec![ClassRecord::default(); nc] }
    }

    /// Adds one image, in any pixel frame common to both lists. Detections need not be sorted. Classes from `nc` up are ignored: the
    /// dataset refuses such labels and the head cannot produce such detections.
    pub fn add_image(&mut self, detections: &[Detection], truths: &[GroundTruth]) {
        self.images += 1;
        let mut detections = detections.to_vec();
        detections.sort_by(|a, b| b.score.total_cmp(&a.score));
        for (detection, correct) in detections.iter().zip(match_detections(&detections, truths)) {
            if let Some(record) = self.classes.get_mut(detection.class as usize) {
                let hits = correct.iter().enumerate().fold(0, |bits, (t, &hit)| bits | u16::from(hit) << t);
                record.detections.push(Scored { score: detection.score, hits });
            }
        }
        let mut classes: Vec<u32> = truths.iter().map(|t| t.class).collect();
        classes.sort_unstable();
        for here in classes.chunk_by(|a, b| a == b) {
            if let Some(record) = self.classes.get_mut(here[0] as usize) {
                record.instances += here.len();
                record.images += 1;
            }
        }
    }

    /// The metrics of all images so far.
    pub fn metrics(&self) -> DetectionMetrics {
        let present: Vec<usize> = (0..self.classes.len()).filter(|&c| self.classes[c].instances > 0).collect();
        let x: Vec<f64> = (0..POINTS).map(|i| i as f64 / (POINTS - 1) as f64).collect();
        let all: Vec<ClassCurves> = present.par_iter().map(|&c| class_curves(&self.classes[c], &x)).collect();

        let mean = |value: &dyn Fn(&ClassCurves) -> f64| all.iter().map(value).sum::<f64>() / all.len().max(1) as f64;
        let mean_f1: Vec<f64> = (0..POINTS).map(|i| mean(&|c| c.f1[i])).collect();
        let best = first_max(&box_filter(&mean_f1));
        let mean_ap = |ap: &[f64; 10]| ap.iter().sum::<f64>() / 10.0;
        let map50_95 = mean(&|c| mean_ap(&c.ap));

        let per_class = present.iter().zip(&all).map(|(&class, curves)| ClassMetrics {
            class: class as u32,
            images: self.classes[class].images,
            instances: self.classes[class].instances,
            precision: curves.precision[best],
            recall: curves.recall[best],
            f1: curves.f1[best],
            ap50: curves.ap[0],
            ap50_95: mean_ap(&curves.ap),
        });
        DetectionMetrics {
            images: self.images,
            instances: self.classes.iter().map(|c| c.instances).sum(),
            precision: mean(&|c| c.precision[best]),
            recall: mean(&|c| c.recall[best]),
            map50: mean(&|c| c.ap[0]),
            map75: mean(&|c| c.ap[5]),
            map50_95,
            fitness: map50_95,
            best_confidence: x[best],
            per_class: per_class.collect(),
            curves: gather(&present, x, all),
            speed: Speed::default(),
        }
    }
}

fn class_curves(record: &ClassRecord, x: &[f64]) -> ClassCurves {
    if record.detections.is_empty() {
        let zero = vec![0.0; x.len()];
        return ClassCurves { precision: zero.clone(), recall: zero.clone(), f1: zero.clone(), pr: zero, ap: [0.0; 10] };
    }
    let mut ranked = record.detections.clone();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score)); // stable: equal scores stay in the order of the images
    let at = |t: usize| RankedCurve::new(ranked.iter().map(|d| d.hits >> t & 1 == 1), record.instances);
    let ap = std::array::from_fn(|t| {
        let curve = at(t);
        average_precision(&curve.recall, &curve.precision)
    });

    // Confidence falls along the ranking, so curves over confidence are read along its negative. Above the best score nothing is
    // detected: recall 0, and precision 1 by convention.
    let falling: Vec<f64> = ranked.iter().map(|d| -f64::from(d.score)).collect();
    let curve = at(0);
    let over_confidence = |ys: &[f64], left: f64| x.iter().map(|&c| interp(-c, &falling, ys, left)).collect::<Vec<_>>();
    let (precision, recall) = (over_confidence(&curve.precision, 1.0), over_confidence(&curve.recall, 0.0));
    let f1 = precision.iter().zip(&recall).map(|(p, r)| 2.0 * p * r / (p + r + EPS)).collect();
    let (pr_recall, pr_precision) = envelope(&curve.recall, &curve.precision);
    let pr = x.iter().map(|&r| interp(r, &pr_recall, &pr_precision, 1.0)).collect();
    ClassCurves { precision, recall, f1, pr, ap }
}

fn gather(present: &[usize], x: Vec<f64>, all: Vec<ClassCurves>) -> Curves {
    let mut curves = Curves { classes: present.iter().map(|&c| c as u32).collect(), x, ..Default::default() };
    for class in all {
        curves.precision.push(class.precision);
        curves.recall.push(class.recall);
        curves.f1.push(class.f1);
        curves.pr.push(class.pr);
        curves.ap50.push(class.ap[0]);
    }
    curves
}

fn first_max(values: &[f64]) -> usize {
    (0..values.len()).rev().max_by(|&i, &j| values[i].total_cmp(&values[j])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOX: [f32; 4] = [10.0, 10.0, 50.0, 50.0];
    const FAR: [f32; 4] = [200.0, 200.0, 240.0, 240.0];

    fn truth(class: u32) -> GroundTruth {
        GroundTruth { class, xyxy: BOX }
    }

    fn all_finite(m: &DetectionMetrics) -> bool {
        let mut values = vec![m.precision, m.recall, m.map50, m.map75, m.map50_95, m.fitness, m.best_confidence];
        values.extend(m.per_class.iter().flat_map(|c| [c.precision, c.recall, c.f1, c.ap50, c.ap50_95]));
        values.extend([&m.curves.precision, &m.curves.recall, &m.curves.f1, &m.curves.pr].into_iter().flatten().flatten());
        values.iter().all(|v| v.is_finite())
    }

    #[test]
    fn empty_sets_score_zero_without_nan() {
        let nothing = Evaluator::new(3).metrics();
        assert_eq!((nothing.images, nothing.instances, nothing.map50, nothing.per_class.len()), (0, 0, 0.0, 0));
        let mut only_false = Evaluator::new(3);
        only_false.add_image(&[Detection { xyxy: BOX, score: 0.9, class: 1 }], &[]);
        let mut only_missed = Evaluator::new(3);
        only_missed.add_image(&[], &[truth(2)]);
        let missed = only_missed.metrics();
        assert_eq!((missed.per_class[0].class, missed.instances, missed.map50, missed.recall), (2, 1, 0.0, 0.0));
        assert!([nothing, only_false.metrics(), missed].iter().all(all_finite));
        assert!(all_finite(&Evaluator::new(0).metrics()));
    }

    #[test]
    fn precision_recall_and_counts_by_hand() {
        let mut e = Evaluator::new(2);
        // Class 0: two objects in two images, one found with .9; a false alarm of .2. Class 1: one object, found with .8.
        e.add_image(
            &[
                Detection { xyxy: FAR, score: 0.2, class: 0 },
                Detection { xyxy: BOX, score: 0.9, class: 0 },
                Detection { xyxy: BOX, score: 0.8, class: 1 },
            ],
            &[truth(0), truth(1)],
        );
        e.add_image(&[], &[truth(0)]);
        e.add_image(&[], &[]);
        let m = e.metrics();
        assert_eq!((m.images, m.instances), (3, 3));
        let counts: Vec<_> = m.per_class.iter().map(|c| (c.class, c.images, c.instances)).collect();
        assert_eq!(counts, [(0, 2, 2), (1, 1, 1)]);
        assert!((m.per_class[1].ap50 - 0.995).abs() < 1e-9 && (m.per_class[1].ap50_95 - 0.995).abs() < 1e-9);
        // Points (.5, 1), (.5, .5): 1 up to .49, a step down to .5, then a line to (1, 0).
        assert!((m.per_class[0].ap50 - (0.49 + 0.0075 + 0.125)).abs() < 1e-9, "{}", m.per_class[0].ap50);
        assert!(m.best_confidence > 0.2 && m.best_confidence < 0.8, "{}", m.best_confidence);
        assert!((m.per_class[0].recall - 0.5).abs() < 1e-9 && m.per_class[0].precision > 0.5);
        assert_eq!(m.fitness, m.map50_95);
    }

    #[test]
    fn false_alarms_on_empty_images_cost_precision() {
        let find = Detection { xyxy: BOX, score: 0.5, class: 0 };
        let mut clean = Evaluator::new(1);
        clean.add_image(&[find], &[truth(0)]);
        let mut noisy = clean.clone();
        noisy.add_image(&[Detection { score: 0.9, ..find }], &[]);
        assert!(noisy.metrics().map50 < clean.metrics().map50 - 0.2);
    }
}
