//! Task-aligned assignment (Feng et al., 2021): which anchors learn which object, and how strongly.
//!
//! Alignment of an object and an anchor is `score^0.5 * CIoU^6`, over anchors whose centre lies inside the box.
//! Each object takes its ten best-aligned anchors; an anchor wanted by several goes to the object it overlaps
//! most, of all objects in the image. The target score is the alignment, rescaled so that an object's best
//! anchor gets the object's best overlap. This is the host's, one image after another in parallel, with PyTorch's order of ties on the CPU (`topk`);
//! a GPU has its own (`foreground/cube_assign` of the kernels), and docs/decisions/0002 says what may differ.
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

/// Assigns one image. One object after the other is held against the anchors, and only what they compete for is kept: memory does not grow with the objects.
pub fn assign_image(predicted: Planes, gts: &[GroundTruth], anchors: &Anchors) -> Vec<Foreground> {
    let centres: Vec<[f32; 2]> = anchors.centres.iter().zip(&anchors.strides).map(|(c, s)| c.map(|v| v * s)).collect();
    let mut claims = vec![Claims::default(); centres.len()];
    // Of the object at hand: 0 outside its box.
    let (mut align, mut inside, mut scratch) = (vec![0.0; centres.len()], Vec::new(), Vec::with_capacity(centres.len()));
    for (gt, object) in gts.iter().enumerate() {
        let [x1, y1, x2, y2] = object.xyxy;
        if x1 + y1 + x2 + y2 <= 0.0 {
            continue;
        }
        let scores = predicted.scores(object.class);
        let within = |&(_, &[x, y]): &(usize, &[f32; 2])| (x - x1).min(y - y1).min(x2 - x).min(y2 - y) > EPSILON;
        for (a, _) in centres.iter().enumerate().filter(within) {
            let overlap = ciou(object.xyxy, predicted.xyxy(a)).max(0.0);
            let pair = Pair { gt: gt as u32, overlap, align: scores[a].sqrt() * overlap.powf(BETA) };
            align[a] = pair.align;
            claims[a].see(pair);
            inside.push((a, pair));
        }
        // Where fewer than ten are aligned, the rest of the ten may lie outside.
        for a in top_k(&align, TOP_K, &mut scratch).into_iter().map(|a| a as usize) {
            if let Ok(at) = inside.binary_search_by_key(&a, |(a, _)| *a) {
                claims[a].want(inside[at].1);
            }
        }
        inside.drain(..).for_each(|(a, _)| align[a] = 0.0);
    }
    let owners: Vec<(usize, Pair)> = claims.iter().enumerate().filter_map(|(a, claims)| Some((a, claims.owner()?))).collect();
    // The best alignment and overlap of each object, over the anchors it was left with.
    let mut best = vec![(0.0f32, 0.0f32); gts.len()];
    for (_, pair) in &owners {
        let best = &mut best[pair.gt as usize];
        *best = (best.0.max(pair.align), best.1.max(pair.overlap));
    }
    let target = |&(anchor, Pair { gt, align, .. }): &(usize, Pair)| {
        let gt = gt as usize;
        let (most, overlap) = best[gt];
        Foreground { anchor, gt, target: gts[gt], score: align * overlap / (most + EPSILON) }
    };
    owners.iter().map(target).collect()
}

/// An object and an anchor.
#[derive(Clone, Copy, Default)]
struct Pair {
    gt: u32,
    overlap: f32,
    align: f32,
}

/// What the objects of an image want of one anchor.
#[derive(Clone, Copy, Default)]
struct Claims {
    /// How many have it among their ten.
    count: u32,
    /// The last of these.
    last: Pair,
    /// Of all objects the one that overlaps it most: the first of equal ones, and the first of the image where none does.
    most: Pair,
}

impl Claims {
    /// The anchor is inside an object's box. Objects come in order.
    fn see(&mut self, pair: Pair) {
        if pair.gt == 0 || pair.overlap > self.most.overlap {
            self.most = pair;
        }
    }

    fn want(&mut self, pair: Pair) {
        (self.count, self.last) = (self.count + 1, pair);
    }

