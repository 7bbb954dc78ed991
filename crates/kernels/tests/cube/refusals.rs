//! Wrong shapes at every public function, on the processor and on devices, with gradients and without: refused in the same words, and on a device before
//! anything is launched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bellows_kernels::arena::ArenaOps;
use bellows_kernels::attention::AttentionOps;
use bellows_kernels::cube::{largest_allocation, shared_memory_works};
use bellows_kernels::decoder::DecoderOps;
use bellows_kernels::logits::LogitOps;
use bellows_kernels::operands::{Maybe, NormChannels};
use bellows_kernels::ops::KernelOps;
use bellows_kernels::planes::PlaneOps;
use bellows_kernels::products::{Branch, Form, ProductOps, StoredMap, StoredWeight};
use bellows_kernels::update::UpdateOps;
use bellows_kernels::{
    Adam, Blocks, Coding, ConvConfig, Foreground, LowRank, Lowering, Map, NormStep, Object, Objects, Places, Positive, Precision, Segments,
    Sgd, adam_step, add, arena, arena_parts, assigned_terms, attention, batch_norm_silu, blend, clip_to_norm, concat, conv2d,
    conv2d_data_grad, conv2d_for_norm, conv2d_silu, conv2d_weight_grad, cross_entropy, cross_entropy_loss, detection_terms, dropout,
    expectation, images, inference, lead, linear, linear_data_grad, linear_weight_grad, maps, max_pool_same, predictions, rms_norm, rotate,
    scores, set_default_lowering, sgd_step, slice_channels, sum_of_squares, swiglu,
};
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::tensor::{DType, Device, DeviceKind, Int, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::half::half;
use crate::launches::{assert_ours, trace};
use crate::support::{cube, device, on_each_device};

/// Checks that `f` panics with a message of which this is a part.
fn refused<R>(f: impl FnOnce() -> R, message: &str) {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().unwrap();
    let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap();
    assert!(said.contains(message), "{said:?} for {message:?}");
}

/// Uploaded, so that nothing is launched.
fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::zeros::<f32, _>(shape), device)
}

fn indices<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::zeros::<i32, _>(shape), device)
}

fn convolutions(device: &Device) {
    let (x, w, dy) = (|| zeros([2, 3, 8, 8], device), || zeros([5, 3, 3, 3], device), || zeros([2, 5, 4, 4], device));
    let config = ConvConfig::new(2, 1, Lowering::Auto);
    for lowering in Lowering::ALL {
        let config = ConvConfig { lowering, ..config };
        refused(|| conv2d(zeros([2, 4, 8, 8], device), w(), None, config), "4 channels in 1 groups for a weight of shape [5, 3, 3, 3]");
    }
    refused(|| conv2d_for_norm(vec![], w(), config), "a concatenation of nothing");
    let parts = |last| vec![zeros([2, 1, 8, 8], device), zeros(last, device)];
    refused(|| conv2d_for_norm(parts([2, 2, 8, 4]), w(), config), "a part is [2, 2, 8, 4] and not [2, 2, 8, 8]");
    refused(|| conv2d_for_norm(parts([2, 3, 8, 8]), w(), config), "4 channels in 1 groups for a weight of shape [5, 3, 3, 3]");
    refused(|| conv2d(x(), w(), Some(zeros([4], device)), config), "bias is [4] and not [5]");
    refused(|| conv2d_silu(x(), w(), Some(zeros([4], device)), config), "bias is [4] and not [5]");
    refused(|| conv2d(x(), w(), None, ConvConfig { stride: [0, 1], ..config }), "stride: [0, 1]");
    refused(|| conv2d_data_grad(dy(), w(), &[3], [0, 8], config), "a convolution of [2, 3, 0, 8] with [5, 3, 3, 3]");
    refused(|| conv2d_data_grad(dy(), w(), &[3, 1], [8, 8], config), "4 channels in 1 groups for a weight of shape [5, 3, 3, 3]");
    refused(|| conv2d_data_grad(dy(), w(), &[1, 2], [10, 8], config), "dy is [2, 5, 4, 4] and not [2, 5, 5, 4]");
    refused(|| conv2d_data_grad(zeros([2, 6, 4, 4], device), w(), &[3], [8, 8], config), "dy is [2, 6, 4, 4] and not [2, 5, 4, 4]");
    refused(|| conv2d_weight_grad(vec![x()], zeros([1, 5, 4, 4], device), [3, 3], config), "dy is [1, 5, 4, 4] and not [2, 5, 4, 4]");
    refused(|| conv2d_weight_grad(parts([2, 2, 8, 4]), dy(), [3, 3], config), "a part is [2, 2, 8, 4] and not [2, 2, 8, 8]");

    let channels = |n: usize| zeros([n], device);
    let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
    let norm = |gamma, beta, running| batch_norm_silu(x(), channels(gamma), channels(beta), [channels(3), channels(running)], step, None);
    refused(|| norm(2, 3, 3), "gamma is [2] and not [3]");
    refused(|| norm(3, 4, 3), "beta is [4] and not [3]");
    refused(|| norm(3, 3, 2), "a running statistic is [2] and not [3]");
}

