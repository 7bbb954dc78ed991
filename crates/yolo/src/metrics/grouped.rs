//! A validation cut into groups of images (months, day and night, clips): AP of each, how much it varies, and how sure that is.
//!
//! AP is pycocotools', which is what is compared between data sets' months: `score = mAP50 * (1 - CoV)` with `CoV = s / mean`, s the standard deviation
//! of the groups' mAP50 with n - 1 in its denominator (the long-term thermal drift challenge, WACV 2026). A group without objects has no AP
//! and counts in neither, nor does an image of no group. Intervals are those of [`super::bootstrap`].

use rayon::prelude::*;

use super::bootstrap::{Bootstrap, Draws, Interval, variation};
use super::coco::{CocoEvaluator, CocoMetrics, Precisions, Scored, average_precisions, sum, summary};

/// With more groups than this no interval is computed: they are clips themselves, or as many.
const MOST: usize = 64;

/// One group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupMetrics {
    /// What its images have in common: `2020-05`, `day`.
    pub name: String,
    /// Images.
    pub images: usize,
    /// Objects in them.
    pub instances: usize,
    /// AP of its images.
    pub coco: CocoMetrics,
    /// Of its mAP50; none where fewer than two clips have objects.
    pub interval: Option<Interval>,
}

/// How much mAP50 varies over groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stability {
    /// Of all images that are in a group.
    pub map50: f64,
    /// Standard deviation (n - 1) over mean of the groups' mAP50.
    pub cov: f64,
    /// mAP50 times 1 - CoV.
    pub score: f64,
    /// Of CoV.
    pub cov_interval: Option<Interval>,
    /// Of the score.
    pub score_interval: Option<Interval>,
}

impl Stability {
    /// What it is told in, with names and intervals, wherever it is told.
    pub(crate) fn numbers(&self) -> [(&'static str, f64, Option<Interval>); 3] {
        [("mAP50", self.map50, None), ("CoV", self.cov, self.cov_interval), ("mAP50*(1-CoV)", self.score, self.score_interval)]
    }
}

/// All groups of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// What they differ in: `month`.
    pub key: String,
    /// In the order of their names.
    pub groups: Vec<GroupMetrics>,
    /// None where fewer than two groups have objects.
    pub stability: Option<Stability>,
}

/// The images that `evaluator` was given, the i-th of them in group `group[i]` of `names` (or in none) and in clip `clip[i]`.
pub fn group_metrics(evaluator: &CocoEvaluator, key: &str, names: &[String], group: &[Option<u32>], clip: &[u32]) -> Grouped {
    let of = |image: u32| group.get(image as usize).copied().flatten().map(|g| g as usize);
    let (whole, parts): (Vec<Precisions>, Vec<Vec<Part>>) = evaluator
        .classes
        .par_iter()
        .map(|class| {
            let mut grouped = Part { ranked: class.ranked(), truths: class.truths.clone() };
            grouped.ranked.retain(|detection| of(detection.image).is_some());
            grouped.truths.retain(|(image, _)| of(*image).is_some());
            let whole = grouped.precisions();
            let mut parts: Vec<Part> = vec![Part::default(); names.len()];
            for detection in grouped.ranked {
                if let Some(g) = of(detection.image) {
                    parts[g].ranked.push(detection);
                }
            }
            for (image, counts) in grouped.truths {
                if let Some(g) = of(image) {
                    parts[g].truths.push((image, counts));
                }
            }
            (whole, parts)
        })
        .unzip();
    let ap = |g: usize| summary(&parts.iter().map(|class| class[g].precisions()).collect::<Vec<_>>());
    let intervals = if names.len() <= MOST { Bootstrap::new(evaluator, group, clip, names.len()).run() } else { Draws::default() };
    let groups: Vec<GroupMetrics> = (0..names.len())
        .into_par_iter()
        .map(|g| GroupMetrics {
            name: names[g].clone(),
            images: group.iter().filter(|of| **of == Some(g as u32)).count(),
            instances: parts.iter().flat_map(|class| &class[g].truths).map(|(_, counts)| counts[0] as usize).sum(),
            coco: ap(g),
            interval: intervals.of_group(g),
        })
        .collect();
    let each: Vec<f64> = groups.iter().filter_map(|g| g.coco.map50).collect();
    let stability = summary(&whole).map50.zip(variation(&each)).map(|(map50, cov)| {
        let score = map50 * (1.0 - cov);
        Stability { map50, cov, score, cov_interval: intervals.cov(cov), score_interval: intervals.score(score) }
    });
    Grouped { key: key.into(), groups, stability }
}

/// What a class has in a group, or in all of them.
#[derive(Clone, Default)]
struct Part {
    /// The surest first.
    ranked: Vec<Scored>,
    truths: Vec<(u32, [u32; 4])>,
}

