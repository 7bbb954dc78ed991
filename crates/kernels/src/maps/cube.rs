//! The maps of one input on CubeCL devices, where nothing may be tuned (`Lowering::Gemm`), by our own product: f32, or factors beside the weights rounded to f16 and
//! branches in f32. What they are made of and make may lie in f16. Everything else goes map by map, in f32.
//!
//! Forward: the inner products `s x Aᵀ` of all branches in one launch, and one to each map, which adds its branch, bias and what it is added to where
//! it is written. Backward: `s dy B` of all branches in one launch, the gradients of all A and B in another, and one to each map, which adds its part of the
//! gradient of x to that of the map before it. No sum is cut into parts: what a few more workgroups would gain, launches would cost. Weights in words of
//! two bf16s or four int8s are read where they lie, and x and the gradients of the results too; what is to be f16 of these is rounded as it is read. Other
//! blocks are made dense, those of all maps in one launch if they are few.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Backend, DType, TensorMetadata};
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_kernels::{With, map_kernel};
use super::operands::Maps;
use super::{MapOps, portable};
use crate::arena::next_place;
use crate::cpu::Precision;
use crate::cube::MOST_DENSE;
use crate::cube::block::Block;
use crate::cube::group::{Member, run_group};
use crate::cube::launch::{address_type, covers, is_image_type};
use crate::cube::matmul::{Layout, Product, Splits};
use crate::cube::packing::Packing;
use crate::cube::pixels::{empty, replacement, view};
use crate::cube::places::{row, shaped};
use crate::cube::shared_memory_works;
use crate::cube::trace::{note, note_room};
use crate::operands::Maybe;
use crate::planes::{Parts, PlaneOps};
use crate::policy::{Lowering, default_lowering};
use crate::products::{Branch, Coded, Low, StoredBranch, StoredMap, StoredWeight};
use crate::products::{are_few, as_factor, factors, few_rows, in_words, made_dense, rounded};
use crate::shapes::expect;

/// Whether our kernels read these numbers.
fn are_read<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> bool {
    tensors.into_iter().all(|tensor| matches!(tensor.dtype, DType::F32 | DType::F16) && tensor.meta.shape().num_elements() > 0)
}

/// Whether our kernels take these.
fn ours<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>, maps: &Maps<CubeBackend>, precision: Precision) -> bool {
    let of_map = |map: &StoredMap<CubeBackend>| {
        let weight = match &map.weight {
            StoredWeight::Dense(weight) => is_image_type(weight.dtype) && weight.meta.shape().num_elements() > 0,
            StoredWeight::Blocks { shape, .. } => shape.iter().product::<usize>() > 0,
        };
        let bias = if let Maybe::Some(bias) = &map.bias { Some(bias) } else { None };
        let branch = if let Branch::LowRank(branch) = &map.branch { Some([&branch.a, &branch.b]) } else { None };
        weight && covers(bias.into_iter().chain(branch.into_iter().flatten()))
    };
    default_lowering() == Lowering::Gemm && precision != Precision::PureF16 && are_read(tensors) && maps.all.iter().all(of_map)
}

/// Rows and columns.
fn dims(x: &CubeTensor) -> [usize; 2] {
    x.shape().dims()
}

/// `[.., width]` as a matrix, its numbers in order.
fn flat(x: CubeTensor) -> CubeTensor {
    portable::flat::<CubeBackend>(into_contiguous(x))
}

/// A contiguous matrix, to be read line by line or, transposed, term by term.
struct Operand<'a> {
    tensor: &'a CubeTensor,
    layout: Layout,
    /// What packed numbers are scaled by, row by row.
    scales: Option<&'a CubeTensor>,
}

impl<'a> Operand<'a> {
    /// Rows of `width` from number `offset` on, each a line of a product.
    fn lines(tensor: &'a CubeTensor, offset: usize, width: usize) -> Self {
        Self { tensor, layout: Layout { offset, line: width, k: 1, ..Layout::default() }, scales: None }
    }

