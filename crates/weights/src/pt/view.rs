//! Tensors as views of storages, and the bytes gathered from them.
//!
//! A storage is a file `data/<key>` of raw little-endian elements. A tensor is an offset, a shape and
//! strides, all in elements; several may share a storage and none needs to be contiguous.

use crate::tensor::{DType, bytes_of};

/// A storage, as named by a persistent id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StorageRef<'a> {
    pub(super) dtype: DType,
    pub(super) key: &'a str,
    /// Bytes it must have.
    pub(super) bytes: usize,
}

/// A view of a storage. Every element it describes lies inside the storage, and its size in bytes does not overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorRef<'a> {
    pub(super) storage: StorageRef<'a>,
    pub(super) shape: Vec<usize>,
    pub(super) offset: usize,
    pub(super) strides: Vec<usize>,
}

impl TensorRef<'_> {
    /// Elements of the storage up to the last one used, or `None` on overflow.
    pub(super) fn reach(&self) -> Option<usize> {
        bytes_of(self.storage.dtype, &self.shape)?;
        if self.shape.contains(&0) {
            return Some(self.offset);
        }
        let steps = self.shape.iter().zip(&self.strides).map(|(extent, stride)| (extent - 1).checked_mul(*stride));
        let last = steps.into_iter().try_fold(self.offset, |sum, step| sum.checked_add(step?))?;
        last.checked_add(1)
    }

    pub(super) fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn bytes(&self) -> usize {
        self.numel() * self.storage.dtype.size()
    }

    /// Whether the elements lie in row-major order without gaps.
    fn is_contiguous(&self) -> bool {
        if self.numel() == 0 {
            return true;
        }
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent != 1 && stride != expected {
                return false;
            }
            expected *= extent;
        }
        true
    }

    /// Whether the tensor is the storage, element for element.
    pub(super) fn is_whole(&self) -> bool {
        self.offset == 0 && self.bytes() == self.storage.bytes && self.is_contiguous()
    }

    /// The tensor's elements in row-major order. `storage` has the storage's `bytes`.
    pub(super) fn gather(&self, storage: &[u8]) -> Vec<u8> {
        let width = self.storage.dtype.size();
        let total = self.bytes();
        if self.is_contiguous() {
            return storage[self.offset * width..][..total].to_vec();
        }
        let mut gathered = Vec::with_capacity(total);
        let mut index = vec![0; self.shape.len()];
        let mut position = self.offset;
        while gathered.len() < total {
            gathered.extend_from_slice(&storage[position * width..][..width]);
            // Count up, last dimension first, carrying like an odometer.
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                position += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                position -= self.strides[axis] * self.shape[axis];
                index[axis] = 0;
            }
        }
        gathered
    }
}