fn planes(device: &Device) {
    let x = || zeros([2, 6, 8, 8], device);
    refused(|| concat(vec![]), "a concatenation of nothing");
    refused(|| concat(vec![x(), zeros([2, 3, 8, 4], device)]), "a part is [2, 3, 8, 4] and not [2, 3, 8, 8]");
    refused(|| add(x(), zeros([2, 6, 8, 7], device)), "y is [2, 6, 8, 7] and not [2, 6, 8, 8]");
    refused(|| slice_channels(x(), 4, 3), "channels 4..7 of 6");
    refused(|| slice_channels(x(), 1, usize::MAX), "of 6");
    refused(|| max_pool_same(x(), 4), "a pooling window of 4");
    refused(|| images(&[0; 7], [2, 1, 2, 2], 3, device), "7 bytes of images [2, 1, 2, 2]");
    refused(|| images(&[], [2, 0, 2, 2], 3, device), "0 bytes of images [2, 0, 2, 2]");
}

fn of_a_detector(device: &Device) {
    let x = || zeros([2, 6, 8], device);
    refused(|| expectation(x(), 2, 4), "rows 0..8 of 6");
    refused(|| expectation(x(), 1, 0), "distributions over nothing");
    refused(|| scores(x(), 7), "rows 7..6 of 6");
    let predicted = |centres, strides, chosen, bins| predictions(x(), zeros(centres, device), zeros(strides, device), chosen, bins);
    refused(|| predicted([1, 2, 8], [1, 1, 8], vec![0], 2), "rows 0..8 of 6");
    refused(|| predicted([1, 2, 7], [1, 1, 8], vec![0], 1), "centres is [1, 2, 7] and not [1, 2, 8]");
    refused(|| predicted([1, 2, 8], [1, 2, 8], vec![0], 1), "strides is [1, 2, 8] and not [1, 1, 8]");
    refused(|| predicted([1, 2, 8], [1, 1, 8], vec![3, 12], 1), "rows [3, 12] of 12");
    refused(|| predicted([1, 2, 8], [1, 1, 8], vec![-1], 1), "rows [-1] of 12");

    let learns = |image, anchor, class| Positive { image, anchor, class, centre: [1.0; 2], target: [0.0, 0.0, 2.0, 2.0], weight: 1.0 };
    let terms = |channels, positives| {
        detection_terms(zeros([2, channels, 8], device), Foreground { positives: Arc::new(positives), gains: [1.0; 3], norm: 1.0 })
    };
    refused(|| terms(60, vec![]), "side logits 0..64 of 60");
    for outside in [learns(2, 0, 0), learns(0, 8, 0), learns(0, 0, 1)] {
        refused(|| terms(65, vec![outside]), "a positive that is not among outputs of [2, 65, 8]");
    }
    refused(|| terms(65, vec![learns(1, 3, 0); 2]), "two positives at one anchor");

    let found = |channels, anchors, all: &[(u32, u32)]| assigned_terms(zeros([2, channels, 8], device), objects(anchors, all));
    refused(|| found(60, 8, &[]), "side logits 0..64 of 60");
    refused(|| found(65, 7, &[]), "centres and strides of [7, 7] anchors, and outputs of 8");
    for outside in [(2, 0), (0, 1)] {
        refused(|| found(65, 8, &[outside]), "an object that is not among outputs of [2, 65, 8]");
    }
    refused(|| found(65, 8, &[(1, 0), (0, 0)]), "objects that are not in the order of their images");
}

