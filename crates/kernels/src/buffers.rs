//! Memory of large tensors, passed from their last reader to the next writer.
//!
//! A fresh page costs about a microsecond to map and clear, 12 ms for 48 MiB, and a training step writes hundreds of megabytes.
//! The allocator gives such blocks back to the system as soon as they are free, so every step would pay anew. Outputs are
//! drawn from a pool ([`take`]), and a block returns there when the last tensor on it is dropped, wherever that happens: in one of our
//! operations, which take their inputs by value, or in Burn's. Blocks keep what they held; whoever takes one overwrites all of it.
//!
//! The pool never holds more than tensors held at one time: beyond that, what has waited longest is freed. (Less would not do: blocks of
//! different sizes are free in the forward and in the backward pass. With a limit for what is free and what is held together, half of a
//! training step's requests found nothing.) And it forgets a block that nobody wanted for [`PATIENCE`] requests, so a run that changes
//! its shapes (validation, another batch size) does not pay for the old ones for long.

#[allow(unsafe_code)]
mod pooled;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};

/// Below this many values the allocator is quick enough.
const SMALLEST: usize = 16 * 1024;
/// Requests after which an unwanted block is freed; a training step makes a few hundred.
const PATIENCE: u64 = 4096;

/// Free blocks; sizes in values.
#[derive(Default)]
struct Pool {
    /// By capacity; each with the request at which it came, in that order.
    free: BTreeMap<usize, Vec<(u64, Vec<f32>)>>,
    requests: u64,
    /// What tensors hold now, and the most they held.
    held: usize,
    most: usize,
}

impl Pool {
    const fn new() -> Self {
        Self { free: BTreeMap::new(), requests: 0, held: 0, most: 0 }
    }

    /// A block of `len` values or up to an eighth more.
    fn take(&mut self, len: usize) -> Vec<f32> {
        self.requests += 1;
        if self.requests.is_multiple_of(PATIENCE / 4) {
            let now = self.requests;
            self.free.retain(|_, blocks| {
                blocks.retain(|(came, _)| came + PATIENCE > now);
                !blocks.is_empty()
            });
        }
        let found = self.free.range_mut(len..=len + len / 8).find_map(|(_, blocks)| blocks.pop());
        let mut block = found.map_or_else(|| vec![0.0; len], |(_, block)| block);
        block.resize(len, 0.0);
        block
    }

    /// A tensor holds a block of `capacity` now, wherever it came from.
    fn lend(&mut self, capacity: usize) {
        self.held += capacity;
        self.most = self.most.max(self.held);
    }

    /// A tensor's block of `capacity` leaves it, and may or may not become another's.
    fn leave(&mut self, capacity: usize) {
        self.held -= capacity;
    }

