//! The maps of one input on the device against products one by one on the CPU in f64: values, gradients, launches.

use crate::blocks::{cut, int8, nf4, of_file, words};
use crate::half::{half, has_half};
use crate::launches::{assert_ours, trace};
use crate::support::{
    Numbers, cases, counted, cube, data, device, flex, flex64, numbers, on_each_device, on_swiftshader, pattern, relative,
};
use bellows_kernels::arena::ArenaOps;
use bellows_kernels::cube::{MOST_DENSE, launches, shared_memory_works};
use bellows_kernels::maps::{MapOps, Maps};
use bellows_kernels::operands::Maybe;
use bellows_kernels::planes::Parts;
use bellows_kernels::products::{Branch, ProductOps, StoredBranch, StoredMap, StoredWeight};
use bellows_kernels::{Lowering, Places, Precision, set_default_lowering};
use bellows_weights::BlockType;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use burn_flex::{Flex, FlexTensor};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Case {
    rows: usize,
    input: usize,
    /// Of each map, the width and the rank of its branch, 0 for none.
    maps: Vec<(usize, usize)>,
    bias: bool,
    onto: bool,
    /// What x's gradient is added to.
    held: bool,
    /// The order in which the results' gradients come.
    turn: usize,
    /// Weights in bf16, on the device two to a word.
    words: bool,
}

impl Case {
    fn order(&self) -> Vec<usize> {
        let n = self.maps.len();
        (0..n).map(|i| (i + self.turn) % n).collect()
    }

    fn has_branches(&self) -> bool {
        self.maps.iter().any(|(_, rank)| *rank > 0)
    }

    /// x and the gradients of the results with numbers that rounding to f16 changes in their odd columns: subnormal and least ones, large ones, those halfway
    /// between two of f16 and, where no branch meets them, such as it has not. A and B, which meet what is not rounded, are 0 there.
    fn to_be_rounded(&self, data: TensorData) -> TensorData {
        let [height, width] = data.shape().dims();
        let (ours, of_b) = (height == self.rows, width == self.maps[0].1);
        let number = |(i, v): (usize, f32)| {
            let (row, column) = (i / width, i % width);
            let odd = if of_b { row } else { column } % 2 == 1;
            match (ours, odd, row) {
                (false, true, _) | (true, false, 0..=3) => 0.0,
                (false, false, _) => v,
                (true, false, _) => (v * 1024.0).round() / 1024.0,
                (true, true, 0) => v * 6e-5,
                (true, true, 1) => v * 1e-7,
                (true, true, 2) => v * 65519.0,
                (true, true, 3) => ((v.abs() * 1024.0).floor() + 1024.5) / 1024.0,
                (true, true, 4) if !self.has_branches() => v * 1e6,
                (true, true, _) => v,
            }
        };
        let values: Vec<f32> = data.try_to_vec::<f32>().unwrap().into_iter().enumerate().map(number).collect();
        TensorData::new(values, [height, width])
    }

    /// On the device.
    fn on_cube(&self, precision: Precision) -> Vec<Vec<f32>> {
        let weight = |values: Vec<f32>, shape: [usize; 2]| match self.words {
            true => words(&values, shape),
            false => StoredWeight::Dense(cube(TensorData::new(values, shape))),
        };
        self.run::<CubeBackend>(precision, weight, cube, numbers)
    }

    /// On the processor.
    fn on_flex(&self, precision: Precision, upload: impl Fn(TensorData) -> FlexTensor) -> Vec<Vec<f32>> {
        let weight = |values: Vec<f32>, shape: [usize; 2]| StoredWeight::Dense(upload(TensorData::new(values, shape)));
        self.run::<Flex>(precision, weight, &upload, Numbers::into_f32)
    }

