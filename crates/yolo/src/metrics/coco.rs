//! Average precision as pycocotools computes it (`COCOeval`, iouType bbox), also by object size.
//!
//! Feed boxes in the pixels of the original image if the sizes are to mean anything: small is below 32² px, large above 96². Objects
//! outside a size range are ignored: they are neither missed nor do they make a detection false. Crowd regions are not known here: the
//! label formats that are read have none. Memory: 24 bytes a detection.

use super::ap::RankedCurve;
use super::matching::area;
use super::{IOU_THRESHOLDS, coco_average_precision, iou};
use crate::boxes::{Detection, GroundTruth};
use rayon::prelude::*;

/// Detections looked at per class and image.
const MAX_DET: usize = 100;
/// Between small and medium objects, and medium and large ones, in px².
pub(crate) const EDGES: [f64; 2] = [32.0 * 32.0, 96.0 * 96.0];
/// All, small, medium, large: area in px², both ends included. A detection's is that of its box, an object's what is said of it, or that of its box.
const RANGES: [(f64, f64); 4] = [(0.0, 1e10), (0.0, EDGES[0]), (EDGES[0], EDGES[1]), (EDGES[1], 1e10)];

#[derive(Clone, Copy)]
pub(super) struct Scored {
    pub(super) score: f32,
    /// Which of the images that were added.
    pub(super) image: u32,
    /// Per size range, bit t: true positive at the t-th IoU threshold.
    pub(super) hits: [u16; 4],
    /// Per size range, bit t: neither right nor wrong at the t-th IoU threshold.
    pub(super) ignored: [u16; 4],
}

#[derive(Clone, Default)]
pub(super) struct ClassRecord {
    pub(super) detections: Vec<Scored>,
    /// Objects by size range of the images that have any.
    pub(super) truths: Vec<(u32, [u32; 4])>,
}

/// AP by size range and IoU threshold; none for a range without objects.
pub(super) type Precisions = [Option<[f64; 10]>; 4];

/// Accumulates images; see the module for what it refuses.
#[derive(Clone)]
pub struct CocoEvaluator {
    pub(super) images: u32,
    pub(super) classes: Vec<ClassRecord>,
}

/// pycocotools' summary. `None` where no object exists (pycocotools prints -1).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CocoMetrics {
    /// AP at IoU .50:.95, all sizes.
    pub map50_95: Option<f64>,
    /// AP at IoU .50.
    pub map50: Option<f64>,
    /// AP at IoU .75.
    pub map75: Option<f64>,
    /// AP at IoU .50:.95 of objects up to 32² px.
    pub small: Option<f64>,
    /// AP at IoU .50:.95 of objects from 32² to 96² px.
    pub medium: Option<f64>,
    /// AP at IoU .50:.95 of objects from 96² px.
    pub large: Option<f64>,
    /// AP at IoU .50 of objects up to 32² px.
    pub small50: Option<f64>,
    /// AP at IoU .50 of objects from 32² to 96² px.
    pub medium50: Option<f64>,
    /// AP at IoU .50 of objects from 96² px.
    pub large50: Option<f64>,
}

impl CocoMetrics {
    /// AP at IoU .50:.95 of small, medium and large objects, then at IoU .50.
    pub(crate) fn by_size(&self) -> [Option<f64>; 6] {
        [self.small, self.medium, self.large, self.small50, self.medium50, self.large50]
    }
}

impl CocoEvaluator {
    /// For classes `0..nc`.
    pub fn new(nc: usize) -> Self {
        Self { images: 0, classes: vec![ClassRecord::default(); nc] }
    }

    /// Adds one image. Detections need not be sorted.
    pub fn add_image(&mut self, detections: &[Detection], truths: &[GroundTruth]) {
        self.add_image_with_areas(detections, truths, |_| None);
    }