/// Objects of these images and classes, and so many anchors.
fn objects(anchors: usize, all: &[(u32, u32)]) -> Objects {
    let all = all.iter().map(|&(image, class)| Object { image, class, xyxy: [0.0, 0.0, 8.0, 8.0] });
    Objects { all: all.collect(), centres: vec![[0.5; 2]; anchors], strides: vec![8.0; anchors], gains: [1.0; 3] }
}

fn of_a_decoder(device: &Device) {
    refused(|| rms_norm(zeros([4, 8], device), zeros([7], device), 1e-6), "the weight is [7] and not [8]");
    refused(|| swiglu(zeros([4, 8], device), zeros([4, 9], device)), "up is [4, 9] and not [4, 8]");
    let turned = |keys, cos, sin| rotate(zeros([2, 3, 4, 8], device), zeros(keys, device), zeros(cos, device), zeros(sin, device));
    let (keys, angles) = ([2, 3, 2, 8], [1, 1, 3, 4]);
    refused(|| turned([2, 3, 2, 6], angles, angles), "the keys is [2, 3, 2, 6] and not [2, 3, 2, 8]");
    refused(|| turned(keys, [1, 1, 2, 4], angles), "cos is [1, 1, 2, 4] and not [1, 1, 3, 4]");
    refused(|| turned(keys, angles, [1, 1, 4, 4]), "sin is [1, 1, 4, 4] and not [1, 1, 3, 4]");
    refused(|| turned(keys, [3, 1, 3, 4], angles), "cos is [3, 1, 3, 4] and not [2, 1, 3, 4]");
    let odd = || zeros([2, 3, 4, 7], device);
    refused(|| rotate(odd(), odd(), zeros(angles, device), zeros(angles, device)), "heads of 7 have no halves");

    let (q, k) = ([1, 4, 3, 8], [1, 2, 5, 8]);
    for (q, k, v, first) in [
        ([1, 3, 3, 8], k, k, [1, 3]),
        (q, [2, 2, 5, 8], [2, 2, 5, 8], [1, 3]),
        (q, [1, 2, 5, 6], k, [1, 3]),
        (q, [1, 2, 2, 8], [1, 2, 2, 8], [1, 3]),
        (q, k, [1, 2, 4, 8], [1, 3]),
        (q, k, k, [1, 4]),
    ] {
        let attend = || attention(zeros(q, device), zeros(k, device), zeros(v, device), indices(first, device), 1.0);
        refused(attend, &format!("queries {q:?}, keys {k:?}, values {v:?}, first keys {first:?}"));
    }
    for scale in [0.0, -0.5, f64::NAN, f64::INFINITY] {
        let attend = || attention(zeros(q, device), zeros(k, device), zeros(k, device), indices([1, 3], device), scale);
        refused(attend, &format!("attention with a scale of {scale}"));
    }
    refused(|| lead(zeros([2, 3], device), zeros([2, 2], device)), "the gradient is [2, 2] and not [2, 3]");
    refused(|| dropout(zeros([3], device), 0, 1.0), "a dropout of 1");
    let logits = || zeros([4, 9], device);
    refused(|| cross_entropy(logits(), indices([3], device)), "targets is [3] and not [4]");
    refused(|| cross_entropy_loss(logits(), indices([5], device)), "targets is [5] and not [4]");
}

