//! The float tensors of a module by name, and how values get in and out of them.
//!
//! Everything the Learner keeps beside a model (gradients, moments, EMA) has the tensors of [`Layout::entries`]: one entry a float
//! tensor in the order Burn visits a module, which is fixed for a given architecture. The name of an enum variant is left out of a
//! path, so a list of layers of different kinds still reads `model.0.conv.weight`. Tensors that never change (a frozen base model) are
//! left out altogether: they are no part of a checkpoint.

use std::collections::HashMap;

use bellows_kernels::{Leaves, in_place, leaf, tell};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor};

use crate::arenas::{Arenas, Piece, Pieces};
use crate::entry::Entry;
use crate::error::LearnError;

/// What becomes of a float tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Learned by gradient, in this parameter group.
    Trained(usize),
    /// Not learned, but saved and averaged: a running statistic, a frozen parameter.
    Kept,
    /// Never changes and comes from elsewhere: neither saved nor averaged.
    Fixed,
}

/// Gradients by parameter, summed over the graphs of one batch.
#[derive(Default)]
pub struct ParamGrads(HashMap<ParamId, Tensor<1>>);

impl ParamGrads {
    /// Takes the gradients of `module`'s parameters out of one graph.
    pub fn take<M: Module>(&mut self, module: &M, grads: &mut Gradients) {
        struct Take<'a> {
            sums: &'a mut ParamGrads,
            grads: &'a mut Gradients,
        }
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !param.is_require_grad() {
                    return;
                }
                if let Some(grad) = param.val().grad_remove(self.grads) {
                    let numel = grad.shape().num_elements();
                    self.sums.add(param.id, grad.reshape([numel]));
                }
            }
        }
        module.visit(&mut Take { sums: self, grads });
    }

    /// Nothing will be added to those of `module`'s parameters: they may be sent to other ranks while the others are made.
    pub fn complete<M: Module>(&self, module: &M) {
        struct Complete<'a>(&'a ParamGrads);
        impl ModuleVisitor for Complete<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(grad) = self.0.0.get(&param.id) {
                    tell(param.val(), grad);
                }
            }
        }
        module.visit(&mut Complete(self));
    }

    /// Adds one parameter's gradient, flattened.
    pub fn add(&mut self, id: ParamId, grad: Tensor<1>) {
        let sum = match self.0.remove(&id) {
            Some(sum) => sum + grad,
            None => grad,
        };
        self.0.insert(id, sum);
    }
}

/// A tensor on the host: name, shape, values.
pub type HostTensor = (String, Vec<usize>, Vec<f32>);

/// The float tensors of a module, in visiting order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One entry a tensor.
    pub entries: Vec<Entry>,
    /// Which of the module's float tensors have an entry, in visiting order.
    present: Vec<bool>,
    /// How they share memory in what the Learner keeps.
    pub(crate) pieces: Pieces,
}

/// The names of the modules a visitor is in.
#[derive(Default)]
pub(crate) struct Path(Vec<Option<String>>);

