//! The mask of dropout, by key and place.

use crate::draws::bits_at;

/// Which values are dropped, and what the others are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    pub(super) key: u64,
    /// A value is dropped whose draw's upper 53 bits are less than this: that is to say, whose draw is below p.
    pub(super) limit: u64,
    pub(super) scale: f32,
}

impl Mask {
    pub(super) fn new(key: u64, p: f64) -> Self {
        Self { key, limit: (p * (1u64 << 53) as f64).ceil() as u64, scale: (1.0 / (1.0 - p)) as f32 }
    }

    /// The factor of value number `i`.
    pub(super) fn at(self, i: usize) -> f32 {
        if bits_at(self.key, i as u64) >> 11 < self.limit { 0.0 } else { self.scale }
    }
}