impl Part {
    fn precisions(&self) -> Precisions {
        average_precisions(&self.ranked, sum(self.truths.iter().map(|(_, counts)| counts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boxes::{Detection, GroundTruth};
    use crate::metrics::bootstrap::tests::{BOX, FAR, year};

    fn names() -> Vec<String> {
        ["2020-05", "2020-06"].map(String::from).to_vec()
    }

    #[test]
    fn a_group_is_judged_as_if_it_were_alone() {
        let (evaluator, group, clip) = year();
        let all = group_metrics(&evaluator, "month", &names(), &group, &clip);
        let mut alone = CocoEvaluator::new(2);
        for i in 12..24u32 {
            let alarm = i % 5 == 0;
            let (xyxy, score) = if alarm { (FAR, 0.9) } else { (BOX, 0.5 + 0.01 * i as f32) };
            alone.add_image(&[Detection { xyxy, score, class: i % 2 }], &[GroundTruth { class: i % 2, xyxy: BOX }]);
        }
        assert_eq!((all.groups[0].images, all.groups[0].instances, all.groups[0].coco.map50), (12, 12, Some(1.0)));
        assert_eq!(all.groups[1].coco, alone.metrics());
        assert!(all.groups[1].coco.map50.unwrap() < 0.9);
        // The same images in one group are the whole.
        let one = group_metrics(&evaluator, "k", &["x".into()], &[Some(0); 24], &clip);
        assert_eq!((one.groups[0].coco, one.stability), (evaluator.metrics(), None));
    }

    #[test]
    fn score_and_variation_are_those_of_the_challenge() {
        let (evaluator, group, clip) = year();
        let all = group_metrics(&evaluator, "month", &names(), &group, &clip);
        let [a, b] = [0, 1].map(|g: usize| all.groups[g].coco.map50.unwrap());
        // Of two numbers the deviation with n - 1 is their distance over the root of two.
        let cov = ((a - b).abs() / 2f64.sqrt()) / ((a + b) / 2.0);
        let stability = all.stability.unwrap();
        assert!((stability.cov - cov).abs() < 1e-12);
        assert!((stability.score - evaluator.metrics().map50.unwrap() * (1.0 - cov)).abs() < 1e-12);
        // numpy: a = [.571, .610, .521, .438, .599, .538, .474, .500]; a.std(ddof=1) / a.mean()
        let published = variation(&[0.571, 0.610, 0.521, 0.438, 0.599, 0.538, 0.474, 0.500]).unwrap();
        assert!((published - 0.113_522_074_661).abs() < 1e-9, "{published}");
    }

    #[test]
    fn images_of_no_group_count_in_nothing() {
        let (evaluator, mut group, clip) = year();
        // Of the second month the clips with the false alarms at images 15 and 20.
        let unknown = |i: usize| [5, 6].contains(&clip[i]);
        (0..24).filter(|&i| unknown(i)).for_each(|i| group[i] = None);
        let mut known = CocoEvaluator::new(2);
        for i in (0..24u32).filter(|&i| !unknown(i as usize)) {
            let found = Detection { xyxy: BOX, score: 0.5 + 0.01 * i as f32, class: i % 2 };
            known.add_image(&[found], &[GroundTruth { class: i % 2, xyxy: BOX }]);
        }
        let stability = group_metrics(&evaluator, "month", &names(), &group, &clip).stability.unwrap();
        assert_eq!((Some(stability.map50), stability.cov, stability.score), (known.metrics().map50, 0.0, 1.0));
        assert_eq!(stability.score_interval, Some([1.0; 2]), "value and interval are of the same images");
        assert!(evaluator.metrics().map50 < Some(0.95));
    }

    #[test]
    fn intervals_come_from_clips_and_hold_the_value() {
        let (evaluator, group, clip) = year();
        let all = group_metrics(&evaluator, "month", &names(), &group, &clip);
        assert_eq!(all.groups[0].interval, Some([1.0, 1.0]), "nothing varies");
        let [low, high] = all.groups[1].interval.unwrap();
        let value = all.groups[1].coco.map50.unwrap();
        assert!(low < value && value < high && low >= 0.0 && high <= 1.0, "{low} {value} {high}");
        assert_eq!(all, group_metrics(&evaluator, "month", &names(), &group, &clip), "no draw is of chance");
        let stability = all.stability.unwrap();
        for (name, value, interval) in &stability.numbers()[1..] {
            let [low, high] = interval.unwrap();
            assert!(low <= *value && *value <= high && low < high, "{name}: {low} {value} {high}");
        }
        let one_clip = group_metrics(&evaluator, "month", &names(), &group, &[0; 24]);
        assert_eq!(one_clip.groups[1].interval, None, "one clip says nothing of others");
        assert_eq!(one_clip.stability.and_then(|s| s.cov_interval), None);
        // Every image its own clip is the narrower interval that would be too sure.
        let images: Vec<u32> = (0..24).collect();
        let width =
            |clip: &[u32]| group_metrics(&evaluator, "month", &names(), &group, clip).groups[1].interval.map(|[a, b]| b - a).unwrap();
        assert!(width(&images) <= width(&clip) + 0.1, "{} {}", width(&images), width(&clip));
    }
}