    /// The same of an image whose truths have areas, in px², that are not those of their boxes: `own` gives them by their index.
    pub fn add_image_with_areas(&mut self, detections: &[Detection], truths: &[GroundTruth], own: impl Fn(usize) -> Option<f64>) {
        let image = self.images;
        self.images += 1;
        // Of a class that is not here there is nothing to record.
        let mut here: Vec<u32> = detections.iter().map(|d| d.class).chain(truths.iter().map(|t| t.class)).collect();
        here.sort_unstable();
        here.dedup();
        for class in here {
            let Some(record) = self.classes.get_mut(class as usize) else { continue };
            let of_class = truths.iter().enumerate().filter(|(_, t)| t.class == class);
            let (truths, areas): (Vec<[f32; 4]>, Vec<f64>) =
                of_class.map(|(i, t)| (t.xyxy, own(i).unwrap_or_else(|| area(&t.xyxy)))).unzip();
            let mut ranked: Vec<Detection> = detections.iter().filter(|d| d.class == class).copied().collect();
            ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
            ranked.truncate(MAX_DET);
            let overlaps: Vec<Vec<f64>> = ranked.iter().map(|d| truths.iter().map(|t| iou(&d.xyxy, t)).collect()).collect();

            let first = record.detections.len();
            record.detections.extend(ranked.iter().map(|d| Scored { score: d.score, image, hits: [0; 4], ignored: [0; 4] }));
            let mut counts = [0; 4];
            for (r, range) in RANGES.iter().enumerate() {
                let outside = |area: f64| !(range.0..=range.1).contains(&area);
                let mut order: Vec<(usize, bool)> = areas.iter().map(|&area| outside(area)).enumerate().collect();
                order.sort_by_key(|&(_, ignore)| ignore);
                counts[r] = order.iter().filter(|(_, ignore)| !ignore).count() as u32;
                for (t, &threshold) in IOU_THRESHOLDS.iter().enumerate() {
                    let mut taken = vec![false; truths.len()];
                    for (d, detection) in ranked.iter().enumerate() {
                        let scored = &mut record.detections[first + d];
                        match claim(&overlaps[d], &order, &mut taken, threshold) {
                            Some(false) => scored.hits[r] |= 1 << t,
                            Some(true) => scored.ignored[r] |= 1 << t,
                            None => scored.ignored[r] |= u16::from(outside(area(&detection.xyxy))) << t,
                        }
                    }
                }
            }
            if !truths.is_empty() {
                record.truths.push((image, counts));
            }
        }
    }

    /// The summary of all images so far.
    pub fn metrics(&self) -> CocoMetrics {
        summary(&self.classes.par_iter().map(ClassRecord::average_precisions).collect::<Vec<_>>())
    }

    /// The same of each class alone.
    pub fn class_metrics(&self) -> Vec<CocoMetrics> {
        self.classes.par_iter().map(|class| summary(&[class.average_precisions()])).collect()
    }
}

/// Means over classes that have objects.
pub(super) fn summary(per_class: &[Precisions]) -> CocoMetrics {
    let mean = |range: usize, thresholds: std::ops::Range<usize>| {
        let values: Vec<f64> = per_class.iter().filter_map(|c| c[range]).flat_map(|ap| ap[thresholds.clone()].to_vec()).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    CocoMetrics {
        map50_95: mean(0, 0..10),
        map50: mean(0, 0..1),
        map75: mean(0, 5..6),
        small: mean(1, 0..10),
        medium: mean(2, 0..10),
        large: mean(3, 0..10),
        small50: mean(1, 0..1),
        medium50: mean(2, 0..1),
        large50: mean(3, 0..1),
    }
}

/// The best free truth with IoU ≥ `threshold`, the last on ties, and one inside the range before any ignored one. Marks it and says
/// whether it is an ignored one. `order` lists (index, ignored) with the ignored last.
fn claim(overlaps: &[f64], order: &[(usize, bool)], taken: &mut [bool], threshold: f64) -> Option<bool> {
    let mut best: Option<(usize, bool)> = None;
    let mut reach = threshold;
    for &(truth, ignored) in order {
        if best.is_some_and(|(_, best_ignored)| ignored && !best_ignored) {
            break;
        }
        if !taken[truth] && overlaps[truth] >= reach {
            reach = overlaps[truth];
            best = Some((truth, ignored));
        }
    }
    best.map(|(truth, ignored)| {
        taken[truth] = true;
        ignored
    })
}

impl ClassRecord {
    /// The detections, the surest first.
    pub(super) fn ranked(&self) -> Vec<Scored> {
        let mut ranked = self.detections.clone();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score)); // stable, as pycocotools' merge sort
        ranked
    }

    fn average_precisions(&self) -> Precisions {
        average_precisions(&self.ranked(), sum(self.truths.iter().map(|(_, counts)| counts)))
    }
}

/// Objects of several images by size range.
pub(super) fn sum<'a>(truths: impl Iterator<Item = &'a [u32; 4]>) -> [usize; 4] {
    truths.fold([0; 4], |sum, counts| std::array::from_fn(|r| sum[r] + counts[r] as usize))
}

