//! The row operations on CubeCL devices: f32 in two launches, everything else through Burn's own operations.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{RowOps, composed};
use crate::cube::launch::{covers, launch};
use crate::cube::pixels::{empty, replacement, view};
use crate::cube::softmax::{MaskingLaunch, log, softmax_of, softmax_sums_kernel};
use crate::cube::stripes::{Plan, Rows, row};

/// `log Σ exp(x) - x[target]` of each row and `softmax(x) - onehot(target)`, which may be x. The loss of a target that is not in
/// the row is `outside`: NaN, which WGSL cannot write down.
#[cube(launch_unchecked, address_type = "dynamic")]
fn cross_entropy_kernel<I: Int>(
    x: &Tensor<f32>,
    targets: &Tensor<I>,
    sums: &Tensor<f32>,
    loss: &mut Tensor<f32>,
    grad: &mut Tensor<f32>,
    rows: &Rows,
    outside: f32,
    #[define(I)] _type: ElemType,
) {
    if ABSOLUTE_POS >= rows.count * rows.parts {
        terminate!();
    }
    let softmax = softmax_of(sums, rows);
    let row = row(rows);
    let base = row * rows.width;
    let first = ABSOLUTE_POS % rows.parts;
    // A negative one becomes too large.
    let target = usize::cast_from(targets[row]);
    if first == 0usize && target >= rows.width {
        loss[row] = outside;
    }
    let mut j = first;
    while j < rows.width {
        let centred = x[base + j] - softmax.most;
        let mut slope = centred.exp() / softmax.sum;
        if j == target {
            loss[row] = log(softmax.sum) - centred;
            slope -= 1.0f32;
        }
        grad[base + j] = slope;
        j += rows.parts;
    }
}

/// The loss of [`cross_entropy_kernel`] alone, by the first thread of each row.
#[cube(launch_unchecked, address_type = "dynamic")]
fn losses_kernel<I: Int>(
    x: &Tensor<f32>,
    targets: &Tensor<I>,
    sums: &Tensor<f32>,
    loss: &mut Tensor<f32>,
    rows: &Rows,
    outside: f32,
    #[define(I)] _type: ElemType,
) {
    let first = ABSOLUTE_POS % rows.parts;
    if ABSOLUTE_POS >= rows.count * rows.parts || first != 0usize {
        terminate!();
    }
    let softmax = softmax_of(sums, rows);
    let row = row(rows);
    let target = usize::cast_from(targets[row]);
    loss[row] = outside;
    // No index is checked by the device, and nobody has looked at the targets.
    if target < rows.width {
        loss[row] = log(softmax.sum) - (x[row * rows.width + target] - softmax.most);
    }
}

/// Of each stripe of the logits the maximum and the sum of exponentials.
fn softmax_sums(logits: &CubeTensor, plan: &Plan) -> CubeTensor {
    let sums = plan.sums(logits, 2);
    // No mask: the first row of the logits, and no more for the count, stands in for one that is not used.
    let masking = MaskingLaunch::new(1.0, 1, 1, 0);
    launch!(
        softmax_sums_kernel,
        plan.threads(),
        [(logits, plan.numbers()), (view(logits, 0, plan.width), plan.width), (sums, 2 * plan.threads())],
        plan.rows(),
        masking,
        false
    );
    sums
}

impl RowOps for CubeBackend {
    fn cross_entropy_loss(logits: CubeTensor, targets: CubeTensor) -> CubeTensor {
        if !covers([&logits]) || !matches!(targets.dtype, DType::I32 | DType::I64) {
            return composed::<Self>(logits, targets).0;
        }
        let [logits, targets] = [logits, targets].map(into_contiguous);
        let plan = Plan::new(&logits);
        let (sums, loss) = (softmax_sums(&logits, &plan), empty(&logits, [plan.rows], DType::F32));
        let integer = dtype_to_storage_type(targets.dtype);
        launch!(
            losses_kernel,
            plan.threads(),
            [(logits, plan.numbers()), (targets, plan.rows, targets.dtype), (sums, 2 * plan.threads()), (loss, plan.rows)],
            plan.rows(),
            f32::NAN,
            integer
        );
        loss
    }

    fn cross_entropy(logits: CubeTensor, targets: CubeTensor) -> (CubeTensor, CubeTensor) {
        if !covers([&logits]) || !matches!(targets.dtype, DType::I32 | DType::I64) {
            return composed::<Self>(logits, targets);
        }
        let [logits, targets] = [logits, targets].map(into_contiguous);
        let plan = Plan::new(&logits);
        let (sums, loss) = (softmax_sums(&logits, &plan), empty(&logits, [plan.rows], DType::F32));
        let (grad, to_grad) = replacement(&logits, 0);
        let integer = dtype_to_storage_type(targets.dtype);
        launch!(
            cross_entropy_kernel,
            plan.threads(),
            [(logits, plan.numbers()), (targets, plan.rows, targets.dtype), (sums, 2 * plan.threads()), (loss, plan.rows)],
            to_grad,
            plan.rows(),
            f32::NAN,
            integer
        );
        (loss, grad)
    }
}
