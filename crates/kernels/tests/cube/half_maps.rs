//! Maps whose results lie in f16, and what is made of them, on the device that has f16: the numbers of f64, rounded where they are written and nowhere else.

use crate::half::{half, has_half};
use crate::launches::{assert_ours, most_in_use, trace};
use crate::support::{Numbers, counted, cube, device, flex, flex64, numbers, on_each_device, pattern, relative};
use bellows_kernels::cube::shared_memory_works;
use bellows_kernels::decoder::DecoderOps;
use bellows_kernels::maps::{MapOps, Maps};
use bellows_kernels::operands::Maybe;
use bellows_kernels::planes::Parts;
use bellows_kernels::products::{Branch, StoredBranch, StoredMap, StoredWeight};
use bellows_kernels::{Lowering, Map, Precision, attention, enter, lead, maps, rotate, set_default_lowering, swiglu};
use burn::tensor::{DType, Device, DeviceKind, Int, Tensor, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::Flex;

/// Numbers of f16 are at most 2^-10 of the smaller one apart, and those below 2^-14 are 2^-24 apart: one that is written there moves by half of that.
const EPSILON: f32 = 1.0 / 2048.0;
const LEAST: f32 = EPSILON / (1 << 14) as f32;
/// What sums in f32 are off by, of the largest result (as in `maps`).
const SUMS: f32 = 5e-6;

/// Numbers in [-1, 1] that f16 has: as factors nothing rounds them.
fn few<const D: usize>(stream: u64, shape: [usize; D]) -> TensorData {
    let values: Vec<f32> = pattern(stream, shape.iter().product()).into_iter().map(|v| (v * 1024.0).round() / 1024.0).collect();
    TensorData::new(values, shape)
}

/// Each number is the exact one, but for its sum and, in f16, for being written there.
fn check(what: &str, ours: CubeTensor, dtype: DType, exact: &[f32]) {
    assert_eq!(ours.dtype, dtype, "{what}");
    let (ours, largest) = (numbers(ours), exact.iter().fold(0.0f32, |most, v| most.max(v.abs())));
    assert!(ours.len() == exact.len() && largest > 0.0, "{what}");
    let (rounding, least) = if dtype == DType::F16 { (EPSILON, LEAST) } else { (0.0, 0.0) };
    for (i, (ours, exact)) in ours.iter().zip(exact).enumerate() {
        let limit = SUMS * largest + rounding * (exact.abs() + SUMS * largest) + least;
        assert!((ours - exact).abs() <= limit, "{what}: number {i} is {ours} for {exact}, {limit:.1e} apart at most");
    }
}

/// Maps of one input, each with its outputs and the rank of its branch, 0 for none.
struct Case {
    rows: usize,
    input: usize,
    maps: Vec<(usize, usize)>,
    /// As down is: x in f16, what is added to and results in f32. Else as gate and up: x in f32, results in f16.
    down: bool,
}

impl Case {
    fn maps<B: MapOps>(&self, half: bool, put: impl Fn(TensorData, bool) -> B::FloatTensorPrimitive) -> Maps<B> {
        let one = |(i, &(out, rank)): (usize, &(usize, usize))| {
            let matrix = |stream: u64, shape: [usize; 2], in_f16| put(few(10 * i as u64 + stream, shape), in_f16);
            let branch = || StoredBranch { a: matrix(2, [rank, self.input], false), b: matrix(3, [out, rank], false), scaling: 0.5 };
            // As a card has it.
            let weight = StoredWeight::Dense(matrix(1, [out, self.input], true));
            StoredMap { weight, bias: Maybe::None, branch: (rank > 0).then(branch).into() }
        };
        Maps { all: self.maps.iter().enumerate().map(one).collect(), half }
    }

    fn x(&self) -> TensorData {
        few(100, [self.rows, self.input])
    }

    fn dys<B: MapOps>(&self, put: impl Fn(TensorData, bool) -> B::FloatTensorPrimitive) -> Parts<B> {
        Parts((0..self.maps.len()).map(|i| put(few(200 + i as u64, [self.rows, self.maps[i].0]), !self.down)).collect())
    }

    /// The results, the gradient of x, those of the branches; `put` is told what is to lie in f16.
    fn run<B: MapOps>(
        &self,
        precision: Precision,
        put: impl Fn(TensorData, bool) -> B::FloatTensorPrimitive,
    ) -> Vec<B::FloatTensorPrimitive> {
        let x = put(self.x(), self.down);
        let onto = self.down.then(|| put(few(101, [self.rows, self.maps[0].0]), false));
        let mut results = B::maps(x.clone(), self.maps(!self.down, &put), onto.into(), precision).0;
        let besides = results.split_off(self.maps.len());
        let branches = self.maps.iter().any(|(_, rank)| *rank > 0);
        let kept = Parts(branches.then_some(x).into_iter().chain(besides).collect());
        let order = (0..self.maps.len()).collect();
        results.extend(B::maps_grad(kept, self.maps(self.down, &put), self.dys(&put), order, Maybe::None, true, precision).0);
        results
    }

    /// The same in f64.
    fn exact(&self) -> Vec<Vec<f32>> {
        self.run::<Flex>(Precision::F32, |data, _| flex64(data)).into_iter().map(Numbers::into_f32).collect()
    }

    /// The type of a tensor of [`run`](Self::run).
    fn dtype(&self, tensor: usize) -> DType {
        let is_half = if self.down { tensor == self.maps.len() } else { tensor < self.maps.len() };
        if is_half { DType::F16 } else { DType::F32 }
    }
}

fn put(data: TensorData, in_f16: bool) -> CubeTensor {
    if in_f16 { half(data) } else { cube(data) }
}

/// (Over the kernel of branches through shared memory lavapipe's compiler takes minutes; the same without is asked for in `main`.)
#[test]
fn results_and_gradients() {
    if !on_each_device("half_maps::results_and_gradients") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let rank = if shared_memory_works(&device()) { 0 } else { 4 };
    for (down, maps) in [(false, vec![(43, rank), (20, 0), (24, 2 * rank)]), (true, vec![(43, rank)])] {
        let case = Case { rows: 33, input: 51, maps, down };
        for (i, (ours, exact)) in case.run::<CubeBackend>(Precision::F16, put).into_iter().zip(case.exact()).enumerate() {
            check(&format!("down {down}, tensor {i}"), ours, case.dtype(i), &exact);
        }
        // As in f32.
        let launched = trace(|| case.run::<CubeBackend>(Precision::F16, put));
        assert_ours(&launched, &[("group_kernel", if rank > 0 { 1 + 2 } else { 0 }), ("map_kernel", 2 * case.maps.len())]);
    }
}

/// A and B read what lies in f16, x or the gradients of the results, beside numbers in f32: in two launches, as where all is f32.
#[test]
fn gradients_of_branches() {
    if !on_each_device("half_maps::gradients_of_branches") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    // Each device is asked once.
    shared_memory_works(&device());
    for down in [false, true] {
        let case = Case { rows: 33, input: 51, maps: vec![(43, 4)], down };
        let (x, all) = (case.x().try_to_vec::<f32>().unwrap(), case.maps::<Flex>(false, |data, _| flex(data)).all);
        let inner = all.into_iter().flat_map(|map| match map.branch {
            Branch::LowRank(StoredBranch { a, scaling, .. }) => {
                let a = a.into_f32();
                let dot = |x: &[f32], a: &[f32]| scaling * x.iter().zip(a).map(|(x, a)| f64::from(x * a)).sum::<f64>();
                let row = |x: &[f32]| a.chunks(case.input).map(|a| dot(x, a) as f32).collect::<Vec<_>>();
                x.chunks(case.input).flat_map(row).collect::<Vec<_>>()
            }
            Branch::Zero => Vec::new(),
        });
        let inner: Vec<f32> = inner.collect();
        let kept = || Parts(vec![put(case.x(), down), cube(TensorData::new(inner.clone(), [inner.len()]))]);
        let (maps, order) = (case.maps(down, put), (0..case.maps.len()).collect::<Vec<_>>());
        let run = || CubeBackend::maps_grad(kept(), maps.clone(), case.dys(put), order.clone(), Maybe::None, false, Precision::F16).0;
        let exact = case.exact().split_off(case.maps.len() + 1);
        let ours = run();
        assert_eq!(ours.len(), exact.len());
        for (i, (ours, exact)) in ours.into_iter().zip(exact).enumerate() {
            check(&format!("down {down}, side {i}"), ours, DType::F32, &exact);
        }
        assert_ours(&trace(run), &[("group_kernel", 2)]);
    }
}

/// Where our kernels do not take them, results are f32, and what lies in f16 is read all the same.
#[test]
fn other_ways_are_f32() {
    if !on_each_device("half_maps::other_ways_are_f32") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    for down in [false, true] {
        let case = Case { rows: 33, input: 51, maps: vec![(43, 4)], down };
        for (i, (ours, exact)) in case.run::<CubeBackend>(Precision::PureF16, put).into_iter().zip(case.exact()).enumerate() {
            let of_x = down && i == 1;
            assert_eq!(ours.dtype, if of_x { DType::F16 } else { DType::F32 }, "down {down}, tensor {i}");
            // Factors and results of each product are rounded, those within a branch too.
            let error = relative(&numbers(ours), &exact);
            assert!(error < 4.0 * EPSILON, "down {down}, tensor {i}: {error:.1e}");
        }
    }
}

/// An MLP as a step has it: the type of what gate makes, y, and the gradients of x and, if it is `trained`, of down.
fn mlp(device: &Device, rows: usize, half: bool, trained: bool) -> (DType, Vec<Vec<f32>>) {
    let device = device.clone().autodiff();
    let tensor = |stream: u64, shape: [usize; 2], by: f32| Tensor::<2>::from_data(few(stream, shape), &device).mul_scalar(by).detach();
    let map = |weight: &Tensor<2>| Map { weight: weight.clone().into(), bias: None, branch: None };
    let x = tensor(1, [rows, 64], 1.0).require_grad();
    let [gate, up] = [2, 3].map(|stream| tensor(stream, [96, 64], 0.25));
    let down = tensor(4, [48, 96], 0.25).set_require_grad(trained);
    let [gate, up] = maps(enter(x.clone()), [map(&gate), map(&up)], None, half, Precision::F16);
    let dtype = gate.dtype();
    let [y] = maps(swiglu(gate, up), [map(&down)], Some(tensor(5, [rows, 48], 1.0)), false, Precision::F16);
    let mut graph = lead(y.clone(), tensor(6, [rows, 48], 1.0)).backward();
    let grads = [Some(x), trained.then_some(down)].into_iter().flatten().map(|leaf| leaf.grad_remove(&mut graph).unwrap());
    let host = |t: Tensor<2>| {
        assert_eq!(t.dtype(), DType::F32);
        t.try_into_vec_as::<f32>().unwrap()
    };
    (dtype, [y].into_iter().chain(grads).map(host).collect())
}

/// ‖a − b‖ / ‖b‖.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Beside the processor, where all of it is f32, and beside the device without results in f16.
///
/// What is between the maps is rounded where it is written, by EPSILON at most each time: gate and up, of which a change of gate is one of its SiLU 1.3 times as large
/// (|x| up to 1, most are), and their product, 3.3 on the way to y; then the gradient of that product and those of gate and up, 5 or so on the way to x, two of them
/// in f32 too, as a factor. Sums of terms of any sign do not add errors up, so the lengths of these differences, relative to what they are of, are within that.
#[test]
fn of_an_mlp() {
    if !on_each_device("half_maps::of_an_mlp") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let device = Device::vulkan(DeviceKind::DefaultDevice);
    for trained in [false, true] {
        let (_, theirs) = mlp(&Device::flex(), 33, true, trained);
        let ([(dtype, ours), (other, wide)], limits) = ([true, false].map(|half| mlp(&device, 33, half, trained)), [3.3, 5.0, 3.3]);
        assert_eq!([dtype, other], [DType::F16, DType::F32]);
        for (((ours, wide), theirs), limit) in ours.iter().zip(&wide).zip(&theirs).zip(limits) {
            let [near, far] = [theirs, wide].map(|other| distance(ours, other) / EPSILON);
            assert!(near < limit && far < limit && far > 0.05, "trained {trained}: {near:.2} and {far:.2} units");
        }
    }
    // No launch more than with all of it in f32.
    let launched = [true, false].map(|half| trace(|| mlp(&device, 33, half, false)).values().sum::<usize>());
    assert_eq!(launched[0], launched[1]);
    // A few rows have kernels of their own, for numbers in f32.
    let [few, wide] = [true, false].map(|half| mlp(&device, 3, half, false));
    assert!(few.0 == DType::F32 && few.1 == wide.1);
}

/// Attention as a step has it, of 4 heads on 2: the type of its queries, what it is added to, and the gradient of x.
fn attended(device: &Device, rows: usize, half: bool) -> (DType, Vec<Vec<f32>>) {
    let device = device.clone().autodiff();
    let tensor = |stream: u64, shape: [usize; 2], by: f32| Tensor::<2>::from_data(few(stream, shape), &device).mul_scalar(by).detach();
    let map = |stream, shape| Map { weight: tensor(stream, shape, 0.25).into(), bias: None, branch: None };
    let x = tensor(1, [rows, 64], 1.0).require_grad();
    let [q, k, v] = maps(enter(x.clone()), [map(2, [64, 64]), map(3, [32, 64]), map(4, [32, 64])], None, half, Precision::F16);
    let dtype = q.dtype();
    let heads = |y: Tensor<2>, count: usize| y.reshape([1, rows, count, 16]);
    let [cos, sin] = [f32::cos, f32::sin].map(|of| {
        let values: Vec<f32> = pattern(5, rows * 8).into_iter().map(|v| of(3.0 * v)).collect();
        Tensor::<4>::from_data(TensorData::new(values, [1, 1, rows, 8]), &device)
    });
    let [q, k] = rotate(heads(q, 4), heads(k, 2), cos, sin);
    let first = Tensor::<2, Int>::zeros([1, rows], &device);
    let y = attention(q, k, heads(v, 2).swap_dims(1, 2), first, 0.25).swap_dims(1, 2).reshape([rows, 64]);
    let [y] = maps(y, [map(6, [48, 64])], Some(tensor(7, [rows, 48], 1.0)), false, Precision::F16);
    let mut graph = lead(y.clone(), tensor(8, [rows, 48], 1.0)).backward();
    let host = |t: Tensor<2>| {
        assert_eq!(t.dtype(), DType::F32);
        t.try_into_vec_as::<f32>().unwrap()
    };
    (dtype, [y, x.grad_remove(&mut graph).unwrap()].map(host).into())
}

/// Beside the processor, where all of it is f32, and beside the device without results in f16.
///
/// A number is rounded by EPSILON at most, by 0.4 of that in the mean of squares. Values, queries and keys are (the latter two once more where they are turned), and what
/// attention makes; scores are about 1, and of a query's errors its keys see a mean: 0.3 units in f64 on the way to y, half of which is not of attention. On the way to
/// x the gradients of what attention makes, of queries, keys and values, and of the former two turned back are rounded too: 0.7 to 1.
#[test]
fn of_attention() {
    if !on_each_device("half_maps::of_attention") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    // Each device is asked once.
    shared_memory_works(&device());
    let device = Device::vulkan(DeviceKind::DefaultDevice);
    let (_, theirs) = attended(&Device::flex(), 33, true);
    let [(dtype, ours), (other, wide)] = [true, false].map(|half| attended(&device, 33, half));
    assert_eq!([dtype, other], [DType::F16, DType::F32]);
    for (((ours, wide), theirs), limit) in ours.iter().zip(&wide).zip(&theirs).zip([1.0, 2.0]) {
        let [near, far] = [theirs, wide].map(|other| distance(ours, other) / EPSILON);
        assert!(near < limit && far < limit && far > 0.05, "{near:.2} and {far:.2} units");
    }
    // No launch more than with all of it in f32.
    let launched = [true, false].map(|half| trace(|| attended(&device, 33, half)).values().sum::<usize>());
    assert_eq!(launched[0], launched[1]);
    // A few rows have kernels of their own, for numbers in f32.
    let [few, wide] = [true, false].map(|half| attended(&device, 3, half));
    assert!(few.0 == DType::F32 && few.1 == wide.1);
}

/// What queries and keys go through before attention, and the gradients of that, the weight's last; `put` is told what is to lie in f16.
fn before_attention<B: DecoderOps>(put: impl Fn(TensorData, bool) -> B::FloatTensorPrimitive) -> Vec<B::FloatTensorPrimitive> {
    const LEAST_SQUARE: f64 = 1e-2;
    let [x, dy, held] = [1, 2, 3].map(|stream| put(few(stream, [2, 3, 5, 40]), true));
    let (weight, table) = (put(few(4, [40]), false), |stream| put(few(stream, [1, 1, 3, 20]), false));
    let heads = |stream, shape: [usize; 4]| put(few(stream, shape), true);
    let (q, k) = B::rotate(x.clone(), heads(5, [2, 3, 1, 40]), table(6), table(7));
    let (dq, dk) = B::rotate_back(heads(8, [2, 5, 3, 40]), heads(9, [2, 1, 3, 40]), table(6), table(7));
    vec![
        B::rms_norm(x.clone(), weight.clone(), LEAST_SQUARE),
        B::rms_norm_data_grad(x.clone(), weight.clone(), dy.clone(), LEAST_SQUARE),
        B::rms_norm_data_grad_onto(x.clone(), weight, dy.clone(), held, LEAST_SQUARE),
        q,
        k,
        dq,
        dk,
        B::rms_norm_weight_grad(x, dy, LEAST_SQUARE),
    ]
}

/// Rounded where they are written, half the bytes of f32; sums and what is of the weight are f32.
#[test]
fn norms_and_rotation() {
    if !on_each_device("half_maps::norms_and_rotation") || !has_half() {
        return;
    }
    // Each device is asked once.
    let shared = shared_memory_works(&device());
    let (ours, counted) = counted(|| before_attention::<CubeBackend>(put));
    let exact = before_attention::<Flex>(|data, _| flex64(data));
    // Without shared memory what is added to what is held is rounded before.
    for (i, (ours, exact)) in ours.into_iter().zip(exact).enumerate().filter(|(i, _)| shared || *i != 2) {
        check(&format!("tensor {i}"), ours, if i == 7 { DType::F32 } else { DType::F16 }, &exact.into_f32());
    }
    let (queries, keys, table) = (2 * 3 * 5 * 40, 2 * 3 * 40, 3 * 20);
    if shared {
        assert_eq!(counted.work["rms_norm_row_kernel"].bytes, 2 * 2 * queries + 4 * 40);
    }
    assert_eq!(counted.work["rotate_kernel"].bytes, 2 * (2 * 2 * (queries + keys) + 2 * 4 * table));
}

/// The gated SiLU and its gradients, rounded where they are written; in the memory of what is replaced, if nobody else holds that.
#[test]
fn gated_silu() {
    if !on_each_device("half_maps::gated_silu") || !has_half() {
        return;
    }
    let numbers_of = |stream: u64, shape: [usize; 2]| {
        let values: Vec<f32> = few(stream, shape).try_to_vec::<f32>().unwrap().into_iter().map(|v| 8.0 * v).collect();
        TensorData::new(values, shape)
    };
    let [gate, up, dy] = [1, 2, 3].map(|stream| numbers_of(stream, [33, 51]));
    let [g, u, d] = [&gate, &up, &dy].map(|data| flex64(data.clone()));
    let y = Flex::swiglu(g.clone(), u.clone()).into_f32();
    let (dgate, dup) = Flex::swiglu_grad(g, u, d);
    let on_cube = || [&gate, &up, &dy].map(|data| half(data.clone()));
    for held in [false, true] {
        let [g, u, d] = on_cube();
        let by_another = held.then(|| d.clone());
        check("y", CubeBackend::swiglu(g.clone(), u.clone()), DType::F16, &y);
        let (ours, counted) = counted(|| CubeBackend::swiglu_grad(g, u, d));
        check("dgate", ours.0, DType::F16, &dgate.clone().into_f32());
        check("dup", ours.1, DType::F16, &dup.clone().into_f32());
        assert_eq!(counted.work["swiglu_grad_kernel"].bytes, 2 * 5 * 33 * 51);
        by_another.into_iter().for_each(|d| assert_eq!(numbers(d), dy.try_to_vec::<f32>().unwrap()));
    }
    // Beside numbers of another type it is f32.
    let [g, u, _] = on_cube();
    check("y beside f32", CubeBackend::swiglu(g.clone(), cube(up.clone())), DType::F32, &y);
    check("dgate beside f32", CubeBackend::swiglu_grad(g, u, cube(dy.clone())).0, DType::F32, &dgate.into_f32());
    let large = || half(numbers_of(4, [1024, 1024]));
    let (g, u, d) = (large(), large(), large());
    let shared = most_in_use(|| CubeBackend::swiglu_grad(g.clone(), u.clone(), d.clone()));
    let alone = most_in_use(|| CubeBackend::swiglu_grad(g, u, d));
    assert!(alone + (1 << 20) < shared, "{alone} B in use, {shared} with a gradient that is held by another");
}
