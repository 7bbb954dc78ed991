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
    /// The same of pairs in f16, without units for matrices.
    pub half_flops: f64,
    /// Bytes a second between memory and processors.
    pub bandwidth: f64,
    /// Seconds on the card from one small kernel to the next that depends on it.
    pub launch: f64,
    /// Bytes of shared memory of a compute unit, which its workgroups share out.
    pub shared: usize,
    /// Bytes of its registers, shared out in the same way.
    pub registers: usize,
    /// Where rates and bandwidth are from.
    pub rates_from: &'static str,
    /// Where the cost of a launch is from.
    pub launch_from: &'static str,
}

/// A compute unit's shared memory and registers, in KiB.
type Room = [usize; 2];

/// 128 KiB to a processor of two compute units, registers of 128 KiB to each of a unit's two SIMDs: AMD's instruction set references and white paper of RDNA.
const RDNA: Room = [64, 256];
/// The same with half as many registers again in the large chips: AMD's instruction set reference of RDNA 3.
const RDNA3: Room = [64, 384];
/// 64 KiB of registers to each of four SIMDs: AMD's instruction set reference of Vega 7 nm.
const VEGA: Room = [64, 256];
/// 65,536 registers of 32 bits: NVIDIA's tuning guide for Turing.
const TURING: Room = [64, 256];
/// The same: NVIDIA's tuning guide for Ampere, capability 8.6.
const AMPERE: Room = [100, 256];

