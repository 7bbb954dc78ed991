//! Not a test: what the count's roofline says of two versions of a convolution beside what a device takes for them (`docs/benchmarks.sh roofline`).
//!
//! The device's rates are measured in the same sitting by two kernels that do nothing else: one copies, one adds products in registers. Seconds are medians of
//! runs in turn, without what an empty run takes.

use crate::support::{self, Case, case, counted, cube, data, device, numbers};
use bellows_kernels::cube::{Class, Rates, Size, set_tuned, set_workspace_bytes};
use bellows_kernels::ops::KernelOps;
use burn::backend::{Backend, f16};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;
use std::time::Instant;

/// Runs of each version that count.
const RUNS: usize = 9;
/// Numbers that are copied.
const COPIED: usize = 16 << 20;
/// Threads that compute, and the rounds of each.
const COMPUTING: usize = 64 << 10;
const ROUNDS: u32 = 256;
/// Sums of a thread, none of which waits for another.
const SUMS: u32 = 16;
/// The largest block.
const LARGE: Size = [64, 128, 8, 8];
/// Threads to a workgroup.
const UNITS: usize = 64;

#[cube(launch)]
fn copy_kernel(from: &Tensor<f32>, to: &mut Tensor<f32>) {
    let at = ABSOLUTE_POS;
    if at >= to.len() {
        terminate!();
    }
    to[at] = from[at];
}

/// `2 SUMS rounds` operations to a thread.
#[cube(launch)]
fn sums_kernel(out: &mut Tensor<f32>, rounds: u32) {
    let at = ABSOLUTE_POS;
    if at >= out.len() {
        terminate!();
    }
    let factor = out[at];
    let mut sums = Array::<f32>::new(comptime!(SUMS as usize));
    #[unroll]
    for i in 0..comptime!(SUMS as usize) {
        sums[i] = factor;
    }
    for _round in 0..rounds {
        #[unroll]
        for i in 0..comptime!(SUMS as usize) {
            sums[i] = sums[i] * factor + 0.5f32;
        }
    }
    let mut total = 0.0f32;
    #[unroll]
    for i in 0..comptime!(SUMS as usize) {
        total += sums[i];
    }
    out[at] = total;
}

fn grid(units: usize) -> CubeCount {
    let cubes = units.div_ceil(UNITS);
    let wide = cubes.min(1 << 15);
    CubeCount::Static(wide as u32, cubes.div_ceil(wide) as u32, 1)
}

fn copy(from: &CubeTensor, to: &CubeTensor) {
    let units = to.meta.shape().num_elements();
    let dim = CubeDim::new_1d(UNITS as u32);
    copy_kernel::launch(&to.client, grid(units), dim, from.clone().into_tensor_arg(), to.clone().into_tensor_arg());
}

fn compute(out: &CubeTensor) {
    let units = out.meta.shape().num_elements();
    sums_kernel::launch(&out.client, grid(units), CubeDim::new_1d(UNITS as u32), out.clone().into_tensor_arg(), ROUNDS);
}

/// Median seconds of each, run in turn. What is read at the end of a run waits for all that was launched before.
fn medians(versions: &[&dyn Fn()]) -> Vec<f64> {
    let fence = cube(data(9, [1]));
    let run = |version: &dyn Fn()| {
        let start = Instant::now();
        version();
        numbers(fence.clone());
        start.elapsed().as_secs_f64()
    };
    // The first time kernels are compiled.
    for version in versions {
        run(*version);
    }
    let mut seen = vec![Vec::new(); versions.len()];
    for _ in 0..RUNS {
        for (seen, version) in seen.iter_mut().zip(versions) {
            seen.push(run(*version));
        }
    }
    let median = |mut seconds: Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[RUNS / 2]
    };
    seen.into_iter().map(median).collect()
}

/// What this device does, and the seconds of a run of nothing.
fn measured() -> (Rates, f64) {
    let [from, to] = [1, 2].map(|stream| cube(data(stream, [COPIED])));
    let (small, out) = (cube(data(3, [UNITS])), cube(data(4, [COMPUTING])));
    let target = cube(data(5, [UNITS]));
    const LAUNCHES: usize = 64;
    let launches = || (0..LAUNCHES).for_each(|_| copy(&small, &target));
    let seconds = medians(&[&|| {}, &launches, &|| copy(&from, &to), &|| compute(&out)]);
    let without = |i: usize| (seconds[i] - seconds[0]).max(1e-9);
    let launch = without(1) / LAUNCHES as f64;
    let rate = |work: f64, i: usize| work / (without(i) - launch).max(1e-9);
    let flops = rate((2 * SUMS as usize * ROUNDS as usize * COMPUTING) as f64, 3);
    (Rates { bandwidth: rate((2 * COPIED * size_of::<f32>()) as f64, 2), flops, launch }, seconds[0])
}

