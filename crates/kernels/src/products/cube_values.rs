//! Values of a stored matrix on CubeCL devices, a few neighbours at a time.

use cubecl::prelude::*;

use super::Form;
use super::cube_file::{Layout, byte, least, number, scale, signed};
use super::nf4::{BLOCK, GROUP, LEVELS};

/// Values taken at once, where rows are whole eights of them: those of a block share its scale.
pub(super) const EACH: usize = 8;

/// How a matrix is stored, as a kernel takes it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Storage {
    /// Number by number.
    Plain,
    /// Two to a word: the upper half of an f32 is a bf16.
    Bf16,
    /// [`int8`](super::int8): four to a word.
    Int8,
    /// [`nf4`](super::nf4): eight to a word, the higher half of a byte first.
    Nf4,
    /// Blocks of a file.
    File(Layout),
}

impl Storage {
    /// That of such blocks.
    pub(super) fn of(form: Form) -> Self {
        match form {
            Form::Bf16 => Self::Bf16,
            Form::Int8 => Self::Int8,
            Form::Nf4 => Self::Nf4,
            Form::File(coding) => Self::File(coding.layout),
        }
    }

    /// Numbers of the codes and of the scales of such a matrix that are read.
    pub(super) fn reach(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        let count = rows * columns;
        match self {
            Self::Plain => [count, 0],
            Self::Bf16 => [count.div_ceil(2), 0],
            Self::Int8 => [count.div_ceil(4), rows],
            Self::Nf4 => {
                let blocks = count.div_ceil(BLOCK);
                [count.div_ceil(8) + blocks.div_ceil(4), blocks.div_ceil(GROUP) + 1 + LEVELS.len() + 256]
            }
            Self::File(layout) => [(count / layout.len() * layout.bytes()).div_ceil(4), 0],
        }
    }

    fn layout(self) -> Layout {
        if let Self::File(layout) = self { layout } else { Layout::Bytes }
    }
}

/// `each` values of a matrix of `count` from number `at` on: 1, or [`EACH`] where `at` and the width of its rows, `columns`, are multiples of that.
#[cube]
pub(super) fn values<W: Numeric>(
    codes: &Tensor<W>,
    scales: &Tensor<f32>,
    at: usize,
    count: usize,
    columns: usize,
    #[comptime] each: usize,
    #[comptime] storage: Storage,
) -> Array<f32> {
    let mut values = Array::<f32>::new(each);
    if comptime!(matches!(storage, Storage::File(_))) {
        let layout = comptime!(storage.layout());
        let (from, within) = (at / comptime!(layout.len()) * comptime!(layout.bytes()), at % comptime!(layout.len()));
        let scale = scale::<W>(codes, from, within, layout);
        if comptime!(layout.has_least()) {
            let least = least::<W>(codes, from, within, layout);
            #[unroll]
            for i in 0..each {
                values[i] = scale * number::<W>(codes, from, within + i, layout) + least;
            }
        } else {
            #[unroll]
            for i in 0..each {
                values[i] = scale * number::<W>(codes, from, within + i, layout);
            }
        }
    } else if comptime!(storage == Storage::Nf4) {
        // Codes of levels, then of magnitudes; scales, their mean, the levels, the magnitudes.
        let block = at / comptime!(BLOCK);
        let mean = count.div_ceil(comptime!(BLOCK)).div_ceil(comptime!(GROUP));
        let levels = mean + 1usize;
        let code = byte::<W>(codes, count.div_ceil(8usize) * 4usize + block);
        let magnitude = scales[levels + comptime!(LEVELS.len()) + code as usize] * scales[block / comptime!(GROUP)] + scales[mean];
        let word = u32::cast_from(codes[at / 8usize]);
        #[unroll]
        for i in 0..each {
            let place = if comptime!(each == 1) { (at % 8usize) as u32 } else { (i as u32).runtime() };
            let level = (word >> (place / 2u32 * 8u32 + (1u32 - place % 2u32) * 4u32)) & 15u32;
            values[i] = scales[levels + level as usize] * magnitude;
        }
    } else if comptime!(storage == Storage::Int8) {
        let scale = scales[at / columns];
        #[unroll]
        for i in 0..each {
            values[i] = scale * signed(byte::<W>(codes, at + i));
        }
    } else {
        #[unroll]
        for i in 0..each {
            let at = at + i;
            values[i] = if comptime!(storage == Storage::Bf16) {
                f32::reinterpret((u32::cast_from(codes[at / 2usize]) >> ((at % 2usize) as u32 * 16u32)) << 16u32)
            } else {
                f32::cast_from(codes[at])
            };
        }
    }
    values
}
