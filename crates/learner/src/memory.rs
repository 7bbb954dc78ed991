//! The memory of this process, and what there is for it.

use std::fs::read_to_string;
use std::path::Path;

/// The high-water mark of this process's memory, as Linux tells: KiB / 10^6 (1.024 x 10^9 bytes), which is what other tools' timers print
/// of `ru_maxrss` as GB.
pub fn peak_memory() -> Option<f64> {
    let text = read_to_string("/proc/self/status").ok()?;
    Some(kib(&text, "VmHWM:")? as f64 / 1e6)
}

/// Bytes that can be allocated without swapping, within the limits of this process's control group (a container's) and those around it too, as Linux tells; elsewhere
/// unknown.
pub fn free_memory() -> Option<u64> {
    let of_machine = kib(&read_to_string("/proc/meminfo").ok()?, "MemAvailable:")? << 10;
    let own = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Some(of_group(Path::new("/sys/fs/cgroup"), path).map_or(of_machine, |group| group.min(of_machine)))
}

/// What the limits of the group at `path` and of those that it is part of leave, the least of it.
fn of_group(root: &Path, path: &str) -> Option<u64> {
    root.join(path).ancestors().take_while(|dir| dir.starts_with(root)).filter_map(left).min()
}

/// What a group's limit leaves: files that nobody has looked at lately give way.
fn left(group: &Path) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let files = read_to_string(group.join("memory.stat")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    Some(number("memory.max")?.saturating_sub(number("memory.current")?.saturating_sub(files.unwrap_or(0))))
}

/// The number behind `name` on a line of its own.
fn kib(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_limit_counts_without_files_that_give_way() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(left(dir.path()), None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        assert_eq!(left(dir.path()), None, "no limit");
        write("memory.max", "1000\n");
        assert_eq!(left(dir.path()), Some(300));
        write("memory.stat", "anon 500\ninactive_file 150\n");
        assert_eq!(left(dir.path()), Some(450));
        write("memory.current", "2000\n");
        assert_eq!(left(dir.path()), Some(0));
    }

    #[test]
    fn a_group_is_bound_by_those_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let (slice, task) = (dir.path().join("user.slice"), dir.path().join("user.slice/job/task"));
        std::fs::create_dir_all(&task).unwrap();
        let of = || of_group(dir.path(), "user.slice/job/task");
        assert_eq!(of(), None);
        let limit = |group: &Path, limit: &str, used: &str| {
            std::fs::write(group.join("memory.max"), limit).unwrap();
            std::fs::write(group.join("memory.current"), used).unwrap();
        };
        limit(&task, "max\n", "100\n");
        limit(&slice, "8000\n", "7000\n");
        assert_eq!(of(), Some(1000));
        limit(&task, "300\n", "100\n");
        assert_eq!((of(), of_group(dir.path(), "user.slice"), of_group(dir.path(), "")), (Some(200), Some(1000), None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_some() {
        assert!(peak_memory().unwrap() > 1e-3 && free_memory().unwrap() > 1 << 20);
    }
}
