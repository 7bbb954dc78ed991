//! The rarer rules of `torch.optim`, composed of tensor operations: NAdam, RAdam, Adamax and RMSprop.
//!
//! Formulas are those of PyTorch's documentation, weight decay added to the gradient, nothing else switched on. Each rule is a pure function of flat
//! tensors `[K]` without gradient, and what it needs of the past are two buffers and the number of the update: NAdam's running product of
//! momenta, which PyTorch stores, follows from that number. No buffer yet counts as zeros. Gradients are finite; who calls has seen to it.

use bellows_kernels::blend;
use burn::tensor::Tensor;

/// NAdam's `momentum_decay`.
const MOMENTUM_DECAY: f64 = 4e-3;

/// The numbers of one update, the same for every parameter of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    /// Learning rate.
    pub(crate) lr: f64,
    /// β1, or RMSprop's momentum.
    pub(crate) beta1: f64,
    /// β2, or RMSprop's α.
    pub(crate) beta2: f64,
    /// ε.
    pub(crate) eps: f64,
    /// Weight decay, added to the gradient.
    pub(crate) decay: f64,
    /// Which update it is, from 1.
    pub(crate) number: u64,
}

/// New weight and both buffers.
pub(crate) type Updated = [Tensor<1>; 3];

impl Update {
    /// The gradient with its weight decay, and what the buffers were.
    fn begin(&self, weight: &Tensor<1>, grad: Tensor<1>, buffers: [Option<Tensor<1>>; 2]) -> (Tensor<1>, [Tensor<1>; 2]) {
        let grad = if self.decay == 0.0 { grad } else { grad + weight.clone().mul_scalar(self.decay) };
        (grad, buffers.map(|buffer| buffer.unwrap_or_else(|| weight.zeros_like())))
    }

    /// m and v of Adam: the averages of gradients and of their squares.
    fn moments(&self, grad: &Tensor<1>, [first, second]: [Tensor<1>; 2]) -> [Tensor<1>; 2] {
        let squared = grad.clone() * grad.clone();
        [blend(first, grad.clone(), self.beta1, 1.0 - self.beta1), blend(second, squared, self.beta2, 1.0 - self.beta2)]
    }

    /// `1 - β^t`.
    fn correction(&self, beta: f64) -> f64 {
        1.0 - beta.powf(self.number as f64)
    }

    /// NAdam's momentum at update `t`: `μ = β1 (1 - 0.96^(0.004 t) / 2)`.
    fn mu(&self, t: u64) -> f64 {
        self.beta1 * (1.0 - 0.5 * 0.96_f64.powf(t as f64 * MOMENTUM_DECAY))
    }

    /// `Π μ` over the updates so far. It falls below what 1 can be told from within some hundred updates, where the product ends.
    fn product_of_mu(&self) -> f64 {
        let mut product = 1.0;
        for t in 1..=self.number {
            product *= self.mu(t);
            if product < f64::EPSILON / 4.0 {
                return 0.0;
            }
        }
        product
    }

    /// NAdam (Dozat 2016): Adam with the gradient's share and the next step's momentum written apart.
    pub(crate) fn nadam(&self, weight: Tensor<1>, grad: Tensor<1>, buffers: [Option<Tensor<1>>; 2]) -> Updated {
        let (grad, buffers) = self.begin(&weight, grad, buffers);
        let [first, second] = self.moments(&grad, buffers);
        let (mu, next, product) = (self.mu(self.number), self.mu(self.number + 1), self.product_of_mu());
        let size = second.clone().div_scalar(self.correction(self.beta2)).sqrt().add_scalar(self.eps);
        let here = (grad / size.clone()).mul_scalar(self.lr * (1.0 - mu) / (1.0 - product));
        let ahead = (first.clone() / size).mul_scalar(self.lr * next / (1.0 - product * next));
        [weight - here - ahead, first, second]
    }

    /// RAdam (Liu et al. 2019): no division by the second moment until its variance is tractable (ρ above 5), and rectified from there on.
    pub(crate) fn radam(&self, weight: Tensor<1>, grad: Tensor<1>, buffers: [Option<Tensor<1>>; 2]) -> Updated {
        let (grad, buffers) = self.begin(&weight, grad, buffers);
        let [first, second] = self.moments(&grad, buffers);
        let mean = first.clone().div_scalar(self.correction(self.beta1)).mul_scalar(self.lr);
        let (remaining, t) = (self.correction(self.beta2), self.number as f64);
        let limit = 2.0 / (1.0 - self.beta2) - 1.0;
        let rho = limit - 2.0 * t * (1.0 - remaining) / remaining;
        let moved = if rho > 5.0 {
            let rectified = ((rho - 4.0) * (rho - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * rho)).sqrt();
            mean.mul_scalar(rectified * remaining.sqrt()) / second.clone().sqrt().add_scalar(self.eps)
        } else {
            mean
        };
        [weight - moved, first, second]
    }

    /// Adamax (Kingma and Ba 2014, section 7.1): Adam by the largest gradient, which is forgotten slowly, instead of by the mean square.
    pub(crate) fn adamax(&self, weight: Tensor<1>, grad: Tensor<1>, buffers: [Option<Tensor<1>>; 2]) -> Updated {
        let (grad, [first, largest]) = self.begin(&weight, grad, buffers);
        let first = blend(first, grad.clone(), self.beta1, 1.0 - self.beta1);
        let largest = largest.mul_scalar(self.beta2).max_pair(grad.abs().add_scalar(self.eps));
        let moved = (first.clone() / largest.clone()).mul_scalar(self.lr / self.correction(self.beta1));
        [weight - moved, first, largest]
    }

    /// RMSprop with momentum, not centred: the buffers are the momentum and the mean square.
    pub(crate) fn rmsprop(&self, weight: Tensor<1>, grad: Tensor<1>, buffers: [Option<Tensor<1>>; 2]) -> Updated {
        let (grad, [momentum, square]) = self.begin(&weight, grad, buffers);
        let square = blend(square, grad.clone() * grad.clone(), self.beta2, 1.0 - self.beta2);
        let momentum = momentum.mul_scalar(self.beta1) + grad / square.clone().sqrt().add_scalar(self.eps);
        [weight - momentum.clone().mul_scalar(self.lr), momentum, square]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_of_momenta_follows_from_the_update() {
        let at = |number| Update { lr: 0.1, beta1: 0.937, beta2: 0.999, eps: 1e-8, decay: 0.0, number };
        let by_hand = 0.937_f64.powi(2) * (1.0 - 0.5 * 0.96_f64.powf(0.004)) * (1.0 - 0.5 * 0.96_f64.powf(0.008));
        assert!((at(2).product_of_mu() - by_hand).abs() < 1e-15);
        assert!(at(20).product_of_mu() > 0.0);
        assert_eq!(at(u64::MAX).product_of_mu(), 0.0);
    }
}
