//! A model's safetensors files, mapped: the headers are read and checked at once, a tensor's data when it is asked for.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Cursor, ErrorKind};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use memmap2::Mmap;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::header::each_key;
use super::{INDEX, SINGLE, header};
use crate::error::{Fault, WeightsError};
use crate::limits;
use crate::map::{give_back, map};
use crate::tensor::{TensorSpec, to_f32};

/// The weights of a model, in one file or several.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<(PathBuf, Mmap)>,
    tensors: BTreeMap<String, Stored>,
}

/// A tensor, the number of its file, and its bytes there.
#[derive(Debug)]
struct Stored {
    spec: TensorSpec,
    file: usize,
    place: Range<usize>,
}

impl Checkpoint {
    /// Opens a safetensors file, or a directory with `model.safetensors`, or with `model.safetensors.index.json` and the files it names.
    ///
    /// Tensors that a named file holds and the index does not mention are there too, as transformers has it.
    ///
    /// # Errors
    /// [`WeightsError`] with the path of the file at fault: one that is not safetensors or is missing; an index that names anything but
    /// plain files of its directory; a tensor that is not where the index says, or in two files.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mut checkpoint = Checkpoint { path: path.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        if !path.is_dir() {
            checkpoint.add(path.to_owned())?;
        } else if path.join(SINGLE).exists() {
            checkpoint.add(path.join(SINGLE))?;
        } else if path.join(INDEX).exists() {
            checkpoint.add_shards(path)?;
        } else {
            let what = format!("there is neither {SINGLE} nor {INDEX} in this directory");
            return Err(WeightsError::at(path)(Fault::Checkpoint { what }));
        }
        Ok(checkpoint)
    }

    /// The tensors by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorSpec)> {
        self.tensors.iter().map(|(name, stored)| (name.as_str(), &stored.spec))
    }

    /// What is known of a tensor without reading it; `None` if there is no such tensor.
    pub fn spec(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.get(name).map(|stored| &stored.spec)
    }

    /// The bytes of a tensor as they are stored.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], WeightsError> {
        let (_, map, place) = self.find(name)?;
        Ok(&map[place.clone()])
    }

    /// The elements of a tensor as [`Tensor::to_f32`](crate::Tensor::to_f32) gives them.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn tensor_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let (spec, map, place) = self.find(name)?;
        let mut values = Vec::with_capacity(place.len() / spec.dtype.size());
        for piece in pieces(place) {
            values.extend(to_f32(spec.dtype, &map[piece.clone()]));
            give_back(map, &piece);
        }
        Ok(values)
    }

    /// Whether every element of a tensor, as [`tensor_f32`](Self::tensor_f32) gives it, `is` such. Nothing is read behind the first that is not.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn all(&self, name: &str, is: impl Fn(f32) -> bool) -> Result<bool, WeightsError> {
        let (spec, map, place) = self.find(name)?;
        Ok(pieces(place).all(|piece| {
            let all = to_f32(spec.dtype, &map[piece.clone()]).into_iter().all(&is);
            give_back(map, &piece);
            all
        }))
    }

    fn find(&self, name: &str) -> Result<(&TensorSpec, &Mmap, &Range<usize>), WeightsError> {
        let stored = self.tensors.get(name);
        let stored = stored.ok_or_else(|| WeightsError::at(&self.path)(Fault::tensor(name, "there is no such tensor")))?;
        Ok((&stored.spec, &self.files[stored.file].1, &stored.place))
    }

    fn add_shards(&mut self, dir: &Path) -> Result<(), WeightsError> {
        let index_path = dir.join(INDEX);
        let index = Index::read(&index_path).map_err(WeightsError::at(&index_path))?;
        let files: BTreeSet<&String> = index.weight_map.iter().map(|(_, file)| file).collect();
        for file in files {
            let path = dir.join(file);
            if let Err(error) = self.add(path.clone()) {
                let missing = matches!(&error.fault, Fault::Io(e) if e.kind() == ErrorKind::NotFound);
                let what = format!("{INDEX} names this file, but it is not there");
                return Err(if missing { WeightsError::at(&path)(Fault::Checkpoint { what }) } else { error });
            }
        }
        for (name, file) in &index.weight_map {
            let path = dir.join(file);
            if self.tensors.get(name).is_none_or(|stored| self.files[stored.file].0 != path) {
                return Err(WeightsError::at(&path)(Fault::tensor(name, format!("{INDEX} says it is in this file, but it is not"))));
            }
        }
        Ok(())
    }

    /// Adds the tensors of a file.
    fn add(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let fail = || WeightsError::at(&path);
        let map = map(&path).map_err(fail())?;
        let header = header::read(&mut Cursor::new(&map[..]), map.len() as u64).map_err(fail())?;
        for entry in header.tensors {
            let place = header.data + entry.place.start..header.data + entry.place.end;
            match self.tensors.entry(entry.name) {
                Slot::Occupied(slot) => {
                    let other = self.files[slot.get().file].0.file_name().unwrap_or_default().display();
                    return Err(fail()(Fault::tensor(slot.key(), format!("it is in {other} too"))));
                }
                Slot::Vacant(slot) => slot.insert(Stored { spec: entry.spec, file: self.files.len(), place }),
            };
        }
        self.files.push((path, map));
        Ok(())
    }
}

/// Bytes that are read at once: a tensor's pages are in memory beside its values no longer than they have to be. A multiple of every element's size.
const PIECE: usize = 4 << 20;

/// A part of a file, piece by piece.
fn pieces(place: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = place.end;
    place.clone().step_by(PIECE).map(move |start| start..end.min(start + PIECE))
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    #[serde(deserialize_with = "pairs")]
    weight_map: Vec<(String, String)>,
}

impl Index {
    fn read(path: &Path) -> Result<Self, Fault> {
        let map = map(path)?;
        limits::at_most("bytes of the index", map.len() as u64, limits::INDEX_BYTES)?;
        let index: Index = serde_json::from_slice(&map).map_err(|e| Fault::Checkpoint { what: e.to_string() })?;
        for (name, file) in &index.weight_map {
            if !is_plain_name(file) {
                let what = format!("the index puts it in `{}`, which is no plain file name", file.escape_debug());
                return Err(Fault::tensor(name.escape_debug().to_string(), what));
            }
        }
        Ok(index)
    }
}

/// Whether a name stays in its directory, on any system.
fn is_plain_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == file);
    plain && !file.contains(['/', '\\', ':', '\0'])
}

/// A map of texts whose keys do not repeat.
fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    struct Pairs;
    impl<'de> Visitor<'de> for Pairs {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of tensor names to files")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            each_key(map, |name, map| {
                pairs.push((name, map.next_value()?));
                Ok(())
            })?;
            Ok(pairs)
        }
    }
    deserializer.deserialize_map(Pairs)
}
