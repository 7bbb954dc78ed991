//! Images in half precision, on devices that have it (lavapipe): parameters, their gradients and all sums are f32. And products of a language
//! model's factors in f16.

use crate::launches::{assert_ours, trace};
use crate::norm::error_of_moments;
use crate::support::{
    self, Case, Numbers, any_convolution, any_window, case, cases, cube, data, device, numbers, on_each_device, pattern, relative,
};
use bellows_kernels::cube::set_workspace_bytes;
use bellows_kernels::matrices::MatrixOps;
use bellows_kernels::operands::{Maybe, NormChannels};
use bellows_kernels::ops::KernelOps;
use bellows_kernels::planes::{Parts, PlaneOps};
use bellows_kernels::products::{Branch, ProductOps, StoredBranch, StoredMap, StoredWeight};
use bellows_kernels::{HALF_GRADIENTS, Lowering, NormStep, Precision, set_default_lowering};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Backend, f16};
use burn::tensor::{DType, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::{Flex, FlexTensor};
use std::env;

/// What rounding to 11 bits explains: half a unit for each factor and for the result, of sums in which most of that cancels.
const EPSILON: f32 = 1.0 / 2048.0;

/// Whether the device has it; lavapipe is among the devices of the tests because it does.
#[expect(clippy::print_stderr, reason = "a test that is skipped must say so")]
pub(crate) fn has_half() -> bool {
    let has = CubeBackend::supports_dtype(&device(), DType::F16);
    assert!(has || env::var_os("VK_DRIVER_FILES").is_none_or(|icd| !icd.to_string_lossy().contains("lvp")), "lavapipe without f16");
    if !has {
        eprintln!("> skipped: the device has no f16");
    }
    has
}

pub(crate) fn half(data: TensorData) -> CubeTensor {
    cube(data.convert::<f16>())
}

/// A gradient as it is held.
fn held(data: TensorData) -> CubeTensor {
    let values = data.try_to_vec::<f32>().unwrap().into_iter().map(|v| v * HALF_GRADIENTS).collect::<Vec<_>>();
    half(TensorData::new(values, data.shape().clone()))
}

fn check(what: &str, gpu: CubeTensor, (dtype, times): (DType, f32), expected: &[f32]) {
    assert_eq!(gpu.dtype, dtype, "{what}");
    let gpu: Vec<f32> = numbers(gpu).into_iter().map(|v| v / times).collect();
    let error = relative(&gpu, expected);
    assert!(error < 3.0 * EPSILON, "{what}: {error:.1e}");
}

const IMAGE: (DType, f32) = (DType::F16, 1.0);
const GRADIENT: (DType, f32) = (DType::F16, HALF_GRADIENTS);
const PARAMETER: (DType, f32) = (DType::F32, 1.0);

#[test]
fn convolutions() {
    if !on_each_device("half::convolutions") || !has_half() {
        return;
    }
    [case([2, 5, 12, 9], 6, 3, 2, 1), case([2, 16, 20, 20], 40, 1, 1, 0), case([3, 33, 7, 10], 65, 3, 1, 1)]
        .iter()
        .for_each(check_convolution);
}

/// Every pass.
fn check_convolution(case: &Case) {
    let Case { config, k, .. } = *case;
    let w = cube(case.w());
    let [y, _, dx, dw] = case.on_flex().map(Numbers::into_f32);
    check("y", CubeBackend::conv_forward(half(case.x()), w.clone(), Some(cube(case.bias())).into(), config), IMAGE, &y);
    check("dx", support::data_grad(held(case.dy()), w, case.input(), config), GRADIENT, &dx);
    check("dw", support::weight_grad(half(case.x()), held(case.dy()), [k; 2], config), PARAMETER, &dw);
}

/// A few shapes: lavapipe compiles a kernel of each for some 5 s.
#[test]
fn random_shapes() {
    if !on_each_device("half::random_shapes") || !has_half() {
        return;
    }
    cases(3, any_convolution(300_000, any_window()), |(case, workspace)| {
        set_workspace_bytes(workspace);
        // 1,024 times a gradient of so many terms is within f16.
        check_convolution(&Case { co: case.co.min(1000 / (case.k * case.k)), ..case });
    });
}

#[test]
fn normalisation() {
    if !on_each_device("half::normalisation") || !has_half() {
        return;
    }
    for shape in [[2, 20, 30, 17], [3, 5, 1, 9]] {
        let channels = |stream| cube(TensorData::new(pattern(stream, shape[1]), [shape[1]]));
        let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.3 };
        let all = |x: CubeTensor, dy: CubeTensor| {
            let of = |mean, variance| NormChannels::<CubeBackend> { mean, variance, gamma: channels(3), beta: channels(4) };
            let y = CubeBackend::norm_act(x.clone(), Maybe::None, of(channels(5), channels(6)), step, Maybe::None);
            let of = of(y.mean, y.variance);
            let again = CubeBackend::norm_act_again(x.clone(), of.clone(), step, Maybe::None);
            let grads = CubeBackend::norm_act_backward(x, of, dy, step);
            [y.output, again, y.running_mean, y.running_variance, grads.x, grads.gamma, grads.beta]
        };
        let expected = all(cube(data(1, shape)), cube(data(2, shape))).map(numbers);
        let names = ["y", "y again", "mean", "variance", "dx", "dgamma", "dbeta"];
        let kinds = [IMAGE, IMAGE, PARAMETER, PARAMETER, GRADIENT, PARAMETER, PARAMETER];
        for (((name, gpu), kind), expected) in
            names.into_iter().zip(all(half(data(1, shape)), held(data(2, shape)))).zip(kinds).zip(&expected)
        {
            check(name, gpu, kind, expected);
        }
    }
}

