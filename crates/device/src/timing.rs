//! How long a small step of training takes: enough work that launches are not all of it, and little enough for a device that is slow.

use crate::made::{numbers, tensor};
use bellows_kernels::{ConvConfig, Lowering, Precision, conv2d, linear, linear_data_grad, widen};
use burn::tensor::{DType, Device};
use std::hint::black_box;
use std::time::Instant;

/// Steps that are timed, after one that is not.
const STEPS: usize = 3;

/// The median of some, in seconds.
fn median(mut step: impl FnMut()) -> f64 {
    medians(1, |_| step())[0]
}

/// That of each of `count` steps, taken in turn: what else the machine does meanwhile meets all of them.
pub(crate) fn medians(count: usize, mut step: impl FnMut(usize)) -> Vec<f64> {
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); count];
    for round in 0..=STEPS {
        for (at, seconds) in all.iter_mut().enumerate() {
            let start = Instant::now();
            step(at);
            // The first round compiles.
            if round > 0 {
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let middle = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[STEPS / 2]
    };
    all.into_iter().map(middle).collect()
}

fn dtype(half: bool) -> DType {
    if half { DType::F16 } else { DType::F32 }
}

/// A 3x3 convolution of 32 channels of two images of 80 x 80, which are in f16 if asked, forward and backward: 1.4 GFLOP.
pub(crate) fn convolution(device: &Device, by: Lowering, half: bool) -> f64 {
    let graph = &device.clone().autodiff();
    let x = tensor::<4>(70, [2, 32, 80, 80], graph).cast(dtype(half)).require_grad();
    let w = tensor(71, [32, 32, 3, 3], graph).require_grad();
    median(|| {
        let y = widen(conv2d(x.clone(), w.clone(), None, ConvConfig::new(1, 1, by)));
        let gradients = y.sum().backward();
        // Reading waits for what was launched.
        black_box((w.grad(&gradients).map(|dw| numbers(dw.sum())), x.grad(&gradients).map(|dx| numbers(dx.sum()))));
    })
}

/// A product of 256 rows with a matrix 1024 x 512, and its gradient for them, of factors in f16 if asked: 0.5 GFLOP.
pub(crate) fn product(device: &Device, half: bool) -> f64 {
    let (x, dy) = (tensor::<2>(72, [256, 512], device), tensor::<2>(74, [256, 1024], device));
    // A frozen base is stored in f16 there.
    let w = tensor::<2>(73, [1024, 512], device).cast(dtype(half));
    let precision = if half { Precision::F16 } else { Precision::F32 };
    median(|| {
        let y = linear(x.clone(), w.clone(), None, precision);
        let dx = linear_data_grad(dy.clone(), w.clone(), precision);
        black_box((numbers(y.sum()), numbers(dx.sum())));
    })
}
