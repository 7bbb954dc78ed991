//! The pickle stack machine. It moves values; it cannot call anything.
//!
//! A global is checked against the allow-list the moment it is named, before anything is done with it.
//! The counts of opcodes, memo slots, open marks and stacked values are bounded (see `limits`).

use std::collections::HashMap;

use super::globals::{Meaning, meaning};
use super::opcodes::{Op, Ops};
use super::rebuild::{storage_ref, tensor_ref};
use super::value::{Arena, Global, Object, Value};
use crate::error::Fault;
use crate::limits;

/// Runs a pickle to its end and returns its objects and the outermost value.
pub(super) fn load(pickle: &[u8]) -> Result<(Arena<'_>, Value<'_>), Fault> {
    let mut machine = Machine::default();
    let mut ops = Ops::new(pickle);
    for _ in 0..limits::OPCODES {
        let (at, op) = ops.next()?;
        if let Op::Global { module, name } = op
            && meaning(module, name).is_none()
        {
            return Err(Fault::Global { at, global: format!("{module}.{name}").escape_debug().to_string() });
        }
        if let Some(root) = machine.step(op).map_err(|what| Fault::Pickle { at, what })? {
            return Ok((machine.arena, root));
        }
    }
    let limit = limits::OPCODES as u64;
    Err(Fault::TooLarge { what: "opcodes of data.pkl".into(), size: limit + 1, limit })
}

#[derive(Default)]
struct Machine<'a> {
    arena: Arena<'a>,
    stack: Vec<Value<'a>>,
    /// Heights of the stack at the open marks. Values below the last one are out of reach.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
}

impl<'a> Machine<'a> {
    /// Executes one opcode. `Some` is the result, at STOP.
    fn step(&mut self, op: Op<'a>) -> Result<Option<Value<'a>>, String> {
        match op {
            Op::Proto(2) => {}
            Op::Proto(other) => return Err(format!("pickle protocol {other}; save with torch.save's default, 2")),
            Op::Global { module, name } => {
                let meaning = meaning(module, name).ok_or("a global that is not allowed")?;
                self.push(Value::Global(Global { module, name, meaning }))?;
            }
            Op::Mark if self.marks.len() == limits::MARKS => return Err(format!("over {} nested marks", limits::MARKS)),
            Op::Mark => self.marks.push(self.stack.len()),
            Op::Tuple => {
                let items = self.above_mark()?;
                self.push_new(Object::Tuple(items))?;
            }
            Op::TupleOf(count) => {
                let start = self.stack.len().checked_sub(count).filter(|&start| start >= self.floor()).ok_or("the stack is empty")?;
                let items = self.stack.split_off(start);
                self.push_new(Object::Tuple(items))?;
            }
            Op::EmptyList => self.push_new(Object::List(Vec::new()))?,
            Op::EmptyDict => self.push_new(Object::Dict(Vec::new()))?,
            Op::Append => {
                let item = self.pop()?;
                self.extend_list(vec![item])?;
            }
            Op::Appends => {
                let items = self.above_mark()?;
                self.extend_list(items)?;
            }
            Op::SetItem => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.extend_dict(&[key, value])?;
            }
            Op::SetItems => {
                let items = self.above_mark()?;
                self.extend_dict(&items)?;
            }
            Op::Str(text) => self.push(Value::Str(text))?,
            Op::Int(int) => self.push(Value::Int(int))?,
            Op::Float(float) => self.push(Value::Float(float))?,
            Op::Bool(bool) => self.push(Value::Bool(bool))?,
            Op::None => self.push(Value::None)?,
            Op::Reduce | Op::NewObj => {
                let arguments = self.pop()?;
                let class = self.pop()?;
                let made = self.make(class, arguments)?;
                self.push(made)?;
            }
            Op::Build => {
                let state = self.pop()?;
                self.build(state)?;
            }
            Op::Put(slot) => {
                let top = self.top()?;
                self.memo.insert(slot, top);
                if self.memo.len() > limits::MEMO {
                    return Err(format!("over {} memo slots", limits::MEMO));
                }
            }
            Op::Get(slot) => {
                let value = *self.memo.get(&slot).ok_or_else(|| format!("memo slot {slot} is empty"))?;
                self.push(value)?;
            }
            Op::PersId => {
                let id = self.pop()?;
                let storage = storage_ref(&self.arena, id)?;
                self.push_new(Object::Storage(storage))?;
            }
            Op::Stop => return self.pop().map(Some),
        }
        Ok(None)
    }

