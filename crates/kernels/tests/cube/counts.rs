//! What `--count` says of kernels that write a tensor in the place of one that they read: its bytes are there, whether it takes that place or not; and of launches
//! of one name, which are not alike.

use crate::support::{Case, case, counted, cube, data, device, numbers, on_each_device, on_swiftshader};
use crate::update::{ADAM, SGD};
use bellows_kernels::ConvConfig;
use bellows_kernels::cube::Counted;
use bellows_kernels::decoder::DecoderOps;
use bellows_kernels::dropout::DropoutOps;
use bellows_kernels::ops::KernelOps;
use bellows_kernels::rows::RowOps;
use bellows_kernels::update::UpdateOps;
use burn::backend::ops::IntTensorOps;
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

const WIDTH: usize = 400;
const ROWS: usize = 2 * 5 * 7;
const N: usize = ROWS * WIDTH;
/// One sum of each stripe of each row.
const SUMS: usize = 20 * ROWS;

fn weight() -> CubeTensor {
    cube(data(5, [WIDTH]))
}

fn targets() -> CubeTensor {
    CubeBackend::int_from_data(TensorData::new(vec![1i32; ROWS], [ROWS]), &device())
}

/// A kernel, what launches it, of tensors of [`N`] numbers, and how many numbers it reads and writes.
type Row = (&'static str, fn([CubeTensor; 4]), usize);

const ALL: [Row; 13] = [
    ("sgd_kernel", |[w, g, b, _]| drop(CubeBackend::sgd_step(w, g, b, vec![(N, SGD)])), 5 * N),
    ("adam_kernel", |[w, g, m, v]| drop(CubeBackend::adam_step(w, g, m, v, vec![(9, ADAM), (N, ADAM)])), 7 * N),
    ("blend_kernel", |[old, new, ..]| drop(CubeBackend::blend(old, new, 0.9, 0.1)), 3 * N),
    ("clip_kernel", |[x, ..]| drop(CubeBackend::clip_to_norm(x, cube(data(6, [1])), 1.0)), 2 * N + 1),
    ("dropout_kernel", |[x, ..]| drop(CubeBackend::dropout(x, 3, 0.5)), 2 * N),
    ("noise_kernel", |[x, ..]| drop(CubeBackend::add_noise(x, 3, 0.5)), 2 * N),
    ("swiglu_grad_kernel", |[gate, up, dy, _]| drop(CubeBackend::swiglu_grad(gate, up, dy)), 5 * N),
    // The weight stands in for what nothing is added to.
    ("rms_norm_row_grad_kernel", |[x, dy, ..]| drop(CubeBackend::rms_norm_data_grad(x, weight(), dy, 1e-6)), 3 * N + 2 * WIDTH),
    ("rms_norm_row_grad_kernel", |[x, dy, held, _]| drop(CubeBackend::rms_norm_data_grad_onto(x, weight(), dy, held, 1e-6)), 4 * N + WIDTH),
    // And a row of the logits for a mask.
    ("softmax_sums_kernel", |[x, ..]| drop(CubeBackend::cross_entropy(x, targets())), N + WIDTH + 2 * SUMS),
    ("cross_entropy_kernel", |[x, ..]| drop(CubeBackend::cross_entropy(x, targets())), 2 * N + 2 * SUMS + 2 * ROWS),
    (
        "masked_softmax_kernel",
        |[x, ..]| drop(CubeBackend::masked_softmax(x, cube(data(6, [1, 1, 7, WIDTH])), 0.3)),
        2 * N + 2 * SUMS + 7 * WIDTH,
    ),
    ("masked_softmax_grad_kernel", |[p, dp, ..]| drop(CubeBackend::masked_softmax_grad(p, dp, 0.3)), 3 * N + SUMS),
];

#[test]
fn what_replaces_another_is_counted() {
    if !on_each_device("counts::what_replaces_another_is_counted") {
        return;
    }
    for (kernel, launch, numbers) in ALL {
        for held in [false, true] {
            let tensors = [1, 2, 3, 4].map(|stream| cube(data(stream, [2, 5, 7, WIDTH])));
            let by_another = held.then(|| tensors.clone());
            let counted = counted(|| launch(tensors)).1;
            assert_eq!(counted.work[kernel].bytes, (4 * numbers) as u64, "{kernel}, held by another: {held}");
            drop(by_another);
        }
    }
}

#[test]
fn launches_of_one_name_are_kept_apart() {
    if !on_each_device("counts::launches_of_one_name_are_kept_apart") {
        return;
    }
    // One that computes much for its bytes, and one that does not.
    let (deep, flat) = (case([1, 32, 8, 8], 32, 3, 1, 1), case([1, 4, 32, 32], 4, 1, 1, 0));
    let run = |case: &Case| drop(CubeBackend::conv_forward(cube(case.x()), cube(case.w()), None.into(), case.config));
    let counted = |cases: &[&Case]| counted(|| cases.iter().copied().for_each(run)).1;
    let name = "convolution, forward";
    let times = |counted: &Counted| {
        let of_name = counted.alike.iter().filter(|((kernel, ..), _)| *kernel == name);
        of_name.map(|(&(_, bytes, _), &times)| (bytes, times)).collect::<Vec<_>>()
    };
    let all = counted(&[&deep, &flat, &flat]);
    let [of_flat, of_deep]: [u64; 2] = [2 * 4 * 1024 + 16, 2 * 32 * 64 + 32 * 32 * 9].map(|numbers| 4 * numbers);
    assert_eq!(times(&all), [(of_flat, 2), (of_deep, 1)]);
    assert_eq!(all.known().iter().map(|(bytes, _)| bytes).sum::<u64>(), all.work.values().map(|done| done.bytes).sum::<u64>());
    assert_eq!(times(&all.more_than(&counted(&[&flat]))), [(of_flat, 1), (of_deep, 1)]);
}

/// Two launches, for a grid has no 65,536 groups; each tensor is moved once all the same.
#[test]
fn a_product_of_several_grids_moves_its_tensors_once() {
    if !on_swiftshader("counts::a_product_of_several_grids_moves_its_tensors_once") {
        return;
    }
    let groups = 1 << 16;
    let of_one = case([1, groups, 1, 1], groups, 1, 1, 0);
    let case = Case { config: ConvConfig { groups, ..of_one.config }, ..of_one };
    let (x, w) = (cube(case.x()), cube(case.w()));
    let (y, counted) = counted(|| CubeBackend::conv_forward(x.clone(), w.clone(), None.into(), case.config));
    let done = counted.work["convolution, forward"];
    assert_eq!((done.launches, done.bytes, done.flops), (2, 4 * 3 * groups as u64, 2 * groups as u64));
    let wanted: Vec<f32> = numbers(x).into_iter().zip(numbers(w)).map(|(x, w)| x * w).collect();
    assert!(numbers(y) == wanted);
}
