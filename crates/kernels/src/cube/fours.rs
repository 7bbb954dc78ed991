//! Which operands of a product a kernel may read by fours: those whose neighbours, four by four, lie where a device loads them at once.

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;

use super::block::AT_ONCE;
use super::matmul::{Layout, Product, Window};
use super::packing::Packing;

/// Whether all of them are whole fours.
fn whole<const N: usize>(of: [usize; N]) -> bool {
    of.into_iter().all(|of| of.is_multiple_of(AT_ONCE as usize))
}

impl Layout {
    /// Whether a matrix of so many lines and k lies by fours, along k or else along its lines.
    fn by_fours(&self, lines: usize, k: usize) -> bool {
        let along = if self.k < self.line { [self.k, k, self.line] } else { [self.line, lines, self.k] };
        self.packing == Packing::Plain && along[0] == 1 && whole([along[1], along[2], self.offset, self.batch, self.outer])
    }
}

impl Window {
    /// Whether each pixel of a map is the image's in the same place, in memory too, and no four of them are of two images.
    fn by_fours(&self) -> bool {
        let [height, width] = self.size;
        let [image, channel, row, pixel] = self.steps;
        let gather = self.gather;
        let same =
            (gather.taps, gather.step) == ((1, 1), (1, 1)) && !gather.taps_are_lines && self.first == [0; 2] && self.map == self.size;
        same && pixel == 1 && row == width && whole([height * width, image, channel])
    }
}

impl Product {
    /// Whether A and B can be read by fours.
    pub(crate) fn fours(&self, a: &CubeTensor, b: &CubeTensor) -> [bool; 2] {
        let begins = |tensor: &CubeTensor| {
            let four = AT_ONCE as usize * tensor.dtype.size();
            matches!(tensor.dtype, DType::F32 | DType::F16) && tensor.handle.offset_start.unwrap_or(0).is_multiple_of(four as u64)
        };
        [begins(a) && self.a_by_fours(), begins(b) && self.b_by_fours()]
    }

    fn a_by_fours(&self) -> bool {
        self.a.by_fours(self.m, self.k)
    }

    fn b_by_fours(&self) -> bool {
        match &self.window {
            None => self.b.by_fours(self.n, self.k),
            Some(window) => window.by_fours() && whole([self.b.offset, self.b.batch, self.b.outer]),
        }
    }
}
