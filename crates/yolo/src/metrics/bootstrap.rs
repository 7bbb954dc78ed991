//! How sure AP by groups is: intervals that hold 95 of 100 draws of a bootstrap (Efron 1979) whose units are clips, not images. Frames of one clip are
//! nearly the same picture, and drawing them one by one would make every interval too narrow. Clips are drawn within their group, so that
//! groups keep their sizes. How much groups differ, and the score that is made of it, has its bias corrected (`corrected`).
//!
//! A draw goes once through the detections in their order and keeps no curve, so that 44,000 images with all their false alarms take seconds
//! and, beside 8 bytes a detection, no memory.

use std::collections::{BTreeSet, HashMap};

use bellows_learner::rng::{GOLDEN, Rng, mix};
use rayon::prelude::*;

use super::ap::{GRID, max_from_right, recall_at};
use super::coco::{ClassRecord, CocoEvaluator};

/// Draws of the bootstrap.
const DRAWS: u64 = 200;

/// From the 2.5th to the 97.5th of 100 draws.
pub type Interval = [f64; 2];

/// Standard deviation (n - 1) over mean; none of fewer than two numbers, or of a mean of 0.
pub(super) fn variation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (values.len() > 1 && mean > 0.0).then(|| variance.sqrt() / mean)
}

/// What the draws need of a class: every detection and every object with the clip of a group that it is in.
struct Class {
    /// Slot, and whether it is right at IoU .50; the surest first.
    ranked: Vec<(u32, bool)>,
    /// Slot, and how many objects an image there has.
    truths: Vec<(u32, u32)>,
}

/// Draws of clips. A slot is a clip within a group: those of one group stand side by side.
pub(super) struct Bootstrap {
    classes: Vec<Class>,
    /// Of each group, where its slots begin; then their number.
    starts: Vec<usize>,
    /// Of each slot.
    group: Vec<u32>,
}

/// What the draws gave.
#[derive(Default)]
pub(super) struct Draws {
    /// By group, mAP50 of each draw; of no draw where there is nothing to be drawn.
    groups: Vec<Vec<f64>>,
    /// mAP50 of all groups together, and CoV.
    joint: Vec<(f64, f64)>,
}

/// AP of one class at one threshold while its detections come, the surest first: [`super::coco_average_precision`] without the curve. Precision is best
/// where something is found, so that is where the best of each recall is looked for.
#[derive(Clone)]
struct Running {
    truths: f64,
    found: f64,
    all: f64,
    /// The last of the recalls that the curve is read at which was reached.
    reached: usize,
    /// Of each of these, the best precision from it to the next.
    best: [f64; GRID],
}

impl Default for Running {
    fn default() -> Self {
        Self { truths: 0.0, found: 0.0, all: 0.0, reached: 0, best: [0.0; GRID] }
    }
}

impl Running {
    fn push(&mut self, weight: f64, hit: bool) {
        self.all += weight;
        if hit {
            self.found += weight;
            let recall = self.found / self.truths;
            while self.reached + 1 < GRID && recall_at(self.reached + 1) <= recall {
                self.reached += 1;
            }
            self.best[self.reached] = self.best[self.reached].max(self.found / self.all);
        }
    }

    fn average_precision(&self) -> f64 {
        let mut best = self.best;
        max_from_right(&mut best);
        best.iter().sum::<f64>() / GRID as f64
    }
}

impl Bootstrap {
    /// Of what `evaluator` was given: image i is in group `group[i]` of `groups`, or in none, and in clip `clip[i]`.
    pub(super) fn new(evaluator: &CocoEvaluator, group: &[Option<u32>], clip: &[u32], groups: usize) -> Self {
        let pairs: BTreeSet<(u32, u32)> = group.iter().zip(clip).filter_map(|(g, &clip)| Some(((*g)?, clip))).collect();
        let slots: HashMap<(u32, u32), u32> = pairs.iter().copied().zip(0..).collect();
        let slot_of: Vec<Option<u32>> = group.iter().zip(clip).map(|(g, &clip)| slots.get(&((*g)?, clip)).copied()).collect();
        let slot = |image: u32| slot_of.get(image as usize).copied().flatten();
        let class = |record: &ClassRecord| Class {
            ranked: record.ranked().iter().filter_map(|d| Some((slot(d.image)?, d.hits[0] & 1 == 1))).collect(),
            truths: record.truths.iter().filter_map(|(image, counts)| Some((slot(*image)?, counts[0]))).collect(),
        };
        let of: Vec<u32> = pairs.iter().map(|(g, _)| *g).collect();
        let starts = (0..=groups).map(|g| of.partition_point(|&of| (of as usize) < g)).collect();
        Self { classes: evaluator.classes.par_iter().map(class).collect(), starts, group: of }
    }

