//! Operations on the rows of `[N, K]` that language models are made of.

mod cube;
mod flex;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

use crate::shapes;

pub(crate) use flex::ids;

/// Operations on rows, without gradient.
#[backend_extension(Flex, Cube)]
pub trait RowOps: Backend {
    /// `-log softmax(x)[target]` of each row, `[N]`, and its gradient `softmax(x) - onehot(target)`, `[N, V]`, in x's memory if nobody else
    /// holds it. Logits `[N, V]`, targets `[N]` in 0..V.
    fn cross_entropy(logits: Float<Self>, targets: IntTensor<Self>) -> (Float<Self>, Float<Self>);

    /// The first of the two alone, whose bits it has on the processor; what x's memory holds then is nothing of use.
    fn cross_entropy_loss(logits: Float<Self>, targets: IntTensor<Self>) -> Float<Self>;
}

/// `-log softmax(x)[target]` of each row, `[N]`, and its gradient with respect to x, `[N, V]`. Logits `[N, V]`, targets `[N]` in 0..V; without
/// autodiff.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Tensor<2>) {
    shapes::expect("targets", targets.dims(), [logits.dims()[0]]);
    let (loss, grad) = Dispatch::cross_entropy(logits.into_dispatch(), targets.into_dispatch());
    (Tensor::from_dispatch(loss), Tensor::from_dispatch(grad))
}

/// `-log softmax(x)[target]` of each row alone, `[N]`: [`cross_entropy`] where nothing is learnt.
pub fn cross_entropy_loss(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    shapes::expect("targets", targets.dims(), [logits.dims()[0]]);
    Tensor::from_dispatch(Dispatch::cross_entropy_loss(logits.into_dispatch(), targets.into_dispatch()))
}
