//! The gradient buffer of an accumulation window, global-norm clipping, and the sums that tell whether anything is not finite.

use burn::tensor::Tensor;

/// Gradients summed over the batches of one accumulation window, parallel to [`Layout::entries`](crate::Layout::entries).
#[derive(Clone, Debug, Default)]
pub struct GradBuffer {
    /// Sums; empty between windows.
    pub sums: Vec<Option<Tensor<1>>>,
}

impl GradBuffer {
    /// Adds one batch's gradients.
    pub fn add(&mut self, grads: Vec<Option<Tensor<1>>>) {
        if self.sums.is_empty() {
            self.sums = grads;
            return;
        }
        for (sum, grad) in self.sums.iter_mut().zip(grads) {
            *sum = match (sum.take(), grad) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            };
        }
    }

    /// Empties the buffer and hands out the sums.
    pub fn take(&mut self) -> Vec<Option<Tensor<1>>> {
        std::mem::take(&mut self.sums)
    }
}

/// Σ x² over all tensors as a `[1]` tensor; `None` if there are none. Not finite if any element is not (or if the sum overflows).
pub fn sum_of_squares<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> Option<Tensor<1>> {
    let sums: Vec<Tensor<1>> = tensors.into_iter().cloned().map(bellows_kernels::sum_of_squares).collect();
    (!sums.is_empty()).then(|| Tensor::cat(sums, 0).sum())
}

/// Divides gradients by `count`.
pub(crate) fn divide(grads: &mut [Option<Tensor<1>>], count: u64) {
    for grad in grads.iter_mut().flatten() {
        grad.inplace(|g| g.div_scalar(count as f64));
    }
}

/// Scales gradients so that their global norm is at most `max_norm`: factor min(1, max_norm / (norm + 1e-6)).
pub fn clip_to_norm(grads: &mut [Option<Tensor<1>>], norm: f64, max_norm: f64) {
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        for grad in grads.iter_mut().flatten() {
            grad.inplace(|g| g.mul_scalar(factor));
        }
    }
}
