//! Which detection found which object: IoU and the one-to-one assignment behind every precision and recall.
//!
//! Relies on detections being in falling order of confidence; that order decides who wins an object claimed twice.

use crate::boxes::{Detection, GroundTruth};

/// The IoU thresholds of mAP50-95.
pub const IOU_THRESHOLDS: [f64; 10] = [0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95];

/// Area of an `xyxy` box; 0 when it is empty or turned inside out.
pub(super) fn area([x1, y1, x2, y2]: &[f32; 4]) -> f64 {
    f64::from(x2 - x1).max(0.0) * f64::from(y2 - y1).max(0.0)
}

/// Intersection over union of two `xyxy` boxes, 0..1. Two empty boxes have none: 0.
pub fn iou(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    let inter = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    if inter > 0.0 { inter / (area(a) + area(b) - inter) } else { 0.0 }
}

/// How much of the smaller of two `xyxy` boxes lies in the other, 0..1.
pub fn overlap_of_smaller(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    let inter = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    if inter > 0.0 { inter / area(a).min(area(b)) } else { 0.0 }
}

/// IoU of every detection with every truth whatever the class, row-major `[detections, truths]`.
pub fn iou_matrix(detections: &[Detection], truths: &[GroundTruth]) -> Vec<f64> {
    detections.iter().flat_map(|d| truths.iter().map(|t| iou(&d.xyxy, &t.xyxy))).collect()
}

/// For each detection and each of [`IOU_THRESHOLDS`]: is it a true positive?
///
/// A detection claims the one truth of its class that it overlaps most, if the IoU reaches the threshold; of several detections that
/// claim the same truth the earliest, i.e. most confident, has it. The losers do not fall back to another truth.
pub fn match_detections(detections: &[Detection], truths: &[GroundTruth]) -> Vec<[bool; 10]> {
    let claims: Vec<Option<(usize, f64)>> = detections
        .iter()
        .map(|d| best_truth(truths.iter().map(|t| if t.class == d.class { iou(&d.xyxy, &t.xyxy) } else { 0.0 })))
        .collect();
    let mut correct = vec![[false; 10]; detections.len()];
    let mut taken = vec![[false; 10]; truths.len()];
    for (row, claim) in correct.iter_mut().zip(claims) {
        let Some((truth, overlap)) = claim else { continue };
        for (t, &threshold) in IOU_THRESHOLDS.iter().enumerate() {
            if overlap >= threshold && !taken[truth][t] {
                taken[truth][t] = true;
                row[t] = true;
            }
        }
    }
    correct
}

/// Index and IoU of the greatest positive overlap, the first on ties.
pub(super) fn best_truth(overlaps: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    overlaps.enumerate().filter(|&(_, o)| o > 0.0).fold(None, |best, new| match best {
        Some((_, o)) if o >= new.1 => best,
        _ => Some(new),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn det(xyxy: [f32; 4], score: f32, class: u32) -> Detection {
        Detection { xyxy, score, class }
    }

    fn hits(row: &[bool; 10]) -> usize {
        row.iter().filter(|&&hit| hit).count()
    }

    #[test]
    fn iou_by_hand() {
        let a = [0.0, 0.0, 10.0, 10.0];
        assert_eq!(iou(&a, &a), 1.0);
        assert_eq!(iou(&a, &[5.0, 0.0, 15.0, 10.0]), 50.0 / 150.0);
        assert_eq!(iou(&a, &[10.0, 0.0, 20.0, 10.0]), 0.0);
        assert_eq!(iou(&[3.0; 4], &[3.0; 4]), 0.0);
        assert_eq!(iou(&a, &[8.0, 8.0, 2.0, 2.0]), 0.0, "an inside-out box has no area");
    }

    #[test]
    fn threshold_is_inclusive_and_class_counts() {
        let truth = [GroundTruth { class: 1, xyxy: [0.0, 0.0, 10.0, 10.0] }];
        let half = [0.0, 0.0, 10.0, 5.0]; // IoU exactly .5
        assert_eq!(hits(&match_detections(&[det(half, 0.9, 1)], &truth)[0]), 1);
        assert_eq!(hits(&match_detections(&[det(half, 0.9, 0)], &truth)[0]), 0);
        assert_eq!(hits(&match_detections(&[det([0.0, 0.0, 10.0, 7.6], 0.9, 1)], &truth)[0]), 6, ".76 passes .50 to .75");
    }

    #[test]
    fn a_truth_claimed_twice_goes_to_the_more_confident_even_if_it_fits_worse() {
        let truth = [GroundTruth { class: 0, xyxy: [0.0, 0.0, 10.0, 10.0] }];
        let rows = match_detections(&[det([0.0, 0.0, 10.0, 6.2], 0.9, 0), det([0.0, 0.0, 10.0, 10.0], 0.8, 0)], &truth);
        assert_eq!(hits(&rows[0]), 3, "wins at .50 .55 .60");
        assert_eq!(rows[1], [false, false, false, true, true, true, true, true, true, true], "gets the thresholds the first cannot reach");
    }

    #[test]
    fn the_loser_does_not_fall_back_to_its_second_best() {
        let truths = [[0.0, 0.0, 10.0, 10.0], [0.0, 3.0, 10.0, 13.0]].map(|xyxy| GroundTruth { class: 0, xyxy });
        let both = det([0.0, 0.0, 10.0, 11.0], 0.9, 0); // .909 with the first, .615 with the second
        let rows = match_detections(&[both, both], &truths);
        assert_eq!((hits(&rows[0]), hits(&rows[1])), (9, 0));
    }
}