    /// Who learns it.
    fn owner(&self) -> Option<Pair> {
        match self.count {
            0 => None,
            1 => Some(self.last),
            _ => Some(self.most),
        }
    }
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
        let owner = |overlaps: &[(u32, f32)], wanted: &[u32]| {
            let mut claims = Claims::default();
            for &(gt, overlap) in overlaps {
                let pair = Pair { gt, overlap, align: 0.0 };
                claims.see(pair);
                if wanted.contains(&gt) {
                    claims.want(pair);
                }
            }
            claims.owner().map(|pair| pair.gt)
        };
        assert_eq!(owner(&[(0, 0.2), (1, 0.3), (2, 0.4)], &[0, 1]), Some(2), "two want it, a third overlaps it most");
        assert_eq!(owner(&[(0, 0.1), (1, 0.0), (2, 0.9)], &[1]), Some(1), "one wants it");
        assert_eq!(owner(&[(0, 0.0), (1, 0.0), (2, 0.0)], &[0, 1]), Some(0), "all tie, the first wins");
        assert_eq!(owner(&[(1, 0.0), (2, 0.0)], &[1, 2]), Some(0), "also where it is outside of that one's box");
        assert_eq!(owner(&[(0, 0.2)], &[]), None);
    }

    /// By the definition, all pairs at hand; and how many anchors several objects want.
    fn of_all_pairs(predicted: Planes, gts: &[GroundTruth], anchors: &Anchors) -> (Vec<Foreground>, usize) {
        let n = anchors.len();
        let (mut rows, mut wanted) = (vec![], vec![vec![]; n]);
        for (g, gt) in gts.iter().enumerate() {
            let [x1, y1, x2, y2] = gt.xyxy;
            let inside = |a: usize| {
                let [x, y] = anchors.centres[a].map(|v| v * anchors.strides[a]);
                x1 + y1 + x2 + y2 > 0.0 && (x - x1).min(y - y1).min(x2 - x).min(y2 - y) > EPSILON
            };
            let overlap: Vec<f32> = (0..n).map(|a| if inside(a) { ciou(gt.xyxy, predicted.xyxy(a)).max(0.0) } else { 0.0 }).collect();
            let score = |a: usize| predicted.scores(gt.class)[a].sqrt();
            let align: Vec<f32> = (0..n).map(|a| if inside(a) { score(a) * overlap[a].powf(BETA) } else { 0.0 }).collect();
            let best = top_k(&align, TOP_K, &mut vec![]).into_iter().map(|a| a as usize);
            best.filter(|&a| inside(a)).for_each(|a| wanted[a].push(g));
            rows.push((overlap, align));
        }
        let most = |a: usize| (1..gts.len()).fold(0, |best, g| if rows[g].0[a] > rows[best].0[a] { g } else { best });
        let owner = |a: usize| if wanted[a].len() > 1 { most(a) } else { wanted[a][0] };
        let owners: Vec<(usize, usize)> = (0..n).filter(|&a| !wanted[a].is_empty()).map(|a| (a, owner(a))).collect();
        let score = |anchor: usize, gt: usize| {
            let own = || owners.iter().filter(move |(_, g)| *g == gt).map(|(a, _)| *a);
            let align = own().map(|a| rows[gt].1[a]).fold(0.0, f32::max);
            rows[gt].1[anchor] * own().map(|a| rows[gt].0[a]).fold(0.0, f32::max) / (align + EPSILON)
        };
        let foreground = owners.iter().map(|&(anchor, gt)| Foreground { anchor, gt, target: gts[gt], score: score(anchor, gt) });
        (foreground.collect(), wanted.iter().filter(|wanted| wanted.len() > 1).count())
    }

    #[test]
    fn what_is_kept_of_many_objects_says_as_much_as_all_pairs() {
        let draw = |i: usize| (i as u32).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32;
        // As many anchors as the ten are found of by a quickselect, and by a heap.
        for (cells, of_side) in [([[8, 8], [4, 4], [2, 2]], 64.0), ([[24, 24], [12, 12], [6, 6]], 192.0)] {
            let anchors = Anchors::new(&cells);
            let n = anchors.len();
            let corner = |i: usize| {
                let centre = anchors.centres[i % n][i / n % 2] * anchors.strides[i % n];
                centre + (4.0 + 20.0 * draw(7 * i + 1)) * if i < 2 * n { -1.0 } else { 1.0 }
            };
            let corners: Vec<f32> = (0..4 * n).map(corner).collect();
            // A third is 0, as of a class that is never said.
            let scores: Vec<f32> = (0..3 * n).map(|i| (draw(3 * i + 2) - 0.33).max(0.0)).collect();
            for first in [0.0, 1.0] {
                let object = |i: usize| {
                    let [x, y, w, h] = [0, 1, 2, 3].map(|k| draw(4 * i + k + 11));
                    let [x, y, w, h] = [of_side * x, of_side * y, 4.0 + 40.0 * w, 4.0 + 40.0 * h];
                    // The first, to which what nobody overlaps goes, is padding or an object.
                    if i == 0 { gt(0, [8.0, 8.0, 40.0, 40.0].map(|v| first * v)) } else { gt(i as u32 % 3, [x, y, x + w, y + h]) }
                };
                let objects: Vec<GroundTruth> = (0..60).map(object).collect();
                let (expected, contested) = of_all_pairs(planes(&corners, &scores), &objects, &anchors);
                assert!(contested > 10 && expected.len() > 30, "{contested} of {}", expected.len());
                assert_eq!(assign_image(planes(&corners, &scores), &objects, &anchors), expected);
            }
        }
    }
}
