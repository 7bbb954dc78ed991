//! Numbers as bytes, little-endian on every machine, and shares of them.

use std::ops::Range;

/// The `i`-th of `n` nearly equal shares of `len` things.
pub(crate) fn share(len: usize, n: usize, i: usize) -> Range<usize> {
    len * i / n..len * (i + 1) / n
}

pub(crate) fn to_bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 4 * values.len()];
    bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(four, value)| *four = value.to_le_bytes());
    bytes
}

pub(crate) fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four))
}

pub(crate) fn add(sum: &mut [f32], more: impl Iterator<Item = f32>) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
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
        let values = [0.0, -0.0, 1.5, f32::INFINITY, f32::MIN_POSITIVE / 2.0];
        assert_eq!(from_bytes(&to_bytes(&values)).map(f32::to_bits).collect::<Vec<_>>(), values.map(f32::to_bits));
        assert!(from_bytes(&to_bytes(&[f32::NAN])).all(f32::is_nan));
    }
}
