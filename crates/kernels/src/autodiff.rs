//! Gradients written by hand.
//!
//! A gradient is computed only for an input that asks for one, and a tensor is kept only if such a gradient reads it: the
//! first layer's input is an image without gradient, so its data gradient, the dearest of all, is never computed.
//!
//! Of a convolution the output is kept; what normalisation and SiLU make of it is made again in the backward pass when the next
//! convolution's weight gradient reads it, which costs one pass over memory and saves half of all kept activations. Burn calls such
//! an operation memory bound and honours that only under a strategy chosen on the device; here it holds always (see [`recomputed`]).

use burn::backend::{AutodiffBackend, Backend, Scalar, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape};

use crate::listen::told;
use crate::norm_parts;
use crate::operands::{Bias, ConvConfig, Convolved, Moments, NormChannels, NormOutput, NormStep};
use crate::ops::{Keeps, KernelOps};
use crate::planes::{HALF_GRADIENTS, PlaneOps};
use crate::steps::{Autodiff, CheckpointStrategy, Float, NodeId, Parents, recomputed, recorded};

/// What a convolution's gradients are made of.
struct Conv {
    x: NodeId,
    weight: NodeId,
    input: [usize; 2],
    kernel: [usize; 2],
    config: ConvConfig,
}

impl Conv {
    /// Of x and the weight, and what of them is to be kept: each is read by the other's gradient.
    fn of<'a, B: Backend, C: CheckpointStrategy>(
        x: &'a Float<Autodiff<B, C>>,
        weight: &'a Float<Autodiff<B, C>>,
        config: ConvConfig,
    ) -> (Self, Vec<&'a Float<Autodiff<B, C>>>) {
        let ([.., ih, iw], [.., kh, kw]) = (x.shape().dims::<4>(), weight.shape().dims::<4>());
        let kept = [(x, weight), (weight, x)].into_iter().filter(|(_, other)| other.is_tracked()).map(|(t, _)| t).collect();
        (Self { x: x.id(), weight: weight.id(), input: [ih, iw], kernel: [kh, kw], config }, kept)
    }

    /// Parents are x, weight and, for N = 3, bias.
    fn backward<B: KernelOps + PlaneOps, const N: usize>(self, dy: Float<B>, mut parents: Parents<'_, N>) {
        let Self { x, weight, input, kernel, config } = self;
        parents.give::<B>(2, || {
            let co = dy.shape()[1];
            // Parameters are f32, and so are their gradients' sums.
            let db = match dy.dtype() {
                DType::F32 => B::float_sum_dims(dy.clone(), &[0, 2, 3]),
                _ => {
                    let db = B::float_sum_dims(B::float_cast(dy.clone(), FloatDType::F32), &[0, 2, 3]);
                    B::float_div_scalar(db, Scalar::Float(HALF_GRADIENTS.into()))
                }
            };
            B::float_reshape(db, Shape::new([co]))
        });
        if parents.wants(1) {
            let x = parents.kept::<B>(x);
            parents.give::<B>(1, || {
                let dw = B::conv_weight_grad(x, dy.clone(), kernel, config);
                told::<B>(weight, &dw);
                dw
            });
        }
        if parents.wants(0) {
            let weight = parents.kept::<B>(weight);
            parents.give::<B>(0, || B::conv_data_grad(dy, weight, input, config));
        }
    }
}

impl<B: KernelOps + PlaneOps + Keeps, C: CheckpointStrategy> KernelOps for Autodiff<B, C> {
    fn conv_forward(x: Float<Self>, weight: Float<Self>, bias: Bias<Self>, config: ConvConfig) -> Float<Self> {
        let (conv, kept) = Conv::of::<B, C>(&x, &weight, config);
        let y = |bias| B::conv_forward(x.clone().into_primitive(), weight.clone().into_primitive(), bias, config);
        // Two arms because the number of parents is part of the type.
        match bias {
            Bias::Channels(bias) => {
                let nodes = [x.node(), weight.node(), bias.node()];
                let y = y(Bias::Channels(bias.into_primitive()));
                recorded::<B, C, 3>(nodes, &kept, y, move |dy, parents| conv.backward::<B, 3>(dy, parents))
            }
            Bias::Zero => {
                let nodes = [x.node(), weight.node()];
                recorded::<B, C, 2>(nodes, &kept, y(Bias::Zero), move |dy, parents| conv.backward::<B, 2>(dy, parents))
            }
        }
    }

    fn conv_forward_moments(x: Float<Self>, weight: Float<Self>, config: ConvConfig) -> Convolved<Self> {
        let (conv, kept) = Conv::of::<B, C>(&x, &weight, config);
        let Convolved { y, moments } = B::conv_forward_moments(x.clone().into_primitive(), weight.clone().into_primitive(), config);
        let y = recorded::<B, C, 2>([x.node(), weight.node()], &kept, y, move |dy, parents| conv.backward::<B, 2>(dy, parents));
        Convolved { y, moments: moments.on(Self::from_inner) }
    }

    fn norm_act(x: Float<Self>, moments: Moments<Self>, channels: NormChannels<Self>, step: NormStep) -> NormOutput<Self> {
        let NormChannels { mean, variance, gamma, beta } = channels;
        let kept = [&x, &gamma, &beta];
        let [x_in, gamma_in, beta_in] = kept.map(|tensor| tensor.clone().into_primitive());
        let [mean, variance] = [mean, variance].map(|running| running.into_primitive());
        let NormOutput { output, mean, variance, running_mean, running_variance } = norm_parts::norm_act::<B>(
            x_in,
            moments.on(|parts| parts.into_primitive()),
            NormChannels { mean, variance, gamma: gamma_in, beta: beta_in },
            step,
        );
        let (ids, statistics) = (kept.map(|tensor| tensor.id()), [mean.clone(), variance.clone()]);
        let channels = move |gamma: Float<B>, beta: Float<B>| {
            let [mean, variance] = statistics.clone();
            NormChannels::<B> { mean, variance, gamma, beta }
        };
        let to_channels = channels.clone();
        let backward = move |dy: Float<B>, mut parents: Parents<'_, 3>| {
            let [x, gamma, beta] = ids.map(|id| parents.kept::<B>(id));
            let grads = norm_parts::norm_act_backward::<B>(x, to_channels(gamma, beta), dy, step);
            parents.give_all::<B>([grads.x, grads.gamma, grads.beta]);
        };
        let output = if output.shape().num_elements() * output.dtype().size() <= B::KEPT {
            recorded::<B, C, 3>(kept.map(|tensor| tensor.node()), &kept, output, backward)
        } else {
            let again = move |[x, gamma, beta]: [Float<B>; 3]| B::norm_act_again(x, channels(gamma, beta), step);
            recomputed::<B, C, 3>(kept.map(Float::<Self>::clone), &kept, |_| output, again, backward)
        };
        // The statistics carry no gradient.
        let [mean, variance, running_mean, running_variance] = [mean, variance, running_mean, running_variance].map(Self::from_inner);
        NormOutput { output, mean, variance, running_mean, running_variance }
    }
}
