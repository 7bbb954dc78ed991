//! Values in blocks of few bits, and how to get at some of them.

use super::cube_file::{LONGEST, Layout};
use super::{int8, nf4};
use crate::cpu::simd::Simd;

/// How blocks stand for values.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// The upper halves of f32s: two bytes a value, the lower first.
    Bf16,
    /// A scale a row (`int8`).
    Int8,
    /// 4-bit levels in blocks of 64 (`nf4`).
    Nf4,
    /// Blocks of a file.
    File(Coding),
}

/// Blocks of a file: a whole number of them a row, each on its own.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    pub(super) layout: Layout,
    /// Some blocks, and the values they stand for.
    decode: fn(&[u8], &mut [f32]),
}

impl Coding {
    /// That of the type with ggml's number `id`, of whose blocks `decode` makes values; `None` of one that is in no blocks, or unknown.
    pub fn of_ggml(id: u32, decode: fn(&[u8], &mut [f32])) -> Option<Self> {
        Some(Self { layout: Layout::of_ggml(id)?, decode })
    }

    /// The values from `at` on. A block of which not all are asked for is decoded beside.
    fn decode(&self, blocks: &[u8], at: usize, out: &mut [f32]) {
        let (len, bytes, decode) = (self.layout.len(), self.layout.bytes(), self.decode);
        let block = |i: usize, count: usize| &blocks[i * bytes..(i + count) * bytes];
        let mut beside = [0.0; LONGEST];
        let mut done = 0;
        while done < out.len() {
            let (first, left) = (at + done, out.len() - done);
            let (i, within) = (first / len, first % len);
            let whole_blocks = within == 0 && left >= len;
            let count = if whole_blocks { left / len * len } else { (len - within).min(left) };
            let out = &mut out[done..done + count];
            if whole_blocks {
                decode(block(i, count / len), out);
            } else {
                decode(block(i, 1), &mut beside[..len]);
                out.copy_from_slice(&beside[within..within + count]);
            }
            done += count;
        }
    }
}

/// A matrix in blocks.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [f32],
    pub(super) form: Form,
    /// `[rows, columns]`.
    pub(super) shape: [usize; 2],
}

impl Packed<'_> {
    pub(super) fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// The values from `at` on, row by row.
    #[inline(always)]
    pub(super) fn decode<S: Simd>(&self, s: S, at: usize, out: &mut [f32]) {
        match self.form {
            Form::Bf16 => {
                let halves = self.codes.as_chunks::<2>().0[at..].iter();
                out.iter_mut().zip(halves).for_each(|(v, &half)| *v = f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16));
            }
            Form::Int8 => int8::decode(self.codes, self.scales, self.shape[1], at, out),
            Form::Nf4 => nf4::decode(s, self.codes, self.scales, self.len(), at, out),
            Form::File(coding) => coding.decode(self.codes, at, out),
        }
    }
}
