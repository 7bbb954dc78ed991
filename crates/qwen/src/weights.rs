//! A model's parameters by name, adapters merged: what exports are made of.

use std::collections::BTreeMap;

use bellows_weights::{Tensor as FileTensor, Tensors, to_safetensors};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::load::Path;
use crate::model::CausalLm;
use crate::peft::PeftError;

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

/// What is called with the name and shape of a parameter, and a way to read its values.
pub type Each<'a> = &'a mut dyn FnMut(&str, &[usize], &dyn Fn() -> Result<Vec<f32>, PeftError>);

/// Visits every parameter in the order of the layers, those of adapters left out.
pub fn visit(model: &CausalLm, each: Each<'_>) {
    struct Visit<'a> {
        path: Path,
        each: Each<'a>,
    }
    impl ModuleVisitor for Visit<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.path.join();
            if name.contains(".lora.") {
                return;
            }
            let read = || {
                let values = param.val().into_data().try_into_vec_as::<f32>();
                values.map_err(|e| PeftError::Device { name: name.clone(), reason: e.to_string() })
            };
            (self.each)(&name, &param.lazy_shape().to_vec(), &read);
        }
    }
    model.visit(&mut Visit { path: Path::default(), each });
}

/// All parameters as a safetensors file in memory: small models.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_bytes(model: &CausalLm) -> Result<Vec<u8>, PeftError> {
    let (mut tensors, mut failed) = (Tensors::new(), None);
    visit(model, &mut |name, shape, read| match read() {
        Ok(values) => drop(tensors.insert(name.to_owned(), FileTensor::from_f32(shape.to_vec(), &values))),
        Err(error) => failed = Some(error),
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(to_safetensors(&tensors, &BTreeMap::from([("format".to_string(), "pt".to_string())]))?),
    }
}
