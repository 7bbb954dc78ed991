//! Gradients written by hand.
//!
//! A gradient is computed only for an input that asks for one, and a tensor is kept only if such a gradient reads it: the
//! first layer's input is an image without gradient, so its data gradient, the dearest of all, is never computed.
//!
//! Of a convolution the output is kept; what normalisation and SiLU make of it is made again in the backward pass when the next
//! convolution's weight gradient reads it, which costs one pass over memory and saves half of all kept activations. Burn calls such
//! an operation memory bound and honours that only under a strategy chosen on the device; here it holds always, hence [`Recomputed`].

use burn::backend::{AutodiffBackend, Backend, Scalar, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape};
use burn_autodiff::checkpoint::retro_forward::RetroForward;
use burn_autodiff::checkpoint::state::BackwardStates;
use burn_autodiff::checkpoint::strategy::BalancedCheckpointing as Recomputed;

use crate::listen::told;
use crate::norm_parts;
use crate::operands::{Bias, ConvConfig, NormOutput, NormStep};
use crate::ops::{Keeps, KernelOps};
use crate::planes::{HALF_GRADIENTS, PlaneOps};
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeId, Ops, recorded, register};

/// The convolution's backward step; parents are x, weight and, for N = 3, bias.
#[derive(Debug)]
struct Conv;

#[derive(Clone, Debug)]
struct ConvState {
    /// Kept if the weight is tracked.
    x: Option<NodeId>,
    /// Kept if x is tracked.
    weight: Option<NodeId>,
    input: [usize; 2],
    kernel: [usize; 2],
    config: ConvConfig,
}

impl<B: KernelOps + PlaneOps, const N: usize> Backward<B, N> for Conv {
    type State = ConvState;

    fn backward(self, ops: Ops<ConvState, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let ConvState { x, weight, input, kernel, config } = ops.state;
        let parent = |i: usize| ops.parents.get(i).and_then(Option::as_ref).map(|node| node.id);
        if let Some(id) = parent(2) {
            let co = dy.shape()[1];
            // Parameters are f32, and so are their gradients' sums.
            let db = match dy.dtype() {
                DType::F32 => B::float_sum_dims(dy.clone(), &[0, 2, 3]),
                _ => {
                    let db = B::float_sum_dims(B::float_cast(dy.clone(), FloatDType::F32), &[0, 2, 3]);
                    B::float_div_scalar(db, Scalar::Float(HALF_GRADIENTS.into()))
                }
            };
            grads.register::<B>(id, B::float_reshape(db, Shape::new([co])));
        }
        if let (Some(id), Some(x)) = (parent(1), x) {
            let x = checkpointer.retrieve_node_output::<Float<B>>(x);
            let dw = B::conv_weight_grad(x, dy.clone(), kernel, config);
            told::<B>(id, &dw);
            grads.register::<B>(id, dw);
        }
        if let (Some(Some(node)), Some(weight)) = (ops.parents.into_iter().next(), weight) {
            let weight = checkpointer.retrieve_node_output::<Float<B>>(weight);
            register!(B, grads, node, B::conv_data_grad(dy, weight, input, config));
        }
    }
}

/// The normalisation's backward step; parents are x, gamma and beta.
#[derive(Debug)]
struct NormAct;

#[derive(Clone, Debug)]
struct NormState<B: Backend> {
    x: NodeId,
    gamma: NodeId,
    beta: NodeId,
    mean: Float<B>,
    variance: Float<B>,
    epsilon: f64,
    silu: bool,
}

impl<B: KernelOps> RetroForward for NormState<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let mut kept = |id| states.get_state::<Float<B>>(id);
        let (x, gamma, beta) = (kept(&self.x), kept(&self.gamma), kept(&self.beta));
        let y = B::norm_act_again(x, self.mean.clone(), self.variance.clone(), gamma, beta, self.epsilon, self.silu);
        states.save(out, y);
    }
}

