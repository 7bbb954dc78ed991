//! Our kernels on software devices against the CPU, and a trace of what they launch.
//!
//! `BELLOWS_SWIFTSHADER` and `BELLOWS_LAVAPIPE` name the ICD files of two Vulkan devices without a GPU (`.ci/swiftshader` and `.ci/lavapipe` print
//! them); without one the tests say that they are skipped there. lavapipe has f16. Mesa's software OpenGL has kernels by CubeCL's other
//! compiler: `BELLOWS_MESA_GL=1` adds it, where libEGL is installed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod arena;
mod attention;
mod blocks;
mod counts;
mod decoder;
mod dropout;
mod figures;
mod foreground;
mod half;
mod half_maps;
mod launches;
mod maps;
mod matrices;
mod norm;
mod norm_parts;
mod onto;
mod planes;
mod refusals;
mod roofline;
mod rows;
mod side_by_side;
mod support;
mod update;

use bellows_kernels::ConvConfig;
use bellows_kernels::cube::{set_workspace_bytes, shared_memory_works};
use bellows_kernels::ops::KernelOps;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use proptest::strategy::Just;
use std::env;
use std::ffi::OsStr;
use support::{Case, any_convolution, case, cases_from, child, cube, device, numbers, on_swiftshader};

/// The same numbers on a device whose shared memory cannot be trusted (see `src/cube/shared.rs`).
#[test]
fn agrees_with_the_cpu_without_shared_memory() {
    let Some(icd) = env::var_os("BELLOWS_SWIFTSHADER") else {
        eprintln!("skipped: set BELLOWS_SWIFTSHADER to a Vulkan ICD file (.ci/swiftshader prints one)");
        return;
    };
    let of_words = ["blocks::products_read_words", "maps::int8s_have_the_bits_of_dense_weights"];
    let of_norms = ["norm::moments_of_convolutions", "norm::statistics_where_the_first_value_is_unlike"];
    let others = ["agrees_with_the_cpu", "any_shape", "large_and_strided", "maps::agrees_with_the_cpu", "decoder::agrees_with_the_cpu"];
    let of_few_rows = ["maps::of_a_few_rows", "blocks::a_few_rows_need_nothing_dense"];
    let of_maps = ["side_by_side::as_of_one_image", "onto::as_added_behind"];
    for name in others.into_iter().chain(of_norms).chain(of_words).chain(of_few_rows).chain(of_maps) {
        child(name, &[("VK_DRIVER_FILES", &icd), ("BELLOWS_CUBE_UNSHARED", OsStr::new("1"))]);
    }
}

/// Factors that are rounded as they are read, straight from memory, and results that are as they are written, on the device that has f16.
#[test]
fn factors_are_rounded_without_shared_memory() {
    let Some(icd) = env::var_os("BELLOWS_LAVAPIPE") else {
        eprintln!("skipped: set BELLOWS_LAVAPIPE to a Vulkan ICD file (.ci/lavapipe prints one)");
        return;
    };
    for name in ["maps::factors_are_rounded_as_a_cast_rounds_them", "half_maps::results_and_gradients", "half_maps::norms_and_rotation"] {
        child(name, &[("VK_DRIVER_FILES", &icd), ("BELLOWS_CUBE_UNSHARED", OsStr::new("1"))]);
    }
}

/// The same numbers by another compiler (WGSL).
#[test]
fn agrees_with_the_cpu_by_another_compiler() {
    if env::var_os("BELLOWS_MESA_GL").is_none() {
        eprintln!("skipped: set BELLOWS_MESA_GL=1 where Mesa's software OpenGL is installed (libegl1)");
        return;
    }
    let on = |variable| (variable, OsStr::new("1"));
    let ours = ["norm", "update", "planes", "decoder", "dropout", "rows", "foreground", "attention", "maps"]
        .map(|module| format!("{module}::agrees_with_the_cpu"));
    let convolutions = ["agrees_with_the_cpu", "any_shape", "large_and_strided", "norm::moments_of_convolutions"];
    let products =
        ["matrices::agree_with_the_cpu_and_tune_nothing", "blocks::products_read_words", "maps::int8s_have_the_bits_of_dense_weights"];
    let others = [
        "maps::of_a_few_rows",
        "maps::blocks_of_any_maps_are_made_dense_together",
        "rows::extremes",
        "arena::tensors_come_back_from_their_places",
        "arena::views_in_another_order_are_copied",
        "foreground::objects_of_one_cell_find_their_anchors",
        "onto::as_added_behind",
        "onto::a_normalised_image",
    ];
    for name in convolutions.into_iter().chain(products).chain(others).chain(ours.iter().map(String::as_str)) {
        child(name, &[on("BELLOWS_CUBE_GL"), on("LIBGL_ALWAYS_SOFTWARE"), ("EGL_PLATFORM", OsStr::new("surfaceless"))]);
    }
}

