//! The gradient buffer of an accumulation window, global-norm clipping, and the sums that tell whether anything is not finite.

use burn::tensor::{Tensor, Transaction};

use crate::error::LearnError;

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

/// Reads `tensors`, and Σ x² over `others` (not finite if any element is not, or if the sum overflows), in one transfer.
///
/// The sums come over one by one, because what an allocation that failed left unwritten is told of the tensor it is asked about: with
/// CubeCL 0.11.3 the next piece that is written into a concatenation takes that back from the pieces before.
pub(crate) fn read_with_squares<'a>(
    tensors: Vec<Tensor<1>>,
    others: impl IntoIterator<Item = &'a Tensor<1>>,
) -> Result<(Vec<Vec<f32>>, f64), LearnError> {
    let failed = |e: &dyn std::fmt::Display| LearnError::Device(e.to_string());
    let count = tensors.len();
    let sums = others.into_iter().cloned().map(bellows_kernels::sum_of_squares);
    let all = tensors.into_iter().chain(sums).fold(Transaction::default(), Transaction::register);
    let data = all.try_execute().map_err(|e| failed(&e))?;
    let mut read = data.into_iter().map(|d| d.try_into_vec_as::<f32>().map_err(|e| failed(&e))).collect::<Result<Vec<_>, _>>()?;
    let sums = read.split_off(count).concat();
    // In the order of the processor's sums, wherever they were made.
    let total = (!sums.is_empty()).then(|| bellows_kernels::on_processor(sums).sum().try_into_scalar::<f32>()).transpose();
    Ok((read, total.map_err(|e| failed(&e))?.map_or(0.0, f64::from)))
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
