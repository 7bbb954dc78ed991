//! The product of two matrices, and sums of such products.
//!
//! A task has some columns and some rows of the result. A block of the sum at a time, it packs its rows of the left-hand factor, which then
//! stay in the second-level cache, and tile by tile its columns of the right-hand one. Packing reads and writes a value once, and every row
//! or column of the task uses it, so of 512 rows it is a few percent (with AVX2 a fifth and more); in return any storage will do (by rows or by columns, f32 or bf16),
//! and nothing is kept beside the weights. Blocks of few bits are decoded once a task and block of the sum.
//!
//! Each element of the result is made by one task, as sums over blocks of [`BLOCK`] cells in order, whatever the number of threads.

#[cfg(test)]
mod packing_tests;
use std::ops::Range;

use rayon::prelude::*;

use super::dots;
use super::operand::{Term, round_to_f16};
use crate::cpu::machine::{
    FEWEST_ROWS, MOST_TILES, PACKING_COSTS, PRODUCT_BLOCK as BLOCK, PRODUCT_UNIT_RATE as UNIT_RATE, UNIT_PACKING_COSTS, machine,
};
use crate::cpu::scratch;
use crate::cpu::simd::{self, Form, Group, Starts, Tile, To};
use crate::tasks::task;

/// `out [rows, columns] = begin + Σ left right`, `out` by rows. It begins with one value for each column, or with nothing: all of it is overwritten.
///
/// Panics if a length does not fit.
pub(crate) fn multiply(terms: &[Term<'_>], columns: usize, begin: Option<&[f32]>, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    let rows = out.len() / columns;
    assert_eq!(rows * columns, out.len(), "length of a product of {columns} columns");
    for term in terms {
        term.left.check(rows, term.depth);
        term.right.check(columns, term.depth);
    }
    assert!(begin.is_none_or(|row| row.len() == columns), "length of the row that a product of {columns} columns is added to");
    if dots::applies(terms, rows) {
        return dots::dots(terms, columns, begin, out);
    }
    let forms = terms.iter().map(|term| term.level.form());
    let form = forms.max_by_key(|form| form.panel).unwrap_or_else(|| simd::level().form());
    let division = Division::new([rows, columns], form, rayon::current_num_threads());
    division.tasks(out, columns).into_par_iter().with_max_len(1).for_each(|part| part.run(terms, begin));
}

/// How a result is divided into tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Division {
    /// Rows of a task.
    rows: usize,
    /// Columns of a task.
    columns: usize,
}

impl Division {
    /// The division with the least estimated time to the end of the last task.
    pub(super) fn new([rows, columns]: [usize; 2], form: Form, threads: usize) -> Self {
        let (tiles, panels) = (columns.div_ceil(form.nr), rows.div_ceil(form.panel));
        // A task's rows of a block of the sum stay in half of the second-level cache while tile after tile of columns passes over them.
        let fewest = rows.div_ceil((machine().second.bytes / 2 / (BLOCK * size_of::<f32>())).max(FEWEST_ROWS));
        let parts = fewest..=rows.div_ceil(FEWEST_ROWS).clamp(fewest, fewest + 4 * threads);
        let most = MOST_TILES[usize::from(form.terms > 1)];
        let splits = parts.flat_map(|parts| (1..=tiles.min(most)).map(move |across| (panels.div_ceil(parts), across)));
        let time = |&(down, across): &(usize, usize)| {
            let task = Self::task(down, across, form);
            let rounds = (panels.div_ceil(down) * tiles.div_ceil(across)).div_ceil(threads);
            // The last term: smaller tasks suffer less from a thread that is interrupted.
            rounds as f64 * task + 0.2 * task
        };
        let best = splits.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or((panels, 1));
        Self { rows: best.0 * form.panel, columns: best.1 * form.nr }
    }

    /// The estimated time of a task, in products of one panel and one tile. A cell of pairs of bf16 is one multiply-add but two terms, which are packed; a unit multiplies
    /// at so many times the rate. It chooses tasks, and no order of a sum.
    fn task(down: usize, across: usize, form: Form) -> f64 {
        let [tile, panel] = match form.group {
            1 => {
                let [columns, rows] = PACKING_COSTS;
                [columns / form.panel as f64, rows / form.nr as f64].map(|products| products * form.terms as f64)
            }
            _ => UNIT_PACKING_COSTS.map(|products| products * UNIT_RATE),
        };
        (down * across) as f64 + tile * across as f64 + panel * down as f64
    }