    /// The results, the gradient of x, those of the branches.
    fn run<B: MapOps>(
        &self,
        precision: Precision,
        weight: impl Fn(Vec<f32>, [usize; 2]) -> StoredWeight<B>,
        upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
        host: impl Fn(B::FloatTensorPrimitive) -> Vec<f32>,
    ) -> Vec<Vec<f32>> {
        let &Self { rows, input, bias, onto, held, words, .. } = self;
        let matrix = |stream: u64, shape: [usize; 2]| upload(data(stream, shape));
        let one = |(i, &(out, rank)): (usize, &(usize, usize))| {
            let stream = 10 * i as u64;
            let branch =
                StoredBranch { a: matrix(stream + 2, [rank.max(1), input]), b: matrix(stream + 3, [out, rank.max(1)]), scaling: 0.7 };
            let values = pattern(stream, out * input);
            StoredMap {
                weight: weight(if words { cut(values) } else { values }, [out, input]),
                bias: bias.then(|| upload(data(stream + 1, [out]))).into(),
                branch: (rank > 0).then_some(branch).into(),
            }
        };
        let maps = || Maps::<B> { all: self.maps.iter().enumerate().map(one).collect(), half: false };
        let optional = |wanted: bool, stream: u64, width: usize| match wanted {
            true => Maybe::Some(matrix(stream, [rows, width])),
            false => Maybe::None,
        };
        let x = matrix(100, [rows, input]);
        let mut results = B::maps(x.clone(), maps(), optional(onto, 101, self.maps[0].0), precision).0;
        let besides = results.split_off(self.maps.len());
        let branches = self.maps.iter().any(|(_, rank)| *rank > 0);
        let kept = Parts(branches.then_some(x).into_iter().chain(besides).collect());
        let dys = Parts(self.order().into_iter().map(|i| matrix(200 + i as u64, [rows, self.maps[i].0])).collect());
        let grads = B::maps_grad(kept, maps(), dys, self.order(), optional(held, 102, input), true, precision);
        results.into_iter().chain(grads.0).map(host).collect()
    }

    fn check(&self) {
        let (on_cube, on_flex) = (self.on_cube(Precision::F32), self.on_flex(Precision::F32, flex64));
        assert_eq!(on_cube.len(), on_flex.len(), "{self:?}");
        for (i, (cube, flex)) in on_cube.iter().zip(&on_flex).enumerate() {
            let error = relative(cube, flex);
            assert!(error <= 5e-6, "{self:?}, tensor {i}: relative error {error:.1e}");
        }
    }
}

#[test]
fn agrees_with_the_cpu() {
    if !on_swiftshader("maps::agrees_with_the_cpu") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let ours =
        Case { rows: 70, input: 96, maps: vec![(96, 8), (32, 0), (32, 16)], bias: true, onto: true, held: true, turn: 1, words: false };
    ours.check();
    Case { words: true, ..ours }.check();
    Case { rows: 33, input: 50, maps: vec![(131, 0), (131, 0)], bias: false, onto: false, held: false, turn: 0, words: false }.check();
    let short = Case { rows: 1, input: 130, maps: vec![(20, 4)], bias: false, onto: true, held: true, turn: 0, words: false };
    short.check();
    // Rows that begin in the middle of a word, and an odd number of values.
    Case { rows: 19, input: 75, maps: vec![(45, 4), (21, 0)], words: true, ..short }.check();
    let maps = prop::collection::vec((1usize..=140, prop::sample::select(vec![0usize, 1, 4, 8, 16, 20])), 1..=3);
    let any = (1usize..=90, 1usize..=140, maps, any::<[bool; 4]>(), 0usize..3);
    // Each case is a few kernels to compile.
    cases(8, any, |(rows, input, maps, [bias, onto, held, words], turn)| {
        Case { rows, input, maps, bias, onto, held, turn, words }.check();
    });
}

#[test]
fn are_few_launches() {
    if !on_swiftshader("maps::are_few_launches") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let case =
        Case { rows: 64, input: 96, maps: vec![(96, 8), (32, 8), (32, 8)], bias: true, onto: true, held: true, turn: 2, words: false };
    for case in [case.clone(), Case { words: true, ..case }] {
        case.check();
        let launched = trace(|| case.on_cube(Precision::F32));
        // Forward the inner products and one a map, backward theirs, those of A and B, and one a map.
        assert_ours(&launched, &[("group_kernel", 1 + 2), ("map_kernel", 3 + 3)]);
    }
}

/// The gradients of A and B lie in one memory, and between them what was there before: they are put into an arena, and are none.
#[test]
fn gradients_of_a_branch_are_no_arena() {
    if !on_swiftshader("maps::gradients_of_a_branch_are_no_arena") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let (rows, input, out, rank) = (6, 22, 5, 3);
    let matrix = |stream: u64, shape: [usize; 2]| cube(data(stream, shape));
    let maps = || {
        let branch = Branch::LowRank(StoredBranch { a: matrix(2, [rank, input]), b: matrix(3, [out, rank]), scaling: 0.7 });
        Maps::<CubeBackend> {
            all: vec![StoredMap { weight: StoredWeight::Dense(matrix(1, [out, input])), bias: Maybe::None, branch }],
            half: false,
        }
    };
    let x = matrix(4, [rows, input]);
    let mut kept = CubeBackend::maps(x.clone(), maps(), Maybe::None, Precision::F32).0;
    kept[0] = x;
    let dys = Parts(vec![matrix(5, [rows, out])]);
    let grads = CubeBackend::maps_grad(Parts(kept), maps(), dys, vec![0], Maybe::None, false, Precision::F32).0;
    let flat = |(grad, len): (CubeTensor, usize)| CubeBackend::float_reshape(grad, Shape::new([len]));
    let lengths = [rank * input, out * rank];
    let parts = Parts::<CubeBackend>(grads.into_iter().zip(lengths).map(flat).collect());
    assert_ours(&trace(|| CubeBackend::arena(parts, Places::of(lengths))), &[("join_kernel", 1)]);
}

