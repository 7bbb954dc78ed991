//! f32 to the 16-bit floats, rounded to nearest, ties to even.

use crate::blocks::BlockType;

/// The values as little-endian bf16. Its range is that of f32, but for the last half step, which becomes infinite.
pub fn to_bf16(values: &[f32]) -> Vec<u8> {
    BlockType::BF16.encode(values).bytes
}

/// The values as little-endian f16, and how many of them saturated: finite values beyond f16's range become ±65504.
/// Infinities and NaN stay what they are.
pub fn to_f16(values: &[f32]) -> (Vec<u8>, usize) {
    let encoded = BlockType::F16.encode(values);
    (encoded.bytes, encoded.saturated)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn f16_bits(values: &[f32]) -> (Vec<u16>, usize) {
        let (bytes, saturated) = to_f16(values);
        (bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect(), saturated)
    }

    #[test]
    fn f16_rounds_to_even_and_counts_what_saturates() {
        // 2049 and 2051 lie halfway between neighbours (2048, 2050, 2052): both go to the even significand.
        assert_eq!(f16_bits(&[1.0, -2.0, 2049.0, 2051.0]), (vec![0x3c00, 0xc000, 0x6800, 0x6802], 0));
        // 65519.996 still rounds down to 65504; 65520 is the first that would round to infinity.
        let edge = f32::from_bits(65520f32.to_bits() - 1);
        assert_eq!(f16_bits(&[65504.0, edge, 65520.0, -1e9, f32::INFINITY]), (vec![0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7c00], 2));
        // Half of the smallest subnormal goes to the even neighbour, zero.
        assert_eq!(f16_bits(&[2f32.powi(-24), 2f32.powi(-25), -0.0]), (vec![1, 0, 0x8000], 0));
        assert!(f16::from_bits(f16_bits(&[f32::NAN]).0[0]).is_nan());
    }

    #[test]
    fn bf16_rounds_to_even() {
        let bits = |x: f32| u16::from_le_bytes(to_bf16(&[x]).try_into().unwrap());
        assert_eq!((bits(1.0), bits(-3.0)), (0x3f80, 0xc040));
        assert_eq!(bits(f32::from_bits(0x3f80_8000)), 0x3f80, "a tie, to the even one below");
        assert_eq!(bits(f32::from_bits(0x3f81_8000)), 0x3f82, "a tie, to the even one above");
        assert_eq!(bits(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(bits(f32::INFINITY), 0x7f80);
        assert!(bf16::from_bits(bits(f32::from_bits(0x7f80_0001))).is_nan(), "a NaN whose payload is in the lost bits");
    }
}