/// Seconds that the roofline gives a version.
fn predicted(rates: &Rates, version: &dyn Fn()) -> f64 {
    let counted = counted(version).1;
    rates.seconds(&counted.known(), counted.launches.values().sum()).iter().sum()
}

fn boxed(version: impl Fn() + 'static) -> Box<dyn Fn()> {
    Box::new(version)
}

/// A convolution forward, of an image in this type.
fn forward(case: &Case, half: bool) -> impl Fn() + use<> {
    let (image, config) = (if half { case.x().convert::<f16>() } else { case.x() }, case.config);
    let (x, w) = (cube(image), cube(case.w()));
    move || drop(CubeBackend::conv_forward(x.clone(), w.clone(), None.into(), config))
}

/// The same in blocks of this size.
fn in_blocks(case: &Case, size: Size) -> impl Fn() + use<> {
    let run = forward(case, false);
    move || {
        set_tuned(Class::ALL.map(|class| (class, size)));
        run();
        set_tuned([]);
    }
}

/// The gradient of a weight, with so many bytes for the parts of its sums.
fn weight_grad(case: &Case, bytes: usize) -> impl Fn() + use<> {
    let (x, dy, k, config) = (cube(case.x()), cube(case.dy()), case.k, case.config);
    move || {
        set_workspace_bytes(bytes);
        drop(support::weight_grad(x.clone(), dy.clone(), [k; 2], config));
    }
}

#[test]
#[ignore = "figures"]
fn roofline_figures() {
    let (rates, idle) = measured();
    let name = device().client().name();
    println!(
        "> {name}: {:.1} GB/s, {:.1} GFLOP/s, {:.0} us a launch, {:.0} us for nothing",
        rates.bandwidth / 1e9,
        rates.flops / 1e9,
        rates.launch * 1e6,
        idle * 1e6
    );
    let (deep, flat, one) = (case([4, 64, 80, 80], 64, 3, 1, 1), case([4, 64, 80, 80], 64, 1, 1, 0), case([1, 64, 80, 80], 64, 3, 1, 1));
    let (wide, thin) = (case([4, 32, 160, 160], 32, 1, 1, 0), case([4, 16, 160, 160], 16, 3, 1, 1));
    let mut pairs = vec![
        ("3x3 of 64 channels at 80 pixels: nine taps, or the one of a 1x1", boxed(forward(&deep, false)), boxed(forward(&flat, false))),
        ("the same 3x3: four images, or one", boxed(forward(&deep, false)), boxed(forward(&one, false))),
        ("the same 3x3: blocks of 64 x 128, or of 64 x 64", boxed(in_blocks(&deep, LARGE)), boxed(in_blocks(&deep, [64, 64, 8, 4]))),
        ("the same 3x3: blocks of 64 x 128, or of 32 x 64", boxed(in_blocks(&deep, LARGE)), boxed(in_blocks(&deep, [32, 64, 4, 4]))),
        ("gradient of 3x3 weights of 16 channels: one sum, or parts", boxed(weight_grad(&thin, 0)), boxed(weight_grad(&thin, 1 << 20))),
    ];
    if CubeBackend::supports_dtype(&device(), DType::F16) {
        for (name, case) in [("1x1 of 32 channels at 160 pixels: f32, or f16", &wide), ("3x3 of 64 channels: f32, or f16", &deep)] {
            pairs.push((name, boxed(forward(case, false)), boxed(forward(case, true))));
        }
    }
    println!("> | two versions | first, ms | second, ms | ratio measured | predicted |\n> | --- | --- | --- | --- | --- |");
    for (name, first, second) in &pairs {
        let seconds = medians(&[first.as_ref(), second.as_ref()]).into_iter().map(|seconds| (seconds - idle).max(1e-9)).collect::<Vec<_>>();
        let expected = [first, second].map(|version| predicted(&rates, version.as_ref()));
        let [a, b] = [0, 1].map(|i| seconds[i] * 1e3);
        println!("> | {name} | {a:.2} | {b:.2} | {:.2} | {:.2} |", a / b, expected[0] / expected[1]);
    }
}
