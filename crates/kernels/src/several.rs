//! Operations of several results in Burn's graph, whose operations have one.
//!
//! The operation is a node that nobody sees, with all inputs as its parents; each result is a node behind it, which only hands its gradient on. What is
//! behind a node is visited before it: the operation's own backward step comes once, when every result that was read has its gradient. A result that
//! nobody read has none, which is to say zeros.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

use crate::steps::{Autodiff, CheckpointStrategy, Float, NodeGuard, Parents, recorded};

/// Gradients by the numbers of the results, as they come.
type Came<B> = Vec<(usize, Float<B>)>;

/// The results of an operation in the graph. Its step gets their gradients with their numbers, in the order in which they came; zeros of what nobody
/// read come last.
pub(crate) fn recorded_several<B: Backend, C: CheckpointStrategy, const N: usize>(
    parents: [NodeGuard; N],
    results: Vec<Float<B>>,
    step: impl FnOnce(Came<B>, Parents<'_, N>) + Send + 'static,
) -> Vec<Float<Autodiff<B, C>>> {
    let shapes: Vec<Shape> = results.iter().map(TensorMetadata::shape).collect();
    let came: Arc<Mutex<Came<B>>> = Arc::default();
    let all = came.clone();
    // In the graph with any value.
    let operation = recorded::<B, C, N>(parents, &[], results[0].clone(), move |first, parents| {
        let mut came = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
        for (i, shape) in shapes.into_iter().enumerate() {
            if came.iter().all(|(number, _)| *number != i) {
                came.push((i, B::float_zeros(shape, &first.device(), first.dtype().into())));
            }
        }
        drop(first);
        step(came, parents);
    });
    let one = |(number, y)| {
        let came = came.clone();
        recorded::<B, C, 1>([operation.node()], &[], y, move |dy, mut parents| {
            let mut came = came.lock().unwrap_or_else(PoisonError::into_inner);
            // Every node has to find a gradient of its own: the operation finds the first that came, and looks at none but the gathered.
            if came.is_empty() {
                parents.give_onto::<B>(0, |_| dy.clone());
            }
            came.push((number, dy));
        })
    };
    results.into_iter().enumerate().map(one).collect()
}