    /// The same, each a term of all sums.
    fn terms(tensor: &'a CubeTensor, offset: usize, width: usize) -> Self {
        Self { tensor, layout: Layout { offset, line: 1, k: width, ..Layout::default() }, scales: None }
    }

    fn packed(self, packing: Packing, scales: Option<&'a CubeTensor>) -> Self {
        Self { layout: Layout { packing, ..self.layout }, scales, ..self }
    }
}

fn product(name: &'static str, [m, n, k]: [usize; 3], a: Layout, b: Layout, offset: usize, scale: f64) -> Product {
    Product {
        name,
        m,
        n,
        k,
        outer: 1,
        batches: 1,
        period: 1,
        a,
        b,
        c: Layout { offset, line: n, ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: scale as f32,
        onto: false,
        window: None,
    }
}

/// `a b (+ low.0 low.1) (+ bias) (+ onto)`, `[m, n]`, of the type of `onto` or else in `result`, where `a` is in f32 or f16, and `a` and words of `b` are rounded to
/// `factors` as they are read.
#[expect(unsafe_code, reason = "see SAFETY")]
fn map(
    name: &'static str,
    [m, n, k]: [usize; 3],
    (a, b): (Operand<'_>, Operand<'_>),
    [factors, result]: [DType; 2],
    low: Option<(Operand<'_>, Operand<'_>, usize)>,
    bias: Option<&CubeTensor>,
    onto: Option<CubeTensor>,
) -> CubeTensor {
    let (client, like) = (&a.tensor.client, a.tensor);
    let hardware = &client.properties().hardware;
    let main = product(name, [m, n, k], a.layout, b.layout, 0, 1.0);
    let block = main.block(hardware.max_units_per_cube);
    let shared = block.bytes() <= hardware.max_shared_memory_size && shared_memory_works(&like.device);
    let block = Block { shared, rounds: factors != DType::F32 && factors != like.dtype, ..block }.by_fours(main.fours(a.tensor, b.tensor));
    let (c, to_c) = match &onto {
        Some(onto) => replacement(onto, 5),
        None => {
            let c = empty(like, [m, n], result);
            (c.clone(), c.into_tensor_arg())
        }
    };
    main.check(a.tensor, b.tensor, None, &c);
    main.check_scales(b.scales);
    if let Some(bias) = bias {
        expect("a bias", bias.meta.shape().dims(), [n]);
    }
    let branch = low.as_ref().map_or(main, |(left, right, rank)| product(name, [m, n, *rank], left.layout, right.layout, 0, 1.0));
    let (left, right) = low.as_ref().map_or((like, like), |(left, right, _)| (left.tensor, right.tensor));
    if low.is_some() {
        branch.check(left, right, None, &c);
    }
    let of_branch = || Block { packing: branch.b.packing, rounds: false, ..block.of_terms(None, branch.k, branch.k) }.by_fours([false; 2]);
    let with = With { low: low.is_some().then(of_branch), bias: bias.is_some(), onto: onto.is_some() };
    let blocks = [n.div_ceil(block.cols as usize), m.div_ceil(block.rows as usize)];
    // Scales are bound where nothing else is.
    let beside = [bias, onto.as_ref()].map(|tensor| tensor.or(b.scales).unwrap_or(like));
    assert!(b.scales.is_none() || bias.is_none() || (onto.is_none() && c.dtype == DType::F32), "{name}: no place for scales");
    let all = [like, b.tensor, left, right, beside[0], beside[1], &c];
    note(
        name,
        // `replacement` has told of C where something is added to.
        [like, b.tensor]
            .into_iter()
            .chain(onto.is_none().then_some(&c))
            .chain(low.iter().flat_map(|(left, right, _)| [left.tensor, right.tensor]))
            .chain(&onto)
            .chain(b.scales),
        (2 * m * n * (k + low.as_ref().map_or(0, |low| low.2))) as u64,
    );
    note_room(name, if block.shared { block.bytes() } else { 0 }, block.registers());
    // SAFETY: A, B, C and what C is added to are read as the types they are of, all else is f32 (`ours`), or bound where nothing is read; `check` has found the last
    // number of each tensor that its steps reach, in C too, which has the shape of `onto`; the bias has a number to a column; `check_scales` has found a scale to
    // each row.
    unsafe {
        map_kernel::launch_unchecked(
            client,
            CubeCount::Static(blocks[0] as u32, blocks[1] as u32, 1),
            CubeDim::new_1d(block.units()),
            address_type(all).max(b.layout.packing.address_type(b.tensor)),
            like.clone().into_tensor_arg(),
            b.tensor.clone().into_tensor_arg(),
            left.clone().into_tensor_arg(),
            right.clone().into_tensor_arg(),
            beside[0].clone().into_tensor_arg(),
            beside[1].clone().into_tensor_arg(),
            to_c,
            main.args(0, 0, n),
            branch.args(0, 0, n),
            main.image(0),
            block,
            with,
            [like.dtype, factors, b.layout.packing.element(b.tensor.dtype), c.dtype].map(dtype_to_storage_type),
            block.at_once(),
        );
    }
    c
}

/// The block of C of a small product: 64 numbers along its longer side, 16 along the other, and 64 threads.
fn small_block(product: &Product, shared: bool) -> Block {
    let (rows, cols) = if product.m >= product.n { (64, 16) } else { (16, 64) };
    let along_k = |layout: Layout| layout.k < layout.line;
    let whole = Block::new(product.m, product.n, 1, 64);
    let block = Block { rows, cols, tall: 4, wide: 4, a_along_k: along_k(product.a), b_along_k: along_k(product.b), shared, ..whole };
    block.of_terms(None, product.k, product.k)
}

/// A small product, and its operands.
type Small<'a> = (Product, &'a CubeTensor, &'a CubeTensor);

/// Small products, each in a part of one tensor, in one launch.
fn group(name: &'static str, products: &[Small<'_>], c: &CubeTensor) {
    let shared = shared_memory_works(&c.device);
    let member = |&(product, a, b)| Member { product, block: small_block(&product, shared), a, b, c };
    run_group(name, &products.iter().map(member).collect::<Vec<_>>());
}

