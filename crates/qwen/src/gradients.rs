//! The backward pass layer by layer.
//!
//! Each layer has a small graph of its own: its input is a leaf, and the gradient that comes from above is led in at its output. The graphs of the
//! upper layers are built in the forward pass and kept; of the lower ones only the inputs are, and each graph is built when its turn comes,
//! after those above it are gone. How many are run again so is [`Checkpointing`]'s to say. All of it gives the
//! same bits, and needs nothing of the backend but ordinary gradients.

use bellows_kernels::{add_noise, enter, lead};
use bellows_learner::{ParamGrads, Stage, Stopwatch};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{IndexingUpdateOp, Int, Tensor};

use crate::checkpointing::Checkpointing;
use crate::loss::{HeadLoss, head_loss, head_loss_only, row_losses, weighted_head_loss};
use crate::model::CausalLm;
use crate::model::layers::Layer;
use crate::model::pass::Pass;

/// A batch on the device, off the graph.
pub struct TrainBatch {
    /// `[B, S]`.
    pub ids: Tensor<2, Int>,
    /// Places in the flattened batch whose next token is trained on, `[N]`.
    pub rows: Tensor<1, Int>,
    /// Those next tokens, `[N]`.
    pub targets: Tensor<1, Int>,
    /// Rotary angles and mask, off the graph.
    pub pass: Pass,
    /// What is added to the embeddings.
    pub noise: Option<Noise>,
}

/// Uniform noise from -scale to scale (NEFTune, Jain et al. 2023), drawn where it is added.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// What its draws follow from.
    pub key: u64,
    /// α / √(S h)
    pub scale: f64,
}

impl TrainBatch {
    /// Normalised hidden states of the places, `[N, h]`, of all layers in one graph, or off it.
    pub fn hidden(&self, model: &CausalLm) -> Tensor<2> {
        let hidden = model.hidden(self.ids.clone(), &self.pass);
        let [b, s, h] = hidden.dims();
        model.model.norm.forward(hidden.reshape([b * s, h]).select(0, self.rows.clone()))
    }

    /// −log p of the token after each place, `[N]`: evaluation.
    pub fn losses(&self, model: &CausalLm) -> Tensor<1> {
        row_losses(self.hidden(model), &model.head().val(), self.targets.clone(), self.pass.precision)
    }

    /// Their sum, `[1]`.
    pub fn total_loss(&self, model: &CausalLm) -> Tensor<1> {
        head_loss_only(self.hidden(model), &model.head().val(), self.targets.clone(), self.pass.precision)
    }
}

/// How gradients are computed; none of it but the scale changes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Which layers are run again in the backward pass instead of keeping their graphs.
    pub checkpointing: Checkpointing,
    /// Wait for the device after every layer.
    pub sync: bool,
    /// What the gradients are multiplied by, from behind the head on; not at all if `None`.
    pub scale: Option<f64>,
}

/// Sum of the losses of a batch's trained tokens, `[1]`, and its gradients.
pub fn gradients(model: &CausalLm, batch: &TrainBatch, options: Options, watch: &mut Stopwatch<'_>) -> (Tensor<1>, ParamGrads) {
    gradients_of(model, batch, options, None, watch)
}

/// From the losses of a batch's trained tokens, `[N]`: what the loss of all is, `[1]`, and its derivative by each of them, `[N]`.
pub type Weigh<'a> = &'a mut dyn FnMut(Tensor<1>) -> (Tensor<1>, Tensor<1>);

