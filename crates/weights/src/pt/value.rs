//! The objects a pickle builds, in an arena.
//!
//! Pickles share and nest objects at will, cycles included. Values refer to objects by index, so nothing is
//! copied when shared and nothing recurses when dropped. Text borrows from the pickle.

use super::globals::Meaning;
use super::view::{StorageRef, TensorRef};

/// A value on the stack: a small one, or a reference to an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
    Global(Global<'a>),
    Object(Id),
}

/// Index of an object in its [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(usize);

/// A class or function on the allow-list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Global<'a> {
    pub(super) module: &'a str,
    pub(super) name: &'a str,
    pub(super) meaning: Meaning,
}

impl Global<'_> {
    pub(super) fn path(&self) -> String {
        format!("{}.{}", self.module, self.name)
    }
}

/// An object that others may share.
#[derive(Debug)]
pub(super) enum Object<'a> {
    Tuple(Vec<Value<'a>>),
    List(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Storage(StorageRef<'a>),
    Tensor(TensorRef<'a>),
    /// What an opaque class or function was asked to make: never made, only noted.
    Instance {
        class: Global<'a>,
        arguments: Value<'a>,
        state: Value<'a>,
    },
}

/// All objects of one pickle.
#[derive(Debug, Default)]
pub(super) struct Arena<'a> {
    objects: Vec<Object<'a>>,
}

impl<'a> Arena<'a> {
    pub(super) fn add(&mut self, object: Object<'a>) -> Value<'a> {
        self.objects.push(object);
        Value::Object(Id(self.objects.len() - 1))
    }

    pub(super) fn get(&self, value: Value<'a>) -> Option<&Object<'a>> {
        let Value::Object(Id(index)) = value else { return None };
        self.objects.get(index)
    }

    pub(super) fn get_mut(&mut self, value: Value<'a>) -> Option<&mut Object<'a>> {
        let Value::Object(Id(index)) = value else { return None };
        self.objects.get_mut(index)
    }

    pub(super) fn tuple(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.get(value)? {
            Object::Tuple(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn dict(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match self.get(value)? {
            Object::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    pub(super) fn tensor(&self, value: Value<'a>) -> Option<&TensorRef<'a>> {
        match self.get(value)? {
            Object::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// What kind of thing it is, for complaints.
    pub(super) fn describe(&self, value: Value<'a>) -> String {
        match value {
            Value::None => "None".into(),
            Value::Bool(_) => "a bool".into(),
            Value::Int(_) => "an int".into(),
            Value::Float(_) => "a float".into(),
            Value::Str(_) => "text".into(),
            Value::Global(global) => format!("the global `{}`", global.path()),
            Value::Object(_) => match self.get(value) {
                Some(Object::Tuple(_)) => "a tuple".into(),
                Some(Object::List(_)) => "a list".into(),
                Some(Object::Dict(_)) => "a dict".into(),
                Some(Object::Storage(_)) => "a storage".into(),
                Some(Object::Tensor(_)) => "a tensor".into(),
                Some(Object::Instance { class, .. }) => format!("a `{}`", class.path()),
                None => "nothing".into(),
            },
        }
    }
}
