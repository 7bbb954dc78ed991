//! The numbers of one convolution.
//!
//! A convolution of `x [n, ci, h, w]` with `w [co, ci/g, kh, kw]` reads, for output pixel (oy, ox) and tap (ky, kx), the input pixel
//! `(oy*sy + ky*dy - py, ox*sx + kx*dx - px)`, and zero where that is outside. As a matrix product its right-hand side is the *columns*,
//! `[n, ci*kh*kw, oh*ow]`: kh*kw times as many numbers as x at stride 1, 9 times x for a 3x3. They are never written.

use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::tensor::CubeTensor;

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

/// The input pixels along one axis whose places have the same residue modulo the stride, and the taps that reach them: pixel
/// `residue + i stride` is reached by tap `first_tap + t tap_step` from output pixel `first + i + t tap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Residue {
    pub(crate) residue: usize,
    /// Pixels.
    pub(crate) count: usize,
    pub(crate) taps: usize,
    pub(crate) first_tap: usize,
    pub(crate) tap_step: usize,
    pub(crate) first: i32,
    pub(crate) tap: i32,
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

    /// The residues of an axis of x, those that have a pixel.
    pub(crate) fn residues(&self, axis: usize) -> impl Iterator<Item = Residue> + Clone {
        let [size, kernel, stride, dilation, pad] = [self.input, self.kernel, self.stride, self.dilation, self.pad].map(|of| of[axis]);
        // Output pixel o reads x at o stride + tap dilation - pad.
        let from = move |residue: usize, tap: usize| residue as i32 + pad as i32 - (tap * dilation) as i32;
        (0..stride.min(size)).map(move |residue| {
            let reach: Vec<usize> = (0..kernel).filter(|&tap| from(residue, tap).rem_euclid(stride as i32) == 0).collect();
            let first_tap = reach.first().copied().unwrap_or(0);
            let tap_step = reach.get(1).map_or(0, |second| second - first_tap);
            Residue {
                residue,
                count: (size - residue).div_ceil(stride),
                taps: reach.len(),
                first_tap,
                tap_step,
                first: from(residue, first_tap).div_euclid(stride as i32),
                tap: -((tap_step * dilation / stride) as i32),
            }
        })
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

    /// Every pair of an input pixel and an output pixel that reads it is found once.
    #[test]
    fn residues_turn_a_convolution_round() {
        for (size, kernel, stride, dilation, pad) in
            [(11, 3, 2, 1, 1), (8, 5, 3, 2, 2), (7, 1, 2, 1, 0), (5, 3, 1, 1, 1), (9, 4, 4, 2, 3), (1, 3, 2, 1, 1)]
        {
            let options = ConvOptions::new([stride; 2], [pad; 2], [dilation; 2], 1);
            let g = Geometry::new([1, 1, size, size], [1, 1, kernel, kernel], &options);
            let mut expected = Vec::new();
            for o in 0..g.output[0] {
                for tap in 0..kernel {
                    let at = (o * stride + tap * dilation) as i32 - pad as i32;
                    expected.extend((0..size as i32).contains(&at).then_some((at as usize, tap, o as i32)));
                }
            }
            let mut found = Vec::new();
            for r in g.residues(0) {
                for i in 0..r.count {
                    for t in 0..r.taps {
                        let o = r.first + i as i32 + t as i32 * r.tap;
                        let inside = (0..g.output[0] as i32).contains(&o);
                        found.extend(inside.then_some((r.residue + i * stride, r.first_tap + t * r.tap_step, o)));
                    }
                }
            }
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected, "{size} pixels, {kernel} taps, stride {stride}, dilation {dilation}, pad {pad}");
        }
    }
}
