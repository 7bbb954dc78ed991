//! Operations of several results in Burn's graph, whose operations have one.
//!
//! The operation is a node that nobody sees, with all inputs as its parents; each result is a node behind it, which only hands its gradient on. What is
//! behind a node is visited before it: the operation's own backward step comes once, when every result that was read has its gradient. A result that
//! nobody read has none, which is to say zeros.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, Ops, recorded};

/// Gradients by the numbers of the results, as they come.
type Came<B> = Vec<(usize, Float<B>)>;

/// Where the gradients of an operation's results meet.
#[derive(Clone, Debug)]
pub(crate) struct Gathered<B: Backend> {
    shapes: Vec<Shape>,
    came: Arc<Mutex<Came<B>>>,
}

impl<B: Backend> Gathered<B> {
    /// Those of these results.
    pub(crate) fn of<'a>(results: impl IntoIterator<Item = &'a Float<B>>) -> Self {
        Self { shapes: results.into_iter().map(TensorMetadata::shape).collect(), came: Arc::default() }
    }

    /// All of them with their numbers, in the order in which they came; zeros of what nobody read come last. To be asked once, in the operation's
    /// backward step, which is there because one came.
    pub(crate) fn take(self) -> Came<B> {
        let mut came = std::mem::take(&mut *self.came.lock().unwrap_or_else(PoisonError::into_inner));
        let (device, dtype) = (came[0].1.device(), came[0].1.dtype());
        for (i, shape) in self.shapes.into_iter().enumerate() {
            if came.iter().all(|(number, _)| *number != i) {
                came.push((i, B::float_zeros(shape, &device, dtype.into())));
            }
        }
        came
    }
}

/// A result, by its number.
#[derive(Debug)]
struct Handed(usize);

impl<B: Backend> Backward<B, 1> for Handed {
    type State = Gathered<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let mut came = ops.state.came.lock().unwrap_or_else(PoisonError::into_inner);
        let [operation] = ops.parents;
        // Every node has to find a gradient of its own: the operation finds the first that came, and looks at none but the gathered.
        if let (true, Some(node)) = (came.is_empty(), operation) {
            grads.register::<B>(node.id, dy.clone());
        }
        came.push((self.0, dy));
    }
}

/// Result `number` of `operation`, which is in the graph with any value, as a node behind it.
pub(crate) fn result<B: Backend, C: CheckpointStrategy>(
    operation: &Float<Autodiff<B, C>>,
    gathered: &Gathered<B>,
    number: usize,
    y: Float<B>,
) -> Float<Autodiff<B, C>> {
    recorded!(Backward::<B, 1>::prepare::<C>(Handed(number), [operation.node()]).compute_bound().stateful(), gathered.clone(), y)
}
