//! The decoder's operations on CubeCL devices: f32 through our kernels, and all but softmax in 16 bits too, everything else through Burn's own operations. Weights of norms,
//! angles and sums are f32 beside numbers of any type.
//!
//! RMS norm is one launch where shared memory can be trusted, a workgroup to a row; else what adds up rows is two. The weight's gradient, which adds up rows
//! and then columns, is four, the rest one. A result goes into the memory of the tensor it replaces if nobody else holds that.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::cube_kernels::{
    masked_softmax_grad_kernel, masked_softmax_kernel, products_kernel, rho_kernel, rms_norm_columns_kernel, rms_norm_data_grad_kernel,
    rms_norm_grad_sums_kernel, rms_norm_kernel, rms_norm_row_grad_kernel, rms_norm_row_kernel, rms_norm_weight_grad_kernel, rotate_kernel,
    row_squares_kernel, swiglu_grad_kernel, swiglu_kernel,
};
use super::{DecoderOps, portable};
use crate::cube::geometry::dims4;
use crate::cube::launch::{UNITS, covers, covers_images, launch, reach};
use crate::cube::pixels::{empty, like, replacement};
use crate::cube::shared_memory_works;
use crate::cube::softmax::{MaskingLaunch, softmax_sums_kernel};
use crate::cube::stripes::Plan;
use crate::planes::PlaneOps;
use crate::shapes::expect;

impl DecoderOps for CubeBackend {
    fn rms_norm(x: CubeTensor, weight: CubeTensor, epsilon: f64) -> CubeTensor {
        if !covers_images(&[&x], [&weight]) {
            return portable::rms_norm::<Self>(x, weight, epsilon);
        }
        let [x, weight] = [x, weight].map(into_contiguous);
        let (plan, y, dtype) = (Plan::new(&x), like(&x), x.dtype);
        let (all, width, threads, kind) = (plan.numbers(), plan.width, plan.threads(), dtype_to_storage_type(dtype));
        if shared_memory_works(&x.device) {
            launch!(
                rms_norm_row_kernel,
                plan.rows * UNITS as usize,
                [(x, all, dtype), (weight, width), (y, all, dtype)],
                plan.rows(),
                epsilon as f32,
                kind
            );
            return y;
        }
        let sums = plan.sums(&x, 1);
        launch!(row_squares_kernel, threads, [(x, all, dtype), (sums, threads)], plan.rows(), kind);
        launch!(
            rms_norm_kernel,
            threads,
            [(x, all, dtype), (weight, width), (sums, threads), (y, all, dtype)],
            plan.rows(),
            epsilon as f32,
            kind
        );
        y
    }

    fn rms_norm_data_grad(x: CubeTensor, weight: CubeTensor, dy: CubeTensor, epsilon: f64) -> CubeTensor {
        let [x, dy] = alike([x, dy]);
        if !covers_images(&[&x, &dy], [&weight]) {
            return portable::rms_norm_data_grad::<Self>(x, weight, dy, epsilon);
        }
        let [x, weight, dy] = [x, weight, dy].map(into_contiguous);
        let plan = Plan::new(&x);
        if shared_memory_works(&x.device) {
            return row_grad(&plan, [x, weight, dy], None, epsilon);
        }
        let (sums, dtype) = (plan.sums(&x, 2), x.dtype);
        let (all, width, threads, kind) = (plan.numbers(), plan.width, plan.threads(), dtype_to_storage_type(dtype));
        launch!(
            rms_norm_grad_sums_kernel,
            threads,
            [(x, all, dtype), (weight, width), (dy, all, dtype), (sums, 2 * threads)],
            plan.rows(),
            kind
        );
        let (dx, to_dx) = replacement(&dy, 2);
        launch!(
            rms_norm_data_grad_kernel,
            threads,
            [(x, all, dtype), (weight, width), (dy, all, dtype), (sums, 2 * threads)],
            to_dx,
            plan.rows(),
            epsilon as f32,
            kind
        );
        dx
    }

    fn rms_norm_data_grad_onto(x: CubeTensor, weight: CubeTensor, dy: CubeTensor, held: CubeTensor, epsilon: f64) -> CubeTensor {
        if !covers_images(&[&x, &dy, &held], [&weight]) || !shared_memory_works(&x.device) {
            return Self::add(Self::rms_norm_data_grad(x, weight, dy, epsilon), held);
        }
        let [x, weight, dy, held] = [x, weight, dy, held].map(into_contiguous);
        row_grad(&Plan::new(&x), [x, weight, dy], Some(held), epsilon)
    }