fn products(device: &Device) {
    let matrix = |rows: usize, columns: usize| zeros([rows, columns], device);
    let channels = |n: usize| zeros([n], device);
    let precision = Precision::F32;
    refused(|| linear(matrix(1, 3), matrix(2, 4), None, precision), "x has 3 columns, and the weight is [2, 4]");
    refused(|| linear(matrix(1, 4), matrix(2, 4), Some(channels(3)), precision), "a bias is [3] and not [2]");
    refused(|| linear_data_grad(matrix(1, 3), matrix(2, 4), precision), "dy has 3 columns, and the weight is [2, 4]");
    refused(|| linear_weight_grad(matrix(3, 4), matrix(2, 5)), "x has 3 rows, and dy 2");

    let map = |bias: Option<usize>, branch: Option<LowRank>| Map { weight: matrix(2, 4).into(), bias: bias.map(channels), branch };
    let branch = |a, b| Some(LowRank { a, b, scaling: 1.0 });
    let mapped = |width, map, onto| maps(matrix(1, width), [map], onto, false, precision);
    refused(|| mapped(3, map(None, None), None), "x has 3 columns, and a weight is [2, 4]");
    refused(|| mapped(4, map(Some(3), None), None), "a bias is [3] and not [2]");
    refused(|| mapped(4, map(None, branch(matrix(2, 5), matrix(2, 2))), None), "A is [2, 5] and not [2, 4]");
    refused(|| mapped(4, map(None, branch(matrix(2, 4), matrix(3, 2))), None), "B is [3, 2] and not [2, 2]");
    refused(|| mapped(4, map(None, None), Some(matrix(1, 3))), "what the first result is added to is [1, 3] and not [1, 2]");
    refused(|| maps(matrix(1, 4), [(); 4].map(|()| map(None, None)), None, false, precision), "4 maps of an input");

    for encode in [Blocks::bf16, Blocks::int8, Blocks::nf4] {
        refused(|| encode(&[0.0; 5], [2, 3], device), "values of a matrix of shape [2, 3]");
    }
    // Of 32 values in 18 bytes.
    let coding = Coding::of_ggml(2, |_, out| out.fill(0.0)).unwrap();
    for (bytes, shape) in [(71, [2, 64]), (36, [2, 48])] {
        let blocks = || Blocks::of_file(vec![0; bytes], coding, shape, device);
        refused(blocks, &format!("{bytes} bytes of blocks"));
    }
}

fn updates(device: &Device) {
    let c = |n: usize| zeros([n], device);
    let sgd = || vec![(9, Sgd { lr: 0.1, momentum: 0.9, decay: 0.0 })];
    let rule = Adam { rate: 0.1, beta1: 0.9, beta2: 0.9, root: 1.0, epsilon: 1e-8, decay: 0.0, keep: 1.0 };
    let adam = || vec![(9, rule)];
    refused(|| sgd_step(c(9), c(8), None, sgd()), "the gradient is [8] and not [9]");
    refused(|| sgd_step(c(9), c(9), Some(c(10)), sgd()), "the buffer is [10] and not [9]");
    refused(|| adam_step(c(9), c(8), None, None, adam()), "the gradient is [8] and not [9]");
    refused(|| adam_step(c(9), c(9), Some(c(8)), None, adam()), "a moment is [8] and not [9]");
    refused(|| adam_step(c(9), c(9), Some(c(9)), Some(c(7)), adam()), "a moment is [7] and not [9]");
    refused(|| adam_step(c(9), c(9), None, None, vec![(8, rule)]), "the end of the last range is [8] and not [9]");
    refused(|| adam_step(c(9), c(9), None, None, vec![(5, rule), (3, rule), (9, rule)]), "ranges that do not follow each other");
    refused(|| blend(c(9), c(8), 0.5, 0.5), "the new value is [8] and not [9]");
    refused(|| sum_of_squares(vec![c(9)], Segments(vec![(0, 0..9), (0, 3..10)])), "a segment 3..10 of 9");
    refused(|| sum_of_squares(vec![c(9)], Segments(vec![(1, 0..3)])), "a segment 0..3 of 0");
    refused(|| clip_to_norm(c(9), c(2), 1.0), "the sum of squares is [2] and not [1]");
    refused(|| clip_to_norm(c(9), c(1), 0.0), "a norm of at most 0");
    refused(|| clip_to_norm(c(9), c(1), f64::NAN), "a norm of at most NaN");
    let places = Places::of([3, 4]);
    refused(|| arena(vec![c(3)], &places), "tensors for so many places");
    refused(|| arena(vec![c(3), c(5)], &places), "a part is [5] and not [4]");
    refused(|| arena_parts(c(9), &places), "the arena is [9] and not [132]");
}

