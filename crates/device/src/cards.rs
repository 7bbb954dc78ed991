//! What makers publish of the cards that people train on: for plans of runs on a card that is not at hand, and for a bound on how fast a step could be.

use bellows_kernels::cube::Rates;

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
    /// Bytes of shared memory of a compute unit, which its workgroups share out.
    pub shared: usize,
}

const fn card(name: &'static str, memory_gib: u64, tflops: f64, gb_per_s: f64, shared_kib: usize) -> Card {
    Card { name, memory_gib, flops: tflops * 1e12, bandwidth: gb_per_s * 1e9, shared: shared_kib << 10 }
}

/// From the data sheets of AMD and NVIDIA. Shared memory: 128 KB to a workgroup processor of two compute units (AMD's instruction set references of RDNA 1, 2 and
/// 3), 64 KB to a compute unit (that of Vega 7 nm), 64 and 100 KB to a multiprocessor (NVIDIA's tuning guides for Turing and for Ampere, capability 8.6).
pub const CARDS: [Card; 7] = [
    card("RX 5600 XT", 6, 7.19, 288.0, 64),
    card("RX 5700 XT", 8, 9.75, 448.0, 64),
    card("RX 6700 XT", 12, 13.21, 384.0, 64),
    card("RX 7900 XT", 20, 51.48, 800.0, 64),
    card("MI50", 16, 13.3, 1024.0, 64),
    card("TITAN RTX", 24, 16.3, 672.0, 64),
    card("RTX 3060", 12, 12.74, 360.0, 100),
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

    /// Workgroups that a compute unit can hold at a time if each takes so many bytes of shared memory; `None` if none is taken. Registers, which only the
    /// driver's compiler knows, may allow fewer.
    pub fn workgroups(&self, bytes: usize) -> Option<usize> {
        self.shared.checked_div(bytes)
    }

    /// A roofline, as [`Rates::seconds`] has it. Nothing reaches what makers publish, so this is a bound and a means to compare two versions, not a
    /// promise.
    pub fn seconds(&self, known: &[(u64, u64)], launches: usize) -> [f64; 3] {
        Rates { bandwidth: self.bandwidth, flops: self.flops, launch: LAUNCH }.seconds(known, launches)
    }
}

/// Seconds from one small kernel to the next that depends on it. An assumption: no card was at hand.
const LAUNCH: f64 = 5e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_by_what_is_published() {
        // A second of the MI50's memory, of its arithmetic, and of launches.
        let seconds = Card::named("MI50").unwrap().seconds(&[(1_024_000_000_000, 0), (0, 13_300_000_000_000)], 200_000);
        assert!(seconds.iter().all(|second| (second - 1.0).abs() < 1e-9), "{seconds:?}");
    }

    #[test]
    fn workgroups_share_out_shared_memory() {
        let of = |name: &str, bytes| Card::named(name).unwrap().workgroups(bytes);
        assert_eq!([of("MI50", 16 << 10), of("RTX 3060", 16 << 10), of("RTX 3060", 0)], [Some(4), Some(6), None]);
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