    fn rms_norm_weight_grad(x: CubeTensor, dy: CubeTensor, epsilon: f64) -> CubeTensor {
        let [x, dy] = alike([x, dy]);
        if !covers_images(&[&x, &dy], []) {
            return portable::rms_norm_weight_grad::<Self>(x, dy, epsilon);
        }
        let [x, dy] = [x, dy].map(into_contiguous);
        let (plan, dtype) = (Plan::new(&x), x.dtype);
        let (sums, rhos) = (plan.sums(&x, 1), empty(&x, [plan.rows], DType::F32));
        let (all, width, threads, kind) = (plan.numbers(), plan.width, plan.threads(), dtype_to_storage_type(dtype));
        launch!(row_squares_kernel, threads, [(x, all, dtype), (sums, threads)], plan.rows(), kind);
        launch!(rho_kernel, plan.rows, [(sums, threads), (rhos, plan.rows)], plan.rows(), epsilon as f32);
        // As many parts of a column as rows to a part.
        let parts = plan.rows.isqrt();
        let (columns, dw) = (empty(&x, [parts, width], DType::F32), empty(&x, [width], DType::F32));
        let count = parts * width;
        launch!(
            rms_norm_columns_kernel,
            count,
            [(x, all, dtype), (dy, all, dtype), (rhos, plan.rows), (columns, count)],
            plan.rows(),
            parts,
            kind
        );
        launch!(rms_norm_weight_grad_kernel, width, [(columns, count), (dw, width)], parts);
        dw
    }

    fn swiglu(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
        if !covers_images(&[&gate, &up], []) {
            let [gate, up] = alike([gate, up]);
            return portable::swiglu::<Self>(gate, up);
        }
        let [gate, up] = [gate, up].map(into_contiguous);
        let (y, len, dtype) = (like(&gate), gate.meta.shape().num_elements(), gate.dtype);
        launch!(swiglu_kernel, len, [(gate, len, dtype), (up, len, dtype), (y, len, dtype)], dtype_to_storage_type(dtype));
        y
    }

    fn swiglu_grad(gate: CubeTensor, up: CubeTensor, dy: CubeTensor) -> (CubeTensor, CubeTensor) {
        if !covers_images(&[&gate, &up, &dy], []) {
            let [gate, up, dy] = alike([gate, up, dy]);
            return portable::swiglu_grad::<Self>(gate, up, dy);
        }
        let [gate, up, dy] = [gate, up, dy].map(into_contiguous);
        let (dup, (dgate, to_dgate)) = (like(&up), replacement(&dy, 2));
        let (len, dtype) = (gate.meta.shape().num_elements(), gate.dtype);
        launch!(
            swiglu_grad_kernel,
            len,
            [(gate, len, dtype), (up, len, dtype), (dy, len, dtype), (dup, len, dtype)],
            to_dgate,
            dtype_to_storage_type(dtype)
        );
        (dgate, dup)
    }

    fn masked_softmax(scores: CubeTensor, mask: CubeTensor, scale: f64) -> CubeTensor {
        if !covers([&scores, &mask]) {
            return portable::masked_softmax::<Self>(scores, mask, scale);
        }
        let ([batch, heads, queries, _], [held, ..]) = (dims4(&scores), dims4(&mask));
        let [scores, mask] = [scores, mask].map(into_contiguous);
        let plan = Plan::new(&scores);
        let masking = || MaskingLaunch::new(scale as f32, heads * queries, queries, if held == 1 { 0 } else { queries });
        let sums = plan.sums(&scores, 2);
        let masks = if held == 1 { 1 } else { batch };
        let (all, threads, masked) = (plan.numbers(), plan.threads(), masks * queries * plan.width);
        launch!(softmax_sums_kernel, threads, [(scores, all), (mask, masked), (sums, 2 * threads)], plan.rows(), masking(), true);
        let (p, to_p) = replacement(&scores, 0);
        launch!(masked_softmax_kernel, threads, [(scores, all), (mask, masked), (sums, 2 * threads)], to_p, plan.rows(), masking());
        p
    }

