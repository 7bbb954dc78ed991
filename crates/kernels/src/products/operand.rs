//! Sums of products, and the factors of each: where their values lie, and how they are packed.
//!
//! A factor is so many *lines* of so many *terms*: the rows of the left-hand one, the columns of the right-hand one, each of which meets
//! another line in a sum over their terms. Stored by lines, the terms of a line are neighbours; stored by terms, the lines are.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::packed::Packed;
use crate::cpu::Precision;
use crate::cpu::simd::{self, Level, MAX_LANES, Simd};
use crate::tasks::task;

/// One product of a sum: `left [rows, depth] right [depth, columns]`.
#[derive(Clone, Copy)]
pub(crate) struct Term<'a> {
    pub left: Operand<'a>,
    pub right: Operand<'a>,
    pub depth: usize,
    /// How its factors are multiplied.
    pub level: Level,
    /// Whether they are rounded to f16 before. (At a level of f32.)
    pub in_f16: bool,
    /// Whether the left-hand one, of f32s, is two bf16 parts whose products are added. (At a level of bf16.)
    pub split: bool,
}

impl<'a> Term<'a> {
    /// With its factors multiplied in `precision`, as far as the processor can.
    pub(crate) fn new(left: Operand<'a>, right: Operand<'a>, depth: usize, precision: Precision) -> Self {
        let level = simd::level().of(precision);
        let in_f16 = matches!(precision, Precision::F16 | Precision::PureF16);
        Self { left, right, depth, level, in_f16, split: precision == Precision::Bf16x2 && level.form().terms == 2 }
    }
}

/// To the nearest f16s.
pub(super) fn round_to_f16(values: &mut [f32]) {
    let mut halves = [f16::ZERO; 256];
    for values in values.chunks_mut(256) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        halves.convert_to_f32_slice(values);
    }
}

/// Values as they are stored.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    Packed(Packed<'a>),
}

impl Stored<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Packed(values) => values.len(),
        }
    }

    /// Those from `at` on, within a task.
    #[inline(always)]
    fn decode_in<S: Simd>(&self, s: S, at: usize, out: &mut [f32]) {
        match self {
            Self::F32(values) => out.copy_from_slice(&values[at..at + out.len()]),
            Self::Bf16(values) => values[at..at + out.len()].convert_to_f32_slice(out),
            Self::F16(values) => values[at..at + out.len()].convert_to_f32_slice(out),
            Self::Packed(values) => values.decode(s, at, out),
        }
    }

    /// The `n <= LANES` values from `at` on, then zeros.
    #[inline(always)]
    pub(super) fn load<S: Simd>(&self, s: S, at: usize, n: usize) -> S::V {
        match self {
            Self::F32(values) if n == S::LANES => s.load(&values[at..]),
            Self::F32(values) => s.load_part(&values[at..at + n], n),
            Self::Bf16(values) => s.load_bf16(&values[at..at + n], n),
            // These are decoded before they are read one vector at a time, so this need not be fast.
            Self::F16(_) | Self::Packed(_) => {
                let mut lanes = [0.0; MAX_LANES];
                decode(Level::Portable, *self, at, &mut lanes[..n]);
                s.load(&lanes)
            }
        }
    }
}

task! {
    /// Stored values from `at` on.
    pub(super) fn decode<S>(s, values: Stored<'a>, at: usize, out: &'a mut [f32]) {
        values.decode_in(s, at, out);
    }
}

/// What of its values a factor is made of.
#[derive(Clone, Copy)]
enum Part {
    All,
    /// What fits a bf16.
    High,
    /// What is left then.
    Rest,
}

/// A factor.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    values: Stored<'a>,
    part: Part,
    /// Distance of its lines, if it is stored by lines, else of its terms.
    stride: usize,
    by_lines: bool,
}

impl<'a> Operand<'a> {
    /// Lines of `terms` terms one after the other: x `[N, terms]` on the left, a weight `[out, terms]` on the right.
    pub(crate) fn lines(values: Stored<'a>, terms: usize) -> Self {
        Self { values, part: Part::All, stride: terms, by_lines: true }
    }

    /// The first terms of all of `lines` lines, the second ones, and so on.
    pub(crate) fn terms(values: Stored<'a>, lines: usize) -> Self {
        Self { values, part: Part::All, stride: lines, by_lines: false }
    }

    /// Its two parts, of values in f32 and for cells of bf16.
    pub(super) fn parts(self) -> [Self; 2] {
        [Self { part: Part::High, ..self }, Self { part: Part::Rest, ..self }]
    }

    /// The `n <= LANES` values from `at` on, then zeros, or a part of each.
    #[inline(always)]
    fn load<S: Simd>(&self, s: S, at: usize, n: usize) -> S::V {
        let v = self.values.load(s, at, n);
        match self.part {
            Part::All => v,
            Part::High => s.high(v),
            Part::Rest => s.rest(v),
        }
    }