/// Seconds of a launch, and where they are from.
type Launch = (f64, &'static str);

/// 941 small dispatches, each waiting for the one before, on a Radeon Pro W7900 of the same chip.
const NAVI31: Launch = (0.88e-6, "ROCm/rocm-systems#10834: 0.88 us through Vulkan on Navi 31");
const NVIDIA: Launch = (3e-6, "forums.developer.nvidia.com/t/233645: some 3 us between kernels that do nothing, through CUDA");
const ASSUMED: Launch = (5e-6, "assumed: no measurement on this chip was found");

const fn card(
    (name, memory_gib): (&'static str, u64),
    [tflops, half_tflops, gb_per_s]: [f64; 3],
    [shared, registers]: Room,
    (launch, launch_from): Launch,
    rates_from: &'static str,
) -> Card {
    Card {
        name,
        memory_gib,
        flops: tflops * 1e12,
        half_flops: half_tflops * 1e12,
        bandwidth: gb_per_s * 1e9,
        launch,
        shared: shared << 10,
        registers: registers << 10,
        rates_from,
        launch_from,
    }
}

/// From the product pages of AMD and NVIDIA: lanes, boost clock, bits and speed of the memory, of which the rates are products (a test multiplies them).
pub const CARDS: [Card; 7] = [
    card(("RX 5600 XT", 6), [7.19, 14.38, 288.0], RDNA, ASSUMED, "amd.com: 2304 lanes at 1560 MHz, f16 in pairs, 192 bits at 12 Gb/s"),
    card(("RX 5700 XT", 8), [9.75, 19.51, 448.0], RDNA, ASSUMED, "amd.com: 2560 lanes at 1905 MHz, f16 in pairs, 256 bits at 14 Gb/s"),
    card(("RX 6700 XT", 12), [13.21, 26.43, 384.0], RDNA, ASSUMED, "amd.com: 2560 lanes at 2581 MHz, f16 in pairs, 192 bits at 16 Gb/s"),
    card(
        ("RX 7900 XT", 20),
        [51.48, 102.96, 800.0],
        RDNA3,
        NAVI31,
        "amd.com: 10752 lanes (5376 that take two instructions at a time) at 2394 MHz, f16 in pairs, 320 bits at 20 Gb/s",
    ),
    card(("MI50", 16), [13.3, 26.5, 1024.0], VEGA, ASSUMED, "amd.com: 3840 lanes at 1725 MHz, f16 in pairs, 4096 bits at 2 Gb/s"),
    card(("TITAN RTX", 24), [16.3, 32.6, 672.0], TURING, NVIDIA, "nvidia.com: 4608 lanes at 1770 MHz, f16 in pairs, 384 bits at 14 Gb/s"),
    card(
        ("RTX 3060", 12),
        [12.74, 12.74, 360.0],
        AMPERE,
        NVIDIA,
        "nvidia.com: 3584 lanes at 1777 MHz, f16 one by one, 192 bits at 15 Gb/s",
    ),
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

    /// Workgroups that a compute unit can hold at a time if each takes so many bytes of shared memory and of registers; `None` if neither is known. The
    /// driver's compiler may take more registers, and then fewer fit.
    pub fn workgroups(&self, shared: usize, registers: usize) -> Option<usize> {
        [self.shared.checked_div(shared), self.registers.checked_div(registers)].into_iter().flatten().min()
    }

    /// Its peak in f16 or in f32.
    fn peak(&self, half: bool) -> f64 {
        if half { self.half_flops } else { self.flops }
    }

    /// A roofline, as [`Rates::seconds`] has it, with arithmetic in f16 or in f32. Nothing reaches what makers publish, so this is a bound and a means to
    /// compare two versions, not a promise.
    pub fn seconds(&self, known: &[(u64, u64)], launches: usize, half: bool) -> [f64; 3] {
        Rates { bandwidth: self.bandwidth, flops: self.peak(half), launch: self.launch }.seconds(known, launches)
    }

    /// Seconds of so many multiplications and additions at 60 % of the peak, which good kernels reach: what a step is measured by.
    pub fn attainable(&self, flops: u64, half: bool) -> f64 {
        flops as f64 / (0.6 * self.peak(half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_by_what_is_published() {
        // A second of the MI50's memory, of its arithmetic, and of launches.
        let card = Card::named("MI50").unwrap();
        for (half, flops) in [(false, 13_300_000_000_000), (true, 26_500_000_000_000)] {
            let seconds = card.seconds(&[(1_024_000_000_000, 0), (0, flops)], 200_000, half);
            assert!(seconds.iter().all(|second| (second - 1.0).abs() < 1e-9), "{seconds:?}");
            assert!((card.attainable(flops, half) - 1.0 / 0.6).abs() < 1e-9);
        }
    }

    /// The rates are what lanes, clocks and memories of their sources multiply to.
    #[test]
    fn rates_are_those_of_their_sources() {
        for card in CARDS {
            let number = |before: &str| -> f64 {
                let (front, _) = card.rates_from.split_once(before).unwrap();
                front.rsplit(' ').next().unwrap().parse().unwrap()
            };
            let flops = 2.0 * number(" lanes") * number(" MHz") * 1e6;
            let pairs = if card.rates_from.contains("in pairs") { 2.0 } else { 1.0 };
            let bandwidth = number(" bits") * number(" Gb/s") / 8.0 * 1e9;
            for (said, is) in [(flops, card.flops), (pairs * flops, card.half_flops), (bandwidth, card.bandwidth)] {
                assert!((said / is - 1.0).abs() < 5e-3, "{}: {said:e} {is:e}", card.name);
            }
            let us = (card.launch * 1e8).round() / 100.0;
            assert!(card.launch_from.starts_with("assumed") || card.launch_from.contains(&format!("{us} us")), "{}", card.name);
        }
    }

    #[test]
    fn workgroups_share_out_shared_memory_and_registers() {
        let of = |name: &str, shared: usize, registers: usize| Card::named(name).unwrap().workgroups(shared << 10, registers << 10);
        assert_eq!([of("MI50", 16, 0), of("RTX 3060", 16, 0), of("RTX 3060", 0, 0)], [Some(4), Some(6), None]);
        assert_eq!([of("RTX 3060", 16, 50), of("RX 7900 XT", 0, 50), of("RX 7900 XT", 32, 50)], [Some(5), Some(7), Some(2)]);
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
