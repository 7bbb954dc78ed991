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

/// The shape of the parts side by side along the channels.
#[track_caller]
pub(crate) fn joined(parts: &[Tensor<4>]) -> [usize; 4] {
    let [n, _, h, w] = parts.first().map_or([0; 4], Tensor::dims);
    let channels = parts.iter().map(|part| {
        let [_, c, ..] = part.dims();
        expect("a part", part.dims(), [n, c, h, w]);
        c
    });
    [n, channels.sum(), h, w]
}

/// The shape of a convolution's output.
#[track_caller]
pub(crate) fn convolved(x: [usize; 4], weight: [usize; 4], config: &ConvConfig) -> [usize; 4] {
    let ConvConfig { stride, padding, dilation, groups, .. } = *config;
    let numbers = stride.iter().chain(&dilation).chain([&groups]).chain(&weight);
    assert!(numbers.into_iter().all(|&n| n > 0), "a convolution of {x:?} with {weight:?} by {config:?}");
    assert!(
        x[1] == weight[1] * groups && weight[0].is_multiple_of(groups),
        "{} channels in {groups} groups for a weight of shape {weight:?}",
        x[1]
    );
    let size = |axis: usize| {
        let span = dilation[axis] * (weight[2 + axis] - 1) + 1;
        (x[2 + axis] + 2 * padding[axis]).checked_sub(span).map_or(0, |room| room / stride[axis] + 1)
    };
    [x[0], weight[0], size(0), size(1)]
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int, Tensor};

    use crate::*;

    fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
        Tensor::zeros(shape, device)
    }

    /// The message of the panic that `f` ends with.
    fn refusal<R>(f: impl FnOnce() -> R) -> String {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let Err(panic) = caught else { panic!("no panic") };
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn outputs() {
        let shape = |x, weight, stride, padding| super::convolved(x, weight, &ConvConfig::new(stride, padding, Lowering::Auto));
        assert_eq!(shape([2, 3, 21, 17], [16, 3, 3, 3], 2, 1), [2, 16, 11, 9]);
        assert_eq!(shape([1, 4, 2, 2], [2, 4, 5, 5], 1, 0), [1, 2, 0, 0]);
        let grouped = ConvConfig { dilation: [2, 3], groups: 2, ..ConvConfig::new(1, 0, Lowering::Auto) };
        assert_eq!(super::convolved([1, 6, 11, 13], [4, 3, 3, 3], &grouped), [1, 4, 7, 7]);
    }

    #[test]
    fn wrong_shapes_of_convolutions_are_refused() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let (x, w) = (|| zeros([2, 3, 8, 8], &device), || zeros([5, 3, 3, 3], &device));
            let config = ConvConfig::new(2, 1, Lowering::Auto);
            for lowering in Lowering::ALL {
                let config = ConvConfig { lowering, ..config };
                let channels = refusal(|| conv2d(zeros([2, 4, 8, 8], &device), w(), None, config));
                assert_eq!(channels, "4 channels in 1 groups for a weight of shape [5, 3, 3, 3]");
            }
            let uneven = refusal(|| conv2d_for_norm(vec![zeros([2, 1, 8, 8], &device), zeros([2, 2, 8, 4], &device)], w(), config));
            assert_eq!(uneven, "a part is [2, 2, 8, 4] and not [2, 2, 8, 8]");
            let many = refusal(|| conv2d_for_norm(vec![x(), zeros([2, 1, 8, 8], &device)], w(), config));
            assert_eq!(many, "4 channels in 1 groups for a weight of shape [5, 3, 3, 3]");
            let short = refusal(|| conv2d_silu(x(), w(), Some(zeros([4], &device)), config));
            assert_eq!(short, "bias is [4] and not [5]");
            let still = ConvConfig { stride: [0, 1], ..config };
            assert!(refusal(|| conv2d(x(), w(), None, still)).contains("stride: [0, 1]"));
        }
        let device = Device::flex();
        let (x, w, config) = (zeros([2, 3, 8, 8], &device), zeros([5, 3, 3, 3], &device), ConvConfig::new(2, 1, Lowering::Auto));
        let dy = || zeros([2, 5, 4, 4], &device);
        let larger = refusal(|| conv2d_data_grad(dy(), w.clone(), [10, 8], config));
        assert_eq!(larger, "dy is [2, 5, 4, 4] and not [2, 5, 5, 4]");
        let fewer = refusal(|| conv2d_weight_grad(x.clone(), zeros([1, 5, 4, 4], &device), [3, 3], config));
        assert_eq!(fewer, "dy is [1, 5, 4, 4] and not [2, 5, 4, 4]");
        assert_eq!(conv2d_data_grad(dy(), w, [8, 8], config).dims(), [2, 3, 8, 8]);
        assert_eq!(conv2d_weight_grad(x, dy(), [3, 3], config).dims(), [5, 3, 3, 3]);
    }

    #[test]
    fn other_wrong_shapes_are_refused() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let x = || zeros([2, 6, 8, 8], &device);
            let c = |n: usize| zeros([n], &device);
            let norm = |gamma, beta, running| {
                refusal(|| {
                    batch_norm_silu(x(), c(gamma), c(beta), [c(6), c(running)], NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 })
                })
            };
            assert_eq!(norm(5, 6, 6), "gamma is [5] and not [6]");
            assert_eq!(norm(6, 7, 6), "beta is [7] and not [6]");
            assert_eq!(norm(6, 6, 5), "a running statistic is [5] and not [6]");
            assert_eq!(refusal(|| concat(vec![x(), zeros([2, 3, 8, 4], &device)])), "a part is [2, 3, 8, 4] and not [2, 3, 8, 8]");
            assert_eq!(refusal(|| add(x(), zeros([2, 6, 8, 7], &device))), "y is [2, 6, 8, 7] and not [2, 6, 8, 8]");
            assert_eq!(refusal(|| expectation(zeros([2, 6, 8], &device), 2, 4)), "rows 0..8 of 6");
            assert_eq!(refusal(|| scores(zeros([2, 6, 8], &device), 7)), "rows 7..6 of 6");
            assert_eq!(refusal(|| slice_channels(x(), 4, 3)), "channels 4..7 of 6");
            assert_eq!(refusal(|| max_pool_same(x(), 4)), "a pooling window of 4");
            let none = Foreground { positives: Default::default(), gains: [1.0; 3], norm: 1.0 };
            assert_eq!(refusal(|| detection_terms(zeros([2, 60, 8], &device), none)), "side logits 0..64 of 60");

            let ids = |n: usize| Tensor::<1, Int>::zeros([n], &device);
            assert_eq!(refusal(|| cross_entropy(zeros([4, 9], &device), ids(3))), "targets is [3] and not [4]");
            let (sgd, adam) = (
                Sgd { lr: 0.1, momentum: 0.9, decay: 0.0 },
                Adam { rate: 0.1, beta1: 0.9, beta2: 0.9, root: 1.0, epsilon: 1e-8, decay: 0.0, keep: 1.0 },
            );
            assert_eq!(refusal(|| sgd_step(c(9), c(8), None, sgd)), "the gradient is [8] and not [9]");
            assert_eq!(refusal(|| sgd_step(c(9), c(9), Some(c(10)), sgd)), "the buffer is [10] and not [9]");
            assert_eq!(refusal(|| adam_step(c(9), c(9), Some(c(9)), Some(c(7)), adam)), "a moment is [7] and not [9]");
            assert_eq!(refusal(|| blend(c(9), c(8), 0.5, 0.5)), "the new value is [8] and not [9]");
        }
    }

    #[test]
    fn wrong_shapes_in_a_decoder_layer_are_refused() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            assert_eq!(refusal(|| rms_norm(zeros([4, 8], &device), zeros([7], &device), 1e-6)), "the weight is [7] and not [8]");
            assert_eq!(refusal(|| swiglu(zeros([4, 8], &device), zeros([4, 9], &device))), "up is [4, 9] and not [4, 8]");
            let heads = || zeros([2, 3, 4, 8], &device);
            let angles = |n| zeros([1, 1, n, 4], &device);
            assert_eq!(refusal(|| rotate(heads(), heads(), angles(2), angles(3))), "cos is [1, 1, 2, 4] and not [1, 1, 3, 4]");
            assert_eq!(refusal(|| rotate(heads(), heads(), angles(3), angles(4))), "sin is [1, 1, 4, 4] and not [1, 1, 3, 4]");
        }
    }
}