/// Every pass, at shapes that are not multiples of anything.
#[test]
fn agrees_with_the_cpu() {
    if !on_swiftshader("agrees_with_the_cpu") {
        return;
    }
    let mut cases = vec![
        case([2, 3, 21, 17], 16, 3, 2, 1),
        case([1, 16, 13, 10], 5, 3, 1, 1),
        case([2, 5, 12, 15], 16, 1, 1, 0),
        case([1, 16, 20, 20], 80, 1, 1, 0),
        case([1, 5, 11, 11], 3, 1, 2, 0),
        case([2, 3, 9, 14], 5, 5, 1, 2),
        case([1, 5, 16, 9], 3, 5, 2, 2),
        case([1, 1, 1, 1], 1, 3, 1, 1),
        case([3, 16, 7, 1], 33, 1, 1, 0),
        case([1, 64, 10, 10], 40, 3, 1, 1),
        // More taps than go through shared memory, but for the residues of the gradient of x.
        case([2, 3, 20, 19], 8, 7, 2, 3),
        // Pixels for a GPU full of wide blocks: 64, 32 and 16 rows of C.
        case([1, 2, 136, 136], 64, 3, 1, 1),
        case([1, 64, 136, 136], 2, 3, 1, 1),
        case([3, 5, 80, 78], 32, 1, 1, 0),
        // By fours, of whole blocks of terms and not.
        case([3, 48, 16, 20], 64, 1, 1, 0),
        case([2, 20, 6, 10], 24, 1, 1, 0),
    ];
    let dilated = Case { config: ConvConfig { dilation: [2, 3], ..case([0; 4], 0, 0, 1, 2).config }, ..case([2, 5, 11, 13], 4, 3, 1, 0) };
    let grouped = Case { config: ConvConfig { groups: 2, ..dilated.config }, ..case([2, 6, 11, 13], 4, 3, 1, 0) };
    let depthwise = Case { config: ConvConfig { groups: 5, ..case([0; 4], 0, 0, 1, 0).config }, ..case([2, 5, 6, 7], 10, 1, 1, 0) };
    cases.extend([dilated, grouped, depthwise]);
    let mut worst = 0.0f32;
    for case in &cases {
        worst = worst.max(case.error());
    }
    let (name, shared) = (device().client().name(), shared_memory_works(&device()));
    assert_eq!(shared, env::var_os("BELLOWS_CUBE_UNSHARED").is_none(), "devices of tests have shared memory");
    eprintln!("> {name}, shared memory {shared}: {} cases, largest relative error {worst:.1e}", cases.len());
}

/// Random shapes with every window, weight gradients in any number of parts: two shapes of each, and one without shared memory and by another compiler. (By
/// its name among the first to begin, for it takes longest.)
#[test]
fn any_shape() {
    if !on_swiftshader("any_shape") {
        return;
    }
    let other = ["BELLOWS_CUBE_UNSHARED", "BELLOWS_CUBE_GL"].iter().any(|variable| env::var_os(variable).is_some());
    let windows = (0..27).map(|i| ([1, 3, 5][i / 9], 1 + i / 3 % 3, i % 3));
    for (i, window) in windows.enumerate() {
        cases_from(i as u64, if other { 1 } else { 2 }, any_convolution(3_000_000, Just(window)), |(case, workspace)| {
            set_workspace_bytes(workspace);
            case.error();
        });
    }
}

/// Long sums are cut into parts, tall and short blocks of C, many images; tensors that are not contiguous.
#[test]
fn large_and_strided() {
    if !on_swiftshader("large_and_strided") {
        return;
    }
    case([4, 3, 48, 48], 16, 3, 2, 1).error();
    case([3, 8, 40, 40], 16, 1, 1, 0).error();
    set_workspace_bytes(100_000);
    case([4, 3, 48, 48], 16, 3, 2, 1).error();

    let plain = case([2, 6, 9, 8], 10, 3, 1, 1);
    let [y, _, dx, dw] = plain.on_cube().map(numbers);
    let channels_last = |tensor: TensorData| {
        // NCHW in name, NHWC in memory, which is what Burn's own convolutions and pools return.
        let tensor = CubeBackend::float_permute(cube(tensor), &[0, 2, 3, 1]);
        CubeBackend::float_permute(burn_cubecl::kernel::into_contiguous(tensor), &[0, 3, 1, 2])
    };
    // By fours, and number by number.
    let fours = case([2, 12, 10, 10], 36, 1, 1, 0);
    for plain in [plain, fours, case([2, 6, 9, 8], 10, 1, 1, 0), Case { config: ConvConfig { groups: 2, ..plain.config }, ..plain }] {
        let [y, _, dx, dw] = plain.on_cube().map(numbers);
        let (x, dy, w) = (channels_last(plain.x()), channels_last(plain.dy()), cube(plain.w()));
        assert_ne!(x.meta.strides()[3], 1);
        assert_eq!(numbers(CubeBackend::conv_forward(x.clone(), w.clone(), Some(cube(plain.bias())).into(), plain.config)), y);
        assert_eq!(numbers(support::data_grad(dy.clone(), w, plain.input(), plain.config)), dx);
        assert_eq!(numbers(support::weight_grad(x, dy, [plain.k; 2], plain.config)), dw);
    }
    // An expanded gradient, as `sum().backward()` makes it: every stride is 0.
    let ones = cube(TensorData::new(vec![1.0f32; 2 * 10 * 72], [2, 10, 9, 8]));
    let one = CubeBackend::float_expand(cube(TensorData::new(vec![1.0f32], [1, 1, 1, 1])), [2, 10, 9, 8].into());
    let grad = |dy| support::data_grad(dy, cube(plain.w()), plain.input(), plain.config);
    assert_eq!(numbers(grad(ones)), numbers(grad(one)));
    // A second run is the first one, bit for bit.
    let again = plain.on_cube().map(numbers);
    assert!(again[0] == y && again[2] == dx && again[3] == dw);
}
