//! What the system gives and what the allocator keeps of what was freed.

use std::ops::Range;

/// Bytes of a large page, of processors whose small ones have 4 KB.
const LARGE: usize = 2 << 20;

/// The addresses of whole large pages in a block that begins at `start`.
fn large_pages(start: usize, bytes: usize) -> Range<usize> {
    start.next_multiple_of(LARGE)..(start + bytes) / LARGE * LARGE
}

/// So many zeros, in large pages as far as the system has them for who asks: planes of pixels are walked side by side, each in a page of its own, and a
/// core remembers where a few dozen pages are.
pub(super) fn block(len: usize) -> Vec<f32> {
    let mut block = vec![0.0; len];
    advise(&mut block, true);
    block
}

/// Asks for a block's pages as large ones, or, of a block that will be freed, no longer: of the allocator's heap the advice would outlive the block, and
/// whatever small thing comes to lie there would take a large page. Changes no value, and what the system cannot do it leaves.
pub(super) fn advise(block: &mut Vec<f32>, large: bool) {
    let pages = large_pages(block.as_ptr().addr(), size_of::<f32>() * block.capacity());
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    if !pages.is_empty() {
        let advice = if large { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the pages lie in the block, which nobody else has, and neither advice changes what is in them.
        unsafe {
            libc::madvise(block.as_mut_ptr().with_addr(pages.start).cast(), pages.len(), advice);
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
    let _ = (pages, large);
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
    use super::*;

    #[test]
    fn large_pages_lie_in_their_block() {
        assert_eq!(large_pages(16, 3 * LARGE), LARGE..3 * LARGE);
        assert_eq!(large_pages(LARGE, LARGE), LARGE..2 * LARGE);
        assert!(large_pages(16, LARGE).is_empty() && large_pages(4, 0).is_empty());
    }

    /// What a page was asked for as: `hg` or `nh` among the flags of its mapping.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn the_advice_ends_with_the_block() {
        let flagged = |address: usize, flag: &str| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let mut inside = false;
            maps.lines().any(|line| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let ends =
                    range.and_then(|(start, end)| Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?)));
                if let Some((start, end)) = ends {
                    inside = (start..end).contains(&address);
                }
                inside && line.starts_with("VmFlags:") && line.split(' ').any(|found| found == flag)
            })
        };
        let mut block = block(3 * LARGE / size_of::<f32>());
        let page = large_pages(block.as_ptr().addr(), 3 * LARGE).start;
        // A system without large pages takes no advice.
        if std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            assert!(flagged(page, "hg"));
            advise(&mut block, false);
            assert!(!flagged(page, "hg"));
        }
    }

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