/// Words are read as what they stand for: the bits of the same weights dense, which in f16 a cast has rounded.
#[test]
fn words_have_the_bits_of_dense_weights() {
    if !on_each_device("maps::words_have_the_bits_of_dense_weights") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    // Number by number, and by fours.
    let cases = [(51, 43), (52, 44)].map(|(input, out)| {
        let maps = vec![(out, 0), (20, 0)];
        Case { rows: 33, input, maps, bias: false, onto: false, held: false, turn: 1, words: true }
    });
    // f16 has fewer bits of the smallest ones than bf16.
    let small = |values: Vec<f32>| values.into_iter().map(|v| v / 1024.0).collect::<Vec<_>>();
    let packed = |values: Vec<f32>, shape: [usize; 2]| words(&small(values), shape);
    let dense = |values: Vec<f32>, shape: [usize; 2]| StoredWeight::Dense(cube(TensorData::new(small(values), shape)));
    let precisions = [Some(Precision::F32), has_half().then_some(Precision::F16)];
    for (case, precision) in cases.iter().flat_map(|case| precisions.into_iter().flatten().map(move |precision| (case, precision))) {
        let [ours, theirs] =
            [case.run::<CubeBackend>(precision, packed, cube, numbers), case.run::<CubeBackend>(precision, dense, cube, numbers)];
        assert!(ours == theirs && ours.iter().all(|values| values.iter().any(|v| *v != 0.0)), "{precision:?}");
    }
}

/// A few rows are dot products with the weight as it lies: a launch a map, with its branch and a bias or what is added to it.
#[test]
fn of_a_few_rows() {
    if !on_swiftshader("maps::of_a_few_rows") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let in_eights = |values: Vec<f32>, shape: [usize; 2]| int8(&values, shape);
    for (rows, input, out, rank) in [(1, 8, 1, 0), (1, 896, 131, 4), (2, 264, 20, 40), (3, 48, 7, 3), (4, 1032, 33, 8)] {
        for (bias, onto) in [(false, false), (true, false), (false, true), (true, true)] {
            let case = Case { rows, input, maps: vec![(out, rank), (5, 0)], bias, onto, held: false, turn: 0, words: rows % 2 == 0 };
            let (ours, exact) = (case.on_cube(Precision::F32), case.on_flex(Precision::F32, flex64));
            let packed = case.run::<CubeBackend>(Precision::F32, |values, shape| in_eights(values, shape).0, cube, numbers);
            let stands_for =
                |values: Vec<f32>, shape: [usize; 2]| StoredWeight::Dense(flex64(TensorData::new(in_eights(values, shape).1, shape)));
            let exactly = case.run::<Flex>(Precision::F32, stands_for, flex64, Numbers::into_f32);
            for (i, (ours, exact)) in ours.iter().zip(&exact).chain(packed.iter().zip(&exactly)).enumerate() {
                let error = relative(ours, exact);
                assert!(error < 2e-6, "{case:?}, tensor {i}: {error:.1e}");
            }
            let launched = trace(|| case.on_cube(Precision::F32));
            let few = launched.iter().filter(|(kernel, _)| kernel.contains("few_rows_kernel")).map(|(_, count)| count).sum::<usize>();
            assert_eq!(few, if bias && onto { 1 } else { 2 }, "{launched:?}");
        }
    }
}

/// What a result is added to is read and written, each once.
#[test]
fn what_is_added_to_is_counted() {
    if !on_swiftshader("maps::what_is_added_to_is_counted") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let (x, y, weight) = (33 * 50, 33 * 131, 131 * 50);
    for (onto, numbers) in [(false, x + weight + y), (true, x + weight + 2 * y)] {
        let case = Case { rows: 33, input: 50, maps: vec![(131, 0)], bias: false, onto, held: false, turn: 0, words: false };
        let counted = counted(|| case.on_cube(Precision::F32)).1;
        assert_eq!(counted.work["linear map"].bytes, 4 * numbers, "onto {onto}");
    }
}

