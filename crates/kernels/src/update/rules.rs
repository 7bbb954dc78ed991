//! The numbers of one step, the same for every parameter.

use std::ops::Range;

/// Gradient descent with Nesterov momentum.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// m.
    pub momentum: f64,
    /// Weight decay, added to the gradient.
    pub decay: f64,
}

/// Adam, or AdamW.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// `lr / (1 - β1^t)`.
    pub rate: f64,
    /// β1.
    pub beta1: f64,
    /// β2.
    pub beta2: f64,
    /// `√(1 - β2^t)`.
    pub root: f64,
    /// ε.
    pub epsilon: f64,
    /// Weight decay added to the gradient (Adam).
    pub decay: f64,
    /// What the weight is multiplied with beforehand: `1 - lr decay` (AdamW), else 1.
    pub keep: f64,
}

/// Parts of arenas in the order they are summed up in: which arena, and which of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments(pub Vec<(usize, Range<usize>)>);
