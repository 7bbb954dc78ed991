//! Gradients written by hand.
//!
//! A gradient is computed only for an input that asks for one, and a tensor is kept only if such a gradient reads it: the
//! first layer's input is an image without gradient, so its data gradient, the dearest of all, is never computed.
//!
//! Of a convolution the output is kept; what normalisation and SiLU make of it is made again in the backward pass when the next
//! convolution's weight gradient reads it, which costs one pass over memory and saves half of all kept activations. Burn calls such
//! an operation memory bound and honours that only under a strategy chosen on the device; here it holds always (see [`recomputed`]).

use burn::backend::{AutodiffBackend, Backend, TensorMetadata};

use crate::listen::told;
use crate::norm_parts;
use crate::operands::{ConvConfig, Maybe, NormChannels, NormOutput, NormStep};
use crate::ops::KernelOps;
use crate::planes::{Parts, PlaneOps};
use crate::steps::{Autodiff, CheckpointStrategy, Float, NodeId, Parents, recomputed, recorded};

/// Most parts of a convolution's x: the number of parents is part of a step's type.
pub(crate) const MOST_PARTS: usize = 5;
/// The weight, the parts of x and, behind the last, the bias.
const PARENTS: usize = 2 + MOST_PARTS;

/// What a convolution's gradients are made of.
struct Conv<B: Backend> {
    weight: NodeId,
    /// Weight and bias, whose gradients may have places.
    trained: Float<B>,
    bias: Option<Float<B>>,
    /// The parts of x, and their channels.
    x: Vec<NodeId>,
    channels: Vec<usize>,
    input: [usize; 2],
    kernel: [usize; 2],
    config: ConvConfig,
}

impl<B: KernelOps> Conv<B> {
    /// The result y in the graph. Of the parts of x and the weight each is read by the other's gradient, and kept if that is asked for.
    fn in_the_graph<C: CheckpointStrategy>(
        x: &[Float<Autodiff<B, C>>],
        weight: &Float<Autodiff<B, C>>,
        bias: Option<&Float<Autodiff<B, C>>>,
        config: ConvConfig,
        y: Float<B>,
    ) -> Float<Autodiff<B, C>> {
        let ([.., ih, iw], [.., kh, kw]) = (x[0].shape().dims::<4>(), weight.shape().dims::<4>());
        let mut kept = Vec::new();
        if weight.is_tracked() {
            kept.extend(x);
        }
        if x.iter().any(|x| x.is_tracked()) {
            kept.push(weight);
        }
        let (ids, channels) = x.iter().map(|x| (x.id(), x.shape()[1])).unzip();
        let (trained, own_bias) = (weight.clone().into_primitive(), bias.map(|bias| bias.clone().into_primitive()));
        let conv = Self { weight: weight.id(), trained, bias: own_bias, x: ids, channels, input: [ih, iw], kernel: [kh, kw], config };
        // A parent that there is not is one that no gradient is asked for.
        let none = Autodiff::<B, C>::from_inner(weight.clone().into_primitive());
        let parents: Vec<_> = [weight].into_iter().chain(x).chain(bias).collect();
        let nodes = std::array::from_fn::<_, PARENTS, _>(|i| parents.get(i).copied().unwrap_or(&none).node());
        recorded::<B, C, PARENTS>(nodes, &kept, y, move |dy, parents| conv.backward(dy, parents))
    }

    fn backward(self, dy: Float<B>, mut parents: Parents<'_, PARENTS>) {
        let Self { weight, trained, bias: own_bias, x, channels, input, kernel, config } = self;
        let bias = 1 + x.len();
        parents.give::<B>(bias, || B::bias_grad(dy.clone(), own_bias.into()));
        if parents.wants(0) {
            let x = Parts(x.iter().map(|&x| parents.kept::<B>(x)).collect());
            parents.give::<B>(0, || {
                let dw = B::conv_weight_grad(x, dy.clone(), Maybe::Some(trained), kernel, config);
                told::<B>(weight, &dw);
                dw
            });
        }
        if (1..bias).any(|part| parents.wants(part)) {
            let weight = parents.kept::<B>(weight);
            // A tensor that is there twice is given the second by addition.
            let first = |part: usize| !x[..part].contains(&x[part]);
            let held = (0..x.len()).filter(|&part| first(part)).filter_map(|part| Some((part, parents.held::<B>(1 + part)?)));
            let (of, held) = held.unzip();
            let dx = B::conv_data_grad_onto(dy, weight, channels, input, config, Parts(held), of);
            for (part, dx) in dx.0.into_iter().enumerate() {
                if first(part) { parents.put::<B>(1 + part, dx) } else { parents.give::<B>(1 + part, || dx) }
            }
        }
    }
}