/// The loss that `weigh` makes of those of the trained tokens, `[1]`, and its gradients; their sum without one.
pub fn gradients_of(
    model: &CausalLm,
    batch: &TrainBatch,
    options: Options,
    weigh: Option<Weigh<'_>>,
    watch: &mut Stopwatch<'_>,
) -> (Tensor<1>, ParamGrads) {
    let plain = model.valid();
    let tracked = batch.pass.on(true);
    let mut grads = ParamGrads::default();
    let device = batch.ids.device();
    // A device that is lost says so at the next read-back.
    let settle = || drop(options.sync.then(|| device.sync()));

    // Layers below the first trained parameter have no gradient to make, and their inputs are not kept.
    let embedding_trained = model.model.embed_tokens.weight.is_require_grad();
    let lowest = if embedding_trained { 0 } else { model.model.layers.iter().position(is_trained).unwrap_or(model.model.layers.len()) };
    let rerun = options.checkpointing.of(model.model.layers.len() - lowest);
    let mut x = with_noise(plain.embed(batch.ids.clone()), batch);
    let mut kept = Vec::new();
    for (i, layer) in plain.model.layers.iter().enumerate() {
        if i < lowest {
            x = layer.forward(x, &batch.pass, None);
        } else if i - lowest < rerun {
            kept.push(Kept::Input(x.clone()));
            x = layer.forward(x, &batch.pass, None);
        } else {
            let (input, output) = run(&model.model.layers[i], x, &tracked, i > lowest || embedding_trained);
            x = output.clone().inner();
            kept.push(Kept::Graph { input, output });
        }
        settle();
    }

    let ([b, s, h], weight) = (x.dims(), plain.head().val());
    let leaf = Tensor::from_inner(x.reshape([b * s, h]).select(0, batch.rows.clone())).require_grad();
    let rows = model.model.norm.forward(leaf.clone());
    let head_trained = model.head().is_require_grad();
    let (inner, precision) = (rows.clone().inner(), batch.pass.precision);
    let head = match weigh {
        None => head_loss(inner, &weight, batch.targets.clone(), head_trained, precision),
        Some(weigh) => {
            let (loss, weights) = weigh(row_losses(inner.clone(), &weight, batch.targets.clone(), precision));
            HeadLoss { loss, ..weighted_head_loss(inner, &weight, batch.targets.clone(), Some(weights), head_trained, precision) }
        }
    };
    let scaled = |grad: Tensor<2>| match options.scale {
        Some(scale) => grad.mul_scalar(scale),
        None => grad,
    };
    if let Some(grad) = head.weight {
        let n = grad.shape().num_elements();
        grads.add(model.head().id, scaled(grad).reshape([n]));
    }
    watch.lap(Stage::Forward);

    let mut graph = lead(rows, Tensor::from_inner(scaled(head.rows))).backward();
    grads.take(&model.model.norm, &mut graph);
    if kept.is_empty() && !embedding_trained {
        return (head.loss, grads);
    }
    let Some(above) = leaf.grad_remove(&mut graph) else { return (head.loss, grads) };
    let mut dy =
        Tensor::zeros([b * s, h], &above.device()).select_assign(0, batch.rows.clone(), above, IndexingUpdateOp::Add).reshape([b, s, h]);
    for (i, kept) in kept.into_iter().enumerate().rev() {
        let layer = &model.model.layers[lowest + i];
        let (input, output) = match kept {
            Kept::Input(x) => run(layer, x, &tracked, i > 0 || embedding_trained),
            Kept::Graph { input, output } => (input, output),
        };
        let mut graph = lead(output, Tensor::from_inner(dy)).backward();
        grads.take(layer, &mut graph);
        // Scaled ones are divided when all are there.
        if options.scale.is_none() {
            grads.complete(layer);
        }
        settle();
        match input.grad_remove(&mut graph) {
            Some(dx) => dy = dx,
            None => return (head.loss, grads),
        }
    }
    // The embedding: rows of dy summed by token id.
    let weight = &model.model.embed_tokens.weight;
    let ids = batch.ids.clone().reshape([b * s]);
    let sum = Tensor::zeros(weight.dims(), &dy.device()).select_assign(0, ids, dy.reshape([b * s, h]), IndexingUpdateOp::Add);
    let n = sum.shape().num_elements();
    grads.add(weight.id, sum.reshape([n]));
    (head.loss, grads)
}

/// What the backward pass needs of a layer.
#[expect(clippy::large_enum_variant, reason = "one value a layer: a few kilobytes in all")]
enum Kept {
    Input(Tensor<3>),
    Graph { input: Tensor<3>, output: Tensor<3> },
}

/// One layer on a graph of its own: its input as a leaf (which wants a gradient if `wanted`), its output.
pub(crate) fn run(layer: &Layer, x: Tensor<3>, pass: &Pass, wanted: bool) -> (Tensor<3>, Tensor<3>) {
    let leaf = Tensor::from_inner(x).set_require_grad(wanted);
    (leaf.clone(), layer.forward(enter(leaf), pass, None))
}

fn with_noise(x: Tensor<3>, batch: &TrainBatch) -> Tensor<3> {
    match batch.noise {
        Some(Noise { key, scale }) => add_noise(x, key, scale),
        None => x,
    }
}

/// Whether a gradient is asked for any of a layer's parameters.
fn is_trained(layer: &Layer) -> bool {
    struct Any(bool);
    impl ModuleVisitor for Any {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.is_require_grad();
        }
    }
    let mut any = Any(false);
    layer.visit(&mut any);
    any.0
}
