//! The float tensors of a module by name, and how values get in and out of them.
//!
//! Everything the Learner keeps beside a model (gradients, moments, EMA) is a list parallel to [`Layout::entries`]: one entry a float
//! tensor in the order Burn visits a module, which is fixed for a given architecture. The name of an enum variant is left out of a
//! path, so a list of layers of different kinds still reads `model.0.conv.weight`.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};

use crate::error::LearnError;

/// One float tensor of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path of field names, joined by dots.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Index of its parameter group; `None` for buffers and frozen parameters.
    pub group: Option<usize>,
}

impl Entry {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A tensor on the host: name, shape, values.
pub type HostTensor = (String, Vec<usize>, Vec<f32>);

/// The float tensors of a module, in visiting order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One entry a tensor.
    pub entries: Vec<Entry>,
}

#[derive(Default)]
struct Path(Vec<Option<String>>);

impl Path {
    fn enter(&mut self, name: &str, container: &str) {
        self.0.push((!container.starts_with("Enum")).then(|| name.to_string()));
    }

    fn join(&self) -> String {
        self.0.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

impl Layout {
    /// Lists a model's tensors; `group_of` says which group a trainable parameter is in, `None` freezes it.
    pub fn of<M: Module>(model: &M, group_of: impl Fn(&str) -> Option<usize>) -> Self {
        struct Names<F> {
            path: Path,
            entries: Vec<Entry>,
            group_of: F,
        }
        impl<F: Fn(&str) -> Option<usize>> ModuleVisitor for Names<F> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.path.enter(name, container);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.0.pop();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let name = self.path.join();
                let group = if param.is_require_grad() { (self.group_of)(&name) } else { None };
                self.entries.push(Entry { name, shape: param.lazy_shape().to_vec(), group });
            }
        }
        let mut names = Names { path: Path::default(), entries: Vec::new(), group_of };
        model.visit(&mut names);
        Self { entries: names.entries }
    }

    /// The values of a module without autodiff, flattened, in order.
    ///
    /// The module must come from [`Module::valid`]: that is what settles running statistics.
    pub fn values<M: Module>(&self, model: &M) -> Vec<Tensor<1>> {
        struct Values(Vec<Tensor<1>>);
        impl ModuleVisitor for Values {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.val();
                let numel = value.shape().num_elements();
                self.0.push(value.inner().reshape([numel]));
            }
        }
        let mut values = Values(Vec::with_capacity(self.entries.len()));
        model.visit(&mut values);
        values.0
    }

    /// Takes the gradients of the parameters that have a group.
    pub fn take_gradients<M: Module>(&self, model: &M, grads: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        struct Take<'a> {
            entries: std::slice::Iter<'a, Entry>,
            grads: &'a mut Gradients,
            out: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let trained = self.entries.next().is_some_and(|e| e.group.is_some());
                let grad = trained.then(|| param.val().grad_remove(self.grads)).flatten();
                self.out.push(grad.map(|g| {
                    let numel = g.shape().num_elements();
                    g.reshape([numel])
                }));
            }
        }
        let mut take = Take { entries: self.entries.iter(), grads, out: Vec::with_capacity(self.entries.len()) };
        model.visit(&mut take);
        take.out
    }

    /// Replaces the tensors for which there is a value; the others and every `require_grad` stay.
    pub fn assign<M: Module>(&self, model: M, values: Vec<Option<Tensor<1>>>) -> M {
        struct Assign(std::vec::IntoIter<Option<Tensor<1>>>);
        impl ModuleMapper for Assign {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(value) = self.0.next().flatten() else { return param };
                param.map(|old| {
                    let value = value.reshape(old.shape());
                    if old.is_autodiff() { Tensor::from_inner(value).set_require_grad(old.is_require_grad()) } else { value }
                })
            }
        }
        model.map(&mut Assign(values.into_iter()))
    }

    /// Puts new values into a training model, running statistics included, and marks frozen parameters as needing no gradient.
    pub fn assign_all<M: Module>(&self, model: &M, values: Vec<Tensor<1>>) -> M {
        self.assign(model.valid(), values.into_iter().map(Some).collect()).train()
    }

    /// Reads flattened tensors to the host as (name, shape, values).
    ///
    /// # Errors
    /// When the device cannot hand a tensor back.
    pub fn read(&self, values: &[Tensor<1>]) -> Result<Vec<HostTensor>, LearnError> {
        self.entries
            .iter()
            .zip(values)
            .map(|(entry, value)| {
                let data = value.try_to_vec_as::<f32>().map_err(|e| LearnError::Device(format!("reading {}: {e}", entry.name)))?;
                Ok((entry.name.clone(), entry.shape.clone(), data))
            })
            .collect()
    }
}

/// A host vector on `device`, without autodiff.
pub(crate) fn upload(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(burn::tensor::TensorData::new(values.to_vec(), [values.len()]), &device.clone().without_autodiff())
}
