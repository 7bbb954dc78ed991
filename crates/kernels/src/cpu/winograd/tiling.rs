//! How a convolution is cut into tiles, and where their points lie in memory (see the method's essay).

use std::ops::Range;

use super::super::shape::ConvShape;

/// Points at which a tile is evaluated.
pub(super) const POINTS: usize = 36;

/// Whether the method computes such a convolution.
pub fn applies(shape: &ConvShape) -> bool {
    shape.in_channels > 0 && shape.kernel == [3, 3] && shape.stride == [1, 1] && shape.padding.iter().all(|&p| p <= 2)
}

pub(super) struct Tiling {
    pub(super) shape: ConvShape,
    pub(super) out_height: usize,
    pub(super) out_width: usize,
    /// Rows of tiles in an image. Those of a batch are numbered through.
    pub(super) down: usize,
    /// Tiles in a row.
    pub(super) across: usize,
}

impl Tiling {
    pub(super) fn new(shape: &ConvShape) -> Tiling {
        debug_assert!(applies(shape));
        let (out_height, out_width) = (shape.out_height(), shape.out_width());
        Tiling { shape: *shape, out_height, out_width, down: out_height.div_ceil(4), across: out_width.div_ceil(4) }
    }

    /// Rows of tiles in the batch.
    pub(super) fn rows(&self) -> usize {
        self.shape.batch * self.down
    }

    /// The pieces of single images in a range of tile rows: image, first row in it, end.
    pub(super) fn segments(&self, Range { start: first, end }: Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let down = self.down;
        let images = if first < end { first / down..(end - 1) / down + 1 } else { 0..0 };
        images.map(move |image| (image, first.max(image * down) - image * down, end.min((image + 1) * down) - image * down))
    }
}

/// Where the points of a block `[point][index][LANES]` are.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Floats from one point to the next.
    pub(super) point: usize,
}

impl Layout {
    pub(super) fn new(len: usize, lanes: usize) -> Layout {
        const LINE: usize = 16;
        Layout { point: ((len * lanes).div_ceil(LINE) | 1) * LINE }
    }

    /// Floats of a block.
    pub(super) fn block(self) -> usize {
        POINTS * self.point
    }
}

/// Cuts a range into runs of two and a last one of one: (start, length).
pub(super) fn pairs(all: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let end = all.end;
    all.step_by(2).map(move |start| (start, 2.min(end - start)))
}

/// Cuts a range into `parts`, as equal as possible.
pub(super) fn split(all: Range<usize>, parts: usize) -> impl Iterator<Item = Range<usize>> {
    (0..parts).map(move |i| all.start + all.len() * i / parts..all.start + all.len() * (i + 1) / parts)
}
