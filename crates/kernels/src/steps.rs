//! What every backward step of ours is written with. An operation is put into the graph with its parents, its result, and a function of dy that gives
//! the parents their gradients.
//!
//! That function holds the tensors it reads; but of those that may be made again in the backward pass (see the notes on recomputation in
//! [`crate::autodiff`]) it knows the names, and asks for them: `kept` in the functions here, [`Parents::kept`] in the step.

use std::fmt::{self, Debug, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::Backend;
pub(crate) use burn::backend::tensor::FloatTensor as Float;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_autodiff::checkpoint::strategy::BalancedCheckpointing;
pub(crate) use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
pub(crate) use burn_autodiff::ops::NodeGuard;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
pub(crate) use burn_autodiff::{Autodiff, NodeId};

use crate::meeting::meets;
use crate::planes::PlaneOps;

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Whether what could be made again in the backward pass is kept from now on: more memory, less to do, the same bits. Tells whether it was until now.
pub fn set_keeps(keeps: bool) -> bool {
    KEEPS.swap(keeps, Ordering::Relaxed)
}

/// The parents of an operation in its backward step, by their numbers.
pub(crate) struct Parents<'a, const N: usize> {
    ops: Ops<(), N>,
    grads: &'a mut Gradients,
    checkpointer: &'a mut Checkpointer,
}

impl<const N: usize> Parents<'_, N> {
    /// Whether a gradient is asked for this one.
    pub(crate) fn wants(&self, parent: usize) -> bool {
        self.ops.parents.get(parent).is_some_and(Option::is_some)
    }

    /// A tensor that was to be kept.
    pub(crate) fn kept<B: Backend>(&mut self, id: NodeId) -> Float<B> {
        self.checkpointer.retrieve_node_output::<Float<B>>(id)
    }

    /// What another of our steps has given a parent, taken from it: what it is given now is to be put in its place.
    pub(crate) fn held<B: Backend>(&mut self, parent: usize) -> Option<Float<B>> {
        let node = self.ops.parents.get(parent)?.as_ref()?;
        (node.order > 0 && meets(node.id)).then(|| self.grads.consume::<B>(node))
    }

    /// Gives a parent its gradient, if one is asked for, where nothing is held.
    pub(crate) fn put<B: Backend>(&mut self, parent: usize, grad: Float<B>) {
        if let Some(Some(node)) = self.ops.parents.get(parent) {
            self.grads.register::<B>(node.id, grad);
        }
    }

    /// Gives a parent its gradient, if one is asked for: what `make` makes of that which another of our steps has given it, or of nothing.
    pub(crate) fn give_onto<B: Backend>(&mut self, parent: usize, make: impl FnOnce(Option<Float<B>>) -> Float<B>) {
        if self.wants(parent) {
            let held = self.held::<B>(parent);
            self.put::<B>(parent, make(held));
        }
    }

    /// The same by addition.
    pub(crate) fn give<B: PlaneOps>(&mut self, parent: usize, own: impl FnOnce() -> Float<B>) {
        self.give_onto::<B>(parent, |held| match held {
            Some(held) => B::add(own(), held),
            None => own(),
        });
    }

    /// Gives each of them its gradient.
    pub(crate) fn give_all<B: PlaneOps>(mut self, all: [Float<B>; N]) {
        all.into_iter().enumerate().for_each(|(parent, own)| self.give::<B>(parent, || own));
    }
}

/// A function that the graph keeps: a backward step, of dy, or an operation to be made again, of the states of its inputs.
struct Function<F>(F);

impl<F> Debug for Function<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Function")
    }
}

impl<B: Backend, F: FnOnce(Float<B>, Parents<'_, N>) + Send + 'static, const N: usize> Backward<B, N> for Function<F> {
    type State = ();

    fn backward(self, ops: Ops<(), N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        (self.0)(dy, Parents { ops, grads, checkpointer });
    }
}

impl<F: Fn(&mut BackwardStates, NodeId) + Send + 'static> RetroForward for Function<F> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        (self.0)(states, out);
    }
}

fn finish<B: Backend, F: FnOnce(Float<B>, Parents<'_, N>) + Send + 'static, C: CheckpointStrategy, const N: usize>(
    prepared: OpsKind<Function<F>, B, (), C, N>,
    kept: &[&Float<Autodiff<B, C>>],
    y: Float<B>,
) -> Float<Autodiff<B, C>> {
    match prepared {
        OpsKind::Tracked(mut prepared) => {
            for tensor in kept {
                prepared.checkpoint(tensor);
            }
            prepared.finish((), y)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    }
}

/// The result `y` of an operation on `parents` in the graph, if any of them is; `kept` is what `step` asks for by name.
pub(crate) fn recorded<B: Backend, C: CheckpointStrategy, const N: usize>(
    parents: [NodeGuard; N],
    kept: &[&Float<Autodiff<B, C>>],
    y: Float<B>,
    step: impl FnOnce(Float<B>, Parents<'_, N>) + Send + 'static,
) -> Float<Autodiff<B, C>> {
    finish::<B, _, C, N>(Backward::<B, N>::prepare::<C>(Function(step), parents).compute_bound().stateful(), kept, y)
}

/// The same of a result that is not kept for other steps, but made `again` of the parents; unless all are kept ([`set_keeps`]).
pub(crate) fn recomputed<B: Backend, C: CheckpointStrategy, const N: usize>(
    parents: [Float<Autodiff<B, C>>; N],
    kept: &[&Float<Autodiff<B, C>>],
    operation: impl FnOnce([Float<B>; N]) -> Float<B>,
    again: impl Fn([Float<B>; N]) -> Float<B> + Send + 'static,
    step: impl FnOnce(Float<B>, Parents<'_, N>) + Send + 'static,
) -> Float<Autodiff<B, C>> {
    if KEEPS.load(Ordering::Relaxed) {
        let nodes = parents.each_ref().map(|parent| parent.node());
        return recorded::<B, C, N>(nodes, kept, operation(parents.map(|parent| parent.into_primitive())), step);
    }
    let inputs = parents.each_ref().map(|parent| parent.id());
    let again = Function(move |states: &mut BackwardStates, out: NodeId| {
        let y = again(inputs.each_ref().map(|id| states.get_state::<Float<B>>(id)));
        states.save(out, y);
    });
    let prepared = Backward::<B, N>::prepare::<BalancedCheckpointing>(Function(step), parents.each_ref().map(|parent| parent.node()));
    let prepared = prepared.memory_bound().retro_forward(again).parents(&parents).stateful();
    finish::<B, _, BalancedCheckpointing, N>(prepared, kept, operation(parents.map(|parent| parent.into_primitive())))
}