fn everything(device: &Device) {
    for refusals in [convolutions, planes, of_a_detector, of_a_decoder, products, updates] {
        refusals(device);
    }
}

#[test]
fn on_the_processor() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        everything(&device);
        refused(|| assigned_terms(zeros([2, 65, 8], &device), objects(8, &[(0, 0)])), "objects on a processor, or of a part of a batch");
        assert_eq!(largest_allocation(&device), None);
    }
}

/// A device reads what it is told to read, so nothing may be launched before shapes are found to fit.
#[test]
fn on_a_device() {
    if !on_each_device("refusals::on_a_device") {
        return;
    }
    let vulkan = Device::vulkan(DeviceKind::DefaultDevice);
    for device in [vulkan.clone(), vulkan.autodiff()] {
        assert_ours(&trace(|| everything(&device)), &[]);
        assert!(largest_allocation(&device).is_some_and(|most| most >= 128 << 20), "WebGPU's least");
    }
}

/// Kernels do not check their indices, so what an operation of the backend is given is compared with what they reach, whoever calls it.
#[test]
fn on_the_way_to_a_kernel() {
    fn made<const D: usize>(shape: [usize; D]) -> CubeTensor {
        cube(TensorData::zeros::<f32, _>(shape))
    }
    if !on_each_device("refusals::on_the_way_to_a_kernel") {
        return;
    }
    // Each device is asked once.
    assert!(shared_memory_works(&device()));
    let refusals = || {
        refused(|| CubeBackend::swiglu(made([1000]), made([999])), "swiglu_kernel: tensor 1 has 999 numbers, and 1000 are asked for");
        refused(|| CubeBackend::rms_norm(made([4, 8]), made([7]), 1e-6), "tensor 1 has 7 numbers, and 8 are asked for");
        let scores = || made([2, 3, 5, 8]);
        refused(|| CubeBackend::masked_softmax(scores(), made([2, 1, 5, 7]), 1.0), "tensor 1 has 70 numbers, and 80 are asked for");
        let angles = || made([1, 1, 2, 4]);
        let turned = || CubeBackend::rotate(made([2, 3, 4, 8]), made([2, 3, 2, 8]), angles(), angles());
        refused(turned, "what is turned is [2, 3, 8] and not [2, 2, 8]");
        let attend = || {
            let first = CubeBackend::int_from_data(TensorData::zeros::<i32, _>([1, 3]), &device());
            CubeBackend::attend(made([1, 4, 3, 8]), made([1, 2, 2, 8]), made([1, 2, 2, 8]), first, 1.0)
        };
        refused(attend, "queries [1, 4, 3, 8], keys [1, 2, 2, 8]");

        let image = || made([2, 3, 4, 4]);
        let channels = NormChannels::<CubeBackend> { mean: made([3]), variance: made([3]), gamma: made([2]), beta: made([3]) };
        let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
        let norm = || CubeBackend::norm_act_again(image(), channels, step, Maybe::None);
        refused(norm, "norm_output_kernel: tensor 3 has 2 numbers, and 3 are asked for");
        refused(|| CubeBackend::max_pool_same_grad(image(), made([2, 3, 4, 2]), 3), "dy is [2, 3, 4, 2] and not [2, 3, 4, 4]");
        refused(|| CubeBackend::add_to_channels(image(), made([1, 3, 4, 4]), 0), "a part is [1, 3, 4, 4] and not [2, 3, 4, 4]");
        for row in [12, -1] {
            let predict = || CubeBackend::predictions(made([2, 6, 8]), made([1, 2, 8]), made([1, 1, 8]), vec![0, row], 1);
            refused(predict, "predictions_kernel: tensor 0 has 96 numbers, and ");
        }
        let sgd = |end| vec![(end, Sgd { lr: 0.1, momentum: 0.9, decay: 0.0 })];
        refused(|| CubeBackend::sgd_step(made([10]), made([10]), made([10]), sgd(11)), "the end of the last range is [11] and not [10]");
        refused(|| CubeBackend::sgd_step(made([9]), made([10]), made([10]), sgd(10)), "tensor 0 has 9 numbers, and 10 are asked for");
        refused(|| CubeBackend::arena_parts(made([9]), Places::of([3, 4000])), "numbers 128..4128 of ");
    };
    assert_ours(&trace(refusals), &[]);
}

