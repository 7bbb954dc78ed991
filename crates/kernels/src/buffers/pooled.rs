//! A tensor's bytes that return to the pool when they are dropped.
//!
//! `unsafe`, because Burn lets memory have a keeper of its own, but asks for raw memory of it.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

use burn::tensor::Bytes;
use cubecl::bytes::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

use super::pool::pool;

/// A block that is out; empty (and of no capacity) once it has been detached.
struct Pooled(Vec<f32>);

/// The values as bytes, of which the pool gets hold when they are no longer used.
pub(super) fn bytes(values: Vec<f32>) -> Bytes {
    let len = size_of_val(values.as_slice());
    pool().lend(values.capacity());
    // SAFETY: the controller's memory begins with the vector's values, which are initialised and `len` bytes long.
    unsafe { Bytes::from_controller(Box::new(Pooled(values)), len) }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.0.capacity() > 0 {
            pool().give(std::mem::take(&mut self.0));
        }
    }
}

impl AllocationController for Pooled {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Native
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let (start, len) = (self.0.as_mut_ptr(), size_of::<f32>() * self.0.capacity());
        // SAFETY: a vector's capacity is one allocation, borrowed as long as `self` is; what is written there is initialised, says the caller,
        // and any bytes are an f32.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        // SAFETY: as above, only for reading.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of::<f32>() * self.0.capacity()) })
    }

    fn try_detach(&mut self) -> Option<NonNull<u8>> {
        // The caller makes a vector of it again.
        pool().leave(self.0.capacity());
        let mut block = ManuallyDrop::new(std::mem::take(&mut self.0));
        NonNull::new(block.as_mut_ptr().cast())
    }
}
