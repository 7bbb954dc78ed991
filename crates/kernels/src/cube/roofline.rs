//! What a step takes at best on a device of certain rates, by what its kernels move and compute.

/// What a device does at best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes a second between memory and processors.
    pub bandwidth: f64,
    /// Multiplications and additions a second, each counted.
    pub flops: f64,
    /// Seconds from one small kernel to the next that depends on it.
    pub launch: f64,
}

impl Rates {
    /// A roofline: the seconds of `launches` kernels, of which these `(bytes, operations)` are known, as memory's part, arithmetic's and the launches'. A
    /// kernel takes as long as its memory or its arithmetic does, whichever is longer.
    pub fn seconds(&self, known: &[(u64, u64)], launches: usize) -> [f64; 3] {
        let (mut memory, mut arithmetic) = (0.0, 0.0);
        for &(bytes, flops) in known {
            let (moving, computing) = (bytes as f64 / self.bandwidth, flops as f64 / self.flops);
            *(if moving > computing { &mut memory } else { &mut arithmetic }) += moving.max(computing);
        }
        [memory, arithmetic, launches as f64 * self.launch]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_times_counts() {
        let one = Rates { bandwidth: 100e9, flops: 1e12, launch: 5e-6 };
        let [memory, arithmetic, launches] = one.seconds(&[(1_000_000_000, 1_000_000_000), (1_000_000, 3_000_000_000_000)], 200);
        assert!((memory - 0.01).abs() < 1e-9 && (arithmetic - 3.0).abs() < 1e-9 && (launches - 0.001).abs() < 1e-9);
    }
}
