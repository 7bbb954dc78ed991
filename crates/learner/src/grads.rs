//! The gradient buffer of an accumulation window.

use bellows_kernels::{clip_to_norm, note_read};
use burn::tensor::{Tensor, Transaction};

use crate::arenas::Arenas;
use crate::error::LearnError;
use crate::layout::Layout;

/// Gradients summed over the batches of one accumulation window.
#[derive(Clone, Debug, Default)]
pub struct GradBuffer {
    /// Sums; empty between windows.
    pub sums: Arenas,
    /// Which entries of the [`Layout`] have had a gradient.
    pub seen: Vec<bool>,
}

impl GradBuffer {
    /// Gradients in the order of the layout's entries.
    pub fn of(layout: &Layout, grads: Vec<Option<Tensor<1>>>) -> Self {
        let seen = grads.iter().map(Option::is_some).collect();
        Self { sums: layout.gather(grads), seen }
    }

    /// The same by entry.
    pub(crate) fn by_entry(&self, layout: &Layout) -> Vec<Option<Tensor<1>>> {
        let values = layout.scatter(&self.sums);
        values.into_iter().zip(&self.seen).map(|(value, seen)| value.filter(|_| *seen)).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.seen.contains(&true)
    }

    /// Adds those of a batch, or of a part of one.
    pub fn add(&mut self, grads: Self) {
        if self.is_empty() {
            *self = grads;
            return;
        }
        for (sum, grad) in self.sums.iter_mut().zip(grads.sums) {
            *sum = match (sum.take(), grad) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            };
        }
        self.seen.iter_mut().zip(grads.seen).for_each(|(seen, new)| *seen |= new);
    }

    /// Divides by `count`.
    pub(crate) fn divide(&mut self, count: u64) {
        for sum in self.sums.iter_mut().flatten() {
            sum.inplace(|g| g.div_scalar(count as f64));
        }
    }

    /// Σ g², `[1]`; `None` if there are none.
    pub(crate) fn squares(&self, layout: &Layout) -> Option<Tensor<1>> {
        layout.pieces.squares(&self.sums, |entry| self.seen[entry])
    }

    /// Scales them so that their global norm, the root of `squares`, is at most `max_norm`: factor min(1, max_norm / (norm + 1e-6)). They stay as they are
    /// where it is not finite: then there is no update.
    pub(crate) fn clip(&mut self, squares: &Tensor<1>, max_norm: f64) {
        for sum in self.sums.iter_mut().flatten() {
            sum.inplace(|g| clip_to_norm(g, squares.clone(), max_norm));
        }
    }
}

/// Reads tensors of numbers in one transfer.
///
/// They come over one by one, because what an allocation that failed left unwritten is told of the tensor it is asked about: with
/// CubeCL 0.11.3 the next piece that is written into a concatenation takes that back from the pieces before.
pub(crate) fn read(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>, LearnError> {
    let failed = |e: &dyn std::fmt::Display| LearnError::Device(e.to_string());
    let all = tensors.into_iter().fold(Transaction::default(), Transaction::register);
    note_read();
    let data = all.try_execute().map_err(|e| failed(&e))?;
    data.into_iter().map(|d| d.try_into_vec_as::<f32>().map_err(|e| failed(&e))).collect()
}