    fn groups(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn run(&self) -> Draws {
        let all: Vec<Vec<Option<f64>>> = (0..DRAWS).into_par_iter().map(|draw| self.map50(&self.weights(draw))).collect();
        let witnesses: Vec<usize> = (0..self.groups()).map(|g| self.witnesses(g)).collect();
        let of_group = |g: usize| if witnesses[g] > 1 { all.iter().filter_map(|each| each[g]).collect() } else { Vec::new() };
        let any = witnesses.iter().any(|&n| n > 1);
        let joint = all.iter().filter(|_| any).filter_map(|each| {
            let (whole, each) = each.split_last()?;
            Some(((*whole)?, variation(&each.iter().flatten().copied().collect::<Vec<_>>())?))
        });
        Draws { groups: (0..self.groups()).map(of_group).collect(), joint: joint.collect() }
    }

    /// How many clips of a group have objects: what a draw can differ in.
    fn witnesses(&self, group: usize) -> usize {
        let own = self.starts[group]..self.starts[group + 1];
        let slots = self.classes.iter().flat_map(|class| &class.truths).map(|(slot, _)| *slot as usize);
        slots.filter(|slot| own.contains(slot)).collect::<BTreeSet<_>>().len()
    }

    /// How often each slot is drawn: of every group as many as it has.
    fn weights(&self, draw: u64) -> Vec<u32> {
        let mut weights = vec![0; self.group.len()];
        for (group, ends) in self.starts.windows(2).enumerate() {
            let mut rng = Rng::keyed(mix(mix(draw.wrapping_add(GOLDEN)) ^ group as u64));
            let count = (ends[1] - ends[0]) as u64;
            (0..count).for_each(|_| weights[ends[0] + rng.below(count) as usize] += 1);
        }
        weights
    }

    /// mAP50 of each group, then of all together, with every image as often as its slot was drawn; none without objects.
    fn map50(&self, weights: &[u32]) -> Vec<Option<f64>> {
        let (mut sums, whole) = (vec![(0.0, 0u32); self.groups() + 1], self.groups());
        for class in &self.classes {
            let mut curves = vec![Running::default(); sums.len()];
            for &(slot, count) in &class.truths {
                let objects = f64::from(weights[slot as usize]) * f64::from(count);
                [self.group[slot as usize] as usize, whole].into_iter().for_each(|at| curves[at].truths += objects);
            }
            for &(slot, hit) in &class.ranked {
                let weight = f64::from(weights[slot as usize]);
                if weight > 0.0 {
                    [self.group[slot as usize] as usize, whole].into_iter().for_each(|at| curves[at].push(weight, hit));
                }
            }
            for ((sum, count), curve) in sums.iter_mut().zip(&curves).filter(|(_, curve)| curve.truths > 0.0) {
                *sum += curve.average_precision();
                *count += 1;
            }
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / f64::from(count))).collect()
    }
}

impl Draws {
    pub(super) fn of_group(&self, group: usize) -> Option<Interval> {
        interval(self.groups.get(group)?.clone())
    }

    /// Of a CoV that was found to be `value`.
    pub(super) fn cov(&self, value: f64) -> Option<Interval> {
        corrected(self.joint.iter().map(|&(_, cov)| cov).collect(), value)
    }

    /// Of a score that was found to be `value`.
    pub(super) fn score(&self, value: f64) -> Option<Interval> {
        corrected(self.joint.iter().map(|&(map50, cov)| map50 * (1.0 - cov)).collect(), value)
    }
}

/// The values in their order, if there are enough of them to say something.
fn enough(mut values: Vec<f64>) -> Option<Vec<f64>> {
    values.sort_unstable_by(f64::total_cmp);
    (values.len() as u64 * 2 > DRAWS).then_some(values)
}

