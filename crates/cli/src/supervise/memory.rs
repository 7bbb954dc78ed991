//! Whether the system kills for want of memory: the counter that Linux keeps of it for this process's group, or else for the whole machine.

use std::path::Path;

use bellows_learner::memory::control_group;

/// Processes killed so far, as far as can be known; it never goes back.
pub(super) fn kills() -> u64 {
    first_counter(&[&control_group().join("memory.events"), Path::new("/proc/vmstat")]).unwrap_or(0)
}

/// That of the first of these files that has it: others' processes are none of ours.
fn first_counter(files: &[&Path]) -> Option<u64> {
    files.iter().find_map(|file| counter(&std::fs::read_to_string(file).ok()?, "oom_kill"))
}

/// The number behind `key` on a line of its own.
fn counter(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        assert_eq!(counter("low 0\noom 4\noom_kill 3\noom_group_kill 1\n", "oom_kill"), Some(3));
        assert_eq!(counter("pgfault 12\n", "oom_kill"), None);
        assert_eq!(counter("oom_kill many\n", "oom_kill"), None);
    }

    #[test]
    fn a_group_counts_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let [group, machine] = ["memory.events", "vmstat"].map(|name| dir.path().join(name));
        std::fs::write(&machine, "oom_kill 7\n").unwrap();
        assert_eq!(first_counter(&[&group, &machine]), Some(7));
        std::fs::write(&group, "oom_kill 2\n").unwrap();
        assert_eq!(first_counter(&[&group, &machine]), Some(2));
    }
}
