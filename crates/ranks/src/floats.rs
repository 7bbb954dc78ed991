//! Numbers as bytes, little-endian on every machine, and shares of them.

use std::ops::Range;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The `i`-th of `n` nearly equal shares of `len` things.
pub(crate) fn share(len: usize, n: usize, i: usize) -> Range<usize> {
    len * i / n..len * (i + 1) / n
}

/// What the numbers of a sum are while they travel from rank to rank. Sums themselves are f32 in each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, to 8 bits of any size: half the bytes.
    Bf16,
    /// Rounded to f16, to 11 bits between 6e-5 and 65504: half the bytes. What is larger arrives as infinite.
    F16,
}

impl Wire {
    /// Bytes of a number.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    pub(crate) fn encode(self, values: &[f32]) -> Vec<u8> {
        fn all<const N: usize>(values: &[f32], as_bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
            let mut bytes = vec![0; N * values.len()];
            bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(own, value)| *own = as_bytes(*value));
            bytes
        }
        match self {
            Self::F32 => all(values, f32::to_le_bytes),
            Self::Bf16 => all(values, |value| bf16::from_f32(value).to_le_bytes()),
            Self::F16 => all(values, |value| f16::from_f32(value).to_le_bytes()),
        }
    }

    /// Puts every number of `bytes` into the place of `values` it belongs to, as `put` says.
    pub(crate) fn decode(self, bytes: &[u8], values: &mut [f32], put: impl Fn(&mut f32, f32)) {
        fn all<const N: usize>(bytes: &[u8], values: &mut [f32], put: impl Fn(&mut f32, [u8; N])) {
            values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, own)| put(value, *own));
        }
        match self {
            Self::F32 => all(bytes, values, |value, own| put(value, f32::from_le_bytes(own))),
            Self::Bf16 => all(bytes, values, |value, own| put(value, bf16::from_le_bytes(own).to_f32())),
            Self::F16 => all(bytes, values, |value, own| put(value, f16::from_le_bytes(own).to_f32())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_and_bytes_come_back() {
        for (len, n) in [(0, 3), (2, 3), (10, 1), (10, 3), (11, 4)] {
            let all: Vec<usize> = (0..n).flat_map(|i| share(len, n, i)).collect();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
        }
        let values = [0.0, -0.0, 1.5, f32::INFINITY, f32::NAN];
        for wire in [Wire::F32, Wire::Bf16, Wire::F16] {
            let mut back = [7.0; 5];
            wire.decode(&wire.encode(&values), &mut back, |place, value| *place = value);
            assert_eq!(
                back[..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                values[..4].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            );
            assert!(back[4].is_nan());
        }
    }
}
