//! Cross entropy of the output head, over trained tokens only and a block of rows at a time: the logits of a whole batch are never held.

use bellows_kernels::cross_entropy;
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
pub fn head_loss(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>, with_weight: bool) -> HeadLoss {
    let n = rows.dims()[0];
    let (mut losses, mut row_grads, mut weight_grad) = (Vec::new(), Vec::new(), None);
    for start in (0..n).step_by(CHUNK) {
        let len = CHUNK.min(n - start);
        let h = rows.clone().narrow(0, start, len);
        let logits = h.clone().matmul(weight.clone().t());
        let (loss, dlogits) = cross_entropy(logits, targets.clone().narrow(0, start, len));
        losses.push(loss.sum());
        if with_weight {
            let grad = dlogits.clone().t().matmul(h);
            weight_grad = Some(match weight_grad {
                Some(sum) => sum + grad,
                None => grad,
            });
        }
        row_grads.push(dlogits.matmul(weight.clone()));
    }
    HeadLoss { loss: Tensor::cat(losses, 0).sum(), rows: Tensor::cat(row_grads, 0), weight: weight_grad }
}

/// Σ of `−log softmax(h Wᵀ)[target]` alone, `[1]`: evaluation.
pub fn head_loss_only(rows: Tensor<2>, weight: &Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let n = rows.dims()[0];
    let chunks = (0..n).step_by(CHUNK).map(|start| {
        let len = CHUNK.min(n - start);
        let logits = rows.clone().narrow(0, start, len).matmul(weight.clone().t());
        cross_entropy(logits, targets.clone().narrow(0, start, len)).0.sum()
    });
    Tensor::cat(chunks.collect(), 0).sum()
}
