//! Products of two matrices: in any strides by our kernel, the second perhaps in words; or by Burn's.

use super::launch::is_image_type;
use super::matmul::{Layout, Product, Splits};
use super::packing::Packing;
use super::workspace::workspace_bytes;
use crate::matrices::MatrixOps;
use crate::policy::{Lowering, default_lowering};
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::ops::numeric::{empty_device_contiguous_dtype, zeros_client};
use burn_cubecl::tensor::CubeTensor;

impl MatrixOps for CubeBackend {
    fn product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
        let rank = a.meta.shape().num_dims();
        let alike = rank >= 2 && rank == b.meta.shape().num_dims() && a.meta.shape()[..rank - 2] == b.meta.shape()[..rank - 2];
        let ours = alike && [a.dtype, b.dtype].into_iter().all(is_image_type);
        match default_lowering() {
            Lowering::Gemm if ours => product(a, b),
            // Where Burn has no kernel for these, what is left is ours.
            Lowering::Untuned if ours => {
                matmul(a.clone(), b.clone(), None, MatmulStrategy::Cube, a.dtype).unwrap_or_else(|_| product(a, b))
            }
            _ => Self::float_matmul(a, b),
        }
    }

    fn reads_halves() -> bool {
        default_lowering() == Lowering::Gemm
    }
}

/// Matrices one after the other, of even steps.
struct Matrices {
    tensor: CubeTensor,
    count: usize,
    /// From one matrix to the next.
    batch: usize,
    /// Rows and columns, and the steps from one to the next.
    dims: [usize; 2],
    steps: [usize; 2],
    packing: Packing,
    /// What packed numbers are scaled by, row by row.
    scales: Option<CubeTensor>,
}

impl Matrices {
    /// The last two axes of a tensor, in place if the others are one axis of even steps, else of a copy.
    fn new(tensor: CubeTensor) -> Self {
        let leading = |tensor: &CubeTensor| {
            let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
            // An axis of length 1 has any stride.
            (0..shape.num_dims() - 2).filter(|&axis| shape[axis] > 1).map(|axis| (shape[axis], strides[axis])).collect::<Vec<_>>()
        };
        let even = |tensor: &CubeTensor| leading(tensor).windows(2).all(|pair| pair[0].1 == pair[1].0 * pair[1].1);
        let tensor = if !tensor.meta.is_tiled() && even(&tensor) { tensor } else { into_contiguous(tensor) };
        let axes = leading(&tensor);
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let rank = shape.num_dims();
        Self {
            count: axes.iter().map(|axis| axis.0).product(),
            batch: axes.last().map_or(0, |axis| axis.1),
            dims: [shape[rank - 2], shape[rank - 1]],
            steps: [strides[rank - 2], strides[rank - 1]],
            packing: Packing::Plain,
            scales: None,
            tensor,
        }
    }
}

/// `a b`: `[.., m, k]` and `[.., k, n]` to `[.., m, n]`, of the type of `a`. Long sums of few numbers are cut as a convolution's weight gradient is.
fn product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    let shape = a.meta.shape().clone();
    multiply(shape, &Matrices::new(a), &Matrices::new(b))
}

/// `a w`, or `a wᵀ`, of a matrix `a` and a contiguous one of this shape that is packed, of the type of `a`.
pub(crate) fn product_with(
    a: CubeTensor,
    (w, packing, scales): (CubeTensor, Packing, Option<CubeTensor>),
    [rows, columns]: [usize; 2],
    transposed: bool,
) -> CubeTensor {
    let (dims, steps) = if transposed { ([columns, rows], [1, columns]) } else { ([rows, columns], [columns, 1]) };
    let shape = a.meta.shape().clone();
    multiply(shape, &Matrices::new(a), &Matrices { tensor: w, count: 1, batch: 0, dims, steps, packing, scales })
}

/// `a b`, `shape` being that of `a`.
fn multiply(mut shape: Shape, a: &Matrices, b: &Matrices) -> CubeTensor {
    let ([m, k], [terms, n]) = (a.dims, b.dims);
    let last = shape.num_dims() - 1;
    shape[last] = n;
    assert!(k == terms, "a product of [{m}, {k}] and [{terms}, {n}]");
    let like = &a.tensor;
    if m * n * k * a.count == 0 {
        return zeros_client(like.client.clone(), like.device.clone(), shape, like.dtype);
    }
    let product = Product {
        name: "matrix product",
        m,
        n,
        k,
        outer: 1,
        batches: a.count,
        period: a.count,
        a: Layout { batch: a.batch, line: a.steps[0], k: a.steps[1], ..Layout::default() },
        b: Layout { batch: b.batch, line: b.steps[1], k: b.steps[0], packing: b.packing, ..Layout::default() },
        c: Layout { batch: m * n, outer: a.count * m * n, line: n, ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        onto: false,
        window: None,
    };
    let product = Product { splits: product.cut(workspace_bytes() / size_of::<f32>()), ..product };
    let out = empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, like.dtype);
    product.run_in_parts(&a.tensor, &b.tensor, b.scales.as_ref(), &out);
    out
}