/// Of sorted values the one that this share of them is below.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

/// The middle 95 of 100 of the draws.
fn interval(draws: Vec<f64>) -> Option<Interval> {
    let sorted = enough(draws)?;
    Some([0.025, 0.975].map(|share| percentile(&sorted, share)))
}

/// Between which draws `value` lies, their bias corrected: BC of Efron (Better bootstrap confidence intervals, JASA 82, 1987, 171-185). What chance adds to a difference
/// of groups is in the value already and comes into every draw once more, so CoV of draws is too high, and of their middle 95 the value would be at the lower end. z0 says how
/// far off the draws are, as a normal deviate, by the share of them that is below the value (of equal ones half); both percentiles move by twice that. Where all draws are on
/// one side of the value, it is the end itself.
fn corrected(draws: Vec<f64>, value: f64) -> Option<Interval> {
    let sorted = enough(draws)?;
    let count = sorted.len() as f64;
    let (below, up_to) = (sorted.partition_point(|&draw| draw < value), sorted.partition_point(|&draw| draw <= value));
    // Of no draw, and of all, there is no deviate.
    let share = ((below + up_to) as f64 / 2.0 / count).clamp(0.5 / count, 1.0 - 0.5 / count);
    let z0 = normal_deviate(share);
    let [low, high] = [-1.96, 1.96].map(|end| percentile(&sorted, normal_share(2.0 * z0 + end)));
    Some([low.min(value), high.max(value)])
}

/// The share of a standard normal distribution below `deviate`, to 8e-8 (Abramowitz and Stegun 26.2.17).
fn normal_share(deviate: f64) -> f64 {
    const TERMS: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * deviate.abs());
    let sum = TERMS.iter().rev().fold(0.0, |sum: f64, term| (sum + term) * t);
    let beyond = sum * (-deviate * deviate / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if deviate > 0.0 { 1.0 - beyond } else { beyond }
}

