//! Parameters by name: the path of fields that leads to one, which is its tensor's name in the checkpoint.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::model::CausalLm;

/// What is done with a parameter and its name, whatever its rank.
pub(crate) trait Each {
    /// Looks at it.
    fn each<const D: usize>(&mut self, name: &str, param: &Param<Tensor<D>>);
}

/// What becomes of a parameter, by its name.
pub(crate) trait Change {
    /// What it is replaced by.
    fn change<const D: usize>(&mut self, name: &str, param: Param<Tensor<D>>) -> Param<Tensor<D>>;
}

/// Shows every parameter to `each`, in the order of the layers.
pub(crate) fn visit(model: &CausalLm, each: impl Each) {
    model.visit(&mut Walk { path: Vec::new(), to: each });
}

/// Hands every parameter to `change`.
pub(crate) fn map(model: CausalLm, change: &mut impl Change) -> CausalLm {
    model.map(&mut Walk { path: Vec::new(), to: Changing(change) })
}

/// A way through the fields.
struct Walk<T> {
    path: Vec<Option<String>>,
    to: T,
}

struct Changing<'a, C>(&'a mut C);

impl<T> Walk<T> {
    /// The name of an enum's variant is left out: a weight is a weight, however it is stored.
    fn enter(&mut self, name: &str, container: &str) {
        self.path.push((!container.starts_with("Enum")).then(|| name.to_owned()));
    }

    fn name(&self) -> String {
        self.path.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

impl<E: Each> ModuleVisitor for Walk<E> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.name();
        self.to.each(&name, param);
    }
}

impl<C: Change> ModuleMapper for Walk<Changing<'_, C>> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.name();
        self.to.0.change(&name, param)
    }
}
