//! A few rows against a stored weight: as many dot products as it has lines, each read once, as fast as memory gives them.

use rayon::prelude::*;

use super::operand::Term;
use crate::cpu::machine::DOTS;
use crate::cpu::scratch;
use crate::cpu::simd::MAX_LANES;
use crate::tasks::task;

/// Most rows for which a weight is not worth packing.
pub(super) const ROWS: usize = 4;

/// Whether there are few rows, and all factors are stored by lines and multiplied as they are.
pub(super) fn applies(terms: &[Term<'_>], rows: usize) -> bool {
    let by_lines = |term: &Term<'_>| term.left.line(0).is_some() && term.right.line(0).is_some();
    rows <= ROWS && terms.iter().all(|term| !term.in_f16 && term.level.form().terms == 1 && by_lines(term))
}

/// As [`multiply`](super::multiply), of terms for which it [`applies`].
pub(super) fn dots(terms: &[Term<'_>], columns: usize, begin: Option<&[f32]>, out: &mut [f32]) {
    let rows = out.len() / columns;
    let mut parts: Vec<Vec<&mut [f32]>> = (0..columns.div_ceil(DOTS)).map(|_| Vec::with_capacity(rows)).collect();
    for line in out.chunks_exact_mut(columns) {
        line.chunks_mut(DOTS).zip(&mut parts).for_each(|(piece, part)| part.push(piece));
    }
    parts.into_par_iter().enumerate().for_each(|(i, mut out)| {
        let first = i * DOTS;
        for out in &mut out {
            match begin {
                None => out.fill(0.0),
                Some(row) => out.copy_from_slice(&row[first..first + out.len()]),
            }
        }
        for term in terms {
            share(term.level, term, first, &mut out);
        }
    });
}

task! {
    /// One term's share in the columns from `first` on.
    fn share<S, 'b>(s, term: &'a Term<'a>, first: usize, out: &'a mut [&'b mut [f32]]) {
        let Term { left, right, depth, .. } = *term;
        let mut decoded = scratch::take(if right.is_coded() { depth } else { 0 });
        for j in 0..out[0].len() {
            let line = first + j;
            let coded = right.is_coded().then(|| right.decode(s, 0..depth, line..line + 1, &mut decoded));
            let Some((weight, begin)) = coded.map_or_else(|| right.line(line), |line| line.line(0)) else { continue };
            for (i, out) in out.iter_mut().enumerate() {
                let Some((x, start)) = left.line(i) else { continue };
                // Four chains, so that the additions do not wait for each other.
                let mut sums = [s.zero(); 4];
                for k in (0..depth).step_by(S::LANES) {
                    let n = S::LANES.min(depth - k);
                    let sum = &mut sums[k / S::LANES % 4];
                    *sum = s.mul_add(x.load(s, start + k, n), weight.load(s, begin + k, n), *sum);
                }
                let mut lanes = [0.0; MAX_LANES];
                s.store(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])), &mut lanes);
                out[j] += lanes[..S::LANES].iter().sum::<f32>();
            }
        }
    }
}
