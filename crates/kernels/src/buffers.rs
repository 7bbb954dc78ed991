//! Memory of large tensors, passed from their last reader to the next writer.
//!
//! A fresh page costs about a microsecond to map and clear, 12 ms for 48 MiB, and a training step writes hundreds of megabytes.
//! The allocator gives such blocks back to the system as soon as they are free, so every step would pay anew. Outputs are
//! drawn from a pool ([`take`]), and a block returns there when the last tensor on it is dropped, wherever that happens: in one of our
//! operations, which take their inputs by value, or in Burn's. Blocks keep what they held; whoever takes one overwrites all of it. Large ones
//! are asked for in large pages (Linux), which a step of YOLOv8n is 5 to 9 % shorter with (a Zen 3, in a virtual machine).
//!
//! The pool never holds more than tensors held at one time: beyond that, what has waited longest is freed. (Less would not do: blocks of
//! different sizes are free in the forward and in the backward pass. With a limit for what is free and what is held together, half of a
//! training step's requests found nothing.) Batches of several lengths would each have blocks of their own, which wait while the others compute; so
//! where their beginning is told ([`next_batch`]), one takes the blocks of the last. And the pool forgets a block that nobody wanted for
//! [`PATIENCE`](pool::PATIENCE) requests, so a run that changes its shapes (validation, another batch size) does not pay for the old ones for long.

#[allow(unsafe_code)]
mod heap;
mod pool;
#[allow(unsafe_code)]
mod pooled;

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use rayon::prelude::*;

use crate::cpu::machine::worth_a_task;
use crate::cpu::simd::MAX_LANES;
use pool::pool;

/// Below this many values the allocator is quick enough.
const SMALLEST: usize = 16 * 1024;

/// `len` values, whatever they are; in tests none that a kernel could compute with by mistake.
pub(crate) fn take(len: usize) -> Vec<f32> {
    let mut values = if len < SMALLEST { vec![0.0; len] } else { pool().take(len) };
    if cfg!(test) {
        values.fill(f32::NAN);
    }
    values
}

/// Another batch begins. To be said where batches differ in size: memory of the last one then serves this one. Changes no number.
pub fn next_batch() {
    pool().next_batch();
}

/// What is free is given back to the system, and what was held until now no measure any more: to be said when a beginning that holds things twice is
/// over, and between steps and evaluations. Changes no number.
pub fn forget() {
    pool().forget();
    heap::give_back();
}

/// Whether our kernels, which know no other type, can compute with all of these.
pub(crate) fn all_f32<'a>(tensors: impl IntoIterator<Item = &'a FlexTensor>) -> bool {
    tensors.into_iter().all(|tensor| tensor.dtype() == DType::F32)
}

/// A contiguous tensor's values, to be written over: its own memory if nobody else holds it, else a copy.
pub(crate) fn owned(tensor: FlexTensor) -> Vec<f32> {
    into_block(tensor).unwrap_or_else(|tensor| {
        let values = values(&tensor);
        let mut copy = take(values.len());
        copy.copy_from_slice(values);
        copy
    })
}

/// The memory of an f32 tensor that nobody else holds and that came from a `Vec<f32>`; otherwise the tensor.
fn into_block(tensor: FlexTensor) -> Result<Vec<f32>, FlexTensor> {
    // A view of a part of a block must not be taken for the whole of it.
    let whole = tensor.bytes().len() == size_of::<f32>() * tensor.layout().num_elements();
    if !whole || tensor.dtype() != DType::F32 || !tensor.is_unique() {
        return Err(tensor);
    }
    let (bytes, layout) = (tensor.data_arc(), tensor.layout().clone());
    drop(tensor);
    let bytes = Arc::try_unwrap(bytes).map_err(|bytes| FlexTensor::from_arc(bytes, layout.clone(), DType::F32))?;
    bytes.try_into_vec::<f32>().map_err(|bytes| FlexTensor::new(bytes, layout, DType::F32))
}

/// A contiguous tensor of `values`. Panics unless there are as many as the shape says: Burn's operations read what it says unchecked.
pub(crate) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    assert_eq!(values.len(), shape.num_elements(), "values of a tensor of shape {:?}", shape.to_vec());
    let bytes = if values.len() < SMALLEST { Bytes::from_elems(values) } else { pooled::bytes(values) };
    FlexTensor::new(bytes, Layout::contiguous(shape), DType::F32)
}