    /// How many tasks that makes of a result.
    #[cfg(test)]
    pub(super) fn count(self, [rows, columns]: [usize; 2]) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }

    /// Cuts the result into the tasks' parts, those of the same columns next to each other.
    fn tasks(self, out: &mut [f32], columns: usize) -> Vec<Part<'_>> {
        let rows = out.len() / columns;
        let (down, across) = (rows.div_ceil(self.rows), columns.div_ceil(self.columns));
        let part = |i: usize| {
            let first = i / down * self.columns;
            Part { row: i % down * self.rows, columns: first..columns.min(first + self.columns), out: Vec::with_capacity(self.rows) }
        };
        let mut parts: Vec<Part<'_>> = (0..down * across).map(part).collect();
        for (i, line) in out.chunks_exact_mut(columns).enumerate() {
            for (j, piece) in line.chunks_mut(self.columns).enumerate() {
                parts[j * down + i / self.rows].out.push(piece);
            }
        }
        parts
    }
}

/// Some rows and columns of the result.
struct Part<'a> {
    row: usize,
    columns: Range<usize>,
    out: Vec<&'a mut [f32]>,
}

impl Part<'_> {
    fn run(mut self, terms: &[Term<'_>], begin: Option<&[f32]>) {
        let mut accumulate = begin.is_some();
        if let Some(row) = begin {
            self.out.iter_mut().for_each(|out| out.copy_from_slice(&row[self.columns.clone()]));
        }
        for term in terms.iter().filter(|term| term.depth > 0) {
            share(term.level, &mut self, term, accumulate);
            accumulate = true;
        }
        if !accumulate {
            self.out.iter_mut().for_each(|out| out.fill(0.0));
        }
    }
}

task! {
    /// One term's share in a part.
    fn share<S, 'b>(s, part: &'a mut Part<'b>, term: &'a Term<'a>, accumulate: bool) {
        let Term { left, right, depth, in_f16, split, .. } = *term;
        let halves = left.parts();
        let lefts = if split { &halves[..] } else { std::slice::from_ref(&left) };
        let Part { row: top, columns, out } = part;
        let block = BLOCK.min(depth.div_ceil(S::TERMS)).next_multiple_of(S::GROUP);
        // The last vector of a panel reaches into the next one, and that of the last panel behind it.
        let size = out.len().next_multiple_of(S::PANEL) * block;
        let mut panels = scratch::take(lefts.len() * size + S::LANES);
        let mut tile = scratch::take(S::NR.min(columns.len().next_multiple_of(S::LANES)) * block);
        let mut decoded = scratch::take(if right.is_coded() { columns.len() * depth.min(BLOCK * S::TERMS) } else { 0 });
        let block_of = |start: usize| start..depth.min(start + BLOCK * S::TERMS);
        let mut unit = s.unit(S::GROUP, S::GROUP);
        let tile_of = |at: usize| columns.start + at..columns.end.min(columns.start + at + S::NR);
        for start in (0..depth).step_by(BLOCK * S::TERMS) {
            let terms = block_of(start);
            let cells = terms.len().div_ceil(S::TERMS);
            let length = cells.next_multiple_of(S::GROUP);
            for (part, left) in lefts.iter().enumerate() {
                for i in (0..out.len()).step_by(S::PANEL) {
                    let rows = *top + i..*top + out.len().min(i + S::PANEL);
                    left.pack_panel(s, terms.clone(), rows, length, &mut panels[part * size + i * length..]);
                }
            }
            if in_f16 {
                round_to_f16(&mut panels[..out.len().next_multiple_of(S::PANEL) * length]);
            }
            // What of the right-hand factor is packed, and where in it the terms and the columns begin.
            let (source, term, first) = match right.is_coded() {
                true => (right.decode(s, terms.clone(), columns.clone(), &mut decoded), 0, columns.start),
                false => (right, terms.start, 0),
            };
            for at in (0..columns.len()).step_by(S::NR) {
                let lines = tile_of(at);
                let cols = lines.len();
                let width = cols.next_multiple_of(S::LANES);
                source.pack(s, term..term + terms.len(), lines.start - first..lines.end - first, width, &mut tile);
                tile[cells * width..length * width].fill(0.0);
                if in_f16 {
                    round_to_f16(&mut tile[..cells * width]);
                }
                // What is packed next comes closer while this is multiplied.
                let (next, behind) = if at + S::NR < columns.len() { (terms.clone(), at + S::NR) } else { (block_of(terms.end), 0) };
                let (accumulate, parts) = (accumulate || start > 0, out.len().div_ceil(S::PANEL));
                for (i, c) in out.chunks_mut(S::PANEL).enumerate() {
                    right.prefetch(s, next.clone(), tile_of(behind), i, parts);
                    for part in 0..lefts.len() {
                        let a = &panels[part * size + i * S::PANEL * length..][..S::PANEL * length];
                        let (group, starts) = (Group { size: S::GROUP, apart: width }, Starts::Dense(length / S::GROUP));
                        let (rows, accumulate, to) = (c.len(), accumulate || part > 0, To::Rows(c, at));
                        let t = Tile { a, panel: S::MR * length, group, b: &tile, starts, c: to, rows, cols, accumulate, prefetch: false };
                        s.tile(&mut unit, t);
                    }
                }
            }
        }
    }
}
