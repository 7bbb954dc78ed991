//! What the allocator keeps of what was freed.

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