/// Numbers of half the size, as many as the kernel asks for: it would read as far again behind them.
#[test]
fn of_another_type_on_the_way_to_a_kernel() {
    fn made<const D: usize>(shape: [usize; D]) -> CubeTensor {
        cube(TensorData::zeros::<f32, _>(shape))
    }
    // Uploaded, for which no device has to have the type.
    fn halves<const D: usize>(shape: [usize; D]) -> CubeTensor {
        half(TensorData::zeros::<f32, _>(shape))
    }
    fn words(values: TensorData) -> CubeTensor {
        CubeBackend::int_from_data(values, &device())
    }
    /// Int8s of 1000 rows, 2000 words of them.
    fn blocks(codes: CubeTensor, scales: CubeTensor) -> StoredWeight<CubeBackend> {
        StoredWeight::Blocks { codes, scales, form: Form::Int8, shape: [1000, 8] }
    }
    if !on_each_device("refusals::of_another_type_on_the_way_to_a_kernel") {
        return;
    }
    // Each device is asked once.
    assert!(shared_memory_works(&device()));
    set_default_lowering(Lowering::Gemm);
    let refusals = || {
        for (y, dy, logs, which) in [
            (halves([1, 4, 3, 8]), made([1, 4, 3, 8]), made([1, 4, 3]), 0),
            (made([1, 4, 3, 8]), halves([1, 4, 3, 8]), made([1, 4, 3]), 1),
            (made([1, 4, 3, 8]), made([1, 4, 3, 8]), halves([1, 4, 3]), 2),
        ] {
            let (q, k, first) = (made([1, 4, 3, 8]), made([1, 2, 5, 8]), words(TensorData::zeros::<i32, _>([1, 3])));
            let grad = || CubeBackend::attend_grad(q, k.clone(), k, first, y, logs, dy, 1.0);
            refused(grad, &format!("rows_kernel: tensor {which} is F16, and the kernel steps by F32"));
        }
        let channels = || made([3]);
        let channels = NormChannels::<CubeBackend> { mean: channels(), variance: channels(), gamma: channels(), beta: channels() };
        let step = NormStep { epsilon: 1e-3, silu: true, momentum: 0.1 };
        let norm = || CubeBackend::norm_act(made([2, 3, 4, 4]), Maybe::Some(halves([3, 3, 2])), channels, step, Maybe::None);
        refused(norm, "norm_statistics_kernel: tensor 0 is F16, and the kernel steps by F32");

        let config = ConvConfig::new(1, 1, Lowering::Gemm);
        let bias = || Maybe::<CubeBackend>::Some(halves([5]));
        let (image, weight) = (|| made([2, 3, 4, 4]), || made([5, 3, 3, 3]));
        let message = "bias of a product: tensor 0 is F16, and the kernel steps by F32";
        refused(|| CubeBackend::conv_forward(image(), weight(), bias(), config), message);
        refused(|| CubeBackend::conv_silu(image(), weight(), bias(), config), message);

        let codes = || words(TensorData::zeros::<i32, _>([2000]));
        let dense = |codes, scales| CubeBackend::dense_weight(blocks(codes, scales));
        refused(|| dense(codes(), halves([1000])), "dense_kernel: tensor 1 is F16, and the kernel steps by F32");
        refused(|| dense(words(TensorData::zeros::<i8, _>([2000])), made([1000])), "dense_kernel: tensor 0 is I8");
        // One scale for all rows, of stride 0.
        let one = || CubeBackend::float_expand(made([1]), [1000].into());
        refused(|| dense(codes(), one()), "numbers, and 1000 are asked for");
        let product = |rows: usize, codes, scales| {
            CubeBackend::linear_forward(
                made([rows, 8]),
                StoredMap { weight: blocks(codes, scales), bias: Maybe::None, branch: Branch::Zero },
                Precision::F32,
            )
        };
        refused(|| product(5, codes(), halves([1000])), "scales of a product: tensor 0 is F16, and the kernel steps by F32");
        refused(|| product(5, codes(), one()), "numbers, and 1000 are asked for");
        refused(|| product(5, words(TensorData::zeros::<i8, _>([2000])), made([1000])), "and number 7999 is asked for");
        refused(|| product(4, codes(), halves([1000])), "few rows: tensor 2 is F16, and the kernel steps by F32");
        refused(|| product(4, codes(), one()), "numbers, and 1000 are asked for");
        refused(|| product(4, words(TensorData::zeros::<i8, _>([2000])), made([1000])), "few rows: tensor 1 is I8");
    };
    assert_ours(&trace(refusals), &[]);
}

