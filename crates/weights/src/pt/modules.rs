//! Where the weights are among a pickle's objects, and what they are called.
//!
//! Three arrangements are read: a whole `nn.Module`, a state dict (a flat dictionary of tensors), and a
//! dictionary holding one of these as `ema`, `model` or `state_dict`, in this order of preference. Modules are walked as
//! PyTorch's `state_dict()` does: `_parameters`, persistent `_buffers`, then `_modules`, names joined by dots.

use std::collections::BTreeMap;

use super::value::{Arena, Object, Value};
use super::view::TensorRef;
use crate::error::Fault;
use crate::limits::{self, Budget};
use crate::tensor::check_name;

/// Facts of the outermost module kept as metadata.
const MODULE_FACTS: [&str; 4] = ["names", "nc", "stride", "task"];

/// Named views, not yet read, and what was found beside them.
#[derive(Default)]
pub(super) struct Found<'a> {
    pub(super) tensors: Vec<(String, TensorRef<'a>)>,
    pub(super) classes: BTreeMap<String, String>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Small tensors that are metadata.
    pub(super) facts: Vec<(String, TensorRef<'a>)>,
}

/// Finds the weights under `root`. What is kept is charged to `bytes`.
pub(super) fn find<'a>(arena: &Arena<'a>, root: Value<'a>, bytes: &mut Budget) -> Result<Found<'a>, Fault> {
    let steps = Budget::new("steps through the pickled modules", limits::WALK_STEPS);
    let mut walk = Walk { arena, bytes, steps, found: Found::default() };
    walk.root(root)?;
    if walk.found.tensors.is_empty() {
        return Err(Fault::Layout { what: format!("{} without tensors", arena.describe(root)) });
    }
    Ok(walk.found)
}

struct Walk<'w, 'a> {
    arena: &'w Arena<'a>,
    bytes: &'w mut Budget,
    steps: Budget,
    found: Found<'a>,
}

impl<'w, 'a> Walk<'w, 'a> {
    fn root(&mut self, root: Value<'a>) -> Result<(), Fault> {
        if self.is_instance(root) {
            return self.outer_module(root);
        }
        let Some(entries) = self.arena.dict(root) else {
            return Err(Fault::Layout { what: format!("the file holds {}", self.arena.describe(root)) });
        };
        self.root_facts(entries)?;
        for key in ["ema", "model", "state_dict"] {
            let Some(inner) = self.lookup(entries, key)? else { continue };
            if self.is_instance(inner) {
                return self.outer_module(inner);
            }
            if let Some(state) = self.arena.dict(inner)
                && state.iter().any(|(_, value)| self.arena.tensor(*value).is_some())
            {
                return self.state_dict(state);
            }
        }
        self.state_dict(entries)
    }

    /// A dictionary of tensors. Plain values beside them are skipped (at the root they are metadata); anything else
    /// may hold weights in a way that is not understood, and is refused.
    fn state_dict(&mut self, entries: &[(Value<'a>, Value<'a>)]) -> Result<(), Fault> {
        for (key, value) in entries {
            match (key, value) {
                (Value::Str(name), _) if let Some(tensor) = self.arena.tensor(*value) => self.keep((*name).to_owned(), tensor)?,
                (_, Value::Object(_)) => {
                    let what =
                        format!("key {key:?} holds {}, in a dictionary that should map names to tensors", self.arena.describe(*value));
                    return Err(Fault::Layout { what });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn outer_module(&mut self, module: Value<'a>) -> Result<(), Fault> {
        let attributes = self.attributes(module, "")?;
        for fact in MODULE_FACTS {
            match self.lookup(attributes, fact)? {
                Some(value)
                    if let Some(tensor) = self.arena.tensor(value)
                        && tensor.numel() <= limits::FACT_ELEMENTS =>
                {
                    self.found.facts.push((fact.to_owned(), tensor.clone()));
                }
                Some(value) => self.fact(fact, value)?,
                None => {}
            }
        }
        self.module(module, String::new(), 0)
    }

    fn module(&mut self, module: Value<'a>, path: String, depth: usize) -> Result<(), Fault> {
        limits::at_most("nesting of modules", depth as u64, limits::MODULE_DEPTH as u64)?;
        let attributes = self.attributes(module, &path)?;
        for (name, value) in self.section(attributes, "_parameters", &path)? {
            self.member(&path, *name, *value)?;
        }
        let transient = self.transient_buffers(attributes)?;
        for (name, value) in self.section(attributes, "_buffers", &path)? {
            self.steps.spend(transient.len())?;
            if !transient.contains(name) {
                self.member(&path, *name, *value)?;
            }
        }
        for (name, child) in self.section(attributes, "_modules", &path)? {
            if *child != Value::None {
                let path = join(&path, *name)?;
                self.module(*child, path, depth + 1)?;
            }
        }
        if let Some(Object::Instance { class, .. }) = self.arena.get(module) {
            let class = class.path();
            self.bytes.spend(path.len() + class.len())?;
            self.found.classes.insert(path, class);
        }
        Ok(())
    }

    /// The `__dict__` of a module.
    fn attributes(&mut self, module: Value<'a>, path: &str) -> Result<&'w [(Value<'a>, Value<'a>)], Fault> {
        let state = match self.arena.get(module) {
            Some(Object::Instance { state, .. }) => self.arena.dict(*state),
            _ => None,
        };
        state.ok_or_else(|| Fault::Layout { what: format!("module `{path}` is {} without attributes", self.arena.describe(module)) })
    }

    /// `_parameters`, `_buffers` or `_modules`; every module has all three.
    fn section(&mut self, attributes: &[(Value<'a>, Value<'a>)], key: &str, path: &str) -> Result<&'w [(Value<'a>, Value<'a>)], Fault> {
        let section = self.lookup(attributes, key)?.and_then(|value| self.arena.dict(value));
        let section = section.ok_or_else(|| Fault::Layout { what: format!("module `{path}` has no `{key}`") })?;
        self.steps.spend(section.len())?;
        Ok(section)
    }

    /// Names in `_non_persistent_buffers_set`, which no state dict includes. A set is pickled as `set([..])`.
    fn transient_buffers(&mut self, attributes: &[(Value<'a>, Value<'a>)]) -> Result<&'w [Value<'a>], Fault> {
        let arguments = match self.lookup(attributes, "_non_persistent_buffers_set")?.and_then(|set| self.arena.get(set)) {
            Some(Object::Instance { arguments, .. }) => self.arena.tuple(*arguments),
            _ => None,
        };
        Ok(match arguments.and_then(|given| self.arena.get(*given.first()?)) {
            Some(Object::List(names)) => names,
            _ => &[],
        })
    }

    /// A parameter or buffer; `None` is an absent one (`bias=False`).
    fn member(&mut self, path: &str, name: Value<'a>, value: Value<'a>) -> Result<(), Fault> {
        if value == Value::None {
            return Ok(());
        }
        let name = join(path, name)?;
        match self.arena.tensor(value) {
            Some(tensor) => self.keep(name, tensor),
            None => Err(Fault::tensor(name, format!("it is {}", self.arena.describe(value)))),
        }
    }

    fn keep(&mut self, name: String, tensor: &TensorRef<'a>) -> Result<(), Fault> {
        check_name(&name)?;
        self.bytes.spend(name.len())?;
        self.bytes.spend(tensor.bytes())?;
        self.found.tensors.push((name, tensor.clone()));
        Ok(())
    }

    /// The plain values of the root: epoch, date, version; and the settings that a detector was trained with.
    fn root_facts(&mut self, entries: &[(Value<'a>, Value<'a>)]) -> Result<(), Fault> {
        for (key, value) in entries {
            match (key, value) {
                (Value::Str(name), Value::Str(_) | Value::Int(_) | Value::Float(_) | Value::Bool(_)) => self.fact(name, *value)?,
                (Value::Str("train_args"), Value::Object(_)) => self.fact("train_args", *value)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn fact(&mut self, name: &str, value: Value<'a>) -> Result<(), Fault> {
        let text = match value {
            Value::Str(text) => Some(text.to_owned()),
            Value::None => None,
            _ => self.json(value, 0)?.map(|json| json.to_string()),
        };
        if let Some(text) = text {
            self.bytes.spend(name.len() + text.len())?;
            self.found.metadata.insert(name.to_owned(), text);
        }
        Ok(())
    }

    /// Plain data as JSON; `None` for what is not plain, or nested deeper than any fact is.
    fn json(&mut self, value: Value<'a>, depth: usize) -> Result<Option<serde_json::Value>, Fault> {
        self.steps.spend(1)?;
        Ok(Some(match value {
            Value::None => serde_json::Value::Null,
            Value::Bool(bool) => bool.into(),
            Value::Int(int) => int.into(),
            Value::Float(float) => float.into(),
            Value::Str(text) => {
                self.bytes.spend(text.len())?;
                text.into()
            }
            Value::Object(_) if depth < 3 => match self.arena.get(value) {
                Some(Object::List(items) | Object::Tuple(items)) => {
                    let mut array = Vec::new();
                    for item in items {
                        let Some(item) = self.json(*item, depth + 1)? else { return Ok(None) };
                        array.push(item);
                    }
                    array.into()
                }
                Some(Object::Dict(pairs)) => {
                    let mut map = serde_json::Map::new();
                    for (key, item) in pairs {
                        let key = match key {
                            Value::Str(text) => (*text).to_owned(),
                            Value::Int(int) => int.to_string(),
                            _ => return Ok(None),
                        };
                        self.bytes.spend(key.len())?;
                        let Some(item) = self.json(*item, depth + 1)? else { return Ok(None) };
                        map.insert(key, item);
                    }
                    map.into()
                }
                _ => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }

    /// The value of a text key, the last one if it was set twice, as in Python.
    fn lookup(&mut self, entries: &[(Value<'a>, Value<'a>)], key: &str) -> Result<Option<Value<'a>>, Fault> {
        self.steps.spend(entries.len())?;
        Ok(entries.iter().rev().find(|(name, _)| *name == Value::Str(key)).map(|(_, value)| *value))
    }

    fn is_instance(&self, value: Value<'a>) -> bool {
        matches!(self.arena.get(value), Some(Object::Instance { .. }))
    }
}

fn join(path: &str, name: Value<'_>) -> Result<String, Fault> {
    let Value::Str(name) = name else {
        return Err(Fault::Layout { what: format!("a member of module `{path}` has no name") });
    };
    let joined = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    check_name(&joined)?;
    Ok(joined)
}