/// A tensor of this shape, all of whose values `write` writes.
pub(crate) fn written(shape: impl Into<Shape>, write: impl FnOnce(&mut [f32])) -> FlexTensor {
    let shape = shape.into();
    let mut values = take(shape.num_elements());
    write(&mut values);
    tensor(values, shape)
}

/// A tensor with its values changed, in its own memory if nobody else holds it.
pub(crate) fn changed(x: FlexTensor, change: impl FnOnce(&mut [f32])) -> FlexTensor {
    let shape = x.shape();
    let mut values = owned(contiguous(x));
    change(&mut values);
    tensor(values, shape)
}

/// The values of a tensor that [`contiguous`] returned.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    // `contiguous` made it so; an empty slice fails the kernels' length checks rather than computing nonsense.
    tensor.as_slice().unwrap_or_default()
}

/// The tensor itself, or its values in order. All threads copy runs that lie together, as a head of a token does; shorter ones Burn copies in tiles.
pub(crate) fn contiguous(x: FlexTensor) -> FlexTensor {
    let run = x.layout().strided_blocks().block_len();
    if x.is_contiguous() || run < MAX_LANES || !all_f32([&x]) {
        return if x.is_contiguous() { x } else { x.to_contiguous() };
    }
    let starts: Vec<usize> = x.layout().strided_blocks().block_starts().collect();
    let from = x.storage::<f32>();
    written(x.layout().shape().clone(), |out| {
        let moves = out.par_chunks_exact_mut(run).zip(starts).with_min_len(worth_a_task(run));
        moves.for_each(|(to, start)| to.copy_from_slice(&from[start..start + run]));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(tensor: &FlexTensor) -> *const f32 {
        tensor.as_slice::<f32>().unwrap().as_ptr()
    }

    #[test]
    fn the_last_tensor_on_a_block_gives_it_back() {
        // A size no other test uses: the pool is the process's.
        let len = SMALLEST + 77;
        let first = tensor(take(len), [len]);
        let at = address(&first);
        let second = first.clone();
        drop(first);
        let other = take(len);
        assert_ne!(other.as_ptr(), at);
        drop(second);
        let again = take(len);
        assert_eq!(again.as_ptr(), at);
    }

    #[test]
    #[should_panic(expected = "values of a tensor of shape [3, 4]")]
    fn a_tensor_is_no_larger_than_its_memory() {
        tensor(vec![0.0; 11], [3, 4]);
    }

    #[test]
    fn a_block_leaves_with_its_owner() {
        let len = 2 * SMALLEST + 77;
        let mut values = take(len);
        values.fill(3.0);
        let (at, first) = (values.as_ptr(), tensor(values, [len]));
        let values = owned(first.clone());
        assert_ne!(values.as_ptr(), at, "a copy for one of two");
        let values = owned(first);
        assert!(values.as_ptr() == at && values.len() == len && values.iter().all(|&v| v == 3.0));
        let other = take(len);
        assert_ne!(other.as_ptr(), at, "nobody gave it back");
    }

    #[test]
    fn views_are_copied_as_burn_copies_them() {
        let numbers: Vec<f32> = (0..6 * 70 * 5 * 33).map(|i| i as f32).collect();
        let whole = tensor(numbers, [6, 70, 5, 33]);
        let turned = [whole.transpose(1, 2), whole.transpose(0, 2), whole.transpose(2, 3), whole.narrow(0, 2, 3).transpose(1, 2)];
        let cut = [whole.narrow(1, 3, 50), whole.narrow(3, 1, 20), whole.narrow(3, 1, 3), whole.narrow(0, 1, 1)];
        let repeated = whole.clone().with_layout(Layout::new(Shape::from([3usize, 5, 33]), vec![0, 33, 1], 33));
        for view in turned.into_iter().chain(cut).chain([repeated]) {
            let (ours, burns) = (contiguous(view.clone()), view.to_contiguous());
            assert!(ours.is_contiguous() && ours.layout().shape() == view.layout().shape());
            assert_eq!(values(&ours), values(&burns), "{:?}", view.layout());
        }
    }

    #[test]
    fn burn_writes_into_a_block_and_copies_it() {
        let len = 3 * SMALLEST + 77;
        let mut values = take(len);
        values.fill(1.0);
        let mut first = tensor(values, [len]);
        let second = first.clone();
        first.storage_mut::<f32>()[5] = 2.0;
        assert_eq!(first.as_slice::<f32>().unwrap()[4..6], [1.0, 2.0]);
        assert_eq!(second.into_data().as_slice::<f32>().unwrap()[4..6], [1.0, 1.0]);
    }
}
