//! What makers publish of the cards that people train on: for plans of runs on a card that is not at hand, and for a bound on how fast a step could be.

/// A card as its maker describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// `RX 6700 XT`.
    pub name: &'static str,
    /// GiB of its own memory.
    pub memory_gib: u64,
    /// Multiplications and additions in f32 a second, each counted, at boost clock.
    pub flops: f64,
    /// Bytes a second between memory and processors.
    pub bandwidth: f64,
}

const fn card(name: &'static str, memory_gib: u64, tflops: f64, gb_per_s: f64) -> Card {
    Card { name, memory_gib, flops: tflops * 1e12, bandwidth: gb_per_s * 1e9 }
}

/// From the data sheets of AMD and NVIDIA.
pub const CARDS: [Card; 7] = [
    card("RX 5600 XT", 6, 7.19, 288.0),
    card("RX 5700 XT", 8, 9.75, 448.0),
    card("RX 6700 XT", 12, 13.21, 384.0),
    card("RX 7900 XT", 20, 51.48, 800.0),
    card("MI50", 16, 13.3, 1024.0),
    card("TITAN RTX", 24, 16.3, 672.0),
    card("RTX 3060", 12, 12.74, 360.0),
];

impl Card {
    /// The card whose name `name` ends with: letters and digits count, so `rx-6700-xt` and a driver's `AMD Radeon RX 6700 XT (RADV NAVI22)` do. A Ti or a
    /// Laptop is another card.
    pub fn named(name: &str) -> Option<Self> {
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        // What drivers add stands in parentheses or behind a slash.
        let name = plain(name.split(['(', '/']).next().unwrap_or_default());
        CARDS.into_iter().find(|card| name.ends_with(&plain(card.name)))
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        self.memory_gib << 30
    }

    /// A roofline: the seconds of `launches` kernels, of which these `(bytes, operations)` are known, as memory's part, arithmetic's and the launches'. A
    /// kernel takes as long as its memory or its arithmetic does, whichever is longer. Nothing reaches what makers publish, so this is a
    /// bound and a means to compare two versions, not a promise.
    pub fn seconds(&self, known: &[(u64, u64)], launches: usize) -> [f64; 3] {
        let (mut memory, mut arithmetic) = (0.0, 0.0);
        for &(bytes, flops) in known {
            let (moving, computing) = (bytes as f64 / self.bandwidth, flops as f64 / self.flops);
            *(if moving > computing { &mut memory } else { &mut arithmetic }) += moving.max(computing);
        }
        [memory, arithmetic, launches as f64 * LAUNCH]
    }
}

/// Seconds from one small kernel to the next that depends on it. An assumption: no card was at hand.
const LAUNCH: f64 = 5e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_times_counts() {
        let one = Card { name: "", memory_gib: 1, flops: 1e12, bandwidth: 100e9 };
        let [memory, arithmetic, launches] = one.seconds(&[(1_000_000_000, 1_000_000_000), (1_000_000, 3_000_000_000_000)], 200);
        assert!((memory - 0.01).abs() < 1e-9 && (arithmetic - 3.0).abs() < 1e-9 && (launches - 0.001).abs() < 1e-9);
    }

    #[test]
    fn a_card_is_known_by_what_people_and_drivers_call_it() {
        for name in ["rx 6700 xt", "RX6700XT", "rx-6700-xt", "AMD Radeon RX 6700 XT (RADV NAVI22)"] {
            assert_eq!(Card::named(name).map(|card| (card.name, card.memory())), Some(("RX 6700 XT", 12 << 30)), "{name}");
        }
        assert_eq!(Card::named("titan rtx").map(|card| card.memory_gib), Some(24));
        assert_eq!(Card::named("NVIDIA GeForce RTX 3060/PCIe/SSE2").map(|card| card.memory_gib), Some(12));
        for other in ["NVIDIA H100 80GB HBM3", "RTX 3060 Ti", "NVIDIA GeForce RTX 3060 Laptop GPU", "RX 7900 XTX", ""] {
            assert_eq!(Card::named(other), None, "{other}");
        }
    }
}
