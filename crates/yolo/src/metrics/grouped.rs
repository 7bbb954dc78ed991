//! A validation cut into groups of images (months, day and night, clips): AP of each, how much it varies, and how sure that is.
//!
//! AP is pycocotools', which is what is compared between data sets' months: `score = mAP50 * (1 - CoV)` with `CoV = s / mean`, s the standard deviation
//! of the groups' mAP50 with n - 1 in its denominator (the long-term thermal drift challenge, WACV 2026). A group without objects has no AP
//! and counts in neither.
//!
//! Intervals hold 95 of 100 draws of a bootstrap (Efron 1979) whose units are clips, not images: frames of one clip are nearly the same picture,
//! and drawing them one by one would make every interval too narrow. Clips are drawn within their group, so that groups keep their sizes.

use std::collections::BTreeSet;

use bellows_learner::rng::{GOLDEN, Rng, mix};
use rayon::prelude::*;

use super::coco::{CocoEvaluator, CocoMetrics, Precisions, Scored, average_precisions, sum, summary};
use super::coco_average_precision;

/// Draws of the bootstrap.
const DRAWS: u64 = 200;
/// With more groups than this no interval is computed: they are clips themselves, or as many.
const MOST: usize = 64;

/// From the 2.5th to the 97.5th of 100 draws.
pub type Interval = [f64; 2];

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
    /// Standard deviation (n - 1) over mean of the groups' mAP50.
    pub cov: f64,
    /// mAP50 of all images times 1 - CoV.
    pub score: f64,
    /// Of CoV.
    pub cov_interval: Option<Interval>,
    /// Of the score.
    pub score_interval: Option<Interval>,
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
    let parts: Vec<Vec<Part>> = evaluator
        .classes
        .par_iter()
        .map(|class| {
            let mut parts: Vec<Part> = vec![Part::default(); names.len()];
            for detection in class.ranked() {
                if let Some(g) = of(detection.image) {
                    parts[g].ranked.push(detection);
                }
            }
            for &(image, counts) in &class.truths {
                if let Some(g) = of(image) {
                    parts[g].truths.push((image, counts));
                }
            }
            parts
        })
        .collect();
    let ap = |g: usize| summary(&parts.iter().map(|class| class[g].precisions()).collect::<Vec<_>>());
    let intervals = if names.len() <= MOST {
        Bootstrap { parts: &parts, clip, clips: clips(group, clip, names.len()) }.run()
    } else {
        Draws::default()
    };
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
    let stability = evaluator.metrics().map50.zip(variation(&each)).map(|(map50, cov)| Stability {
        cov,
        score: map50 * (1.0 - cov),
        cov_interval: intervals.cov(),
        score_interval: intervals.score(),
    });
    Grouped { key: key.into(), groups, stability }
}

/// What a class has in a group.
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

/// Standard deviation (n - 1) over mean; none of fewer than two numbers, or of a mean of 0.
fn variation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (values.len() > 1 && mean > 0.0).then(|| variance.sqrt() / mean)
}

/// The clips of each group, each once.
fn clips(group: &[Option<u32>], clip: &[u32], groups: usize) -> Vec<Vec<u32>> {
    let mut clips = vec![Vec::new(); groups];
    for (of, &clip) in group.iter().zip(clip) {
        if let Some(g) = of {
            clips[*g as usize].push(clip);
        }
    }
    for list in &mut clips {
        list.sort_unstable();
        list.dedup();
    }
    clips
}

/// Everything that draws need.
struct Bootstrap<'a> {
    /// By class and group.
    parts: &'a [Vec<Part>],
    /// Of each image.
    clip: &'a [u32],
    /// Of each group.
    clips: Vec<Vec<u32>>,
}

/// What the draws gave.
#[derive(Default)]
struct Draws {
    /// By group, mAP50 of each draw; of no draw where there is nothing to be drawn.
    groups: Vec<Vec<f64>>,
    /// mAP50 of all groups together, and CoV.
    joint: Vec<(f64, f64)>,
}

