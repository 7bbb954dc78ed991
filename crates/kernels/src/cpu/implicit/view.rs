//! How a convolution reads its source: which rows and columns, packed how, and where each tap then starts.
//!
//! Output `(i, j)` reads, at tap `t`, the source cell `(i * step + t.row, j * step + t.col)`. The forward pass has the convolution's
//! stride as its step and one list of taps; the gradient of the input reads the output's gradient with step 1 and has one list for
//! each residue of the pixel modulo the stride, so no multiplication by a hole is ever done.
//!
//! A strip of output rows is packed so that every tap of every channel is one contiguous run over the strip's outputs. Rows go to
//! `step` planes by their residue. Columns are arranged in one of two ways:
//!
//! * shared: `step` planes, rows of `pitch` cells where one zero column serves as the right padding of a row and the left padding of
//!   the next. The outputs form one run in which `pitch - columns` cells of each row are junk (one of 21 in a 20-wide layer);
//! * expanded: one plane for each distinct column shift. No junk, more to pack: worth it where many output channels share the packing.
//!
//! A 1x1 convolution of stride 1 needs no packing where cells are the values themselves and lie well in the caches; packed or not, its source
//! is an image one cell wide.

use std::ops::Range;

use super::super::machine::EXPAND_GAIN;
use super::super::shape::ConvShape;

/// Where a tap reads relative to output (0, 0), in source cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    pub row: isize,
    pub col: isize,
    /// The kernel cell it multiplies by.
    pub weight: usize,
}

/// The taps of the forward pass, in the order of the kernel.
pub fn forward_taps(shape: &ConvShape) -> Vec<Tap> {
    let [height, width] = shape.kernel;
    let [top, left] = shape.padding.map(|p| p as isize);
    (0..height * width).map(|t| Tap { row: (t / width) as isize - top, col: (t % width) as isize - left, weight: t }).collect()
}

/// The sizes of one image of a tensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
}

/// The cells `first..end` of a packed row come from the source, those around them are zero.
#[derive(Clone, Copy, Debug)]
pub struct ColumnPlane {
    /// Source column of cell 0.
    pub start: isize,
    pub first: usize,
    pub end: usize,
}

/// A packing, for strips of at most `strip` output rows (see the module's essay).
#[derive(Debug, Default)]
pub struct View {
    pub source: Source,
    pub step: [usize; 2],
    /// Of the output.
    pub rows: usize,
    pub cols: usize,
    /// Distance of the output rows in a run.
    pub pitch: usize,
    pub columns: Vec<ColumnPlane>,
    /// Packed rows beyond those of the outputs, for each residue of the row.
    pub reach: Vec<usize>,
    /// One tap, the output's own pixel: rows are single pixels.
    pub pointwise: bool,
    /// No packing: the source itself serves.
    pub direct: bool,
    /// Output rows of a strip. Set by [`View::set_strip`].
    pub strip: usize,
    /// Cells of a plane of a strip.
    pub plane: usize,
    top: isize,
    left: isize,
    /// Zero cells needed behind the last row of a plane.
    spill: usize,
}

impl View {
    /// A packing for outputs of `size` (rows, columns) and the union of all taps; `outputs` channels will share it. With `spread` the outputs
    /// are not a whole image but every n-th row and column of one. A source serves itself only if it may be read `in_place`.
    pub fn new(source: Source, [step, spread]: [[usize; 2]; 2], size: [usize; 2], taps: &[Tap], outputs: usize, in_place: bool) -> Self {
        let [rows, cols] = size;
        let all = size == [source.height, source.width] && [step, spread] == [[1; 2]; 2];
        if all && taps == [Tap { row: 0, col: 0, weight: 0 }] {
            // Pixels as rows of one cell: a strip may then begin anywhere.
            let source = Source { height: rows * cols, width: 1, ..source };
            let mut view = Self::packed(source, step, [rows * cols, 1], taps, false);
            // Starts are 32 bits: of a source beyond them one strip at a time is packed.
            let reachable = source.channels * source.height <= u32::MAX as usize;
            (view.pointwise, view.direct) = (true, in_place && reachable);
            view.set_strip(view.rows);
            return view;
        }
        let shared = Self::packed(source, step, size, taps, false);
        let expanded = Self::packed(source, step, size, taps, true);
        let junk = (shared.pitch - cols) as f64 / shared.pitch as f64;
        let more = (expanded.columns.len() - shared.columns.len().min(expanded.columns.len())) * shared.reach.len();
        if junk * (outputs * taps.len()) as f64 > EXPAND_GAIN * more as f64 { expanded } else { shared }
    }

