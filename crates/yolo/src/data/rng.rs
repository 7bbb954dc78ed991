//! Draws that are hashes: of a seed, the name of a stream, the epoch, the index of the sample, and how many were drawn before.
//!
//! There is no generator to save or to share between threads: the same question always has the same answer, which is what makes batches
//! independent of worker count and a resumed run equal to an uninterrupted one. The generator is the Learner's; only the key is mixed
//! otherwise than there, and stays as it is because every batch of a seed depends on it.

use std::ops::{Deref, DerefMut};

use bellows_learner::rng::{GOLDEN, Rng, mix};

/// A stream of draws for one sample.
#[derive(Clone, Debug)]
pub struct Draw(Rng);

impl Deref for Draw {
    type Target = Rng;

    fn deref(&self) -> &Rng {
        &self.0
    }
}

impl DerefMut for Draw {
    fn deref_mut(&mut self) -> &mut Rng {
        &mut self.0
    }
}

impl Draw {
    /// The draws of `stream` for sample `index` in `epoch` of a run with `seed`.
    pub fn new(seed: u64, stream: &str, epoch: u64, index: u64) -> Self {
        let name = stream.bytes().fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
        let key = [name, epoch, index].iter().fold(mix(seed ^ GOLDEN), |k, &v| mix(k.wrapping_mul(GOLDEN) ^ mix(v.wrapping_add(GOLDEN))));
        Self(Rng::keyed(key))
    }

    /// Uniform in 0..n (0 when `n` is 0).
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// Gamma(shape, 1) for shape >= 1 (Marsaglia and Tsang 2000).
    fn gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.0.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.0.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// Beta(a, b) for a, b >= 1, as a ratio of gammas.
    pub fn beta(&mut self, a: f64, b: f64) -> f64 {
        let (x, y) = (self.gamma(a.max(1.0)), self.gamma(b.max(1.0)));
        x / (x + y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
        let v: Vec<f64> = values.collect();
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64)
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let first = |seed, stream, epoch, index| Draw::new(seed, stream, epoch, index).bits();
        let base = first(1, "a", 2, 3);
        assert_eq!(base, first(1, "a", 2, 3));
        for other in [first(2, "a", 2, 3), first(1, "b", 2, 3), first(1, "a", 3, 3), first(1, "a", 2, 4), first(1, "a", 3, 2)] {
            assert_ne!(base, other);
        }
    }

    /// Batches of a seed are what they were when their draws had a generator of their own.
    #[test]
    fn a_key_has_its_bits_for_ever() {
        let mut draw = Draw::new(7, "compose", 3, 11);
        let bits = [0xff6d_564e_0879_b663, 0xaa19_5739_0fee_217c, 0x64aa_edb4_7f6f_d409];
        assert_eq!([(); 3].map(|()| draw.bits()), bits);
        let mut draw = Draw::new(7, "compose", 3, 11);
        assert_eq!([(); 3].map(|()| draw.below(1000)), [997, 664, 393]);
    }

    #[test]
    fn distributions_have_their_moments() {
        let n = 20_000;
        let mut d = Draw::new(7, "moments", 0, 0);
        let (m, v) = moments((0..n).map(|_| d.uniform(-1.0, 3.0)));
        assert!((m - 1.0).abs() < 0.05 && (v - 16.0 / 12.0).abs() < 0.05, "uniform {m} {v}");
        let (m, v) = moments((0..n).map(|_| d.normal()));
        assert!(m.abs() < 0.03 && (v - 1.0).abs() < 0.05, "normal {m} {v}");
        let (m, v) = moments((0..n).map(|_| d.beta(32.0, 32.0)));
        assert!((m - 0.5).abs() < 0.005 && (v - 0.25 / 65.0).abs() < 4e-4, "beta {m} {v}");
        let (m, v) = moments((0..n).map(|_| d.beta(1.0, 1.0)));
        assert!((m - 0.5).abs() < 0.02 && (v - 1.0 / 12.0).abs() < 5e-3, "flat beta {m} {v}");
        let mut counts = [0usize; 7];
        (0..n).for_each(|_| counts[d.below(7)] += 1);
        assert!(counts.iter().all(|&c| (2500..3200).contains(&c)), "{counts:?}");
    }
}
