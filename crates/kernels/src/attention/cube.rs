//! Attention on CubeCL devices, from the host's side: one launch forward, three backward (four where there are few keys), and nothing of the size of the scores in
//! memory. Where shared memory cannot be trusted, or heads are too wide for it, attention is composed of products and a masked softmax.
//!
//! Heads are read wherever they lie, and results have the heads of a token side by side in memory, as the products before and behind have them.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::IntTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_kernels::{
    SIDE, SizesLaunch, UNITS, attend_kernel, bytes, key_grad_kernel, key_grad_sum_kernel, query_grad_kernel, rows_kernel,
};
use super::sizes::expect_fit;
use super::{AttentionOps, portable};
use crate::cube::geometry::{MAX_GRID, dims4};
use crate::cube::launch::{address_type, check_reach, is_image_type, launch, reach};
use crate::cube::pixels::{empty, view};
use crate::cube::shared_memory_works;
use crate::cube::trace::{note, note_room};
use crate::shapes::expect;

/// Workgroups that fill any card. Where those of keys are fewer each has a part of the query heads, so sums in memory are of so many blocks of keys at most.
const ENOUGH: usize = 512;

/// Keys, counted once for each part of the query heads that see them, of whose gradients and whose values' there are sums in memory at most.
pub const MOST_SUMMED: usize = ENOUGH * SIDE as usize;

/// Whether our kernels take these.
fn covers(q: &CubeTensor, k: &CubeTensor, v: &CubeTensor, first: &CubeTensor) -> bool {
    let [b, heads, s, d] = dims4(q);
    let hardware = &q.client.properties().hardware;
    let fits = bytes(d) <= hardware.max_shared_memory_size && UNITS <= hardware.max_units_per_cube && b.max(heads) <= MAX_GRID;
    let types = is_image_type(q.dtype) && k.dtype == q.dtype && v.dtype == q.dtype && matches!(first.dtype, DType::I32 | DType::I64);
    types && fits && b * heads * s * d > 0 && shared_memory_works(&q.device)
}

/// The same with the numbers of a line side by side.
fn in_lines(x: CubeTensor) -> CubeTensor {
    if x.meta.strides()[3] == 1 && !x.meta.is_tiled() { x } else { into_contiguous(x) }
}

/// Panics unless the shapes fit each other, and each tensor, whose types `covers` has compared, has the last number that its shape and strides lead to.
fn check(q: &CubeTensor, k: &CubeTensor, v: &CubeTensor, first: &CubeTensor) {
    expect_fit(dims4(q), dims4(k), dims4(v), first.meta.shape().dims());
    let tensors = [q, k, v, first];
    check_reach("attention", tensors, tensors.map(reach), tensors.map(|tensor| tensor.dtype));
}

/// Room for `[batch, heads, lines, d]`, with the heads of a token side by side.
fn by_tokens(like: &CubeTensor, [batch, heads, lines, d]: [usize; 4]) -> CubeTensor {
    CubeBackend::float_swap_dims(empty(like, [batch, lines, heads, d], like.dtype), 1, 2)
}

/// The sum of parts of so many numbers each.
fn added(parts: &CubeTensor, count: usize, len: usize, dtype: DType) -> CubeTensor {
    let sum = empty(parts, [len], dtype);
    launch!(key_grad_sum_kernel, len, [(parts, count * len), (sum, len, dtype)], count as u32, dtype_to_storage_type(dtype));
    sum
}

/// The sizes of a problem.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    d: usize,
}

impl Shape {
    fn new(q: &CubeTensor, k: &CubeTensor) -> Self {
        let ([batch, heads, queries, d], [_, key_heads, keys, _]) = (dims4(q), dims4(k));
        Self { batch, heads, key_heads, queries, keys, d }
    }

    fn sizes(&self, scale: f64) -> SizesLaunch {
        let &Self { heads, key_heads, queries, keys, .. } = self;
        SizesLaunch::new(heads as u32, (heads / key_heads) as u32, queries as u32, keys as u32, scale as f32)
    }

    /// A workgroup to a block of `lines` of each of so many heads.
    fn grid(&self, lines: usize, heads: usize) -> CubeCount {
        CubeCount::Static(lines.div_ceil(SIDE as usize) as u32, heads as u32, self.batch as u32)
    }

    /// Query heads that a workgroup of keys adds up: as few of its group as leave at most [`ENOUGH`] workgroups.
    fn members(&self) -> usize {
        let group = self.heads / self.key_heads;
        let parts = ENOUGH / (self.batch * self.key_heads * self.keys.div_ceil(SIDE as usize));
        group.div_ceil(parts.clamp(1, group))
    }

    /// Multiplications and additions of so many products of the pairs that are seen in a row of one document: a query sees the keys up to its own. Of several
    /// documents the host does not know how long they are.
    fn flops(&self, products: usize) -> u64 {
        let pairs = self.queries * (2 * self.keys - self.queries + 1) / 2;
        (2 * products * self.batch * self.heads * pairs * self.d) as u64
    }
}

