//! A detector's loss on the device against the processor's: terms, gradients, launches. What it finds for many objects is held against the host's assigner where
//! that is, in `yolo/tests/parity.rs`.

use crate::launches::{assert_ours, trace};
use crate::support::{cases, counted, cube, device, numbers, on_each_device, pattern, relative};
use bellows_kernels::cube::shared_memory_works;
use bellows_kernels::foreground::{BINS, ForegroundOps, Learning};
use bellows_kernels::logits::LogitOps;
use bellows_kernels::{Foreground, Object, Objects, Positive, ciou};
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
    learning: &Learning,
    upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
    host: impl Fn(B::FloatTensorPrimitive) -> Vec<f32>,
) -> [Vec<f32>; 4] {
    let c = SIDES + classes;
    let x: Vec<f32> = pattern(1, b * c * a).into_iter().map(|v| 6.0 * v - 2.0).collect();
    let x = upload(TensorData::new(x, [b, c, a]));
    let (background, slope) = B::softplus_sum(x.clone(), SIDES, classes);
    let (terms, sides, of_sum) = B::foreground_terms(x.clone(), background, learning.clone());
    let grad = B::softplus_sum_grad(slope, of_sum, SIDES, c);
    let dy = upload(TensorData::new(vec![2.0f32, 0.5, 1.25], [3]));
    let grad = B::foreground_grad(grad, sides, dy, learning.clone());
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
        let chosen = Learning::Chosen(positives(count.min(shape[0] * shape[2] / 3), shape));
        let [cpu, gpu] = [on::<Flex>(shape, &chosen, flex, host), on::<CubeBackend>(shape, &chosen, cube, numbers)];
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
    let (_, slopes, _) = CubeBackend::foreground_terms(x, background, Learning::Chosen(foreground.clone()));
    let grad = |foreground: Foreground| {
        let zeros = cube(TensorData::new(vec![0.0f32; shape.iter().product()], shape));
        let dy = cube(TensorData::new(vec![2.0f32, 0.5, 1.25], [3]));
        numbers(CubeBackend::foreground_grad(zeros, slopes.clone(), dy, Learning::Chosen(foreground)))
    };
    let own = grad(foreground);
    assert!(own.iter().filter(|v| **v != 0.0).count() > 20 * SIDES / 2, "slopes were spread");
    assert_eq!(grad(elsewhere), own);
}

/// Two and the sums' forward, one backward beside the classes' one.
#[test]
fn launches_seven_kernels() {
    if !on_each_device("foreground::launches_seven_kernels") {
        return;
    }
    let (shape, chosen) = ([2, 4, 336], Learning::Chosen(positives(20, [2, 4, 336])));
    // What a device is asked once.
    shared_memory_works(&device());
    let launched = trace(|| on::<CubeBackend>(shape, &chosen, cube, |_| vec![]));
    let names = [
        ("softplus_kernel", 1),
        ("whole_kernel", 1),
        ("terms_kernel", 1),
        ("totals_kernel", 1),
        ("softplus_grad", 1),
        ("spread_kernel", 1),
        ("expectation_kernel", 1),
        ("predictions_kernel", 1),
    ];
    assert_ours(&launched, &names);
}

/// Cells of 8 pixels, twenty to a row.
const ROW: usize = 20;
const CELL: f32 = 8.0;

/// These boxes in two images of `ROW x ROW` cells, of four classes.
fn objects(boxes: &[(u32, [f32; 4])]) -> Learning {
    let object = |(i, &(image, xyxy)): (usize, &(u32, [f32; 4]))| Object { image, class: i as u32 % 4, xyxy };
    let centres = (0..ROW * ROW).map(|a| [a % ROW, a / ROW].map(|cell| cell as f32 + 0.5)).collect();
    let all = boxes.iter().enumerate().map(object).collect();
    Learning::Assigned(Arc::new(Objects { all, centres, strides: vec![CELL; ROW * ROW], gains: [7.5, 0.5, 1.5] }))
}

