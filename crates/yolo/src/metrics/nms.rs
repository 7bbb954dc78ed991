//! Non-maximum suppression: the raw head output of one image becomes a short, ordered list of detections.
//!
//! Deterministic: there is no time limit, and equal scores keep the order (anchor, class). Classes are kept apart by comparing class
//! numbers, not by shifting boxes far away in f32, which would cost the boxes of high classes up to 1/16 px of precision.

use super::iou;
use crate::boxes::{Detection, xywh_to_xyxy};

/// How to suppress. The default is the validation setting: keep nearly everything, mAP ranks it.
#[derive(Clone, Debug, PartialEq)]
pub struct NmsConfig {
    /// A candidate's class score must be greater than this.
    pub conf: f32,
    /// A box is dropped when its IoU with a better one is greater than this.
    pub iou: f64,
    /// Most detections kept of an image.
    pub max_det: usize,
    /// One candidate for every class above `conf`, instead of only for an anchor's best class. No effect when there is one class.
    pub multi_label: bool,
    /// Suppress across classes.
    pub agnostic: bool,
    /// Only these classes; `None` for all.
    pub classes: Option<Vec<u32>>,
    /// Most candidates looked at, best first.
    pub max_nms: usize,
}

impl Default for NmsConfig {
    fn default() -> Self {
        Self { conf: 0.001, iou: 0.7, max_det: 300, multi_label: true, agnostic: false, classes: None, max_nms: 30_000 }
    }
}

struct Candidate {
    score: f32,
    anchor: usize,
    class: usize,
}

/// Detections of one image, best first.
///
/// `pred` is row-major `[4 + nc, anchors]`: centre x, centre y, width, height in pixels, then one sigmoid score per class. Candidates with
/// a box that is not finite are dropped. Boxes are not clipped to the image.
///
/// # Panics
/// If `pred` is not `(4 + nc) * anchors` long.
pub fn nms(pred: &[f32], nc: usize, anchors: usize, config: &NmsConfig) -> Vec<Detection> {
    assert_eq!(pred.len(), (4 + nc) * anchors, "prediction length for nc={nc}, anchors={anchors}");
    let mut candidates = if config.multi_label && nc > 1 {
        every_class(&pred[4 * anchors..], anchors, config.conf)
    } else {
        best_class(&pred[4 * anchors..], nc, anchors, config.conf)
    };
    if let Some(wanted) = &config.classes {
        candidates.retain(|c| wanted.contains(&(c.class as u32)));
    }
    let better = |a: &Candidate, b: &Candidate| b.score.total_cmp(&a.score).then((a.anchor, a.class).cmp(&(b.anchor, b.class)));
    if candidates.len() > config.max_nms {
        candidates.select_nth_unstable_by(config.max_nms, better);
        candidates.truncate(config.max_nms);
    }
    candidates.sort_unstable_by(better);

    let mut kept: Vec<Detection> = Vec::new();
    for candidate in candidates {
        if kept.len() == config.max_det {
            break;
        }
        let xyxy = xywh_to_xyxy([0, 1, 2, 3].map(|row| pred[row * anchors + candidate.anchor]));
        let new = Detection { xyxy, score: candidate.score, class: candidate.class as u32 };
        let rivals = kept.iter().filter(|k| config.agnostic || k.class == new.class);
        if xyxy.iter().all(|v| v.is_finite()) && rivals.map(|k| iou(&k.xyxy, &xyxy)).all(|overlap| overlap <= config.iou) {
            kept.push(new);
        }
    }
    kept
}

fn every_class(scores: &[f32], anchors: usize, conf: f32) -> Vec<Candidate> {
    let cells = scores.iter().enumerate().filter(|&(_, &score)| score > conf);
    cells.map(|(i, &score)| Candidate { score, anchor: i % anchors, class: i / anchors }).collect()
}