    /// A tensor held this block until now.
    fn give(&mut self, block: Vec<f32>) {
        self.leave(block.capacity());
        self.free.entry(block.capacity()).or_default().push((self.requests, block));
        let mut free: usize = self.free.iter().map(|(capacity, blocks)| capacity * blocks.len()).sum();
        while free > self.most {
            let sizes = self.free.iter_mut().filter(|(_, blocks)| !blocks.is_empty());
            let Some((capacity, blocks)) = sizes.min_by_key(|(_, blocks)| blocks[0].0) else { return };
            blocks.remove(0);
            free -= capacity;
        }
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

fn pool() -> MutexGuard<'static, Pool> {
    // A panic elsewhere cannot leave the pool half changed in a way that matters: at worst a block is lost.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `len` values, whatever they are.
pub(crate) fn take(len: usize) -> Vec<f32> {
    if len < SMALLEST { vec![0.0; len] } else { pool().take(len) }
}

/// Whether our kernels, which know no other type, can compute with all of these.
pub(crate) fn all_f32<'a>(tensors: impl IntoIterator<Item = &'a FlexTensor>) -> bool {
    tensors.into_iter().all(|tensor| tensor.dtype() == DType::F32)
}

/// A contiguous tensor's values, to be written over: its own memory if nobody else holds it, else a copy.
pub(crate) fn owned(tensor: FlexTensor) -> Vec<f32> {
    // A view of a part of a block must not be taken for the whole of it.
    let whole = tensor.bytes().len() == size_of::<f32>() * tensor.layout().num_elements();
    let tensor = match if whole { into_block(tensor) } else { Err(tensor) } {
        Ok(block) => return block,
        Err(tensor) => tensor,
    };
    let values = tensor.as_slice::<f32>().unwrap_or_default();
    let mut copy = take(values.len());
    copy.copy_from_slice(values);
    copy
}

/// The memory of an f32 tensor that nobody else holds and that came from a `Vec<f32>`; otherwise the tensor.
fn into_block(tensor: FlexTensor) -> Result<Vec<f32>, FlexTensor> {
    if tensor.dtype() != DType::F32 || !tensor.is_unique() {
        return Err(tensor);
    }
    let (bytes, layout) = (tensor.data_arc(), tensor.layout().clone());
    drop(tensor);
    let bytes = Arc::try_unwrap(bytes).map_err(|bytes| FlexTensor::from_arc(bytes, layout.clone(), DType::F32))?;
    bytes.try_into_vec::<f32>().map_err(|bytes| FlexTensor::new(bytes, layout, DType::F32))
}

/// A contiguous tensor of `values`.
pub(crate) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    let bytes = if values.len() < SMALLEST { Bytes::from_elems(values) } else { pooled::bytes(values) };
    FlexTensor::new(bytes, Layout::contiguous(Shape::new(shape)), DType::F32)
}

/// The values of a tensor that [`contiguous`] returned.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    // `contiguous` made it so; an empty slice fails the kernels' length checks rather than computing nonsense.
    tensor.as_slice().unwrap_or_default()
}

/// The tensor itself, or its values in order.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pool {
        fn waiting(&self) -> Vec<usize> {
            self.free.values().flatten().map(|(_, block)| block.capacity()).collect()
        }

        /// A block as a tensor's.
        fn hold(&mut self, len: usize) -> Vec<f32> {
            let block = self.take(len);
            self.lend(block.capacity());
            block
        }
    }

    #[test]
    fn a_block_serves_again_where_it_fits() {
        let mut pool = Pool::new();
        for _ in 0..100 {
            let (a, b) = (pool.hold(1000), pool.hold(1000));
            pool.give(a);
            pool.give(b);
        }
        assert_eq!(pool.waiting(), [1000, 1000]);
        assert_eq!((pool.take(1001).capacity(), pool.take(800).capacity()), (1001, 800), "neither too small nor far too large");
        let block = pool.take(900);
        assert_eq!((block.len(), block.capacity(), pool.waiting().len()), (900, 1000, 1));
    }

    #[test]
    fn an_unwanted_block_is_forgotten() {
        let mut pool = Pool::new();
        let (large, small) = (pool.hold(1000), pool.hold(10));
        pool.give(large);
        pool.give(small);
        for _ in 0..2 * PATIENCE {
            let block = pool.hold(10);
            pool.give(block);
        }
        assert_eq!((pool.waiting(), pool.free.len()), (vec![10], 1));
    }

    #[test]
    fn the_pool_holds_no_more_than_was_in_use() {
        let mut pool = Pool::new();
        let (a, b) = (pool.hold(1000), pool.hold(300));
        pool.give(a);
        // A new size drives out what has waited longest.
        let c = pool.hold(600);
        pool.give(c);
        assert_eq!((pool.most, pool.waiting()), (1300, vec![600]));
        // So does a block that was made elsewhere, and no more than it must.
        pool.give(b);
        pool.lend(500);
        pool.give(Vec::with_capacity(500));
        assert_eq!(pool.waiting(), [500, 600]);
        // Sizes that are never asked for again do not add up.
        for size in 100..200 {
            let blocks = [pool.hold(10 * size), pool.hold(5 * size)];
            blocks.into_iter().for_each(|block| pool.give(block));
            assert!(pool.held == 0 && pool.waiting().iter().sum::<usize>() <= pool.most, "{:?} of {}", pool.waiting(), pool.most);
        }
        assert_eq!(pool.most, 15 * 199);
    }

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