/// Of detections with the surest first, and how many objects there are by size range.
pub(super) fn average_precisions(ranked: &[Scored], truths: [usize; 4]) -> Precisions {
    std::array::from_fn(|r| {
        (truths[r] > 0).then(|| {
            std::array::from_fn(|t| {
                let counted = ranked.iter().filter(|d| d.ignored[r] >> t & 1 == 0);
                let curve = RankedCurve::new(counted.map(|d| d.hits[r] >> t & 1 == 1), truths[r]);
                coco_average_precision(&curve.recall, &curve.precision)
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_do_not_disturb_each_other() {
        let mut e = CocoEvaluator::new(1);
        let small = [0.0, 0.0, 10.0, 10.0];
        let large = [100.0, 100.0, 300.0, 300.0];
        let truths = [small, large].map(|xyxy| GroundTruth { class: 0, xyxy });
        e.add_image(&[Detection { xyxy: large, score: 0.9, class: 0 }], &truths);
        let m = e.metrics();
        assert_eq!(m.by_size(), [Some(0.0), None, Some(1.0), Some(0.0), None, Some(1.0)]);
        assert_eq!(m.map50, Some(51.0 / 101.0));
        assert_eq!(e.class_metrics(), [m]);
        assert_eq!(CocoEvaluator::new(2).metrics(), CocoMetrics::default());
    }

    #[test]
    fn an_object_is_as_large_as_its_mask() {
        let square = |x: f32| [x, 0.0, x + 40.0, 40.0];
        let truths = [square(0.0), square(100.0)].map(|xyxy| GroundTruth { class: 0, xyxy });
        let mut e = CocoEvaluator::new(1);
        // The second, whose box has 1,600 px² and whose mask 900, is found.
        e.add_image_with_areas(&[Detection { xyxy: square(100.0), score: 0.9, class: 0 }], &truths, |i| (i == 1).then_some(900.0));
        assert_eq!(e.metrics().by_size(), [Some(1.0), Some(0.0), None, Some(1.0), Some(0.0), None]);
        let mut by_boxes = CocoEvaluator::new(1);
        by_boxes.add_image(&[Detection { xyxy: square(100.0), score: 0.9, class: 0 }], &truths);
        assert_eq!((by_boxes.metrics().small, by_boxes.metrics().map50), (None, e.metrics().map50));
    }

    #[test]
    fn objects_of_four_pixels_by_hand() {
        let square = |x: f32, y: f32| [x, y, x + 4.0, y + 4.0];
        let truths = [square(300.0, 200.0), square(310.0, 200.0), square(320.0, 200.0)];
        // Where it is, a pixel beside it, and a pixel beside and below it.
        let found = [square(300.0, 200.0), square(311.0, 200.0), square(321.0, 201.0)];
        let overlaps: Vec<f64> = truths.iter().zip(&found).map(|(a, b)| iou(a, b)).collect();
        assert_eq!(overlaps, [1.0, 12.0 / 20.0, 9.0 / 23.0]);
        let mut e = CocoEvaluator::new(1);
        let detections = found.iter().zip([0.9, 0.8, 0.7]).map(|(&xyxy, score)| Detection { xyxy, score, class: 0 });
        e.add_image(&detections.collect::<Vec<_>>(), &truths.map(|xyxy| GroundTruth { class: 0, xyxy }));
        let m = e.metrics();
        // Two of three at .50, .55 and .60, which are 67 recalls of 101 at precision 1; one of three, 34 recalls, at the other seven.
        let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-12;
        assert!(close(m.small50, 67.0 / 101.0) && close(m.small, (3.0 * 67.0 + 7.0 * 34.0) / 1010.0), "{m:?}");
        assert_eq!((m.map50, m.map50_95, m.medium50, m.large50), (m.small50, m.small, None, None));
    }

    #[test]
    fn a_truth_of_the_right_size_goes_before_a_better_fitting_one_of_another() {
        let [small, medium] = [[0.0, 0.0, 30.0, 30.0], [0.0, 0.0, 33.0, 33.0]];
        let mut e = CocoEvaluator::new(1);
        e.add_image(&[Detection { xyxy: medium, score: 0.9, class: 0 }], &[medium, small].map(|xyxy| GroundTruth { class: 0, xyxy }));
        let ap = e.metrics().small.unwrap();
        assert!((ap - 0.7).abs() < 1e-9, "IoU with the small one is .826: found at seven thresholds of ten, {ap}");
        assert_eq!(e.metrics().small50, Some(1.0), "and at the first of them");
    }

    #[test]
    fn a_loser_falls_back_to_the_next_free_truth() {
        let truths = [[0.0, 0.0, 10.0, 10.0], [0.0, 3.0, 10.0, 13.0]].map(|xyxy| GroundTruth { class: 0, xyxy });
        let both = Detection { xyxy: [0.0, 0.0, 10.0, 11.0], score: 0.9, class: 0 };
        let mut e = CocoEvaluator::new(1);
        e.add_image(&[both, both], &truths);
        assert_eq!(e.metrics().map50, Some(1.0), "the second has IoU .615 with the second truth");
    }
}
