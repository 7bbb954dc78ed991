//! Average precision against the tools that define it, on 200 random detection sets.
//!
//! `golden/detection_sets.py` wrote the expected numbers; the sets are drawn here again from the same integer generator.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking, in its helpers too")]

use bellows_yolo::boxes::{Detection, GroundTruth};
use bellows_yolo::metrics::{CocoEvaluator, Evaluator, IOU_THRESHOLDS, coco_average_precision, iou_matrix, match_detections};

const GOLDEN: &str = include_str!("golden/detection_sets.csv");
const TOLERANCE: f64 = 1e-6;

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as i64 % n
    }
}

type Image = (Vec<GroundTruth>, Vec<Detection>);

/// Corner and size in quarter pixels.
type Quarters = [i64; 4];

fn any_box(rng: &mut Lcg) -> Quarters {
    let (w, h) = (16 + rng.below(1000), 16 + rng.below(1000));
    [rng.below(2560 - w), rng.below(2560 - h), w, h]
}

fn cell_box(rng: &mut Lcg, cell: i64) -> Quarters {
    let (w, h) = (16 + rng.below(600), 16 + rng.below(600));
    [cell % 4 * 640 + rng.below(640 - w), cell / 4 * 640 + rng.below(640 - h), w, h]
}

fn xyxy([x, y, w, h]: Quarters) -> [f32; 4] {
    [x, y, x + w, y + h].map(|v| v as f32 / 4.0)
}

fn draw(seed: u64) -> (usize, Vec<Image>) {
    let rng = &mut Lcg(seed * 2 + 1);
    let nc = 1 + rng.below(4);
    let images = (0..2 + rng.below(6)).map(|image| draw_image(rng, seed, nc, image)).collect();
    (nc as usize, images)
}

fn draw_image(rng: &mut Lcg, seed: u64, nc: i64, image: i64) -> Image {
    let mut truths = Vec::new();
    for k in 0..rng.below(9) {
        let quarters = if seed.is_multiple_of(2) { cell_box(rng, 2 * k) } else { any_box(rng) };
        truths.push((rng.below(nc), quarters));
    }
    let mut detections = Vec::new();
    for &(class, quarters) in &truths {
        for _ in 0..[0, 1, 1, 1, 2, 3][rng.below(6) as usize] {
            let wobble = 1 + rng.below(40);
            let mut moved = quarters;
            for (i, v) in moved.iter_mut().enumerate() {
                *v = (*v + ((rng.below(2 * wobble + 1) - wobble) * quarters[2 + i % 2]).div_euclid(100)).max(1);
            }
            detections.push((if rng.below(8) != 0 { class } else { rng.below(nc) }, moved));
        }
    }
    for _ in 0..(if seed % 20 == 3 { 150 } else { 0 }) + rng.below(6) + i64::from(image == 0) {
        detections.push((rng.below(nc), any_box(rng)));
    }
    let truths = truths.into_iter().map(|(class, q)| GroundTruth { class: class as u32, xyxy: xyxy(q) }).collect();
    let score = |rng: &mut Lcg| rng.below(1 << 24) as f32 / (1 << 24) as f32;
    (truths, detections.into_iter().map(|(class, q)| Detection { xyxy: xyxy(q), score: score(rng), class: class as u32 }).collect())
}

/// The golden columns after the seed, by row.
fn golden() -> Vec<Vec<f64>> {
    GOLDEN.lines().skip(1).map(|line| line.split(',').skip(1).map(|v| v.parse().unwrap()).collect()).collect()
}

fn assert_close(what: &str, seed: usize, ours: f64, theirs: f64) {
    assert!((ours - theirs).abs() <= TOLERANCE, "set {seed}: {what} is {ours:.9}, expected {theirs:.7}");
}

#[test]
fn coco_evaluator_equals_pycocotools_on_every_set() {
    let golden = golden();
    assert_eq!(golden.len(), 200);
    for (seed, expected) in golden.iter().enumerate() {
        let (nc, images) = draw(seed as u64);
        let mut e = CocoEvaluator::new(nc);
        images.iter().for_each(|(truths, detections)| e.add_image(detections, truths));
        let m = e.metrics();
        let ours = [m.map50_95, m.map50, m.map75, m.small, m.medium, m.large];
        for (i, name) in ["mAP50-95", "mAP50", "mAP75", "small", "medium", "large"].into_iter().enumerate() {
            assert_close(name, seed, ours[i].unwrap_or(-1.0), expected[i]);
        }
    }
}