/// And so are int8s with a scale to a row, which are bound in the place of a bias or of what is added to; beside both they are made dense.
#[test]
fn int8s_have_the_bits_of_dense_weights() {
    if !on_swiftshader("maps::int8s_have_the_bits_of_dense_weights") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let packed = |values: Vec<f32>, shape: [usize; 2]| int8(&values, shape).0;
    let dense = |values: Vec<f32>, shape: [usize; 2]| StoredWeight::Dense(cube(TensorData::new(int8(&values, shape).1, shape)));
    let besides = [(false, false), (true, false), (false, true), (true, true)];
    // Number by number, and by fours.
    for ((bias, onto), (input, out)) in besides.into_iter().flat_map(|beside| [(51, 43), (52, 44)].map(|sizes| (beside, sizes))) {
        let case = Case { rows: 33, input, maps: vec![(out, 4), (20, 0)], bias, onto, held: onto, turn: 1, words: false };
        let (ours, launched) = launches(|| case.run::<CubeBackend>(Precision::F32, packed, cube, numbers));
        assert!(ours == case.run::<CubeBackend>(Precision::F32, dense, cube, numbers), "bias {bias}, onto {onto}");
        assert!(ours.iter().all(|values| values.iter().any(|v| *v != 0.0)));
        let decoded = launched.iter().filter(|(kernel, _)| kernel.contains("dense_kernel")).map(|(_, count)| count).sum::<usize>();
        assert_eq!(decoded, usize::from(bias && onto), "{launched:?}");
    }
}

/// How a map's weight is stored.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Nf4,
    File(BlockType),
    /// Read where they lie.
    Words,
    /// Beside a bias and what is added to made dense, else read where they lie.
    Int8,
}

/// Of a case's maps, which all have other widths, each weight of its kind.
fn stored(case: &Case, kinds: [Kind; 3], values: Vec<f32>, shape: [usize; 2]) -> StoredWeight<CubeBackend> {
    let map = case.maps.iter().position(|(out, _)| *out == shape[0]).unwrap();
    match kinds[map] {
        Kind::Nf4 => nf4(shape),
        Kind::File(kind) => of_file(kind, &values, shape),
        Kind::Words => words(&cut(values), shape),
        Kind::Int8 => int8(&values, shape).0,
    }
}

/// Blocks have the bits of dense weights, after a cast if factors are in f16, and those of all maps become dense in a launch each way, whatever each is stored as.
fn become_dense_together(case: &Case, kinds: [Kind; 3], precision: Precision) {
    let packed = |values: Vec<f32>, shape: [usize; 2]| stored(case, kinds, values, shape);
    let dense = |values: Vec<f32>, shape: [usize; 2]| StoredWeight::Dense(CubeBackend::dense_weight(stored(case, kinds, values, shape)));
    let [ours, theirs] =
        [case.run::<CubeBackend>(precision, packed, cube, numbers), case.run::<CubeBackend>(precision, dense, cube, numbers)];
    assert!(ours == theirs && ours.iter().all(|values| values.iter().any(|v| *v != 0.0)), "{kinds:?}, {precision:?}");
    let launched = trace(|| case.run::<CubeBackend>(precision, packed, cube, numbers));
    assert_ours(&launched, &[("dense_kernel", 1 + 1), ("map_kernel", 3 + 3)]);
}

#[test]
fn blocks_are_made_dense_together() {
    if !on_each_device("maps::blocks_are_made_dense_together") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let maps = vec![(43, 0), (20, 0), (24, 0)];
    let case = Case { rows: 33, input: 256, maps, bias: false, onto: false, held: false, turn: 1, words: false };
    for precision in [Some(Precision::F32), has_half().then_some(Precision::F16)].into_iter().flatten() {
        become_dense_together(&case, [Kind::Nf4; 3], precision);
        become_dense_together(&case, [Kind::File(BlockType::Q4K), Kind::Words, Kind::File(BlockType::Q8_0)], precision);
    }
}

/// Rows that are no whole eights, and a map that is dense in one direction alone.
#[test]
fn blocks_of_any_maps_are_made_dense_together() {
    if !on_swiftshader("maps::blocks_of_any_maps_are_made_dense_together") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let case =
        Case { rows: 33, input: 51, maps: vec![(43, 0), (20, 0), (24, 0)], bias: true, onto: true, held: false, turn: 1, words: false };
    become_dense_together(&case, [Kind::Int8, Kind::Nf4, Kind::Words], Precision::F32);
    become_dense_together(&case, [Kind::Int8, Kind::Nf4, Kind::Nf4], Precision::F32);
}