/// A bias of another type than the weight's has no numbers for the processor, and none for a device.
#[test]
fn a_bias_of_another_type_on_the_processor() {
    let device = Device::flex();
    let bias = || zeros([5], &device).cast(DType::F16);
    let config = ConvConfig::new(1, 1, Lowering::Auto);
    refused(|| conv2d(zeros([2, 3, 4, 4], &device), zeros([5, 3, 3, 3], &device), Some(bias()), config), "length of the bias");
}

/// A network that is only used has slices in place of tensors.
#[test]
fn on_slices() {
    let (device, config) = (Device::flex(), ConvConfig::new(2, 1, Lowering::Auto));
    let convolution = |bias| inference::Convolution::new(zeros([5, 3, 3, 3], &device), bias, &config, true);
    refused(|| convolution(Some(zeros([4], &device))), "bias is [4] and not [5]");
    let convolution = convolution(None).unwrap();
    let run = |x, out| convolution.run([8, 8], &vec![0.0; x], &mut vec![0.0; out]);
    run(3 * 64, 5 * 16);
    refused(|| run(3 * 63, 5 * 16), "length of the input");
    refused(|| run(3 * 64, 5 * 15), "length of the output");
    let (x, size) = ([0.0; 6], [2, 3]);
    refused(|| inference::add(&x, &mut [0.0; 5]), "lengths of a sum");
    refused(|| inference::max_pool(size, 3, &x, &mut [0.0; 5]), "6 to 5 values, planes of [2, 3]");
    refused(|| inference::max_pool(size, 2, &x, &mut [0.0; 6]), "a pooling window of 2");
    refused(|| inference::max_pool([2, 2], 3, &x, &mut [0.0; 6]), "6 to 6 values, planes of [2, 2]");
    refused(|| inference::double(size, &x, &mut [0.0; 23]), "6 to 23 values, planes of [2, 3]");
    let doubles = zeros([1, 3, 2, 2], &device).cast(DType::F64);
    refused(|| inference::image_by_image(doubles, &[[1, 2, 2]], |_| ()), "images that are not f32 on the processor");
}