/// Scans class by class, for that is the order in memory; the first class wins a tie.
fn best_class(scores: &[f32], nc: usize, anchors: usize, conf: f32) -> Vec<Candidate> {
    let mut best = vec![(conf, usize::MAX); anchors];
    for class in 0..nc {
        for (slot, &score) in best.iter_mut().zip(&scores[class * anchors..]) {
            if score > slot.0 {
                *slot = (score, class);
            }
        }
    }
    let found = best.into_iter().enumerate().filter(|&(_, (_, class))| class != usize::MAX);
    found.map(|(anchor, (score, class))| Candidate { score, anchor, class }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> f32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Crowded boxes, and scores on a coarse grid so that ties are common.
    fn random_pred(seed: u64, nc: usize, anchors: usize) -> Vec<f32> {
        let mut state = seed;
        let mut pred = Vec::new();
        pred.extend((0..2 * anchors).map(|_| 100.0 * random(&mut state)));
        pred.extend((0..2 * anchors).map(|_| 10.0 + 40.0 * random(&mut state)));
        pred.extend((0..nc * anchors).map(|_| (20.0 * random(&mut state)).floor() / 20.0));
        pred
    }

    /// The definition, word by word, with no care for speed: mark every candidate that a better unmarked one suppresses.
    fn brute_force(pred: &[f32], nc: usize, anchors: usize, c: &NmsConfig) -> Vec<Detection> {
        let mut all = Vec::new();
        for a in 0..anchors {
            let score = |k: usize| pred[(4 + k) * anchors + a];
            let top = (0..nc).rev().max_by(|&i, &j| score(i).total_cmp(&score(j))).unwrap();
            let wanted = |k: usize| c.classes.as_ref().is_none_or(|w| w.contains(&(k as u32)));
            for k in (0..nc).filter(|&k| score(k) > c.conf && (c.multi_label || k == top) && wanted(k)) {
                let [x, y, w, h] = [0, 1, 2, 3].map(|r| pred[r * anchors + a]);
                all.push(Detection { xyxy: [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0], score: score(k), class: k as u32 });
            }
        }
        all.sort_by(|a, b| b.score.total_cmp(&a.score)); // stable: anchor, then class
        all.truncate(c.max_nms);
        let mut dead = vec![false; all.len()];
        for i in 0..all.len() {
            for j in i + 1..all.len() {
                let same = c.agnostic || all[i].class == all[j].class;
                if !dead[i] && same && iou(&all[i].xyxy, &all[j].xyxy) > c.iou {
                    dead[j] = true;
                }
            }
        }
        let mut kept: Vec<_> = all.into_iter().zip(dead).filter(|(_, dead)| !dead).map(|(d, _)| d).collect();
        kept.truncate(c.max_det);
        kept
    }

    #[test]
    fn equals_brute_force() {
        let base = NmsConfig { conf: 0.3, iou: 0.4, ..Default::default() };
        let variants = [
            base.clone(),
            NmsConfig { classes: Some(vec![2, 0]), ..base.clone() },
            NmsConfig { multi_label: false, ..base.clone() },
            NmsConfig { agnostic: true, ..base.clone() },
            NmsConfig { max_det: 7, ..base.clone() },
            NmsConfig { max_nms: 20, ..base.clone() },
            NmsConfig { conf: 0.95, ..base.clone() },
        ];
        for seed in 0..40 {
            for nc in [1, 3] {
                let pred = random_pred(seed, nc, 60);
                for config in &variants {
                    assert_eq!(nms(&pred, nc, 60, config), brute_force(&pred, nc, 60, config), "seed {seed} nc {nc} {config:?}");
                }
            }
        }
    }

    #[test]
    fn bounds_are_strict_and_bad_values_never_come_out() {
        // Four anchors: two boxes of IoU exactly .5, one with a NaN score, one with a NaN box.
        let pred =
            [[5.0, 5.0, 90.0, f32::NAN], [5.0, 2.5, 90.0, 9.0], [10.0, 10.0, 5.0, 5.0], [10.0, 5.0, 5.0, 5.0], [0.9, 0.8, f32::NAN, 0.7]]
                .concat();
        let config = NmsConfig { conf: 0.25, iou: 0.5, ..Default::default() };
        let scores = |config: &NmsConfig| nms(&pred, 1, 4, config).iter().map(|d| d.score).collect::<Vec<_>>();
        assert_eq!(scores(&config), [0.9, 0.8], "IoU equal to the threshold is kept");
        assert_eq!(scores(&NmsConfig { iou: 0.49, ..config.clone() }), [0.9]);
        assert_eq!(scores(&NmsConfig { conf: 0.8, ..config.clone() }), [0.9], "a score equal to conf is not enough");
        assert!(nms(&[], 3, 0, &config).is_empty());
    }
}
