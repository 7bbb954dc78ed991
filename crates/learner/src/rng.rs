//! Random draws without a generator that has to be saved: each is a hash of (seed, stream, epoch, index, how many came before).

use bellows_kernels::draws;
pub use bellows_kernels::draws::{GOLDEN, mix};

/// A short stream of draws for one purpose and one sample.
#[derive(Clone, Debug)]
pub struct Rng {
    key: u64,
    count: u64,
}

impl Rng {
    /// The draws of `stream` ("order", "mosaic", a parameter's name) for sample or step `index` of `epoch`.
    pub fn new(seed: u64, stream: &str, epoch: u64, index: u64) -> Self {
        let name = stream.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        let key = [seed, name, epoch, index].into_iter().fold(0, |key, part| mix(key ^ mix(part.wrapping_add(GOLDEN))));
        Self::keyed(key)
    }

    /// The draws of a key that was made otherwise; keys must not be neighbours.
    pub fn keyed(key: u64) -> Self {
        Self { key, count: 0 }
    }

    /// What its draws follow from, for code that makes them by number.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.count += 1;
        draws::bits_at(self.key, self.count - 1)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// What the draw number `i` of [`unit`](Self::unit) would be, counted from 0, whatever was drawn before.
    pub fn unit_at(&self, i: u64) -> f64 {
        draws::unit_at(self.key, i)
    }

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Standard normal (Box and Muller 1958, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Uniform in 0..n, without bias (Lemire 2019); 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        loop {
            let product = u128::from(self.bits()) * u128::from(n);
            if n == 0 || (product as u64) >= n.wrapping_neg() % n {
                return (product >> 64) as u64;
            }
        }
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_independent_and_repeatable() {
        let first = |seed, stream, epoch, index| Rng::new(seed, stream, epoch, index).bits();
        assert_eq!(first(1, "a", 2, 3), first(1, "a", 2, 3));
        let others = [first(1, "a", 2, 3), first(2, "a", 2, 3), first(1, "b", 2, 3), first(1, "a", 3, 2), first(1, "a", 2, 4)];
        for (i, a) in others.iter().enumerate() {
            assert!(others[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn uniform_has_the_right_mean_and_range() {
        let draws: Vec<f64> = (0..20_000).map(|i| Rng::new(0, "u", 0, i).uniform(-1.0, 3.0)).collect();
        assert!(draws.iter().all(|x| (-1.0..3.0).contains(x)));
        assert!((draws.iter().sum::<f64>() / 20_000.0 - 1.0).abs() < 0.03);
        let normals: Vec<f64> = (0..20_000).map(|i| Rng::new(0, "n", 0, i).normal()).collect();
        let variance = normals.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!((normals.iter().sum::<f64>() / 20_000.0).abs() < 0.03 && (variance - 1.0).abs() < 0.05);
        let mut rng = Rng::new(0, "b", 0, 0);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        let rng = Rng::new(5, "at", 0, 0);
        let in_turn: Vec<f64> = (0..9).scan(rng.clone(), |rng, _| Some(rng.unit())).collect();
        assert_eq!(in_turn, (0..9).map(|i| rng.unit_at(i)).collect::<Vec<_>>());
    }
}
