//! Parameters as the Learner keeps them: in one arena, of which a network sees views.

use crate::made::{numbers, pattern};
use bellows_kernels::update::Ranges;
use bellows_kernels::{Adam, Places, arena, arena_parts, in_place};
use burn::tensor::{Device, Gradients, Tensor, TensorData};

/// AdamW's numbers of update `step`, from 1 on.
pub(crate) fn adam(step: i32, epsilon: f64) -> Adam {
    let (beta1, beta2): (f64, f64) = (0.9, 0.999);
    let (rate, root) = (1e-2 / (1.0 - beta1.powi(step)), (1.0 - beta2.powi(step)).sqrt());
    Adam { rate, beta1, beta2, root, epsilon, decay: 0.0, keep: 1.0 - 1e-4 }
}

/// The parameters of a small network.
pub(crate) struct Flat {
    pub(crate) values: Tensor<1>,
    places: Places,
}

impl Flat {
    /// Made-up values of tensors of these lengths, each less than `spread` in magnitude and around its `middle`.
    pub(crate) fn new(parts: &[(usize, f32, f32)], device: &Device) -> Self {
        let places = Places::of(parts.iter().map(|part| part.0));
        let of_part = |(i, &(len, middle, spread)): (usize, &(usize, f32, f32))| {
            let values: Vec<f32> = pattern(20 + i as u64, len).into_iter().map(|v| middle + spread * v).collect();
            Tensor::from_data(TensorData::new(values, [len]), device)
        };
        Self { values: arena(parts.iter().enumerate().map(of_part).collect(), &places), places }
    }

    /// Does `work`, a pass that makes gradients: each in its place in an arena, as in training.
    pub(crate) fn in_place<R>(&self, work: impl FnOnce() -> R) -> R {
        in_place(vec![(arena_parts(self.values.clone(), &self.places), &self.places)], work)
    }

    /// The step of an update for all of them, as two groups of parameters.
    pub(crate) fn groups<T: Clone>(&self, step: T) -> Ranges<T> {
        let len = self.places.len();
        vec![(len / 3, step.clone()), (len, step)]
    }

    /// The tensors, to be differentiated.
    pub(crate) fn leaves(&self) -> Vec<Tensor<1>> {
        arena_parts(self.values.clone(), &self.places).into_iter().map(|part| part.autodiff().require_grad()).collect()
    }

    /// The arena of their gradients; zeros where there is none.
    pub(crate) fn gradients(&self, leaves: &[Tensor<1>], of: &Gradients) -> Tensor<1> {
        let gradient = |leaf: &Tensor<1>| leaf.grad(of).unwrap_or_else(|| leaf.clone().without_autodiff().zeros_like());
        arena(leaves.iter().map(gradient).collect(), &self.places)
    }

    /// The values of each as they are now.
    pub(crate) fn parts(&self) -> Vec<Vec<f32>> {
        arena_parts(self.values.clone(), &self.places).into_iter().map(numbers).collect()
    }
}
