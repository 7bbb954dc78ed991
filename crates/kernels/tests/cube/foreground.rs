//! A detector's loss on the device against the processor's: terms, gradients, launches.

use crate::launches::{assert_ours, trace};
use crate::support::{cases, cube, numbers, on_each_device, pattern, relative};
use bellows_kernels::foreground::{BINS, ForegroundOps};
use bellows_kernels::logits::LogitOps;
use bellows_kernels::{Foreground, Positive};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_flex::{Flex, FlexTensor};
use proptest::prelude::*;
use std::sync::Arc;

const SIDES: usize = 4 * BINS;

fn positives(count: usize, [b, classes, a]: [usize; 3]) -> Foreground {
    let draws = pattern(9, count * 8);
    let positive = |(i, d): (usize, &[f32])| {
        let at = i * 3 % (a * b);
        let centre = [9.0 + 8.0 * d[0], 9.0 + 8.0 * d[1]];
        let sides = [0, 1, 2, 3].map(|k| 6.0 + 5.5 * d[2 + k]);
        Positive {
            image: (at / a) as u32,
            anchor: (at % a) as u32,
            class: (i % classes) as u32,
            centre,
            target: [centre[0] - sides[0], centre[1] - sides[1], centre[0] + sides[2], centre[1] + sides[3]],
            weight: 0.1 + d[6].abs(),
        }
    };
    let all = draws.chunks(8).enumerate().map(positive).collect();
    Foreground { positives: Arc::new(all), gains: [7.5, 0.5, 1.5], norm: 12.5 }
}

/// Terms, the gradient of all of them, what the sides expect, and what an assigner asks.
fn on<B: ForegroundOps + LogitOps>(
    [b, classes, a]: [usize; 3],
    foreground: &Foreground,
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
    host: impl Fn(B::FloatTensorPrimitive) -> Vec<f32>,
) -> [Vec<f32>; 4] {
    let c = SIDES + classes;
    let x: Vec<f32> = pattern(1, b * c * a).into_iter().map(|v| 6.0 * v - 2.0).collect();
    let x = upload(TensorData::new(x, [b, c, a]));
    let (background, slope) = B::softplus_sum(x.clone(), SIDES, classes);
    let (terms, sides) = B::foreground_terms(x.clone(), background, foreground.clone());
    let grad = B::softplus_sum_grad(slope, upload(TensorData::new(vec![0.7f32], [1])), SIDES, c);
    let dy = upload(TensorData::new(vec![2.0f32, 0.5, 1.25], [3]));
    let grad = B::foreground_grad(grad, sides, dy, foreground.clone());
    let (cells, rows) = (pattern(5, 2 * a), vec![SIDES as i32, (b * c - 1) as i32]);
    let centres = upload(TensorData::new(cells.iter().map(|v| 40.0 * v).collect::<Vec<f32>>(), [1, 2, a]));
    let strides = upload(TensorData::new(cells[..a].iter().map(|v| 20.0 + 12.0 * v).collect::<Vec<f32>>(), [1, 1, a]));
    let predictions = B::predictions(x.clone(), centres, strides, rows, BINS);
    [terms, grad, B::expectation(x, 4, BINS), predictions].map(host)
}

fn flex(data: TensorData) -> FlexTensor {
    FlexTensor::from_data(data)
}

fn host(tensor: FlexTensor) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().unwrap()
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("foreground::agrees_with_the_cpu") {
        return;
    }
    let check = |(shape, count): ([usize; 3], usize)| {
        let foreground = positives(count.min(shape[0] * shape[2] / 3), shape);
        let [cpu, gpu] = [on::<Flex>(shape, &foreground, flex, host), on::<CubeBackend>(shape, &foreground, cube, numbers)];
        for ((what, cpu), gpu) in ["terms", "gradient", "expected bins", "predictions"].into_iter().zip(cpu).zip(gpu) {
            let error = relative(&gpu, &cpu);
            assert!(error <= 3e-6, "{what} of {shape:?} with {count}: relative error {error:.1e}");
        }
    };
    cases(12, ([1usize..4, 1usize..81, 1usize..700].prop_map(|s| s), 0usize..600), check);
    check(([2, 4, 8400], 0));
    check(([2, 4, 8400], 900));
}

/// Positives are sent to a device with the terms, and not again for the gradient: it does not look at where those it is given are.
#[test]
fn the_gradient_finds_the_positives_of_the_terms() {
    if !on_each_device("foreground::the_gradient_finds_the_positives_of_the_terms") {
        return;
    }
    let (shape, classes) = ([2, SIDES + 4, 336], 4);
    let foreground = positives(20, [2, classes, 336]);
    let elsewhere =
        foreground.positives.iter().map(|p| Positive { image: 0, anchor: 335 - p.anchor, class: 0, weight: 9.0, ..*p }).collect();
    let elsewhere = Foreground { positives: Arc::new(elsewhere), ..foreground.clone() };
    let x = cube(TensorData::new(pattern(1, shape.iter().product()), shape));
    let (background, _) = CubeBackend::softplus_sum(x.clone(), SIDES, classes);
    let (_, slopes) = CubeBackend::foreground_terms(x, background, foreground.clone());
    let grad = |foreground: Foreground| {
        let zeros = cube(TensorData::new(vec![0.0f32; shape.iter().product()], shape));
        let dy = cube(TensorData::new(vec![2.0f32, 0.5, 1.25], [3]));
        numbers(CubeBackend::foreground_grad(zeros, slopes.clone(), dy, foreground))
    };
    let own = grad(foreground);
    assert!(own.iter().filter(|v| **v != 0.0).count() > 20 * SIDES / 2, "slopes were spread");
    assert_eq!(grad(elsewhere), own);
}

/// Two and the sums' two forward, one backward beside the classes' one.
#[test]
fn launches_eight_kernels() {
    if !on_each_device("foreground::launches_eight_kernels") {
        return;
    }
    let (shape, foreground) = ([2, 4, 336], positives(20, [2, 4, 336]));
    let launched = trace(|| on::<CubeBackend>(shape, &foreground, cube, |_| vec![]));
    let names = [
        ("softplus_kernel", 1),
        ("total_kernel", 2),
        ("terms_kernel", 1),
        ("totals_kernel", 1),
        ("softplus_grad", 1),
        ("spread_kernel", 1),
        ("expectation_kernel", 1),
        ("predictions_kernel", 1),
    ];
    assert_ours(&launched, &names);
}