/// Each of these boxes holds the centre of one cell, so that who learns what is known: an anchor that two want the one that it overlaps more.
#[test]
fn objects_of_one_cell_find_their_anchors() {
    if !on_each_device("foreground::objects_of_one_cell_find_their_anchors") {
        return;
    }
    let cells = ROW * ROW;
    // Around the centre of a cell, so many pixels to each side.
    let around = |anchor: usize, by: [f32; 4]| {
        let [x, y] = [anchor % ROW, anchor / ROW].map(|cell| CELL * (cell as f32 + 0.5));
        [x - by[0], y - by[1], x + by[2], y + by[3]]
    };
    let wide = [7.0, 6.5, 7.5, 7.0];
    let boxes = [
        (0, around(30, wide)),
        // The next two want one anchor.
        (0, around(105, [6.0, 7.0, 5.0, 7.5])),
        (0, around(105, wide)),
        // Padding, a box between the centres of cells, and one that is outside.
        (0, [0.0; 4]),
        (0, [5.0, 5.0, 11.0, 11.0]),
        (0, [400.0, 40.0, 420.0, 60.0]),
        (1, around(30, wide)),
    ];
    // Sides of about a cell, so that what is predicted overlaps them.
    let bin = |i: usize| if i / cells % (SIDES + 4) < SIDES { (i / cells % (SIDES + 4) % BINS) as f32 } else { 0.0 };
    let x = pattern(1, 2 * (SIDES + 4) * cells).into_iter().enumerate().map(|(i, x)| x - 0.7 * bin(i)).collect::<Vec<f32>>();
    let x = TensorData::new(x, [2, SIDES + 4, cells]);

    let sides = host(Flex::expectation(flex(x.clone()), 4, BINS));
    let logits: Vec<f32> = x.iter().collect();
    let of = |at: usize, anchor: usize| {
        let (image, xyxy) = boxes[at];
        let centre = [anchor % ROW, anchor / ROW].map(|cell| cell as f32 + 0.5);
        let side = |k: usize| sides[(image as usize * 4 + k) * cells + anchor];
        let predicted = [centre[0] - side(0), centre[1] - side(1), centre[0] + side(2), centre[1] + side(3)].map(|v| v * CELL);
        let overlap = ciou(xyxy, predicted).max(0.0);
        let score = 1.0 / (1.0 + (-logits[(image as usize * (SIDES + 4) + SIDES + at % 4) * cells + anchor]).exp());
        let align = score.sqrt() * overlap.powi(6);
        let weight = align * overlap / (align + 1e-9);
        let target = xyxy.map(|v| v / CELL);
        (overlap, Positive { image, anchor: anchor as u32, class: at as u32 % 4, centre, target, weight })
    };
    let contested = if of(1, 105).0 >= of(2, 105).0 { 1 } else { 2 };
    let mut positives: Vec<Positive> = [(0, 30), (contested, 105), (6, 30)].map(|(at, anchor)| of(at, anchor).1).into();
    assert!(positives.iter().all(|p| p.weight > 0.05), "{positives:?}");
    let norm = positives.iter().map(|p| p.weight).sum::<f32>().max(1.0);
    positives.iter_mut().for_each(|p| p.weight /= norm);
    let chosen = Learning::Chosen(Foreground { positives: Arc::new(positives), gains: [7.5, 0.5, 1.5], norm });

    let terms = |learning: Learning| {
        let x = cube(x.clone());
        let (background, slope) = CubeBackend::softplus_sum(x.clone(), SIDES, 4);
        let (terms, slopes, of_sum) = CubeBackend::foreground_terms(x, background, learning.clone());
        let grad = CubeBackend::softplus_sum_grad(slope, of_sum, SIDES, SIDES + 4);
        let dy = cube(TensorData::new(vec![2.0f32, 0.5, 1.25], [3]));
        [terms, CubeBackend::foreground_grad(grad, slopes, dy, learning)].map(numbers)
    };
    let wanted = terms(chosen);
    for (found, wanted) in terms(objects(&boxes)).iter().zip(&wanted) {
        let error = relative(found, wanted);
        assert!(error <= 1e-5, "relative error {error:.1e}");
    }
    // Nobody learns anything of boxes without a centre, or without boxes.
    let nothing = Learning::Chosen(Foreground { positives: Arc::default(), gains: [7.5, 0.5, 1.5], norm: 1.0 });
    let wanted = terms(nothing);
    for none in [&boxes[3..6], &[]] {
        assert_eq!(terms(objects(none)), wanted);
    }
}

/// Four launches beside the predictions', none of which is waited for; without objects there is nothing to find.
#[test]
fn objects_are_found_in_four_launches() {
    if !on_each_device("foreground::objects_are_found_in_four_launches") {
        return;
    }
    let terms = |boxes: &[(u32, [f32; 4])]| {
        let x = cube(TensorData::new(pattern(1, 2 * (SIDES + 4) * ROW * ROW), [2, SIDES + 4, ROW * ROW]));
        let (_, counted) = counted(|| CubeBackend::foreground_terms(x, cube(TensorData::new(vec![1.0f32], [1])), objects(boxes)));
        assert_eq!((counted.reads, counted.unknown.len()), (0, 0));
        counted.launches
    };
    let of_terms = [("terms_kernel", 1), ("totals_kernel", 1)];
    assert_ours(&terms(&[]), &of_terms);
    let found = ["predictions_kernel", "candidates_kernel", "tens_kernel", "owners_kernel", "positives_kernel"].map(|name| (name, 1));
    assert_ours(&terms(&[(0, [8.0, 8.0, 60.0, 50.0]), (1, [20.0, 30.0, 90.0, 90.0])]), &[&of_terms[..], &found].concat());
}