/// A weight as a factor, its values in order.
struct Weight {
    tensor: CubeTensor,
    packing: Packing,
    scales: Option<CubeTensor>,
    /// `[out, in]`.
    dims: [usize; 2],
}

/// The words of a weight that a product reads where they lie: those without scales, and others if it has `room` for them.
fn words(weight: &StoredWeight<CubeBackend>, room: bool) -> Option<(CubeTensor, Packing, Option<CubeTensor>)> {
    in_words(weight).filter(|(_, _, scales)| room || scales.is_none())
}

impl Weight {
    /// In words, which a product rounds as it reads them. Else in f16 if factors are; the values of other blocks, if they are not `made`, for one product, and
    /// dropped behind it.
    fn new(weight: &StoredWeight<CubeBackend>, made: Option<CubeTensor>, precision: Precision, room: bool) -> Self {
        let dims = weight.dims();
        if let Some((tensor, packing, scales)) = words(weight, room) {
            return Self { tensor, packing, scales, dims };
        }
        let values = made.unwrap_or_else(|| as_factor(weight, factors(precision, DType::F32)));
        Self { tensor: rounded(into_contiguous(values), precision), packing: Packing::Plain, scales: None, dims }
    }

    /// Its rows as lines of a product.
    fn lines(&self) -> Operand<'_> {
        Operand::lines(&self.tensor, 0, self.dims[1]).packed(self.packing, self.scales.as_ref())
    }

    /// Its rows as terms.
    fn terms(&self) -> Operand<'_> {
        Operand::terms(&self.tensor, 0, self.dims[1]).packed(self.packing, self.scales.as_ref())
    }
}

