//! Task-aligned assignment (Feng et al., 2021): which anchors learn which object, and how strongly.
//!
//! Alignment of an object and an anchor is `score^0.5 * CIoU^6`, over anchors whose centre lies inside the box.
//! Each object takes its ten best-aligned anchors; an anchor wanted by several goes to the object it overlaps
//! most, of all objects in the image. The target score is the alignment, rescaled so that an object's best
//! anchor gets the object's best overlap. Runs on the host, one image after another in parallel: ties and edge
//! cases then do not depend on the device (`topk` has PyTorch's order on the CPU).
//! A box whose corners sum to zero or less is padding: it takes no anchor, but keeps its index.

use bellows_kernels::ciou;
use rayon::prelude::*;

use super::topk::top_k;
use crate::boxes::GroundTruth;
use crate::model::head::Anchors;

/// Anchors per object.
pub const TOP_K: usize = 10;
/// Exponent of the overlap in the alignment; the score's is 0.5.
const BETA: f32 = 6.0;
const EPSILON: f32 = 1e-9;

/// An anchor that learns an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foreground {
    /// Index of the anchor.
    pub anchor: usize,
    /// Index of the object within its image.
    pub gt: usize,
    /// The object's class and box in pixels.
    pub target: GroundTruth,
    /// Target score in 0..1; all other classes' is 0.
    pub score: f32,
}

/// Predictions of one image, plane by plane.
#[derive(Clone, Copy)]
pub struct Planes<'a> {
    corners: &'a [f32],
    scores: &'a [f32],
    classes: &'a [u32],
    anchors: usize,
}

impl<'a> Planes<'a> {
    /// Corners in pixels (x1 of all anchors, then y1, x2, y2); scores in 0..1 of `classes`, in their order, among which must be those of all
    /// objects of the image.
    pub fn new(corners: &'a [f32], scores: &'a [f32], classes: &'a [u32]) -> Self {
        let anchors = corners.len() / 4;
        assert_eq!(scores.len(), classes.len() * anchors, "scores of {} classes and {anchors} anchors", classes.len());
        Self { corners, scores, classes, anchors }
    }

    fn xyxy(&self, a: usize) -> [f32; 4] {
        [0, 1, 2, 3].map(|k| self.corners[k * self.anchors + a])
    }

    /// The scores of a class.
    fn scores(&self, class: u32) -> &'a [f32] {
        let row = self.classes.iter().position(|&c| c == class);
        row.map_or(&[], |row| &self.scores[row * self.anchors..][..self.anchors])
    }
}

