//! What makers publish of the cards that people train on: for plans of runs on a card that is not at hand.

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
pub const CARDS: [Card; 6] = [
    card("RX 5600 XT", 6, 7.19, 288.0),
    card("RX 5700 XT", 8, 9.75, 448.0),
    card("RX 6700 XT", 12, 13.21, 384.0),
    card("MI50", 16, 13.3, 1024.0),
    card("TITAN RTX", 24, 16.3, 672.0),
    card("RTX 3060", 12, 12.74, 360.0),
];

impl Card {
    /// The card that `name` means: letters and digits count, so `rx-6700-xt` and a driver's `AMD Radeon RX 6700 XT (RADV NAVI22)` do.
    pub fn named(name: &str) -> Option<Self> {
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let name = plain(name);
        CARDS.into_iter().find(|card| name.contains(&plain(card.name)))
    }

    /// Bytes of its memory.
    pub fn memory(&self) -> u64 {
        self.memory_gib << 30
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_known_by_what_people_and_drivers_call_it() {
        for name in ["rx 6700 xt", "RX6700XT", "rx-6700-xt", "AMD Radeon RX 6700 XT (RADV NAVI22)"] {
            assert_eq!(Card::named(name).map(|card| (card.name, card.memory())), Some(("RX 6700 XT", 12 << 30)), "{name}");
        }
        assert_eq!(Card::named("titan rtx").map(|card| card.memory_gib), Some(24));
        assert_eq!(Card::named("NVIDIA H100 80GB HBM3"), None);
    }
}