impl Path {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.0.push((!container.starts_with("Enum")).then(|| name.to_string()));
    }

    pub(crate) fn leave(&mut self) {
        self.0.pop();
    }

    pub(crate) fn join(&self) -> String {
        self.0.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

impl Layout {
    /// Lists a model's tensors; `role_of` says what becomes of each, by its name.
    pub fn of<M: Module>(model: &M, role_of: impl Fn(&str) -> Role) -> Self {
        struct Names<F> {
            path: Path,
            layout: Layout,
            role_of: F,
        }
        impl<F: Fn(&str) -> Role> ModuleVisitor for Names<F> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.path.enter(name, container);
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.leave();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let name = self.path.join();
                let role = (self.role_of)(&name);
                self.layout.present.push(role != Role::Fixed);
                let group = match role {
                    Role::Fixed => return,
                    Role::Trained(group) if param.is_require_grad() => Some(group),
                    Role::Trained(_) | Role::Kept => None,
                };
                self.layout.entries.push(Entry { name, shape: param.lazy_shape().to_vec(), group, dtype: param.val().dtype() });
            }
        }
        let mut names = Names { path: Path::default(), layout: Self::from_entries(Vec::new()), role_of };
        model.visit(&mut names);
        let pieces = Pieces::together(&names.layout.entries, |group| group, false);
        Self { pieces, ..names.layout }
    }

    /// Two names of one trained parameter, if there are such: a layer that is cloned keeps its parameters' ids.
    pub(crate) fn twice<M: Module>(&self, model: &M) -> Option<[&str; 2]> {
        struct Ids<'a> {
            present: std::slice::Iter<'a, bool>,
            entries: std::slice::Iter<'a, Entry>,
            names: HashMap<ParamId, &'a str>,
            twice: Option<[&'a str; 2]>,
        }
        impl ModuleVisitor for Ids<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.present.next().is_none_or(|p| !*p) {
                    return;
                }
                if let Some(entry) = self.entries.next().filter(|entry| entry.group.is_some())
                    && let Some(before) = self.names.insert(param.id, &entry.name)
                {
                    self.twice.get_or_insert([before, &entry.name]);
                }
            }
        }
        let (present, entries) = (self.present.iter(), self.entries.iter());
        let mut ids = Ids { present, entries, names: HashMap::new(), twice: None };
        model.visit(&mut ids);
        ids.twice
    }

    /// The same where groups that are alike, of which `first` tells the first one, are one range of an arena, or the whole of it if it is to be `of_one`.
    pub(crate) fn together(self, first: impl Fn(usize) -> usize, of_one: bool) -> Self {
        Self { pieces: Pieces::together(&self.entries, first, of_one), ..self }
    }

    /// The same with every tensor in an arena of its own.
    pub(crate) fn apart(self) -> Self {
        Self { pieces: Pieces::apart(&self.entries), ..self }
    }

    /// A layout of these tensors and no others.
    pub fn from_entries(entries: Vec<Entry>) -> Self {
        Self { present: vec![true; entries.len()], pieces: Pieces::together(&entries, |group| group, false), entries }
    }

    /// The values of a module without autodiff, flattened, in order.
    ///
    /// The module must come from [`Module::valid`]: that is what settles running statistics.
    pub fn values<M: Module>(&self, model: &M) -> Vec<Tensor<1>> {
        struct Values<'a> {
            present: std::slice::Iter<'a, bool>,
            values: Vec<Tensor<1>>,
        }
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.present.next().is_some_and(|p| *p) {
                    let value = param.val();
                    let numel = value.shape().num_elements();
                    self.values.push(value.inner().reshape([numel]));
                }
            }
        }
        let mut values = Values { present: self.present.iter(), values: Vec::with_capacity(self.entries.len()) };
        model.visit(&mut values);
        values.values
    }

    /// The arenas of values in the order of the entries; where some tensors of an arena have none, theirs are zero. The other way round the memory
    /// is shared, and what lies in its places already is not copied.
    pub fn gather(&self, values: Vec<Option<Tensor<1>>>) -> Arenas {
        self.pieces.gather(values)
    }

    /// The values of arenas in the order of the entries.
    pub fn scatter(&self, arenas: &Arenas) -> Vec<Option<Tensor<1>>> {
        self.pieces.scatter(arenas)
    }

    /// The same in arenas.
    pub(crate) fn gathered<M: Module>(&self, model: &M) -> Arenas {
        self.gather(self.values(model).into_iter().map(Some).collect())
    }

    /// Does `work`, a pass over `model`: what it makes of tensors that lie in arenas has a [place](in_place) in new ones.
    pub fn in_place<M: Module, R>(&self, model: &M, work: impl FnOnce() -> R) -> R {
        let values = self.values(&model.valid());
        let arena = |piece: &Piece| piece.entries.iter().map(|&i| values[i].clone()).collect();
        // A tensor alone is not copied in any case.
        let several = self.pieces.0.iter().filter(|piece| piece.entries.len() > 1);
        in_place(several.map(|piece| (arena(piece), &piece.places)).collect(), work)
    }

    /// The entries of parameters that have a group, by what the graph calls them: of the processor's alone.
    pub fn leaves<M: Module>(&self, model: &M) -> Leaves {
        struct Named<'a> {
            present: std::slice::Iter<'a, bool>,
            entries: std::iter::Enumerate<std::slice::Iter<'a, Entry>>,
            leaves: Leaves,
        }
        impl ModuleVisitor for Named<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.present.next().is_none_or(|p| !*p) {
                    return;
                }
                if let Some((number, _)) = self.entries.next().filter(|(_, entry)| entry.group.is_some()) {
                    self.leaves.extend(leaf(param.val()).map(|name| (name, number)));
                }
            }
        }
        let mut named = Named { present: self.present.iter(), entries: self.entries.iter().enumerate(), leaves: Leaves::new() };
        model.visit(&mut named);
        named.leaves
    }

    /// The gradients of the parameters that have a group.
    pub fn take_gradients<M: Module>(&self, model: &M, grads: &mut Gradients) -> Vec<Option<Tensor<1>>> {
        let mut sums = ParamGrads::default();
        sums.take(model, grads);
        self.arrange(model, sums)
    }

    /// Gradients by parameter in the order of the entries; those of parameters without a group are dropped.
    pub fn arrange<M: Module>(&self, model: &M, sums: ParamGrads) -> Vec<Option<Tensor<1>>> {
        struct Arrange<'a> {
            present: std::slice::Iter<'a, bool>,
            entries: std::slice::Iter<'a, Entry>,
            sums: ParamGrads,
            out: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Arrange<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.present.next().is_some_and(|p| *p) {
                    let trained = self.entries.next().is_some_and(|e| e.group.is_some());
                    self.out.push(trained.then(|| self.sums.0.remove(&param.id)).flatten());
                }
            }
        }
        let out = Vec::with_capacity(self.entries.len());
        let mut arrange = Arrange { present: self.present.iter(), entries: self.entries.iter(), sums, out };
        model.visit(&mut arrange);
        arrange.out
    }

    /// Gradients of a scaled loss, in the order of the entries, divided by the scale: a launch for each arena and none for each tensor.
    pub fn unscaled(&self, grads: Vec<Option<Tensor<1>>>, scale: f64) -> Vec<Option<Tensor<1>>> {
        let there: Vec<bool> = grads.iter().map(Option::is_some).collect();
        let mut arenas = self.gather(grads);
        arenas.iter_mut().flatten().for_each(|arena| arena.inplace(|g| g.div_scalar(scale)));
        self.scatter(&arenas).into_iter().zip(there).map(|(grad, there)| grad.filter(|_| there)).collect()
    }

    /// Replaces the tensors for which there is a value; the others and every `require_grad` stay.
    pub fn assign<M: Module>(&self, model: M, values: Vec<Option<Tensor<1>>>) -> M {
        struct Assign<'a> {
            present: std::slice::Iter<'a, bool>,
            values: std::vec::IntoIter<Option<Tensor<1>>>,
        }
        impl ModuleMapper for Assign<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if self.present.next().is_none_or(|p| !*p) {
                    return param;
                }
                let Some(value) = self.values.next().flatten() else { return param };
                param.map(|old| {
                    let value = value.reshape(old.shape());
                    if old.is_autodiff() { Tensor::from_inner(value).set_require_grad(old.is_require_grad()) } else { value }
                })
            }
        }
        model.map(&mut Assign { present: self.present.iter(), values: values.into_iter() })
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