    /// Where the terms of a line begin, where they are neighbours.
    pub(super) fn line(&self, i: usize) -> Option<(Stored<'a>, usize)> {
        self.by_lines.then_some((self.values, i * self.stride))
    }

    /// Panics unless it has so many lines and terms.
    pub(super) fn check(&self, lines: usize, terms: usize) {
        let (rows, width) = if self.by_lines { (lines, terms) } else { (terms, lines) };
        let needed = if rows == 0 || width == 0 { 0 } else { (rows - 1) * self.stride + width };
        assert!(needed <= self.values.len(), "a factor of {} values is not {lines} lines of {terms} terms", self.values.len());
    }

    /// Whether its values cost something to get at, so that they are better decoded some at a time than one vector at a time.
    pub(super) fn is_coded(&self) -> bool {
        matches!(self.values, Stored::F16(_) | Stored::Packed(_))
    }

    /// A part of it in f32, which is written to `out`: the terms `terms` of the lines `lines`, each counted from 0 then.
    #[inline(always)]
    pub(super) fn decode<'b, S: Simd>(&self, s: S, terms: Range<usize>, lines: Range<usize>, out: &'b mut [f32]) -> Operand<'b> {
        let (rows, within) = if self.by_lines { (lines, terms) } else { (terms, lines) };
        let (out, width) = (&mut out[..rows.len() * within.len()], within.len());
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            self.values.decode_in(s, row * self.stride + within.start, out);
        }
        Operand { values: Stored::F32(out), part: self.part, stride: width, by_lines: self.by_lines }
    }

    /// Packs the cells of the terms `terms` of some lines as `[cell][width]`, line i in column i. The lines of the last vector that do not
    /// exist, and the second term of a last cell that has one, are zero.
    ///
    /// Of a `width` that is not whole vectors the last vector of a row reaches into the next row, which is written after it: `out` must have
    /// room for that behind its last row.
    #[inline(always)]
    pub(crate) fn pack<S: Simd>(&self, s: S, terms: Range<usize>, lines: Range<usize>, width: usize, out: &mut [f32]) {
        if self.by_lines {
            for first in lines.clone().step_by(S::LANES) {
                let (count, out) = (S::LANES.min(lines.end - first), &mut out[first - lines.start..]);
                self.pack_lines(s, terms.clone(), first, count, width, out);
            }
            return;
        }
        // Row by row, since each is in a page of its own.
        if let (1, Stored::F32(values)) = (S::TERMS, self.values) {
            for (cell, term) in terms.enumerate() {
                let (row, out) = (&values[term * self.stride + lines.start..][..lines.len()], &mut out[cell * width..]);
                for (i, values) in row.chunks(S::LANES).enumerate() {
                    s.store(s.read(values), &mut out[i * S::LANES..]);
                }
            }
            return;
        }
        for (cell, term) in terms.clone().step_by(S::TERMS).enumerate() {
            let out = &mut out[cell * width..];
            for (i, first) in lines.clone().step_by(S::LANES).enumerate() {
                let count = S::LANES.min(lines.end - first);
                s.store(self.cells(s, term, terms.end, first, count), &mut out[i * S::LANES..]);
            }
        }
    }

    /// Packs the cells of the terms `terms` of some lines for the left-hand side of [`Simd::tile`], up to [`Simd::PANEL`] of them: `length` cells a
    /// line, zeros behind the last.
    #[inline(always)]
    pub(crate) fn pack_panel<S: Simd>(&self, s: S, terms: Range<usize>, lines: Range<usize>, length: usize, out: &mut [f32]) {
        if S::GROUP == 1 {
            return self.pack(s, terms, lines, S::PANEL, out);
        }
        // A unit's groups are as long as its vectors.
        for (i, line) in lines.enumerate() {
            let panel = &mut out[i / S::MR * S::MR * length..];
            for (group, cell) in (0..length).step_by(S::LANES).enumerate() {
                let term = (terms.start + cell * S::TERMS).min(terms.end);
                let cells = self.line_cells(s, line, term..terms.end.min(term + S::TERMS * S::LANES));
                s.store(cells, &mut panel[(group * S::MR + i % S::MR) * S::LANES..]);
            }
        }
    }

    /// Up to a vector of cells of one line, then zeros.
    #[inline(always)]
    fn line_cells<S: Simd>(&self, s: S, line: usize, terms: Range<usize>) -> S::V {
        let (at, n) = (line * self.stride + terms.start, terms.len());
        if !self.by_lines {
            let mut values = [0.0; 2 * MAX_LANES];
            for (value, term) in values.iter_mut().zip(terms) {
                let mut lane = [0.0; MAX_LANES];
                s.store(self.load(s, term * self.stride + line, 1), &mut lane);
                *value = lane[0];
            }
            return if S::TERMS == 1 { s.load(&values) } else { s.neighbours(s.load(&values), s.load(&values[S::LANES..])) };
        }
        if S::TERMS == 1 {
            return self.load(s, at, n);
        }
        let rest = n.saturating_sub(S::LANES);
        let high = if rest > 0 { self.load(s, at + S::LANES, rest) } else { s.zero() };
        s.neighbours(self.load(s, at, n.min(S::LANES)), high)
    }

    /// The cells of some lines from `term` on, stored by terms.
    #[inline(always)]
    fn cells<S: Simd>(&self, s: S, term: usize, end: usize, first: usize, count: usize) -> S::V {
        let (at, next) = (term * self.stride + first, (term + 1) * self.stride + first);
        match self.values {
            _ if S::TERMS == 1 => self.load(s, at, count),
            Stored::Bf16(values) if term + 1 < end => s.cell_bf16(&values[at..], &values[next..], count),
            _ if term + 1 < end => s.cell(self.load(s, at, count), self.load(s, next, count)),
            _ => s.cell(self.load(s, at, count), s.zero()),
        }
    }

    /// Asks for a share of what [`pack`](Self::pack) will read, the `part`-th of `parts`, in the second-level cache. Rows as short as a block of a
    /// sum are over before a processor foresees their end.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, s: S, terms: Range<usize>, lines: Range<usize>, part: usize, parts: usize) {
        let (rows, within) = if self.by_lines { (lines, terms) } else { (terms, lines) };
        let share = |i: usize| rows.start + rows.len() * i / parts;
        for row in share(part)..share(part + 1) {
            let at = row * self.stride;
            match self.values {
                Stored::F32(values) => s.prefetch(&values[at + within.start..at + within.end], false),
                Stored::Bf16(values) => s.prefetch(&values[at + within.start..at + within.end], false),
                // These are decoded before they are packed.
                Stored::F16(_) | Stored::Packed(_) => {}
            }
        }
    }

    /// The values from `at` on as cells, where some terms of a line are so already: f32s, or an even number of bf16s of which each two are one.
    #[inline(always)]
    fn as_cells<S: Simd>(&self, at: usize, terms: usize) -> Option<&'a [f32]> {
        match (S::TERMS, self.values) {
            (1, Stored::F32(values)) => Some(&values[at..]),
            (2, Stored::Bf16(values)) if cfg!(target_endian = "little") && (self.stride % 2, terms % 2) == (0, 0) => {
                let (pairs, _) = values[at..].as_chunks::<2>();
                bytemuck::try_cast_slice(pairs).ok()
            }
            _ => None,
        }
    }

    /// One vector of lines that are stored as such: square by square.
    #[inline(always)]
    fn pack_lines<S: Simd>(&self, s: S, terms: Range<usize>, first: usize, count: usize, width: usize, out: &mut [f32]) {
        const CELLS: usize = 2 * MAX_LANES;
        if let Some(cells) = self.as_cells::<S>(first * self.stride + terms.start, terms.len()) {
            return transpose(s, (cells, self.stride / S::TERMS), terms.len() / S::TERMS, count, width, out);
        }
        let mut rows = [0.0; CELLS * MAX_LANES];
        for (block, term) in terms.clone().step_by(S::TERMS * CELLS).enumerate() {
            let end = terms.end.min(term + S::TERMS * CELLS);
            for (i, row) in rows.chunks_exact_mut(CELLS).take(count).enumerate() {
                for (row, from) in row.chunks_exact_mut(S::LANES).zip((term..end).step_by(S::TERMS * S::LANES)) {
                    s.store(self.line_cells(s, first + i, from..end.min(from + S::TERMS * S::LANES)), row);
                }
            }
            transpose(s, (&rows, CELLS), (end - term).div_ceil(S::TERMS), count, width, &mut out[block * CELLS * width..]);
        }
    }
}

/// The first `cells` columns of `count` rows as rows of `width`, square by square, and of half a vector two squares at a time. The rows lie in a slice, so
/// far apart.
#[inline(always)]
fn transpose<S: Simd>(s: S, (rows, stride): (&[f32], usize), cells: usize, count: usize, width: usize, out: &mut [f32]) {
    let mut at = 0;
    if (count, width) == (S::LANES / 2, S::LANES / 2) {
        while at + 2 * S::LANES <= cells {
            s.transpose_half(&rows[at..], stride, &mut out[at * width..]);
            at += 2 * S::LANES;
        }
    }
    while at < cells {
        s.transpose(&rows[at..], stride, count, S::LANES.min(cells - at), &mut out[at * width..], width);
        at += S::LANES;
    }
}
