//! What a pickle says of storages and tensors, checked: no view that is made here leaves its storage.

use super::globals::Meaning;
use super::value::{Arena, Object, Value};
use super::view::{StorageRef, TensorRef};
use crate::limits;
use crate::tensor::bytes_of;

/// Reads a persistent id: `('storage', torch.FloatStorage, '0', 'cpu', numel)`.
pub(super) fn storage_ref<'a>(arena: &Arena<'a>, id: Value<'a>) -> Result<StorageRef<'a>, String> {
    let Some([Value::Str("storage"), Value::Global(class), Value::Str(key), Value::Str(_device), Value::Int(numel)]) = arena.tuple(id)
    else {
        return Err(format!("the persistent id is {}, not that of a storage", arena.describe(id)));
    };
    let Meaning::Storage(dtype) = class.meaning else {
        return Err(format!("`{}` is not a storage class", class.path()));
    };
    let bytes = usize::try_from(*numel).ok().and_then(|numel| bytes_of(dtype, &[numel]));
    let bytes = bytes.ok_or_else(|| format!("storage `{}` of {numel} {dtype} elements", key.escape_debug()))?;
    Ok(StorageRef { dtype, key, bytes })
}

/// Reads the arguments of `_rebuild_tensor_v2`.
pub(super) fn tensor_ref<'a>(
    arena: &Arena<'a>,
    storage: Value<'a>,
    offset: Value<'a>,
    shape: Value<'a>,
    strides: Value<'a>,
) -> Result<TensorRef<'a>, String> {
    let Some(&Object::Storage(storage)) = arena.get(storage) else {
        return Err(format!("a tensor is made from {}", arena.describe(storage)));
    };
    let offset = size(offset).ok_or("a tensor's offset is not a size")?;
    let shape = sizes(arena, shape).ok_or("a tensor's shape is not a tuple of at most 16 sizes")?;
    let strides = sizes(arena, strides).ok_or("a tensor's strides are not a tuple of at most 16 sizes")?;
    if shape.len() != strides.len() {
        return Err(format!("shape {shape:?} with strides {strides:?}"));
    }
    let tensor = TensorRef { storage, shape, offset, strides };
    let held = storage.bytes / storage.dtype.size();
    match tensor.reach() {
        Some(reach) if reach <= held => Ok(tensor),
        _ => Err(format!(
            "shape {:?} with strides {:?} at offset {offset} reaches beyond storage `{}` of {held} elements",
            tensor.shape,
            tensor.strides,
            storage.key.escape_debug()
        )),
    }
}

fn size(value: Value<'_>) -> Option<usize> {
    let Value::Int(int) = value else { return None };
    usize::try_from(int).ok()
}

fn sizes<'a>(arena: &Arena<'a>, value: Value<'a>) -> Option<Vec<usize>> {
    let items = arena.tuple(value).filter(|items| items.len() <= limits::RANK)?;
    items.iter().map(|&item| size(item)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    /// A view of a storage of `held` bytes 0, 1, 2...
    fn view(held: usize, offset: i64, shape: &[i64], strides: &[i64]) -> Result<TensorRef<'static>, String> {
        let mut arena = Arena::default();
        let storage = arena.add(Object::Storage(StorageRef { dtype: DType::U8, key: "0", bytes: held }));
        let shape = arena.add(Object::Tuple(shape.iter().map(|&i| Value::Int(i)).collect()));
        let strides = arena.add(Object::Tuple(strides.iter().map(|&i| Value::Int(i)).collect()));
        tensor_ref(&arena, storage, Value::Int(offset), shape, strides)
    }

    fn gathered(held: u8, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
        let storage: Vec<u8> = (0..held).collect();
        view(held.into(), offset, shape, strides).unwrap().gather(&storage)
    }

    #[test]
    fn views_are_gathered_in_row_major_order() {
        assert_eq!(gathered(6, 0, &[2, 3], &[3, 1]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(gathered(6, 0, &[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5], "transposed");
        assert_eq!(gathered(6, 1, &[2, 2], &[3, 1]), [1, 2, 4, 5], "columns");
        assert_eq!(gathered(6, 2, &[3], &[1]), [2, 3, 4], "a part");
        assert_eq!(gathered(2, 1, &[2, 2], &[0, 0]), [1, 1, 1, 1], "expanded");
        assert_eq!(gathered(24, 0, &[2, 3, 4], &[12, 1, 3])[..8], [0, 3, 6, 9, 1, 4, 7, 10], "permuted");
        assert_eq!(gathered(3, 2, &[], &[]), [2], "a scalar");
        assert_eq!(gathered(3, 3, &[0, 5], &[9, 9]), [0u8; 0], "empty");
        assert_eq!(gathered(3, 0, &[1, 3], &[77, 1]), [0, 1, 2], "strides of extent 1 mean nothing");
    }

    #[test]
    fn only_the_whole_storage_is_whole() {
        assert!(view(6, 0, &[2, 3], &[3, 1]).unwrap().is_whole());
        assert!(!view(6, 0, &[3, 2], &[1, 3]).unwrap().is_whole());
        assert!(!view(6, 0, &[5], &[1]).unwrap().is_whole());
    }

    #[test]
    fn views_that_leave_the_storage_are_refused() {
        for (offset, shape, strides) in [
            (0, &[7][..], &[1][..]),
            (1, &[6], &[1]),
            (0, &[3, 2], &[1, 4]),
            (7, &[0], &[1]),
            (0, &[i64::MAX, i64::MAX, 0], &[1, 1, 1]),
            (0, &[2], &[i64::MAX]),
            (i64::MAX, &[2, 2], &[i64::MAX, i64::MAX]),
            (0, &[i64::MAX, i64::MAX], &[0, 0]),
        ] {
            let what = view(6, offset, shape, strides).unwrap_err();
            assert!(what.contains("reaches beyond storage `0` of 6 elements"), "{what}");
        }
        assert!(view(6, -1, &[1], &[1]).unwrap_err().contains("offset"));
        assert!(view(6, 0, &[-1], &[1]).unwrap_err().contains("shape"));
        assert!(view(6, 0, &[1], &[-1]).unwrap_err().contains("strides"));
        assert!(view(6, 0, &[1; 17], &[1; 17]).unwrap_err().contains("16"));
        assert!(view(6, 0, &[1], &[1, 1]).unwrap_err().contains("with strides"));
    }
}
