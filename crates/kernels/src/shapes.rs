//! What the public functions ask of shapes, before any backend sees the tensors.
//!
//! Kernels compute lengths and strides from the shape of one operand; another's that does not fit would be read beyond its end on a device that
//! does not check. A wrong shape is a mistake in the program that calls, hence a panic that says what was given.

use std::ops::Range;

use burn::tensor::Tensor;

use crate::operands::ConvConfig;

/// Panics unless `what` is of this shape.
#[track_caller]
pub(crate) fn expect<const D: usize>(what: &str, given: [usize; D], wanted: [usize; D]) {
    assert!(given == wanted, "{what} is {given:?} and not {wanted:?}");
}

/// Panics unless the range is one of `all` things.
#[track_caller]
pub(crate) fn within(what: &str, range: &Range<usize>, all: usize) {
    assert!(range.start <= range.end && range.end <= all, "{what} {range:?} of {all}");
}

/// The shape of the parts, of which there are some, side by side along the channels.
#[track_caller]
pub(crate) fn joined(parts: &[Tensor<4>]) -> [usize; 4] {
    let [n, _, h, w] = parts.first().unwrap_or_else(|| panic!("a concatenation of nothing")).dims();
    let channels = parts.iter().map(|part| {
        let [_, c, ..] = part.dims();
        expect("a part", part.dims(), [n, c, h, w]);
        c
    });
    [n, channels.sum(), h, w]
}

/// The shape of a convolution's output. Of its input only the batch may be empty: what comes of images without pixels differs by device.
#[track_caller]
pub(crate) fn convolved(x: [usize; 4], weight: [usize; 4], config: &ConvConfig) -> [usize; 4] {
    let ConvConfig { stride, padding, dilation, groups, .. } = *config;
    let numbers = stride.iter().chain(&dilation).chain([&groups]).chain(&weight).chain(&x[2..]);
    assert!(numbers.into_iter().all(|&n| n > 0), "a convolution of {x:?} with {weight:?} by {config:?}");
    let fits = x[1] == weight[1] * groups && weight[0].is_multiple_of(groups);
    assert!(fits, "{} channels in {groups} groups for a weight of shape {weight:?}", x[1]);
    let size = |axis: usize| {
        let span = dilation[axis] * (weight[2 + axis] - 1) + 1;
        (x[2 + axis] + 2 * padding[axis]).checked_sub(span).map_or(0, |room| room / stride[axis] + 1)
    };
    [x[0], weight[0], size(0), size(1)]
}

#[cfg(test)]
mod tests {
    //! What is refused is listed in `tests/cube/refusals.rs`, for every backend.

    use crate::{ConvConfig, Lowering};

    #[test]
    fn outputs() {
        let shape = |x, weight, stride, padding| super::convolved(x, weight, &ConvConfig::new(stride, padding, Lowering::Auto));
        assert_eq!(shape([2, 3, 21, 17], [16, 3, 3, 3], 2, 1), [2, 16, 11, 9]);
        assert_eq!(shape([1, 4, 2, 2], [2, 4, 5, 5], 1, 0), [1, 2, 0, 0]);
        let grouped = ConvConfig { dilation: [2, 3], groups: 2, ..ConvConfig::new(1, 0, Lowering::Auto) };
        assert_eq!(super::convolved([1, 6, 11, 13], [4, 3, 3, 3], &grouped), [1, 4, 7, 7]);
    }
}
