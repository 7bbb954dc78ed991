//! Counts of 16 bits to 256 grays: a pure function of the counts and of a range, or of percentiles of the frame itself.

/// How counts become grays. Linear between the two levels, clipped beyond; rounded to the nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalisation {
    /// These counts become 0 and 255, in every frame.
    Range {
        /// Becomes black.
        low: f64,
        /// Becomes white; above `low`.
        high: f64,
    },
    /// These percentiles (0 to 100) of each frame do.
    Frame {
        /// Becomes black.
        low: f64,
        /// Becomes white.
        high: f64,
    },
}

impl Normalisation {
    /// Grays of the counts of one frame; a frame of one value becomes 0 by its own percentiles.
    pub fn apply(&self, counts: &[u16]) -> Vec<u8> {
        let [low, high] = match *self {
            Self::Range { low, high } => [low, high],
            Self::Frame { low, high } => Histogram::default().with(counts).percentiles([low, high]).unwrap_or_default(),
        };
        let scale = 255.0 / (high - low).max(f64::MIN_POSITIVE);
        counts.iter().map(|&v| ((f64::from(v) - low) * scale).round().clamp(0.0, 255.0) as u8).collect()
    }
}

/// How many pixels have each of 65,536 counts.
pub(crate) struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; 1 << 16])
    }
}

impl Histogram {
    pub(crate) fn with(mut self, counts: impl AsRef<[u16]>) -> Self {
        counts.as_ref().iter().for_each(|&v| self.0[usize::from(v)] += 1);
        self
    }

    pub(crate) fn merged(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
        self
    }

    /// The smallest counts that at least `low` and `high` percent of the pixels do not exceed; the second at least one above the first. None
    /// of no pixels.
    pub(crate) fn percentiles(&self, percent: [f64; 2]) -> Option<[f64; 2]> {
        let total: u64 = self.0.iter().sum();
        let at = |percent: f64| {
            let rank = ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total.max(1));
            let mut sum = 0;
            self.0.iter().position(|&n| {
                sum += n;
                sum >= rank
            })
        };
        let [low, high] = [at(percent[0])?, at(percent[1])?];
        Some([low as f64, high.max(low + 1) as f64])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_clip_and_round() {
        let range = Normalisation::Range { low: 1000.0, high: 1510.0 };
        assert_eq!(range.apply(&[0, 1000, 1001, 1002, 1255, 1509, 1510, 65_535]), [0, 0, 1, 1, 128, 255, 255, 255]);
        let frame = Normalisation::Frame { low: 0.0, high: 100.0 };
        assert_eq!(frame.apply(&[3000, 3150, 3050, 3100]), [0, 255, 85, 170]);
        assert_eq!(frame.apply(&[7, 7]), [0, 0]);
        assert_eq!(frame.apply(&[]), [0u8; 0]);
    }

    #[test]
    fn percentiles_are_counts_that_occur() {
        let counts: Vec<u16> = (0..1000).collect();
        let of = |percent| Histogram::default().with(&counts).percentiles(percent);
        assert_eq!(of([0.5, 99.5]), Some([4.0, 994.0]));
        assert_eq!(of([0.0, 100.0]), Some([0.0, 999.0]));
        assert_eq!(Histogram::default().percentiles([0.0, 1.0]), None);
    }
}