impl<B: KernelOps, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn conv_forward(x: Float<Self>, weight: Float<Self>, bias: Maybe<Self>, config: ConvConfig) -> Float<Self> {
        let bias = bias.into_option();
        let [x_in, weight_in] = [&x, &weight].map(|tensor| tensor.clone().into_primitive());
        let y = B::conv_forward(x_in, weight_in, bias.clone().map(|bias| bias.into_primitive()).into(), config);
        Conv::<B>::in_the_graph::<C>(&[x], &weight, bias.as_ref(), config, y)
    }

    fn conv_joined(mut x: Parts<Self>, weight: Float<Self>, config: ConvConfig) -> (Float<Self>, Option<Float<Self>>) {
        if x.0.len() > MOST_PARTS {
            let rest = x.0.split_off(MOST_PARTS - 1);
            x.0.push(Self::concat_channels(Parts(rest)));
        }
        let parts = Parts(x.0.iter().map(|x| x.clone().into_primitive()).collect());
        let (y, moments) = B::conv_joined(parts, weight.clone().into_primitive(), config);
        let y = Conv::<B>::in_the_graph::<C>(&x.0, &weight, None, config, y);
        (y, moments.map(Self::from_inner))
    }

    fn norm_act(x: Float<Self>, moments: Maybe<Self>, channels: NormChannels<Self>, step: NormStep, onto: Maybe<Self>) -> NormOutput<Self> {
        let NormChannels { mean, variance, gamma, beta } = channels;
        let onto = onto.into_option();
        let [x_in, gamma_in, beta_in] = [&x, &gamma, &beta].map(|tensor| tensor.clone().into_primitive());
        let [mean, variance] = [mean, variance].map(|running| running.into_primitive());
        let NormOutput { output, mean, variance, running_mean, running_variance } = norm_parts::norm_act::<B>(
            x_in,
            moments.into_option().map(|parts| parts.into_primitive()).into(),
            NormChannels { mean, variance, gamma: gamma_in, beta: beta_in },
            step,
            onto.clone().map(|onto| onto.into_primitive()).into(),
        );
        let statistics = [mean.clone(), variance.clone()];
        let output = match onto {
            None => normed::<B, C, 3>([x, gamma, beta], statistics, step, output),
            Some(onto) => normed::<B, C, 4>([x, gamma, beta, onto], statistics, step, output),
        };
        // The statistics carry no gradient.
        let [mean, variance, running_mean, running_variance] = [mean, variance, running_mean, running_variance].map(Self::from_inner);
        NormOutput { output, mean, variance, running_mean, running_variance }
    }
}

/// A normalised image in the graph, of x, gamma, beta and, if there is one, what it was added to.
fn normed<B: KernelOps, C: CheckpointStrategy, const N: usize>(
    parents: [Float<Autodiff<B, C>>; N],
    statistics: [Float<B>; 2],
    step: NormStep,
    output: Float<B>,
) -> Float<Autodiff<B, C>> {
    let channels = move |gamma: Float<B>, beta: Float<B>| {
        let [mean, variance] = statistics.clone();
        NormChannels::<B> { mean, variance, gamma, beta }
    };
    let (ids, to_channels) = ([0, 1, 2].map(|i| parents[i].id()), channels.clone());
    let backward = move |dy: Float<B>, mut parents: Parents<'_, N>| {
        let [x, gamma, beta] = ids.map(|id| parents.kept::<B>(id));
        // The memory of a dy that nobody else has becomes that of x's gradient.
        let beside = parents.wants(3).then(|| dy.clone());
        let grads = norm_parts::norm_act_backward::<B>(x, to_channels(gamma, beta), dy, step);
        let grads = [Some(grads.x), Some(grads.gamma), Some(grads.beta), beside];
        grads.into_iter().flatten().enumerate().for_each(|(parent, grad)| parents.give::<B>(parent, || grad));
    };
    let (nodes, of) = (parents.each_ref().map(|parent| parent.node()), parents.clone());
    let kept = [&of[0], &of[1], &of[2]];
    if output.shape().num_elements() * output.dtype().size() <= B::KEPT {
        return recorded::<B, C, N>(nodes, &kept, output, backward);
    }
    let again = move |parents: [Float<B>; N]| {
        let mut parents = parents.into_iter();
        let [Some(x), Some(gamma), Some(beta)] = [(); 3].map(|()| parents.next()) else { unreachable!("three parents at least") };
        B::norm_act_again(x, channels(gamma, beta), step, parents.next().into())
    };
    recomputed::<B, C, N>(parents, &kept, |_| output, again, backward)
}
