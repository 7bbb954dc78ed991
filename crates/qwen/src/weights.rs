//! A model's parameters by name, and adapters merged into them: what exports are made of.

use burn::module::Param;
use burn::tensor::Tensor;

use crate::model::CausalLm;
use crate::model::weight::Weight;
use crate::named;

/// The model with its adapters added to its weights, in f32, and without them.
pub fn merge(mut model: CausalLm) -> CausalLm {
    for (_, linear) in model.linears_mut() {
        if let Some(lora) = linear.lora.take() {
            linear.weight = linear.weight.clone().map(|w| {
                let wanted = w.is_require_grad();
                lora.merge(w).detach().set_require_grad(wanted)
            });
        }
    }
    model
}

/// The values of the matrix that `wanted` names with its adapter added, as [`merge`] would have them; `None` if it has none.
pub(crate) fn merged(model: &CausalLm, wanted: &str) -> Option<Result<Vec<f32>, Unread>> {
    let module = wanted.strip_suffix(".weight")?;
    let (_, linear) = model.linears().find(|(name, _)| name == module)?;
    linear.lora.as_ref().map(|lora| host(wanted, lora.merge(linear.weight.val())))
}

/// A tensor that the device cannot hand back.
#[derive(Debug, thiserror::Error)]
#[error("reading {name} back from the device: {reason}")]
pub struct Unread {
    /// The tensor.
    pub name: String,
    /// Why not.
    pub reason: String,
}

/// What is called with the name and shape of a parameter, and a way to read its values.
pub type Each<'a> = &'a mut dyn FnMut(&str, &[usize], &dyn Fn() -> Result<Vec<f32>, Unread>);

/// Visits every parameter in the order of the layers, those of adapters left out; then the maps in blocks, which no parameter holds.
pub fn visit(model: &CausalLm, each: Each<'_>) {
    visit_all(model, &mut |name, shape, read| {
        if !name.contains(".lora.") {
            each(name, shape, read);
        }
    });
}

/// The same with those of adapters.
pub(crate) fn visit_all(model: &CausalLm, mut each: Each<'_>) {
    struct Values<'a, 'b>(&'a mut Each<'b>);
    impl named::Each for Values<'_, '_> {
        fn each<const D: usize>(&mut self, name: &str, param: &Param<Tensor<D>>) {
            (self.0)(name, &param.lazy_shape().to_vec(), &|| host(name, param.val()));
        }
    }
    named::visit(model, Values(&mut each));
    for (name, linear) in model.linears() {
        if let Weight::Blocks(blocks) = &linear.weight {
            let name = format!("{name}.weight");
            each(&name, &blocks.dims(), &|| host(&name, linear.weight.val()));
        }
    }
}

pub(crate) fn host<const D: usize>(name: &str, values: Tensor<D>) -> Result<Vec<f32>, Unread> {
    values.into_data().try_into_vec_as::<f32>().map_err(|e| Unread { name: name.into(), reason: e.to_string() })
}
