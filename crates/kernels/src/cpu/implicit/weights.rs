//! Weights, packed into panels.

use super::super::machine::WAKING;
use super::super::scratch::Buffer;
use super::super::simd::{Form, Level, MAX_LANES, Simd};
use super::product::Product;
use super::view::Tap;
use crate::tasks::task;
use rayon::prelude::*;

/// The product's weights for sources of any number and size of images: for each phase panels `[m / MR][r / TERMS / group][tap of the
/// phase][MR][group]` of cells, m being the output channel and r the one summed over. Missing rows are zero.
pub fn packed(level: Level, product: &Product<'_>, room: fn(usize) -> Buffer) -> Buffer {
    let Form { lanes, mr, group: most, .. } = level.form();
    let (cells, group) = product.cells(level);
    let mut packed = room(product.taps() * product.tap_len(level));
    let mut rest = &mut packed[..];
    let phases = product.phases.iter().map(|taps| {
        let (panels, behind) = std::mem::take(&mut rest).split_at_mut(taps.len() * product.tap_len(level));
        rest = behind;
        (&taps[..], panels)
    });
    if most > 1 {
        for (taps, panels) in phases {
            let panels = panels.chunks_mut((cells * taps.len() * mr).max(1)).enumerate().collect();
            share(panels, product.w.len(), |(i, panel)| grouped_panel(level, product, group, taps, i * mr, panel));
        }
    } else {
        let mut tasks: Vec<_> = (0..product.outputs).step_by(lanes).map(|first| (first, Vec::new())).collect();
        for (taps, panels) in phases {
            let panels = panels.chunks_mut((cells * taps.len() * lanes).max(1));
            panels.zip(&mut tasks).for_each(|(panels, (_, phases))| phases.push((taps, panels)));
        }
        share(tasks, product.w.len(), |(first, mut phases)| columns(level, product, first, &mut phases));
    }
    packed
}

/// Does `work` for each task, on this thread alone where all of them have few values.
pub fn share<T: Send>(tasks: Vec<T>, values: usize, work: impl Fn(T) + Send + Sync) {
    if values < WAKING {
        tasks.into_iter().for_each(work);
    } else {
        tasks.into_par_iter().with_max_len(1).for_each(work);
    }
}

task! {
    /// A panel of one phase, from output channel `first` on, for a unit that reads groups of rows.
    fn grouped_panel<S>(s, product: &'a Product<'a>, group: usize, taps: &'a [Tap], first: usize, panel: &'a mut [f32]) {
        let inputs = product.source.channels;
        let [stride_m, stride_r] = product.strides();
        let rows = S::MR.min(product.outputs - first);
        for (g, panel) in panel.chunks_exact_mut(taps.len() * S::MR * group).enumerate() {
            // Terms of this group, two to a cell.
            let terms = g * S::TERMS * group..inputs.min((g + 1) * S::TERMS * group);
            for (tap, block) in taps.iter().zip(panel.chunks_exact_mut(S::MR * group)) {
                for (i, cells) in block.chunks_exact_mut(group).enumerate() {
                    let mut halves = [[0.0; MAX_LANES]; 2];
                    if i < rows {
                        let row = &product.w[(first + i) * stride_m + tap.weight..];
                        for (k, r) in terms.clone().enumerate() {
                            halves[k % S::TERMS][k / S::TERMS] = row[r * stride_r];
                        }
                    }
                    s.store_part(s.cell(s.load(&halves[0]), s.load(&halves[1])), cells, group);
                }
            }
        }
    }

    /// `LANES` output channels in all phases: the taps of each, and its panels, the last channels' cut to whole panels that exist.
    fn columns<S, 'b>(s, product: &'a Product<'a>, first: usize, phases: &'a mut [(&'b [Tap], &'b mut [f32])]) {
        let (inputs, taps) = (product.source.channels, product.taps());
        let rows = S::LANES.min(product.outputs - first);
        let [stride_m, stride_r] = product.strides();
        let values = &product.w[first * stride_m..];
        let mut block = [0.0; MAX_LANES * MAX_LANES];
        if !product.transposed {
            // (r, t) is contiguous and, of the one phase, already in the order of the panel.
            for k in (0..stride_m).step_by(S::LANES) {
                let cols = S::LANES.min(stride_m - k);
                s.transpose(&values[k..], stride_m, rows, cols, &mut block, S::LANES);
                for c in 0..cols {
                    scatter(s, &block[c * S::LANES..], &mut *phases[0].1, [inputs, taps], [(k + c) / taps, (k + c) % taps]);
                }
            }
            return;
        }
        for r in 0..inputs {
            let values = &values[r * stride_r..];
            for t in (0..taps).step_by(S::LANES) {
                let cols = S::LANES.min(taps - t);
                if taps == 1 {
                    block[..rows].copy_from_slice(&values[..rows]);
                } else {
                    s.transpose(&values[t..], taps, rows, cols, &mut block, S::LANES);
                }
                for (phase, panels) in phases.iter_mut() {
                    for (i, tap) in phase.iter().enumerate() {
                        if (t..t + cols).contains(&tap.weight) {
                            scatter(s, &block[(tap.weight - t) * S::LANES..], panels, [inputs, phase.len()], [r, i]);
                        }
                    }
                }
            }
        }
    }
}

/// Writes `LANES` rows' weights of input `r` and tap `t` into their panels of `MR` rows, for all inputs and taps.
#[inline(always)]
fn scatter<S: Simd>(s: S, column: &[f32], panels: &mut [f32], [inputs, taps]: [usize; 2], [r, t]: [usize; 2]) {
    let depth = inputs.div_ceil(S::TERMS) * taps;
    let mut at = (r / S::TERMS * taps + t) * S::MR;
    for part in column[..S::LANES].chunks_exact(S::MR) {
        if at < panels.len() {
            let cells = &mut panels[at..at + S::MR];
            if S::TERMS == 1 {
                cells.copy_from_slice(part);
            } else {
                // The first term waits in its cell, as it is, for the second.
                let term = s.load_part(part, S::MR);
                let complete = match r % 2 {
                    0 if r + 1 < inputs => term,
                    0 => s.cell(term, s.zero()),
                    _ => s.cell(s.load_part(cells, S::MR), term),
                };
                s.store_part(complete, cells, S::MR);
            }
        }
        at += depth * S::MR;
    }
}
