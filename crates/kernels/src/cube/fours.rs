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
    /// Whether a matrix of so many lines and k lies by fours, along k or else along its lines; where it is packed each is in whole words.
    fn by_fours(&self, lines: usize, k: usize) -> bool {
        let along = if self.k < self.line { [self.k, k, self.line] } else { [self.line, lines, self.k] };
        along[0] == 1 && whole([along[1], along[2], self.offset, self.batch, self.outer])
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
        let begins = |tensor: &CubeTensor, packing: Packing| {
            let element = packing.element(tensor.dtype);
            let four = packing.of_four() * element.size();
            matches!(element, DType::F32 | DType::F16 | DType::U32) && tensor.handle.offset_start.unwrap_or(0).is_multiple_of(four as u64)
        };
        [begins(a, Packing::Plain) && self.a_by_fours(), begins(b, self.b.packing) && self.b_by_fours()]
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

#[cfg(test)]
mod tests {
    use super::super::block::{Block, Gather};
    use super::*;

    /// The pixels of 1x1 convolutions of maps of whole fours, and no others.
    #[test]
    fn maps_by_fours() {
        let of = |taps, stride, side: usize| Window {
            gather: Gather { taps: (taps, taps), step: (stride, stride), tap: (1, 1), taps_are_lines: false },
            map: [side / stride as usize; 2],
            size: [side; 2],
            first: [-(taps as i32 / 2); 2],
            steps: [48 * side * side, side * side, side, 1],
            a_taps: [1, 1],
            c_image: 0,
            spread: None,
        };
        assert!([80, 20, 6].into_iter().all(|side| of(1, 1, side).by_fours()));
        let transposed = |window: Window| Window { steps: [window.steps[0], 1, 48 * window.size[1], 48], ..window };
        for window in [of(1, 1, 13), of(3, 1, 80), of(1, 2, 80), transposed(of(1, 1, 80))] {
            assert!(!window.by_fours(), "{window:?}");
        }
    }

    #[test]
    fn matrices_by_fours() {
        let rows = Layout { line: 64, k: 1, ..Layout::default() };
        let columns = Layout { line: 1, k: 64, ..Layout::default() };
        assert!(rows.by_fours(7, 64) && columns.by_fours(64, 7));
        assert_eq!([Packing::Plain, Packing::Bf16, Packing::Int8].map(Packing::of_four), [4, 2, 1]);
        let others = [
            rows.by_fours(7, 63),
            columns.by_fours(63, 7),
            Layout { offset: 2, ..rows }.by_fours(7, 64),
            Layout { line: 66, ..rows }.by_fours(7, 64),
            Layout { k: 9, line: 576, ..rows }.by_fours(7, 64),
        ];
        assert_eq!(others, [false; 5]);
    }

    /// Every thread has as many fours of an operand, or loads it number by number.
    #[test]
    fn threads_share_out_fours() {
        let of = |m, taps, shared| {
            let gather = Gather { taps: (taps, taps), ..Gather::default() };
            let block = Block { shared, ..Block::new(m, 102_400, 1, 128) };
            block.of_terms(Some(gather), 64, 64).by_fours([true; 2]).at_once()
        };
        assert_eq!([of(64, 1, true), of(32, 1, true), of(16, 1, true)], [[4, 4], [4, 4], [1, 4]]);
        assert_eq!([of(64, 3, true), of(64, 1, false)], [[1, 1]; 2]);
    }
}
