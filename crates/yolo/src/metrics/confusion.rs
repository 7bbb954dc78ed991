//! Which class is taken for which: an `(nc + 1)²` table of detections against truths, the last row and column being the background.
//!
//! Unlike AP it matches across classes, at one confidence, and gives a truth claimed twice to the detection that overlaps it most.

use super::iou;
use super::matching::best_truth;
use crate::boxes::{Detection, GroundTruth};

/// Counts with the predicted class as row and the true class as column; index `nc` is the background.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfusionMatrix {
    nc: usize,
    conf: f32,
    iou: f64,
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// An empty table that counts detections above `conf` and matches above `iou`; .25 and .45 are the custom of the field.
    pub fn new(nc: usize, conf: f32, iou: f64) -> Self {
        Self { nc, conf, iou, counts: vec![0; (nc + 1) * (nc + 1)] }
    }

    /// Classes without the background.
    pub fn nc(&self) -> usize {
        self.nc
    }

    /// How often `predicted` was reported where `truth` is; either may be `nc`, the background.
    pub fn get(&self, predicted: usize, truth: usize) -> u64 {
        self.counts[predicted * (self.nc + 1) + truth]
    }

    /// Adds one image. A missed object counts in the background row, a false alarm in the background column.
    /// Classes from `nc` up are ignored.
    pub fn add_image(&mut self, detections: &[Detection], truths: &[GroundTruth]) {
        let known = |class: u32| (class as usize) < self.nc;
        let detections: Vec<_> = detections.iter().filter(|d| d.score > self.conf && known(d.class)).collect();
        let truths: Vec<_> = truths.iter().filter(|t| known(t.class)).collect();

        let claims: Vec<_> = detections
            .iter()
            .map(|d| best_truth(truths.iter().map(|t| iou(&d.xyxy, &t.xyxy))).filter(|&(_, overlap)| overlap > self.iou))
            .collect();
        let mut owner: Vec<Option<(usize, f64)>> = vec![None; truths.len()];
        for (d, claim) in claims.iter().enumerate() {
            if let &Some((t, overlap)) = claim
                && owner[t].is_none_or(|(_, best)| overlap > best)
            {
                owner[t] = Some((d, overlap));
            }
        }
        for (t, truth) in truths.iter().enumerate() {
            let predicted = owner[t].map_or(self.nc, |(d, _)| detections[d].class as usize);
            self.count(predicted, truth.class as usize);
        }
        for (d, detection) in detections.iter().enumerate() {
            if !owner.iter().flatten().any(|&(o, _)| o == d) {
                self.count(detection.class as usize, self.nc);
            }
        }
    }

    /// Of the objects of a class, the share that became what: [`ConfusionMatrix::get`] divided by the sum of its column. An empty column stays 0.
    pub fn shares(&self) -> impl Fn(usize, usize) -> f64 {
        let mut sums = vec![0u64; self.nc + 1];
        for row in self.counts.chunks(self.nc + 1) {
            sums.iter_mut().zip(row).for_each(|(sum, &count)| *sum += count);
        }
        move |predicted, truth| self.get(predicted, truth) as f64 / sums[truth].max(1) as f64
    }

    fn count(&mut self, predicted: usize, truth: usize) {
        self.counts[predicted * (self.nc + 1) + truth] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [f32; 4] = [0.0, 0.0, 10.0, 10.0];
    const B: [f32; 4] = [50.0, 50.0, 60.0, 60.0];
    const C: [f32; 4] = [90.0, 90.0, 99.0, 99.0];

    fn det(xyxy: [f32; 4], score: f32, class: u32) -> Detection {
        Detection { xyxy, score, class }
    }

    #[test]
    fn hit_confusion_miss_and_false_alarm() {
        let mut m = ConfusionMatrix::new(2, 0.25, 0.45);
        let truths = [(0, A), (1, B), (1, C)].map(|(class, xyxy)| GroundTruth { class, xyxy });
        let detections = [
            det([0.0, 0.0, 10.0, 8.0], 0.9, 1), // claims A too, fits worse: a false alarm in spite of its score
            det(A, 0.6, 0),                     // hit
            det(B, 0.5, 0),                     // object of class 1 taken for 0
            det(C, 0.25, 1),                    // not above conf: C is missed
        ];
        m.add_image(&detections, &truths);
        m.add_image(&[det(A, 0.9, 0)], &[]);
        let table: Vec<Vec<u64>> = (0..3).map(|p| (0..3).map(|t| m.get(p, t)).collect()).collect();
        assert_eq!(table, [[1, 1, 1], [0, 0, 1], [0, 1, 0]]);
        let shares = m.shares();
        let table: Vec<f64> = (0..9).map(|i| shares(i / 3, i % 3)).collect();
        assert_eq!(table, [1.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.0, 0.5, 0.0]);
    }

    #[test]
    fn empty_columns_stay_zero() {
        let m = ConfusionMatrix::new(3, 0.25, 0.45);
        let shares = m.shares();
        assert!((0..16).all(|i| shares(i / 4, i % 4) == 0.0));
    }
}