impl AttentionOps for CubeBackend {
    #[expect(unsafe_code, reason = "see SAFETY")]
    fn attend(q: CubeTensor, k: CubeTensor, v: CubeTensor, first: IntTensor<Self>, scale: f64) -> (CubeTensor, CubeTensor) {
        if !covers(&q, &k, &v, &first) {
            return portable::attend::<Self>(portable::SCORES, [q, k, v], first, scale);
        }
        let ([q, k, v], first) = ([q, k, v].map(in_lines), into_contiguous(first));
        check(&q, &k, &v, &first);
        let shape = Shape::new(&q, &k);
        let (y, logs) = (by_tokens(&q, dims4(&q)), empty(&q, [shape.batch, shape.heads, shape.queries], DType::F32));
        note("attention", [&q, &k, &v, &y, &logs], shape.flops(2));
        note_room("attention", bytes(shape.d), 0);
        // SAFETY: `check` has found all numbers of what is read, and what is written is made above, of its size.
        unsafe {
            attend_kernel::launch_unchecked(
                &q.client.clone(),
                shape.grid(shape.queries, shape.heads),
                CubeDim::new_1d(UNITS),
                address_type([&q, &k, &v, &y]),
                q.clone().into_tensor_arg(),
                k.into_tensor_arg(),
                v.into_tensor_arg(),
                first.clone().into_tensor_arg(),
                y.clone().into_tensor_arg(),
                logs.clone().into_tensor_arg(),
                shape.sizes(scale),
                shape.d as u32,
                [&q, &first].map(|tensor| dtype_to_storage_type(tensor.dtype)),
            );
        }
        (y, logs)
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn attend_grad(
        q: CubeTensor,
        k: CubeTensor,
        v: CubeTensor,
        first: IntTensor<Self>,
        y: CubeTensor,
        logs: CubeTensor,
        dy: CubeTensor,
        scale: f64,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        if !covers(&q, &k, &v, &first) {
            return portable::attend_grad::<Self>(portable::SCORES, [q, k, v, dy], first, scale);
        }
        let ([q, k, v, y, dy], first) = ([q, k, v, y, dy].map(in_lines), into_contiguous(first));
        check(&q, &k, &v, &first);
        let shape = Shape::new(&q, &k);
        let Shape { batch, heads, queries, .. } = shape;
        expect("the result", dims4(&y), dims4(&q));
        expect("its gradient", dims4(&dy), dims4(&q));
        expect("what is kept of its rows", logs.meta.shape().dims(), [batch, heads, queries]);
        let types = [&q, &first].map(|tensor| dtype_to_storage_type(tensor.dtype));
        let count = batch * heads * queries;
        let rows = empty(&logs, [2 * count], DType::F32);
        launch!(
            rows_kernel,
            count,
            [(y, reach(&y), q.dtype), (dy, reach(&dy), q.dtype), (logs, count), (rows, 2 * count)],
            shape.d as u32,
            types[0]
        );
        let dq = by_tokens(&q, dims4(&q));
        note("attention, gradient of queries", [&q, &k, &v, &dy, &dq], shape.flops(3));
        note_room("attention, gradient of queries", bytes(shape.d), 0);
        // SAFETY: `check` and the launch before have found all numbers of what is read, and what is written is made above, of its size.
        unsafe {
            query_grad_kernel::launch_unchecked(
                &q.client.clone(),
                shape.grid(queries, heads),
                CubeDim::new_1d(UNITS),
                address_type([&q, &k, &v, &dy, &dq]),
                q.clone().into_tensor_arg(),
                k.clone().into_tensor_arg(),
                v.clone().into_tensor_arg(),
                dy.clone().into_tensor_arg(),
                first.clone().into_tensor_arg(),
                rows.clone().into_tensor_arg(),
                dq.clone().into_tensor_arg(),
                shape.sizes(scale),
                shape.d as u32,
                types,
            );
        }
        let all = k.meta.shape().num_elements();
        let members = shape.members();
        let parts = (heads / shape.key_heads).div_ceil(members);
        let sums = empty(&k, [parts * 2 * all], if parts == 1 { k.dtype } else { DType::F32 });
        note("attention, gradients of keys and values", [&q, &k, &v, &dy, &sums], shape.flops(4));
        note_room("attention, gradients of keys and values", bytes(shape.d), 0);
        // SAFETY: as before.
        unsafe {
            key_grad_kernel::launch_unchecked(
                &q.client.clone(),
                shape.grid(shape.keys, parts * shape.key_heads),
                CubeDim::new_1d(UNITS),
                address_type([&q, &k, &v, &dy, &sums]),
                q.into_tensor_arg(),
                k.clone().into_tensor_arg(),
                v.into_tensor_arg(),
                dy.into_tensor_arg(),
                first.into_tensor_arg(),
                rows.into_tensor_arg(),
                sums.clone().into_tensor_arg(),
                shape.sizes(scale),
                members as u32,
                shape.d as u32,
                [types[0], types[1], dtype_to_storage_type(sums.dtype)],
            );
        }
        let dkv = if parts == 1 { sums } else { added(&sums, parts, 2 * all, k.dtype) };
        let [b, heads, keys, d] = dims4(&k);
        let part = |start| Self::float_swap_dims(Self::float_reshape(view(&dkv, start, all), [b, keys, heads, d].into()), 1, 2);
        let [dk, dv] = [0, all].map(part);
        (dq, dk, dv)
    }
}
