//! From a ranked list of hits and misses to one number: the two average precisions, and the interpolation both stand on.

/// Recalls at which a curve is read.
pub(super) const GRID: usize = 101;

/// Recall 0, .01 … 1 in the rounding of NumPy's `linspace`: at a step of the curve the last bit of .35 decides which side is read.
pub(super) fn recall_at(i: usize) -> f64 {
    i as f64 * 0.01
}

fn recall_grid() -> impl Iterator<Item = f64> {
    (0..GRID).map(recall_at)
}

/// The precision-recall points of one class at one IoU threshold, in falling order of confidence.
pub(super) struct RankedCurve {
    pub(super) recall: Vec<f64>,
    pub(super) precision: Vec<f64>,
}

impl RankedCurve {
    /// `hits`: is the k-th most confident detection a true positive? `truths` > 0: how many objects there are.
    pub(super) fn new(hits: impl Iterator<Item = bool>, truths: usize) -> Self {
        let mut found = 0.0;
        let (recall, precision) = hits
            .enumerate()
            .map(|(rank, hit)| {
                found += f64::from(u8::from(hit));
                (found / truths as f64, found / (rank + 1) as f64)
            })
            .unzip();
        Self { recall, precision }
    }
}

/// `(recall, precision)` closed by the sentinels (0, 1) and (1, 0), with the running maximum of precision taken from the right.
pub(super) fn envelope(recall: &[f64], precision: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let recall = [&[0.0], recall, &[1.0]].concat();
    let mut precision = [&[1.0], precision, &[0.0]].concat();
    max_from_right(&mut precision);
    (recall, precision)
}

pub(super) fn max_from_right(values: &mut [f64]) {
    for i in (1..values.len()).rev() {
        values[i - 1] = values[i - 1].max(values[i]);
    }
}

/// AP as YOLO users know it: straight lines through the enveloped curve, trapezoid rule over recall 0, .01 … 1. At most 0.995.
///
/// `recall` rises, one entry per detection in falling order of confidence; no detection gives 0.
pub fn average_precision(recall: &[f64], precision: &[f64]) -> f64 {
    if recall.is_empty() {
        return 0.0;
    }
    let (recall, precision) = envelope(recall, precision);
    let at: Vec<f64> = recall_grid().map(|r| interp(r, &recall, &precision, 1.0)).collect();
    at.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0 * 0.01).sum()
}

/// AP as pycocotools defines it: the mean over recall 0, .01 … 1 of the best precision at that recall or beyond, 0 where it is not reached.
pub fn coco_average_precision(recall: &[f64], precision: &[f64]) -> f64 {
    let mut precision = precision.to_vec();
    max_from_right(&mut precision);
    let at = recall_grid().map(|wanted| {
        let first = recall.partition_point(|&r| r < wanted);
        precision.get(first).copied().unwrap_or(0.0)
    });
    at.sum::<f64>() / GRID as f64
}

/// Piecewise linear `y(x)` through points with `xs` rising; `left` before the first, the last `y` after the last. Where several points
/// share an x the last one counts. `xs` must not be empty.
pub(super) fn interp(x: f64, xs: &[f64], ys: &[f64], left: f64) -> f64 {
    let after = xs.partition_point(|&p| p <= x);
    match after {
        0 => left,
        _ if after == xs.len() => ys[after - 1],
        _ => {
            let (x0, x1, y0, y1) = (xs[after - 1], xs[after], ys[after - 1], ys[after]);
            y0 + (y1 - y0) / (x1 - x0) * (x - x0)
        }
    }
}

/// Running mean over a tenth of the curve (101 taps for 1000 points), ends repeated.
pub(crate) fn box_filter(values: &[f64]) -> Vec<f64> {
    let half = values.len() / 20;
    let at = |i: isize| values[i.clamp(0, values.len() as isize - 1) as usize];
    let window = |centre: usize| (0..=2 * half).map(move |k| at(centre as isize + k as isize - half as isize)).sum::<f64>();
    (0..values.len()).map(|i| window(i) / (2 * half + 1) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(hits: &[bool], truths: usize) -> (f64, f64) {
        let curve = RankedCurve::new(hits.iter().copied(), truths);
        (average_precision(&curve.recall, &curve.precision), coco_average_precision(&curve.recall, &curve.precision))
    }

    fn close(a: (f64, f64), b: (f64, f64)) {
        assert!((a.0 - b.0).abs() < 1e-12 && (a.1 - b.1).abs() < 1e-12, "{a:?} is not {b:?}");
    }

    #[test]
    fn perfect_missing_and_wrong() {
        close(both(&[true, true], 2), (0.995, 1.0));
        close(both(&[], 2), (0.0, 0.0));
        // All wrong: the last of the points at recall 0 counts, and it has precision 0.
        close(both(&[false, false], 2), (0.0, 0.0));
    }

    #[test]
    fn one_of_two_found() {
        // Steps: precision 1 at the 51 recalls up to .5, then nothing. Lines: 1 up to .5, then straight down to 0 at 1.
        close(both(&[true], 2), (0.5 + 0.25, 51.0 / 101.0));
    }

    #[test]
    fn hit_miss_hit() {
        // Points (.5, 1), (.5, .5), (1, 2/3). Envelope: 1 up to .5, then 2/3; YOLO's sentinel ends it at (1, 0).
        let steps = (51.0 + 50.0 * 2.0 / 3.0) / 101.0;
        // Lines: area 1 over [0, .49], a trapezoid 1 -> 2/3 as the last point at recall .5 counts, 2/3 over [.5, .99], 2/3 -> 0.
        let lines = 0.49 + 0.01 * (1.0 + 2.0 / 3.0) / 2.0 + 0.49 * 2.0 / 3.0 + 0.01 / 3.0;
        close(both(&[true, false, true], 2), (lines, steps));
    }

    #[test]
    fn interp_ends_and_ties() {
        let (xs, ys) = ([1.0, 2.0, 2.0, 3.0], [10.0, 20.0, 30.0, 40.0]);
        assert_eq!([0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0].map(|x| interp(x, &xs, &ys, -1.0)), [-1.0, 10.0, 15.0, 30.0, 35.0, 40.0, 40.0]);
    }

    #[test]
    fn box_filter_is_101_wide() {
        let mut impulse = vec![0.0; 1000];
        impulse[500] = 101.0;
        let smooth = box_filter(&impulse);
        assert_eq!((smooth[449], smooth[450], smooth[550], smooth[551]), (0.0, 1.0, 1.0, 0.0));
        assert!(box_filter(&[2.0; 1000]).iter().all(|v| (v - 2.0).abs() < 1e-12), "ends are repeated");
    }
}