impl Bootstrap<'_> {
    fn run(&self) -> Draws {
        let one = |draw: u64| -> (Vec<Option<f64>>, Option<f64>) {
            let weights: Vec<Vec<u32>> = (0..self.clips.len()).map(|g| self.weights(draw, g)).collect();
            let each = (0..self.clips.len()).map(|g| self.map50(&[g], &weights)).collect();
            (each, self.map50(&(0..self.clips.len()).collect::<Vec<_>>(), &weights))
        };
        let all: Vec<_> = (0..DRAWS).into_par_iter().map(one).collect();
        let of_group = |g: usize| if self.witnesses(g) > 1 { all.iter().filter_map(|(each, _)| each[g]).collect() } else { Vec::new() };
        let any = (0..self.clips.len()).any(|g| self.witnesses(g) > 1);
        let joint = all
            .iter()
            .filter(|_| any)
            .filter_map(|(each, whole)| Some(((*whole)?, variation(&each.iter().flatten().copied().collect::<Vec<_>>())?)));
        Draws { groups: (0..self.clips.len()).map(of_group).collect(), joint: joint.collect() }
    }

    /// How many clips of a group have objects: what a draw can differ in.
    fn witnesses(&self, group: usize) -> usize {
        let clips = self.parts.iter().flat_map(|class| &class[group].truths).map(|(image, _)| self.clip[*image as usize]);
        clips.collect::<BTreeSet<_>>().len()
    }

    /// How often each clip of a group was drawn, in the order of `clips`.
    fn weights(&self, draw: u64, group: usize) -> Vec<u32> {
        let clips = &self.clips[group];
        let mut rng = Rng::keyed(mix(mix(draw.wrapping_add(GOLDEN)) ^ group as u64));
        let mut weights = vec![0; clips.len()];
        clips.iter().for_each(|_| weights[rng.below(clips.len() as u64) as usize] += 1);
        weights
    }

    /// mAP50 of `groups` with every image as often as its clip was drawn.
    fn map50(&self, groups: &[usize], weights: &[Vec<u32>]) -> Option<f64> {
        let weight = |g: usize, image: u32| {
            let clip = self.clip[image as usize];
            f64::from(self.clips[g].binary_search(&clip).map_or(0, |at| weights[g][at]))
        };
        let per_class = self.parts.iter().filter_map(|class| {
            let truths =
                groups.iter().flat_map(|&g| class[g].truths.iter().map(move |&(image, counts)| weight(g, image) * f64::from(counts[0])));
            let truths: f64 = truths.sum();
            (truths > 0.0).then(|| {
                let mut ranked: Vec<(f32, f64, bool)> = Vec::new();
                for &g in groups {
                    ranked.extend(class[g].ranked.iter().map(|d| (d.score, weight(g, d.image), d.hits[0] & 1 == 1)).filter(|d| d.1 > 0.0));
                }
                if groups.len() > 1 {
                    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
                }
                let (mut found, mut all) = (0.0, 0.0);
                let (recall, precision): (Vec<f64>, Vec<f64>) = ranked
                    .iter()
                    .map(|&(_, weight, hit)| {
                        all += weight;
                        found += if hit { weight } else { 0.0 };
                        (found / truths, found / all)
                    })
                    .unzip();
                coco_average_precision(&recall, &precision)
            })
        });
        let values: Vec<f64> = per_class.collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }
}

impl Draws {
    fn of_group(&self, group: usize) -> Option<Interval> {
        interval(self.groups.get(group)?.clone())
    }

    fn cov(&self) -> Option<Interval> {
        interval(self.joint.iter().map(|&(_, cov)| cov).collect())
    }

    fn score(&self) -> Option<Interval> {
        interval(self.joint.iter().map(|&(map50, cov)| map50 * (1.0 - cov)).collect())
    }
}

/// The middle 95 of 100 of the values, if there are enough of them to say so.
fn interval(mut values: Vec<f64>) -> Option<Interval> {
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (values.len() as u64 * 2 > DRAWS).then(|| [at(0.025), at(0.975)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boxes::{Detection, GroundTruth};

    const BOX: [f32; 4] = [10.0, 10.0, 50.0, 50.0];
    const FAR: [f32; 4] = [200.0, 200.0, 240.0, 240.0];

    /// Two months of four clips of three images each; in the second month every third object is missed and a false alarm is surer.
    fn year() -> (CocoEvaluator, Vec<Option<u32>>, Vec<u32>) {
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
    fn intervals_come_from_clips_and_hold_the_value() {
        let (evaluator, group, clip) = year();
        let all = group_metrics(&evaluator, "month", &names(), &group, &clip);
        assert_eq!(all.groups[0].interval, Some([1.0, 1.0]), "nothing varies");
        let [low, high] = all.groups[1].interval.unwrap();
        let value = all.groups[1].coco.map50.unwrap();
        assert!(low < value && value < high && low >= 0.0 && high <= 1.0, "{low} {value} {high}");
        assert_eq!(all, group_metrics(&evaluator, "month", &names(), &group, &clip), "no draw is of chance");
        let one_clip = group_metrics(&evaluator, "month", &names(), &group, &[0; 24]);
        assert_eq!(one_clip.groups[1].interval, None, "one clip says nothing of others");
        assert_eq!(one_clip.stability.and_then(|s| s.cov_interval), None);
        // Every image its own clip is the narrower interval that would be too sure.
        let images: Vec<u32> = (0..24).collect();
        let width =
            |clip: &[u32]| group_metrics(&evaluator, "month", &names(), &group, clip).groups[1].interval.map(|[a, b]| b - a).unwrap();
        assert!(width(&images) <= width(&clip) + 0.1, "{} {}", width(&images), width(&clip));
    }

    #[test]
    fn weights_of_one_are_the_plain_average_precision() {
        let (evaluator, group, clip) = year();
        let parts: Vec<Vec<Part>> = {
            let of = |g: u32| move |image: &u32| group_of(*image) == g;
            evaluator
                .classes
                .iter()
                .map(|c| {
                    let part = |g| Part {
                        ranked: c.ranked().into_iter().filter(|d| of(g)(&d.image)).collect(),
                        truths: c.truths.iter().filter(|t| of(g)(&t.0)).copied().collect(),
                    };
                    vec![part(0), part(1)]
                })
                .collect()
        };
        let bootstrap = Bootstrap { parts: &parts, clip: &clip, clips: clips(&group, &clip, 2) };
        let ones = vec![vec![1; 4], vec![1; 4]];
        assert_eq!(bootstrap.map50(&[0, 1], &ones), evaluator.metrics().map50);
        // A clip that is drawn twice counts as if its images were there twice.
        let twice = vec![vec![1; 4], vec![2, 1, 1, 0]];
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
        assert!(close(bootstrap.map50(&[1], &twice), repeated.metrics().map50));
    }

    fn group_of(image: u32) -> u32 {
        image / 12
    }
}
