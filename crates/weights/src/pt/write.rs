//! Writing what `torch.save` writes: a tree of Python values as a pickle of protocol 2, and the storages of its tensors, in a stored zip.
//!
//! Text and globals are memoized, as they come by the thousand; other values are written out where they stand, so nothing is shared but storages.
//! Storages begin at multiples of 64 bytes, as since PyTorch 2.1, so that readers can map them.

use std::collections::HashMap;
use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::view::{StorageRef, TensorRef};
use crate::error::{Fault, WeightsError};
use crate::tensor::{DType, Tensor};

/// Bytes to whose multiples storages are aligned.
const ALIGNMENT: u16 = 64;
/// The one directory of the zip.
const ROOT: &str = "archive";
/// Values between a mark and what takes them, as Python's pickler limits them.
const BATCH: usize = 1000;

/// A Python value.
#[derive(Debug, Clone, PartialEq)]
pub enum Pickled {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An `int`.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// A `str`.
    Text(String),
    /// A `tuple`.
    Tuple(Vec<Pickled>),
    /// A `list`.
    List(Vec<Pickled>),
    /// A `dict`.
    Dict(Vec<(Pickled, Pickled)>),
    /// A `collections.OrderedDict`.
    OrderedDict(Vec<(Pickled, Pickled)>),
    /// A `set`.
    Set(Vec<Pickled>),
    /// A class or function: its module and its name.
    Global(&'static str, &'static str),
    /// What this callable makes of these arguments.
    Reduce(Box<Pickled>, Vec<Pickled>),
    /// An instance of the class of this module and name, made without arguments, with this state (its `__dict__`, as a rule).
    Object(&'static str, &'static str, Box<Pickled>),
    /// A tensor.
    Tensor(View),
    /// A `torch.nn.Parameter`.
    Parameter(View),
}

/// A tensor as a view of a storage; offset, shape and strides are in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Which of the [`Storages`].
    pub storage: usize,
    /// Where it begins.
    pub offset: usize,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Steps between neighbours of each dimension.
    pub strides: Vec<usize>,
}

/// What the tensors of a file are views of.
#[derive(Debug, Clone, Default)]
pub struct Storages(Vec<(DType, Vec<u8>)>);

impl Storages {
    /// A storage of these little-endian elements; returns its number.
    pub fn add(&mut self, dtype: DType, data: Vec<u8>) -> usize {
        self.0.push((dtype, data));
        self.0.len() - 1
    }

    /// A tensor with a storage of its own.
    pub fn whole(&mut self, tensor: Tensor) -> View {
        let mut strides = vec![1; tensor.shape.len()];
        for axis in (1..strides.len()).rev() {
            strides[axis - 1] = strides[axis] * tensor.shape[axis].max(1);
        }
        View { storage: self.add(tensor.dtype, tensor.data), offset: 0, shape: tensor.shape, strides }
    }
}

impl From<&str> for Pickled {
    fn from(text: &str) -> Self {
        Pickled::Text(text.into())
    }
}

impl Pickled {
    /// A `dict` with text for keys.
    pub fn dict<K: Into<String>>(pairs: impl IntoIterator<Item = (K, Pickled)>) -> Self {
        Pickled::Dict(pairs.into_iter().map(|(key, value)| (Pickled::Text(key.into()), value)).collect())
    }

    /// A `list` of `int`s.
    pub fn ints(ints: &[i64]) -> Self {
        Pickled::List(ints.iter().map(|&int| Pickled::Int(int)).collect())
    }
}

/// The bytes of a `.pt` that holds `root`. The same input gives the same bytes.
///
/// # Errors
/// A view that leaves its storage, or a storage that is no whole number of elements.
pub fn write(root: &Pickled, storages: &Storages) -> Result<Vec<u8>, WeightsError> {
    let mut pickler = Pickler { out: vec![0x80, 2], memo: HashMap::new(), storages };
    pickler.value(root)?;
    pickler.out.push(b'.');
    Ok(archive(&pickler.out, storages)?)
}

