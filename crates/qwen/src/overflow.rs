//! Where the first number is that is not finite, for whoever has to do something about it.

use bellows_kernels::lead;
use bellows_learner::{Layout, Role, Stopwatch};
use burn::module::Module;
use burn::tensor::{IndexingUpdateOp, Tensor};

use crate::gradients::{Options, TrainBatch, gradients, run};
use crate::loss::head_loss;
use crate::model::CausalLm;

fn is_finite<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.clone().into_data().try_into_vec_as::<f32>().is_ok_and(|values| values.iter().all(|v| v.is_finite()))
}

/// The place, in the order of the computation: the layers, the loss, the layers backwards with gradients times `scale`; then the gradients of what is
/// trained, as `kept` keeps them. Without dropout and noise.
pub(crate) fn first_not_finite(
    model: &CausalLm,
    batch: &TrainBatch,
    scale: Option<f64>,
    kept: impl Fn(Tensor<1>) -> Tensor<1>,
) -> Option<String> {
    let plain = model.valid();
    let mut inputs = vec![plain.embed(batch.ids.clone())];
    for (i, layer) in plain.model.layers.iter().enumerate() {
        let y = layer.forward(inputs[i].clone(), &batch.pass, None);
        if !is_finite(&y) {
            return Some(format!("the output of model.layers.{i}"));
        }
        inputs.push(y);
    }
    let ([b, s, h], x) = (inputs[0].dims(), inputs.pop()?);
    let rows = x.reshape([b * s, h]).select(0, batch.rows.clone());
    let leaf = Tensor::from_inner(rows).require_grad();
    let normed = model.model.norm.forward(leaf.clone());
    let head = head_loss(normed.clone().inner(), &plain.head().val(), batch.targets.clone(), false, batch.pass.precision);
    if !is_finite(&head.loss) {
        return Some("the loss".into());
    }
    let above = head.rows.mul_scalar(scale.unwrap_or(1.0));
    let above = leaf.grad_remove(&mut lead(normed, Tensor::from_inner(above)).backward())?;
    if !is_finite(&above) {
        return Some("the gradient of model.norm".into());
    }
    let places = Tensor::zeros([b * s, h], &above.device());
    let mut dy = places.select_assign(0, batch.rows.clone(), above, IndexingUpdateOp::Add).reshape([b, s, h]);
    let tracked = batch.pass.on(true);
    for (i, x) in inputs.into_iter().enumerate().rev() {
        let (input, output) = run(&model.model.layers[i], x, &tracked, true);
        dy = input.grad_remove(&mut lead(output, Tensor::from_inner(dy)).backward())?;
        if !is_finite(&dy) {
            return Some(format!("the gradient of the input of model.layers.{i}"));
        }
    }
    // They are sums over all rows, and may be larger than anything that one layer hands to another.
    let (_, grads) = gradients(model, batch, Options { scale, ..Options::default() }, &mut Stopwatch::start(None));
    let layout = Layout::of(model, |_| Role::Trained(0));
    let grads = layout.arrange(model, grads);
    let overflows = |grad: Option<Tensor<1>>| grad.is_some_and(|grad| !is_finite(&kept(grad)));
    let (entry, _) = layout.entries.iter().zip(grads).find(|(_, grad)| overflows(grad.clone()))?;
    Some(format!("the gradient of {}", entry.name))
}
