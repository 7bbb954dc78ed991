//! Gradients of the plane operations. All but pooling keep no tensor, and what they only move or copy is moved again in the backward
//! pass rather than kept twice (see the notes on recomputation in [`crate::autodiff`]).

use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;

use burn::backend::{DType, Scalar, TensorMetadata};
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_autodiff::checkpoint::strategy::BalancedCheckpointing as Recomputed;

use super::{HALF_GRADIENTS, Parts, PlaneOps};
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeGuard, NodeId, Ops, recorded, register};

/// The step of an operation of one input: its gradient from dy.
macro_rules! unary {
    ($backend:ty, $ops:expr, $grads:expr, |$dy:ident| $grad:expr) => {{
        let $dy = $grads.consume::<$backend>(&$ops.node);
        let [parent] = $ops.parents;
        if let Some(node) = parent {
            register!($backend, $grads, node, $grad);
        }
    }};
}

#[derive(Debug)]
struct Concat;

impl<B: PlaneOps, const N: usize> Backward<B, N> for Concat {
    /// Channels of each part.
    type State = [usize; N];

    fn backward(self, ops: Ops<[usize; N], N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let mut start = 0;
        for (parent, channels) in ops.parents.into_iter().zip(ops.state) {
            if let Some(node) = parent {
                register!(B, grads, node, B::slice_channels(dy.clone(), start, channels));
            }
            start += channels;
        }
    }
}

/// An operation to be made again, on the outputs of these nodes.
struct Again<B, const N: usize, F> {
    inputs: [NodeId; N],
    operation: F,
    backend: PhantomData<B>,
}

impl<B: PlaneOps, const N: usize, F: Fn([Float<B>; N]) -> Float<B>> Again<B, N, F> {
    fn new(inputs: &[NodeGuard; N], operation: F) -> Self {
        Self { inputs: inputs.each_ref().map(NodeGuard::id), operation, backend: PhantomData }
    }
}

impl<B, const N: usize, F> Debug for Again<B, N, F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Again").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl<B: PlaneOps, const N: usize, F> RetroForward for Again<B, N, F>
where
    F: Fn([Float<B>; N]) -> Float<B> + Send + 'static,
{
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let y = (self.operation)(self.inputs.each_ref().map(|id| states.get_state::<Float<B>>(id)));
        states.save(out, y);
    }
}

/// Joins exactly N tensors.
fn concat<B: PlaneOps, C: CheckpointStrategy, const N: usize>(parts: Vec<Float<Autodiff<B, C>>>) -> Float<Autodiff<B, C>> {
    let channels = std::array::from_fn(|i| parts[i].shape()[1]);
    let nodes: [_; N] = std::array::from_fn(|i| parts[i].node());
    let again = Again::<B, N, _>::new(&nodes, |parts: [Float<B>; N]| B::concat_channels(Parts(parts.into())));
    let prep = Backward::<B, N>::prepare::<Recomputed>(Concat, nodes).memory_bound().retro_forward(again).parents(&parts);
    let primitives = Parts(parts.into_iter().map(|part| part.into_primitive()).collect());
    recorded!(prep.stateful(), channels, B::concat_channels(primitives))
}

#[derive(Debug)]
struct Add;

impl<B: PlaneOps> Backward<B, 2> for Add {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        for node in ops.parents.into_iter().flatten() {
            register!(B, grads, node, dy.clone());
        }
    }
}

/// State: first channel and their number.
#[derive(Debug)]
struct SliceChannels;

impl<B: PlaneOps> Backward<B, 1> for SliceChannels {
    type State = (usize, usize);

    fn backward(self, ops: Ops<(usize, usize), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (start, total) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(node) = parent {
            register!(B, grads, node, |held| match held {
                Some(held) => B::add_to_channels(held, dy, start),
                None => B::pad_channels(dy, start, total),
            });
        }
    }
}

#[derive(Debug)]
struct MaxPool;

impl<B: PlaneOps> Backward<B, 1> for MaxPool {
    type State = (NodeId, usize);

    fn backward(self, ops: Ops<(NodeId, usize), 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (x, kernel) = ops.state;
        let x = checkpointer.retrieve_node_output::<Float<B>>(x);
        unary!(B, ops, grads, |dy| B::max_pool_same_grad(x, dy, kernel));
    }
}

/// State: what x was.
#[derive(Debug)]
struct Widen;

impl<B: PlaneOps> Backward<B, 1> for Widen {
    type State = DType;

    fn backward(self, ops: Ops<DType, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dtype = ops.state;
        unary!(B, ops, grads, |dy| { B::float_cast(B::float_mul_scalar(dy, Scalar::Float(HALF_GRADIENTS.into())), dtype.into()) });
    }
}

#[derive(Debug)]
struct Double;

impl<B: PlaneOps> Backward<B, 1> for Double {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary!(B, ops, grads, |dy| B::double_grad(dy));
    }
}

impl<B: PlaneOps, C: CheckpointStrategy> PlaneOps for Autodiff<B, C> {
    fn concat_channels(mut parts: Parts<Self>) -> Float<Self> {
        // The number of parents is part of a step's type.
        match parts.0.len() {
            1 => concat::<B, C, 1>(parts.0),
            2 => concat::<B, C, 2>(parts.0),
            3 => concat::<B, C, 3>(parts.0),
            4 => concat::<B, C, 4>(parts.0),
            5 => concat::<B, C, 5>(parts.0),
            _ => {
                let rest = parts.0.split_off(4);
                parts.0.push(Self::concat_channels(Parts(rest)));
                concat::<B, C, 5>(parts.0)
            }
        }
    }

    fn add(a: Float<Self>, b: Float<Self>) -> Float<Self> {
        let nodes = [a.node(), b.node()];
        let again = Again::<B, 2, _>::new(&nodes, |[a, b]: [Float<B>; 2]| B::add(a, b));
        let prep = Backward::<B, 2>::prepare::<Recomputed>(Add, nodes).memory_bound().retro_forward(again).parents([&a, &b]);
        prep.stateless(B::add(a.into_primitive(), b.into_primitive()))
    }

    fn slice_channels(x: Float<Self>, start: usize, len: usize) -> Float<Self> {
        let total = x.shape()[1];
        let nodes = [x.node()];
        let again = Again::<B, 1, _>::new(&nodes, move |[x]: [Float<B>; 1]| B::slice_channels(x, start, len));
        let prep = Backward::<B, 1>::prepare::<Recomputed>(SliceChannels, nodes).memory_bound().retro_forward(again).parents([&x]);
        recorded!(prep.stateful(), (start, total), B::slice_channels(x.into_primitive(), start, len))
    }

    fn max_pool_same(x: Float<Self>, kernel: usize) -> Float<Self> {
        let prep = Backward::<B, 1>::prepare::<C>(MaxPool, [x.node()]).compute_bound().stateful();
        recorded!(prep, |prep| (prep.checkpoint(&x), kernel), B::max_pool_same(x.into_primitive(), kernel))
    }

    fn widen(x: Float<Self>) -> Float<Self> {
        let dtype = x.dtype();
        recorded!(Backward::<B, 1>::prepare::<C>(Widen, [x.node()]).compute_bound().stateful(), dtype, B::widen(x.into_primitive()))
    }

    fn double(x: Float<Self>) -> Float<Self> {
        let nodes = [x.node()];
        let again = Again::<B, 1, _>::new(&nodes, |[x]: [Float<B>; 1]| B::double(x));
        let prep = Backward::<B, 1>::prepare::<Recomputed>(Double, nodes).memory_bound().retro_forward(again).parents([&x]);
        prep.stateless(B::double(x.into_primitive()))
    }
}