/// So many values as may be dense at a time are made so in one launch, and a row more each for its own product.
#[test]
fn large_blocks_are_made_dense_one_by_one() {
    if !on_swiftshader("maps::large_blocks_are_made_dense_one_by_one") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    // A device is asked once, and not among the launches here.
    assert!(shared_memory_works(&device()));
    let input = 2048;
    let most = MOST_DENSE / 2 / input;
    for (out, expected) in [(most, 1), (most + 1, 2)] {
        let map = || StoredMap { weight: nf4([out, input]), bias: Maybe::None, branch: Branch::Zero };
        let maps = Maps::<CubeBackend> { all: vec![map(), map()], half: false };
        let x = cube(data(1, [5, input]));
        let launched = trace(|| CubeBackend::maps(x, maps, Maybe::None, Precision::F32));
        assert_ours(&launched, &[("dense_kernel", expected), ("map_kernel", 2)]);
    }
}

/// Factors beside the weights rounded to f16, everything else in f32: the numbers of the processor, not only near them. (lavapipe's compiler takes
/// minutes over the kernel of branches, which is the same as in f32.)
#[test]
fn of_rounded_factors() {
    if !on_each_device("maps::of_rounded_factors") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let case = Case { rows: 33, input: 50, maps: vec![(40, 0), (20, 0)], bias: true, onto: true, held: true, turn: 1, words: false };
    for case in [case.clone(), Case { words: true, ..case }] {
        let (ours, theirs) = (case.on_cube(Precision::F16), case.on_flex(Precision::F16, flex));
        let exact = case.on_flex(Precision::F32, flex);
        for ((ours, theirs), exact) in ours.iter().zip(&theirs).zip(&exact) {
            let [near, far] = [theirs, exact].map(|other| relative(ours, other));
            assert!(near < 5e-6 && far > 2e-5, "{near:.1e} from the same rounding, {far:.1e} from none");
        }
        let launched = trace(|| case.on_cube(Precision::F16));
        let ours = |name: &str| launched.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
        assert_eq!(ours("map_kernel"), 4, "{launched:?}");
        // Words are rounded as they are read, and so are x and the gradients of the results: only weights in f32 are cast.
        assert_eq!(launched.values().sum::<usize>(), if case.words { 4 } else { 4 + 4 }, "{launched:?}");
    }
}

/// Factors that are not weights are f32 and rounded to f16 as they are read, without a launch: the bits of the same numbers after a cast there and back.
/// (Through shared memory lavapipe's compiler takes minutes over the kernel of branches.)
#[test]
fn factors_are_rounded_as_a_cast_rounds_them() {
    if !on_each_device("maps::factors_are_rounded_as_a_cast_rounds_them") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let rank = if shared_memory_works(&device()) { 0 } else { 4 };
    let some = Case { rows: 33, input: 51, maps: vec![(43, rank), (20, 0)], bias: false, onto: false, held: false, turn: 1, words: false };
    for case in [some.clone(), Case { rows: 64, input: 64, maps: vec![(96, 0)], words: true, ..some }] {
        let weight = |values: Vec<f32>, shape: [usize; 2]| match case.words {
            true => words(&values, shape),
            false => StoredWeight::Dense(half(TensorData::new(values, shape))),
        };
        let as_it_is = |data: TensorData| cube(case.to_be_rounded(data));
        let after_a_cast = |data: TensorData| {
            let ours = data.shape()[0] == case.rows;
            let tensor = as_it_is(data);
            match ours {
                true => CubeBackend::float_cast(CubeBackend::float_cast(tensor, DType::F16.into()), DType::F32.into()),
                false => tensor,
            }
        };
        // As `run` draws it.
        let x = || data(100, [case.rows, case.input]);
        assert!(numbers(as_it_is(x())) != numbers(after_a_cast(x())));
        let ours = case.run::<CubeBackend>(Precision::F16, weight, as_it_is, numbers);
        let theirs = case.run::<CubeBackend>(Precision::F16, weight, after_a_cast, numbers);
        // The gradients of branches are of what is not rounded.
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).take(case.maps.len() + 1).enumerate() {
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert!(bits(ours) == bits(theirs), "{case:?}, tensor {i}");
        }
        let launched = trace(|| case.run::<CubeBackend>(Precision::F16, weight, as_it_is, numbers));
        assert_ours(&launched, &[("group_kernel", if case.has_branches() { 1 + 2 } else { 0 }), ("map_kernel", 2 * case.maps.len())]);
    }
}