/// On disjoint truths the two matchings must be the same, so this evaluator's own matches, read with pycocotools' interpolation, give
/// pycocotools' number: all that separates the two definitions there is the interpolation.
#[test]
fn own_matching_with_coco_interpolation_equals_pycocotools_where_truths_are_disjoint() {
    let (golden, mut disjoint) = (golden(), 0);
    for (seed, expected) in golden.iter().enumerate().step_by(2) {
        let (nc, images) = draw(seed as u64);
        let mut ranked = Vec::new();
        for (truths, detections) in &images {
            let boxes: Vec<Detection> = truths.iter().map(|t| Detection { xyxy: t.xyxy, score: 1.0, class: 0 }).collect();
            assert!(iou_matrix(&boxes, truths).iter().filter(|&&o| o > 0.0).count() == truths.len());
            let mut detections = detections.clone();
            detections.sort_by(|a, b| b.score.total_cmp(&a.score));
            let correct = match_detections(&detections, truths);
            ranked.extend(detections.into_iter().zip(correct));
        }
        ranked.sort_by(|a, b| b.0.score.total_cmp(&a.0.score));
        let present: Vec<(u32, usize)> = (0..nc as u32)
            .map(|class| (class, images.iter().flat_map(|(t, _)| t).filter(|t| t.class == class).count()))
            .filter(|&(_, n)| n > 0)
            .collect();
        let ap = |class: u32, n: usize, t: usize| {
            let (mut found, mut recall, mut precision) = (0.0, Vec::new(), Vec::new());
            for (rank, (_, correct)) in ranked.iter().filter(|(d, _)| d.class == class).enumerate() {
                found += f64::from(u8::from(correct[t]));
                recall.push(found / n as f64);
                precision.push(found / (rank + 1) as f64);
            }
            coco_average_precision(&recall, &precision)
        };
        let sum: f64 = present.iter().map(|&(c, n)| (0..IOU_THRESHOLDS.len()).map(|t| ap(c, n, t)).sum::<f64>() / 10.0).sum();
        let map = if present.is_empty() { -1.0 } else { sum / present.len() as f64 };
        assert_close("mAP50-95", seed, map, expected[0]);
        disjoint += 1;
    }
    assert_eq!(disjoint, 100);
}

#[test]
fn evaluator_equals_the_peer_on_every_set() {
    for (seed, expected) in golden().iter().enumerate() {
        let (nc, images) = draw(seed as u64);
        let mut e = Evaluator::new(nc);
        images.iter().for_each(|(truths, detections)| e.add_image(detections, truths));
        let m = e.metrics();
        let ours = [m.map50, m.map75, m.map50_95, m.precision, m.recall];
        for (i, name) in ["mAP50", "mAP75", "mAP50-95", "P", "R"].into_iter().enumerate() {
            assert_close(name, seed, ours[i], expected[6 + i]);
        }
    }
}

#[test]
fn classes_that_occur_nowhere_and_those_that_are_unknown_change_nothing() {
    for seed in (0..200).step_by(7) {
        let (nc, mut images) = draw(seed);
        let evaluated = |nc: usize, images: &[Image]| {
            let (mut own, mut coco) = (Evaluator::new(nc), CocoEvaluator::new(nc));
            for (truths, detections) in images {
                own.add_image(detections, truths);
                coco.add_image(detections, truths);
            }
            (own.metrics(), coco.metrics(), coco.class_metrics())
        };
        let (own, coco, of_classes) = evaluated(nc, &images);
        for (truths, detections) in &mut images {
            truths.iter_mut().for_each(|t| t.class = t.class * 250 + 9);
            detections.iter_mut().for_each(|d| d.class = d.class * 250 + 9);
            let unknown = GroundTruth { class: 1000, xyxy: [0.0, 0.0, 9.0, 9.0] };
            detections.push(Detection { xyxy: unknown.xyxy, score: 0.5, class: 1000 });
            truths.push(unknown);
        }
        let (mut spread, spread_coco, spread_classes) = evaluated(1000, &images);
        assert_eq!(coco, spread_coco, "set {seed}");
        assert!((0..nc).all(|class| of_classes[class] == spread_classes[class * 250 + 9]), "set {seed}");
        spread.per_class.iter_mut().for_each(|of| of.class /= 250);
        spread.curves.classes.iter_mut().for_each(|class| *class /= 250);
        assert_eq!(own, spread, "set {seed}");
    }
}

/// The sets would prove little if the two definitions agreed on them.
#[test]
fn the_definitions_do_differ() {
    let gap = golden().iter().map(|row| (row[8] - row[0]).abs()).fold(0.0, f64::max);
    assert!(gap > 0.02, "largest gap between the two mAP50-95: {gap}");
}