fn archive(pickle: &[u8], storages: &Storages) -> Result<Vec<u8>, Fault> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(ALIGNMENT);
    let mut put = |name: &str, data: &[u8]| {
        let wrong = |error: &dyn std::fmt::Display| Fault::Zip { what: format!("entry `{name}`: {error}") };
        zip.start_file(format!("{ROOT}/{name}"), options).map_err(|e| wrong(&e))?;
        zip.write_all(data).map_err(|e| wrong(&e))
    };
    put("data.pkl", pickle)?;
    put(".format_version", b"1")?;
    put(".storage_alignment", ALIGNMENT.to_string().as_bytes())?;
    put("byteorder", b"little")?;
    for (number, (_, data)) in storages.0.iter().enumerate() {
        put(&format!("data/{number}"), data)?;
    }
    put("version", b"3\n")?;
    let done = zip.finish().map_err(|error| Fault::Zip { what: error.to_string() })?;
    Ok(done.into_inner())
}

struct Pickler<'a> {
    out: Vec<u8>,
    /// Where text and globals were put, by the instruction that makes them.
    memo: HashMap<Vec<u8>, u32>,
    storages: &'a Storages,
}

impl Pickler<'_> {
    fn value(&mut self, value: &Pickled) -> Result<(), Fault> {
        match value {
            Pickled::None => self.out.push(b'N'),
            Pickled::Bool(bool) => self.out.push(if *bool { 0x88 } else { 0x89 }),
            Pickled::Int(int) => self.int(*int),
            Pickled::Float(float) => {
                self.out.push(b'G');
                self.out.extend(float.to_be_bytes());
            }
            Pickled::Text(text) => self.text(text),
            Pickled::Tuple(items) => self.tuple(items)?,
            Pickled::List(items) => {
                self.out.push(b']');
                self.batches(items, b'e', |pickler, item| pickler.value(item))?;
            }
            Pickled::Dict(pairs) => {
                self.out.push(b'}');
                self.pairs(pairs)?;
            }
            Pickled::OrderedDict(pairs) => {
                self.empty_ordered_dict();
                self.pairs(pairs)?;
            }
            Pickled::Set(items) => {
                // The name at protocol 2 is that of Python 2.
                self.global("__builtin__", "set");
                self.value(&Pickled::List(items.clone()))?;
                self.out.extend([0x85, b'R']);
            }
            Pickled::Global(module, name) => self.global(module, name),
            Pickled::Reduce(callable, arguments) => {
                self.value(callable)?;
                self.tuple(arguments)?;
                self.out.push(b'R');
            }
            Pickled::Object(module, name, state) => {
                self.global(module, name);
                self.out.extend([b')', 0x81]);
                self.value(state)?;
                self.out.push(b'b');
            }
            Pickled::Tensor(view) => self.tensor(view)?,
            Pickled::Parameter(view) => {
                self.global("torch._utils", "_rebuild_parameter");
                self.out.push(b'(');
                self.tensor(view)?;
                // Needs no gradient, has no hooks.
                self.out.push(0x89);
                self.empty_ordered_dict();
                self.out.extend(b"tR");
            }
        }
        Ok(())
    }

    fn int(&mut self, int: i64) {
        if let Ok(small) = u8::try_from(int) {
            self.out.extend([b'K', small]);
        } else if let Ok(word) = i32::try_from(int) {
            self.out.push(b'J');
            self.out.extend(word.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(int.to_le_bytes());
        }
    }

    fn text(&mut self, text: &str) {
        self.once([b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
    }

    fn global(&mut self, module: &str, name: &str) {
        self.once(format!("c{module}\n{name}\n").into());
    }

    /// Writes an instruction the first time, and afterwards where its value was put.
    fn once(&mut self, instruction: Vec<u8>) {
        if let Some(&slot) = self.memo.get(&instruction) {
            return self.slot(b'h', b'j', slot);
        }
        self.out.extend(&instruction);
        let slot = self.memo.len() as u32;
        self.slot(b'q', b'r', slot);
        self.memo.insert(instruction, slot);
    }

    fn slot(&mut self, short: u8, long: u8, slot: u32) {
        match u8::try_from(slot) {
            Ok(slot) => self.out.extend([short, slot]),
            Err(_) => {
                self.out.push(long);
                self.out.extend(slot.to_le_bytes());
            }
        }
    }

    fn tuple(&mut self, items: &[Pickled]) -> Result<(), Fault> {
        let short = [b')', 0x85, 0x86, 0x87].get(items.len()).copied();
        if short.is_none() {
            self.out.push(b'(');
        }
        items.iter().try_for_each(|item| self.value(item))?;
        self.out.push(short.unwrap_or(b't'));
        Ok(())
    }

    fn pairs(&mut self, pairs: &[(Pickled, Pickled)]) -> Result<(), Fault> {
        self.batches(pairs, b'u', |pickler, (key, value)| {
            pickler.value(key)?;
            pickler.value(value)
        })
    }

    fn batches<T>(&mut self, items: &[T], take: u8, put: impl Fn(&mut Self, &T) -> Result<(), Fault>) -> Result<(), Fault> {
        for batch in items.chunks(BATCH) {
            self.out.push(b'(');
            batch.iter().try_for_each(|item| put(self, item))?;
            self.out.push(take);
        }
        Ok(())
    }

    fn empty_ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.out.extend(b")R");
    }

    /// `_rebuild_tensor_v2(storage, offset, shape, strides, needs gradient, hooks)`.
    fn tensor(&mut self, view: &View) -> Result<(), Fault> {
        let key = view.storage.to_string();
        let wrong = |what: String| Fault::tensor(format!("of storage {key}"), what);
        let (dtype, data) = self.storages.0.get(view.storage).ok_or_else(|| wrong("there is no such storage".into()))?;
        let storage = StorageRef { dtype: *dtype, key: &key, bytes: data.len() };
        let numel = data.len() / dtype.size();
        let as_read = TensorRef { storage, shape: view.shape.clone(), offset: view.offset, strides: view.strides.clone() };
        let inside = view.shape.len() == view.strides.len() && as_read.reach().is_some_and(|reach| reach <= numel);
        if !inside || numel * dtype.size() != data.len() {
            return Err(wrong(format!("{view:?} does not fit {} bytes of {dtype}", data.len())));
        }
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.out.extend(b"((");
        self.text("storage");
        self.global("torch", storage_class(*dtype));
        self.text(&key);
        self.text("cpu");
        self.int(numel as i64);
        self.out.extend(b"tQ");
        self.int(view.offset as i64);
        self.sizes(&view.shape)?;
        self.sizes(&view.strides)?;
        self.out.push(0x89);
        self.empty_ordered_dict();
        self.out.extend(b"tR");
        Ok(())
    }

    fn sizes(&mut self, sizes: &[usize]) -> Result<(), Fault> {
        self.tuple(&sizes.iter().map(|&size| Pickled::Int(size as i64)).collect::<Vec<_>>())
    }
}

fn storage_class(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "DoubleStorage",
        DType::F32 => "FloatStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        DType::I64 => "LongStorage",
        DType::I32 => "IntStorage",
        DType::I16 => "ShortStorage",
        DType::I8 => "CharStorage",
        DType::U8 => "ByteStorage",
        DType::Bool => "BoolStorage",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::machine::load;
    use super::super::value::{Arena, Object, Value};
    use super::*;

    /// Whether the reader made of a pickle what was written.
    fn same(arena: &Arena, read: Value, written: &Pickled) -> bool {
        let all =
            |read: &[Value], written: &[Pickled]| read.len() == written.len() && read.iter().zip(written).all(|(&r, w)| same(arena, r, w));
        let pairs = |read: &[(Value, Value)], written: &[(Pickled, Pickled)]| {
            let mut both = read.iter().zip(written);
            read.len() == written.len() && both.all(|(r, w)| same(arena, r.0, &w.0) && same(arena, r.1, &w.1))
        };
        match (read, written) {
            (Value::None, Pickled::None) => true,
            (Value::Bool(r), Pickled::Bool(w)) => r == *w,
            (Value::Int(r), Pickled::Int(w)) => r == *w,
            (Value::Float(r), Pickled::Float(w)) => r.to_bits() == w.to_bits(),
            (Value::Str(r), Pickled::Text(w)) => r == w,
            (Value::Global(r), Pickled::Global(module, name)) => (r.module, r.name) == (*module, *name),
            _ => match (arena.get(read), written) {
                (Some(Object::Tuple(r)), Pickled::Tuple(w)) | (Some(Object::List(r)), Pickled::List(w)) => all(r, w),
                (Some(Object::Dict(r)), Pickled::Dict(w) | Pickled::OrderedDict(w)) => pairs(r, w),
                (Some(Object::Instance { class, arguments, .. }), Pickled::Set(w)) => {
                    let list = arena.tuple(*arguments).unwrap()[0];
                    class.name == "set" && matches!(arena.get(list), Some(Object::List(r)) if all(r, w))
                }
                (Some(Object::Instance { class, arguments, state }), Pickled::Object(module, name, w)) => {
                    (class.module, class.name) == (*module, *name) && arena.tuple(*arguments).unwrap().is_empty() && same(arena, *state, w)
                }
                (Some(Object::Instance { class, arguments, .. }), Pickled::Reduce(callable, w)) => {
                    same(arena, Value::Global(*class), callable) && all(arena.tuple(*arguments).unwrap(), w)
                }
                (Some(Object::Tensor(r)), Pickled::Tensor(w) | Pickled::Parameter(w)) => {
                    (r.storage.key, r.offset, &r.shape, &r.strides) == (w.storage.to_string().as_str(), w.offset, &w.shape, &w.strides)
                }
                _ => false,
            },
        }
    }

    fn any_value() -> impl Strategy<Value = Pickled> {
        let view = || {
            (0usize..2, 0usize..3, prop::collection::vec((0usize..3, 0usize..3), 0..4)).prop_map(|(storage, offset, axes)| {
                let (shape, strides) = axes.into_iter().unzip();
                View { storage, offset, shape, strides }
            })
        };
        let leaf = prop_oneof![
            Just(Pickled::None),
            any::<bool>().prop_map(Pickled::Bool),
            any::<i64>().prop_map(Pickled::Int),
            (-300i64..70_000).prop_map(Pickled::Int),
            any::<f64>().prop_map(Pickled::Float),
            ".{0,5}".prop_map(Pickled::Text),
            Just(Pickled::Global("torch", "float32")),
            view().prop_map(Pickled::Tensor),
            view().prop_map(Pickled::Parameter),
        ];
        leaf.prop_recursive(4, 60, 6, |inner| {
            let items = || prop::collection::vec(inner.clone(), 0..6);
            let pairs = || prop::collection::vec((inner.clone(), inner.clone()), 0..4);
            prop_oneof![
                items().prop_map(Pickled::Tuple),
                items().prop_map(Pickled::List),
                items().prop_map(Pickled::Set),
                pairs().prop_map(Pickled::Dict),
                pairs().prop_map(Pickled::OrderedDict),
                items().prop_map(|w| Pickled::Reduce(Box::new(Pickled::Global("torch", "device")), w)),
                inner.clone().prop_map(|w| Pickled::Object("ultralytics.nn.modules.conv", "Conv", Box::new(w))),
            ]
        })
    }

    fn storages() -> Storages {
        let mut storages = Storages::default();
        storages.add(DType::F32, vec![7; 4 * 60]);
        storages.add(DType::U8, vec![9; 60]);
        storages
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_reader_finds_what_was_written(value in any_value()) {
            let storages = storages();
            let mut pickler = Pickler { out: vec![0x80, 2], memo: HashMap::new(), storages: &storages };
            pickler.value(&value).unwrap();
            pickler.out.push(b'.');
            let (arena, root) = load(&pickler.out).unwrap();
            prop_assert!(same(&arena, root, &value), "{value:?}");
        }
    }

    #[test]
    fn long_containers_and_many_names() {
        let names: Vec<Pickled> = (0..2500).map(|i| Pickled::Text(format!("n{}", i % 700))).collect();
        let root = Pickled::Tuple(vec![
            Pickled::List(names.clone()),
            Pickled::Dict(names.into_iter().map(|name| (name.clone(), name)).collect()),
            Pickled::Text("torch\nfloat32\n".into()),
            Pickled::Global("torch", "float32"),
            Pickled::Text("torch\nfloat32\n".into()),
        ]);
        let storages = Storages::default();
        let mut pickler = Pickler { out: vec![0x80, 2], memo: HashMap::new(), storages: &storages };
        pickler.value(&root).unwrap();
        pickler.out.push(b'.');
        let (arena, read) = load(&pickler.out).unwrap();
        assert!(same(&arena, read, &root));
    }

    #[test]
    fn views_that_leave_their_storage_are_not_written() {
        let mut storages = storages();
        storages.add(DType::F32, vec![0; 7]);
        let view = |storage, shape: &[usize], strides: &[usize]| View { storage, offset: 1, shape: shape.into(), strides: strides.into() };
        for bad in [view(0, &[60], &[1]), view(0, &[2], &[usize::MAX]), view(0, &[2], &[]), view(2, &[0], &[1]), view(9, &[], &[])] {
            assert!(write(&Pickled::Tensor(bad.clone()), &storages).is_err(), "{bad:?}");
        }
        assert!(write(&Pickled::Tensor(view(0, &[59], &[1])), &storages).is_ok());
    }
}
