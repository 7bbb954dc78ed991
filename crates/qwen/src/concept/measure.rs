//! Numbers that say how far apart two sets are, or two models: pure functions.

use serde::{Deserialize, Serialize};

/// P(t > b) + P(t = b) / 2 for t of `target` and b of `baseline`: the area under the ROC curve (Mann and Whitney 1947). 0.5 without values.
pub fn auc(target: &[f64], baseline: &[f64]) -> f64 {
    let pairs = target.len() * baseline.len();
    if pairs == 0 {
        return 0.5;
    }
    let won = target.iter().flat_map(|t| {
        baseline.iter().map(move |b| {
            if t > b {
                1.0
            } else if t == b {
                0.5
            } else {
                0.0
            }
        })
    });
    won.sum::<f64>() / pairs as f64
}

/// Cohen's d: the distance of the means in standard deviations, those of both sets pooled. 0 where nothing differs; where nothing varies, a billion:
/// infinity is no number of a JSON file.
pub fn effect_size(target: &[f64], baseline: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
    let squares = |x: &[f64], mean: f64| x.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    let (t, b) = (mean(target), mean(baseline));
    let freedom = (target.len() + baseline.len()).saturating_sub(2).max(1) as f64;
    let deviation = ((squares(target, t) + squares(baseline, b)) / freedom).sqrt();
    if t == b { 0.0 } else { (t - b) / deviation.max(1e-9 * (t - b).abs()) }
}

/// log (p / (1 − p)) of the probability p that one of `markers` comes next; `log_p` is over the vocabulary.
pub fn marker_score(log_p: &[f32], markers: &[u32]) -> f64 {
    let p: f64 = markers.iter().filter_map(|&id| log_p.get(id as usize)).map(|&x| f64::from(x).exp()).sum();
    let p = p.clamp(1e-12, 1.0 - 1e-12);
    (p / (1.0 - p)).ln()
}

/// Σ p log (p / q) of two distributions given as logarithms.
pub fn divergence(log_p: &[f32], log_q: &[f32]) -> f64 {
    log_p.iter().zip(log_q).map(|(&p, &q)| f64::from(p).exp() * (f64::from(p) - f64::from(q))).sum()
}

/// A share of answers, with what it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Answers that count.
    pub hits: usize,
    /// Answers.
    pub of: usize,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Rate {
    /// With Wilson's interval (1927) for 95 %, which also holds for few answers and for shares of 0 and 1.
    pub fn new(hits: usize, of: usize) -> Self {
        if of == 0 {
            return Self { hits, of, low: 0.0, high: 1.0 };
        }
        const Z: f64 = 1.959_963_984_540_054;
        let (n, p) = (of as f64, hits as f64 / of as f64);
        let centre = p + Z * Z / (2.0 * n);
        let width = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        Self { hits, of, low: ((centre - width) / scale).max(0.0), high: ((centre + width) / scale).min(1.0) }
    }

    /// The share itself; 0 of none.
    pub fn share(&self) -> f64 {
        self.hits as f64 / self.of.max(1) as f64
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |x: f64| 100.0 * x;
        write!(f, "{}/{} = {:.0} % ({:.0} to {:.0})", self.hits, self.of, percent(self.share()), percent(self.low), percent(self.high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separations_are_the_textbooks() {
        assert_eq!(auc(&[2.0, 3.0], &[0.0, 1.0]), 1.0);
        assert_eq!(auc(&[0.0, 1.0], &[0.0, 1.0]), 0.5);
        assert_eq!(auc(&[0.0], &[1.0, 2.0]), 0.0);
        // Means 2 and 0, both of variance 1.
        assert!((effect_size(&[1.0, 2.0, 3.0], &[-1.0, 0.0, 1.0]) - 2.0).abs() < 1e-12);
        assert_eq!(effect_size(&[1.0], &[1.0]), 0.0);
        assert_eq!([effect_size(&[3.0; 4], &[1.0; 4]), effect_size(&[1.0; 4], &[3.0; 4])].map(f64::round), [1e9, -1e9]);
    }

    #[test]
    fn intervals_are_wilsons() {
        // scipy.stats.binomtest(hits, of).proportion_ci(method="wilson")
        for ((hits, of), (low, high)) in
            [((0, 10), (0.0, 0.277_532_8)), ((5, 10), (0.236_593_1, 0.763_406_9)), ((30, 32), (0.798_528_8, 0.982_689_4))]
        {
            let rate = Rate::new(hits, of);
            assert!((rate.low - low).abs() < 1e-6 && (rate.high - high).abs() < 1e-6, "{rate:?}");
        }
        assert_eq!(Rate::new(5, 10).to_string(), "5/10 = 50 % (24 to 76)");
        assert_eq!((Rate::new(0, 0).low, Rate::new(0, 0).high), (0.0, 1.0));
    }

    #[test]
    fn scores_and_divergences() {
        let log_p = [0.5f32, 0.25, 0.25].map(f32::ln);
        assert!((marker_score(&log_p, &[1, 2, 9])).abs() < 1e-6, "half of it is log 1");
        assert!((marker_score(&log_p, &[1]) - (1.0f64 / 3.0).ln()).abs() < 1e-6);
        assert!(marker_score(&log_p, &[]) < -27.0 && marker_score(&log_p, &[0, 1, 2]) > 15.0);
        let log_q = [0.25f32, 0.5, 0.25].map(f32::ln);
        assert!(divergence(&log_p, &log_p).abs() < 1e-9 && (divergence(&log_p, &log_q) - 0.25 * 2f64.ln()).abs() < 1e-6);
    }
}
