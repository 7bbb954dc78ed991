//! Blocks of a file on CubeCL devices: ggml's formulas (`dequantize_row_*` in `ggml-quants.c`), word by word of their bytes. A scale times a number has at most
//! 22 bits where something is added, so the values are the processor's to the bit, whether a driver fuses the two or not.

use cubecl::prelude::*;

/// Most values of a block.
pub(super) const LONGEST: usize = 256;

/// How a block of a file is laid out: ggml's types (`ggml-common.h`), as a card takes them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    /// 32 values in nibbles, those of the second half in the upper ones, after a scale, perhaps a least value, and perhaps a fifth bit of each: Q4_0, Q4_1,
    /// Q5_0, Q5_1.
    Nibbles {
        /// A least value is there, and numbers begin at 0; else they lie around it.
        least: bool,
        /// Fifth bits are there.
        fifth: bool,
    },
    /// 32 values in bytes after a scale: Q8_0.
    Bytes,
    /// 256 values in eight parts, after a scale and a least value of 6 bits for each: Q4_K, Q5_K.
    Parts {
        /// Fifth bits are there.
        fifth: bool,
    },
    /// 256 values of 6 bits in sixteen parts, before a scale of 8 bits for each: Q6_K.
    Sixes,
}

impl Layout {
    /// That of the type with ggml's number `id`; `None` of one that is in no blocks, or unknown.
    pub(super) fn of_ggml(id: u32) -> Option<Self> {
        Some(match id {
            2 => Self::Nibbles { least: false, fifth: false },
            3 => Self::Nibbles { least: true, fifth: false },
            6 => Self::Nibbles { least: false, fifth: true },
            7 => Self::Nibbles { least: true, fifth: true },
            8 => Self::Bytes,
            12 => Self::Parts { fifth: false },
            13 => Self::Parts { fifth: true },
            14 => Self::Sixes,
            _ => return None,
        })
    }

    /// Values of a block.
    pub(super) fn len(self) -> usize {
        if matches!(self, Self::Nibbles { .. } | Self::Bytes) { 32 } else { LONGEST }
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Nibbles { least, fifth } => 18 + 2 * usize::from(least) + 4 * usize::from(fifth),
            Self::Bytes => 34,
            Self::Parts { fifth } => 144 + 32 * usize::from(fifth),
            Self::Sixes => 210,
        }
    }

    /// Whether something is added to a number times its scale.
    pub(super) fn has_least(self) -> bool {
        matches!(self, Self::Nibbles { least: true, .. } | Self::Parts { .. })
    }

    /// What numbers of [`Nibbles`](Self::Nibbles) lie around.
    fn middle(self) -> f32 {
        match self {
            Self::Nibbles { least: false, fifth: false } => 8.0,
            Self::Nibbles { least: false, fifth: true } => 16.0,
            _ => 0.0,
        }
    }
}

/// Byte `at`.
#[cube]
pub(super) fn byte<W: Numeric>(codes: &Tensor<W>, at: usize) -> u32 {
    (u32::cast_from(codes[at / 4usize]) >> ((at % 4usize) as u32 * 8u32)) & 255u32
}

/// The whole number from -128 that a byte stands for.
#[cube]
pub(super) fn signed(byte: u32) -> f32 {
    f32::cast_from(byte) - select(byte > 127u32, 256.0f32, 0.0f32)
}

/// The finite f16 at byte `at`, of devices with and without that type.
#[cube]
fn half<W: Numeric>(codes: &Tensor<W>, at: usize) -> f32 {
    let bits = byte(codes, at) | (byte(codes, at + 1usize) << 8u32);
    let (exponent, fraction) = ((bits >> 10u32) & 31u32, bits & 1023u32);
    let small = f32::cast_from(fraction) * comptime!(2f32.powi(-24));
    let magnitude = select(exponent == 0u32, small, f32::reinterpret(((exponent + 112u32) << 23u32) | (fraction << 13u32)));
    select(bits > 32767u32, -magnitude, magnitude)
}

/// The 6 bits of part `part` of eight, from byte `at` on; those of the last four are in two places, half of them in byte `last + part % 4` from bit `shift` on.
#[cube]
fn six_bits<W: Numeric>(codes: &Tensor<W>, at: usize, last: usize, part: usize, #[comptime] shift: u32) -> f32 {
    let upper = byte(codes, at + part % 4usize);
    let lower = (byte(codes, last + part % 4usize) >> shift) & 15u32;
    f32::cast_from(select(part < 4usize, upper & 63u32, lower | ((upper >> 6u32) << 4u32)))
}

/// What number `i` of the block at byte `from` is multiplied by.
#[cube]
pub(super) fn scale<W: Numeric>(codes: &Tensor<W>, from: usize, i: usize, #[comptime] layout: Layout) -> f32 {
    if comptime!(matches!(layout, Layout::Parts { .. })) {
        half(codes, from) * six_bits(codes, from + 4usize, from + 12usize, i / 32usize, 0u32)
    } else if comptime!(layout == Layout::Sixes) {
        half(codes, from + 208usize) * signed(byte(codes, from + 192usize + i / 16usize))
    } else {
        half(codes, from)
    }
}

/// What is added then, where something is.
#[cube]
pub(super) fn least<W: Numeric>(codes: &Tensor<W>, from: usize, i: usize, #[comptime] layout: Layout) -> f32 {
    if comptime!(matches!(layout, Layout::Parts { .. })) {
        -(half(codes, from + 2usize) * six_bits(codes, from + 8usize, from + 12usize, i / 32usize, 4u32))
    } else {
        half(codes, from + 2usize)
    }
}

/// Number `i` of the block at byte `from`.
#[cube]
pub(super) fn number<W: Numeric>(codes: &Tensor<W>, from: usize, i: usize, #[comptime] layout: Layout) -> f32 {
    if comptime!(layout == Layout::Bytes) {
        signed(byte(codes, from + 2usize + i))
    } else if comptime!(layout == Layout::Sixes) {
        let (part, j) = (i / 128usize, i % 128usize);
        let lower = (byte(codes, from + part * 64usize + j % 64usize) >> ((j / 64usize) as u32 * 4u32)) & 15u32;
        let upper = (byte(codes, from + 128usize + part * 32usize + j % 32usize) >> ((j / 32usize) as u32 * 2u32)) & 3u32;
        f32::cast_from(lower | (upper << 4u32)) - 32.0f32
    } else if comptime!(matches!(layout, Layout::Parts { .. })) {
        let (part, j) = (i / 32usize, i % 32usize);
        let nibbles = from + comptime!(layout.bytes() - 128usize);
        let lower = (byte(codes, nibbles + part / 2usize * 32usize + j) >> ((part % 2usize) as u32 * 4u32)) & 15u32;
        let mut bits = lower;
        if comptime!(matches!(layout, Layout::Parts { fifth: true })) {
            bits |= ((byte(codes, from + 16usize + j) >> part as u32) & 1u32) << 4u32;
        }
        f32::cast_from(bits)
    } else {
        let nibbles = from + comptime!(layout.bytes() - 16usize);
        let mut bits = (byte(codes, nibbles + i % 16usize) >> ((i / 16usize) as u32 * 4u32)) & 15u32;
        if comptime!(matches!(layout, Layout::Nibbles { fifth: true, .. })) {
            bits |= ((byte(codes, nibbles - 4usize + i / 8usize) >> (i % 8usize) as u32) & 1u32) << 4u32;
        }
        f32::cast_from(bits) - comptime!(layout.middle())
    }
}