impl<B: KernelOps + PlaneOps> Backward<B, 3> for NormAct {
    type State = NormState<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let NormState { x, gamma, beta, mean, variance, epsilon, silu } = ops.state;
        let mut kept = |id| checkpointer.retrieve_node_output::<Float<B>>(id);
        let (x, gamma, beta) = (kept(x), kept(gamma), kept(beta));
        let grad = norm_parts::norm_act_backward::<B>(x, mean, variance, gamma, beta, dy, epsilon, silu);
        for (parent, grad) in ops.parents.into_iter().zip([grad.x, grad.gamma, grad.beta]) {
            if let Some(node) = parent {
                register!(B, grads, node, grad);
            }
        }
    }
}

impl<B: KernelOps + PlaneOps + Keeps, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn conv_forward(x: Float<Self>, weight: Float<Self>, bias: Bias<Self>, config: ConvConfig) -> Float<Self> {
        let ([.., ih, iw], [.., kh, kw]) = (x.shape().dims::<4>(), weight.shape().dims::<4>());
        let mut state = ConvState { x: None, weight: None, input: [ih, iw], kernel: [kh, kw], config };
        // Two arms because the number of parents is part of the type.
        macro_rules! record {
            ($nodes:expr, $bias:expr) => {
                recorded!(
                    Backward::<B, _>::prepare::<C>(Conv, $nodes).compute_bound().stateful(),
                    |prep| {
                        state.x = weight.is_tracked().then(|| prep.checkpoint(&x));
                        state.weight = x.is_tracked().then(|| prep.checkpoint(&weight));
                        state
                    },
                    B::conv_forward(x.into_primitive(), weight.into_primitive(), $bias, config)
                )
            };
        }
        match bias {
            Bias::Channels(bias) => record!([x.node(), weight.node(), bias.node()], Bias::Channels(bias.into_primitive())),
            Bias::Zero => record!([x.node(), weight.node()], Bias::Zero),
        }
    }

    fn norm_act(
        x: Float<Self>,
        gamma: Float<Self>,
        beta: Float<Self>,
        running_mean: Float<Self>,
        running_variance: Float<Self>,
        step: NormStep,
    ) -> NormOutput<Self> {
        let NormStep { epsilon, silu, .. } = step;
        let nodes = [x.node(), gamma.node(), beta.node()];
        let [x_id, gamma_id, beta_id] = nodes.each_ref().map(|node| node.id());
        let primitive = |t: &Float<Self>| t.clone().into_primitive();
        let [rm, rv] = [running_mean, running_variance].map(Float::<Self>::into_primitive);
        let NormOutput { output, mean, variance, running_mean, running_variance } =
            norm_parts::norm_act::<B>(primitive(&x), primitive(&gamma), primitive(&beta), [rm, rv], step);
        let state =
            NormState::<B> { x: x_id, gamma: gamma_id, beta: beta_id, mean: mean.clone(), variance: variance.clone(), epsilon, silu };
        // Two arms because whether the output is kept is part of the type.
        macro_rules! record {
            ($prep:expr) => {
                recorded!(
                    $prep.stateful(),
                    |prep| {
                        [&x, &gamma, &beta].into_iter().for_each(|tensor| _ = prep.checkpoint(tensor));
                        state
                    },
                    output
                )
            };
        }
        let output = if output.shape().num_elements() * output.dtype().size() <= B::KEPT {
            record!(Backward::<B, 3>::prepare::<C>(NormAct, nodes).compute_bound())
        } else {
            let prep = Backward::<B, 3>::prepare::<Recomputed>(NormAct, nodes).memory_bound().retro_forward(state.clone());
            record!(prep.parents([&x, &gamma, &beta]))
        };
        // The statistics carry no gradient.
        let [mean, variance, running_mean, running_variance] = [mean, variance, running_mean, running_variance].map(Self::from_inner);
        NormOutput { output, mean, variance, running_mean, running_variance }
    }
}