/// Moments are of what is stored, or of the sums it was rounded from: drivers may leave out a rounding that is widened again (lavapipe does: 3.9e-4).
#[test]
fn moments() {
    if !on_each_device("half::moments") || !has_half() {
        return;
    }
    for conv in [case([1, 5, 3, 4], 20, 3, 1, 1), case([2, 16, 40, 40], 40, 1, 1, 0)] {
        let error = error_of_moments(conv, 0.0, half);
        assert!(error <= 2.0_f32.powi(-11), "{conv:?}: {error:.1e}");
    }
}

/// What only moves numbers keeps their bits; sums are rounded once.
#[test]
fn planes() {
    if !on_each_device("half::planes") || !has_half() {
        return;
    }
    // Numbers that f16 has.
    let few = |stream: u64, shape: [usize; 4]| {
        let values = pattern(stream, shape.iter().product()).into_iter().map(|v| (v * 64.0).round() / 16.0).collect::<Vec<f32>>();
        TensorData::new(values, shape)
    };
    let shape @ [n, c, h, w] = [2, 6, 9, 14];
    let all = |upload: fn(TensorData) -> CubeTensor| {
        let x = || upload(few(1, shape));
        [
            CubeBackend::max_pool_same(x(), 5),
            CubeBackend::max_pool_same_grad(x(), upload(few(2, shape)), 5),
            CubeBackend::double(x()),
            CubeBackend::double_grad(upload(few(3, [n, c, 2 * h, 2 * w]))),
            CubeBackend::slice_channels(x(), 1, 3),
            CubeBackend::pad_channels(x(), 2, 10),
            CubeBackend::concat_channels(Parts(vec![x(), upload(few(4, [n, 3, h, w])), x()])),
        ]
    };
    for (i, (gpu, expected)) in all(half).into_iter().zip(all(cube)).enumerate() {
        assert_eq!(gpu.dtype, DType::F16);
        assert_eq!(numbers(gpu), numbers(expected), "operation {i}");
    }
    let wide = CubeBackend::widen(half(few(1, shape)));
    assert_eq!((wide.dtype, numbers(wide)), (DType::F32, numbers(cube(few(1, shape)))));
}