/// Maps with their tensors in order.
struct Settled {
    weights: Vec<StoredWeight<CubeBackend>>,
    biases: Vec<Option<CubeTensor>>,
    branches: Vec<Option<StoredBranch<CubeBackend>>>,
    /// Where the inner products of each map with a branch begin, `[rows, r]` each, and behind them all.
    starts: Vec<usize>,
}

impl Settled {
    fn new(maps: Maps<CubeBackend>, rows: usize) -> Self {
        let mut settled = Self { weights: Vec::new(), biases: Vec::new(), branches: Vec::new(), starts: vec![0] };
        for StoredMap { weight, bias, branch } in maps.all {
            settled.weights.push(weight);
            settled.biases.push(bias.into_option().map(into_contiguous));
            let branch = branch.into_option();
            let branch =
                branch.map(|StoredBranch { a, b, scaling }| StoredBranch { a: into_contiguous(a), b: into_contiguous(b), scaling });
            let rank = branch.as_ref().map_or(0, |branch| dims(&branch.a)[0]);
            settled.starts.push(settled.starts[settled.starts.len() - 1] + rows * rank);
            settled.branches.push(branch);
        }
        settled
    }

    /// The maps that have a branch.
    fn with_branches(&self) -> impl Iterator<Item = (usize, &StoredBranch<CubeBackend>)> {
        self.branches.iter().enumerate().filter_map(|(i, branch)| Some((i, branch.as_ref()?)))
    }

    /// The blocks of the maps that want them dense, made so in one launch; of none, if together they are more than may be there at a time.
    fn dense(&self, wants: impl Fn(usize) -> bool, precision: Precision) -> Vec<Option<CubeTensor>> {
        let blocks = self.weights.iter().enumerate().filter(|(i, _)| wants(*i)).filter_map(|(i, weight)| Some((i, Coded::of(weight)?)));
        let (maps, matrices): (Vec<usize>, Vec<Coded<'_>>) = blocks.unzip();
        let mut made = vec![None; self.weights.len()];
        if matrices.iter().map(Coded::count).sum::<usize>() <= MOST_DENSE {
            for (i, matrix) in maps.into_iter().zip(made_dense(&matrices, factors(precision, DType::F32))) {
                made[i] = Some(matrix);
            }
        }
        made
    }

    /// Numbers of all inner products.
    fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// What the inner products of all branches make, one after the other, if there are any.
    fn group(&self, name: &'static str, products: Vec<Small<'_>>) -> Option<CubeTensor> {
        let inner = empty(products.first()?.1, [self.len()], DType::F32);
        group(name, &products, &inner);
        Some(inner)
    }

    /// `s x Aᵀ` of each branch.
    fn inner<'a>(&'a self, x: &'a CubeTensor) -> Option<CubeTensor> {
        let [rows, input] = dims(x);
        let inner = |(i, branch): (usize, &'a StoredBranch<CubeBackend>)| {
            let [rank, _] = dims(&branch.a);
            let [a, b] = [x, &branch.a].map(|tensor| Operand::lines(tensor, 0, input).layout);
            (product("inner", [rows, rank, input], a, b, self.starts[i], branch.scaling), x, &branch.a)
        };
        self.group("inner products of branches", self.with_branches().map(inner).collect())
    }

