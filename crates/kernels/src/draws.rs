//! Random draws by number: what the i-th one is follows from a key, so they are made anywhere, in any order, and again.

/// 2^64 over the golden ratio: SplitMix64's step.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits in which every input bit reaches every output bit.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Draw number `i` of a key's stream, counted from 0: 64 random bits.
pub fn bits_at(key: u64, i: u64) -> u64 {
    mix(key.wrapping_add((i + 1).wrapping_mul(GOLDEN)))
}

/// The same uniform in [0, 1), by its upper 53 bits.
pub fn unit_at(key: u64, i: u64) -> f64 {
    (bits_at(key, i) >> 11) as f64 / (1u64 << 53) as f64
}