/// Assigns the images of a batch: one list of foreground anchors per image, in order of the anchors.
///
/// `gts` holds the objects of each image.
pub fn assign(images: &[Planes<'_>], gts: &[Vec<GroundTruth>], anchors: &Anchors) -> Vec<Vec<Foreground>> {
    images.par_iter().zip(gts).map(|(&planes, gts)| assign_image(planes, gts, anchors)).collect()
}

/// Assigns one image.
pub fn assign_image(predicted: Planes, gts: &[GroundTruth], anchors: &Anchors) -> Vec<Foreground> {
    let centres: Vec<[f32; 2]> = anchors.centres.iter().zip(&anchors.strides).map(|(c, s)| c.map(|v| v * s)).collect();
    let rows: Vec<Row> = gts.iter().map(|gt| Row::new(predicted, gt, &centres)).collect();
    let owner = resolve(&rows, centres.len());
    // The best alignment and overlap of each object, over the anchors it was left with.
    let mut best = vec![(0.0f32, 0.0f32); gts.len()];
    for &(a, g) in &owner {
        best[g].0 = best[g].0.max(rows[g].align[a]);
        best[g].1 = best[g].1.max(rows[g].overlap[a]);
    }
    let target = |&(anchor, gt): &(usize, usize)| {
        let (align, overlap) = best[gt];
        Foreground { anchor, gt, target: gts[gt], score: rows[gt].align[anchor] * overlap / (align + EPSILON) }
    };
    owner.iter().map(target).collect()
}

/// One object against all anchors.
struct Row {
    overlap: Vec<f32>,
    align: Vec<f32>,
    /// Anchors among the ten best and inside the box.
    wanted: Vec<usize>,
}

impl Row {
    fn new(predicted: Planes, gt: &GroundTruth, centres: &[[f32; 2]]) -> Self {
        let n = centres.len();
        let (mut overlap, mut align) = (vec![0.0; n], vec![0.0; n]);
        let [x1, y1, x2, y2] = gt.xyxy;
        if x1 + y1 + x2 + y2 <= 0.0 {
            return Self { overlap, align, wanted: vec![] };
        }
        let scores = predicted.scores(gt.class);
        let inside = |&[x, y]: &[f32; 2]| (x - x1).min(y - y1).min(x2 - x).min(y2 - y) > EPSILON;
        for (a, _) in centres.iter().enumerate().filter(|(_, c)| inside(c)) {
            overlap[a] = ciou(gt.xyxy, predicted.xyxy(a)).max(0.0);
            align[a] = scores[a].sqrt() * overlap[a].powf(BETA);
        }
        let best = top_k(&align, TOP_K, &mut Vec::with_capacity(n));
        let wanted = best.into_iter().map(|a| a as usize).filter(|&a| inside(&centres[a])).collect();
        Self { overlap, align, wanted }
    }
}

/// Foreground anchors with the object each goes to, in order of the anchors.
fn resolve(rows: &[Row], anchors: usize) -> Vec<(usize, usize)> {
    let mut claims = vec![(0u32, 0usize); anchors];
    for (g, row) in rows.iter().enumerate() {
        for &a in &row.wanted {
            claims[a] = (claims[a].0 + 1, g);
        }
    }
    let most_overlapping = |a: usize| (1..rows.len()).fold(0, |best, g| if rows[g].overlap[a] > rows[best].overlap[a] { g } else { best });
    (claims.into_iter().enumerate())
        .filter(|(_, (count, _))| *count > 0)
        .map(|(a, (count, g))| (a, if count > 1 { most_overlapping(a) } else { g }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64 x 64 input (84 anchors); every anchor predicts a box of `half` pixels around itself.
    fn setup(half: f32) -> (Anchors, Vec<f32>) {
        let anchors = Anchors::new(&[[8, 8], [4, 4], [2, 2]]);
        let n = anchors.len();
        let mut data = vec![0.0; 4 * n];
        for a in 0..n {
            for k in 0..4 {
                let centre = anchors.centres[a][k % 2] * anchors.strides[a];
                data[k * n + a] = if k < 2 { centre - half } else { centre + half };
            }
        }
        (anchors, data)
    }

    /// Scores of three classes.
    fn planes<'a>(corners: &'a [f32], scores: &'a [f32]) -> Planes<'a> {
        Planes::new(corners, scores, &[0, 1, 2])
    }

    fn gt(class: u32, xyxy: [f32; 4]) -> GroundTruth {
        GroundTruth { class, xyxy }
    }

    fn run(half: f32, gts: &[GroundTruth]) -> Vec<Foreground> {
        let (anchors, data) = setup(half);
        assign_image(planes(&data, &vec![0.25; 3 * anchors.len()]), gts, &anchors)
    }

    #[test]
    fn no_object_no_foreground() {
        assert!(run(8.0, &[]).is_empty());
        let (anchors, data) = setup(8.0);
        let scores = vec![0.25; 3 * anchors.len()];
        let out = assign(&[planes(&data, &scores); 2], &[vec![], vec![gt(0, [8.0, 8.0, 40.0, 40.0])]], &anchors);
        assert!(out[0].is_empty() && !out[1].is_empty());
    }

    #[test]
    fn at_most_ten_anchors_the_best_gets_the_best_overlap() {
        let fg = run(12.0, &[gt(1, [4.0, 4.0, 60.0, 60.0])]);
        assert_eq!(fg.len(), TOP_K);
        let best = fg.iter().map(|f| f.score).fold(0.0, f32::max);
        let (_, data) = setup(12.0);
        let predicted = Planes::new(&data, &[], &[]);
        let overlap = |f: &Foreground| ciou([4.0, 4.0, 60.0, 60.0], predicted.xyxy(f.anchor));
        let largest = fg.iter().map(overlap).fold(0.0, f32::max);
        assert!((best - largest).abs() < 1e-3, "{best} {largest}");
        assert!(fg.iter().all(|f| f.target.class == 1 && f.gt == 0));
    }

    #[test]
    fn a_small_object_takes_only_the_anchors_inside_it() {
        // Centres at 4, 12, 20, ..: the box 10..22 holds 2 x 2 of stride 8 and none of stride 16 (8, 24) but 16 of stride 32.
        let fg = run(6.0, &[gt(0, [10.0, 10.0, 22.0, 22.0])]);
        assert_eq!(fg.len(), 5);
        assert!(run(6.0, &[gt(0, [5.0, 5.0, 7.0, 7.0])]).is_empty(), "no centre inside");
    }

    #[test]
    fn an_object_of_4_pixels_is_sure_of_an_anchor_only_on_a_finer_level() {
        let fine = Anchors::new(&[[16, 16], [8, 8], [4, 4], [2, 2]]);
        let found = |anchors: &Anchors, x: f32| {
            let n = anchors.len();
            let data: Vec<f32> = (0..4 * n)
                .map(|i| {
                    let centre = anchors.centres[i % n][i / n % 2] * anchors.strides[i % n];
                    if i < 2 * n { centre - 2.0 } else { centre + 2.0 }
                })
                .collect();
            let of_one = assign_image(Planes::new(&data, &vec![0.25; n], &[0]), &[gt(0, [x, x, x + 4.5, x + 4.5])], anchors);
            of_one.iter().filter(|f| f.score > 0.0).count()
        };
        let coarse = setup(2.0).0;
        let places: Vec<f32> = (0..64).map(|i| 8.25 + 0.5 * i as f32).collect();
        assert!(places.iter().all(|&x| found(&fine, x) > 0), "every place has a cell of stride 4");
        assert!(places.iter().any(|&x| found(&coarse, x) == 0), "between two cells of stride 8 it is nobody's");
    }

    #[test]
    fn a_zero_box_is_padding_but_counts_as_an_index() {
        let fg = run(8.0, &[gt(0, [0.0; 4]), gt(2, [8.0, 8.0, 40.0, 40.0])]);
        assert!(!fg.is_empty() && fg.iter().all(|f| f.gt == 1 && f.target.class == 2));
        // The reference tells padding by the sum of the corners, so a box mostly beyond the origin is none either.
        assert!(run(8.0, &[gt(0, [-60.0, -60.0, 50.0, 50.0])]).is_empty());
    }

    #[test]
    fn an_objects_score_is_its_classs() {
        let (anchors, data) = setup(8.0);
        let n = anchors.len();
        // Classes 4 and 9; only the second is seen.
        let scores: Vec<f32> = (0..2 * n).map(|i| if i < n { 0.0 } else { 0.25 }).collect();
        let of = |class| assign_image(Planes::new(&data, &scores, &[4, 9]), &[gt(class, [8.0, 8.0, 40.0, 40.0])], &anchors);
        let score = |class| of(class).iter().map(|f| f.score).sum::<f32>();
        assert!(score(4) == 0.0 && score(9) > 0.0);
    }

    #[test]
    fn a_contested_anchor_goes_to_the_largest_overlap_of_all_objects() {
        let row = |overlap: [f32; 3], wanted: &[usize]| Row { overlap: overlap.into(), align: vec![0.0; 3], wanted: wanted.into() };
        let rows = [row([0.2, 0.1, 0.0], &[0, 2]), row([0.3, 0.0, 0.0], &[0, 1, 2]), row([0.4, 0.9, 0.0], &[])];
        // Anchor 0: two want it, a third overlaps it most. Anchor 1: one wants it. Anchor 2: all tie, the first wins.
        assert_eq!(resolve(&rows, 3), [(0, 2), (1, 1), (2, 0)]);
    }
}
