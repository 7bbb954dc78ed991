//! Gradients that are told while a backward pass goes on, so that whoever sends them somewhere need not wait for its end.
//!
//! Burn hands out all gradients at the end of a pass. An operation that is the only reader of a weight has the whole gradient of it when it has computed its own, and tells it
//! here. That it is the only one is not known here: who listens compares what was told with what the pass has made.
//!
//! Only on the processor, where a gradient is computed when it is told, and lies in memory that can be read. As in [`parts`](crate::with_parts) it is a matter of the
//! thread that trains.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, BackendTensor, DispatchTensorKind};
use burn::tensor::{Tensor, try_read_sync};
use burn_autodiff::NodeId;

use crate::parts::with;
use crate::reads::note_read;

/// Is given the number of a weight and the gradient of it, in the shape of its memory.
pub type Listener = Rc<dyn Fn(usize, Vec<f32>)>;

/// The weights that are listened for, by the graph's name for them, with the listener's number.
pub type Leaves = HashMap<u64, usize>;

thread_local! {
    static LISTENING: RefCell<Option<(Leaves, Listener)>> = const { RefCell::new(None) };
}

/// Does `work` and tells `listener` gradients of `leaves` that come up meanwhile.
pub fn listen<R>(leaves: Leaves, listener: Listener, work: impl FnOnce() -> R) -> R {
    with(&LISTENING, (leaves, listener), work)
}

/// What the graph calls a tensor of the processor that has gradients.
pub fn leaf<const D: usize>(x: Tensor<D>) -> Option<u64> {
    let DispatchTensorKind::Autodiff(inner) = x.into_dispatch().kind else { return None };
    if let DispatchTensorKind::Flex(BackendTensor::Autodiff(tensor)) = *inner { Some(tensor.id().value) } else { None }
}

/// Tells the gradient of `weight`, to which nothing is added any more.
pub fn tell<const D: usize, const E: usize>(weight: Tensor<D>, grad: &Tensor<E>) {
    if let Some(id) = leaf(weight) {
        tell_of(id, || grad.try_to_vec_as::<f32>().ok());
    }
}

/// The same in an operation's backward step.
pub(crate) fn told<B: Backend>(id: NodeId, grad: &FloatTensor<B>) {
    tell_of(id.value, || try_read_sync(B::float_into_data(grad.clone()))?.ok()?.try_into_vec_as::<f32>().ok());
}

fn tell_of(id: u64, grad: impl FnOnce() -> Option<Vec<f32>>) {
    let heard = LISTENING.with_borrow(|listening| {
        let (leaves, listener) = listening.as_ref()?;
        Some((*leaves.get(&id)?, listener.clone()))
    });
    let Some((number, listener)) = heard else { return };
    note_read();
    if let Some(values) = grad() {
        listener(number, values);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::{ConvConfig, Lowering, conv2d};

    /// What was told, in its order.
    type Told = Rc<RefCell<Vec<(usize, Vec<f32>)>>>;

    #[test]
    fn a_convolution_tells_the_gradient_of_its_weight() {
        let device = Device::flex().autodiff();
        let tensor = |n: usize, shape: [usize; 4]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i| ((i * n) % 7) as f32 - 3.0).collect();
            Tensor::<4>::from_data(TensorData::new(values, shape), &device)
        };
        let (x, other) = (tensor(3, [1, 2, 5, 5]), tensor(4, [2, 2, 1, 1]).require_grad());
        let weight = tensor(5, [2, 2, 3, 3]).require_grad();
        let told = Told::default();
        let heard = told.clone();
        let leaves = Leaves::from([(leaf(weight.clone()).unwrap(), 7)]);
        let mut grads = listen(leaves, Rc::new(move |number, values| heard.borrow_mut().push((number, values))), || {
            let y = conv2d(x, weight.clone(), None, ConvConfig::new(1, 1, Lowering::Auto));
            conv2d(y, other, None, ConvConfig::new(1, 0, Lowering::Auto)).powi_scalar(2).sum().backward()
        });
        let made = weight.grad_remove(&mut grads).unwrap().into_data().try_into_vec_as::<f32>().unwrap();
        assert_eq!(*told.borrow(), [(7, made)]);
        tell(weight, &Tensor::<1>::zeros([36], &Device::flex()));
        assert_eq!(told.borrow().len(), 1, "nobody listens any more");
    }
}
