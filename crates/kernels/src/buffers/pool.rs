//! The pool of free blocks: what it keeps, and for how long (see the essay of `buffers`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests after which an unwanted block is freed; a training step makes a few hundred.
pub(super) const PATIENCE: u64 = 4096;

/// Free blocks; sizes in values.
#[derive(Default)]
pub(super) struct Pool {
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
    pub(super) fn take(&mut self, len: usize) -> Vec<f32> {
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
    pub(super) fn lend(&mut self, capacity: usize) {
        self.held += capacity;
        self.most = self.most.max(self.held);
    }

    /// A tensor's block of `capacity` leaves it, and may or may not become another's.
    pub(super) fn leave(&mut self, capacity: usize) {
        self.held -= capacity;
    }

    /// A tensor held this block until now.
    pub(super) fn give(&mut self, block: Vec<f32>) {
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

pub(super) fn pool() -> MutexGuard<'static, Pool> {
    // A panic elsewhere cannot leave the pool half changed in a way that matters: at worst a block is lost.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
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
}
