//! Reading: the tables are parsed and checked when the file is opened, the data stays on disk until a tensor is asked for.

use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use indexmap::map::Entry;
use memmap2::Mmap;

use super::cursor::Cursor;
use super::{ALIGNMENT_KEY, MAGIC, MAX_RANK, Metadata, TensorInfo, Value, alignment};
use crate::blocks::BlockType;
use crate::error::{Fault, WeightsError};
use crate::limits;
use crate::map::{give_back, map};
use crate::tensor::check_name;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    tensors: IndexMap<String, TensorInfo>,
    places: Places,
}

/// Where in the file each tensor lies, in the order of the tensors.
type Places = Vec<Range<usize>>;

impl Gguf {
    /// Opens a file and checks all of it but the tensors' numbers.
    ///
    /// # Errors
    /// [`WeightsError`] with the path, and the byte or the tensor that was refused.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let fail = || WeightsError::at(path);
        let map = map(path).map_err(fail())?;
        let mut cursor = Cursor::new(&map);
        let (metadata, tables) = tables(&mut cursor).map_err(fail())?;
        let (tensors, places) = places(tables, &metadata, cursor.at(), map.len()).map_err(fail())?;
        Ok(Gguf { path: path.to_owned(), map, metadata, tensors, places })
    }

    /// The metadata, in the file's order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in the file's order.
    pub fn tensors(&self) -> &IndexMap<String, TensorInfo> {
        &self.tensors
    }

    /// The blocks of a tensor as they are stored.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn tensor_bytes(&self, name: &str) -> Result<&[u8], WeightsError> {
        Ok(&self.map[self.place(name)?.clone()])
    }

    fn place(&self, name: &str) -> Result<&Range<usize>, WeightsError> {
        let index = self.tensors.get_index_of(name);
        let index = index.ok_or_else(|| WeightsError::at(&self.path)(Fault::tensor(name, "there is no such tensor")))?;
        Ok(&self.places[index])
    }

    /// The elements of a tensor, row-major.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn tensor_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let place = self.place(name)?;
        let values = self.tensors[name].kind.dequantize(&self.map[place.clone()]);
        give_back(&self.map, place);
        Ok(values)
    }
}

/// The tensors and their offsets from the start of the data.
type Tables = Vec<(String, TensorInfo, u64)>;

fn tables(cursor: &mut Cursor) -> Result<(Metadata, Tables), Fault> {
    if cursor.array()? != MAGIC {
        return Err(Fault::Gguf { at: 0, what: "it does not start with `GGUF`".into() });
    }
    let version = cursor.u32()?;
    if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
        return Err(Fault::Gguf { at: 4, what: "the file is big-endian, which is not supported".into() });
    }
    if version != 2 && version != 3 {
        return Err(Fault::Gguf { at: 4, what: format!("version {version} is not supported, only 2 and 3") });
    }
    // The least a tensor takes: name length, rank, type, offset. The least of a metadata entry: key length, kind, one byte.
    let tensor_count = cursor.count("tensors", 8 + 4 + 4 + 8)?;
    let entry_count = cursor.count("metadata entries", 8 + 4 + 1)?;
    limits::at_most("tensors", tensor_count, limits::GGUF_ENTRIES)?;
    limits::at_most("metadata entries", entry_count, limits::GGUF_ENTRIES)?;
    let metadata = metadata(cursor, entry_count)?;
    let tensors = (0..tensor_count).map(|_| tensor(cursor)).collect::<Result<_, _>>()?;
    Ok((metadata, tensors))
}

fn metadata(cursor: &mut Cursor, count: u64) -> Result<Metadata, Fault> {
    let mut metadata = Metadata::new();
    for _ in 0..count {
        let at = cursor.at() as u64;
        let key = cursor.text()?;
        limits::at_most("bytes of a metadata key", key.len() as u64, limits::GGUF_KEY_BYTES)?;
        let value = cursor.u32().and_then(|kind| Value::read(kind, cursor));
        let value = value.map_err(|fault| Fault::Metadata { key: key.escape_debug().to_string(), what: fault.to_string() })?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(Fault::Gguf { at, what: format!("metadata `{}` appears twice", key.escape_debug()) });
        }
    }
    Ok(metadata)
}

fn tensor(cursor: &mut Cursor) -> Result<(String, TensorInfo, u64), Fault> {
    let name = cursor.text()?;
    check_name(name)?;
    let rank = cursor.u32()? as usize;
    if rank > MAX_RANK {
        return Err(Fault::tensor(name, format!("{rank} dimensions, GGUF tensors have at most {MAX_RANK}")));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        let extent = cursor.u64()?;
        shape.push(usize::try_from(extent).map_err(|_| Fault::tensor(name, format!("an extent of {extent}")))?);
    }
    shape.reverse();
    let id = cursor.u32()?;
    let kind = BlockType::from_id(id).ok_or_else(|| {
        let known = BlockType::ALL.map(|kind| format!("{kind} {}", kind.id())).join(", ");
        Fault::tensor(name, format!("ggml type {id} is not supported, only {known}"))
    })?;
    Ok((name.to_owned(), TensorInfo { kind, shape }, cursor.u64()?))
}

/// Where the tensors lie, in a file of `size` bytes whose tables end at `tables_end`.
fn places(tables: Tables, metadata: &Metadata, tables_end: usize, size: usize) -> Result<(IndexMap<String, TensorInfo>, Places), Fault> {
    let alignment = alignment(metadata)?;
    let data = tables_end.next_multiple_of(alignment);
    let (mut tensors, mut places) = (IndexMap::new(), Places::with_capacity(tables.len()));
    for (name, info, offset) in tables {
        if !offset.is_multiple_of(alignment as u64) {
            return Err(Fault::tensor(name, format!("offset {offset} is no multiple of {ALIGNMENT_KEY}, {alignment}")));
        }
        let bytes = info.bytes(&name)?;
        let start = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(data));
        let place = start.and_then(|start| Some(start..start.checked_add(bytes)?)).filter(|place| place.end <= size || bytes == 0);
        let Some(place) = place else {
            let what = format!("{bytes} bytes at offset {offset} of the data, which begins at byte {data} of a file of {size}");
            return Err(Fault::tensor(name, what));
        };
        match tensors.entry(name) {
            Entry::Occupied(entry) => return Err(Fault::Duplicate { name: entry.key().clone() }),
            Entry::Vacant(entry) => entry.insert(info),
        };
        // An empty tensor may point anywhere; it is not looked at.
        places.push(if bytes == 0 { 0..0 } else { place });
    }
    no_overlap(&tensors, &places)?;
    Ok((tensors, places))
}

/// That no bytes belong to two tensors: else a small file could stand for more numbers than any memory holds.
fn no_overlap(tensors: &IndexMap<String, TensorInfo>, places: &[Range<usize>]) -> Result<(), Fault> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&index| (places[index].start, places[index].end));
    for pair in order.windows(2) {
        if places[pair[0]].end > places[pair[1]].start {
            let name = |at: usize| tensors.get_index(at).map_or("", |(name, _)| name.as_str());
            return Err(Fault::tensor(name(pair[1]), format!("its data overlaps that of `{}`", name(pair[0]))));
        }
    }
    Ok(())
}
