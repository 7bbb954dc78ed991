//! What a step would take on a card at best: a roofline.
//!
//! A kernel takes as long as its memory or its arithmetic does, whichever is longer, and a launch besides; kernels of which nothing is known but that they are launched are
//! counted by that. Bandwidths and rates are the vendors' specifications of reference boards; nothing reaches them, so this is a bound and a means to compare two versions, not a promise.

/// A card by its specification.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// As it is sold.
    pub name: &'static str,
    /// GB/s of its memory.
    pub bandwidth: f64,
    /// TFLOP/s in f32.
    pub f32: f64,
}

/// Seconds from one small dispatch to the next that depends on it: a barrier and an empty pipeline. Between 3 and 10 µs are reported for Vulkan on such cards.
const LAUNCH: f64 = 5e-6;

/// The cards of those who asked for this, and two of NVIDIA's for comparison. amd.com and nvidia.com, product specifications; clocks are boost clocks.
pub const CARDS: [Card; 6] = [
    Card { name: "RX 5600 XT", bandwidth: 288.0, f32: 7.19 },
    Card { name: "RX 6700 XT", bandwidth: 384.0, f32: 13.21 },
    Card { name: "RX 7900 XT", bandwidth: 800.0, f32: 51.48 },
    Card { name: "MI50", bandwidth: 1024.0, f32: 13.4 },
    Card { name: "TITAN RTX", bandwidth: 672.0, f32: 16.31 },
    Card { name: "RTX 3060", bandwidth: 360.0, f32: 12.74 },
];

/// What the launches of a kernel do together.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes read and written.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Card {
    /// Seconds of `launches` launches, of which `loads` are known, computed in f32: three parts that are memory's, arithmetic's, and the launches'.
    pub fn seconds(&self, loads: &[Load], launches: usize) -> [f64; 3] {
        let times = loads.iter().map(|load| (load.bytes as f64 / (self.bandwidth * 1e9), load.flops as f64 / (self.f32 * 1e12)));
        let (mut memory, mut arithmetic) = (0.0, 0.0);
        for (bytes, flops) in times {
            *(if bytes > flops { &mut memory } else { &mut arithmetic }) += bytes.max(flops);
        }
        [memory, arithmetic, launches as f64 * LAUNCH]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_the_two_counts() {
        let card = Card { name: "", bandwidth: 100.0, f32: 1.0 };
        let loads = [Load { bytes: 1_000_000_000, flops: 1_000_000_000 }, Load { bytes: 1_000_000, flops: 3_000_000_000_000 }];
        let [memory, arithmetic, launches] = card.seconds(&loads, 200);
        assert!((memory - 0.01).abs() < 1e-9 && (arithmetic - 3.0).abs() < 1e-9 && (launches - 0.001).abs() < 1e-9);
    }
}
