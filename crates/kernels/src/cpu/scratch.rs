//! Buffers that outlive the calls that use them.
//!
//! Touching a page for the first time costs about a microsecond here, as much as reading 40 KB of warm memory, so a packed weight
//! matrix or a strip of input that was fresh at every call would cost more than some of the convolutions. Buffers therefore go back
//! to a pool, each to that of the thread that used it: no thread waits for another, and what a thread takes is warm in its own caches. A
//! buffer's contents are whatever its last user left. (Tensors, made by one thread and dropped by another, have a pool of the process: `buffers`.)

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// Free buffers, the one returned last at the end.
    static POOL: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// A thread's pool keeps at most this many floats (128 MB), those returned last: sizes that are no longer wanted do not fill it for good.
const POOL_LIMIT: usize = 32 << 20;

/// Floats per 64-byte cache line.
const LINE: usize = 16;

/// A slice of f32 that begins on a cache line and goes back to the pool when dropped.
pub struct Buffer {
    storage: Vec<f32>,
    start: usize,
    len: usize,
}

/// A buffer of `len` floats with arbitrary contents; in tests none that a kernel could compute with by mistake.
pub fn take(len: usize) -> Buffer {
    let needed = len + LINE;
    let found = POOL.with_borrow_mut(|pool| {
        // The smallest that fits, unless it is so much larger that a later, larger request would miss it; of equals the warmest.
        (0..pool.len())
            .rev()
            .filter(|&i| pool[i].len() >= needed && pool[i].len() / 4 <= needed.max(1 << 14))
            .min_by_key(|&i| pool[i].len())
            .map(|i| pool.remove(i))
    });
    // Rounding up lets requests that differ a little share buffers.
    Buffer::of(found.unwrap_or_else(|| vec![0.0; needed + needed / 8]), len)
}

/// A buffer of `len` floats, as [`take`]'s, for one who keeps it: no larger than asked for.
pub fn keep(len: usize) -> Buffer {
    Buffer::of(vec![0.0; len + LINE], len)
}

impl Buffer {
    fn of(mut storage: Vec<f32>, len: usize) -> Self {
        if cfg!(test) {
            storage.fill(f32::NAN);
        }
        let start = storage.as_ptr().align_offset(4 * LINE).min(LINE);
        Self { storage, start, len }
    }
}

impl Deref for Buffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.storage[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.storage[self.start..self.start + self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let storage = std::mem::take(&mut self.storage);
        // A thread that ends has no pool any more.
        let _ = POOL.try_with(|pool| give(&mut pool.borrow_mut(), storage, POOL_LIMIT));
    }
}

/// Returns a buffer to a pool of at most `limit` floats; one that is larger displaces nothing.
fn give(pool: &mut Vec<Vec<f32>>, storage: Vec<f32>, limit: usize) {
    if storage.len() > limit {
        return;
    }
    pool.push(storage);
    let mut held: usize = pool.iter().map(Vec::len).sum();
    while held > limit {
        held -= pool.remove(0).len();
    }
}

#[test]
fn the_buffers_returned_last_are_kept() {
    let mut pool = Vec::new();
    for len in [30, 40, 30, 25, 200, 60, 40] {
        give(&mut pool, vec![0.0; len], 100);
        assert!(pool.iter().map(Vec::len).sum::<usize>() <= 100);
    }
    assert_eq!(pool.iter().map(Vec::len).collect::<Vec<_>>(), [60, 40]);
    give(&mut pool, vec![0.0; 101], 100);
    assert_eq!(pool.iter().map(Vec::len).collect::<Vec<_>>(), [60, 40]);
    give(&mut pool, vec![0.0; 1], 100);
    assert_eq!(pool.iter().map(Vec::len).collect::<Vec<_>>(), [40, 1]);
}