/// Below which deviate a share lies.
fn normal_deviate(share: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::boxes::{Detection, GroundTruth};
    use crate::metrics::coco_average_precision;

    pub(in crate::metrics) const BOX: [f32; 4] = [10.0, 10.0, 50.0, 50.0];
    pub(in crate::metrics) const FAR: [f32; 4] = [200.0, 200.0, 240.0, 240.0];

    /// Two months of four clips of three images each; in the second month every third object is missed and a false alarm is surer.
    pub(in crate::metrics) fn year() -> (CocoEvaluator, Vec<Option<u32>>, Vec<u32>) {
        let mut evaluator = CocoEvaluator::new(2);
        let (mut group, mut clip) = (Vec::new(), Vec::new());
        for i in 0..24u32 {
            let month = i / 12;
            let found = Detection { xyxy: BOX, score: 0.5 + 0.01 * i as f32, class: i % 2 };
            let alarm = Detection { xyxy: FAR, score: 0.9, class: i % 2 };
            let mut detections = vec![found];
            if month == 1 && i % 5 == 0 {
                detections = vec![alarm];
            }
            evaluator.add_image(&detections, &[GroundTruth { class: i % 2, xyxy: BOX }]);
            group.push(Some(month));
            clip.push(i / 3);
        }
        (evaluator, group, clip)
    }

    #[test]
    fn weights_of_one_are_the_plain_average_precision() {
        let (evaluator, group, clip) = year();
        let bootstrap = Bootstrap::new(&evaluator, &group, &clip, 2);
        let plain = bootstrap.map50(&[1; 8]);
        assert_eq!((plain[0], plain[2]), (Some(1.0), evaluator.metrics().map50));
        assert_eq!((bootstrap.witnesses(0), bootstrap.witnesses(1)), (4, 4));
        assert!((0..9).all(|draw| bootstrap.weights(draw).chunks(4).all(|of_group| of_group.iter().sum::<u32>() == 4)));
        // A clip that is drawn twice counts as if its images were there twice.
        let mut repeated = CocoEvaluator::new(2);
        for i in (12..24u32).chain(12..15) {
            if i >= 21 {
                continue;
            }
            let alarm = i % 5 == 0;
            let (xyxy, score) = if alarm { (FAR, 0.9) } else { (BOX, 0.5 + 0.01 * i as f32) };
            repeated.add_image(&[Detection { xyxy, score, class: i % 2 }], &[GroundTruth { class: i % 2, xyxy: BOX }]);
        }
        let close = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-12;
        assert!(close(bootstrap.map50(&[1, 1, 1, 1, 2, 1, 1, 0])[1], repeated.metrics().map50));
        // Images of no group count in nothing.
        let some: Vec<Option<u32>> = group.iter().map(|g| g.filter(|&g| g == 1).map(|_| 0)).collect();
        assert_eq!(Bootstrap::new(&evaluator, &some, &clip, 1).map50(&[1; 4]), [plain[1]; 2]);
    }

    #[test]
    fn a_bias_of_the_draws_moves_the_interval_back() {
        for (deviate, share) in [(0.0, 0.5), (-1.96, 0.024_997_9), (1.0, 0.841_344_7), (-3.0, 0.001_349_9)] {
            assert!((normal_share(deviate) - share).abs() < 1e-6 && (normal_deviate(share) - deviate).abs() < 1e-4, "{deviate}");
        }
        let draws: Vec<f64> = (1..=200).map(|i| f64::from(i) / 100.0).collect();
        assert_eq!(interval(draws.clone()), Some([0.06, 1.95]));
        assert_eq!(corrected(draws.clone(), 1.005), Some([0.06, 1.95]), "as many above as below");
        // A tenth is below it: z0 is -1.2816, and the upper percentile that of -2.5631 + 1.96.
        assert_eq!(corrected(draws.clone(), 0.205), Some([0.01, 0.55]));
        assert_eq!(corrected(draws.clone(), 0.0), Some([0.0, 0.01]), "all draws are above");
        assert_eq!(corrected(vec![1.0; 200], 1.0), Some([1.0; 2]), "nothing varies");
        assert_eq!(corrected(draws[..100].to_vec(), 0.5), None, "too few");
    }

    /// Months of twelve clips that differ by chance alone, as draws of them do the more.
    #[test]
    fn of_equal_months_the_variation_lies_within_its_interval_and_at_no_end() {
        let mut rng = Rng::new(5, "months", 0, 0);
        let place = |[low, high]: Interval, value: f64| (value - low) / (high - low);
        let mut places = [0.0; 2];
        for _ in 0..20 {
            let months: Vec<Vec<f64>> = (0..8).map(|_| (0..12).map(|_| 0.5 + 0.2 * rng.normal()).collect()).collect();
            let means: Vec<f64> = months.iter().map(|month| month.iter().sum::<f64>() / 12.0).collect();
            let mut draw = |month: &Vec<f64>| (0..12).map(|_| month[rng.below(12) as usize]).sum::<f64>() / 12.0;
            let draws: Vec<f64> = (0..200).map(|_| variation(&months.iter().map(&mut draw).collect::<Vec<f64>>()).unwrap()).collect();
            let value = variation(&means).unwrap();
            places[0] += place(interval(draws.clone()).unwrap(), value) / 20.0;
            places[1] += place(corrected(draws, value).unwrap(), value) / 20.0;
        }
        assert!(places[0] < 0.3 && (0.4..0.8).contains(&places[1]), "{places:?}");
    }

    #[test]
    fn without_its_curve_an_average_precision_is_the_same() {
        let mut rng = Rng::new(3, "hits", 0, 0);
        for truths in [1u32, 7, 40, 101, 333] {
            let hits: Vec<bool> = (0..truths * 3).map(|_| rng.below(3) == 0).collect();
            let mut running = Running { truths: f64::from(truths), ..Running::default() };
            let (mut found, mut recall, mut precision) = (0.0, Vec::new(), Vec::new());
            for (rank, &hit) in hits.iter().enumerate() {
                if found == f64::from(truths) {
                    break;
                }
                found += f64::from(u8::from(hit));
                recall.push(found / f64::from(truths));
                precision.push(found / (rank + 1) as f64);
                running.push(1.0, hit);
            }
            assert_eq!(running.average_precision(), coco_average_precision(&recall, &precision), "{truths}");
        }
    }
}