    /// `s dy B` of each branch.
    fn inner_grads<'a>(&'a self, dys: &'a [CubeTensor]) -> Option<CubeTensor> {
        let inner = |(i, branch): (usize, &'a StoredBranch<CubeBackend>)| {
            let ([rows, out], [_, rank]) = (dims(&dys[i]), dims(&branch.b));
            let (a, b) = (Operand::lines(&dys[i], 0, out).layout, Operand::terms(&branch.b, 0, rank).layout);
            (product("inner", [rows, rank, out], a, b, self.starts[i], branch.scaling), &dys[i], &branch.b)
        };
        self.group("inner gradients of branches", self.with_branches().map(inner).collect())
    }

    /// `(s dy B)ᵀ x` and `dyᵀ (s x Aᵀ)` of each branch.
    fn branch_grads(&self, x: &CubeTensor, dys: &[CubeTensor], inner: &CubeTensor, inner_grads: &CubeTensor) -> Vec<CubeTensor> {
        let [rows, input] = dims(x);
        let sides: Vec<&CubeTensor> = self.with_branches().flat_map(|(_, branch)| [&branch.a, &branch.b]).collect();
        let (all, starts) = row(&sides).unwrap_or_else(|| {
            // Where any device can bind memory, and not from the first number on: as an arena their gaps would have to be zeros, which nobody writes.
            let mut end = next_place((0, 1));
            let start = |side: &&CubeTensor| {
                let start = end;
                end = next_place((start, side.meta.shape().num_elements()));
                start
            };
            let starts = sides.iter().map(start).collect();
            (empty(x, [end], DType::F32), starts)
        });
        let (mut products, mut places, mut starts) = (Vec::new(), Vec::new(), starts.into_iter());
        for (i, branch) in self.with_branches() {
            let [out, rank] = dims(&branch.b);
            let (du, u) = (Operand::terms(inner_grads, self.starts[i], rank).layout, Operand::terms(inner, self.starts[i], rank).layout);
            let (dy, of_x) = (Operand::terms(&dys[i], 0, out).layout, Operand::terms(x, 0, input).layout);
            for (left, right, shape, a, b) in [(inner_grads, x, [rank, input], du, of_x), (&dys[i], inner, [out, rank], dy, u)] {
                let ([m, n], start) = (shape, starts.next().unwrap_or_else(|| unreachable!("a place for each")));
                products.push((product("branch", [m, n, rows], a, b, start, 1.0), left, right));
                places.push((start, shape));
            }
        }
        group("gradients of branches", &products, &all);
        places.into_iter().map(|(start, shape)| shaped(view(&all, start, shape[0] * shape[1]), shape)).collect()
    }
}

/// The same in f32.
fn wide(x: CubeTensor) -> CubeTensor {
    if x.dtype == DType::F16 { CubeBackend::widen(x) } else { x }
}

impl MapOps for CubeBackend {
    fn maps(x: CubeTensor, maps: Maps<Self>, onto: Maybe<Self>, precision: Precision) -> Parts<Self> {
        let mut onto = onto.into_option();
        if !(ours([&x], &maps, precision) && covers(&onto)) {
            return portable::maps::<Self>(wide(x), maps, onto.map(wide).into(), precision);
        }
        let (shape, half) = (x.shape(), maps.half && Self::supports_dtype(&x.device, DType::F16));
        let x = flat(x);
        let [rows, input] = dims(&x);
        let maps = Settled::new(maps, rows);
        let (inner, factors, added) = (maps.inner(&x), factors(precision, DType::F32), onto.is_some());
        // What a result is added to, which only the first is, leaves no room beside a bias, nor does a result in f16.
        let room = |i: usize| maps.biases[i].is_none() || !(half || i == 0 && added);
        let few = |i: usize| room(i) && are_few(rows, x.dtype, &maps.weights[i]);
        // Those of a few rows are f32, and then all are.
        let result = if half && !(0..maps.weights.len()).any(few) { DType::F16 } else { DType::F32 };
        let mut made = maps.dense(|i| !few(i) && words(&maps.weights[i], room(i)).is_none(), precision);
        let one = |i: usize| {
            let (bias, onto) = (maps.biases[i].as_ref(), onto.take().map(flat));
            if few(i) {
                let branch = inner.as_ref().zip(maps.branches[i].as_ref());
                let low = branch.map(|(inner, branch)| Low { inner, begin: maps.starts[i], b: &branch.b });
                return portable::shaped::<Self>(few_rows(&x, &maps.weights[i], low, bias, onto), &shape);
            }
            let weight = Weight::new(&maps.weights[i], made[i].take(), precision, room(i));
            let [out, _] = weight.dims;
            let low = inner.as_ref().zip(maps.branches[i].as_ref()).map(|(inner, branch)| {
                let rank = dims(&branch.a)[0];
                (Operand::lines(inner, maps.starts[i], rank), Operand::lines(&branch.b, 0, rank), rank)
            });
            let operands = (Operand::lines(&x, 0, input), weight.lines());
            let y = map("linear map", [rows, out, input], operands, [factors, result], low, bias, onto);
            portable::shaped::<Self>(y, &shape)
        };
        let mut all: Vec<CubeTensor> = (0..maps.weights.len()).map(one).collect();
        all.extend(inner);
        Parts(all)
    }

