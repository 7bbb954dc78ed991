//! Tensors of a module that hold whole numbers or booleans (counts, masks): no gradient reaches them, but a layer may change them.

use bellows_weights::{DType, Tensors};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Int, Tensor};

use crate::error::LearnError;
use crate::host::{fits, of_bool, of_int, to_bool, to_int};
use crate::layout::Path;

/// All of them, by name.
///
/// # Errors
/// When the device cannot hand one back.
pub(crate) fn discrete<M: Module>(model: &M) -> Result<Tensors, LearnError> {
    struct Read {
        path: Path,
        found: Result<Tensors, LearnError>,
    }
    impl Read {
        fn put(&mut self, read: impl FnOnce(&str) -> Result<bellows_weights::Tensor, LearnError>) {
            let name = self.path.join();
            let Ok(found) = &mut self.found else { return };
            match read(&name) {
                Ok(tensor) => drop(found.insert(name, tensor)),
                Err(error) => self.found = Err(error),
            }
        }
    }
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.put(|name| of_int(name, &param.val()));
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.put(|name| of_bool(name, &param.val()));
        }
    }
    let mut read = Read { path: Path::default(), found: Ok(Tensors::new()) };
    model.visit(&mut read);
    read.found
}

/// Puts them back.
///
/// # Errors
/// One that the file lacks, or that does not fit.
pub(crate) fn assign_discrete<M: Module>(model: M, tensors: Tensors) -> Result<M, String> {
    struct Put {
        path: Path,
        tensors: Tensors,
        wrong: Option<String>,
    }
    impl Put {
        fn take(&mut self, fits: impl FnOnce(&bellows_weights::Tensor) -> Result<(), String>) -> Option<bellows_weights::Tensor> {
            let name = self.path.join();
            let tensor = self.tensors.remove(&name);
            let wrong = match &tensor {
                None => Some(format!("no tensor {name}")),
                Some(tensor) => fits(tensor).err().map(|e| format!("{name} {e}")),
            };
            let fine = wrong.is_none();
            self.wrong = self.wrong.take().or(wrong);
            tensor.filter(|_| fine)
        }
    }
    impl ModuleMapper for Put {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
        fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
            match self.take(|tensor| fits(tensor, DType::I64, &param.val().dims())) {
                Some(tensor) => param.map(|old| to_int(&tensor, &old)),
                None => param,
            }
        }
        fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
            match self.take(|tensor| fits(tensor, DType::Bool, &param.val().dims())) {
                Some(tensor) => param.map(|old| to_bool(&tensor, &old)),
                None => param,
            }
        }
    }
    let mut put = Put { path: Path::default(), tensors, wrong: None };
    let model = model.map(&mut put);
    let unknown = put.tensors.keys().next().map(|name| format!("this model has no tensor {name}"));
    put.wrong.or(unknown).map_or(Ok(model), Err)
}