    fn masked_softmax_grad(p: CubeTensor, dp: CubeTensor, scale: f64) -> CubeTensor {
        if !covers([&p, &dp]) {
            return portable::masked_softmax_grad::<Self>(p, dp, scale);
        }
        let [p, dp] = [p, dp].map(into_contiguous);
        let plan = Plan::new(&p);
        let sums = plan.sums(&p, 1);
        let (all, threads) = (plan.numbers(), plan.threads());
        launch!(products_kernel, threads, [(p, all), (dp, all), (sums, threads)], plan.rows());
        let (dx, to_dx) = replacement(&dp, 1);
        launch!(masked_softmax_grad_kernel, threads, [(p, all), (dp, all), (sums, threads)], to_dx, plan.rows(), scale as f32);
        dx
    }

    fn rotate(q: CubeTensor, k: CubeTensor, cos: CubeTensor, sin: CubeTensor) -> (CubeTensor, CubeTensor) {
        if !covers_images(&[&q, &k], [&cos, &sin]) {
            let one = |x| portable::rotate::<Self>(x, cos.clone(), sin.clone());
            return (one(q), one(k));
        }
        turned(q, k, cos, sin, false)
    }

    fn rotate_back(q: CubeTensor, k: CubeTensor, cos: CubeTensor, sin: CubeTensor) -> (CubeTensor, CubeTensor) {
        if !covers_images(&[&q, &k], [&cos, &sin]) {
            let one = |y| portable::rotate_back::<Self>(y, cos.clone(), sin.clone());
            return (one(q), one(k));
        }
        turned(q, k, cos, sin, true)
    }
}

/// In f32, unless they are of one type.
fn alike<const N: usize>(tensors: [CubeTensor; N]) -> [CubeTensor; N] {
    let dtype = tensors[0].dtype;
    if tensors.iter().all(|tensor| tensor.dtype == dtype) { tensors } else { tensors.map(CubeBackend::widen) }
}

/// The gradient of RMS norm's x, added to `held`, a workgroup to a row.
fn row_grad(plan: &Plan, [x, weight, dy]: [CubeTensor; 3], held: Option<CubeTensor>, epsilon: f64) -> CubeTensor {
    let (dx, to_dx) = match &held {
        Some(held) => replacement(held, 3),
        None => replacement(&dy, 2),
    };
    let (added, all, dtype) = (held.is_some(), plan.numbers(), x.dtype);
    // Something must be bound that is not written: of the weight the count has little.
    let (held, numbers) = held.map_or_else(|| (weight.clone(), plan.width), |held| (held, all));
    launch!(
        rms_norm_row_grad_kernel,
        plan.rows * UNITS as usize,
        [(x, all, dtype), (weight, plan.width), (dy, all, dtype), (held, numbers, held.dtype)],
        to_dx,
        plan.rows(),
        epsilon as f32,
        added,
        [dtype, held.dtype].map(dtype_to_storage_type)
    );
    dx
}

/// Both with their second and third axes exchanged and their pairs turned, `back` or forth.
fn turned(q: CubeTensor, k: CubeTensor, cos: CubeTensor, sin: CubeTensor, back: bool) -> (CubeTensor, CubeTensor) {
    let ([held, _, positions, half], [batch, ..]) = (dims4(&cos), dims4(&q));
    let [q, k] = [q, k].map(|x| CubeBackend::float_swap_dims(x, 1, 2));
    for x in [&q, &k] {
        let [images, first, second, d] = dims4(x);
        expect("what is turned", [images, if back { first } else { second }, d], [batch, positions, 2 * half]);
    }
    let [cos, sin] = [cos, sin].map(into_contiguous);
    let dtype = q.dtype;
    let [of_q, of_k] = [&q, &k].map(|x| empty(x, dims4(x), dtype));
    let [queries, keys] = [&q, &k].map(|x| x.meta.shape().num_elements());
    let (step, angles) = if held == 1 { (0, positions * half) } else { (positions * half, batch * positions * half) };
    launch!(
        rotate_kernel,
        (queries + keys) / 2,
        [(q, reach(&q), dtype), (k, reach(&k), dtype), (cos, angles), (sin, angles), (of_q, queries, dtype), (of_k, keys, dtype)],
        step,
        back,
        dtype_to_storage_type(dtype)
    );
    (of_q, of_k)
}