    fn maps_grad(
        kept: Parts<Self>,
        maps: Maps<Self>,
        dys: Parts<Self>,
        order: Vec<usize>,
        held: Maybe<Self>,
        wants: bool,
        precision: Precision,
    ) -> Parts<Self> {
        let (held, half) = (held.into_option(), maps.half);
        // The inner products are there, behind x, if the results were ours.
        let complete = kept.0.is_empty() || kept.0.len() == 2;
        if !complete || !ours(kept.0.iter().chain(&dys.0).chain(&held), &maps, precision) {
            let [kept, dys] = [kept, dys].map(|parts| Parts(parts.0.into_iter().map(wide).collect()));
            let mut grads = portable::maps_grad::<Self>(kept, maps, dys, order, held.map(wide).into(), wants, precision).0;
            if let Some(dx) = grads.first_mut().filter(|_| wants && half) {
                *dx = Self::float_cast(dx.clone(), FloatDType::F16);
            }
            return Parts(grads);
        }
        let shape = dys.0[0].shape();
        let mut sorted: Vec<(usize, CubeTensor)> = order.iter().copied().zip(dys.0.into_iter().map(flat)).collect();
        sorted.sort_by_key(|(i, _)| *i);
        let dys: Vec<CubeTensor> = sorted.into_iter().map(|(_, dy)| dy).collect();
        let [rows, _] = dims(&dys[0]);
        let maps = Settled::new(maps, rows);
        let inner_grads = maps.inner_grads(&dys);
        let of_branches = match (kept.0.as_slice(), &inner_grads) {
            ([x, inner], Some(inner_grads)) => maps.branch_grads(&flat(x.clone()), &dys, inner, inner_grads),
            _ => Vec::new(),
        };
        let mut dx = held.map(flat);
        let mut made = maps.dense(|i| wants && words(&maps.weights[i], true).is_none(), precision);
        for i in if wants { order } else { Vec::new() } {
            let (dy, weight) = (&dys[i], Weight::new(&maps.weights[i], made[i].take(), precision, true));
            let [out, input] = weight.dims;
            let low = inner_grads.as_ref().zip(maps.branches[i].as_ref()).map(|(inner, branch)| {
                let rank = dims(&branch.a)[0];
                (Operand::lines(inner, maps.starts[i], rank), Operand::terms(&branch.a, 0, input), rank)
            });
            let operands = (Operand::lines(dy, 0, out), weight.terms());
            let types = [factors(precision, DType::F32), if half { DType::F16 } else { DType::F32 }];
            dx = Some(map("linear map, gradient of its input", [rows, input, out], operands, types, low, None, dx));
        }
        let dx = dx.filter(|_| wants).map(|dx| portable::shaped::<Self>(dx, &shape));
        Parts(dx.into_iter().chain(of_branches).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gate and up of the 0.5B model with adapters of rank 8: the gradients of A take 14 workgroups of a wave each, those of B 76.
    #[test]
    fn gradients_of_branches_have_no_workgroups_to_spare() {
        let small = |m, n| {
            let product = product(
                "branch",
                [m, n, 512],
                Layout { line: 1, k: m, ..Layout::default() },
                Layout { line: 1, k: n, ..Layout::default() },
                0,
                1.0,
            );
            let block = small_block(&product, true);
            product.m.div_ceil(block.rows as usize) * product.n.div_ceil(block.cols as usize)
        };
        assert_eq!([small(8, 896), small(4864, 8)], [14, 76]);
    }
}
