//! The numbers of one convolution, and how its columns are cut to fit the workspace.
//!
//! A convolution of `x [n, ci, h, w]` with `w [co, ci/g, kh, kw]` reads, for output pixel (oy, ox) and tap (ky, kx), the input pixel
//! `(oy*sy + ky*dy - py, ox*sx + kx*dx - px)`, and zero where that is outside. As a matrix product its right-hand side is the *columns*,
//! `[n, ci*kh*kw, oh*ow]`: kh*kw times as many numbers as x at stride 1, which is the memory a naive lowering costs (9 times x for a
//! 3x3; PyTorch's and MIOpen's GEMM paths pay it per layer). So only a [`Tile`] of them exists at a time: some whole images, or, if one
//! image is too large, some output rows of one image. One row of one image is the smallest.

use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

/// The most workgroups along one axis that every device allows.
pub(crate) const MAX_GRID: usize = 65_535;

/// Sizes of a 2-D convolution; pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) images: usize,
    /// Channels of x and of y.
    pub(crate) channels_in: usize,
    pub(crate) channels_out: usize,
    pub(crate) groups: usize,
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// Padding above and left of x; what is below and right only shows in `output`.
    pub(crate) pad: [usize; 2],
    pub(crate) dilation: [usize; 2],
}

/// A part of the columns: `images.len() * channels_in * taps * (rows.len() * output width)` numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) images: Range<usize>,
    pub(crate) rows: Range<usize>,
}

impl Geometry {
    /// The geometry of `x * w` for x of shape `[n, ci, h, w]` and w of shape `[co, ci/groups, kh, kw]`. Panics if they do not fit.
    pub(crate) fn new(x: [usize; 4], w: [usize; 4], options: &ConvOptions<2>) -> Self {
        let groups = options.groups;
        assert!(x[1] == w[1] * groups && w[0].is_multiple_of(groups), "{} channels in {groups} groups for a weight of shape {w:?}", x[1]);
        let size = |axis: usize| {
            let (before, after) = options.padding[axis];
            let span = options.dilation[axis] * (w[2 + axis] - 1) + 1;
            (x[2 + axis] + before + after).checked_sub(span).map_or(0, |room| room / options.stride[axis] + 1)
        };
        Self {
            images: x[0],
            channels_in: x[1],
            channels_out: w[0],
            groups: options.groups,
            input: [x[2], x[3]],
            output: [size(0), size(1)],
            kernel: [w[2], w[3]],
            stride: options.stride,
            pad: options.padding_begin(),
            dilation: options.dilation,
        }
    }

    /// Taps of the kernel, kh * kw.
    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Rows of the columns that belong to one group: ci/g * kh * kw.
    pub(crate) fn depth(&self) -> usize {
        self.channels_in / self.groups * self.taps()
    }

    /// Output channels of one group.
    pub(crate) fn group_out(&self) -> usize {
        self.channels_out / self.groups
    }

    /// Output pixels of one image.
    pub(crate) fn pixels_out(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Whether the columns are x itself: 1x1, stride 1, no padding (a 1x1 kernel has no dilation).
    pub(crate) fn pointwise(&self) -> bool {
        self.taps() == 1 && self.stride == [1, 1] && self.pad == [0, 0] && self.input == self.output
    }

    /// The shape of y.
    pub(crate) fn result(&self) -> [usize; 4] {
        [self.images, self.channels_out, self.output[0], self.output[1]]
    }

    /// Whether y (and with it every gradient's sum) is over nothing.
    pub(crate) fn empty(&self) -> bool {
        self.images * self.channels_in * self.channels_out * self.pixels_out() * self.input[0] * self.input[1] == 0
    }

    /// The columns cut into tiles of at most `workspace` bytes (but at least one output row), as even as can be.
    pub(crate) fn tiles(&self, workspace: usize, element: usize) -> Vec<Tile> {
        let [height, width] = self.output;
        let row = (self.channels_in * self.taps() * width * element).max(1);
        let even = |total: usize, most: usize| total.div_ceil(total.div_ceil(most.clamp(1, total)));
        let cut = |total: usize, size: usize| (0..total).step_by(size).map(move |start| start..(start + size).min(total));
        if row * height <= workspace {
            let images = even(self.images, (workspace / (row * height)).min(MAX_GRID));
            cut(self.images, images).map(|images| Tile { images, rows: 0..height }).collect()
        } else {
            let rows = even(height, workspace / row);
            let bands = || cut(height, rows);
            (0..self.images).flat_map(|image| bands().map(move |rows| Tile { images: image..image + 1, rows })).collect()
        }
    }

    /// The numbers in the columns of `tile`.
    pub(crate) fn columns(&self, tile: &Tile) -> usize {
        tile.images.len() * self.channels_in * self.taps() * self.pixels(tile)
    }

    /// Output pixels of one image in `tile`.
    pub(crate) fn pixels(&self, tile: &Tile) -> usize {
        tile.rows.len() * self.output[1]
    }

    /// The input rows that the output rows `rows` read.
    pub(crate) fn input_rows(&self, rows: &Range<usize>) -> Range<usize> {
        let first = (rows.start * self.stride[0]).saturating_sub(self.pad[0]);
        let last = (rows.end - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1;
        first..last.saturating_sub(self.pad[0]).min(self.input[0])
    }
}

/// The four sizes of a tensor that is known to have four dimensions.
pub(crate) fn dims4(tensor: &CubeTensor) -> [usize; 4] {
    tensor.shape().dims()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new([5, 3, 11, 8], [4, 3, 3, 3], &ConvOptions::new([2, 2], [1, 1], [1, 1], 1))
    }

    #[test]
    fn sizes() {
        let g = geometry();
        assert_eq!((g.output, g.depth(), g.pixels_out(), g.pointwise()), ([6, 4], 27, 24, false));
        let g = Geometry::new([1, 4, 5, 5], [2, 4, 1, 1], &ConvOptions::new([1, 1], [0, 0], [1, 1], 1));
        assert!(g.pointwise() && g.output == [5, 5]);
        let g = Geometry::new([1, 4, 2, 2], [2, 4, 5, 5], &ConvOptions::new([1, 1], [0, 0], [1, 1], 1));
        assert!(g.empty());
    }

    #[test]
    fn tiles_cover_everything_once_and_fit() {
        let g = geometry();
        for workspace in [0, 500, 1000, 2000, 5000, 11_000, 1 << 20] {
            let tiles = g.tiles(workspace, 4);
            let mut seen = [0; 5 * 6];
            for tile in &tiles {
                let one_row = tile.images.len() == 1 && tile.rows.len() == 1;
                assert!(one_row || g.columns(tile) * 4 <= workspace, "{workspace}: {tile:?}");
                tile.images.clone().for_each(|image| tile.rows.clone().for_each(|row| seen[image * 6 + row] += 1));
            }
            assert!(seen.iter().all(|count| *count == 1), "{workspace}: {tiles:?}");
        }
        assert_eq!(g.tiles(1 << 20, 4).len(), 1);
        // Two of five images fit: 2, 2, 1.
        assert_eq!(g.tiles(2 * 27 * 24 * 4, 4).len(), 3);
    }

    #[test]
    fn rows_read() {
        let g = geometry();
        assert_eq!(g.input_rows(&(0..1)), 0..2);
        assert_eq!(g.input_rows(&(2..4)), 3..8);
        assert_eq!(g.input_rows(&(0..6)), 0..11);
    }
}