    fn packed(source: Source, step: [usize; 2], [rows, cols]: [usize; 2], taps: &[Tap], expanded: bool) -> Self {
        let top = taps.iter().map(|t| t.row).min().unwrap_or(0);
        let left = taps.iter().map(|t| t.col).min().unwrap_or(0);
        let row_span = taps.iter().map(|t| (t.row - top) as usize).max().unwrap_or(0);
        let col_span = taps.iter().map(|t| (t.col - left) as usize).max().unwrap_or(0);
        let reach = (0..step[0].min(row_span + 1)).map(|a| (row_span - a) / step[0]).collect();
        let planes = if expanded { col_span + 1 } else { step[1].min(col_span + 1) };
        let need = |p: usize| cols + (col_span - p) / planes;
        let plane = |p: usize| {
            let start = left + p as isize;
            let first = start.min(0).unsigned_abs().div_ceil(step[1]).min(need(p));
            let behind = (source.width as isize - start).max(0) as usize;
            ColumnPlane { start, first, end: behind.div_ceil(step[1]).clamp(first, need(p)) }
        };
        let mut columns: Vec<ColumnPlane> = (0..planes).map(plane).collect();
        // Cells from `pitch` on are read from the next row, where they must be the zeros before `first`.
        let filled = columns.iter().enumerate().filter(|(_, plane)| plane.end > plane.first);
        let pitch = filled.map(|(p, plane)| plane.end.max(need(p) - plane.first)).fold(cols, usize::max);
        for plane in &mut columns {
            plane.first = plane.first.min(pitch);
            plane.end = plane.end.clamp(plane.first, pitch);
        }
        let spill = need(0).saturating_sub(pitch);
        let mut view = Self { source, step, rows, cols, pitch, columns, reach, top, left, spill, ..Self::default() };
        view.set_strip(rows);
        view
    }

    /// Lays out planes for strips of `strip` rows.
    pub fn set_strip(&mut self, strip: usize) {
        self.strip = strip;
        self.plane = if self.direct { self.source.height } else { self.plane_of(strip) };
    }

    /// Cells of a plane of a strip of `strip` rows: an odd number of cache lines, so that no power of two separates the planes.
    fn plane_of(&self, strip: usize) -> usize {
        let lines = ((strip + self.reach[0]) * self.pitch + self.spill).div_ceil(16);
        (lines | 1) * 16
    }

    /// Cells of a packed strip of `strip` rows.
    pub fn strip_len(&self, strip: usize) -> usize {
        self.source.channels * if self.direct { strip } else { self.reach.len() * self.columns.len() * self.plane_of(strip) }
    }

    /// Outputs in the run over `rows` output rows, junk between rows included.
    pub fn run(&self, rows: usize) -> usize {
        rows.saturating_sub(1) * self.pitch + self.cols
    }

    /// First source row of the packed rows of residue `a` in the strip at output row `row`.
    pub fn source_row(&self, row: usize, a: usize) -> isize {
        self.top + (row * self.step[0] + a) as isize
    }

    /// The values of a source plane that the strip of `rows` output rows at `row` reads.
    pub fn source_part(&self, row: usize, rows: usize) -> Range<usize> {
        let below = self.reach.iter().enumerate().map(|(a, reach)| a + reach * self.step[0]).max().unwrap_or(0);
        let top = self.source_row(row, 0);
        let end = top + ((rows - 1) * self.step[0] + below + 1) as isize;
        let clip = |y: isize| y.clamp(0, self.source.height as isize) as usize * self.source.width;
        clip(top)..clip(end)
    }

    /// Strips of an image.
    pub fn strips(&self) -> usize {
        self.rows.div_ceil(self.strip)
    }

    /// Of a strip, numbered through all images: the image, the first output row in it, and the number of rows.
    pub fn strip_at(&self, index: usize) -> (usize, usize, usize) {
        let (image, row) = (index / self.strips(), index % self.strips() * self.strip);
        (image, row, self.strip.min(self.rows - row))
    }

    /// Distance of the channels in a packed strip.
    pub fn channel(&self) -> usize {
        self.reach.len() * self.columns.len() * self.plane
    }

    /// Where each `(channel, tap)` starts in a packed strip, channels outermost; of `group` channels the first.
    pub fn offset_table(&self, taps: &[Tap], group: usize) -> Vec<u32> {
        let floats = self.source.channels * self.channel();
        assert!(floats <= u32::MAX as usize, "a strip of {floats} floats does not fit 32-bit offsets");
        let within = |tap: &Tap| {
            let (row, col) = ((tap.row - self.top) as usize, (tap.col - self.left) as usize);
            let [a, p] = [self.reach.len(), self.columns.len()];
            (row % a * p + col % p) * self.plane + row / a * self.pitch + col / p
        };
        let within: Vec<usize> = taps.iter().map(within).collect();
        (0..self.source.channels).step_by(group).flat_map(|c| within.iter().map(move |w| (c * self.channel() + w) as u32)).collect()
    }
}

/// The largest number up to `most` that `fits`, as all smaller ones then do; 1 if none does.
pub fn largest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (1, most.max(1) + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}
