//! Smoothing of series.

/// Gaussian filter cut at 4σ; the series is mirrored at its ends.
pub fn gaussian(values: &[f64], sigma: f64) -> Vec<f64> {
    let n = values.len() as i64;
    let mirrored = |i: i64| {
        let i = i.rem_euclid(2 * n);
        values[(if i < n { i } else { 2 * n - 1 - i }) as usize]
    };
    let radius = (4.0 * sigma).round() as i64;
    let weight = |k: i64| (-0.5 * (k as f64 / sigma).powi(2)).exp();
    let total: f64 = (-radius..=radius).map(weight).sum();
    (0..n).map(|i| (-radius..=radius).map(|k| weight(k) * mirrored(i + k)).sum::<f64>() / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaussian_keeps_constants_and_mass() {
        assert!(gaussian(&[2.0; 5], 3.0).iter().all(|v| (v - 2.0).abs() < 1e-12), "shorter than the filter");
        let mut impulse = [0.0; 41];
        impulse[20] = 1.0;
        let smooth = gaussian(&impulse, 3.0);
        assert!((smooth[20] - 0.13298).abs() < 1e-4 && (smooth[23] / smooth[20] - (-0.5f64).exp()).abs() < 1e-9);
    }
}
