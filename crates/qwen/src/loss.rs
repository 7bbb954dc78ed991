//! Cross entropy of the output head, over trained tokens only and a block of rows at a time: the logits of a whole batch are never held.

use bellows_kernels::{Precision, cross_entropy, linear, linear_data_grad, linear_weight_grad};
use burn::tensor::{Int, Tensor};

/// Rows whose logits are held at once: 256 × 151,936 values are 156 MB.
pub const CHUNK: usize = 256;

/// The loss of a batch and its gradients, none of it on a graph.
pub struct HeadLoss {
    /// Σ of `−log softmax(h Wᵀ)[target]` over the rows, `[1]`.
    pub loss: Tensor<1>,
    /// Its gradient with respect to the rows, `[N, h]`.
    pub rows: Tensor<2>,
    /// Its gradient with respect to W, `[V, h]`, if asked for.
    pub weight: Option<Tensor<2>>,
}

/// Loss of normalised hidden `rows` `[N, h]` under the head W `[V, h]`, for one target id a row.
pub fn head_loss(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, with_weight: bool, precision: Precision) -> HeadLoss {
    weighted_head_loss(rows, weight, targets, None, with_weight, precision)
}

/// The same with every row's loss multiplied by its weight, `[N]`.
pub fn weighted_head_loss(
    rows: Tensor<2>,
    weight: &Tensor<2>,
    targets: Tensor<1, Int>,
    weights: Option<Tensor<1>>,
    with_weight: bool,
    precision: Precision,
) -> HeadLoss {
    let n = rows.dims()[0];
    let (mut losses, mut row_grads, mut weight_grad) = (Vec::new(), Vec::new(), None);
    for start in (0..n).step_by(CHUNK) {
        let len = CHUNK.min(n - start);
        let h = rows.clone().narrow(0, start, len);
        let logits = linear(h.clone(), weight.clone(), None, precision);
        let (mut loss, mut dlogits) = cross_entropy(logits, targets.clone().narrow(0, start, len));
        if let Some(weights) = &weights {
            let of_rows = weights.clone().narrow(0, start, len);
            (loss, dlogits) = (loss * of_rows.clone(), dlogits * of_rows.reshape([len, 1]));
        }
        losses.push(loss.sum());
        if with_weight {
            let grad = linear_weight_grad(h, dlogits.clone());
            weight_grad = Some(match weight_grad {
                Some(sum) => sum + grad,
                None => grad,
            });
        }
        row_grads.push(linear_data_grad(dlogits, weight.clone(), precision));
    }
    HeadLoss { loss: join(losses).sum(), rows: join(row_grads), weight: weight_grad }
}

/// Σ of `−log softmax(h Wᵀ)[target]` alone, `[1]`: evaluation.
pub fn head_loss_only(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> Tensor<1> {
    join(losses(rows, weight, targets, precision).map(Tensor::sum).collect()).sum()
}

/// `−log softmax(h Wᵀ)[target]` of every row, `[N]`.
pub fn row_losses(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> Tensor<1> {
    join(losses(rows, weight, targets, precision).collect())
}

/// The rows' losses a block at a time.
fn losses(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, precision: Precision) -> impl Iterator<Item = Tensor<1>> {
    let n = rows.dims()[0];
    (0..n).step_by(CHUNK).map(move |start| {
        let len = CHUNK.min(n - start);
        let logits = linear(rows.clone().narrow(0, start, len), weight.clone(), None, precision);
        cross_entropy(logits, targets.clone().narrow(0, start, len)).0
    })
}

/// The pieces one below the other, none of them missing.
///
/// With CubeCL 0.11.3 it is forgotten that a piece could not be computed, for want of memory for its logits, as soon as the next one is written below it. So
/// the last one is made to depend on all: 0 times an element of each is subtracted, which changes no bit of it.
fn join<const D: usize>(mut pieces: Vec<Tensor<D>>) -> Tensor<D> {
    let element = |piece: &Tensor<D>| (0..D).fold(piece.clone(), |piece, dim| piece.narrow(dim, 0, 1));
    if let Some(last) = pieces.pop() {
        let sum = pieces.iter().map(element).reduce(|a, b| a + b);
        pieces.push(match sum {
            Some(sum) => last - sum.abs().mul_scalar(0.0),
            None => last,
        });
    }
    Tensor::cat(pieces, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn joined_pieces_keep_their_bits() {
        let piece = |values: [f32; 4]| Tensor::<2>::from_data([[values[0], values[1]], [values[2], values[3]]], &Device::flex());
        let bits = |t: Tensor<2>| t.try_into_vec_as::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let pieces = || vec![piece([-3.0, 1.5, 2.0, 0.1]), piece([1e30, 4.0, -1.0, 7.0]), piece([-0.0, 0.0, 1e-40, -2.5])];
        assert_eq!(bits(join(pieces())), bits(Tensor::cat(pieces(), 0)));
        assert_eq!(bits(join(pieces().split_off(2))), bits(pieces().remove(2)));
        // A piece that is not finite shows in the last one too: it depends on all.
        assert!(bits(join(vec![piece([f32::NAN; 4]), piece([1.0; 4])])).iter().all(|&b| f32::from_bits(b).is_nan()));
    }
}
