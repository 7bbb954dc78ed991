//! Gradients of the products. A gradient is computed only for a tensor that asks for one, and x is kept only if such a gradient reads it.

use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn::tensor::Shape;

use super::{ProductOps, StoredWeight};
use crate::cpu::Precision;
use crate::operands::Bias;
use crate::steps::{Autodiff, Backward, CheckpointStrategy, Checkpointer, Float, Gradients, NodeId, Ops, recorded};

/// Parents are x and weight.
#[derive(Debug)]
struct Linear;

#[derive(Clone, Debug)]
struct LinearState {
    x: NodeId,
    /// Kept if x is tracked.
    weight: Option<NodeId>,
    precision: Precision,
}

impl<B: ProductOps> Backward<B, 2> for Linear {
    type State = LinearState;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let LinearState { x, weight, precision } = ops.state;
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = weight_node {
            let x = checkpointer.retrieve_node_output::<Float<B>>(x);
            grads.register::<B>(node.id, B::linear_weight_grad(x, dy.clone()));
        }
        if let (Some(node), Some(weight)) = (x_node, weight) {
            let weight = checkpointer.retrieve_node_output::<Float<B>>(weight);
            grads.register::<B>(node.id, B::linear_data_grad(dy, StoredWeight::Dense(weight), precision));
        }
    }
}

/// The parent is x.
#[derive(Debug)]
struct Frozen;

impl<B: ProductOps> Backward<B, 1> for Frozen {
    type State = (StoredWeight<B>, Precision);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let (weight, precision) = ops.state;
        let [x_node] = ops.parents;
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::linear_data_grad(dy, weight, precision));
        }
    }
}

/// Parents are x, A and B; the weight is frozen.
#[derive(Debug)]
struct LoraLinear;

#[derive(Clone, Debug)]
struct LoraState<B: Backend> {
    /// Kept if A or B is tracked.
    x: Option<NodeId>,
    a: NodeId,
    b: NodeId,
    weight: StoredWeight<B>,
    scaling: f64,
    precision: Precision,
}

impl<B: ProductOps> Backward<B, 3> for LoraLinear {
    type State = LoraState<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        let LoraState { x, a, b, weight, scaling, precision } = ops.state;
        let [a, b] = [a, b].map(|id| checkpointer.retrieve_node_output::<Float<B>>(id));
        let [x_node, a_node, b_node] = ops.parents;
        if let Some(x) = x {
            let x = checkpointer.retrieve_node_output::<Float<B>>(x);
            let (da, db) = B::lora_grads(x, dy.clone(), a.clone(), b.clone(), scaling);
            for (node, grad) in [(a_node, da), (b_node, db)] {
                if let Some(node) = node {
                    grads.register::<B>(node.id, grad);
                }
            }
        }
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::lora_data_grad(dy, weight, a, b, scaling, precision));
        }
    }
}

/// The bias inside the product where nobody asks for its gradient, else none.
fn constant<B: Backend, C: CheckpointStrategy>(bias: &Option<Float<Autodiff<B, C>>>) -> Bias<B> {
    match bias {
        Some(bias) if !bias.is_tracked() => Bias::Channels(bias.clone().into_primitive()),
        _ => Bias::Zero,
    }
}

/// y with a bias that is trained.
fn trained<B: ProductOps, C: CheckpointStrategy>(y: Float<Autodiff<B, C>>, bias: Option<Float<Autodiff<B, C>>>) -> Float<Autodiff<B, C>> {
    use burn::backend::ops::FloatTensorOps;
    match bias {
        Some(bias) if bias.is_tracked() => {
            let out = bias.shape().num_elements();
            Autodiff::<B, C>::float_add(y, Autodiff::<B, C>::float_reshape(bias, Shape::new([1, out])))
        }
        _ => y,
    }
}

impl<B: Backend, C: CheckpointStrategy> StoredWeight<Autodiff<B, C>> {
    /// Without its part in a graph.
    pub(crate) fn off_the_graph(self) -> StoredWeight<B> {
        match self {
            Self::Dense(weight) => StoredWeight::Dense(weight.into_primitive()),
            Self::Blocks { codes, scales, form, shape } => StoredWeight::Blocks { codes, scales: scales.into_primitive(), form, shape },
        }
    }
}

/// The weight, if a gradient is asked for it; else what it is off the graph.
fn tracked<B: Backend, C: CheckpointStrategy>(weight: StoredWeight<Autodiff<B, C>>) -> Result<Float<Autodiff<B, C>>, StoredWeight<B>> {
    match weight {
        StoredWeight::Dense(weight) if weight.is_tracked() => Ok(weight),
        weight => Err(weight.off_the_graph()),
    }
}

impl<B: ProductOps, C: CheckpointStrategy> ProductOps for Autodiff<B, C> {
    fn linear_forward(x: Float<Self>, weight: StoredWeight<Self>, bias: Bias<Self>, precision: Precision) -> Float<Self> {
        let bias = bias.into_option();
        let inside = constant::<B, C>(&bias);
        let y = match tracked(weight) {
            Ok(weight) => recorded!(
                Backward::<B, 2>::prepare::<C>(Linear, [x.node(), weight.node()]).compute_bound().stateful(),
                |prep| LinearState { x: prep.checkpoint(&x), weight: x.is_tracked().then(|| prep.checkpoint(&weight)), precision },
                B::linear_forward(x.into_primitive(), StoredWeight::Dense(weight.into_primitive()), inside, precision)
            ),
            Err(weight) => {
                let y = B::linear_forward(x.clone().into_primitive(), weight.clone(), inside, precision);
                recorded!(Backward::<B, 1>::prepare::<C>(Frozen, [x.node()]).compute_bound().stateful(), (weight, precision), y)
            }
        };
        trained::<B, C>(y, bias)
    }

    fn lora_linear(
        x: Float<Self>,
        weight: StoredWeight<Self>,
        bias: Bias<Self>,
        a: Float<Self>,
        b: Float<Self>,
        scaling: f64,
        precision: Precision,
    ) -> Float<Self> {
        use super::portable;
        let bias = bias.into_option();
        let weight = match tracked(weight) {
            Ok(weight) => return portable::lora_linear::<Self>(x, weight, bias, a, b, scaling, Precision::F32),
            Err(weight) => weight,
        };
        let inside = constant::<B, C>(&bias);
        let y = recorded!(
            Backward::<B, 3>::prepare::<C>(LoraLinear, [x.node(), a.node(), b.node()]).compute_bound().stateful(),
            |prep| {
                let x = (a.is_tracked() || b.is_tracked()).then(|| prep.checkpoint(&x));
                LoraState { x, a: prep.checkpoint(&a), b: prep.checkpoint(&b), weight: weight.clone(), scaling, precision }
            },
            B::lora_linear(x.into_primitive(), weight, inside, a.into_primitive(), b.into_primitive(), scaling, precision)
        );
        trained::<B, C>(y, bias)
    }

    fn dense_weight(weight: StoredWeight<Self>) -> Float<Self> {
        Self::from_inner(B::dense_weight(weight.off_the_graph()))
    }
}
