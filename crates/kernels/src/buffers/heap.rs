//! What the system gives and what the allocator keeps of what was freed.

/// Bytes of a large page, of the processors that have pages of 4 KB.
#[cfg(target_os = "linux")]
const LARGE: usize = 2 << 20;

/// So many zeros, in large pages as far as the system has them for who asks: planes of pixels are walked side by side, each in a page of its own, and a
/// core remembers where a few dozen pages are. What cannot be had so is had as always.
pub(super) fn block(len: usize) -> Vec<f32> {
    let block = vec![0.0; len];
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let start = block.as_ptr().cast_mut();
        let (first, end) = (start.addr().next_multiple_of(LARGE), (start.addr() + size_of_val(&block[..])) / LARGE * LARGE);
        if first < end {
            // SAFETY: the pages lie in the block, and the advice changes none of its values.
            unsafe {
                libc::madvise(start.with_addr(first).cast(), end - first, libc::MADV_HUGEPAGE);
            }
        }
    }
    block
}

/// Gives it back to the system. glibc by itself only does so with what lies above everything in use: of 230 MB that reading a checkpoint had freed
/// none, and the next step came on top of them.
pub(super) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes no pointer, and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_lies_below_something_in_use_is_given_back_too() {
        // What this process has in memory, MB.
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().split(' ').next().unwrap().parse::<usize>().unwrap() / 1000
        };
        // Small enough to come from the heap, and far more than other tests hold meanwhile.
        let mut blocks: Vec<Vec<u8>> = (0..8000).map(|_| vec![1; 64 * 1024]).collect();
        let above = blocks.pop();
        drop(blocks);
        let before = resident();
        super::give_back();
        assert!(resident() + 300 < before, "{} of {before} MB", resident());
        drop(above);
    }
}