    /// What Python would get from calling `class(*arguments)`, or from `class.__new__`.
    fn make(&mut self, class: Value<'a>, arguments: Value<'a>) -> Result<Value<'a>, String> {
        let Value::Global(class) = class else {
            return Err(format!("{} is called", self.arena.describe(class)));
        };
        let given = self.arena.tuple(arguments).ok_or_else(|| format!("`{}` is called without a tuple", class.path()))?;
        match (class.meaning, given) {
            (Meaning::OrderedDict, []) => Ok(self.arena.add(Object::Dict(Vec::new()))),
            (Meaning::RebuildTensor, [storage, offset, shape, strides, ..]) => {
                let tensor = tensor_ref(&self.arena, *storage, *offset, *shape, *strides)?;
                Ok(self.arena.add(Object::Tensor(tensor)))
            }
            (Meaning::RebuildParameter, [tensor, ..]) if self.arena.tensor(*tensor).is_some() => Ok(*tensor),
            (Meaning::Size, [shape]) if self.arena.tuple(*shape).is_some() => Ok(*shape),
            (Meaning::Opaque, _) => Ok(self.arena.add(Object::Instance { class, arguments, state: Value::None })),
            _ => Err(format!("`{}` is called with arguments it does not take", class.path())),
        }
    }

    /// BUILD gives the object below its `__dict__`. Attributes of a dictionary (`_metadata` of a state dict) are dropped.
    fn build(&mut self, given: Value<'a>) -> Result<(), String> {
        let target = self.top()?;
        match self.arena.get_mut(target) {
            Some(Object::Instance { state, .. }) => *state = given,
            Some(Object::Dict(_)) => {}
            _ => return Err(format!("{} is given a state", self.arena.describe(target))),
        }
        Ok(())
    }

    fn extend_list(&mut self, items: Vec<Value<'a>>) -> Result<(), String> {
        let target = self.top()?;
        match self.arena.get_mut(target) {
            Some(Object::List(list)) => list.extend(items),
            _ => return Err(format!("{} is appended to", self.arena.describe(target))),
        }
        Ok(())
    }

    fn extend_dict(&mut self, items: &[Value<'a>]) -> Result<(), String> {
        let target = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err("a key without a value".into());
        }
        match self.arena.get_mut(target) {
            Some(Object::Dict(dict)) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err(format!("an item is set in {}", self.arena.describe(target))),
        }
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        if self.stack.len() == limits::STACK {
            return Err(format!("over {} values on the stack", limits::STACK));
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_new(&mut self, object: Object<'a>) -> Result<(), String> {
        let value = self.arena.add(object);
        self.push(value)
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Value<'a>, String> {
        let reachable = &self.stack[self.floor()..];
        reachable.last().copied().ok_or_else(|| "the stack is empty".into())
    }

    fn pop(&mut self) -> Result<Value<'a>, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Closes the last mark and returns the values above it.
    fn above_mark(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.marks.pop().ok_or("there is no mark")?;
        Ok(self.stack.split_off(mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(pickle: &[u8]) -> String {
        load(pickle).unwrap_err().to_string()
    }

    #[test]
    fn a_forbidden_global_is_named() {
        let attack = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.";
        assert!(complaint(attack).starts_with("data.pkl byte 2: `posix.system` is not allowed"));
        // It is refused even where it would never be called.
        assert!(complaint(b"\x80\x02cbuiltins\neval\nq\x00.").contains("`builtins.eval`"));
    }

    #[test]
    fn a_dict_keeps_its_pairs() {
        let (arena, root) = load(b"\x80\x02}(K\x01\x88X\x01\x00\x00\x00aNu.").unwrap();
        assert_eq!(arena.dict(root).unwrap(), [(Value::Int(1), Value::Bool(true)), (Value::Str("a"), Value::None)]);
    }

    #[test]
    fn a_list_that_holds_itself_is_finite() {
        let (arena, root) = load(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert!(matches!(arena.get(root), Some(Object::List(items)) if items == &[root]));
    }

    #[test]
    fn opaque_classes_are_noted_and_not_made() {
        let (arena, root) = load(b"\x80\x02cultralytics.x\nY\n)\x81}b.").unwrap();
        assert_eq!(arena.describe(root), "a `ultralytics.x.Y`");
        assert!(matches!(arena.get(root), Some(Object::Instance { state: Value::Object(_), .. })));
    }

    #[test]
    fn broken_programs_are_refused() {
        for (pickle, what) in [
            (&b"\x80\x04N."[..], "protocol 4"),
            (b".", "the stack is empty"),
            (b"N(.", "the stack is empty"),
            (b"N(\x85.", "the stack is empty"),
            (b"NN(\x86.", "the stack is empty"),
            (b"t.", "there is no mark"),
            (b"h\x07.", "memo slot 7 is empty"),
            (b"NNa.", "None is appended to"),
            (b"}(Nu.", "a key without a value"),
            (b"]NNs.", "an item is set in a list"),
            (b"]Nb.", "a list is given a state"),
            (b"N)R.", "None is called"),
            (b"ccollections\nOrderedDict\nNR.", "without a tuple"),
            (b"ccollections\nOrderedDict\nN\x85R.", "arguments it does not take"),
            (b"ctorch._utils\n_rebuild_parameter\nN\x85R.", "arguments it does not take"),
            (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "arguments it does not take"),
            (b"ctorch\nFloatStorage\n)R.", "arguments it does not take"),
            (b"NQ.", "persistent id"),
        ] {
            let got = complaint(pickle);
            assert!(got.contains(what), "{pickle:?} gave {got:?}, not {what:?}");
        }
    }

    #[test]
    fn bounds_hold() {
        assert!(complaint(&vec![b'('; limits::MARKS + 1]).contains("over 1000 nested marks"));
        assert!(complaint(&vec![b'N'; limits::STACK + 1]).contains("over 10000 values on the stack"));
        let mut busy = b"]".to_vec();
        busy.extend(b"Na".repeat(limits::OPCODES));
        assert_eq!(complaint(&busy), "opcodes of data.pkl: 1000001 is over the limit of 1000000");
    }
}
