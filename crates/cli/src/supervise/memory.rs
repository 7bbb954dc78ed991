//! Whether the system kills for want of memory: the counters that Linux keeps of it, of the whole machine and of this process's group.

use std::path::Path;

/// Processes killed so far, as far as can be known; it never goes back.
pub(super) fn kills() -> u64 {
    let count = |path: &Path, key: &str| counter(&std::fs::read_to_string(path).unwrap_or_default(), key);
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_string();
    let group = Path::new("/sys/fs/cgroup").join(group).join("memory.events");
    count(Path::new("/proc/vmstat"), "oom_kill").max(count(&group, "oom_kill"))
}

/// The number behind `key` on a line of its own.
fn counter(text: &str, key: &str) -> u64 {
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        assert_eq!(counter("low 0\noom 4\noom_kill 3\noom_group_kill 1\n", "oom_kill"), 3);
        assert_eq!(counter("pgfault 12\n", "oom_kill"), 0);
        assert_eq!(counter("oom_kill many\n", "oom_kill"), 0);
        assert!(kills() >= counter(&std::fs::read_to_string("/proc/vmstat").unwrap_or_default(), "oom_kill"));
    }
}
