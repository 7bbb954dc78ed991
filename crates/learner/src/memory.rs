//! The memory of this process, what there is for it, and what is said of a run that is planned to take more.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use bellows_kernels::processor;
use burn::tensor::Device;

/// Where Linux keeps its control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Where a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the processor, in the machine's memory, which others use too.
    Processor,
    /// On a card, in its own.
    Card,
}

impl Place {
    /// Where this device is.
    pub fn of(device: &Device) -> Self {
        if device.clone().without_autodiff() == processor() { Self::Processor } else { Self::Card }
    }

    /// Bytes there are for a run, where known: what is free of the machine's memory, or all of a card's, which is `own`.
    pub fn room(self, own: Option<u64>) -> Option<f64> {
        let bytes = match self {
            Self::Processor => free_memory(),
            Self::Card => own,
        };
        bytes.map(|bytes| bytes as f64)
    }
}

/// A run is planned to take more than the setting `memory_limit` allows.
#[derive(Debug, thiserror::Error)]
#[error("the run is planned to take {planned:.2} GB, and memory_limit is {limit}: {advice}")]
pub struct TooLarge {
    /// GB.
    pub planned: f64,
    /// GB.
    pub limit: f64,
    /// What would fit.
    pub advice: String,
}

impl Coded for TooLarge {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// The last of 1, 2, .. `most` that holds, where none does after one that does not; 0 if none does.
pub fn last(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, most + 1);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if holds(middle) { good = middle } else { bad = middle }
    }
    good
}

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
    Some(of_group(Path::new(GROUPS), &control_group()).map_or(of_machine, |group| group.min(of_machine)))
}

/// The folder of this process's control group, as Linux tells; that of all groups where it has none.
pub fn control_group() -> PathBuf {
    group_of(&read_to_string("/proc/self/cgroup").unwrap_or_default())
}

/// That of version 2, by what a process's file of its groups says.
fn group_of(own: &str) -> PathBuf {
    Path::new(GROUPS).join(own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default())
}

/// What the limits of a group and of those that it is part of leave, the least of it.
fn of_group(root: &Path, group: &Path) -> Option<u64> {
    group.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(left).min()
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
    fn the_last_that_holds_is_found() {
        for most in 0..20 {
            assert!((0..=most).all(|end| last(most, |n| n <= end) == end), "{most}");
        }
    }

    #[test]
    fn a_card_has_its_own_memory() {
        assert_eq!((Place::Card.room(Some(8)), Place::Card.room(None)), (Some(8.0), None));
        assert_eq!([processor(), processor().autodiff()].map(|device| Place::of(&device)), [Place::Processor; 2]);
    }

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
        let of = || of_group(dir.path(), &task);
        assert_eq!(of(), None);
        let limit = |group: &Path, limit: &str, used: &str| {
            std::fs::write(group.join("memory.max"), limit).unwrap();
            std::fs::write(group.join("memory.current"), used).unwrap();
        };
        limit(&task, "max\n", "100\n");
        limit(&slice, "8000\n", "7000\n");
        assert_eq!(of(), Some(1000));
        limit(&task, "300\n", "100\n");
        assert_eq!((of(), of_group(dir.path(), &slice), of_group(dir.path(), dir.path())), (Some(200), Some(1000), None));
    }

    #[test]
    fn a_group_has_a_folder() {
        let two = "1:name=systemd:/init.scope\n0::/user.slice/job\n";
        assert_eq!(
            [two, "0::/\n", ""].map(group_of),
            ["/sys/fs/cgroup/user.slice/job", "/sys/fs/cgroup", "/sys/fs/cgroup"].map(PathBuf::from)
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_some() {
        assert!(peak_memory().unwrap() > 1e-3 && free_memory().unwrap() > 1 << 20);
    }
}