/// A long sum of few numbers is cut into parts, which are f32 until they are one.
#[test]
fn a_product_in_parts() {
    if !on_each_device("half::a_product_in_parts") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let matrix = |stream: u64, shape: [usize; 2]| TensorData::new(pattern(stream, shape[0] * shape[1]), shape);
    let (a, b) = (matrix(1, [5, 2000]), matrix(2, [2000, 33]));
    let product = || CubeBackend::product(half(a.clone()), half(b.clone()));
    let expected = Flex::float_matmul(FlexTensor::from_data(a.clone()), FlexTensor::from_data(b.clone())).into_f32();
    check("in parts", product(), IMAGE, &expected);
    let launched = trace(product);
    assert!(launched.keys().any(|name| name.contains("add_parts_kernel")), "{launched:?}");
}

/// Products with a weight and a low-rank branch, both ways: what the processor makes of the same rounded factors, rounded once more.
#[test]
fn products() {
    if !on_each_device("half::products") || !has_half() {
        return;
    }
    let ([n, out, input, rank], scaling) = ([9, 40, 96, 4], 0.5);
    let matrix = |stream: u64, shape: [usize; 2]| TensorData::new(pattern(stream, shape[0] * shape[1]), shape);
    let (x, dy, w) = (matrix(1, [n, input]), matrix(2, [n, out]), matrix(3, [out, input]));
    let (a, b) = (matrix(4, [rank, input]), matrix(5, [out, rank]));
    let flex = |data: &TensorData| FlexTensor::from_data(data.clone());
    let on_flex = |precision: Precision| {
        let w = || StoredWeight::Dense(flex(&w));
        let branch = || Branch::<Flex>::LowRank(StoredBranch { a: flex(&a), b: flex(&b), scaling });
        let y = Flex::linear_forward(flex(&x), StoredMap { weight: w(), bias: Maybe::None, branch: branch() }, precision);
        let dx = Flex::linear_data_grad(flex(&dy), w(), branch(), precision);
        [y, dx].map(|t| t.as_slice::<f32>().unwrap().to_vec())
    };
    for precision in [Precision::F16, Precision::PureF16] {
        for stored in [cube(w.clone()), half(w.clone())] {
            let w = || StoredWeight::Dense(stored.clone());
            let [x, dy, a, b] = [&x, &dy, &a, &b].map(|data| cube(data.clone()));
            let branch = || Branch::<CubeBackend>::LowRank(StoredBranch { a: a.clone(), b: b.clone(), scaling });
            let y = CubeBackend::linear_forward(x, StoredMap { weight: w(), bias: Maybe::None, branch: branch() }, precision);
            let dx = CubeBackend::linear_data_grad(dy, w(), branch(), precision);
            for (gpu, (halves, plain)) in [y, dx].into_iter().zip(on_flex(precision).into_iter().zip(on_flex(Precision::F32))) {
                assert_eq!(gpu.dtype, DType::F32);
                let gpu = numbers(gpu);
                assert!(relative(&gpu, &halves) < 3.0 * EPSILON, "{precision:?}: {:.1e}", relative(&gpu, &halves));
                assert!(relative(&gpu, &plain) > 0.01 * EPSILON, "{precision:?}: that is f32");
            }
        }
    }
}

/// A weight in 16 bits beside numbers in f32, both ways: the bits of the same weight in f32, and no copy of it.
#[test]
fn weights_are_read_where_they_lie() {
    if !on_each_device("half::weights_are_read_where_they_lie") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let ([n, out, input], matrix) =
        ([9, 40, 96], |stream: u64, shape: [usize; 2]| TensorData::new(pattern(stream, shape[0] * shape[1]), shape));
    let w = matrix(3, [out, input]).convert::<f16>();
    let both = |stored: CubeTensor| {
        let w = || StoredWeight::Dense(stored.clone());
        let y = CubeBackend::linear_forward(
            cube(matrix(1, [n, input])),
            StoredMap { weight: w(), bias: Maybe::None, branch: Branch::Zero },
            Precision::F32,
        );
        [y, CubeBackend::linear_data_grad(cube(matrix(2, [n, out])), w(), Branch::Zero, Precision::F32)].map(numbers)
    };
    let (halves, whole) = (cube(w.clone()), cube(w.convert::<f32>()));
    assert!(both(halves.clone()) == both(whole));
    assert_ours(&trace(|| both(halves)), &[("matmul_kernel", 2)]);
}
