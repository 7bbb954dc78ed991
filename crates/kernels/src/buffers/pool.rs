//! The pool of free blocks: what it keeps, and for how long (see the essay of `buffers`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::heap::{advise, block};

/// Requests after which an unwanted block is freed; a training step makes a few hundred.
pub(super) const PATIENCE: u64 = 4096;

struct Free(Vec<f32>);

impl Drop for Free {
    fn drop(&mut self) {
        advise(&mut self.0, false);
    }
}

/// Free blocks by size, in values; each with the request at which it came, in that order.
type Blocks = BTreeMap<usize, Vec<(u64, Free)>>;

/// What is free, and what is held; sizes in values.
pub(super) struct Pool {
    /// What came back in this batch, by [`size`].
    free: Blocks,
    /// What did before it, by capacity.
    earlier: Blocks,
    requests: u64,
    /// What tensors hold now, and the most they held.
    held: usize,
    most: usize,
}

impl Pool {
    const fn new() -> Self {
        Self { free: Blocks::new(), earlier: Blocks::new(), requests: 0, held: 0, most: 0 }
    }

    /// A block of `len` values or up to an eighth more; or any larger one of an earlier batch.
    pub(super) fn take(&mut self, len: usize) -> Vec<f32> {
        self.requests += 1;
        if self.requests.is_multiple_of(PATIENCE / 4) {
            let now = self.requests;
            for blocks in [&mut self.free, &mut self.earlier] {
                blocks.retain(|_, blocks| {
                    blocks.retain(|(came, _)| came + PATIENCE > now);
                    !blocks.is_empty()
                });
            }
        }
        let fits = self.free.range_mut(len..=len + len / 8).find_map(|(_, blocks)| blocks.pop());
        let found = fits.or_else(|| self.earlier.range_mut(len..).find_map(|(_, blocks)| blocks.pop()));
        let mut block = found.map_or_else(|| self.fresh(len), |(_, mut block)| std::mem::take(&mut block.0));
        block.resize(len, 0.0);
        block
    }

    /// Another batch begins. One after the other, batches of many lengths hold what the longest one holds: each takes the blocks of the last, too
    /// large ones too. (Within a batch that would not do: what is small and kept would sit in blocks that are wanted for what is large.)
    pub(super) fn next_batch(&mut self) {
        for (came, block) in std::mem::take(&mut self.free).into_values().flatten() {
            self.earlier.entry(block.0.capacity()).or_default().push((came, block));
        }
    }

    /// What was held until now says nothing of what will be.
    pub(super) fn forget(&mut self) {
        self.free.clear();
        self.earlier.clear();
        self.most = self.held;
    }

    /// A block of `len` values from the system, for which blocks of earlier batches, all too small by now, are freed.
    fn fresh(&mut self, len: usize) -> Vec<f32> {
        let mut freed = 0;
        while freed < len {
            let Some((capacity, mut blocks)) = self.earlier.pop_last() else { break };
            if blocks.pop().is_some() {
                freed += capacity;
                self.earlier.insert(capacity, blocks);
            }
        }
        block(len)
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
        self.free.entry(size(&block)).or_default().push((self.requests, Free(block)));
        let mut free: usize = self.free.values().chain(self.earlier.values()).flatten().map(|(_, block)| block.0.capacity()).sum();
        while free > self.most {
            let sizes = self.free.values_mut().chain(self.earlier.values_mut()).filter(|blocks| !blocks.is_empty());
            let Some(blocks) = sizes.min_by_key(|blocks| blocks[0].0) else { return };
            free -= blocks.remove(0).1.0.capacity();
        }
    }
}

/// What a block is looked for by: its capacity, or, where it served a tensor that needed far less, what that needed.
fn size(block: &Vec<f32>) -> usize {
    let (len, capacity) = (block.len(), block.capacity());
    if capacity <= len + len / 8 { capacity } else { len }
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
            self.free.values().chain(self.earlier.values()).flatten().map(|(_, block)| block.0.capacity()).collect()
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
        pool.give(vec![0.0; 500]);
        assert_eq!(pool.waiting(), [500, 600]);
        // Sizes that are never asked for again do not add up.
        for size in 100..200 {
            let blocks = [pool.hold(10 * size), pool.hold(5 * size)];
            blocks.into_iter().for_each(|block| pool.give(block));
            assert!(pool.held == 0 && pool.waiting().iter().sum::<usize>() <= pool.most, "{:?} of {}", pool.waiting(), pool.most);
        }
        assert_eq!(pool.most, 15 * 199);
    }

    #[test]
    fn what_is_forgotten_is_neither_kept_nor_a_measure() {
        let mut pool = Pool::new();
        let (weight, a, b) = (pool.hold(100), pool.hold(1000), pool.hold(300));
        pool.give(a);
        pool.next_batch();
        pool.give(b);
        pool.forget();
        assert_eq!((pool.waiting(), pool.held, pool.most), (vec![], 100, 100));
        pool.give(weight);
        assert_eq!(pool.waiting(), [100]);
    }

    /// Forward, then backward in other sizes: what a batch of `n` tokens asks for.
    fn step(pool: &mut Pool, n: usize) {
        pool.next_batch();
        let forward: Vec<_> = [10, 10, 30, 10].map(|width| pool.hold(n * width)).into();
        let adapter = pool.hold(4000);
        let backward: Vec<_> = [30, 20].map(|width| pool.hold(n * width)).into();
        forward.into_iter().chain(backward).chain([adapter]).for_each(|block| pool.give(block));
    }

    #[test]
    fn batches_of_many_lengths_hold_what_the_longest_does() {
        let mut pool = Pool::new();
        step(&mut pool, 192);
        let (most, longest) = (pool.most, pool.waiting());
        assert_eq!(longest.iter().sum::<usize>(), most);
        for n in [64, 128, 64, 192, 128, 192, 64, 64, 192] {
            step(&mut pool, n);
            assert_eq!((pool.most, pool.waiting().iter().sum::<usize>()), (most, most), "{n}");
        }
        // The other way round, what was too small makes room.
        let mut pool = Pool::new();
        for n in [64, 128, 192] {
            step(&mut pool, n);
        }
        assert!(pool.waiting().iter().sum::<usize>() <= pool.most && pool.most <= most + most / 16, "{} for {most}", pool.most);
    }

    #[test]
    fn a_block_that_was_too_large_serves_its_size_again() {
        let mut pool = Pool::new();
        let block = pool.hold(1000);
        pool.give(block);
        pool.next_batch();
        for _ in 0..2 {
            let block = pool.hold(300);
            assert_eq!((block.len(), block.capacity()), (300, 1000));
            pool.give(block);
        }
        assert_eq!(pool.take(900).capacity(), 900, "within a batch nothing takes far more than it needs");
    }
}
